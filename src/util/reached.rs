//! "This was reached": rare states of the inside, which tests with faults count.
//!
//! A state is here if something was mended in it once, or if it takes two things at once that seldom meet. A call of
//! [`Rare::reached`] stands in the rare branch itself, never on the way of a lock and unlock without contention. Without the feature
//! `testing` it is nothing at all. `tests/kit/reached.txt` says which tests must reach which state.

#[cfg(any(test, feature = "testing"))]
use std::sync::atomic::{AtomicU64, Ordering};

/// A rare state: its number in the list.
#[derive(Clone, Copy)]
#[cfg_attr(not(any(test, feature = "testing")), allow(dead_code))]
pub(crate) struct Rare(usize);

/// A state of the list, with its name, and the sentence that says what it is.
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(feature = "testing"), allow(dead_code))]
pub(crate) struct Listed {
    pub(crate) state: Rare,
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
}

macro_rules! rare_states {
    ($($(#[doc = $words:literal])+ $name:ident,)+) => {
        enum Number { $($name),+ }

        // They read as the variants of an enum. A store that is not built reaches none of its own.
        #[allow(non_upper_case_globals)]
        #[cfg_attr(not(all(feature = "redis", feature = "zookeeper", feature = "testing")), allow(dead_code))]
        impl Rare {
            $($(#[doc = $words])+ pub(crate) const $name: Self = Self(Number::$name as usize);)+
        }

        #[cfg(any(test, feature = "testing"))]
        pub(crate) const LIST: &[Listed] =
            &[$(Listed { state: Rare::$name, name: stringify!($name), what: concat!($($words),+) }),+];
    };
}

rare_states! {
    // The life of a hold.
    /// A hold expired before its first renewal was confirmed.
    LostBeforeFirstRenewal,
    /// A hold was at risk, and an attempt saved it.
    Saved,
    /// A hold was at risk, and an attempt saved it that came less than one attempt before the loss.
    SavedAtTheLast,
    /// A renewal was answered after it had been counted as failed.
    RenewedLate,
    /// A renewal was confirmed after the hold was lost: a release is owed.
    RenewedAfterLoss,
    /// A renewal of a hold at risk was refused for the credentials or the permissions.
    DeniedAtRisk,
    /// A renewal met a key of another type.
    RenewalMetWrongType,
    /// A hold reached its `max_hold`.
    MaxHoldReached,
    /// A hold made no progress for `stall_after`.
    Stalled,
    /// A hold was lost because the call that it was granted to was not polled.
    LostWithoutPulse,
    /// A renewal left with less time than an attempt may take.
    ShortRenewal,
    /// A call with renewals waited for its worker until its time was over.
    RenewalNeverSent,
    /// All holds were renewed at once, because the store was connected to again.
    VerifiedAll,
    /// A release was given up, and the key left to expire.
    ReleaseGivenUp,
    /// A release found nothing, because an earlier one without an answer had run.
    ReleaseHadRun,
    /// Only the release found that the hold had been lost.
    ReleaseFoundLoss,
    /// A lost hold was left to expire for its `lock_delay`.
    LeftToExpire,
    // Hand-offs.
    /// A hold was handed off to a waiter that was dropped.
    HandedOffToDropped,
    /// A hold was handed off to a waiter that accepted it too late to rely on it.
    HandedOffTooLate,
    /// A hold was recalled from a waiter that was not polled.
    Recalled,
    /// A hold was handed off to a waiter that had been offered a turn already.
    HandedOffAfterOffer,
    /// A hold was handed off to a call that was asking the store.
    HandedOffWhileAsking,
    /// A hold was not handed off, because its holder id is wanted or guarded.
    KeptItsId,
    /// A hold was not handed off, because the reserved fencing tokens were used up.
    FencesUsedUp,
    /// Permits were not handed off, because the semaphore had been made smaller.
    SemaphoreShrunk,
    /// A grant whose call had been dropped was handed off to a waiter.
    AbandonedHandedOff,
    /// A grant whose call had been dropped was released.
    AbandonedReleased,
    /// A record of the hold count found no hold, and another one had followed by a hand-off.
    AbsenceAfterHandOff,
    /// A record of the hold count found no hold, and its mode had been changed, or was being changed.
    AbsenceAfterChange,
    /// A record of the hold count was dropped on the way.
    RecordRequeued,
    // Holds that rest.
    /// A hold that rested was taken over or released before its time was over.
    RestEnded,
    /// A hold that rested was released because another process asked for the name.
    RestYielded,
    /// A hold rested for as long as it may, or until the store was connected to again.
    RestRanOut,
    /// A hold was lost while it rested.
    RestLost,
    // Turns and waiters.
    /// A turn was reclaimed from a call that was not polled.
    TurnReclaimed,
    /// A call kept the grant of a turn that had been reclaimed.
    LateGrantKept,
    /// A late grant ended the turns of other calls.
    LateGrantEndedTurns,
    /// A grant came beside another hold of this process, and was released.
    GrantExcluded,
    /// A grant came after the name had been forced open.
    GrantForced,
    /// A grant came too late to be of use.
    GrantTooLate,
    /// A waiter that was not polled came back to its place, before turns that were offered behind it.
    CameBackInOrder,
    /// A waiter left that had been offered a turn.
    OfferedTurnLeft,
    /// A read hold ended before the waiter joined it that had been offered it.
    JoinEnded,
    /// A reader could not join the read hold of its process.
    JoinRefused,
    /// A call ended because the store was silent for too long.
    EndedBySilence,
    /// A try waited for the end of a silence, and then was admitted.
    TryOutlastedSilence,
    /// A pause for waiters elsewhere grew to its bound.
    PauseAtItsBound,
    /// A pause for waiters elsewhere was cut by the time limit of the call.
    PauseCut,
    /// Two long pauses for waiters elsewhere were for nothing, so the next one was short.
    PauseForNothing,
    /// An arrival that a release had recorded was given up, because its waiter left.
    ArrivalAbandoned,
    /// A set was given up, because one of its names was not to be had.
    SetGivenUp,
    /// A set took a name, and released it again, because another one was held.
    SetUndone,
    /// A set took its names one after the other, after many refusals.
    SetOneByOne,
    // Changes of the mode.
    /// A reader did not become the writer, because others of its process read or wait.
    UpgradeRefusedHere,
    /// A reader did not become the writer, because the store refused.
    UpgradeUndone,
    /// A change of the mode was confirmed after the hold was lost.
    ChangedAfterLoss,
    /// A change of the mode was confirmed too late to be of use.
    ChangedTooLate,
    /// The fate of a change of the mode was unknown.
    ModeUnknown,
    /// A change of the mode was dropped while its request was in flight.
    ChangeDropped,
    /// A renewal of a writer that becomes a reader found the name taken: by itself.
    TakenByItself,
    // Force, steals, close.
    /// A steal came when the holder had released the name already.
    StealMetUnlock,
    /// A steal took the name from a hold of the same process.
    StoleFromItself,
    /// A steal was granted, and a hold of the same process that still was believed in was older.
    StealFoundOlder,
    /// The fate of a forced release was unknown, so a release is owed.
    ForceUnknown,
    /// A hold was granted while its manager was closed.
    GrantedWhileClosed,
    // Runtimes.
    /// The runtime ended that ran the watchdog.
    RuntimeEnded,
    /// Another runtime took the watchdog over.
    TakenOver,
    /// A token was fired for a watchdog that did not run.
    FiredByFallback,
    /// A job returned to the queue, because its runtime ended.
    JobReturned,
    /// A sweep returned to the queue, because its runtime ended.
    SweepReturned,
    /// A sweep found a late grant, and released it.
    SweepFoundGrant,
    /// A sweep was woken by a reconnect.
    SweepAfterReconnect,
    /// An unlock was dropped while its request was in flight.
    UnlockDropped,
    // Redis.
    /// The server did not know a script.
    RedisScriptUnknown,
    /// A request waited for its connection, and was sent.
    RedisWaitedForConnection,
    /// A request waited for its connection for nothing, and was not sent.
    RedisNotSent,
    /// A server refused by its role.
    RedisRoleRefused,
    /// The client of a connection was replaced.
    RedisClientReplaced,
    /// A request took so long that nothing says whether the server or this process stood still.
    RedisSilenceInDoubt,
    /// A silent connection for renewals stayed in use, because there was nothing to log in with for the next one.
    RedisSilenceOutlived,
    /// A client waited for a socket that takes no more data, and its task was ended.
    RedisClientStuck,
    /// A request was redirected, because its slot has moved.
    RedisMoved,
    /// A request was redirected, because its key has moved.
    RedisAsked,
    /// The keys of a request were at two servers.
    RedisTryAgain,
    /// A primary had become a replica.
    RedisReadOnly,
    /// A slot moved under a renewal, which was divided.
    RedisRenewalSplit,
    /// A renewal went key by key, because a slot moves.
    RedisRenewalKeyByKey,
    /// A batch was divided, because a slot moves or a key is out of reach.
    RedisBatchSplit,
    /// A request went with one key, because a slot moves.
    RedisWithOneKey,
    /// Requests that waited for a batch were refused with it.
    RedisBatchRefused,
    /// A request was given up before its batch left.
    RedisGivenUp,
    /// The driver of a batcher was dropped with requests.
    RedisDriverDropped,
    /// A server was distrusted, because its cluster was down for it.
    RedisDistrusted,
    /// A slot has a new primary.
    RedisNewPrimary,
    /// The servers of a cluster named different owners of a slot.
    RedisOwnersDiffer,
    /// Too few replicas had a grant in time.
    RedisUnconfirmed,
    /// A connection for wake-ups was lost.
    RedisSubscriptionLost,
    /// A connection for wake-ups was given up, because it was silent or out of step.
    RedisSubscriptionSilent,
    /// A subscription was refused.
    RedisSubscriptionRefused,
    /// A listing began again, because its server restarted or was replaced.
    RedisWalkAgain,
    // A quorum.
    /// A ballot was split, and another one followed.
    QuorumSplit,
    /// A minority granted a name, and the grants were undone.
    QuorumMinorityUndone,
    /// A majority granted a name, but too late.
    QuorumTooLate,
    /// A ballot chose another fencing token, because others were quicker.
    QuorumTokenRepeated,
    /// A node did not count, because it is younger than the time to live.
    QuorumTooYoung,
    /// A node had lost a hold that the majority has, and got it again.
    QuorumHealed,
    /// What a node had of a hold was of another mode, and was set right.
    QuorumSetRight,
    /// A node refused a name because of an earlier key of this process.
    QuorumOwnKeyLeft,
    /// A change of the mode that the majority did not make was undone at a node.
    QuorumChangeUndone,
    /// A majority renewed a hold, and a node was silent or did not have it.
    QuorumRenewedByMajority,
    /// A majority no longer had a hold.
    QuorumLostByMajority,
    /// A node was swept.
    QuorumSwept,
    /// A grant came when its caller had gone.
    QuorumCallerGone,
    /// A node answered nothing, so it was not asked.
    QuorumNotAsked,
    // ZooKeeper.
    /// A session ended, and another one was opened.
    ZooKeeperSessionReplaced,
    /// A session went on over another connection.
    ZooKeeperSessionResumed,
    /// An acquire took over the node of a waiter.
    ZooKeeperWaiterAdopted,
    /// The node of a waiter was gone when an acquire took it over.
    ZooKeeperAdoptedTooLate,
    /// A waiter gave up its turn, because no acquire took it.
    ZooKeeperTurnMissed,
    /// A waiter got a new node, because a hold came to nothing.
    ZooKeeperRequeued,
    /// The node of a waiter was gone.
    ZooKeeperWaiterVanished,
    /// A connection was lost with a watch on it.
    ZooKeeperWatchLost,
    /// The node that a waiter waits for was gone before it was watched.
    ZooKeeperGoneBeforeWatch,
    /// A node was found that a creation without an answer had made.
    ZooKeeperCreationFound,
    /// A hold that was not renewed was deleted.
    ZooKeeperHoldExpired,
    /// A node became a writer's, and a reader's again, because it was not alone.
    ZooKeeperUpgradeUndone,
    /// A node of unknown fate was swept.
    ZooKeeperSwept,
}

/// How often each state was reached in this process.
#[cfg(any(test, feature = "testing"))]
static COUNTS: [AtomicU64; LIST.len()] = [const { AtomicU64::new(0) }; LIST.len()];

impl Rare {
    /// Whether states are counted: what only finds out whether there is one need not run otherwise.
    pub(crate) const ARE_COUNTED: bool = cfg!(any(test, feature = "testing"));

    /// Counts the state.
    #[inline(always)]
    pub(crate) fn reached(self) {
        #[cfg(any(test, feature = "testing"))]
        COUNTS[self.0].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the state, if it is there.
    #[inline(always)]
    pub(crate) fn reached_if(self, is_there: impl FnOnce() -> bool) {
        #[cfg(any(test, feature = "testing"))]
        if is_there() {
            self.reached();
        }
        #[cfg(not(any(test, feature = "testing")))]
        let _ = is_there;
    }

    /// Returns how often the state was reached in this process.
    #[cfg(any(test, feature = "testing"))]
    #[cfg_attr(not(feature = "testing"), allow(dead_code))]
    pub(crate) fn count(self) -> u64 {
        COUNTS[self.0].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_counted_each_by_itself() {
        // No unit test reaches it.
        let state = Rare::ZooKeeperSwept;
        assert_eq!(state.count(), 0);
        state.reached_if(|| false);
        assert_eq!(state.count(), 0);
        state.reached_if(|| true);
        state.reached();
        assert_eq!(state.count(), 2);
        assert!(LIST.iter().enumerate().all(|(at, listed)| listed.state.0 == at));
    }
}

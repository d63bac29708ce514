//! A server answers no client for a while, and then runs what was sent meanwhile.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::time::Duration;

use kit::fault::{
    LONG, boottime, connect, let_in, lock, millis, owner, renewal, undisturbed, wait_for, watch,
};
use kit::{Server, eventually};
use leasehold::{LeaseState, Loss};
use tokio::task::{JoinHandle, JoinSet};

/// A way to keep the server from answering for a while.
#[derive(Clone, Copy, Debug)]
enum Stall {
    Stop,
    Pause,
    Sleep,
    Script,
}

const STALLS: [Stall; 4] = [Stall::Stop, Stall::Pause, Stall::Sleep, Stall::Script];

impl Stall {
    /// Begins it; it is over when what this returns is.
    fn begin(self, server: &Arc<Server>, time: Duration) -> JoinHandle<()> {
        let server = Arc::clone(server);
        let millis = time.as_millis().to_string();
        match self {
            Stall::Stop => server.pause(),
            Stall::Pause => {
                server.command(&["CLIENT", "PAUSE", &millis, "ALL"]);
            }
            Stall::Sleep => {
                let mut connection = server.connection();
                let seconds = time.as_secs_f64().to_string();
                connection.send(&["DEBUG", "SLEEP", &seconds]).expect("sent");
            }
            // Not interrupted, as it has not reached its time limit of 5 s. Since Redis 7.2 `TIME` stands still in a
            // script; the time that its commands have taken goes on.
            Stall::Script => {
                let spin = "redis.call('SETBIT', 'zeros', 2 ^ 27, 0) repeat redis.call('BITCOUNT', 'zeros') \
                            local spent = string.match(redis.call('INFO', 'commandstats'), \
                            'cmdstat_bitcount:calls=%d+,usec=(%d+)') \
                            until spent / 1000 >= tonumber(ARGV[1]) redis.call('DEL', 'zeros')";
                server.connection().send(&["EVAL", spin, "0", &millis]).expect("sent");
            }
        }
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            if let Stall::Stop = self {
                server.resume();
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stall_longer_than_an_attempt_costs_no_lease() {
    const T: Duration = millis(3_000);
    // From a renewal on: the next one, after at most T/3, has no answer within its T/10. It is at risk for long enough to be
    // seen on a busy machine.
    const TIME: Duration = millis(1_900);
    let mut all = JoinSet::new();
    for stall in STALLS {
        all.spawn(undisturbed(move || async move {
            let server = Arc::new(Server::start());
            let leases = connect(&server.url(), T).await;
            let others = connect(&server.url(), T).await;
            let lease = lock(&leases, "job").await;
            let token = owner(&server, "job");
            renewal(&server, "job").await;
            let waiting = wait_for(&others, "job");
            tokio::time::sleep(millis(20)).await;
            let over = stall.begin(&server, TIME);
            eventually(LONG, || lease.state() != LeaseState::Held).await;
            assert_eq!(lease.state(), LeaseState::AtRisk, "{stall:?}");
            over.await.expect("no panic");
            eventually(LONG, || lease.state() != LeaseState::AtRisk).await;
            assert_eq!(lease.state(), LeaseState::Held, "{stall:?}");
            assert_eq!(owner(&server, "job"), token);
            assert!(!waiting.is_finished());
            lease.unlock().await.expect("a release");
            let_in(waiting).await.0.unlock().await.expect("a release");
        }));
    }
    all.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stall_longer_than_c_fires_the_token_before_the_end() {
    const T: Duration = millis(1_000);
    const TIME: Duration = millis(1_600);
    let mut all = JoinSet::new();
    for stall in STALLS {
        all.spawn(undisturbed(move || async move {
            let server = Arc::new(Server::start());
            let leases = connect(&server.url(), T).await;
            // Its T is that long that the stall is no outage to who waits.
            let others = connect(&server.url(), T * 10).await;
            let lease = lock(&leases, "job").await;
            let token = owner(&server, "job");
            let lost = watch(&lease);
            renewal(&server, "job").await;
            let waiting = wait_for(&others, "job");
            tokio::time::sleep(millis(20)).await;
            // What was sent, and is not run yet, would otherwise make the end later.
            let end = boottime() + T;
            let over = stall.begin(&server, TIME);
            let (loss, reported) = lost.await.expect("no panic");
            assert_eq!(loss, Loss::Expired, "{stall:?}");
            assert!(reported < end, "{stall:?}: {:?} too late", reported - end);
            over.await.expect("no panic");
            // Renewals that were sent in time run now, when the key is there no more.
            let mut connection = server.connection();
            let start = boottime();
            while boottime() - start < T / 3 {
                let there = connection.command(&["HEXISTS", "job", &token]).int();
                assert_eq!(there, 0, "{stall:?}: the key was made again");
                tokio::time::sleep(millis(2)).await;
            }
            let (next, entered) = let_in(waiting).await;
            assert!(entered > reported, "{stall:?}");
            assert!(next.fence() > lease.fence());
            drop(lease);
            leases.close().await.expect("nothing to release");
            assert_ne!(owner(&server, "job"), token);
            next.check().expect("held");
            next.unlock().await.expect("a release");
        }));
    }
    all.join_all().await;
}

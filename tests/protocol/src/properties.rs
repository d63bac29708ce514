//! What must always be so, and what the checker must have met somewhere.

use crate::client::Phase;
use crate::world::{Scope, World};
use stateright::Property;

pub const ONE_BELIEVER: &str =
    "no two clients believe that exclude each other, nor more than there are permits";
pub const COVERED: &str = "a believer's key is there for longer than the grace";
pub const GRACE: &str = "nobody is let in during the grace of who was told";
pub const FENCES: &str = "fencing tokens grow in the order of grants and hand-offs";
pub const DISTINCT: &str = "no two believers have the same fencing token";
pub const REVIVED: &str = "only an outermost acquire makes a key";
pub const ENDS: &str = "a key ends within T of the last request that kept it";
pub const ASKED: &str = "the server's count was asked for";
pub const AGREE: &str = "undisturbed, the server's count is the holder's";
pub const EMPTY: &str = "undisturbed, an abandoned acquire leaves nothing";

pub const LOSS: &str = "a hold is lost by the clock";
pub const LOST_REPLY: &str = "a lost reply to an acquire is survived";
pub const ORPHAN: &str = "a request that ran late leaves an orphan";
pub const HAND_OFF: &str = "a hold is passed on";
pub const TAKE_OVER: &str = "a name is taken over after its expiry";
pub const NESTED: &str = "a lost reply to a nested acquire is survived";

pub const SHARED: &str = "two clients believe that share the name";

/// What the checker is to meet, somewhere.
pub const SOMETIMES: [&str; 7] = [LOSS, LOST_REPLY, ORPHAN, HAND_OFF, TAKE_OVER, NESTED, SHARED];

pub fn all() -> Vec<Property<Scope>> {
    let always = [
        (
            ONE_BELIEVER,
            (|scope, world| world.believers_may_share(scope)) as fn(&Scope, &World) -> bool,
        ),
        (COVERED, |_, world| world.believers_are_covered()),
        (GRACE, |_, world| world.grace_is_covered()),
        (FENCES, |_, world| world.fences_grow()),
        (DISTINCT, |scope, world| world.fences_differ(scope)),
        (REVIVED, |_, world| !world.server.revived),
        (ENDS, |_, world| world.keys_end()),
        (ASKED, |_, world| world.counts_were_asked_for()),
        (AGREE, |_, world| world.counts_agree()),
        (EMPTY, |_, world| world.nothing_is_left()),
    ];
    let sometimes = [
        (
            LOSS,
            (|_, world| {
                world.clients.iter().any(|client| matches!(client.phase, Phase::Stopping { .. }))
            }) as fn(&Scope, &World) -> bool,
        ),
        (LOST_REPLY, |_, world| world.believers().any(|hold| hold.copies)),
        (ORPHAN, |_, world| world.has_orphan()),
        (HAND_OFF, |_, world| world.believers().any(|hold| hold.passed > 0)),
        (TAKE_OVER, |_, world| world.server.expired && world.believers().next().is_some()),
        (SHARED, |_, world| world.believers().count() > 1),
        (NESTED, |_, world| world.believers().any(|hold| hold.count == 2 && hold.copies)),
    ];
    let always = always.into_iter().map(|(name, condition)| Property::always(name, condition));
    let sometimes =
        sometimes.into_iter().map(|(name, condition)| Property::sometimes(name, condition));
    always.chain(sometimes).collect()
}

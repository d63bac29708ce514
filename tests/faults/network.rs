//! Real packets that are lost between a holder and the server, by a router in a network of each
//! test's own: retransmission, half-open connections and lost carriers as the kernel makes them.
//!
//! The holder is a process on one side; the server and the rival that waits are on the other.
#![cfg(target_os = "linux")]

use std::thread::{self, JoinHandle};
use std::time::Duration;

use kit::Server;
use kit::eventually;
use kit::fault::{
    LONG, Resource, boottime, connect, let_in, millis, owner, renewal, undisturbed, wait_for,
};
use kit::namespaces::{Cut, Network, SERVER, with_own_network};

/// A server that the holder's network reaches, too.
fn server() -> Server {
    Server::start_with(&["--bind", "127.0.0.1", SERVER, "--protected-mode", "no"])
}

fn url(server: &Server) -> String {
    format!("redis://{SERVER}:{}", server.port())
}

/// Watches a hold at the server until it is gone there, and tells when its time to live ended, as last seen.
fn watch_end(server: &Server, key: &'static str, token: String) -> JoinHandle<Duration> {
    let mut connection = server.connection();
    thread::spawn(move || {
        let mut end = None;
        loop {
            let now = boottime();
            let left = connection.command(&["PTTL", key]).int();
            if connection.command(&["HEXISTS", key, &token]).int() == 0 {
                return end.expect("it was there");
            }
            // It had the key at both commands, as the token is never used again.
            end = Some(now + millis(u64::try_from(left).expect("a key with a time to live")));
            thread::sleep(millis(5));
        }
    })
}

/// The cut lasts: the token fires before the key is gone, and a rival gets the name then.
async fn lasting(cut: Cut) {
    const T: Duration = millis(2_000);
    undisturbed(move || async move {
        let network = Network::start();
        let server = server();
        let others = connect(&server.url(), T).await;
        let mut holder = network.holder();
        let granted = holder.hold(&url(&server), T, "job").await;
        let token = owner(&server, "job");
        holder.send("watch job");
        renewal(&server, "job").await;
        let waiting = wait_for(&others, "job");
        let ending = watch_end(&server, "job", token);

        network.cut(cut);
        let fired = holder.event(&["fired", "job"]).await;
        assert_eq!(fired.word(2), "Expired", "{cut:?}");
        let end = tokio::task::spawn_blocking(|| ending.join()).await.expect("a thread");
        let end = end.expect("no panic");
        assert!(fired.at < end, "{cut:?}: told {:?} too late", fired.at - end);
        let (next, entered) = let_in(waiting).await;
        assert!(entered < end + millis(500), "{cut:?}: entered {:?} after", entered - end);
        let refused = holder.event(&["refused", "job"]).await;
        let good = Duration::from_nanos(refused.number(2));
        assert!(good < entered, "{cut:?}: a check was good {:?} later", good - entered);
        let mut resource = Resource::default();
        assert!(resource.write(&next));
        assert!(!resource.write_with(granted.number(2)), "{cut:?}: the older fence");

        // Packets of the old holder that the kernel still has arrive now, and harm no one.
        network.heal(cut);
        holder.send("unlock job");
        holder.event(&["refused-unlock", "job", "Lost"]).await;
        renewal(&server, "job").await;
        next.check().expect("the next holder's");
        // And the old one can lock again over the healed network.
        holder.send("lock job");
        next.unlock().await.expect("a release");
        let again = |event: &kit::holder::Event| {
            event.word(0) == "granted" && event.number(2) > granted.number(2)
        };
        eventually(LONG, || holder.events().iter().any(again)).await;
    })
    .await;
}

/// A cut that heals in time: the lease is renewed, and the rival goes on waiting.
async fn healing(cut: Cut) {
    // What is left of it after the outage is more than the second after which Linux sends a lost SYN again.
    const T: Duration = millis(6_000);
    // From a renewal on: the next one, after at most T/3, has no answer within its T/10.
    const OUTAGE: Duration = millis(3_000);
    undisturbed(move || async move {
        let network = Network::start();
        let server = server();
        let others = connect(&server.url(), T).await;
        let mut holder = network.holder();
        let granted = holder.hold(&url(&server), T, "job").await;
        let token = owner(&server, "job");
        renewal(&server, "job").await;
        let waiting = wait_for(&others, "job");
        network.cut(cut);
        let start = boottime();
        tokio::time::sleep(OUTAGE).await;
        holder.send("state job");
        holder.event(&["state", "job", "AtRisk"]).await;
        let left = server.command(&["PTTL", "job"]).int();
        if cut != Cut::Replies {
            assert!(left < 3_200, "{cut:?} has lost nothing: {left} ms");
        }
        network.heal(cut);
        let mut asked = 1;
        eventually(LONG, || {
            assert!(holder.happened(&["fired"]).is_none(), "{cut:?}: {:?}", holder.events());
            holder.send("state job");
            asked += 1;
            holder.happened(&["state", "job", "Held"]).is_some()
        })
        .await;
        // Before C, counted from the last renewal before the cut.
        assert!(boottime() < start + T, "{cut:?}: {:?} in {asked}", boottime() - start);
        assert_eq!(owner(&server, "job"), token);
        assert!(!waiting.is_finished());
        holder.send("unlock job");
        holder.event(&["unlocked", "job"]).await;
        let (next, _) = let_in(waiting).await;
        assert!(next.fence() > Some(granted.number(2)));
        next.unlock().await.expect("a release");
    })
    .await;
}

/// Each runs again by its name, in a network of its own.
macro_rules! in_own_networks {
    ($($name:ident: $story:expr;)+) => {
        $(
            #[test]
            fn $name() {
                with_own_network(concat!("network::", stringify!($name)), || $story);
            }
        )+
    };
}

in_own_networks! {
    requests_lost_warn_the_holder_before_the_key_is_gone: lasting(Cut::Requests);
    replies_lost_stop_renewals_and_warn_the_holder_in_time: lasting(Cut::Replies);
    partition_warns_the_holder_before_the_other_side_enters: lasting(Cut::Both);
    carrier_lost_warns_the_holder_before_the_other_side_enters: lasting(Cut::Cable);
    requests_that_are_lost_for_a_while_cost_no_lease: healing(Cut::Requests);
    replies_that_are_lost_for_a_while_cost_no_lease: healing(Cut::Replies);
    connections_that_are_half_open_for_a_while_cost_no_lease: healing(Cut::Both);
    cable_that_is_out_for_a_while_costs_no_lease: healing(Cut::Cable);
}

//! A multi-lock beside a lock of one name; and the scripts of both alone, which is as fast as it gets.

use super::bare::{self, FENCED, Loaded, TOKEN};
use super::{Bench, in_turn};
use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, Value};

const NAMES: usize = 8;

pub(super) async fn alone(bench: &mut Bench) {
    let leases = bench.connect().await;
    let mut one = leases.lock("sets:one");
    let mut all = leases.multi_lock((0..NAMES).map(|name| format!("sets:{name}"))).expect("a set");
    let all = async || all.lock().await.expect("granted").unlock().await.expect("released");
    let one = async || one.lock().await.expect("granted").unlock().await.expect("released");
    let times = (bench.pick(100, 5), 50);
    let (all, one) = in_turn(times, all, one).await;

    let client = bare::client(&bench.server.url()).await.expect("connected");
    let lone = Loaded::new(&client).await.expect("loaded");
    // That for several requests in one call releases them.
    let load = async |name| bare::load(&client, &bare::script(name)).await.expect("loaded");
    let acquire = load("acquire_all").await;
    let release = load("batch").await;
    let (acquire, release) = words_of_all(&acquire, &release);
    let bare_all = async || {
        call(&client, acquire.clone()).await;
        call(&client, release.clone()).await;
    };
    let bare_one = async || {
        call(&client, lone.acquire("bare:one", true)).await;
        call(&client, lone.release("bare:one")).await;
    };
    let (bare_all, bare_one) = in_turn(times, bare_all, bare_one).await;

    let title = format!("multi-lock of {NAMES} names / lock of one");
    bench.targets.at_most(&title, 1.6, Some(all / one));
    bench.targets.beside(format!(
        "{:.0} us / {:.0} us; the scripts alone {:.2}: {:.0} us / {:.0} us",
        all / 1e3,
        one / 1e3,
        bare_all / bare_one,
        bare_all / 1e3,
        bare_one / 1e3
    ));
}

/// Returns the words of an acquire of all names, and those of their release, by the hashes of the two scripts.
fn words_of_all(acquire: &str, release: &str) -> (Vec<Value>, Vec<Value>) {
    let names: Vec<_> = (0..NAMES).map(|name| format!("bare:{name}")).collect();
    let both: Vec<_> =
        names.iter().flat_map(|name| [name.clone(), bare::fence_key(name)]).collect();
    let holders: Vec<_> = (0..NAMES).map(|name| name.to_string()).collect();
    let holders = holders.join(",");
    let [ttl, _, block, retention] = FENCED;
    let steps = format!("M{}", "R".repeat(NAMES));
    let acquire = bare::words(acquire, &texts(&both), &[ttl, block, retention, TOKEN, &holders]);
    (acquire, bare::words(release, &texts(&names), &[TOKEN, &holders, &steps]))
}

fn texts(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

async fn call(client: &Client, words: Vec<Value>) {
    let command = CustomCommand::new_static("EVALSHA", ClusterHash::Offset(2), false);
    let reply: Value = client.custom(command, words).await.expect("an answer");
    // A name that is not granted costs less.
    let replies = reply.into_array();
    assert!(
        replies.iter().all(|reply| reply.as_i64().is_some_and(|reply| reply >= 0)),
        "{replies:?}"
    );
}

//! A counter without atomic steps, kept by both sides.

use crate::peer::now;
use crate::scenarios;
use crate::world::{World, length};
use std::time::Duration;

const T: Duration = Duration::from_secs(30);

scenarios! {
    no_update_of_either_side_is_lost: on_a_quiet_server in_a_cluster;
}

async fn no_update_of_either_side_is_lost(world: &World) {
    let (leases, java) = (world.rust(T).await, world.java(T).await);
    let (name, length) = (&*world.name("counter"), length(5));
    // In a cluster, the next slot may be another node's.
    let key = &*format!("{{{name}}}:value");
    world.command(key, &["SET", key, "0"]);
    let millis = length.as_millis().to_string();
    let threads = java.on("a").begin("count", &[name, key, "4", &millis]);
    let end = now() + length;
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (mut lock, mut connection) = (leases.lock(name), world.connection(key));
            let key = key.to_owned();
            tokio::spawn(async move {
                let (mut turns, mut longest) = (0, Duration::ZERO);
                while now() < end {
                    let start = now();
                    let lease = lock.lock().await.expect("a lease");
                    longest = longest.max(now() - start);
                    let count = connection.command(&["GET", &key]).int();
                    connection.command(&["SET", &key, &(count + 1).to_string()]);
                    lease.unlock().await.expect("a release");
                    turns += 1;
                }
                (turns, longest)
            })
        })
        .collect();
    let (mut rusts, mut longest) = (0, Duration::ZERO);
    for task in tasks {
        let (turns, wait) = task.await.expect("no panic");
        (rusts, longest) = (rusts + turns, longest.max(wait));
    }
    let javas: i64 = threads.done().await.number();
    let count = world.command(key, &["GET", key]).int();
    world.note(&format!(
        "{count} updates, {javas} of Java, {rusts} of Rust (longest wait {longest:.2?})"
    ));
    assert_eq!(count, javas + rusts, "updates are lost");
    assert!(javas > 0 && rusts > 0, "{javas} of Java, {rusts} of Rust");
}

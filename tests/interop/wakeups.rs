//! Waiters are woken by a release of the other side, not by the clock.

use crate::peer::{Java, now};
use crate::scenarios;
use crate::world::{LONG, World, spread, waits};
use kit::within;
use leasehold::LeaseManager;
use std::time::Duration;

/// By the clock, each waiter would wait for this long.
const T: Duration = Duration::from_secs(60);

scenarios! {
    release_wakes_the_waiters_of_the_other_side: on_a_server in_a_cluster;
    names_with_braces_spaces_and_other_letters_are_the_same: on_a_server in_a_cluster;
    prefix_is_a_name_mapper: on_a_server in_a_cluster;
    sharded_subscriptions_may_be_asked_for: in_a_cluster;
    without_sharded_subscriptions_messages_are_plain: in_a_cluster;
}

const ODD: [&str; 6] =
    ["plain", "{tag}y", "x{a}y", "a{b}{c}", "schlüssel-鍵", "with spaces: and = signs"];

async fn release_wakes_the_waiters_of_the_other_side(world: &World) {
    let (leases, java) = (rust(world, "", None).await, world.java(T).await);
    let names: Vec<String> = (0..20).map(|i| world.name(&format!("woken-{i}"))).collect();
    both_ways(world, &leases, &java, "", &names).await;
}

async fn names_with_braces_spaces_and_other_letters_are_the_same(world: &World) {
    let (leases, java) = (rust(world, "", None).await, world.java(T).await);
    let long = "long".repeat(100);
    let odd = ODD.iter().copied().chain([&*long]);
    let names: Vec<String> = odd.map(|start| world.name(start)).collect();
    both_ways(world, &leases, &java, "", &names).await;
}

async fn prefix_is_a_name_mapper(world: &World) {
    for prefix in ["app:", "{tenant}:"] {
        let leases = rust(world, prefix, None).await;
        let java = world.java_with(T, prefix, "default").await;
        // In a cluster, a second tag would be another slot's.
        let names: Vec<String> = ODD.iter().map(|start| world.name(start)).collect();
        both_ways(world, &leases, &java, prefix, &names).await;
    }
}

async fn sharded_subscriptions_may_be_asked_for(world: &World) {
    let (leases, java) = (rust(world, "", Some(true)).await, world.java_with(T, "", "ON").await);
    let names: Vec<String> = (0..10).map(|i| world.name(&format!("on-{i}"))).collect();
    both_ways(world, &leases, &java, "", &names).await;
}

async fn without_sharded_subscriptions_messages_are_plain(world: &World) {
    let (leases, java) = (rust(world, "", Some(false)).await, world.java_with(T, "", "OFF").await);
    let names: Vec<String> = (0..10).map(|i| world.name(&format!("off-{i}"))).collect();
    both_ways(world, &leases, &java, "", &names).await;
}

/// With the default of the place, or what a cluster is to have.
async fn rust(world: &World, prefix: &str, sharded: Option<bool>) -> LeaseManager {
    let builder = LeaseManager::builder().ttl(T).max_poll_interval(T).prefix(prefix);
    let builder = match sharded {
        Some(sharded) => builder.sharded_pubsub(sharded),
        None => builder,
    };
    world.rust_with(builder).await
}

/// All names at a time: Java holds and Rust waits, then the other way round.
async fn both_ways(
    world: &World,
    leases: &LeaseManager,
    java: &Java,
    prefix: &str,
    names: &[String],
) {
    let thread = |index: usize| java.on(&index.to_string());
    let mut waiters = Vec::new();
    for (index, name) in names.iter().enumerate() {
        thread(index).call("lock", &[name]).await.ok();
        assert!(world.exists(&format!("{prefix}{name}")), "{name}: Java's key is another");
        waiters.push(waits(leases, name));
    }
    all_wait(world, prefix, names).await;
    let (mut to_rust, mut held) = (Vec::new(), Vec::new());
    for (index, (name, waiter)) in names.iter().zip(waiters).enumerate() {
        let unlocked = thread(index).call("unlock", &[name]).await;
        let (granted, lease) = within(LONG, waiter).await.expect("no panic");
        to_rust.push(granted.saturating_sub(unlocked.began));
        unlocked.ok();
        held.push(lease);
    }
    woken(world, "Java's unlock to Rust", to_rust);

    let waiters: Vec<_> =
        names.iter().enumerate().map(|(i, name)| thread(i).begin("lock", &[name])).collect();
    all_wait(world, prefix, names).await;
    let mut to_java = Vec::new();
    for (lease, waiter) in held.into_iter().zip(waiters) {
        let start = now();
        lease.unlock().await.expect("a release");
        let granted = within(LONG, waiter.done()).await;
        to_java.push(granted.ended - start);
        granted.ok();
    }
    woken(world, "Rust's unlock to Java", to_java);
    for (index, name) in names.iter().enumerate() {
        thread(index).call("unlock", &[name]).await.ok();
        assert!(!world.exists(&format!("{prefix}{name}")), "{name}");
    }
}

async fn all_wait(world: &World, prefix: &str, names: &[String]) {
    for name in names {
        let key = format!("{prefix}{name}");
        kit::eventually(LONG, || world.listeners(&key) >= 1).await;
    }
    world.awaited(&format!("{prefix}{}", names[0]), 1).await;
}

fn woken(world: &World, what: &str, mut times: Vec<Duration>) {
    let (p50, p90, max) = spread(&mut times);
    world.note(&format!("{what}: p50 {p50:.1?}, p90 {p90:.1?}, max {max:.1?} of {}", times.len()));
    assert!(p50 < T / 200 && max < T / 6, "not woken: p50 {p50:?}, max {max:?} of {T:?}");
}

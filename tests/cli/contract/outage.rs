//! A store that does not answer when the command begins: one rule for `run`, `hold` and `wait`.

use std::time::{Duration, Instant};

use kit::{Mode, Proxy, Server, millis};

use super::{Running, ended, leasehold};

const COMMANDS: [&str; 4] = ["run", "run --once 1m", "hold", "wait"];
const OUTAGES: [Mode; 2] = [Mode::Refuse, Mode::BlackHole];
/// Longer than the library tries to connect.
const LONGER: Duration = Duration::from_secs(5);

/// A command with these options, for a name that no other one has.
fn command(url: &str, command: &str, options: &[&str]) -> std::process::Command {
    let mut words = leasehold(url);
    words.args(command.split(' ')).args(options).arg(command.replace(' ', "-"));
    if command.starts_with("run") {
        words.args(["--", "true"]);
    }
    words
}

#[tokio::test]
async fn commands_wait_out_an_outage_at_their_start() {
    let server = Server::start();
    for mode in OUTAGES {
        let proxy = Proxy::start(server.port());
        proxy.set(mode);
        let start = |words| Running::start(command(&proxy.url(), words, &[]));
        let mut runs = COMMANDS.map(start);
        tokio::time::sleep(LONGER).await;
        for (running, words) in runs.iter_mut().zip(COMMANDS) {
            assert!(!running.has_ended(), "{words}, {mode:?}: {}", running.text("err"));
        }
        proxy.set(Mode::Pass);
        for (running, words) in runs.into_iter().zip(COMMANDS) {
            let done = running.end().await.with(0);
            assert_eq!(done.err.matches("trying again").count(), 1, "{words}, {mode:?}: {done:?}");
        }
    }
}

/// Whether the name is free is not known, so it is not the code of a name that is held.
#[tokio::test]
async fn wait_ends_an_outage_at_the_start_with_125() {
    let server = Server::start();
    for mode in OUTAGES {
        let proxy = Proxy::start(server.port());
        proxy.set(mode);
        for words in COMMANDS {
            let begun = Instant::now();
            let done = ended(command(&proxy.url(), words, &["-w", "1s"])).await.with(125);
            let took = begun.elapsed();
            assert!(!done.err.is_empty(), "{words}, {mode:?}: no word of why");
            // The library alone tries for three seconds.
            let is_in_time = (millis(1_000)..millis(2_900)).contains(&took);
            assert!(is_in_time, "{words}, {mode:?}: {took:?}");
        }
    }
}

#[tokio::test]
async fn command_that_does_not_wait_asks_once_in_an_outage() {
    let server = Server::start();
    for mode in OUTAGES {
        let proxy = Proxy::start(server.port());
        proxy.set(mode);
        for words in COMMANDS {
            let done = ended(command(&proxy.url(), words, &["-n"])).await.with(125);
            assert!(!done.err.is_empty(), "{words}, {mode:?}: no word of why");
            assert!(!done.err.contains("trying again"), "{words}, {mode:?}: {done:?}");
        }
    }
}

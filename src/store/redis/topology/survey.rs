//! Asks several servers at once, of which some may be silent.

use crate::error::{Error, ErrorKind, Result};
use crate::util::panics::caught;
use crate::util::sync::{Mutex, MutexGuard};
use fred::types::config::Server;
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// How long the other servers may take once most have answered.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);
/// The same once one has answered, until most have.
const LONGER: Duration = Duration::from_secs(1);

/// Servers that are asked again and again. A silent server is waited for only once, and has at most one request at a
/// time.
#[derive(Clone, Default)]
pub(super) struct Panel(Arc<Mutex<HashMap<Server, Status>>>);

#[derive(Clone, Copy, Default)]
struct Status {
    /// Whether it has not answered its last request yet.
    asked: bool,
    /// Whether it did not answer in time.
    silent: bool,
}

impl Panel {
    fn lock(&self) -> MutexGuard<'_, HashMap<Server, Status>> {
        self.0.lock()
    }

    /// Forgets all other servers than these, but for those with a request that has no answer yet.
    pub(super) fn keep_only(&self, is_kept: impl Fn(&Server) -> bool) {
        self.lock().retain(|server, status| status.asked || is_kept(server));
    }

    /// Asks all these servers, and waits for those that are not known to be silent, or for one if all are, but no longer
    /// than the limit. One that is quick does not decide alone: the others have a second more, and less once most have
    /// answered. Returns the answers in the order in which they came, and the error to return if there are none.
    pub(super) async fn ask<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        servers: Vec<Server>,
        limit: Option<Duration>,
        ask: impl Fn(Server) -> F,
    ) -> (Vec<T>, Error) {
        let (sender, mut answers) = mpsc::unbounded_channel();
        let most = servers.len() / 2 + 1;
        let mut awaited = HashSet::new();
        for server in servers {
            let status = {
                let mut statuses = self.lock();
                let status = statuses.entry(server.clone()).or_default();
                let before = *status;
                status.asked = true;
                before
            };
            if status.asked {
                continue;
            }
            if !status.silent {
                awaited.insert(server.clone());
            }
            let answer = ask(server.clone());
            let sender = sender.clone();
            let panel = self.clone();
            // It runs to its end, whichever server is first: an abandoned client would keep its connection.
            tokio::spawn(async move {
                let start = Instant::now();
                let answer = caught("question to a server", answer);
                let answer = answer.await.unwrap_or_else(|| Err(none_reachable()));
                let failed = answer.as_ref().is_err_and(Error::is_unavailable);
                // Slow is only who comes too late for the others.
                let in_time = !sender.is_closed() || start.elapsed() <= PATIENCE;
                panel
                    .lock()
                    .insert(server.clone(), Status { asked: false, silent: failed || !in_time });
                let _ = sender.send((server, answer));
            });
        }
        drop(sender);
        let mut found = Vec::new();
        let mut worst = none_reachable();
        let mut until = limit.map(|limit| Instant::now() + limit);
        while found.is_empty() || !awaited.is_empty() {
            tokio::select! {
                biased;
                answer = answers.recv() => match answer {
                    None => break,
                    Some((server, answer)) => {
                        awaited.remove(&server);
                        match answer {
                            Ok(answer) => {
                                found.push(answer);
                                let patience = if found.len() < most { LONGER } else { PATIENCE };
                                let end = Instant::now() + patience;
                                until = Some(until.map_or(end, |until| until.min(end)));
                            }
                            Err(error) => keep_worst(&mut worst, error),
                        }
                    }
                },
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => break,
            }
        }
        for server in awaited {
            self.lock().entry(server).or_default().silent = true;
        }
        (found, worst)
    }
}

/// Replaces the worst error: that of a server that was reached says more than that another was not.
pub(super) fn keep_worst(worst: &mut Error, error: Error) {
    if !error.is_unavailable() || worst.is_unavailable() {
        *worst = error;
    }
}

pub(super) fn none_reachable() -> Error {
    Error::new(ErrorKind::Unavailable, "none of the servers in the URL answers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    fn server(name: &str) -> Server {
        Server::new(name, 1)
    }

    #[test]
    fn error_of_a_server_that_was_reached_is_returned() {
        use ErrorKind::{Denied, Rejected, Unavailable};
        for (kinds, expected) in [
            (&[Unavailable][..], Unavailable),
            (&[Denied, Unavailable], Denied),
            (&[Unavailable, Denied, Unavailable], Denied),
            (&[Denied, Rejected], Rejected),
        ] {
            let mut worst = none_reachable();
            for kind in kinds {
                keep_worst(&mut worst, Error::new(*kind, "no"));
            }
            assert_eq!(worst.kind(), expected, "{kinds:?}");
            assert!(worst.to_string().contains("no"), "{worst}");
        }
        let mut worst = none_reachable();
        keep_worst(&mut worst, Error::new(Unavailable, "out of order"));
        assert!(worst.to_string().contains("out of order"), "{worst}");
    }

    /// Each answers after as many milliseconds, or never within the test.
    async fn asked(panel: &Panel, times: &[(&'static str, u64)]) -> (Vec<Server>, Duration) {
        let start = Instant::now();
        let servers = times.iter().map(|(name, _)| server(name)).collect();
        let (found, _) = panel
            .ask(servers, None, |asked| {
                let time = times.iter().find(|(name, _)| server(name) == asked).unwrap().1;
                async move {
                    sleep(Duration::from_millis(time)).await;
                    Ok(asked)
                }
            })
            .await;
        (found, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_server_is_waited_for_once() {
        const NEVER: u64 = 1_000_000;
        let (panel, ms) = (Panel::default(), Duration::from_millis);
        let all = [("a", 5), ("b", NEVER), ("c", 20)];
        let two = vec![server("a"), server("c")];
        assert_eq!(asked(&panel, &all).await, (two.clone(), ms(20) + PATIENCE));
        assert_eq!(asked(&panel, &all).await, (two.clone(), ms(20)), "b has a question before it");
        sleep(ms(NEVER)).await;
        assert_eq!(asked(&panel, &[("a", 5), ("b", 50), ("c", 20)]).await, (two, ms(20)));
        // It answers again.
        sleep(ms(100)).await;
        let three = ["a", "c", "b"].map(server).to_vec();
        assert_eq!(asked(&panel, &[("a", 5), ("b", 50), ("c", 20)]).await, (three, ms(50)));
    }

    #[tokio::test(start_paused = true)]
    async fn quick_server_does_not_decide_alone() {
        let (panel, ms) = (Panel::default(), Duration::from_millis);
        let all = [("a", 5), ("b", 600), ("c", 650)];
        let three = ["a", "b", "c"].map(server).to_vec();
        // However often: who answers while the others are awaited is not silent.
        for _ in 0..3 {
            assert_eq!(asked(&panel, &all).await, (three.clone(), ms(650)));
        }
        // As long as all of them take, one is waited for.
        for time in [600, 5000] {
            let slow = [("a", time), ("b", time), ("c", time)];
            for _ in 0..3 {
                let (found, took) = asked(&panel, &slow).await;
                assert_eq!((found.len(), took), (3, ms(time)));
            }
        }
        assert_eq!(asked(&panel, &[("a", 5), ("d", 9000), ("e", 9000)]).await.1, ms(5) + LONGER);
    }

    #[tokio::test(start_paused = true)]
    async fn servers_that_are_gone_are_forgotten_once_they_have_answered() {
        let panel = Panel::default();
        asked(&panel, &[("a", 5), ("b", 900), ("c", 20)]).await;
        panel.keep_only(|known| *known == server("a"));
        assert_eq!(panel.lock().len(), 2, "one has not answered");
        sleep(Duration::from_secs(1)).await;
        panel.keep_only(|known| *known == server("a"));
        assert_eq!(panel.lock().keys().cloned().collect::<Vec<_>>(), [server("a")]);
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_are_silent_one_is_waited_for_up_to_the_limit() {
        let (panel, ms) = (Panel::default(), Duration::from_millis);
        assert_eq!(asked(&panel, &[("a", 5000)]).await, (vec![server("a")], ms(5000)));
        panel.lock().insert(server("a"), Status { asked: false, silent: true });
        assert_eq!(asked(&panel, &[("a", 300)]).await, (vec![server("a")], ms(300)));
        let start = Instant::now();
        let ask = |_| async move {
            sleep(ms(5000)).await;
            Ok(())
        };
        let (found, error) = panel.ask(vec![server("b")], Some(ms(40)), ask).await;
        assert_eq!((found.len(), start.elapsed()), (0, ms(40)));
        assert!(error.is_unavailable());
    }
}

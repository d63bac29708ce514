//! Reports in the log when a server stops answering, and when it answers again.
//!
//! A store reports each failed attempt to connect and each success. All its connections share one register, so an outage is
//! one line at its start, one more from time to time while it lasts, and one at its end, however many calls fail.

use super::provider;
use crate::error::Error;
use crate::util::sync::Mutex;
use crate::util::trace;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Level;

/// The bounds of the time between two lines about one outage.
const AGAIN: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10 * 60));

/// The servers of a store that do not answer.
#[derive(Clone)]
pub(crate) struct Outages(Arc<Register>);

struct Register {
    /// The time for which a server may be silent without a line.
    attempt: Duration,
    /// The time between two lines.
    again: Duration,
    servers: Mutex<HashMap<String, Outage>>,
}

/// A server that does not answer.
struct Outage {
    since: Instant,
    /// When an attempt failed last.
    failed: Instant,
    /// When it was last reported.
    reported: Option<Instant>,
}

/// What has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The connection, or what is sent over it first.
    Connection,
    /// Its TLS: the certificates, or the handshake.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for stores with TLS"))]
    Tls,
}

impl Outages {
    pub(crate) fn new(ttl: Duration, attempt: Duration) -> Self {
        let again = ttl.clamp(AGAIN.0, AGAIN.1);
        Self(Arc::new(Register { attempt, again, servers: Mutex::default() }))
    }

    /// Records that an attempt to connect to a server has failed, and reports it if that is due.
    pub(crate) fn failed(&self, server: &str, step: Step, why: &Error) {
        let Register { attempt, again, servers } = &*self.0;
        let now = Instant::now();
        let silent = {
            let mut servers = servers.lock();
            // A server that is no longer used is forgotten, so the register does not grow.
            servers.retain(|_, outage| now - outage.failed <= *again * 2);
            let outage = servers.entry(server.to_owned()).or_insert(Outage {
                since: now,
                failed: now,
                reported: None,
            });
            outage.failed = now;
            let is_due = match outage.reported {
                None => now - outage.since >= *attempt,
                Some(at) => now - at >= *again,
            };
            if !is_due {
                return;
            }
            outage.reported = Some(now);
            now - outage.since
        };
        trace::later(Level::WARN, || {
            let server = server.to_owned();
            let why = why.clone();
            let silent_ms = silent.as_millis() as u64;
            move || {
                let cause = why.message();
                if cause.starts_with(provider::FAILED) {
                    tracing::warn!(
                        server,
                        silent_ms,
                        cause,
                        "there are no credentials for the server"
                    );
                } else if step == Step::Tls {
                    tracing::warn!(
                        server,
                        silent_ms,
                        cause,
                        "there is no TLS connection to the server"
                    );
                } else if why.is_unavailable() {
                    tracing::warn!(server, silent_ms, cause, "the server does not answer");
                } else {
                    tracing::warn!(server, silent_ms, cause, "the server refuses the connection");
                }
            }
        });
    }

    /// Records that a server has answered, and reports the end of its outage.
    pub(crate) fn answered(&self, server: &str) {
        let outage = self.0.servers.lock().remove(server);
        let Some(outage) = outage.filter(|outage| outage.reported.is_some()) else { return };
        trace::later(Level::INFO, || {
            let server = server.to_owned();
            let silent_ms = outage.since.elapsed().as_millis() as u64;
            move || tracing::info!(server, silent_ms, "the server answers again")
        });
    }
}

impl fmt::Debug for Outages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outages").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use tokio::time::advance;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn outage_is_a_few_lines_however_many_attempts_fail() {
        let seconds = Duration::from_secs;
        let (lines, why) = (Lines::default(), Error::silent());
        let written = {
            let lines = lines.clone();
            move || {
                trace::flush();
                let text = lines.0.lock().clone();
                let text = String::from_utf8(text).unwrap();
                text.lines().map(str::to_owned).collect::<Vec<_>>()
            }
        };
        let log = tracing_subscriber::fmt().with_ansi(false).without_time();
        let _log =
            tracing::subscriber::set_default(log.with_writer(move || lines.clone()).finish());
        let outages = Outages::new(seconds(30), seconds(3));
        let fail = async |tenths: u32| {
            for _ in 0..tenths {
                (0..100).for_each(|_| outages.failed("a:1", Step::Connection, &why));
                advance(seconds(1) / 10).await;
            }
        };
        fail(25).await;
        outages.answered("a:1");
        assert_eq!(written(), [""; 0], "a blip of less than an attempt");
        fail(20 + 640).await;
        outages.answered("a:1");
        outages.answered("a:1");
        let lines = written();
        let says = |line: &String, what: &str| line.contains(what) && line.contains("a:1");
        assert_eq!(lines.len(), 4, "{lines:#?}");
        assert!(lines[..3].iter().all(|line| says(line, "the server does not answer")));
        assert!(lines[0].contains("cause=\"the store did not answer in time\""), "{}", lines[0]);
        assert!(lines[0].contains("silent_ms=3000"), "{}", lines[0]);
        assert!(
            says(&lines[3], "the server answers again") && lines[3].contains("silent_ms=66000")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn servers_that_are_no_longer_used_are_forgotten() {
        let outages = Outages::new(Duration::from_secs(1), Duration::from_secs(1));
        let fail = |server: &str| outages.failed(server, Step::Connection, &Error::silent());
        (0..1000).for_each(|port| fail(&format!("a:{port}")));
        assert_eq!(outages.0.servers.lock().len(), 1000);
        advance(AGAIN.0 * 3).await;
        fail("b");
        assert_eq!(outages.0.servers.lock().len(), 1);
    }
}

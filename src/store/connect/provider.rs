//! Asks a provider of credentials, on a thread of its own.
//!
//! # Invariants
//!
//! 1. **No code of the provider runs on another thread.** It may hang, block or panic; what waits for it waits no longer than
//!    a limit.
//! 2. **Each server has one call at a time.** Who asks meanwhile gets its result. So what waits for the thread does not grow
//!    while the provider hangs.

use super::credentials::{Credentials, CredentialsProvider, CredentialsRequest};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::util::sync::Mutex;
use crate::util::trace;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tracing::Level;

/// Begins the message of each failure of a provider.
pub(crate) const FAILED: &str = "the credentials provider ";

/// The time between two lines of the log about one server.
const AGAIN: Duration = Duration::from_secs(60);
/// The longest text of a user's error that is shown.
const LONGEST_TEXT: usize = 500;

/// Asks the provider of a manager. Clones share its thread, which ends with the last of them.
#[derive(Clone)]
pub(crate) struct Provider(Arc<Shared>);

struct Shared {
    provider: Arc<dyn CredentialsProvider>,
    /// What the thread is made with.
    builder: fn() -> std::thread::Builder,
    /// The way to the thread, once it is started.
    thread: Mutex<Option<mpsc::UnboundedSender<Call>>>,
    calls: Arc<Calls>,
    /// When the log last had a line about a server without credentials.
    noted: Mutex<HashMap<CredentialsRequest, Instant>>,
}

/// Credentials, and when the provider was asked for them.
#[derive(Clone)]
pub(crate) struct Issued {
    pub(crate) credentials: Credentials,
    pub(crate) asked: Instant,
}

type Answer = Option<Result<Issued>>;

/// The calls under way.
#[derive(Default)]
struct Calls(Mutex<HashMap<CredentialsRequest, watch::Receiver<Answer>>>);

/// A call of the provider.
struct Call {
    request: CredentialsRequest,
    limit: Duration,
    answer: watch::Sender<Answer>,
}

impl Provider {
    pub(crate) fn new(provider: impl CredentialsProvider) -> Self {
        Self::on(std::thread::Builder::new, provider)
    }

    fn on(builder: fn() -> std::thread::Builder, provider: impl CredentialsProvider) -> Self {
        Self(Arc::new(Shared {
            provider: Arc::new(provider),
            builder,
            thread: Mutex::default(),
            calls: Arc::default(),
            noted: Mutex::default(),
        }))
    }

    /// Asks for the credentials of a connection, for at most `limit`.
    pub(crate) async fn ask(
        &self,
        request: &CredentialsRequest,
        limit: Duration,
    ) -> Result<Issued> {
        let mut answer = self.call(request, limit)?;
        match timeout(limit, answer.wait_for(Option::is_some)).await {
            Ok(Ok(answer)) => answer.clone().unwrap_or_else(|| Err(failed("has ended"))),
            // The thread has ended, and the call with it.
            Ok(Err(_)) => {
                self.0.calls.0.lock().remove(request);
                Err(failed("has ended; it is started again"))
            }
            Err(_) => Err(late(limit)),
        }
    }

    /// Begins a call, or joins the one that is under way.
    fn call(
        &self,
        request: &CredentialsRequest,
        limit: Duration,
    ) -> Result<watch::Receiver<Answer>> {
        let mut calls = self.0.calls.0.lock();
        if let Some(answer) = calls.get(request) {
            return Ok(answer.clone());
        }
        let (answer, receiver) = watch::channel(None);
        let call = Call { request: request.clone(), limit, answer };
        let mut thread = self.0.thread.lock();
        let unsent = match &*thread {
            Some(sender) => sender.send(call).err().map(|unsent| unsent.0),
            None => Some(call),
        };
        if let Some(call) = unsent {
            let builder = (self.0.builder)();
            let sender = start(builder, Arc::clone(&self.0.provider), Arc::clone(&self.0.calls))?;
            let _ = sender.send(call);
            *thread = Some(sender);
        }
        calls.insert(request.clone(), receiver.clone());
        Ok(receiver)
    }

    /// Writes that a connection could not authenticate again, unless the log has a line about its server already.
    pub(crate) fn note_failure(&self, request: &CredentialsRequest, why: &Error) {
        let now = Instant::now();
        {
            let mut noted = self.0.noted.lock();
            // A server that is no longer used is forgotten.
            noted.retain(|_, at| now.saturating_duration_since(*at) < AGAIN);
            if noted.contains_key(request) {
                return;
            }
            noted.insert(request.clone(), now);
        }
        trace::later(Level::WARN, || {
            let server = request.server().to_owned();
            let why = why.clone();
            move || {
                let cause = why.message();
                tracing::warn!(
                    server,
                    cause,
                    "a connection cannot authenticate again; it stays in use, and tries again after a pause"
                )
            }
        });
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").finish_non_exhaustive()
    }
}

fn failed(how: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{FAILED}{how}")).with_fate(Fate::NotExecuted)
}

fn late(limit: Duration) -> Error {
    failed(format!(
        "did not return within {limit:?}; it should fetch credentials ahead of time, or give up sooner"
    ))
}

/// Starts the thread.
fn start(
    thread: std::thread::Builder,
    provider: Arc<dyn CredentialsProvider>,
    calls: Arc<Calls>,
) -> Result<mpsc::UnboundedSender<Call>> {
    let (sender, mut inbox) = mpsc::unbounded_channel::<Call>();
    thread
        .name("leasehold-creds".into())
        .spawn(move || {
            // Made here: a runtime cannot be dropped in a task, as it would be if there is no thread for it.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // Without one the calls end with the inbox.
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async {
                while let Some(call) = inbox.recv().await {
                    tokio::spawn(answer(Arc::clone(&provider), Arc::clone(&calls), call));
                }
            });
        })
        .map_err(|error| {
            let failure = failed("has no thread: starting one failed");
            failure.with_source(error)
        })?;
    Ok(sender)
}

/// Makes a call, and answers all that wait for it.
async fn answer(provider: Arc<dyn CredentialsProvider>, calls: Arc<Calls>, call: Call) {
    let Call { request, limit, answer } = call;
    let asked = Instant::now();
    let asking = {
        let request = request.clone();
        // A panic ends this task alone.
        tokio::spawn(async move {
            let credentials = timeout(limit, provider.credentials(request)).await;
            // The error is the user's, and its `Display` may panic, too.
            credentials.map(|credentials| credentials.map_err(|error| one_line(&error.to_string())))
        })
    };
    let result = match asking.await {
        Ok(Ok(Ok(credentials))) => Ok(Issued { credentials, asked }),
        Ok(Ok(Err(text))) => Err(failed(format!("failed: {text}"))),
        Ok(Err(_)) => Err(late(limit)),
        Err(_) => Err(failed("panicked; the panic message says where")),
    };
    calls.0.lock().remove(&request);
    answer.send_replace(Some(result));
}

fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(LONGEST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use tokio::sync::Notify;

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(50);

    fn of(server: &str) -> CredentialsRequest {
        CredentialsRequest::new(server.to_owned(), false)
    }

    /// As on a machine that has no more threads, at first.
    #[tokio::test]
    async fn provider_without_a_thread_fails_until_there_is_one() {
        static MACHINE_IS_FULL: AtomicBool = AtomicBool::new(true);
        let provider = Provider::on(
            || {
                let builder = std::thread::Builder::new();
                match MACHINE_IS_FULL.load(Ordering::SeqCst) {
                    true => builder.stack_size(1 << (usize::BITS - 2)),
                    false => builder,
                }
            },
            Credentials::password("hunter2"),
        );
        for _ in 0..3 {
            let Err(error) = provider.ask(&of("a:1"), LONG).await else { panic!("no thread") };
            assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotExecuted));
            assert!(error.message().contains("has no thread"), "{error}");
            assert!(provider.0.calls.0.lock().is_empty(), "nothing waits");
        }
        MACHINE_IS_FULL.store(false, Ordering::SeqCst);
        assert!(provider.ask(&of("a:1"), LONG).await.is_ok());
    }

    #[tokio::test]
    async fn each_server_has_one_call_at_a_time() {
        let (calls, release) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let provider = {
            let (calls, release) = (Arc::clone(&calls), Arc::clone(&release));
            Provider::new(move |request: CredentialsRequest| {
                let call = calls.fetch_add(1, Ordering::SeqCst);
                let release = Arc::clone(&release);
                async move {
                    if request.server() == "a:1" {
                        release.notified().await;
                    }
                    Ok::<_, String>(Credentials::password(call.to_string()))
                }
            })
        };
        let ask = |server: &str| {
            let (provider, request) = (provider.clone(), of(server));
            tokio::spawn(async move { provider.ask(&request, LONG).await })
        };
        let both = [ask("a:1"), ask("a:1")];
        let other = ask("b:1").await.unwrap().unwrap();
        assert!(other.credentials.into_login().1.is_some(), "another server does not wait");
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        release.notify_one();
        for call in both {
            assert!(call.await.unwrap().is_ok());
        }
        assert_eq!(calls.load(Ordering::SeqCst), 2, "they shared one");
        release.notify_one();
        ask("a:1").await.unwrap().unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 3, "the next one asks again");
    }

    #[tokio::test]
    async fn provider_that_fails_hangs_or_panics_is_named() {
        let provider = Provider::new(async |request: CredentialsRequest| {
            match request.server() {
                "fails" => return Err("no\n  token".to_owned()),
                "hangs" => std::future::pending().await,
                "panics" => panic!("on purpose"),
                _ => {}
            }
            Ok(Credentials::none())
        });
        for (server, limit, says) in [
            ("fails", LONG, "the credentials provider failed: no token"),
            ("hangs", SHORT, "the credentials provider did not return within 50ms"),
            ("panics", LONG, "the credentials provider panicked"),
        ] {
            let error = provider.ask(&of(server), limit).await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.message().starts_with(says), "{error}");
            assert!(provider.ask(&of("works"), LONG).await.is_ok(), "after {server}");
        }
    }

    #[tokio::test]
    async fn provider_that_blocks_its_thread_keeps_nobody_for_long() {
        let (blocked, release) = std::sync::mpsc::channel::<()>();
        let release = Mutex::new(release);
        let provider = Provider::new(move |_: CredentialsRequest| {
            let _ = release.lock().recv();
            async { Ok::<_, String>(Credentials::none()) }
        });
        for _ in 0..3 {
            let error = provider.ask(&of("a"), SHORT).await.err().unwrap();
            assert!(error.message().contains("did not return within 50ms"), "{error}");
        }
        assert_eq!(provider.0.calls.0.lock().len(), 1, "nothing piles up");
        drop(blocked);
        assert!(provider.ask(&of("a"), LONG).await.is_ok());
    }
}

//! What one client logs in with, where a provider says it, and when it does so again.
//!
//! fred asks at each connect. It could also authenticate again by itself, but at a fixed interval from the first connect on,
//! all clients at once, and not sooner after a failure. A provider that hangs or panics once ends that for good, and a panic at
//! a reconnect ends the client. So the timer is ours, and fred never meets the provider itself.

use super::errors::{Failure, classify};
use super::health::Health;
use crate::error::Error;
use crate::store::connect::credentials::CredentialsRequest;
use crate::store::connect::provider::{Issued, Provider};
use crate::util::backoff::Backoff;
use crate::util::sync::Mutex;
use async_trait::async_trait;
use fred::clients::Client;
use fred::error::ErrorKind as Kind;
use fred::interfaces::AuthInterface;
use fred::types::config::{CredentialProvider, Server};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

/// The bounds of the pauses between attempts to authenticate again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The shortest time between two logins of a connection, however short the credentials are valid.
const SHORTEST: Duration = Duration::from_secs(1);

/// For how long prepared credentials are good for the next connect: they are for one that follows at once.
const PREPARED: Duration = Duration::from_secs(10);

/// The login of one client.
pub(in crate::store::redis) struct Login {
    provider: Provider,
    request: CredentialsRequest,
    /// For how long the provider may take.
    limit: Duration,
    /// When to authenticate again; `None` for never.
    due: watch::Sender<Option<Instant>>,
    retry: Mutex<Backoff>,
    /// What the next connect logs in with, if the provider was asked before the connection was given up.
    prepared: Arc<Mutex<Option<Issued>>>,
}

impl Login {
    pub(super) fn new(provider: Provider, request: CredentialsRequest, limit: Duration) -> Self {
        let due = watch::Sender::new(None);
        let retry = Mutex::new(Backoff::new(RETRY.0, RETRY.1));
        Self { provider, request, limit, due, retry, prepared: Arc::default() }
    }

    /// Asks the provider, and plans the next login.
    async fn ask(&self) -> Result<Issued, Error> {
        let issued = self.provider.ask(&self.request, self.limit).await?;
        self.plan(&issued);
        Ok(issued)
    }

    /// Plans the login after that with these credentials.
    fn plan(&self, issued: &Issued) {
        let due = issued.credentials.validity().and_then(|validity| {
            // Not all connections and managers at once, and with a quarter of the time left for more attempts.
            let [random, ..] = Uuid::new_v4().into_bytes();
            let after = validity / 2 + validity / (4 * 255) * u32::from(random);
            issued.asked.checked_add(after.max(SHORTEST))
        });
        self.due.send_replace(due);
    }

    /// Asks the provider for what the next connect logs in with. Returns whether it has an answer. The connection in use stays
    /// logged in as before.
    pub(super) async fn prepare(&self) -> bool {
        match self.provider.ask(&self.request, self.limit).await {
            Ok(issued) => {
                *self.prepared.lock() = Some(issued);
                true
            }
            Err(error) => {
                self.provider.note_failure(&self.request, &error);
                false
            }
        }
    }

    /// Forgets what was prepared.
    pub(super) fn forget_prepared(&self) {
        *self.prepared.lock() = None;
    }

    /// Makes it the login of the client after that of another one, with what was prepared there.
    pub(super) fn after(self, before: &Self) -> Self {
        Self { prepared: Arc::clone(&before.prepared), ..self }
    }

    /// Returns what was prepared for this connect, once, unless it is old or has lapsed.
    fn use_prepared(&self) -> Option<Issued> {
        let issued = self.prepared.lock().take()?;
        let validity = issued.credentials.validity().unwrap_or(Duration::MAX);
        let limit = validity.min(PREPARED + self.limit);
        (issued.asked.elapsed() < limit).then_some(issued)
    }

    /// Waits until it is time to log in again.
    pub(in crate::store::redis) async fn due(&self) {
        let mut due = self.due.subscribe();
        loop {
            let at = *due.borrow_and_update();
            tokio::select! {
                () = async { sleep_until(at.unwrap_or_else(Instant::now)).await }, if at.is_some() => return,
                // The sender is in `self`.
                _ = due.changed() => {}
            }
        }
    }

    /// Plans the next attempt after one that has failed, and reports the failure.
    pub(in crate::store::redis) fn put_off(&self, why: &Error) {
        self.provider.note_failure(&self.request, why);
        self.wait_a_while();
    }

    /// Plans the next attempt.
    pub(super) fn wait_a_while(&self) {
        let pause = self.retry.lock().next();
        self.due.send_replace(Some(Instant::now() + pause));
    }

    /// Authenticates a connection that is in use again. If that fails, the server keeps to the login before, and the next
    /// attempt is planned.
    pub(super) async fn authenticate_again(
        &self,
        client: &Client,
        health: &Health,
        attempt: Duration,
    ) {
        let issued = match self.ask().await {
            Ok(issued) => issued,
            Err(error) => return self.put_off(&error),
        };
        let (user, password) = issued.credentials.into_login();
        let Some(password) = password else { return };
        let sent = Instant::now();
        match client.auth(user, password).await {
            Ok(()) => self.retry.lock().reset(),
            Err(failure) => {
                self.put_off(&classify(&failure));
                if *failure.kind() == Kind::Timeout && health.silence.is_shown_by(sent, attempt) {
                    health.is_silent(client);
                }
            }
        }
    }
}

#[async_trait]
impl CredentialProvider for Login {
    async fn fetch(&self, _: Option<&Server>) -> Result<(Option<String>, Option<String>), Failure> {
        let issued = match self.use_prepared() {
            Some(issued) => {
                self.plan(&issued);
                Ok(issued)
            }
            None => self.ask().await,
        };
        // Its message begins with words by which `classify` knows it again.
        let issued =
            issued.map_err(|error| Failure::new(Kind::Unknown, error.message().to_owned()));
        issued.map(|issued| {
            self.retry.lock().reset();
            issued.credentials.into_login()
        })
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("request", &self.request).finish_non_exhaustive()
    }
}

/// Waits until the login of a client is due, if it has one.
pub(in crate::store::redis) async fn due(login: Option<&Arc<Login>>) {
    match login {
        Some(login) => login.due().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::store::Credentials;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn login(credentials: Credentials) -> Login {
        let request = CredentialsRequest::new("a:1".to_owned(), false);
        Login::new(Provider::new(credentials), request, Duration::from_secs(30))
    }

    /// Returns after how much time the login is due, counted from now.
    fn due_in(login: &Login) -> Option<Duration> {
        login.due.borrow().map(|at| at.saturating_duration_since(Instant::now()))
    }

    #[tokio::test]
    async fn logins_are_due_at_times_of_their_own_before_they_lapse() {
        let valid = Duration::from_secs(10_000);
        let mut times = Vec::new();
        for _ in 0..32 {
            let login = login(Credentials::password("p").valid_for(valid));
            login.ask().await.unwrap();
            times.push(due_in(&login).unwrap());
        }
        let range = Duration::from_secs(4_900)..=Duration::from_secs(7_500);
        assert!(times.iter().all(|time| range.contains(time)), "{times:?}");
        let apart = *times.iter().max().unwrap() - *times.iter().min().unwrap();
        assert!(apart > Duration::from_secs(500), "{times:?}");
    }

    #[tokio::test]
    async fn validity_without_sense_makes_no_hot_loop() {
        for (valid, due) in
            [(None, false), (Some(Duration::MAX), false), (Some(Duration::ZERO), true)]
        {
            let credentials = Credentials::password("p");
            let login = login(match valid {
                Some(valid) => credentials.valid_for(valid),
                None => credentials,
            });
            login.ask().await.unwrap();
            assert_eq!(due_in(&login).is_some(), due, "{valid:?}");
            assert!(due_in(&login).is_none_or(|due| due > SHORTEST / 2), "{valid:?}");
        }
    }

    #[tokio::test]
    async fn login_that_fails_is_tried_again_less_and_less_often() {
        let login = login(Credentials::none());
        let mut pauses = Vec::new();
        for _ in 0..10 {
            login.put_off(&Error::new(ErrorKind::Unavailable, "no"));
            pauses.push(due_in(&login).unwrap());
        }
        assert!(
            pauses[0] <= RETRY.0 && pauses[9] > RETRY.1 / 3 && pauses[9] <= RETRY.1,
            "{pauses:?}"
        );
        // A new connection has logged in.
        login.fetch(None).await.unwrap();
        login.wait_a_while();
        assert!(due_in(&login).unwrap() <= RETRY.0);
    }

    #[tokio::test]
    async fn prepared_credentials_serve_one_connect_soon_after() {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let provider = Provider::new(move |_: CredentialsRequest| {
            count.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, String>(Credentials::none()) }
        });
        let request = CredentialsRequest::new("a:1".to_owned(), false);
        let login = Login::new(provider, request, Duration::from_millis(500));
        let asked = || calls.load(Ordering::Relaxed);
        assert!(login.prepare().await);
        login.fetch(None).await.unwrap();
        assert_eq!(asked(), 1);
        login.fetch(None).await.unwrap();
        assert_eq!(asked(), 2);
        assert!(login.prepare().await);
        let old = Instant::now().checked_sub(PREPARED * 2);
        login.prepared.lock().as_mut().unwrap().asked = old.unwrap();
        login.fetch(None).await.unwrap();
        assert_eq!(asked(), 4, "they may have lapsed");
    }

    #[tokio::test]
    async fn prepared_credentials_that_have_lapsed_are_not_used() {
        let login = login(Credentials::password("p").valid_for(Duration::from_millis(20)));
        assert!(login.prepare().await);
        assert!(login.use_prepared().is_some());
        assert!(login.prepare().await);
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(login.use_prepared().is_none());
    }

    /// A connection that stays in use logs in again when it was planned.
    #[tokio::test]
    async fn next_login_is_planned_by_what_is_used() {
        let valid = Duration::from_secs(10_000);
        let before = login(Credentials::password("p").valid_for(valid));
        assert!(before.prepare().await);
        assert_eq!(due_in(&before), None);
        let next = login(Credentials::none()).after(&before);
        let (_, password) = next.fetch(None).await.unwrap();
        assert_eq!(password.as_deref(), Some("p"), "not asked again");
        assert!(due_in(&next).unwrap() > valid / 3);
        assert!(before.use_prepared().is_none(), "once");
        assert!(next.prepare().await);
        next.forget_prepared();
        assert!(next.use_prepared().is_none());
    }
}

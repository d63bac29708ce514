//! The user and the password of a connection, and what provides them.

use async_trait::async_trait;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

/// A user and a password for a server, and for how long they are valid.
///
/// Its `Debug` shows neither.
///
/// ```
/// use leasehold::Credentials;
/// use std::time::Duration;
///
/// let token = Credentials::password("a token").user("lease").valid_for(Duration::from_secs(15 * 60));
/// assert!(!format!("{token:?}").contains("a token"));
/// ```
#[derive(Clone)]
#[must_use = "credentials do nothing until a provider returns them"]
pub struct Credentials {
    user: Option<String>,
    password: Option<String>,
    valid_for: Option<Duration>,
}

impl Credentials {
    /// Creates credentials of the default user, which are valid without end.
    pub fn password(password: impl Into<String>) -> Self {
        Self { user: None, password: Some(password.into()), valid_for: None }
    }

    /// Creates the credentials for a server that wants none.
    pub fn none() -> Self {
        Self { user: None, password: None, valid_for: None }
    }

    /// Sets the user. Without a password it has no effect.
    ///
    /// Defaults to the default user of the server.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets for how long the credentials are valid, counted from the call of the provider.
    ///
    /// A connection authenticates again after a half to three quarters of this time, with what the provider returns then.
    /// It does so at most once in a second.
    ///
    /// Defaults to without end: a connection authenticates once.
    pub fn valid_for(mut self, time: Duration) -> Self {
        self.valid_for = Some(time);
        self
    }

    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for the connections to Redis"))]
    pub(crate) fn into_login(self) -> (Option<String>, Option<String>) {
        (self.user, self.password)
    }

    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for the connections to Redis"))]
    pub(crate) fn validity(&self) -> Option<Duration> {
        self.valid_for
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("valid_for", &self.valid_for).finish_non_exhaustive()
    }
}

/// The connection for which a [provider](CredentialsProvider) is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CredentialsRequest {
    server: String,
    sentinel: bool,
}

impl CredentialsRequest {
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for the connections to Redis"))]
    pub(crate) fn new(server: String, sentinel: bool) -> Self {
        Self { server, sentinel }
    }

    /// Returns the server: `host:port`, or the path of its socket.
    ///
    /// In a fleet it is one of its servers, by the address under which the sentinels or the cluster name it.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Returns whether the server is a sentinel, which has users of its own.
    ///
    /// Return [`Credentials::none`] for a sentinel that wants no password.
    pub fn is_sentinel(&self) -> bool {
        self.sentinel
    }
}

/// Provides the credentials of each connection, for [`Builder::credentials`](crate::Builder::credentials).
///
/// An async closure from a [`CredentialsRequest`] to a `Result` is a provider, and so are [`Credentials`], which never
/// change, and a [`PasswordFile`]. These two are for servers: a sentinel gets no password from them.
#[async_trait]
pub trait CredentialsProvider: Send + Sync + 'static {
    /// Returns the credentials for a connection.
    ///
    /// It is called when a connection is made, before one that is silent is given up for another, and again before the
    /// credentials lapse. The calls run on a thread of their own, one at a time for each server: connections that are made
    /// meanwhile share its result. A call is dropped after three quarters of an attempt: 2.25 s with a TTL of 30 s, and never
    /// less than 0.75 s or more than 7.5 s. It may block its thread, but then the calls for other servers wait, too.
    ///
    /// # Errors
    ///
    /// After an error, a panic, or a call that takes too long, the connection is tried again, after pauses. The text of the error
    /// appears in errors and in the log, so it must contain no secret.
    async fn credentials(
        &self,
        request: CredentialsRequest,
    ) -> Result<Credentials, Box<dyn StdError + Send + Sync>>;
}

#[async_trait]
impl<F, Answer, E> CredentialsProvider for F
where
    F: Fn(CredentialsRequest) -> Answer + Send + Sync + 'static,
    Answer: Future<Output = Result<Credentials, E>> + Send,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    async fn credentials(
        &self,
        request: CredentialsRequest,
    ) -> Result<Credentials, Box<dyn StdError + Send + Sync>> {
        self(request).await.map_err(Into::into)
    }
}

#[async_trait]
impl CredentialsProvider for Credentials {
    async fn credentials(
        &self,
        request: CredentialsRequest,
    ) -> Result<Credentials, Box<dyn StdError + Send + Sync>> {
        Ok(if request.is_sentinel() { Credentials::none() } else { self.clone() })
    }
}

/// A file with a password, which is read each time a connection is made, such as one that a secret store keeps up to date.
///
/// A line break at its end is no part of the password.
///
/// ```no_run
/// # async fn connected() -> leasehold::Result<()> {
/// use leasehold::{LeaseManager, PasswordFile};
///
/// let leases = LeaseManager::builder()
///     .credentials(PasswordFile::new("/run/secrets/redis").user("lease"))
///     .connect("redis://redis.internal:6379")
///     .await?;
/// # drop(leases);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PasswordFile {
    path: PathBuf,
    user: Option<String>,
}

impl PasswordFile {
    /// Names a file with the password of the default user. The file is not read yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), user: None }
    }

    /// Sets the user.
    ///
    /// Defaults to the default user of the server.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }
}

#[async_trait]
impl CredentialsProvider for PasswordFile {
    async fn credentials(
        &self,
        request: CredentialsRequest,
    ) -> Result<Credentials, Box<dyn StdError + Send + Sync>> {
        if request.is_sentinel() {
            return Ok(Credentials::none());
        }
        let path = self.path.display();
        // Opening a pipe would wait for a writer, perhaps forever.
        if std::fs::metadata(&self.path).is_ok_and(|found| !found.is_file()) {
            return Err(format!("the password file {path} is no regular file").into());
        }
        // On the thread of the provider, which may block. An error of the system shows no content.
        let text = std::fs::read_to_string(&self.path)
            .map_err(|error| format!("the password file {path} cannot be read: {error}"))?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() {
            return Err(format!("the password file {path} is empty").into());
        }
        let credentials = Credentials::password(password);
        Ok(match &self.user {
            Some(user) => credentials.user(user),
            None => credentials,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> CredentialsRequest {
        CredentialsRequest::new("host:1".to_owned(), false)
    }

    #[test]
    fn credentials_are_not_shown() {
        let credentials = Credentials::password("hunter2").user("hunter");
        assert!(!format!("{credentials:?}").contains("hunter"));
    }

    #[tokio::test]
    async fn sentinel_gets_no_password_of_servers() {
        let sentinel = CredentialsRequest::new("host:1".to_owned(), true);
        for provider in
            [&Credentials::password("a") as &dyn CredentialsProvider, &PasswordFile::new("/no")]
        {
            let credentials = provider.credentials(sentinel.clone()).await.unwrap();
            assert_eq!(credentials.into_login(), (None, None));
        }
    }

    #[tokio::test]
    async fn password_file_is_read_at_each_call() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let provider = PasswordFile::new(file.path()).user("u");
        for (text, password) in
            [("hunter2\n", Some("hunter2")), ("a b \r\n", Some("a b ")), ("", None), ("\n", None)]
        {
            std::fs::write(file.path(), text).unwrap();
            let read = provider.credentials(request()).await;
            match password {
                Some(password) => {
                    let login = read.unwrap().into_login();
                    assert_eq!(login, (Some("u".to_owned()), Some(password.to_owned())));
                }
                None => assert!(read.unwrap_err().to_string().ends_with("is empty")),
            }
        }
        std::fs::write(file.path(), b"hunter2 \xff").unwrap();
        let error = provider.credentials(request()).await.unwrap_err().to_string();
        assert!(error.contains("cannot be read") && !error.contains("hunter"), "{error}");
        let missing = PasswordFile::new("/no/such/file").credentials(request()).await;
        assert!(missing.unwrap_err().to_string().contains("/no/such/file cannot be read"));
    }

    /// Opening it would wait for a writer.
    #[cfg(unix)]
    #[tokio::test]
    async fn password_file_that_is_a_pipe_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe.as_path(), folder.path()] {
            let error = PasswordFile::new(path).credentials(request()).await.unwrap_err();
            assert!(error.to_string().ends_with("is no regular file"), "{error}");
        }
    }
}

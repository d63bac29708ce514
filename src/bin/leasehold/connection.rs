//! The way to the store, which all subcommands share.

use crate::duration;
use crate::exit::Failure;
use clap::{Args, ValueHint};
use leasehold::store::Owner;
use leasehold::{Builder, LeaseManager, PasswordFile};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "The store")]
pub(crate) struct Connection {
    /// The store: redis://HOST, redis-sentinel://, redis-cluster://, several URLs for a quorum, or zookeeper://HOST
    ///
    /// A password does not belong here, since other users of this machine can read it: put it into the variable, or into
    /// the file that LEASEHOLD_PASSWORD_FILE names.
    #[arg(long, global = true, env = "LEASEHOLD_URL", hide_env_values = true, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: Option<String>,
    /// The user of the server, with a password file
    #[arg(long, global = true, env = "LEASEHOLD_USER", value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// A file with the password. It is read again at each new connection
    #[arg(long, global = true, env = "LEASEHOLD_PASSWORD_FILE", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) password_file: Option<PathBuf>,
    /// What comes before each name in the store
    #[arg(long, global = true, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// The time to live of a lease: if this machine ends without a word, others get the name so much later
    ///
    /// A time is 500ms, 30s, 5m, 2h or 1d, or a number of seconds.
    #[arg(long, global = true, default_value = "30s", value_parser = duration::parse, value_name = "TIME")]
    pub(crate) ttl: Duration,
}

impl Connection {
    /// Connects with these settings.
    pub(crate) async fn connect(&self) -> Result<LeaseManager, Failure> {
        self.connect_with(self.builder()?).await
    }

    /// Connects a builder that [`builder`](Self::builder) returned, with more settings.
    pub(crate) async fn connect_with(&self, builder: Builder) -> Result<LeaseManager, Failure> {
        Ok(builder.connect(self.url()?).await?)
    }

    /// Returns a builder with the settings of the command line.
    pub(crate) fn builder(&self) -> Result<Builder, Failure> {
        let owner = Owner::new("leasehold").version(env!("CARGO_PKG_VERSION"));
        let mut builder = LeaseManager::builder().ttl(self.ttl).describe(owner);
        if let Some(prefix) = &self.prefix {
            builder = builder.prefix(prefix);
        }
        if self.user.is_some() && self.password_file.is_none() {
            return Err(Failure::new(
                "a user is named, but no password: set LEASEHOLD_PASSWORD_FILE, or put the user and the password into LEASEHOLD_URL",
            ));
        }
        if let Some(file) = &self.password_file {
            // A file that is missing at the start is a mistake; one that is away later may be on its way.
            std::fs::read(file).map_err(|error| {
                Failure::new(format!(
                    "the password file {} cannot be read: {error}",
                    file.display()
                ))
            })?;
            let file = PasswordFile::new(file);
            builder = builder.credentials(match &self.user {
                Some(user) => file.user(user),
                None => file,
            });
        }
        Ok(builder)
    }

    pub(crate) fn url(&self) -> Result<&str, Failure> {
        let url = self.url.as_deref().filter(|url| !url.is_empty()).ok_or_else(|| {
            Failure::new("no store is named: set LEASEHOLD_URL, or give --url redis://HOST")
        })?;
        if has_secret(url) && is_argument(url) {
            return Err(Failure::new(
                "the URL has a password, which other users of this machine can read: set LEASEHOLD_URL instead, or put the password into a file and name it by LEASEHOLD_PASSWORD_FILE",
            ));
        }
        Ok(url)
    }
}

/// Returns whether a URL has a password, in front of a host or behind a question mark.
pub(crate) fn has_secret(url: &str) -> bool {
    url.contains('@') || url.to_ascii_lowercase().contains("password")
}

/// Returns whether a URL was given on the command line, and not by the variable.
fn is_argument(url: &str) -> bool {
    let mut arguments = std::env::args_os().take_while(|argument| argument != "--");
    arguments.any(|argument| argument.to_str().is_some_and(|text| text.ends_with(url)))
}

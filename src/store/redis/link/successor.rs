//! Makes the next connection for wake-ups before the login of the current one lapses: a connection that is subscribed cannot
//! authenticate again.

use super::address::Address;
use super::login::{Login, due};
use super::subscription::Subscription;
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// The successor of a connection.
pub(in crate::store::redis) struct Successor {
    address: Address,
    login: Option<Arc<Login>>,
    /// In a task of its own: an abandoned client would keep its connection.
    connecting: Option<JoinHandle<Result<Subscription>>>,
}

impl Successor {
    pub(in crate::store::redis) fn new(address: &Address, login: Option<Arc<Login>>) -> Self {
        Self { address: address.clone(), login, connecting: None }
    }

    /// Returns the next connection, once it is time for it and it is made. Until then the current one stays in use.
    pub(in crate::store::redis) async fn made(&mut self) -> Subscription {
        loop {
            due(self.login.as_ref()).await;
            let address = self.address.clone();
            let connecting = tokio::spawn(async move { Subscription::connect(&address).await });
            let made = self.connecting.insert(connecting).await;
            self.connecting = None;
            let error = match made {
                Ok(Ok(made)) => return made,
                Ok(Err(error)) => error,
                Err(error) => {
                    Error::new(ErrorKind::Unavailable, "the client has panicked").with_source(error)
                }
            };
            if let Some(login) = &self.login {
                login.put_off(&error);
            }
        }
    }

    /// Closes what is made, for an owner that does not need it any more.
    pub(in crate::store::redis) fn abandon(self, limit: Duration) {
        let Some(connecting) = self.connecting else { return };
        tokio::spawn(async move {
            if let Ok(Ok(made)) = connecting.await {
                made.close(limit).await;
            }
        });
    }
}

//! Runs scripts on one server or in a fleet: a cluster, or a primary with its replicas under sentinels.
//!
//! - This file has [`Connection`], which runs a script wherever its keys are, and [`Connector`], which makes one on the current
//!   runtime.
//! - [`fleet`] runs a script on the server that has the keys, and follows what a server says of a moved slot; [`pool`] has the
//!   connections to its servers.
//! - [`routes`] keeps the [`slot_map`] up to date: [`discover`] asks a cluster for it, and [`sentinels`] asks sentinels for the
//!   primary, both by a [`survey`] of several servers.
//! - [`runtimes`] gives each runtime what it has of its own. [`all_servers`] finds the servers once, for an examination.
//! - [`walk`] goes over the keys of all servers.
//!
//! From outside, `send`, `pubsub` and `checks` use [`Connection`], [`Connector`], [`Destination`], [`routes`] and [`runtimes`], and
//! `listing.rs` uses [`walk`].

mod all_servers;
mod discover;
pub(super) mod fleet;
mod pool;
pub(super) mod routes;
pub(super) mod runtimes;
mod sentinels;
mod slot_map;
mod survey;
pub(super) mod walk;

use super::link::address::Address;
use super::link::errors::classify;
#[cfg(feature = "testing")]
use super::link::in_process::{self, InProcessServer};
use super::link::node::Node;
use super::link::script::{Ready, slot};
use super::scripts::reply::{self, Element};
use super::scripts::{Script, ScriptCall};
use crate::error::{Error, Result};
use crate::store::Signal;
use crate::util::in_place::in_place;
pub(super) use all_servers::AllServers;
use fleet::Fleet;
/// A server of a fleet.
pub(super) use fred::types::config::Server;
use routes::Routes;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Runs scripts on one server, or on the server of a fleet that has their keys.
#[derive(Clone)]
pub(super) enum Connection {
    One(Node),
    Fleet(Arc<Fleet>),
    #[cfg(feature = "testing")]
    InProcess(InProcessServer),
}

impl Connection {
    /// Runs a script. Not an `async fn`: its future would have space for the call twice.
    pub(super) fn run(
        &self,
        script: &'static Script,
        call: ScriptCall,
        timeout: Duration,
    ) -> impl Future<Output = Result<Vec<Element>>> + Send {
        let call = Ready::new(call);
        async move {
            match self {
                Connection::One(node) => {
                    let reply = pin!(node.run(script, &call, timeout, false)).await;
                    reply.map_err(|error| node.at(classify(&error)))
                }
                // Boxed, so that the future stays small where there is one server.
                Connection::Fleet(fleet) => in_place(|| fleet.run(script, call, timeout)).await,
                #[cfg(feature = "testing")]
                Connection::InProcess(server) => in_process::run(server, script, &call),
            }
        }
    }

    /// Returns whether names belong to slots. Then one call takes keys of one slot only.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Connection::Fleet(fleet) if fleet.is_cluster())
    }

    /// Returns the slot of a key of a cluster, of which a call takes keys of one only. Elsewhere all keys are in one slot.
    pub(super) fn slot(&self, key: [&str; 2]) -> u16 {
        if self.is_cluster() { slot(key.concat().as_bytes()) } else { 0 }
    }

    /// Returns whether a call was refused because its slot is being moved and only some of its keys have moved.
    pub(super) fn is_split(&self, error: &Error) -> bool {
        self.is_cluster() && reply::is_split(error)
    }

    pub(super) async fn close(&self) {
        match self {
            Connection::One(node) => node.close().await,
            Connection::Fleet(fleet) => fleet.close().await,
            #[cfg(feature = "testing")]
            Connection::InProcess(_) => {}
        }
    }
}

/// The server to which the connection for requests leads, as far as it is known.
///
/// The subscriber compares: messages are published at the server that runs the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Destination {
    /// How often that connection was made, or made again.
    pub(super) connects: u64,
    /// The id of the server's run. `None` if the server does not report it, or was not asked.
    pub(super) run_id: Option<String>,
}

/// Makes connections on the current runtime.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) address: Address,
    /// `None` for a single server.
    pub(super) routes: Option<Arc<Routes>>,
    /// Is set at each reconnect.
    pub(super) reconnects: Signal,
    /// Where the requests to a single server go. Nothing is sent here for a fleet, whose routes say it.
    pub(super) destination: watch::Sender<Destination>,
}

impl Connector {
    /// Connects for renewals alone.
    pub(super) async fn connect_for_renewals(&self) -> Result<Connection> {
        let address = self.address.clone().for_renewals();
        Self { address, ..self.clone() }.connect().await
    }

    pub(super) async fn connect(&self) -> Result<Connection> {
        let Self { address, routes, reconnects, .. } = self;
        Ok(match routes {
            None => Connection::One(Node::new(address.client().await?, address, reconnects)),
            Some(routes) => Connection::Fleet(Fleet::connect(address, routes, reconnects).await?),
        })
    }
}

//! Walks over the keys of all servers, one page after the other.
//!
//! The cursor of a server is worth nothing elsewhere, nor after a restart, so the walk over a server begins again then. In a
//! cluster each slot must have been walked over at a server that had it from the beginning to the end: a slot that moves to
//! another server, or a primary that is replaced, is walked over there once more. So a key that is there all the time is
//! found at least once.

use super::Connection;
use super::fleet::Fleet;
use super::slot_map::SlotMap;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::redis::link::command::{Command, Reply};
use crate::store::redis::link::errors::classify;
use crate::store::redis::link::node::Node;
use crate::store::redis::scripts::reply::malformed_reply;
use crate::util::reached::Rare;
use fred::types::config::Server;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// How often a walk begins at a server, beside once for each.
const MOST_BEGINNINGS: usize = 32;

/// Keys to find: those of a type that match a pattern.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Query {
    pub(in crate::store::redis) pattern: String,
    pub(in crate::store::redis) of_type: &'static str,
}

/// A walk over the keys of all servers.
pub(in crate::store::redis) struct Walk {
    connection: Connection,
    queries: Vec<Query>,
    page_size: usize,
    timeout: Duration,
    /// The slots that were walked over, each with the server that had it. One that has another server by now is not done.
    walked: BTreeMap<u16, Server>,
    /// Whether the walk over a single server has ended.
    ended: bool,
    position: Option<Position>,
    /// How often it began at a server.
    beginnings: usize,
}

/// Where a walk is.
struct Position {
    node: Node,
    /// `None` for a single server.
    server: Option<Server>,
    /// How often the connection was made again when the walk over this server began.
    connects: u64,
    /// The slots that it had then, without those that were walked over before.
    slots: Vec<u16>,
    /// The index of the query.
    query: usize,
    cursor: String,
}

/// Keys that were found.
pub(in crate::store::redis) struct Found {
    pub(in crate::store::redis) node: Node,
    /// The index of the query.
    pub(in crate::store::redis) query: usize,
    pub(in crate::store::redis) keys: Vec<String>,
    cursor: String,
}

impl Walk {
    pub(in crate::store::redis) fn new(
        connection: Connection,
        queries: Vec<Query>,
        page_size: usize,
        timeout: Duration,
    ) -> Self {
        Self {
            connection,
            queries,
            page_size,
            timeout,
            walked: BTreeMap::new(),
            ended: false,
            position: None,
            beginnings: 0,
        }
    }

    /// Returns the keys of the next page, which can be none; `None` at the end. Until [`advance`](Self::advance), it returns
    /// the same page.
    pub(in crate::store::redis) async fn page(&mut self) -> Result<Option<Found>> {
        loop {
            let Some(position) = &self.position else {
                match self.begin().await? {
                    Some(position) => self.position = Some(position),
                    None => return Ok(None),
                }
                continue;
            };
            let Some(query) = self.queries.get(position.query) else {
                self.finish().await;
                continue;
            };
            if position.is_over(&self.connection) {
                Rare::RedisWalkAgain.reached();
                self.position = None;
                continue;
            }
            let Query { pattern, of_type } = query.clone();
            let size = self.page_size.to_string();
            let [matching, count, ty] = ["MATCH", "COUNT", "TYPE"].map(str::to_owned);
            let cursor = position.cursor.clone();
            let words = [cursor, matching, pattern, count, size, ty, of_type.to_owned()];
            let node = position.node.clone();
            let query = position.query;
            let asked = node.commands(&[Command::new("SCAN", words)], self.timeout).await;
            let reply = asked.and_then(|mut replies| replies.remove(0));
            let reply = match reply {
                Ok(reply) => reply,
                Err(failure) => {
                    if let Connection::Fleet(fleet) = &self.connection {
                        fleet.routes().request_refresh();
                    }
                    return Err(node.at(classify(&failure)));
                }
            };
            // A cursor that was sent to a server which has restarted has skipped keys.
            if position.is_over(&self.connection) {
                Rare::RedisWalkAgain.reached();
                self.position = None;
                continue;
            }
            let (cursor, keys) = page_of(reply).ok_or_else(malformed_reply)?;
            return Ok(Some(Found { node, query, keys, cursor }));
        }
    }

    /// Goes on behind a page.
    pub(in crate::store::redis) fn advance(&mut self, found: &Found) {
        let Some(position) = &mut self.position else { return };
        position.cursor.clone_from(&found.cursor);
        if found.cursor == "0" {
            position.query += 1;
        }
    }

    /// Begins at a server that has slots which were not walked over. Returns `None` if there is none.
    async fn begin(&mut self) -> Result<Option<Position>> {
        let (node, server, slots) = match &self.connection {
            Connection::One(_) if self.ended => return Ok(None),
            #[cfg(feature = "testing")]
            Connection::InProcess(_) => return Ok(None),
            Connection::One(node) => (node.clone(), None, vec![0]),
            Connection::Fleet(fleet) => {
                let all = if fleet.is_cluster() { SlotMap::SLOTS } else { 1 };
                let is_left = |slot: &u16| match self.walked.get(slot) {
                    Some(server) => fleet.routes().owner(*slot).as_ref() != Some(server),
                    None => true,
                };
                let left: Vec<u16> = (0..all).filter(is_left).collect();
                if left.is_empty() {
                    return Ok(None);
                }
                if self.beginnings > fleet.routes().servers().len() + MOST_BEGINNINGS {
                    return Err(restless());
                }
                let owned = left.iter().find_map(|slot| fleet.routes().owner(*slot));
                let Some(server) = owned else {
                    fleet.routes().request_refresh();
                    return Err(without_owner());
                };
                let slots = owned_by(fleet, &server, &left);
                let node = fleet.node(&server).await?;
                (node, Some(server), slots)
            }
        };
        if self.beginnings > MOST_BEGINNINGS && server.is_none() {
            return Err(restless());
        }
        self.beginnings += 1;
        let connects = *node.connects().borrow();
        let cursor = "0".to_owned();
        Ok(Some(Position { node, server, connects, slots, query: 0, cursor }))
    }

    /// Ends the walk over a server. Slots that it still has count as walked over.
    async fn finish(&mut self) {
        let Some(Position { server, slots, .. }) = self.position.take() else { return };
        match (&self.connection, &server) {
            (Connection::Fleet(fleet), Some(server)) => {
                fleet.routes().refresh(Instant::now() + self.timeout).await;
                let done = owned_by(fleet, server, &slots).into_iter();
                self.walked.extend(done.map(|slot| (slot, server.clone())));
            }
            _ => self.ended = true,
        }
    }
}

impl Position {
    /// Returns whether its cursor is worth nothing any more: the server may have restarted, or is no primary.
    fn is_over(&self, connection: &Connection) -> bool {
        let is_primary = || match (connection, &self.server) {
            (Connection::Fleet(fleet), Some(server)) => fleet.routes().servers().contains(server),
            _ => true,
        };
        *self.node.connects().borrow() != self.connects || !is_primary()
    }
}

/// Returns those of the slots that a server has.
fn owned_by(fleet: &Fleet, server: &Server, slots: &[u16]) -> Vec<u16> {
    let owned = |slot: &&u16| fleet.routes().owner(**slot).as_ref() == Some(server);
    slots.iter().filter(owned).copied().collect()
}

/// Reads the reply to `SCAN`. Keys that are not UTF-8 are no names.
fn page_of(reply: Reply) -> Option<(String, Vec<String>)> {
    let [cursor, keys] = <[Reply; 2]>::try_from(reply.into_list()?).ok()?;
    Some((
        cursor.into_text()?,
        keys.into_list()?.into_iter().filter_map(Reply::into_text).collect(),
    ))
}

fn without_owner() -> Error {
    let message = "no server of the cluster has some of the slots, so their names cannot be listed";
    Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted)
}

fn restless() -> Error {
    let message = "the servers or their slots change all the time, so the listing has no end; try again later";
    Error::new(ErrorKind::Unavailable, message).with_fate(Fate::NotExecuted)
}

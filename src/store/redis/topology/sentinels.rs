//! Asks sentinels for the primary.
//!
//! The address comes from `GET-MASTER-ADDR-BY-NAME`: while a failover ends, `MASTER` names the old primary with the
//! new epoch. The epoch is requested first: a switch between the two requests gives the new address with the old
//! epoch, which loses or ties.

use super::slot_map::SlotMap;
use super::survey::Panel;
use crate::error::{Error, ErrorKind, Result};
use crate::store::redis::link::address::Address;
use crate::store::redis::link::errors::{Failure, classify};
use crate::store::redis::link::url::Sentinels;
use crate::util::sync::{Mutex, MutexGuard};
use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::config::Server;
use fred::types::{ClusterHash, CustomCommand, Value};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a server may take to report its own role.
const ROLE_TIMEOUT: Duration = Duration::from_millis(500);

/// For how long the last answer of a sentinel counts while most of the others answer. Then a sentinel that is gone for good
/// does not hold back the others after `SENTINEL REMOVE`, which begins the epochs again.
const REMEMBERED: Duration = Duration::from_secs(30);

/// The epoch of the sentinels in which a server became the primary, and the server.
#[derive(Clone, Debug)]
struct Named {
    epoch: usize,
    server: Server,
}

/// Which server the sentinels name. A sentinel that is late, or silent now, is not forgotten: the quickest may be the one that
/// has missed the failover.
#[derive(Clone, Debug, Default)]
pub(super) struct Succession(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The last answer of each sentinel, and when it came.
    answers: HashMap<Server, (Named, Instant)>,
    newest: usize,
    /// The primaries that were chosen in the newest epoch. While a failover ends there is more than one, of which the last
    /// is right.
    chosen: Vec<Server>,
}

impl Succession {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Keeps the answer of a sentinel, however late it is.
    fn answered(&self, sentinel: Server, named: Named) {
        self.lock().answers.insert(sentinel, (named, Instant::now()));
    }

    /// Returns the servers that `sentinels` sentinels name, the best first: by the newest epoch, and within an epoch first
    /// servers that were not chosen in it before, then the current primary.
    fn order(&self, sentinels: usize, known: &SlotMap) -> Vec<Server> {
        let mut state = self.lock();
        let is_recent = |at: &Instant| at.elapsed() < REMEMBERED;
        if state.answers.values().filter(|(_, at)| is_recent(at)).count() > sentinels / 2 {
            state.answers.retain(|_, (_, at)| is_recent(at));
        }
        let mut named: Vec<Named> =
            state.answers.values().map(|(named, _)| named.clone()).collect();
        let newest = named.iter().map(|named| named.epoch).max().unwrap_or_default();
        if state.newest != newest {
            state.newest = newest;
            state.chosen.clear();
        }
        let current = known.servers.iter().filter(|server| state.chosen.contains(server));
        named.extend(current.map(|server| Named { epoch: newest, server: server.clone() }));
        named.sort_by_key(|Named { epoch, server }| {
            let current = known.servers.contains(server);
            let rank = if current { 1 } else { 2 * u8::from(state.chosen.contains(server)) };
            (Reverse(*epoch), rank)
        });
        let mut servers = Vec::new();
        for Named { server, .. } in named {
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
        servers
    }

    fn chosen(&self, server: &Server) {
        let mut state = self.lock();
        if !state.chosen.contains(server) {
            state.chosen.push(server.clone());
        }
    }
}

pub(super) async fn ask_sentinels(
    address: &Address,
    sentinels: &Sentinels,
    known: &SlotMap,
    panel: &Panel,
    succession: &Succession,
) -> Result<SlotMap> {
    let ask = |sentinel: Server| {
        let address = address.of_sentinel(sentinels, &sentinel);
        let service = sentinels.service.clone();
        let succession = succession.clone();
        async move {
            let named = ask_sentinel(&address, service).await.map_err(explain_denied)?;
            succession.answered(sentinel, named);
            Ok(())
        }
    };
    let (answers, error) = panel.ask(sentinels.servers.clone(), None, ask).await;
    if answers.is_empty() {
        return Err(error);
    }
    let mut servers = succession.order(sentinels.servers.len(), known);
    let current = known.servers.iter().filter(|server| !servers.contains(server));
    servers.extend(current.cloned().collect::<Vec<_>>());
    let mut best = &servers[0];
    if servers.len() > 1 {
        // If a server reports that it is a replica, the sentinel that names it is long out of date.
        for server in &servers {
            if !is_replica(address.of(server)).await {
                best = server;
                break;
            }
        }
    }
    succession.chosen(best);
    Ok(SlotMap::of_one(best.clone()))
}

async fn ask_sentinel(address: &Address, service: String) -> Result<Named> {
    let client = address.client().await?.client;
    let epoch = ask(&client, "SENTINEL", &["MASTER", &service]).await;
    let server = ask(&client, "SENTINEL", &["GET-MASTER-ADDR-BY-NAME", &service]).await;
    let _ = timeout(address.attempt, client.quit()).await;
    let refused = |error: Failure| {
        if error.details().contains("No such master") {
            Error::invalid("the sentinels know no primary by the name of sentinelServiceName")
        } else if error.details().starts_with("ERR unknown command") {
            let server = address.server_address();
            Error::invalid(format!(
                "{server} is no sentinel; write redis:// for a server, or the port of a sentinel (26379 by default)"
            ))
        } else {
            classify(&error)
        }
    };
    let epoch = epoch.map_err(refused)?;
    let server = server.map_err(refused)?;
    let named = config_epoch(epoch).zip(primary(server));
    let named = named.map(|(epoch, server)| Named { epoch, server });
    named.ok_or_else(|| Error::protocol("unexpected reply of a sentinel; is it a Redis Sentinel?"))
}

async fn ask(client: &Client, verb: &'static str, words: &[&str]) -> Result<Value, Failure> {
    let command = CustomCommand::new_static(verb, ClusterHash::FirstKey, false);
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    client.custom(command, words).await
}

fn config_epoch(reply: Value) -> Option<usize> {
    let fields: Vec<String> =
        reply.into_array().iter().map(|field| field.as_string().unwrap_or_default()).collect();
    let epoch = fields.chunks_exact(2).find(|pair| pair[0] == "config-epoch")?;
    epoch[1].parse().ok()
}

fn primary(reply: Value) -> Option<Server> {
    let mut parts = reply.into_array().into_iter();
    let host = parts.next()?.as_string()?;
    Some(Server::new(host, parts.next()?.as_string()?.parse().ok()?))
}

/// Explains which user and password were refused: the URL may have two of each.
fn explain_denied(error: Error) -> Error {
    if error.kind() != ErrorKind::Denied || error.to_string().contains("NOPERM") {
        return error;
    }
    let message = "a sentinel wants a user or password, or refuses it; they are sentinelUsername and sentinelPassword \
                   in the URL, or what the credentials provider returns for a sentinel";
    Error::new(ErrorKind::Denied, message).with_fate(error.fate()).with_source(error)
}

/// Returns whether the server reports that it is a replica. Silence or a missing permission counts as no.
async fn is_replica(address: Address) -> bool {
    // It runs to its end even after the time limit: an abandoned client would keep its connection.
    let asked = tokio::spawn(async move {
        let client = address.client().await.ok()?.client;
        let info = ask(&client, "INFO", &["replication"]).await;
        let _ = timeout(address.attempt, client.quit()).await;
        info.ok()?.as_string()
    });
    let info = timeout(ROLE_TIMEOUT, asked).await.ok().and_then(Result::ok).flatten();
    info.is_some_and(|info| info.contains("role:slave"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str) -> Server {
        Server::new(name, 1)
    }

    /// What sentinels answer, each an epoch and a server.
    fn best(succession: &Succession, known: &str, answers: &[(&str, usize, &str)]) -> String {
        for (sentinel, epoch, name) in answers {
            succession.answered(server(sentinel), Named { epoch: *epoch, server: server(name) });
        }
        let best = succession.order(3, &SlotMap::of_one(server(known))).remove(0);
        succession.chosen(&best);
        best.host.to_string()
    }

    #[test]
    fn primary_of_the_newest_epoch_counts() {
        let succession = Succession::default();
        let answers = [("1", 3, "a"), ("2", 2, "b"), ("3", 5, "d")];
        assert_eq!(best(&succession, "a", &answers), "d");
        assert_eq!(best(&succession, "d", &answers), "d");
        assert_eq!(best(&succession, "d", &[("2", 4, "b")]), "d", "a newer one is known");
    }

    /// Other sentinels are silent, or late.
    #[tokio::test(start_paused = true)]
    async fn sentinel_that_missed_the_failover_never_wins_alone() {
        let succession = Succession::default();
        let before = [("1", 1, "a"), ("2", 1, "a"), ("3", 1, "a")];
        assert_eq!(best(&succession, "a", &before), "a");
        assert_eq!(best(&succession, "a", &[("2", 2, "b"), ("3", 2, "b")]), "b");
        for _ in 0..3 {
            tokio::time::sleep(REMEMBERED).await;
            assert_eq!(best(&succession, "b", &[("1", 1, "a")]), "b");
        }
        // Epochs begin again: most agree on that, and one is gone.
        assert_eq!(best(&succession, "b", &[("1", 0, "c"), ("2", 0, "c")]), "c");
    }

    /// The order of the answers does not matter.
    #[test]
    fn epoch_shared_by_two_goes_to_the_new_one_and_none_comes_back() {
        for order in [[("1", 1, "a"), ("2", 1, "b")], [("2", 1, "b"), ("1", 1, "a")]] {
            let succession = Succession::default();
            assert_eq!(best(&succession, "a", &[("1", 1, "a"), ("2", 1, "a")]), "a");
            assert_eq!(best(&succession, "a", &order), "b");
            for _ in 0..3 {
                assert_eq!(best(&succession, "b", &order), "b");
                assert_eq!(best(&succession, "b", &[("1", 1, "a")]), "b");
            }
            // The next failover may go back.
            assert_eq!(best(&succession, "b", &[("1", 2, "a"), ("2", 1, "b")]), "a");
        }
    }
}

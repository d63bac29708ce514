//! The Redis store in the simulation: each request, as the store writes it, runs the real scripts in a server of this process,
//! and the store reads the reply. Its keys end by the clock of the simulated server.

use super::plan::{Break, ScriptPlan};
use super::server::Server;
use kit::lua::{Answer, Data, Field, Keyspace, LuaServer, Message};
use leasehold::store::{
    Acquire, Acquired, Annotate, ConnectOptions, Ends, ForceRelease, HolderId, InProcessServer,
    Inspect, Inspection, Layout, Mode, Name, RedisStore, Release, Released, RenewBatch, RenewCall,
    Renewed, ServerReply, Store, StoreFuture, Target, Want,
};
use leasehold::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use tokio::runtime::Builder;
use uuid::Uuid;

type Reply<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Job = Box<dyn FnOnce(&Arc<RedisStore>) -> Reply<()> + Send>;

/// A server that runs the scripts, and the store that asks it.
pub struct Scripts {
    pub layout: Layout,
    server: Arc<LuaServer>,
    /// The store is on a runtime of its own, which answers while everything else stands still.
    jobs: mpsc::Sender<Job>,
    /// What a replica would have.
    replica: Keyspace,
    /// For each manager, the id that it has here: the same in each run of a seed.
    managers: BTreeMap<Uuid, Uuid>,
    /// The number of requests that could share a call with others.
    shareable: u64,
}

/// What became of a request.
pub struct Heard<T> {
    pub verdict: Result<T>,
    /// What the script has published.
    pub published: Vec<Message>,
}

impl Scripts {
    pub fn new(plan: ScriptPlan) -> Self {
        let ScriptPlan { layout, broken } = plan;
        let server = Arc::new(LuaServer::new());
        let (jobs, asked) = mpsc::channel::<Job>();
        let asks = in_process(Arc::clone(&server), broken);
        let options = ConnectOptions::new().layout(layout);
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
            let store = runtime.block_on(async { RedisStore::in_process(&options, asks) });
            let store = Arc::new(store.expect("good options"));
            while let Ok(job) = asked.recv() {
                runtime.block_on(job(&store));
            }
            let _in = runtime.enter();
            drop(store);
        });
        let (replica, managers) = (Keyspace::default(), BTreeMap::new());
        Self { layout, server, jobs, replica, managers, shareable: 0 }
    }

    /// Asks the store at a time of the server's clock, while channels have so many listeners.
    fn ask<T: Send + 'static>(
        &self,
        server: &Server,
        now: u64,
        ask: impl FnOnce(Arc<RedisStore>) -> Reply<Result<T>> + Send + 'static,
    ) -> Heard<T> {
        self.server.state().keys.now = server.clock(now);
        let (answer, verdict) = mpsc::channel();
        let job: Job = Box::new(move |store| {
            let asked = ask(Arc::clone(store));
            Box::pin(async move {
                let _ = answer.send(asked.await);
            })
        });
        self.jobs.send(job).expect("the store's thread");
        let verdict = verdict.recv().expect("the store's thread");
        let mut state = self.server.state();
        assert!(state.unknown.is_empty(), "no command of a script is unknown: {:?}", state.unknown);
        Heard { verdict, published: std::mem::take(&mut state.published) }
    }

    /// The number of connections that listen for a name, of whatever kind it is.
    pub fn listen(&self, listeners: &BTreeMap<String, i64>) {
        let mut state = self.server.state();
        state.listeners.clear();
        for (name, count) in listeners {
            for channel in channels_of(name) {
                state.listeners.insert(channel, *count);
            }
        }
    }

    /// The id of a holder here.
    pub fn holder(&mut self, client: usize, holder: HolderId) -> HolderId {
        let version = if holder.lingers() { 8 } else { 4 };
        let id = (client as u128 + 1) << 96 | version << 76 | 8 << 60;
        let manager = *self.managers.entry(holder.manager()).or_insert(Uuid::from_u128(id));
        HolderId::new(manager, holder.number())
    }

    /// The id that a manager really has.
    pub fn manager_of(&self, text: &str) -> Option<Uuid> {
        let mut known = self.managers.iter();
        known.find(|(_, here)| here.to_string() == text).map(|(manager, _)| *manager)
    }

    pub fn acquire(
        &mut self,
        server: &Server,
        now: u64,
        client: usize,
        request: &Acquire,
    ) -> Heard<Acquired> {
        let mut request = request.clone();
        request.holder = self.holder(client, request.holder);
        if request.target.mode == Mode::Exclusive && self.is_among_strangers() {
            let strangers = Strangers { number: self.shareable, alike: request.clone() };
            return self.ask(server, now, move |store| {
                Box::pin(strangers.around(store, move |store| store.acquire(request)))
            });
        }
        self.ask(server, now, move |store| store.acquire(request))
    }

    pub fn release(
        &mut self,
        server: &Server,
        now: u64,
        client: usize,
        request: &Release,
    ) -> Heard<Released> {
        let mut request = request.clone();
        request.holder = self.holder(client, request.holder);
        let shares = request.target.mode == Mode::Exclusive && request.keep.is_none();
        if shares && request.ends == Ends::Hold && self.is_among_strangers() {
            let (target, timeout) = (request.target.clone(), request.timeout);
            let alike = Acquire::new(target, request.holder, timeout * 10, timeout);
            let strangers = Strangers { number: self.shareable, alike };
            return self.ask(server, now, move |store| {
                Box::pin(strangers.around(store, move |store| store.release(request)))
            });
        }
        self.ask(server, now, move |store| store.release(request))
    }

    /// Whether the next request shares its call with others.
    fn is_among_strangers(&mut self) -> bool {
        self.shareable += 1;
        self.shareable.is_multiple_of(3)
    }

    pub fn renew(
        &mut self,
        server: &Server,
        now: u64,
        client: usize,
        mut batch: RenewBatch,
    ) -> Heard<Renewed> {
        for item in &mut batch.items {
            item.holder = self.holder(client, item.holder);
        }
        self.ask(server, now, move |store| RenewCall::join(store.renew(batch)))
    }

    pub fn annotate(
        &mut self,
        server: &Server,
        now: u64,
        client: usize,
        request: &Annotate,
    ) -> Heard<bool> {
        let mut request = request.clone();
        request.holder = self.holder(client, request.holder);
        self.ask(server, now, move |store| Box::pin(async move { store.annotate(request).await }))
    }

    pub fn inspect(&self, server: &Server, now: u64, request: Inspect) -> Heard<Inspection> {
        self.ask(server, now, move |store| Box::pin(async move { store.inspect(request).await }))
    }

    pub fn want(&self, server: &Server, now: u64, request: Want) -> Heard<bool> {
        self.ask(server, now, move |store| Box::pin(async move { store.want(request).await }))
    }

    pub fn force(&self, server: &Server, now: u64, request: ForceRelease) -> Heard<bool> {
        self.ask(server, now, move |store| {
            Box::pin(async move { store.force_release(request).await })
        })
    }

    /// An operator deletes the keys of a name.
    pub fn delete(&self, name: &str) {
        let mut state = self.server.state();
        for key in [name.to_owned(), format!("{{{name}}}:timeout")] {
            state.keys.delete(key.as_bytes());
        }
    }

    pub fn wipe(&self) {
        self.server.state().keys.clear();
    }

    pub fn replicate(&mut self) {
        self.replica = self.server.state().keys.clone();
    }

    pub fn fail_over(&self) {
        self.server.state().keys.clone_from(&self.replica);
    }

    /// What is under the name of a lock, in words, and when it ends, in microseconds of the server's clock.
    pub fn lock_of(&self, server: &Server, name: &Name, now: u64) -> Option<(String, Option<u64>)> {
        self.keys(server, now, |keys| {
            let key = name.as_str().as_bytes();
            let text = match keys.get(key)?.clone() {
                Data::Text(text) => without_time(&lossy(&text)),
                Data::Hash(fields) => {
                    let words = |field: &Field| {
                        without_time(&format!("{} {}", lossy(&field.name), lossy(&field.text)))
                    };
                    fields.iter().map(words).collect::<Vec<_>>().join(", ")
                }
                Data::Sorted(_) => "a sorted set".to_owned(),
            };
            Some((text, keys.ends(key).map(last_micros)))
        })
    }

    /// The hash of a read-write lock.
    pub fn readers_of(&self, server: &Server, name: &Name, now: u64) -> Option<Readers> {
        self.keys(server, now, |keys| {
            let key = name.as_str().as_bytes();
            let Data::Hash(fields) = keys.get(key)?.clone() else { return None };
            let fields = fields.iter().map(|field| lossy(&field.name)).collect();
            Some(Readers { fields, ends: keys.ends(key).map(last_micros) })
        })
    }

    /// What is there, at a time of the server's clock.
    pub fn keys<T>(&self, server: &Server, now: u64, look: impl FnOnce(&mut Keyspace) -> T) -> T {
        let mut state = self.server.state();
        state.keys.now = server.clock(now);
        look(&mut state.keys)
    }
}

/// Requests of two strangers, for a name that is free, around one of the story. The store sends them in one call, but for the first.
struct Strangers {
    /// No others have it.
    number: u64,
    /// What their acquires are like.
    alike: Acquire,
}

impl Strangers {
    async fn around<T>(
        self,
        store: Arc<RedisStore>,
        ask: impl FnOnce(&RedisStore) -> StoreFuture<T>,
    ) -> Result<T> {
        let Self { number, alike } = self;
        let target = Target::exclusive(Name::new(&format!("x{number}")).expect("a good name"));
        let acquire = |holder: u128, longer: u32| {
            let mut request = alike.clone();
            request.target = target.clone();
            request.holder =
                HolderId::new(Uuid::from_u128(holder << 120 | 4 << 76 | 8 << 60), number);
            request.ttl *= longer;
            request
        };
        let (one, other) = (acquire(1, 1), acquire(2, 2));
        let release = |of: &Acquire, count| {
            store.release(Release::new(target.clone(), of.holder, count, of.timeout))
        };
        let first = store.acquire(one.clone());
        let refused = store.acquire(other.clone());
        let asked = ask(&store);
        let (counted, released) = (release(&one, 2), release(&one, 0));
        let next = store.acquire(other.clone());
        let last = release(&other, 0);
        let (first, refused, verdict, counted, released, next, last) =
            tokio::join!(first, refused, asked, counted, released, next, last);
        let done = |release: &Result<Released>| matches!(release, Ok(Released::Done { .. }));
        let fence = |grant: &Result<Acquired>| match grant {
            Ok(Acquired::Granted { fence, .. }) => Some(*fence),
            _ => None,
        };
        let block = alike.fencing.map(|fencing| u64::from(fencing.block));
        let grows = match (fence(&first), fence(&next)) {
            (Some(None), Some(None)) => block.is_none(),
            (Some(Some(first)), Some(Some(next))) => {
                block.is_some_and(|block| next >= first + block)
            }
            _ => false,
        };
        let held = matches!(refused, Ok(Acquired::Held { .. }));
        if held && grows && done(&counted) && done(&released) && done(&last) {
            return verdict;
        }
        let heard = format!("{first:?} {refused:?} {counted:?} {released:?} {next:?} {last:?}");
        Err(Error::new(ErrorKind::Protocol, format!("strangers in one call heard {heard}")))
    }
}

#[derive(Debug)]
pub struct Readers {
    pub fields: BTreeSet<String>,
    /// In microseconds of the server's clock.
    pub ends: Option<u64>,
}

/// A key is there to the end of its last millisecond.
fn last_micros(millis: i64) -> u64 {
    (millis as u64 + 1) * 1000
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// Of a mark the time for which it is kept is left out.
fn without_time(text: &str) -> String {
    match text.split(' ').collect::<Vec<_>>()[..] {
        [mark, _, holder] => format!("{mark} {holder}"),
        _ => text.to_owned(),
    }
}

/// The channels of a name: of a lock, of a read-write lock, and of a semaphore.
pub fn channels_of(name: &str) -> [Vec<u8>; 3] {
    ["redisson_lock__channel:", "redisson_rwlock:", "redisson_sc:"]
        .map(|kind| format!("{kind}{{{name}}}").into_bytes())
}

fn in_process(server: Arc<LuaServer>, broken: Option<Break>) -> InProcessServer {
    Arc::new(move |words| {
        let [name, rest @ ..] = &words[..] else { return ServerReply::Nil };
        let answer = match (&name[..], rest) {
            (b"EVAL", [script, count, rest @ ..]) => {
                let count = String::from_utf8_lossy(count).parse().expect("the number of keys");
                let (keys, arguments) = rest.split_at(count);
                let script = String::from_utf8_lossy(script);
                match &broken {
                    Some(Break { text, wrong }) if script.contains(text) => {
                        server.eval(&script.replace(text, wrong), keys, arguments)
                    }
                    _ => server.eval(&script, keys, arguments),
                }
            }
            _ => server.command(&words),
        };
        reply_of(answer)
    })
}

fn reply_of(answer: Answer) -> ServerReply {
    match answer {
        Answer::Nil => ServerReply::Nil,
        Answer::Int(number) => ServerReply::Int(number),
        Answer::Bulk(text) => ServerReply::Text(text),
        Answer::Status(text) => ServerReply::Text(text.into_bytes()),
        Answer::Error(text) => ServerReply::Error(text),
        Answer::List(items) => ServerReply::List(items.into_iter().map(reply_of).collect()),
    }
}

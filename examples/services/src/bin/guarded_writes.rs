//! A worker that stands still, loses its lease, and comes back: Redis, PostgreSQL and two web services refuse its writes.
//!
//! ```sh
//! cargo run -p leasehold-services --bin guarded_writes
//! ```
//!
//! The level of an article is kept in six places, each of which compares in the very step that writes:
//!
//! - on Redis by a [`guard::Script`](leasehold::guard::Script), with the guard of the owner and with that of the fencing token;
//! - in PostgreSQL in a row with a column `fence`, and in a transaction whose first statement asks a table of tokens;
//! - behind a web service with the layer [`FenceGuard`](leasehold::tower::FenceGuard), which answers 412;
//! - in an object with an etag, whose metadata has the token.
//!
//! The worker comes back after the next holder has read the level and before that has written. So each place is read by its guard,
//! too: otherwise the late write would slip in between, and the next holder would write what it has computed from an old level.
//!
//! It starts servers of its own, and installs PostgreSQL with apt-get if that is missing. With `REDIS_URL` or `DATABASE_URL` it
//! uses those: it makes its tables in a schema `leasehold_example` and drops it.

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use fred::clients::Client;
use fred::interfaces::{ClientLike, KeysInterface, LuaInterface};
use leasehold::guard::{Guard, STALE, Script};
use leasehold::tower::{FENCE_HEADER, FenceGuard};
use leasehold::{Lease, LeaseManager};
use leasehold_services::{Http, LONG, Postgres, Process, Redis, Result, exit_code, http};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_postgres::NoTls;

/// After a crash, or while a worker stands still, others wait this long. In production, 10 to 30 s.
const TTL: Duration = Duration::from_secs(2);
/// The lock. Its hash tag keeps it in the slot of the data, in a cluster.
const LOCK: &str = "stock:{apples}";
const ON_REDIS: [&str; 2] = ["level:{apples}", "level-elsewhere:{apples}"];
const PLACES: [&str; 6] =
    ["Redis, owner", "Redis, fence", "SQL, one row", "SQL, transaction", "HTTP", "object"];

/// The places where the level is kept.
struct Stock {
    redis: Client,
    read: Script,
    write: Script,
    database: tokio_postgres::Client,
    service: String,
}

/// Connects to the database of `url`.
async fn open(url: &str) -> Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(|error| {
        // Without the URL, which can have a password.
        let hosts = url.parse::<tokio_postgres::Config>().map(|config| config.get_hosts().to_vec());
        format!("PostgreSQL at {:?}: {error}", hosts.unwrap_or_default())
    })?;
    tokio::spawn(connection);
    Ok(client)
}

impl Stock {
    async fn connect(redis: &str, database: &str, service: &str) -> Result<Self> {
        let config = fred::types::config::Config::from_url(redis)?;
        let redis = fred::types::Builder::from_config(config).build()?;
        redis.init().await?;
        let database = open(database).await?;
        database.batch_execute("SET search_path TO leasehold_example").await?;
        let read = Script::new("return tonumber(redis.call('GET', KEYS[1]) or 0)")?;
        let write = Script::new("redis.call('SET', KEYS[1], ARGV[1]) return tonumber(ARGV[1])")?;
        Ok(Self { redis, read, write, database, service: service.to_owned() })
    }

    /// Sets the level in all places. Returns where this lease was still allowed to.
    async fn set(&mut self, lease: &Lease, level: i32) -> Result<[bool; 6]> {
        Ok(self.exchange(lease, Some(level)).await?.map(|level| level.is_some()))
    }

    /// Reads the level in all places, by their guards: from then on they refuse each older holder. `None` where this lease
    /// is refused.
    async fn get(&mut self, lease: &Lease) -> Result<[Option<i32>; 6]> {
        self.exchange(lease, None).await
    }

    /// Sets the level if one is given. Returns the level in each place then.
    async fn exchange(&mut self, lease: &Lease, level: Option<i32>) -> Result<[Option<i32>; 6]> {
        Ok([
            self.on_redis(lease.guard()?, ON_REDIS[0], level).await?,
            self.on_redis(lease.fence_guard(ON_REDIS[1])?, ON_REDIS[1], level).await?,
            self.row(lease, level).await?,
            self.in_transaction(lease, level).await?,
            self.by_http(lease, level).await?,
            self.object(lease, level).await?,
        ])
    }

    async fn on_redis(&self, guard: Guard, key: &str, level: Option<i32>) -> Result<Option<i32>> {
        let script = if level.is_some() { &self.write } else { &self.read };
        let (keys, args) = guard.with([key], level.map(|level| level.to_string()));
        match self.redis.eval(script.text(), keys, args).await {
            Ok(level) => Ok(Some(level)),
            Err(error) if error.details().starts_with(STALE) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The read is an update, too, which sets the token alone.
    async fn row(&self, lease: &Lease, level: Option<i32>) -> Result<Option<i32>> {
        let update = "UPDATE stock SET level = COALESCE($1, level), fence = $2 WHERE id = $3 AND fence <= $2 \
                      RETURNING level";
        let row = self.database.query_opt(update, &[&level, &token(lease)?, &1]).await?;
        Ok(row.map(|row| row.get(0)))
    }

    /// Reads several rows, or sets them, all or none.
    async fn in_transaction(&mut self, lease: &Lease, level: Option<i32>) -> Result<Option<i32>> {
        let transaction = self.database.transaction().await?;
        // The first statement: its row lock orders the transactions.
        let guard = "INSERT INTO fences (name, fence) VALUES ($1, $2) \
                     ON CONFLICT (name) DO UPDATE SET fence = EXCLUDED.fence WHERE fences.fence <= EXCLUDED.fence";
        if transaction.execute(guard, &[&lease.name(), &token(lease)?]).await? == 0 {
            transaction.rollback().await?;
            return Ok(None);
        }
        for id in [2, 3] {
            let update = "UPDATE stock SET level = COALESCE($1, level) WHERE id = $2";
            transaction.execute(update, &[&level, &id]).await?;
        }
        let row = transaction.query_one("SELECT level FROM stock WHERE id = 2", &[]).await?;
        transaction.commit().await?;
        Ok(Some(row.get(0)))
    }

    async fn by_http(&self, lease: &Lease, level: Option<i32>) -> Result<Option<i32>> {
        let request = match level {
            Some(level) => Http::new("PUT", &format!("/stock/{level}")),
            None => Http::new("GET", "/stock"),
        };
        let answer =
            request.header(FENCE_HEADER.as_str(), &fence(lease)?).send(&self.service).await?;
        match answer.status {
            200 => Ok(Some(answer.body.parse()?)),
            412 => Ok(None),
            status => Err(format!("status {status}").into()),
        }
    }

    /// Compares with the token in the metadata, and writes if the object is still the one that was read. The read writes, too:
    /// the same content with the token of this lease.
    async fn object(&self, lease: &Lease, level: Option<i32>) -> Result<Option<i32>> {
        loop {
            let object = Http::new("GET", "/object").send(&self.service).await?;
            let seen: i64 = object.header("x-meta-fence").ok_or("no token")?.parse()?;
            if seen > token(lease)? {
                return Ok(None);
            }
            let content = level.map_or(object.body.clone(), |level| level.to_string());
            let put = Http::new("PUT", &format!("/object/{content}"))
                .header("if-match", object.header("etag").unwrap_or_default())
                .header("x-meta-fence", &fence(lease)?);
            if put.send(&self.service).await?.status == 200 {
                return Ok(Some(content.parse()?));
            }
        }
    }

    /// Returns the level in each place.
    async fn levels(&self) -> Result<Vec<i32>> {
        let mut levels: Vec<i32> = self.redis.mget(ON_REDIS.to_vec()).await?;
        let rows = self.database.query("SELECT level FROM stock ORDER BY id", &[]).await?;
        levels.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
        for path in ["/level", "/object"] {
            levels.push(http(&self.service, "GET", path).await?.1.parse()?);
        }
        Ok(levels)
    }
}

fn token(lease: &Lease) -> Result<i64> {
    Ok(lease.fence().ok_or("the store has no fencing tokens")?.try_into()?)
}

fn fence(lease: &Lease) -> Result<String> {
    lease.fence_header().ok_or_else(|| "the store has no fencing tokens".into())
}

/// An object as an object store has it.
struct Object {
    content: String,
    etag: u64,
    fence: String,
}

impl Object {
    fn answer(&self) -> impl IntoResponse + use<> {
        let etag = format!("\"{}\"", self.etag);
        ([("etag", etag), ("x-meta-fence", self.fence.clone())], self.content.clone())
    }

    /// Replaces the content, if the etag is still that of the request.
    fn put(&mut self, content: String, headers: &HeaderMap) -> StatusCode {
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
        if header("if-match") != format!("\"{}\"", self.etag) {
            return StatusCode::PRECONDITION_FAILED;
        }
        *self = Self { content, etag: self.etag + 1, fence: header("x-meta-fence").to_owned() };
        StatusCode::OK
    }
}

fn lock(object: &Mutex<Object>) -> MutexGuard<'_, Object> {
    object.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves an object, as an object store does.
fn object_store() -> Router {
    let object = Object { content: "0".to_owned(), etag: 1, fence: "0".to_owned() };
    let object = Arc::new(Mutex::new(object));
    let get = async |State(object): State<Arc<Mutex<Object>>>| lock(&object).answer();
    let put = async |State(object): State<Arc<Mutex<Object>>>,
                     Path(content): Path<String>,
                     headers: HeaderMap| { lock(&object).put(content, &headers) };
    Router::new()
        .route("/object", axum::routing::get(get))
        .route("/object/{content}", axum::routing::put(put))
        .with_state(object)
}

/// Serves the level of the article, and refuses late writes. Returns its address.
async fn service() -> Result<String> {
    let level = Arc::new(AtomicI32::new(0));
    let guard = FenceGuard::new(|request: &Request| {
        request.uri().path().starts_with("/stock").then(|| "apples".to_owned())
    });
    let set = async |State(at): State<Arc<AtomicI32>>, Path(level): Path<i32>| {
        at.store(level, Ordering::SeqCst);
        level.to_string()
    };
    let get = async |State(at): State<Arc<AtomicI32>>| at.load(Ordering::SeqCst).to_string();
    let router = Router::new()
        .route("/stock/{level}", axum::routing::put(set))
        .route("/stock", axum::routing::get(get)) // a read that counts
        .layer(guard) // for the routes above, not for those below
        .route("/level", axum::routing::get(get))
        .with_state(level)
        .merge(object_store());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(axum::serve(listener, router).into_future());
    Ok(address)
}

async fn manager(redis: &str) -> Result<LeaseManager> {
    Ok(LeaseManager::builder().ttl(TTL).connect(redis).await?)
}

/// Writes, checks its lease, stands still, and writes once more.
async fn work(redis: &str, database: &str, service: &str) -> Result {
    let mut stock = Stock::connect(redis, database, service).await?;
    let leases = manager(redis).await?;
    let lease = leases.lock(LOCK).lock().await?;
    println!("wrote {:?}", stock.set(&lease, 20).await?);
    println!("again {:?}", stock.set(&lease, 21).await?);
    lease.check()?;
    println!("holds {}", lease.fence().unwrap_or(0));
    // A paused virtual machine, a debugger, a swapped page: nothing of this process runs until another continues it.
    let own = std::process::id().to_string();
    tokio::process::Command::new("kill").args(["-STOP", &own]).status().await?;
    println!("late {:?}", stock.set(&lease, 999).await?);
    Ok(())
}

/// Starts a worker that stands still, takes over from it, and lets it go on.
async fn demo() -> Result {
    let (redis, database) = (Redis::start().await?, Postgres::start().await?);
    let service = service().await?;
    let client = open(&database.url).await?;
    let tables = "DROP SCHEMA IF EXISTS leasehold_example CASCADE; CREATE SCHEMA leasehold_example; \
        SET search_path TO leasehold_example; \
        CREATE TABLE stock (id INT PRIMARY KEY, level INT NOT NULL, fence BIGINT NOT NULL DEFAULT 0); \
        CREATE TABLE fences (name TEXT PRIMARY KEY, fence BIGINT NOT NULL); \
        INSERT INTO stock (id, level) VALUES (1, 0), (2, 0), (3, 0)";
    client.batch_execute(tables).await?;

    let arguments = ["work", &database.url, &service];
    let mut worker = Process::start(std::env::current_exe()?, &redis, &arguments)?;
    let all = format!("{:?}", [true; 6]);
    for word in ["wrote", "again"] {
        expect(word, &all, &worker.line(word).await?)?;
    }
    let fence: u64 = worker.line("holds").await?.parse()?;
    println!("a worker has written with fencing token {fence}, and stands still");

    let mut stock = Stock::connect(&redis.url, &database.url, &service).await?;
    let leases = manager(&redis.url).await?;
    let lease = leases.lock(LOCK).lock_timeout(LONG).await?.ok_or("the lease never ends")?;
    if lease.fence() <= Some(fence) {
        return Err("a fencing token that does not grow".into());
    }
    expect(
        "the levels",
        &format!("{:?}", [Some(21); 6]),
        &format!("{:?}", stock.get(&lease).await?),
    )?;
    println!(
        "its lease has expired; the next holder has read with {}, and not written",
        token(&lease)?
    );

    worker.signal("CONT").await?;
    expect("the late writes", &format!("{:?}", [false; 6]), &worker.line("late").await?)?;
    expect("the next holder", &all, &format!("{:?}", stock.set(&lease, 7).await?))?;
    expect("the levels", &format!("{:?}", [7; 7]), &format!("{:?}", stock.levels().await?))?;
    println!("the worker came back, and its late writes were refused:");
    PLACES.iter().for_each(|place| println!("  {place}"));
    worker.rest().await?;

    // The row lock orders two transactions that are at work at the same time.
    let newer = "UPDATE fences SET fence = fence + 1";
    client.batch_execute(&format!("BEGIN; {newer}")).await?;
    let waits = stock.in_transaction(&lease, Some(999));
    let commits = async { client.batch_execute("COMMIT").await.map_err(Into::into) };
    let (written, ()) = tokio::try_join!(waits, commits)?;
    expect("a transaction beside a newer one", "None", &format!("{written:?}"))?;
    client.batch_execute("DROP SCHEMA leasehold_example CASCADE").await?;
    lease.unlock().await?;
    Ok(())
}

fn expect(what: &str, expected: &str, found: &str) -> Result {
    if expected == found {
        return Ok(());
    }
    Err(format!("{what}: {found}, where {expected} is right, in {PLACES:?}").into())
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => demo().await,
        ["work", database, service] => match std::env::var("REDIS_URL") {
            Ok(redis) => work(&redis, database, service).await,
            Err(error) => Err(format!("REDIS_URL: {error}").into()),
        },
        _ => Err("it takes no arguments".into()),
    };
    exit_code("guarded_writes", done)
}

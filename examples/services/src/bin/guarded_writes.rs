//! A worker that stands still, loses its lease, and comes back: Redis, PostgreSQL and a web service refuse its writes.
//!
//! ```sh
//! cargo run -p leasehold-services --bin guarded_writes
//! ```
//!
//! The level of an article is kept in five places, each of which compares in the very step that writes:
//!
//! - on Redis by a [`guard::Script`](leasehold::guard::Script), with the guard of the owner and with that of the fencing token;
//! - in PostgreSQL in a row with a column `fence`, and in a transaction whose first statement asks a table of tokens;
//! - behind a web service with the layer [`FenceGuard`](leasehold::tower::FenceGuard), which answers 412.
//!
//! It starts servers of its own, and installs PostgreSQL with apt-get if that is missing. With `REDIS_URL` or `DATABASE_URL` it
//! uses those: it makes its tables in a schema `leasehold_example` and drops it.

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::routing::put;
use fred::clients::Client;
use fred::interfaces::{ClientLike, KeysInterface, LuaInterface};
use leasehold::guard::{Guard, STALE, Script};
use leasehold::tower::FenceGuard;
use leasehold::{Lease, LeaseManager};
use leasehold_services::{LONG, Postgres, Process, Redis, Result, exit_code, http, put_with_fence};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_postgres::NoTls;

/// After a crash, or while a worker stands still, others wait this long. In production, 10 to 30 s.
const TTL: Duration = Duration::from_secs(2);
/// The lock. Its hash tag keeps it in the slot of the data, in a cluster.
const LOCK: &str = "stock:{apples}";
const ON_REDIS: [&str; 2] = ["level:{apples}", "level-elsewhere:{apples}"];
const PLACES: [&str; 5] =
    ["Redis, owner", "Redis, fence", "SQL, one row", "SQL, transaction", "HTTP"];

/// The places where the level is kept.
struct Stock {
    redis: Client,
    script: Script,
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
        let script = Script::new("return redis.call('SET', KEYS[1], ARGV[1])")?;
        Ok(Self { redis, script, database, service: service.to_owned() })
    }

    /// Sets the level in all places. Returns where this lease was still allowed to.
    async fn set(&mut self, lease: &Lease, level: i32) -> Result<[bool; 5]> {
        Ok([
            self.set_on_redis(lease.guard()?, ON_REDIS[0], level).await?,
            self.set_on_redis(lease.fence_guard(ON_REDIS[1])?, ON_REDIS[1], level).await?,
            self.set_row(lease, level).await?,
            self.set_in_transaction(lease, level).await?,
            put_with_fence(&self.service, &format!("/stock/{level}"), lease.fence_header()).await?
                == 200,
        ])
    }

    async fn set_on_redis(&self, guard: Guard, key: &str, level: i32) -> Result<bool> {
        let (keys, args) = guard.with([key], [level.to_string()]);
        match self.redis.eval::<(), _, _, _>(self.script.text(), keys, args).await {
            Ok(()) => Ok(true),
            Err(error) if error.details().starts_with(STALE) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn set_row(&self, lease: &Lease, level: i32) -> Result<bool> {
        let update = "UPDATE stock SET level = $1, fence = $2 WHERE id = $3 AND fence <= $2";
        Ok(self.database.execute(update, &[&level, &token(lease)?, &1]).await? == 1)
    }

    /// Sets several rows, all or none.
    async fn set_in_transaction(&mut self, lease: &Lease, level: i32) -> Result<bool> {
        let transaction = self.database.transaction().await?;
        // The first statement: its row lock orders the transactions.
        let guard = "INSERT INTO fences (name, fence) VALUES ($1, $2) \
                     ON CONFLICT (name) DO UPDATE SET fence = EXCLUDED.fence WHERE fences.fence <= EXCLUDED.fence";
        if transaction.execute(guard, &[&lease.name(), &token(lease)?]).await? == 0 {
            transaction.rollback().await?;
            return Ok(false);
        }
        for id in [2, 3] {
            let update = "UPDATE stock SET level = $1 WHERE id = $2";
            transaction.execute(update, &[&level, &id]).await?;
        }
        transaction.commit().await?;
        Ok(true)
    }

    /// Returns the level in each place.
    async fn levels(&self) -> Result<Vec<i32>> {
        let mut levels: Vec<i32> = self.redis.mget(ON_REDIS.to_vec()).await?;
        let rows = self.database.query("SELECT level FROM stock ORDER BY id", &[]).await?;
        levels.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
        levels.push(http(&self.service, "GET", "/level").await?.1.parse()?);
        Ok(levels)
    }
}

fn token(lease: &Lease) -> Result<i64> {
    Ok(lease.fence().ok_or("the store has no fencing tokens")?.try_into()?)
}

/// Serves the level of the article, and refuses late writes. Returns its address.
async fn service() -> Result<String> {
    let level = Arc::new(AtomicI32::new(0));
    let guard = FenceGuard::new(|request: &Request| {
        request.uri().path().starts_with("/stock/").then(|| "apples".to_owned())
    });
    let set = async |State(at): State<Arc<AtomicI32>>, Path(level): Path<i32>| {
        at.store(level, Ordering::SeqCst);
    };
    let get = async |State(at): State<Arc<AtomicI32>>| at.load(Ordering::SeqCst).to_string();
    let router = Router::new()
        .route("/stock/{level}", put(set))
        .layer(guard) // for the route above, not for the one below
        .route("/level", axum::routing::get(get))
        .with_state(level);
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
    let all = format!("{:?}", [true; 5]);
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
    expect("the next holder", &all, &format!("{:?}", stock.set(&lease, 7).await?))?;
    println!("its lease has expired; the next holder has written with {}", token(&lease)?);

    worker.signal("CONT").await?;
    expect("the late writes", &format!("{:?}", [false; 5]), &worker.line("late").await?)?;
    expect("the levels", &format!("{:?}", [7; 6]), &format!("{:?}", stock.levels().await?))?;
    println!("the worker came back, and its late writes were refused:");
    PLACES.iter().for_each(|place| println!("  {place}"));
    worker.rest().await?;

    // The row lock orders two transactions that are at work at the same time.
    let newer = "UPDATE fences SET fence = fence + 1";
    client.batch_execute(&format!("BEGIN; {newer}")).await?;
    let waits = stock.set_in_transaction(&lease, 999);
    let commits = async { client.batch_execute("COMMIT").await.map_err(Into::into) };
    let (written, ()) = tokio::try_join!(waits, commits)?;
    expect("a transaction beside a newer one", "false", &written.to_string())?;
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

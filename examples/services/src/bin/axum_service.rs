//! A web service in two replicas: orders are priced one at a time by id, and one replica runs the scheduler.
//!
//! ```sh
//! cargo run -p leasehold-services --bin axum_service                        # two replicas, of which one is killed
//! cargo run -p leasehold-services --bin axum_service serve 127.0.0.1:8080   # one, with REDIS_URL or redis://127.0.0.1
//! curl -X POST http://127.0.0.1:8080/orders/42/price
//! ```
//!
//! - `POST /orders/{id}/price` works under the lease of the order, whichever replica gets the request. The work has the
//!   fencing token, for its writes.
//! - `GET /leader` says which replica runs the scheduler, and how old that is while the store does not answer.
//! - `/livez` fails only if this process cannot go on: a replica that does not lead, or whose store is away, is not
//!   restarted. `/readyz` fails while no leases can be had. `/metrics` is for Prometheus.
//! - At SIGTERM or ctrl-C, requests come to their end, the scheduler resigns, and all leases are released, so nobody waits for them.

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Router};
use leasehold::tower::{LeaseLayer, RequestLease};
use leasehold::{CancellationToken, LeaseManager, Metrics, View};
use leasehold_services::{Process, Redis, Result, exit_code, http};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{interval, sleep};
use tracing_subscriber::filter::LevelFilter;

/// After a crash, others wait this long. In production, 10 to 30 s.
const TTL: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct App {
    leases: LeaseManager,
    leader: View,
    metrics: PrometheusHandle,
    /// What the scheduler has done in this replica.
    ticks: Arc<AtomicU64>,
}

fn router(app: App) -> Router {
    // Requests for one order wait for each other; after a second the client is told to come back.
    let one_at_a_time = LeaseLayer::new(app.leases.clone(), |request: &Request| {
        let order = request.uri().path().strip_prefix("/orders/")?.split('/').next()?;
        Some(format!("order:{order}"))
    })
    .wait(Duration::from_secs(1))
    .on_busy(|order, _| {
        (StatusCode::CONFLICT, format!("{order} is being priced\n")).into_response()
    });
    Router::new()
        .route("/orders/{id}/price", post(price))
        .layer(one_at_a_time) // for the routes above, not for those below
        .route("/leader", get(leader))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(async |State(app): State<App>| app.metrics.render()))
        .with_state(app)
}

/// Computes the price of an order. If the lease is lost, this future is dropped at its await, and the client gets 503.
async fn price(
    Path(id): Path<u64>,
    Extension(lease): Extension<RequestLease>,
) -> std::result::Result<String, StatusCode> {
    // Another spelling of the id, such as 042 or %34%32, is another key.
    if lease.name() != format!("order:{id}") {
        return Err(StatusCode::NOT_FOUND);
    }
    let began = Instant::now();
    sleep(Duration::from_millis(100)).await; // the tax office takes its time
    // UPDATE orders SET price = $price, fence = $fence WHERE id = $id AND fence <= $fence
    let fence = lease.fence().ok_or(StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(format!("order {id} priced in {:.0?}, fencing token {fence}\n", began.elapsed()))
}

async fn leader(State(app): State<App>) -> String {
    let leader = app.leader.current();
    let ticks = app.ticks.load(Ordering::Relaxed);
    let who = match (&leader.value, leader.stale_since) {
        (Some(address), None) => format!("{address} leads"),
        (None, None) if leader.is_vacant() => "nobody leads".to_owned(),
        (None, None) => "a replica leads, and has not told its address yet".to_owned(),
        // The store does not answer: this is what was known, and may be so no more.
        (Some(address), Some(since)) => format!("{address} led {:.1?} ago", since.elapsed()),
        (None, Some(_)) => "not known who leads".to_owned(),
    };
    format!("{who}; {ticks} ticks here\n")
}

async fn livez(State(app): State<App>) -> StatusCode {
    let live = app.leases.health().is_live();
    if live { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn readyz(State(app): State<App>) -> StatusCode {
    let ready = app.leases.health().is_ready();
    if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Runs the scheduler in one replica: stands for election, again and again, until `stop`.
async fn schedule(app: &App, address: &str, stop: CancellationToken) -> leasehold::Result<()> {
    let election = app.leases.election("scheduler");
    let mut candidate = election.candidate(address).until(stop);
    candidate
        .lead(async |me| {
            println!("leads {}", me.term().unwrap_or(0));
            let mut ticks = interval(Duration::from_millis(50));
            // It is dropped at this await when the leadership is lost.
            loop {
                ticks.tick().await;
                app.ticks.fetch_add(1, Ordering::Relaxed);
            }
        })
        .await
}

async fn serve(address: &str) -> Result {
    // What leasehold and the client of Redis have to say goes to stderr: `RUST_LOG=debug` for more.
    let level = std::env::var("RUST_LOG").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(LevelFilter::INFO))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let leases = LeaseManager::builder()
        .ttl(TTL)
        .prefix("leasehold-example:")
        .observer(Metrics::new())
        .connect(url)
        .await?;
    let leader = leases.election("scheduler").observe();
    let app = App { leases: leases.clone(), leader, metrics, ticks: Arc::default() };

    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?.to_string();
    println!("listens {address}");
    let server = axum::serve(listener, router(app.clone()))
        .with_graceful_shutdown(stop.clone().cancelled_owned());
    let signalled = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        stop.cancel();
    };
    let (served, scheduled, ()) =
        tokio::join!(server.into_future(), schedule(&app, &address, stop.clone()), signalled);
    // The last requests have ended, and the scheduler has resigned. What is left is released before the process ends.
    leases.close().await?;
    println!("closed");
    served?;
    Ok(scheduled?)
}

/// Starts two replicas, sends requests, and kills the leader.
async fn demo() -> Result {
    let redis = Redis::start().await?;
    let (mut replicas, mut addresses) = (Vec::new(), Vec::new());
    for index in 0..2 {
        let serve = ["serve", "127.0.0.1:0"];
        let mut replica = Process::start(std::env::current_exe()?, &redis, &serve)?;
        let address = replica.line("listens").await?;
        if index == 0 {
            println!("{address} leads in term {}", replica.line("leads").await?);
        }
        replicas.push(replica);
        addresses.push(address);
    }
    let [one, other] = &addresses[..] else { return Err("two replicas".into()) };

    println!(
        "two clients price order 42 at once, each by another replica; one waits for the other:"
    );
    let (a, b) = tokio::try_join!(
        http(one, "POST", "/orders/42/price"),
        http(other, "POST", "/orders/42/price")
    )?;
    print!("  {} {}  {} {}", a.0, a.1, b.0, b.1);

    print!("{}", http(other, "GET", "/leader").await?.1);
    println!("kill -9 {one}");
    replicas.remove(0).kill().await?;
    let killed = Instant::now();
    let term = replicas[0].line("leads").await?;
    println!("{other} leads in term {term}, {:.2?} after the kill", killed.elapsed());
    let (status, text) = http(other, "POST", "/orders/42/price").await?;
    print!("  {status} {text}");
    for path in ["/livez", "/readyz"] {
        println!("  {path} {}", http(other, "GET", path).await?.0);
    }
    let (_, metrics) = http(other, "GET", "/metrics").await?;
    let ours = |line: &&str| line.starts_with("leasehold_hold_duration") && line.contains("_count");
    metrics
        .lines()
        .filter(ours)
        .filter(|line| !line.ends_with(" 0"))
        .for_each(|line| println!("  {line}"));
    let rest = replicas.remove(0).terminate().await?;
    println!("SIGTERM: {}", rest.last().map_or("", |line| line));
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let done = match (arguments.next().as_deref(), arguments.next()) {
        (Some("serve"), Some(address)) => serve(&address).await,
        (None, None) => demo().await,
        _ => Err("either no arguments, or: serve ADDRESS".into()),
    };
    exit_code("axum_service", done)
}

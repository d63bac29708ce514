//! A scheduled worker of apalis in two processes: a layer runs each task in one of them.
//!
//! ```sh
//! cargo run -p leasehold-services --bin apalis_worker
//! ```
//!
//! The workers of apalis are tower services, so that a task runs once is a layer around the handler, which knows nothing
//! of it. The key is the name of the task and its scheduled time.

use apalis::prelude::{BoxDynError, Task, WorkerBuilder};
use apalis_cron::{CronScheduler, Tick};
use leasehold::{LeaseManager, Once};
use leasehold_services::{Result, exit_code, two_workers};
use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::sleep;
use tower_layer::Layer;
use tower_service::Service;

/// How long each process runs.
const FOR: Duration = Duration::from_secs(4);

/// Runs each task once, whichever of the processes gets it first.
#[derive(Clone)]
struct OnceLayer {
    leases: LeaseManager,
    task: &'static str,
}

impl<S> Layer<S> for OnceLayer {
    type Service = OnceService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        OnceService { inner, once: self.clone() }
    }
}

#[derive(Clone)]
struct OnceService<S> {
    inner: S,
    once: OnceLayer,
}

impl<S> Service<Task<Tick>> for OnceService<S>
where
    S: Service<Task<Tick>, Response = (), Error = BoxDynError> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = ();
    type Error = BoxDynError;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<(), BoxDynError>> + Send>>;

    fn poll_ready(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<std::result::Result<(), BoxDynError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, task: Task<Tick>) -> Self::Future {
        // The instance that was ready is called; its clone takes its place.
        let next = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, next);
        let scheduled = task.args.get_timestamp();
        let key = format!("{}@{scheduled}", self.once.task);
        // Kept for longer than a process can be late with a task.
        let job = self.once.leases.once(key).keep(Duration::from_secs(3600));
        Box::pin(async move {
            let outcome = job.run(async |_lease| ready.call(task).await).await;
            // apalis prints no errors.
            let outcome = outcome.inspect_err(|error| println!("failed {scheduled}: {error}"))?;
            match outcome {
                Once::Ran(()) => println!("ran {scheduled}"),
                Once::Running(_) | Once::AlreadyDone(_) => println!("left {scheduled}"),
                // The key is free, so that a retry, here or elsewhere, runs it.
                Once::Failed(error) => return Err(error),
                other => eprintln!("{scheduled}: not known to be closed: {other:?}"),
            }
            Ok(())
        })
    }
}

/// The handler.
async fn report(_tick: Tick) -> std::result::Result<(), BoxDynError> {
    sleep(Duration::from_millis(30)).await;
    Ok(())
}

/// Runs one process.
async fn work() -> Result {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let leases = LeaseManager::builder()
        .ttl(Duration::from_secs(10))
        .prefix("leasehold-example:")
        .connect(url)
        .await?;
    let each_second = cron::Schedule::from_str("* * * * * *")?;
    let worker = WorkerBuilder::new("reports")
        .backend(CronScheduler::new(each_second))
        .layer(OnceLayer { leases: leases.clone(), task: "report" })
        .build(report);
    println!("ready");
    let stop = async {
        sleep(FOR).await;
        Ok::<(), std::io::Error>(())
    };
    worker.run_until(stop).await?;
    leases.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("work") => work().await,
        None => two_workers().await.map(|_| ()),
        _ => Err("no arguments".into()),
    };
    exit_code("apalis_worker", done)
}

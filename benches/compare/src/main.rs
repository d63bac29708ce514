//! Measures leasehold against its floor (the same scripts, run bare) and against other lock crates,
//! on a redis-server of its own. Usage: `--help`.

mod aligned;
mod alloc;
mod arguments;
mod contender;
mod grants;
mod kernels;
mod peers;
mod pinned;
mod process;
mod scenarios;
mod server;
mod stats;
mod table;
mod targets;

use arguments::Arguments;
use scenarios::Bench;
use server::Server;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if words.peek().is_some_and(|word| word == process::WORKER) {
        process::work(words.nth(1).as_deref().unwrap_or_default());
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::parse(words) {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    // From the main thread, which lives as long as the process: see `Server::start`.
    let started = server::require_tools().and_then(|()| {
        let cluster = arguments.wants("6c").then(Server::start_cluster).transpose()?;
        Ok((Server::start()?, cluster))
    });
    let (server, cluster) = match started {
        Ok(started) => started,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built");
    // In a task: what `block_on` runs itself stays on the main thread, outside the worker threads.
    let quick = arguments.quick;
    let run = runtime.spawn(async move {
        let mut bench = Bench::new(arguments, server, cluster).await?;
        bench.run().await;
        Ok::<bool, String>(bench.finish())
    });
    match runtime.block_on(run) {
        Ok(Ok(true)) => ExitCode::SUCCESS,
        Ok(Ok(false)) if quick => ExitCode::SUCCESS,
        Ok(Ok(false)) => ExitCode::FAILURE,
        Ok(Err(text)) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
        Err(panic) => {
            eprintln!("{panic}");
            ExitCode::from(2)
        }
    }
}

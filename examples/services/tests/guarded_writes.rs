//! Runs the example: a worker that stands still and comes back, on a Redis and a PostgreSQL of its own.

use leasehold_services::Result;
use tokio::process::Command;

#[tokio::test]
async fn paused_holder_that_comes_back_is_refused_by_each_guard() -> Result {
    let output =
        Command::new(env!("CARGO_BIN_EXE_guarded_writes")).kill_on_drop(true).output().await?;
    let text = String::from_utf8(output.stdout)?;
    // It fails itself if one of them writes, or if a level changes.
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let (_, refused) = text.split_once("late writes were refused:\n").ok_or(text.clone())?;
    let places: Vec<&str> = refused.lines().map(str::trim).collect();
    let all =
        ["Redis, owner", "Redis, fence", "SQL, one row", "SQL, transaction", "HTTP", "object"];
    assert_eq!(places, all);
    Ok(())
}

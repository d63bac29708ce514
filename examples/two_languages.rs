//! A service in Rust and a worker in Python share one name, and the counter that it protects loses no update.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example two_languages
//! ```
//!
//! Needs a Redis server, and for the worker `python3` with the package `redis`. Without it, a second connection sends the commands that
//! redis-py's `Lock` sends, by `redis-cli`.

use leasehold::{Layout, LeaseManager};
use std::error::Error;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use tokio::process::Command as Program;

const ROUNDS: i64 = 50;
const NAME: &str = "leasehold-example:report";
const COUNTER: &str = "leasehold-example:counter";

/// Reads the counter, works, and writes it: another who does the same in between loses an update.
const WORKER: &str = r#"
import sys, time, redis
client = redis.Redis.from_url(sys.argv[1])
for _ in range(int(sys.argv[4])):
    with client.lock(sys.argv[2], timeout=10, sleep=0.005):
        count = int(client.get(sys.argv[3]) or 0)
        time.sleep(0.002)
        client.set(sys.argv[3], count + 1)
"#;

/// The same by hand.
const STAND_IN: &str = r#"
for i in $(seq "$4"); do
  id="$$-$i"
  until [ "$(redis-cli -u "$1" SET "$2" "$id" NX PX 10000)" = OK ]; do sleep 0.005; done
  count=$(redis-cli -u "$1" GET "$3")
  redis-cli -u "$1" SET "$3" $((${count:-0} + 1)) >/dev/null
  redis-cli -u "$1" EVAL 'if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end' 1 "$2" "$id" >/dev/null
done
"#;

fn redis_cli(url: &str, words: &[&str]) -> Result<String, Box<dyn Error>> {
    let output = Command::new("redis-cli").args(["-u", url]).args(words).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let Ok(url) = std::env::var("REDIS_URL") else {
        println!("set REDIS_URL: plain locks are shared on a Redis server");
        return Ok(());
    };
    let leases = LeaseManager::builder()
        .layout(Layout::Plain)
        // The worker wakes no waiter.
        .max_poll_interval(Duration::from_millis(5))
        .connect(&url)
        .await?;
    redis_cli(&url, &["DEL", COUNTER])?;

    let check = Command::new("python3").args(["-c", "import redis"]).stderr(Stdio::null()).status();
    let with_python = check.is_ok_and(|status| status.success());
    let arguments = [&*url, NAME, COUNTER, &ROUNDS.to_string()].map(str::to_owned);
    let mut worker = match with_python {
        true => Program::new("python3").args(["-c", WORKER]).args(arguments).spawn()?,
        false => Program::new("sh").args(["-c", STAND_IN, "worker"]).args(arguments).spawn()?,
    };

    let mut lock = leases.lock(NAME);
    for _ in 0..ROUNDS {
        let lease = lock.lock().await?;
        let count: i64 = redis_cli(&url, &["GET", COUNTER])?.parse().unwrap_or(0);
        tokio::time::sleep(Duration::from_millis(2)).await;
        redis_cli(&url, &["SET", COUNTER, &(count + 1).to_string()])?;
        lease.unlock().await?;
        // Let the worker have its turn: there is no order between the two.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let status = worker.wait().await?;
    let count: i64 = redis_cli(&url, &["GET", COUNTER])?.parse()?;
    redis_cli(&url, &["DEL", COUNTER])?;
    leases.close().await?;
    println!(
        "{count} updates of {} by Rust and {}",
        2 * ROUNDS,
        if with_python { "Python" } else { "a shell" }
    );
    if status.success() && count == 2 * ROUNDS { Ok(()) } else { Err("an update was lost".into()) }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

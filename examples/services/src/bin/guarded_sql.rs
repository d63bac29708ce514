//! A worker that stands still, loses its lease, and comes back: PostgreSQL refuses its write.
//!
//! Two statements of the guide, against a real server: one row with a column `fence`, and a transaction over several rows whose
//! first statement asks a table of tokens. `examples/services/guarded_sql` starts a server for it:
//!
//! ```sh
//! examples/services/guarded_sql
//! ```
//!
//! or give it one of your own: `DATABASE_URL=postgres://.. cargo run -p leasehold-services --bin guarded_sql`. It makes its tables
//! in a schema `leasehold_example` and drops it.

use leasehold::{Lease, LeaseManager};
use std::error::Error;
use tokio_postgres::{Client, NoTls};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Sets the level of an article. Returns whether this lease may still write.
async fn set_level(client: &Client, lease: &Lease, id: i32, level: i32) -> Outcome<bool> {
    let fence = token(lease)?;
    let update = "UPDATE stock SET level = $1, fence = $2 WHERE id = $3 AND fence <= $2";
    Ok(client.execute(update, &[&level, &fence, &id]).await? == 1)
}

/// Moves a number of articles between two rows. Returns whether this lease may still write; if not, nothing has moved.
async fn move_stock(client: &mut Client, lease: &Lease, moved: i32) -> Outcome<bool> {
    let fence = token(lease)?;
    let transaction = client.transaction().await?;
    // The first statement: its row lock orders the transactions.
    let guard = "INSERT INTO fences (name, fence) VALUES ($1, $2) \
                 ON CONFLICT (name) DO UPDATE SET fence = EXCLUDED.fence WHERE fences.fence <= EXCLUDED.fence";
    if transaction.execute(guard, &[&lease.name(), &fence]).await? == 0 {
        transaction.rollback().await?;
        return Ok(false);
    }
    for (id, change) in [(1, -moved), (2, moved)] {
        let update = "UPDATE stock SET level = level + $1 WHERE id = $2";
        transaction.execute(update, &[&change, &id]).await?;
    }
    transaction.commit().await?;
    Ok(true)
}

fn token(lease: &Lease) -> Outcome<i64> {
    let fence = lease.fence().ok_or("the store has no fencing tokens")?;
    Ok(i64::try_from(fence)?)
}

async fn levels(client: &Client) -> Outcome<Vec<i32>> {
    let rows = client.query("SELECT level FROM stock ORDER BY id", &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn connect(url: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("the connection to PostgreSQL ended: {error}");
        }
    });
    client.batch_execute("SET search_path TO leasehold_example").await?;
    Ok(client)
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::var("DATABASE_URL").map_err(
        |_| "set DATABASE_URL to a PostgreSQL server, or run examples/services/guarded_sql, which starts one",
    )?;
    let (mut here, mut there) = (connect(&url).await?, connect(&url).await?);
    here.batch_execute(
        "DROP SCHEMA IF EXISTS leasehold_example CASCADE; CREATE SCHEMA leasehold_example; \
         CREATE TABLE stock (id INT PRIMARY KEY, level INT NOT NULL, fence BIGINT NOT NULL DEFAULT 0); \
         CREATE TABLE fences (name TEXT PRIMARY KEY, fence BIGINT NOT NULL); \
         INSERT INTO stock (id, level) VALUES (1, 10), (2, 10)",
    )
    .await?;

    let leases = LeaseManager::in_memory();
    let old = leases.lock("stock").lock().await?;
    assert!(set_level(&here, &old, 1, 20).await?);
    assert!(move_stock(&mut here, &old, 5).await?);
    assert!(move_stock(&mut here, &old, 5).await?, "the same holder again");
    assert_eq!(levels(&here).await?, [10, 20]);

    // It has checked its lease, and stands still before it writes. Meanwhile another takes over.
    old.check()?;
    let new = leases.lock("stock").steal("the worker stands still").await?.ok_or("taken")?;
    assert!(set_level(&there, &new, 1, 7).await?);
    assert!(move_stock(&mut there, &new, 1).await?);
    assert_eq!(levels(&there).await?, [6, 21]);

    assert!(!set_level(&here, &old, 1, 999).await?, "a late write of one row is refused");
    assert!(!move_stock(&mut here, &old, 999).await?, "a late transaction is refused");
    assert_eq!(levels(&here).await?, [6, 21]);
    let note = old.note().await?.ok_or("no note")?;
    println!("the late writes were refused; the name was {note}");

    // The row lock orders two transactions that are at work at the same time.
    let first = there.transaction().await?;
    let guard = "INSERT INTO fences (name, fence) VALUES ('stock', $1) \
                 ON CONFLICT (name) DO UPDATE SET fence = EXCLUDED.fence WHERE fences.fence <= EXCLUDED.fence";
    assert_eq!(first.execute(guard, &[&(token(&new)? + 1)]).await?, 1);
    let late = move_stock(&mut here, &new, 999);
    let commit = async { first.commit().await.map_err(Into::into) };
    let (late, commit): (Outcome<bool>, Outcome<()>) = tokio::join!(late, commit);
    commit?;
    assert!(!late?, "it waited for the newer one, and was refused");
    here.batch_execute("DROP SCHEMA leasehold_example CASCADE").await?;
    new.unlock().await?;
    Ok(())
}

//! A store of one's own: leases in a file that the processes of one machine share, without a server.
//!
//! `cargo run --all-features --example own_store` locks with two managers, as two processes would.
//! `cargo test --all-features --example own_store` checks the store against the contract of `Store`.
//!
//! Each operation reads the whole file, changes it and puts a new one in its place, under a lock of the operating
//! system. Time is the machine's wall clock: when that is stepped, so are all leases.

use async_trait::async_trait;
use leasehold::clock::Clock;
use leasehold::store::{
    Absence, Acquire, Acquired, Capabilities, ForceRelease, HolderId, Holding, Inspect, Inspection,
    Name, Release, Released, RenewBatch, Renewal, Renewed, Signal, Store, StoreFuture, Wait,
    Wakeups,
};
use leasehold::{Error, ErrorKind, LeaseManager, Result};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Keeps leases in a file.
#[derive(Debug)]
struct FileStore {
    path: PathBuf,
}

/// What the file says of a name. Times are in microseconds since 1970.
#[derive(Default)]
struct Entry {
    holder: String,
    /// 0 if the name is free.
    count: u32,
    expires: u64,
    /// The fencing token of the holder, 0 for none, and the last one that was reserved.
    fence: u64,
    last: u64,
}

/// The content of the file, by the name in hexadecimal digits.
type Table = BTreeMap<String, Entry>;

impl FileStore {
    /// Runs an operation on the whole table, alone on this machine, unless the request is refused before.
    fn alone<T: Send + 'static>(
        &self,
        refused: Result<()>,
        timeout: Duration,
        operation: impl FnOnce(&mut Table, u64) -> T + Send + 'static,
    ) -> StoreFuture<T> {
        let path = self.path.clone();
        Box::pin(async move {
            refused?;
            let work = tokio::task::spawn_blocking(move || alone(&path, operation));
            // When the time is over it goes on: it is not known whether it runs, and that is what `Unavailable` says.
            let done = tokio::time::timeout(timeout, work).await.map_err(io::Error::from);
            let done = done.and_then(|work| work?);
            let failed = |error| {
                Error::new(ErrorKind::Unavailable, "the file of the locks").with_source(error)
            };
            done.map_err(failed)
        })
    }
}

fn alone<T>(path: &Path, operation: impl FnOnce(&mut Table, u64) -> T) -> io::Result<T> {
    let lock = File::create(path.with_extension("lock"))?;
    // Until it is closed.
    lock.lock()?;
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(io::Error::other)?;
    let now = micros(now);
    let table = text.lines().map(parse).collect::<Option<Table>>();
    let mut table = table.ok_or_else(|| io::Error::other("this is no file of locks"))?;
    for entry in table.values_mut().filter(|entry| entry.expires <= now) {
        entry.count = 0;
    }
    // A fencing token that the clock has passed need not be remembered.
    table.retain(|_, entry| entry.count > 0 || entry.last >= now);
    let result = operation(&mut table, now);
    let new = path.with_extension("new");
    fs::write(&new, table.iter().map(line).collect::<String>())?;
    fs::rename(new, path)?;
    Ok(result)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn line((name, entry): (&String, &Entry)) -> String {
    let Entry { holder, count, expires, fence, last } = entry;
    format!("{name} {holder} {count} {expires} {fence} {last}\n")
}

fn parse(line: &str) -> Option<(String, Entry)> {
    let words: Vec<&str> = line.split(' ').collect();
    let &[name, holder, count, expires, fence, last] = &words[..] else { return None };
    let (holder, count, expires) = (holder.to_owned(), count.parse().ok()?, expires.parse().ok()?);
    let (fence, last) = (fence.parse().ok()?, last.parse().ok()?);
    Some((name.to_owned(), Entry { holder, count, expires, fence, last }))
}

fn hex(name: &Name) -> String {
    name.as_str().bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// The entry of a name, if this holder has it.
fn own<'a>(table: &'a mut Table, name: &Name, holder: HolderId) -> Result<&'a mut Entry, Absence> {
    match table.get_mut(&hex(name)).filter(|entry| entry.count > 0) {
        None => Err(Absence::Gone),
        Some(entry) if entry.holder != holder.to_string() => Err(Absence::Taken),
        Some(entry) => Ok(entry),
    }
}

#[async_trait]
impl Store for FileStore {
    fn clock(&self) -> Clock {
        Clock::system()
    }

    fn capabilities(&self) -> Capabilities {
        // A file sends no message when it changes: waiters poll.
        Capabilities::default().with_wakeups(false).with_announces(false)
    }

    fn shard(&self, _: &Name) -> usize {
        0
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        // The holder's deadline counts from here, before anything is done.
        let sent = self.clock().now();
        let (refused, name) = (request.target.require_exclusive(), request.target.name);
        self.alone(refused, request.timeout, move |table, now| {
            let expires = now + micros(request.ttl);
            match own(table, &name, request.holder) {
                Ok(entry) => {
                    (entry.count, entry.expires) = (request.count, expires);
                    return Acquired::granted(sent, Some(entry.fence).filter(|fence| *fence > 0));
                }
                Err(absence) if request.count > 1 => return Acquired::NotYours(absence),
                Err(_) => {}
            }
            let entry = table.entry(hex(&name)).or_default();
            if entry.count > 0 {
                return Acquired::held(Some(Duration::from_micros(entry.expires - now)));
            }
            (entry.holder, entry.count) = (request.holder.to_string(), request.count);
            (entry.expires, entry.fence) = (expires, 0);
            if let Some(fencing) = request.fencing {
                entry.fence = now.max(entry.last + 1);
                entry.last = entry.fence + u64::from(fencing.block) - 1;
            }
            Acquired::granted(sent, request.fencing.map(|_| entry.fence))
        })
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        let (refused, name) = (request.target.require_exclusive(), request.target.name);
        self.alone(refused, request.timeout, move |table, _| {
            match own(table, &name, request.holder) {
                Err(absence) => Released::NotYours(absence),
                Ok(entry) => {
                    entry.count = request.count;
                    Released::done(0)
                }
            }
        })
    }

    fn renew(&self, batch: RenewBatch) -> StoreFuture<Renewed> {
        let sent = self.clock().now();
        self.alone(batch.require_exclusive(), batch.timeout, move |table, now| {
            let expires = now + micros(batch.ttl);
            let renew = |item: &Renewal| {
                let entry = own(table, &item.target.name, item.holder);
                Ok(entry.map(|entry| entry.expires = expires).err())
            };
            Renewed::new(sent, batch.items.iter().map(renew).collect())
        })
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        let (refused, name) = (request.target.require_exclusive(), hex(&request.target.name));
        let look = move |table: &mut Table, now| {
            let entry = table.get(&name).filter(|entry| entry.count > 0);
            Inspection::new(entry.map(|entry| {
                let remaining = Duration::from_micros(entry.expires - now);
                Holding::new(entry.holder.clone(), entry.count.into(), Some(remaining))
            }))
        };
        self.alone(refused, request.timeout, look).await
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        let (refused, name) = (request.target.require_exclusive(), hex(&request.target.name));
        let take = move |table: &mut Table, _| {
            table.get_mut(&name).is_some_and(|entry| std::mem::take(&mut entry.count) > 0)
        };
        self.alone(refused, request.timeout, take).await
    }

    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        request.target.require_exclusive()?;
        Ok(None)
    }

    fn reconnects(&self) -> Option<Signal> {
        None
    }

    async fn age(&self, _: Duration) -> Result<Option<Duration>> {
        Err(Error::new(ErrorKind::Unsupported, "a file can be replaced by an old one unseen"))
    }

    async fn server_id(&self, _: Duration) -> Result<Option<String>> {
        Ok(None)
    }

    async fn close(&self, _: Duration) {}
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let store = || FileStore { path: directory.path().join("locks") };
    let here = LeaseManager::builder().build(store())?;
    let there = LeaseManager::builder().build(store())?;

    let lease = here.lock("orders:42").lock().await?;
    println!("here has it, with the fencing token {:?}", lease.fence());
    assert!(there.lock("orders:42").try_lock().await?.is_none());
    lease.unlock().await?;
    let lease = there.lock("orders:42").lock().await?;
    println!("there has it, with the fencing token {:?}", lease.fence());
    lease.unlock().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::testing::Harness;
    use std::sync::Arc;

    struct Files(tempfile::TempDir);

    #[async_trait]
    impl Harness for Files {
        async fn store(&self) -> Arc<dyn Store> {
            Arc::new(FileStore { path: self.0.path().join("locks") })
        }

        async fn lose(&self, name: &Name) {
            let lose =
                |table: &mut Table, _| table.get_mut(&hex(name)).map(|entry| entry.count = 0);
            alone(&self.0.path().join("locks"), lose).expect("a file");
        }

        async fn occupy(&self, _: &Name) -> bool {
            false
        }

        async fn elapse(&self, time: Duration) {
            tokio::time::sleep(time).await;
        }

        fn ttl(&self) -> Duration {
            Duration::from_millis(500)
        }
    }

    leasehold::conformance_suite!(
        #[tokio::test]
        Files(tempfile::tempdir().expect("a directory"))
    );
}

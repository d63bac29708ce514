//! A store of your own: leases in a file that the processes of one machine share, without a server.
//!
//! `cargo run --all-features --example own_store` locks with two managers, as two processes would.
//! `cargo test --all-features --example own_store` checks the store against the contract of `Store`.
//!
//! Each operation reads the whole file, changes it and replaces it with a new one, under a file lock of the operating
//! system. Times are those of the machine's wall clock: a step of that clock changes the time that leases have left.

use async_trait::async_trait;
use leasehold::clock::Clock;
use leasehold::store::{
    About, Absence, Acquire, Acquired, Capabilities, ForceRelease, HolderId, HolderInfo, Inspect,
    Inspection, Keep, Name, Release, Released, RenewBatch, RenewCall, Renewal, Renewed, Store,
    StoreFuture, Uptime, Wait, Wakeups,
};
use leasehold::{Error, ErrorKind, LeaseManager, Result};
use serde::{Deserialize, Serialize};
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

/// A name in the file. Times are those since 1970.
#[derive(Default, Deserialize, Serialize)]
struct Entry {
    holder: String,
    /// 0 if the name is free.
    count: u32,
    expires: Duration,
    /// The fencing token of the holder, and the last one that was reserved.
    fence: Option<u64>,
    last: u64,
}

/// The content of the file, and the time at which it was read.
struct Table {
    entries: BTreeMap<String, Entry>,
    now: Duration,
}

impl Table {
    /// Returns the entry of a name that is held.
    fn held(&mut self, name: &Name) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(name.as_str())?;
        (entry.count > 0 && entry.expires > self.now).then_some(entry)
    }

    /// Returns the entry of a name that this holder has.
    fn own(&mut self, name: &Name, holder: HolderId) -> Result<&mut Entry, Absence> {
        let entry = self.held(name).ok_or(Absence::Gone)?;
        if entry.holder == holder.to_string() { Ok(entry) } else { Err(Absence::Taken) }
    }
}

/// Runs an operation on the table, while no other process can.
fn locked<T>(path: &Path, operation: impl FnOnce(&mut Table) -> T) -> io::Result<T> {
    let lock = File::create(path.with_extension("lock"))?;
    lock.lock()?; // until it is closed
    let mut entries: BTreeMap<String, Entry> = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
        text => serde_json::from_slice(&text?)?,
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(io::Error::other)?;
    // A fencing token that the clock has passed need not be remembered.
    entries.retain(|_, entry| entry.expires > now || entry.last >= micros(now));
    let mut table = Table { entries, now };
    let result = operation(&mut table);
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(&table.entries)?)?;
    fs::rename(new, path).map(|()| result)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl FileStore {
    /// Runs an operation off the runtime, with what it is about, unless the store does not support that.
    fn run<A: Send + 'static, T: Send + 'static>(
        &self,
        about: Result<A>,
        timeout: Duration,
        operation: impl FnOnce(&mut Table, A) -> T + Send + 'static,
    ) -> StoreFuture<T> {
        let path = self.path.clone();
        Box::pin(async move {
            let about = about?;
            let work = move || locked(&path, |table| operation(table, about));
            // After the timeout the work goes on. `Unavailable` means that its outcome is unknown.
            let done = tokio::time::timeout(timeout, tokio::task::spawn_blocking(work)).await;
            done.map_err(io::Error::from).and_then(|work| work?).map_err(|error| {
                Error::new(ErrorKind::Unavailable, "the file of the locks").with_source(error)
            })
        })
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

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        // The holder's deadline counts from here, before anything is done.
        let sent = self.clock().now();
        let name = request.plain_name();
        let Acquire { holder, ttl, fencing, timeout, .. } = request;
        self.run(name, timeout, move |table, name| {
            let now = table.now;
            let entry = match table.own(&name, holder) {
                Ok(entry) => entry,
                Err(Absence::Taken) => {
                    return Acquired::held(table.held(&name).map(|entry| entry.expires - now));
                }
                Err(_) => {
                    let entry = table.entries.entry(name.as_str().to_owned()).or_default();
                    let first = micros(now).max(entry.last + 1);
                    if let Some(fencing) = fencing {
                        entry.last = first + u64::from(fencing.block) - 1;
                    }
                    (entry.holder, entry.fence) = (holder.to_string(), fencing.map(|_| first));
                    entry.count = 1;
                    entry
                }
            };
            entry.expires = now + ttl;
            Acquired::granted(sent, entry.fence)
        })
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        // A mark that keeps the name closed is more than this store knows.
        let target = match request.keep {
            Some(_) => Err(Keep::unsupported()),
            None => request.require_hold().and_then(|()| request.target.into_exclusive()),
        };
        self.run(target, request.timeout, move |table, name| {
            let counted = table.own(&name, request.holder).map(|entry| entry.count = request.count);
            counted.map_or_else(Released::NotYours, |()| Released::done(0))
        })
    }

    fn renew(&self, batch: RenewBatch) -> Vec<RenewCall> {
        // One call takes them all: it reads and writes the file once.
        RenewCall::divide(
            batch,
            usize::MAX,
            |_| 0,
            |batch| {
                let sent = self.clock().now();
                self.run(batch.require_exclusive(), batch.timeout, move |table, ()| {
                    let expires = table.now + batch.ttl;
                    let renew = |item: &Renewal| {
                        let entry = table.own(&item.target.name, item.holder);
                        Ok(entry.map(|entry| entry.expires = expires).err())
                    };
                    Renewed::new(sent, batch.items.iter().map(renew).collect())
                })
            },
        )
    }

    async fn inspect(&self, request: Inspect) -> Result<Inspection> {
        match request.about {
            About::Holders => {}
            // It leaves no notes.
            About::Note(_) => return Ok(Inspection::default()),
            // Neither a line, nor what a later version may ask.
            _ => return Err(request.unsupported()),
        }
        let look = |table: &mut Table, name| {
            let now = table.now;
            let info = |entry: &mut Entry| {
                HolderInfo::new(entry.holder.clone(), entry.count.into(), Some(entry.expires - now))
            };
            Inspection::new(table.held(&name).map(info))
        };
        self.run(request.target.into_exclusive(), request.timeout, look).await
    }

    async fn force_release(&self, request: ForceRelease) -> Result<bool> {
        let from = request.from;
        let free = move |table: &mut Table, name| {
            let held = table.held(&name);
            let held = held.filter(|it| from.as_ref().is_none_or(|from| *from == it.holder));
            held.map(|it| it.count = 0).is_some()
        };
        self.run(request.target.into_exclusive(), request.timeout, free).await
    }

    async fn subscribe(&self, request: Wait) -> Result<Option<Wakeups>> {
        request.target.into_exclusive().map(|_| None)
    }

    async fn uptime(&self, _: Duration) -> Result<Uptime> {
        Err(Error::new(ErrorKind::Unsupported, "an old file can replace the current one unseen"))
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
    Ok(lease.unlock().await?)
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
            let lose = |table: &mut Table| table.held(name).map(|entry| entry.count = 0);
            locked(&self.0.path().join("locks"), lose).expect("a file");
        }

        async fn occupy(&self, _: &Name) -> bool {
            false
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

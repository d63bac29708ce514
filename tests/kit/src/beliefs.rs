//! The beliefs of holders, with their times: two beliefs in one name never overlap.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use leasehold::Lease;
use leasehold::clock::{Clock, Instant};

/// Looks at leases from a thread of its own, each millisecond.
pub struct Beliefs(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// By number.
    held: Mutex<HashMap<usize, (Arc<Lease>, Belief)>>,
    past: Mutex<Vec<Belief>>,
}

/// For how long a holder has believed.
#[derive(Clone, Debug)]
pub struct Belief {
    pub name: String,
    pub caller: String,
    pub fence: Option<u64>,
    /// When it was known to be granted.
    pub from: Instant,
    /// When it was last good.
    pub until: Instant,
    /// When its token was first seen to have fired.
    pub fired: Option<Instant>,
}

impl Belief {
    fn look(&mut self, lease: &Lease) {
        let now = Clock::system().now();
        if lease.check().is_ok() {
            self.until = now;
        }
        if self.fired.is_none() && lease.cancellation_token().is_cancelled() {
            self.fired = Some(now);
        }
    }
}

impl Beliefs {
    pub fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let looking = Arc::downgrade(&shared);
        thread::spawn(move || {
            while let Some(shared) = looking.upgrade() {
                for (lease, belief) in shared.held().values_mut() {
                    belief.look(lease);
                }
                drop(shared);
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self(shared)
    }

    /// Looks at this one from now on.
    pub fn watch(&self, caller: &str, lease: Lease) -> Watched {
        let now = Clock::system().now();
        let (name, fence) = (lease.name().to_owned(), lease.fence());
        let caller = caller.to_owned();
        let belief = Belief { name, caller, fence, from: now, until: now, fired: None };
        let lease = Arc::new(lease);
        let mut held = self.0.held();
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        held.insert(number, (Arc::clone(&lease), belief));
        Watched { shared: Arc::clone(&self.0), number, lease: Some(lease) }
    }

    /// What was believed, by name and time; panics if two believed at once, or if a fencing token did not grow.
    #[track_caller]
    pub fn judge(&self) -> Vec<Belief> {
        let mut past = self.0.past().clone();
        past.sort_by(|a, b| (&a.name, a.from).cmp(&(&b.name, b.from)));
        for pair in past.windows(2) {
            let [before, after] = pair else { continue };
            if before.name == after.name {
                assert!(before.until < after.from, "two believed at once:\n{before:?}\n{after:?}");
                assert!(before.fence < after.fence, "no new fence:\n{before:?}\n{after:?}");
            }
        }
        past
    }
}

static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

impl Shared {
    fn held(&self) -> MutexGuard<'_, HashMap<usize, (Arc<Lease>, Belief)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn past(&self) -> MutexGuard<'_, Vec<Belief>> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease that is looked at.
pub struct Watched {
    shared: Arc<Shared>,
    number: usize,
    lease: Option<Arc<Lease>>,
}

impl Watched {
    pub fn lease(&self) -> &Lease {
        self.lease.as_ref().expect("not ended yet")
    }

    /// What was believed so far.
    pub fn so_far(&self) -> Belief {
        self.shared.held()[&self.number].1.clone()
    }

    /// The holder believes no more, and gives it back.
    pub async fn unlock(mut self) -> leasehold::Result<()> {
        self.end();
        let lease = self.lease.take().and_then(Arc::into_inner).expect("nobody else has it");
        lease.unlock().await
    }

    fn end(&mut self) {
        let ended = self.shared.held().remove(&self.number);
        if let Some((lease, mut belief)) = ended {
            belief.look(&lease);
            self.shared.past().push(belief);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.end();
    }
}

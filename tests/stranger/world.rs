//! The processes of a run, as far as they are managers on one store, and what goes wrong with the store.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::store::{MemoryStore, Quorum, Store};
use leasehold::testing::{Call, Fault, Faults, FaultyStore, Rule};
use leasehold::{Builder, LeaseManager};
use tokio::time::sleep;

use crate::guards::Registry;
use crate::history::{Deed, Failure, Log};
use crate::plan::{Plan, Settings, Trouble};

/// A manager, with a number of its own.
#[derive(Clone)]
pub struct Incarnation {
    pub number: usize,
    pub leases: LeaseManager,
    /// What breaks its store, if that is in memory.
    faults: Vec<Faults>,
}

/// Where the managers of a run connect to.
pub enum Site {
    Memory(MemoryStore),
    /// A quorum of stores in memory.
    Nodes(Vec<MemoryStore>),
    /// With the histories of all runs that share the servers.
    Servers {
        url: String,
        breaker: Arc<dyn Breaker>,
        logs: Arc<Mutex<Vec<Log>>>,
    },
}

/// Breaks real servers, and mends them again before it returns.
pub trait Breaker: Send + Sync {
    fn strike(&self, trouble: Trouble);
}

pub struct World {
    pub log: Log,
    pub registry: Registry,
    pub site: Site,
    pub prefix: String,
    pub patience: Duration,
    builder: Builder,
    processes: Vec<Mutex<Incarnation>>,
    managers: AtomicUsize,
}

impl World {
    /// Makes the managers of a plan. Their names begin with `prefix`.
    pub async fn open(
        plan: &Plan,
        log: Log,
        site: Site,
        prefix: String,
        patience: Duration,
    ) -> Arc<Self> {
        let builder = builder(&plan.settings).seed(plan.seed);
        let managers = AtomicUsize::new(0);
        let mut world = Self {
            log,
            registry: Registry::default(),
            site,
            prefix,
            patience,
            builder,
            processes: Vec::new(),
            managers,
        };
        for _ in 0..plan.processes {
            let incarnation = world.start().await;
            world.processes.push(Mutex::new(incarnation));
        }
        Arc::new(world)
    }

    /// Starts a manager; tries again while the store is away.
    async fn start(&self) -> Incarnation {
        let number = self.managers.fetch_add(1, Ordering::Relaxed);
        match &self.site {
            Site::Memory(store) => {
                let (store, faults) = FaultyStore::new(store.clone());
                Incarnation {
                    number,
                    leases: self.builder.clone().build(store).expect("builds"),
                    faults: vec![faults],
                }
            }
            Site::Nodes(stores) => {
                let mut nodes: Vec<Arc<dyn Store>> = Vec::new();
                let mut faults = Vec::new();
                for store in stores {
                    let (node, its_faults) = FaultyStore::new(store.clone());
                    nodes.push(Arc::new(node));
                    faults.push(its_faults);
                }
                let quorum = Quorum::new(nodes).expect("a quorum");
                Incarnation {
                    number,
                    leases: self.builder.clone().build(quorum).expect("builds"),
                    faults,
                }
            }
            Site::Servers { url, .. } => loop {
                match self.builder.clone().connect(url).await {
                    Ok(leases) => break Incarnation { number, leases, faults: Vec::new() },
                    Err(error) => assert!(error.is_retryable(), "cannot connect: {error}"),
                }
                sleep(Duration::from_millis(50)).await;
            },
        }
    }

    pub fn incarnation(&self, process: usize) -> Incarnation {
        self.processes[process].lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn all(&self) -> Vec<Incarnation> {
        (0..self.processes.len()).map(|process| self.incarnation(process)).collect()
    }

    /// Closes the manager of a process, and then makes the next one, as a process does that is started again.
    pub async fn close(&self, process: usize) {
        let old = self.incarnation(process);
        let act =
            self.log.begin(Deed::Close { manager: old.number, failed: Vec::new() }, old.number);
        let closed = old.leases.close().await;
        if let Err(error) = &closed {
            let names = error.failed().iter().map(|failed| failed.0.clone()).collect();
            self.log.write(|history| {
                history.acts[act].deed = Deed::Close { manager: old.number, failed: names }
            });
        }
        self.log
            .finish(act, closed.err().map(|error| Failure::from(&leasehold::Error::from(error))));
        let next = self.start().await;
        let mut current = self.processes[process].lock().unwrap_or_else(PoisonError::into_inner);
        if current.number == old.number {
            *current = next;
        }
    }

    pub fn delete(&self, name: &str) {
        if let Site::Memory(store) = &self.site {
            store.delete(name);
        }
    }

    /// Lets something go wrong, and waits until it is over.
    pub async fn strike(&self, process: usize, trouble: Trouble) {
        if let Site::Servers { breaker, logs, .. } = &self.site {
            let logs = logs.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let acts: Vec<usize> =
                logs.iter().map(|log| log.begin(Deed::Trouble { manager: None }, 0)).collect();
            let breaker = Arc::clone(breaker);
            tokio::task::spawn_blocking(move || breaker.strike(trouble)).await.expect("no panic");
            for (log, act) in logs.iter().zip(acts) {
                log.finish(act, None);
            }
            return;
        }
        let incarnation = self.incarnation(process);
        // All of one store, or those of one node, which is a minority: then nothing may be noticed but by the slow.
        let all = incarnation.faults.len();
        let faults = &incarnation.faults[incarnation.number % all];
        let manager = (!matches!(trouble, Trouble::Restart)).then_some(incarnation.number);
        let act = self.log.begin(Deed::Trouble { manager }, incarnation.number);
        match trouble {
            Trouble::Outage(length) => {
                faults.outage(length);
                sleep(length).await;
            }
            Trouble::Hang(length) => {
                faults.add(Rule::new(Fault::Hang));
                sleep(length).await;
            }
            Trouble::HoldReplies(length) => {
                faults.add(Rule::new(Fault::HoldReply));
                sleep(length).await;
            }
            Trouble::LoseReplies(times) => {
                for call in [Call::Acquire, Call::Release, Call::Renew] {
                    faults.add(Rule::new(Fault::LoseReply).on(call).times(times));
                }
                sleep(self.log.write(|history| history.rules.ttl) / 2).await;
            }
            Trouble::RunLate(length) => {
                for call in [Call::Acquire, Call::Release, Call::Renew] {
                    faults.add(Rule::new(Fault::RunLate).on(call));
                }
                sleep(length).await;
            }
            Trouble::Slow { by, span } => {
                faults.add(Rule::new(Fault::Delay(by)));
                sleep(span).await;
            }
            Trouble::Restart => {
                if let Site::Nodes(nodes) = &self.site {
                    nodes[incarnation.number % all].restart();
                }
                faults.reconnect();
                // It does not count for a TTL.
                sleep(self.log.write(|history| history.rules.ttl)).await;
            }
        }
        faults.heal();
        self.log.finish(act, None);
    }
}

fn builder(settings: &Settings) -> Builder {
    let mut builder = LeaseManager::builder().ttl(settings.ttl).fencing(settings.fencing);
    if let Some(grace) = settings.grace {
        builder = builder.grace(grace);
    }
    if let Some(poll) = settings.poll {
        builder = builder.max_poll_interval(poll);
    }
    if let Some(handoffs) = settings.handoffs {
        builder = builder.max_local_handoffs(handoffs);
    }
    if let Some(linger) = settings.linger {
        builder = builder.linger(linger);
    }
    if let Some(max) = settings.max_hold {
        builder = builder.max_hold(max);
    }
    if let Some(limit) = settings.stall_after {
        builder = builder.stall_after(limit);
    }
    builder
}

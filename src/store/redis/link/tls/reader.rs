//! Reads the files of certificates, on a thread of its own, since they may be in a file system that hangs.
//!
//! There is one thread at a time, and connections that are made meanwhile share what it reads. One that hangs is left behind after
//! a while, since the path may lead to another file by then; but only a few of them. So nothing piles up.

use super::connector::make;
use super::material::{Flaw, Material};
use crate::store::connect::tls::{TlsLibrary, TlsSettings};
use crate::util::sync::Mutex;
use fred::types::config::TlsConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// The files of the connections to an address.
#[derive(Clone)]
pub(in crate::store::redis::link) struct Reader(Arc<Shared>);

struct Shared {
    library: TlsLibrary,
    settings: TlsSettings,
    /// What was read last. While the files are as they were, it is used again: OpenSSL loads the certificates of the platform to
    /// make one.
    last: Mutex<Option<Made>>,
    /// Reads what the settings name.
    read: fn(&TlsSettings) -> Result<Material, Flaw>,
    /// What the thread reads, while there is one.
    under_way: Mutex<Option<UnderWay>>,
    /// The number of threads.
    threads: AtomicUsize,
}

/// A read under way, and when it began.
struct UnderWay {
    answer: watch::Receiver<Answer>,
    since: Instant,
}

/// After this time a read hangs, and another one may begin.
const HANGS: Duration = Duration::from_secs(30);
/// The most threads, of which all but one hang.
const MOST_THREADS: usize = 3;

/// A connector, and what it was made of.
struct Made {
    material: Material,
    config: TlsConfig,
}

/// What was read, or why not.
type Answer = Option<Result<TlsConfig, Unread>>;

/// Why the files could not be used.
#[derive(Clone, Debug)]
pub(super) struct Unread {
    pub(super) why: String,
    /// Whether there is no file at a path, and never was: a file that was there may come back.
    pub(super) was_never_there: bool,
}

impl From<String> for Unread {
    fn from(why: String) -> Self {
        Self { why, was_never_there: false }
    }
}

/// A thread that reads. It ends with this, also by a panic.
struct Reading {
    shared: Arc<Shared>,
    answer: watch::Receiver<Answer>,
}

impl Reading {
    fn new(shared: &Arc<Shared>, answer: watch::Receiver<Answer>) -> Self {
        shared.threads.fetch_add(1, Ordering::Relaxed);
        Self { shared: Arc::clone(shared), answer }
    }
}

impl Reader {
    pub(super) fn new(library: TlsLibrary, settings: TlsSettings) -> Self {
        Self::by(Material::read, library, settings)
    }

    fn by(
        read: fn(&TlsSettings) -> Result<Material, Flaw>,
        library: TlsLibrary,
        settings: TlsSettings,
    ) -> Self {
        Self(Arc::new(Shared {
            library,
            settings,
            last: Mutex::default(),
            read,
            under_way: Mutex::default(),
            threads: AtomicUsize::new(0),
        }))
    }

    /// Reads the files, for at most `limit`.
    pub(super) async fn read(&self, limit: Duration) -> Result<TlsConfig, Unread> {
        let mut answer = self.begin()?;
        match timeout(limit, answer.wait_for(Option::is_some)).await {
            Ok(Ok(answer)) => answer.clone().unwrap_or_else(|| Err(ended())),
            Ok(Err(_)) => Err(ended()),
            Err(_) => Err(format!(
                "the files are not read after {limit:?}; see whether their disk answers"
            )
            .into()),
        }
    }

    /// Begins to read, or joins the read that is under way.
    fn begin(&self) -> Result<watch::Receiver<Answer>, String> {
        let (answer, receiver) = watch::channel(None);
        {
            let mut under_way = self.0.under_way.lock();
            if let Some(UnderWay { answer, since }) = &*under_way
                && (since.elapsed() < HANGS
                    || self.0.threads.load(Ordering::Relaxed) >= MOST_THREADS)
            {
                return Ok(answer.clone());
            }
            *under_way = Some(UnderWay { answer: receiver.clone(), since: Instant::now() });
        }
        let reading = Reading::new(&self.0, receiver.clone());
        let thread = std::thread::Builder::new().name("leasehold-certs".into());
        let started = thread.spawn(move || {
            let shared = &reading.shared;
            let read = read(shared).map_err(|flaw| Unread {
                why: flaw.text(&shared.settings),
                was_never_there: flaw.is_missing && shared.last.lock().is_none(),
            });
            answer.send_replace(Some(read));
        });
        started.map_or_else(
            |error| Err(format!("there is no thread to read the files: {error}")),
            |_| Ok(receiver),
        )
    }
}

/// Reads the files, which may block.
fn read(shared: &Shared) -> Result<TlsConfig, Flaw> {
    let material = (shared.read)(&shared.settings)?;
    let mut last = shared.last.lock();
    if let Some(made) = &*last
        && made.material == material
    {
        return Ok(made.config.clone());
    }
    let config = make(shared.library, &material)?;
    *last = Some(Made { material, config: config.clone() });
    Ok(config)
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.shared.threads.fetch_sub(1, Ordering::Relaxed);
        // Unless another one has begun because this one hung.
        let mut under_way = self.shared.under_way.lock();
        if under_way.as_ref().is_some_and(|read| read.answer.same_channel(&self.answer)) {
            *under_way = None;
        }
    }
}

fn ended() -> Unread {
    "reading the files has ended with a panic; the panic message says where".to_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// A disk that does not answer.
    static HANGING: AtomicBool = AtomicBool::new(true);

    fn hang(_: &TlsSettings) -> Result<Material, Flaw> {
        while HANGING.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Flaw::of_library("answers again"))
    }

    /// The clock of tokio stands still, and goes on while all wait.
    #[tokio::test(start_paused = true)]
    async fn read_that_hangs_is_shared_and_after_a_while_left_behind() {
        const LIMIT: Duration = Duration::from_secs(2);
        let reader = Reader::by(hang, TlsLibrary::Rustls, TlsSettings::default());
        let threads = || reader.0.threads.load(Ordering::Relaxed);
        for (later, expected) in
            [(false, 1), (false, 1), (true, 2), (false, 2), (true, 3), (true, 3)]
        {
            if later {
                tokio::time::advance(HANGS).await;
            }
            let error = reader.read(LIMIT).await.unwrap_err().why;
            assert!(error.contains("are not read after 2s"), "{error}");
            assert_eq!(threads(), expected);
        }
        HANGING.store(false, Ordering::Relaxed);
        while threads() > 0 {
            std::thread::yield_now();
        }
        assert!(reader.0.under_way.lock().is_none());
        let read = tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(50)));
        let (error, _) = tokio::join!(reader.read(Duration::MAX), read);
        assert!(error.unwrap_err().why.contains("answers again"));
    }
}

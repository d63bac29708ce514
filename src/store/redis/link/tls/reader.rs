//! Reads the files of certificates, on a thread of its own, since they may be in a file system that hangs.
//!
//! There is one thread at a time, and connections that are made meanwhile share what it reads. So nothing piles up.

use super::connector::make;
use super::material::{Flaw, Material};
use crate::store::connect::tls::{TlsLibrary, TlsSettings};
use crate::util::sync::Mutex;
use fred::types::config::TlsConfig;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// The files of the connections to an address.
#[derive(Clone)]
pub(in crate::store::redis::link) struct Reader(Arc<Shared>);

struct Shared {
    library: TlsLibrary,
    settings: TlsSettings,
    /// What was read last. While the files are as they were, it is used again: OpenSSL loads the certificates of the platform to
    /// make one.
    last: Mutex<Option<Made>>,
    /// What the thread reads, while there is one.
    under_way: Mutex<Option<watch::Receiver<Answer>>>,
}

/// A connector, and what it was made of.
struct Made {
    material: Material,
    config: TlsConfig,
}

/// What was read, or what is wrong.
type Answer = Option<Result<TlsConfig, String>>;

/// A read under way. It ends with the thread, also by a panic.
struct Reading(Arc<Shared>);

impl Reader {
    pub(super) fn new(library: TlsLibrary, settings: TlsSettings) -> Self {
        let shared =
            Shared { library, settings, last: Mutex::default(), under_way: Mutex::default() };
        Self(Arc::new(shared))
    }

    /// Reads the files, for at most `limit`.
    pub(super) async fn read(&self, limit: Duration) -> Result<TlsConfig, String> {
        let mut answer = self.begin()?;
        match timeout(limit, answer.wait_for(Option::is_some)).await {
            Ok(Ok(answer)) => answer.clone().unwrap_or_else(|| Err(ended())),
            Ok(Err(_)) => Err(ended()),
            Err(_) => Err(format!(
                "the files are not read after {limit:?}; see whether their disk answers"
            )),
        }
    }

    /// Begins to read, or joins the read that is under way.
    fn begin(&self) -> Result<watch::Receiver<Answer>, String> {
        let (answer, receiver) = watch::channel(None);
        {
            let mut under_way = self.0.under_way.lock();
            if let Some(answer) = &*under_way {
                return Ok(answer.clone());
            }
            *under_way = Some(receiver.clone());
        }
        let reading = Reading(Arc::clone(&self.0));
        let thread = std::thread::Builder::new().name("leasehold-certs".into());
        let started = thread.spawn(move || {
            let Reading(shared) = &reading;
            let read = read(shared).map_err(|flaw| flaw.text(&shared.settings));
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
    let material = Material::read(&shared.settings)?;
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
        *self.0.under_way.lock() = None;
    }
}

fn ended() -> String {
    "reading the files has ended with a panic; the panic message says where".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::connect::tls::Pem;
    use std::process::Command;

    #[tokio::test]
    async fn read_that_hangs_is_shared_and_the_next_one_is_new() {
        const SHORT: Duration = Duration::from_millis(50);
        let dir = tempfile::tempdir().unwrap();
        let (pipe, old) = (dir.path().join("ca.pem"), dir.path().join("old"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let settings = TlsSettings { ca: Some(Pem::File(pipe.clone())), ..TlsSettings::default() };
        let reader = Reader::new(TlsLibrary::Rustls, settings);
        for _ in 0..3 {
            let error = reader.read(SHORT).await.unwrap_err();
            assert!(error.contains("are not read after 50ms"), "{error}");
        }
        // The thread of the first read holds one clone, and the others have joined it.
        assert_eq!(Arc::strong_count(&reader.0), 2);
        std::fs::rename(&pipe, &old).unwrap();
        std::fs::write(&pipe, "nothing").unwrap();
        std::fs::write(&old, "").unwrap();
        while Arc::strong_count(&reader.0) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let error = reader.read(Duration::from_secs(30)).await.unwrap_err();
        assert!(error.contains("has no certificate"), "{error}");
    }
}

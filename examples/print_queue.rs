//! Prints the documents of three offices on one printer: page after page, and in the order in which people pressed the button.
//!
//! ```sh
//! cargo run --example print_queue                                      # in memory
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example print_queue
//! ```
//!
//! Each office has a manager of its own, as a process would have. A plain lock keeps the pages of a document together, but
//! an office may print several of its documents before it lets the others go first. The fair lock keeps the order, too. To
//! withdraw a document, the example drops the call that waits for its turn; it then delays no other.

use leasehold::LeaseManager;
use leasehold::store::MemoryStore;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const PRINTER: &str = "leasehold-example:printer";
const WITHDRAWN: usize = 5;

/// The pages in the tray: the number of the document, and that of its page.
#[derive(Clone, Default)]
struct Tray(Arc<Mutex<Vec<(usize, usize)>>>);

impl Tray {
    fn put(&self, document: usize, page: usize) {
        self.0.lock().expect("no panic").push((document, page));
    }
}

/// Prints three pages when it is the turn of the document.
async fn print(leases: LeaseManager, document: usize, tray: Tray) -> leasehold::Result<()> {
    let mut printer = leases.fair_lock(PRINTER);
    let printed = printer.with(async |_printer, _lease| {
        for page in 0..3 {
            sleep(Duration::from_millis(2)).await;
            tray.put(document, page);
        }
    });
    printed.await
}

async fn run() -> Result<(), Box<dyn Error>> {
    let memory = MemoryStore::new();
    let mut offices = Vec::new();
    for _ in 0..3 {
        offices.push(match std::env::var("REDIS_URL") {
            Ok(url) if url != "memory:" => LeaseManager::connect(&url).await?,
            _ => LeaseManager::builder().build(memory.clone())?,
        });
    }
    // A paper jam is cleared meanwhile.
    let jam = offices[0].lock(PRINTER).lock().await?;
    let (tray, mut documents) = (Tray::default(), JoinSet::new());
    for document in 0..12 {
        let office = offices[document % 3].clone();
        let job = print(office, document, tray.clone());
        let patience = Duration::from_millis(if document == WITHDRAWN { 30 } else { 60_000 });
        documents.spawn(async move { timeout(patience, job).await.unwrap_or(Ok(())) });
        sleep(Duration::from_millis(10)).await;
    }
    for waiting in offices[0].waiters(PRINTER).await? {
        println!("office {} has waited for {:?}", waiting.manager, waiting.waited);
    }
    jam.unlock().await?;
    while let Some(done) = documents.join_next().await {
        done??;
    }
    let printed = tray.0.lock().expect("no panic").clone();
    let order: Vec<_> = printed.chunks(3).map(|pages| pages[0].0).collect();
    println!("printed {order:?}; document {WITHDRAWN} was withdrawn");
    let expected = (0..12).filter(|document| *document != WITHDRAWN);
    let pages = expected.flat_map(|document| (0..3).map(move |page| (document, page)));
    if !printed.iter().copied().eq(pages) {
        return Err(format!("the pages are not in order: {printed:?}").into());
    }
    for office in offices {
        office.close().await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("print_queue: {error}");
            ExitCode::FAILURE
        }
    }
}

//! Prints one table of the rare states that the parts of a long run have reached: `reached DIR`, where `LEASEHOLD_REACHED`
//! was that directory.
//!
//! If all parts are there, a state that none of them has reached is a failure, but for those that `reached.txt` leaves to a
//! test.

use kit::reached::{Counts, PARTS, Reach, wanted};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(dir) = std::env::args().nth(1) else {
        eprintln!("usage: reached DIR");
        return ExitCode::from(2);
    };
    let mut runs = Vec::new();
    for part in PARTS {
        let file = Path::new(&dir).join(part);
        let mut counts = Counts::default();
        match file.exists().then(|| counts.add_from(&file)) {
            None => {}
            Some(Ok(())) => runs.push((part, counts)),
            Some(Err(error)) => {
                eprintln!("reached: {error}");
                return ExitCode::from(2);
            }
        }
    }
    print(&runs);
    let is_whole = runs.len() == PARTS.len();
    if !is_whole {
        println!("not all parts have run, so no state is missed");
    }
    let is_reached = |state: &str| runs.iter().any(|(_, counts)| counts.get(state) > 0);
    let mut failed = false;
    for (state, reach) in wanted() {
        match reach {
            Reach::In(_) if is_whole && !is_reached(state) => {
                println!("NEVER REACHED: {state}");
                failed = true;
            }
            Reach::Test(test) if !is_reached(state) => println!("{state}: left to {test}"),
            _ => {}
        }
    }
    ExitCode::from(u8::from(failed))
}

/// Prints a row for each state, and a column for each run; then the states of the simulated world.
fn print(runs: &[(&str, Counts)]) {
    print!("{:<26}", "");
    // `soak-redis` has its two words below each other.
    for (part, _) in runs {
        print!(" {:>10}", part.split_once('-').map_or("", |(word, _)| word));
    }
    print!("\n{:<26}", "");
    for (part, _) in runs {
        let word = part.split_once('-').map_or(*part, |(_, word)| word);
        print!(" {:>10}", word.replace("quorum-in-memory", "in memory"));
    }
    println!();
    let row = |name: &str| {
        print!("{name:<26}");
        for (_, counts) in runs {
            let count = counts.get(name);
            print!(" {:>10}", if count == 0 { "-".to_owned() } else { count.to_string() });
        }
        println!();
    };
    wanted().iter().for_each(|(state, _)| row(state));
    let world = runs
        .iter()
        .flat_map(|(_, counts)| counts.names())
        .filter(|name| name.starts_with("world."));
    world.for_each(row);
}

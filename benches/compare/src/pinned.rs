//! The scenarios that depend on how soon an idle core wakes, again with client and server on one core: this program
//! once more, by `taskset`, with a server of its own.

use crate::arguments::Arguments;
use crate::table::Sink;
use std::path::Path;
use std::process::Stdio;
use tempfile::NamedTempFile;
use tokio::process::Command;

/// The scenarios that are run on one core, too.
pub const SCENARIOS: [&str; 4] = ["1", "2", "2b", "6"];

/// Runs one scenario on one core. The other process prints its table itself.
pub async fn run(arguments: &Arguments, sink: &mut Sink, scenario: &str) {
    if let Err(why) = try_run(arguments, sink, scenario).await {
        println!("\n{scenario} pinned. not run: {why}");
    }
}

async fn try_run(arguments: &Arguments, sink: &mut Sink, scenario: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|dir| dir.join("taskset").is_file()) {
        return Err("taskset is not in PATH; on Linux it comes with util-linux".to_owned());
    }
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let json = NamedTempFile::new().map_err(|error| format!("no temporary file: {error}"))?;
    let status = Command::new("taskset")
        .args(["--cpu-list", &last_core()])
        .arg(program)
        .args(["--pinned", "--scenario", scenario, "--json"])
        .arg(json.path())
        .args(arguments.for_pinned())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .map_err(|error| format!("taskset: {error}"))?;
    let written = sink.append(json.path());
    if !status.success() {
        return Err(format!("it ended with {status}"));
    }
    written
}

/// The last core that this process may run on: the first one has most of the interrupts.
fn last_core() -> String {
    let status = std::fs::read_to_string(Path::new("/proc/self/status")).unwrap_or_default();
    core_of(&status).unwrap_or_else(|| "0".to_owned())
}

/// Such as `3` of `Cpus_allowed_list:\t0,2-3`.
fn core_of(status: &str) -> Option<String> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let last = list.trim().rsplit([',', '-']).next()?;
    Some(last.to_owned()).filter(|last| !last.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_core_is_the_end_of_the_list() {
        let core =
            |list: &str| core_of(&format!("Name:\tx\nCpus_allowed_list:\t{list}\nMems:\t0\n"));
        assert_eq!(core("0-7").as_deref(), Some("7"));
        assert_eq!(core("0,2-3,11").as_deref(), Some("11"));
        assert_eq!(core("1").as_deref(), Some("1"));
        assert_eq!(core_of("Name:\tx\n"), None);
    }
}

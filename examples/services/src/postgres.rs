//! A PostgreSQL server for an example.

use crate::{LONG, Result};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::time::timeout;

/// The user `nobody`: a server refuses to run as root.
const NOBODY: u32 = 65534;

/// A PostgreSQL server: that of `DATABASE_URL`, or one of its own, which ends with this. Installs it if it is missing.
pub struct Postgres {
    pub url: String,
    server: Option<(Child, PathBuf)>,
}

impl Postgres {
    pub async fn start() -> Result<Self> {
        if let Ok(url) = std::env::var("DATABASE_URL") {
            return Ok(Self { url, server: None });
        }
        let programs = match programs() {
            Some(programs) => programs,
            None => installed()?,
        };
        let directory = std::env::temp_dir().join(format!("leasehold-pg-{}", std::process::id()));
        std::fs::create_dir(&directory)?;
        let is_root = directory_owner(&directory)? == 0;
        if is_root {
            chown(&directory, Some(NOBODY), None)?;
        }
        let command = |program: &str| {
            let program = programs.join(program);
            let mut command = match is_root {
                true => Command::new("setpriv"),
                false => Command::new(&program),
            };
            if is_root {
                command.args(["--reuid", &NOBODY.to_string(), "--clear-groups"]).arg(program);
            }
            command.arg("-D").arg(directory.join("data")).env("LC_ALL", "C").stdin(Stdio::null());
            command
        };
        let made = command("initdb").args(["-U", "lease", "-A", "trust", "--no-sync"]).output()?;
        if !made.status.success() {
            let _ = std::fs::remove_dir_all(&directory);
            let error = String::from_utf8_lossy(&made.stderr);
            let advice =
                "as root, PostgreSQL runs as another user, which must be able to enter TMPDIR";
            return Err(format!("{error}({advice})").into());
        }
        // On a socket only, so that it needs no port.
        let socket = directory.display().to_string();
        let mut server = command("postgres");
        server.args(["-c", "listen_addresses=", "-c", "fsync=off", "-c"]);
        server.arg(format!("unix_socket_directories={socket}")).stderr(Stdio::piped());
        let mut child = tokio::process::Command::from(server).kill_on_drop(true).spawn()?;
        let output = child.stderr.take().ok_or("no output")?;
        let url = format!("host={socket} user=lease dbname=postgres");
        let this = Self { url, server: Some((child, directory)) };
        let mut lines = BufReader::new(output).lines();
        let ready = async {
            let mut log = String::new();
            while let Some(line) = lines.next_line().await? {
                if line.contains("ready to accept connections") {
                    return Result::Ok(());
                }
                log = log + &line + "\n";
            }
            Err(format!("PostgreSQL does not start: {log}").into())
        };
        timeout(LONG, ready).await.map_err(|_| "PostgreSQL does not start in time")??;
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(this)
    }
}

/// Returns the directory of the newest PostgreSQL's programs.
fn programs() -> Option<PathBuf> {
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let all = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path());
    let newest =
        all.filter(|path| path.join("bin/postgres").exists()).max_by_key(|path| version(path));
    let debian = newest.map(|path| path.join("bin"));
    debian.or_else(|| {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path)
            .find(|path| path.join("postgres").exists() && path.join("initdb").exists())
    })
}

fn installed() -> Result<PathBuf> {
    println!("PostgreSQL is missing; installing it with apt-get");
    let install = ["install", "-qy", "--no-install-recommends", "postgresql"];
    let done =
        Command::new("apt-get").args(install).env("DEBIAN_FRONTEND", "noninteractive").output();
    let advice = "PostgreSQL is missing; install it, or set DATABASE_URL to a server";
    done.ok().and_then(|_| programs()).ok_or_else(|| advice.into())
}

fn directory_owner(directory: &Path) -> Result<u32> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::metadata(directory)?.uid())
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let Some((child, directory)) = &mut self.server else { return };
        // It removes its shared memory then.
        if let Some(id) = child.id() {
            let _ = Command::new("kill").args(["-QUIT", &id.to_string()]).status();
        }
        let asked = Instant::now();
        while matches!(child.try_wait(), Ok(None)) && asked.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = std::fs::remove_dir_all(directory);
    }
}

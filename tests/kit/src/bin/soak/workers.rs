//! The holder processes as their parent sees them: each in a slot that outlives it, with proxies before
//! the servers that are the slot's own.

use crate::holder::HOLDER;
use crate::line::Line;
use crate::stage::Backend;
use kit::Server;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What a process says: its slot, and a line.
type Said = (usize, String);

pub struct Workers {
    pub slots: Vec<Slot>,
    said: Receiver<Said>,
}

pub struct Slot {
    index: usize,
    /// One for each server behind a proxy, in their order.
    pub lines: Vec<Line>,
    start: StartUp,
    voice: Sender<Said>,
    life: Mutex<Option<Life>>,
}

/// What every life of a slot is started with.
struct StartUp {
    seed: u64,
    dir: PathBuf,
    ledger_port: u16,
    backends: Vec<String>,
}

struct Life {
    number: u64,
    child: Child,
    orders: ChildStdin,
}

impl Workers {
    pub fn start(
        size: usize,
        seed: u64,
        dir: &Path,
        backends: &[Backend],
        ledger: &Server,
    ) -> Result<Self, String> {
        let (voice, said) = mpsc::channel();
        let slots = (0..size).map(|index| {
            let mut lines = Vec::new();
            let mut stores = Vec::new();
            for Backend { house, servers, names } in backends {
                let own = servers.lines();
                let ports: Vec<u16> = own.iter().map(Line::port).collect();
                let (ttl, replicas) = (house.ttl.as_millis(), house.replicas);
                let (names, url) = (names.join(","), servers.url(&ports));
                stores.push(format!("{ttl} {replicas} {names} {url}"));
                lines.extend(own);
            }
            let start =
                StartUp { seed, dir: dir.to_owned(), ledger_port: ledger.port(), backends: stores };
            let slot = Slot { index, lines, start, voice: voice.clone(), life: Mutex::new(None) };
            slot.start().map(|()| slot)
        });
        Ok(Self { slots: slots.collect::<Result<_, _>>()?, said })
    }

    /// Orders all, and waits until each has answered by the first word of the order.
    ///
    /// `Ok(false)` if one of them had lost a lease on the way.
    pub fn order(&self, orders: &[String], limit: Duration) -> Result<bool, String> {
        for (slot, order) in self.slots.iter().zip(orders) {
            slot.order(order)?;
        }
        let until = Instant::now() + limit;
        let mut waiting: Vec<usize> = (0..self.slots.len()).collect();
        let mut kept = true;
        while !waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok((slot, line)) = self.said.recv_timeout(left) else {
                return Err(format!(
                    "{:?} of the slots did not answer {:?} in {limit:?}",
                    waiting, orders[0]
                ));
            };
            let word = orders[slot].split(' ').next().unwrap_or_default();
            if line == word || line == "lost" {
                kept &= line == word;
                waiting.retain(|waits| *waits != slot);
            }
        }
        Ok(kept)
    }
}

impl Slot {
    fn life(&self) -> MutexGuard<'_, Option<Life>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the process of now is called.
    pub fn who(&self) -> String {
        who(self.index, self.life().as_ref().map_or(0, |life| life.number))
    }

    /// How all its processes are called.
    pub fn name(&self) -> String {
        format!("p{}", self.index)
    }

    fn start(&self) -> Result<(), String> {
        self.start_life(1)
    }

    fn start_life(&self, number: u64) -> Result<(), String> {
        let who = who(self.index, number);
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let StartUp { seed, dir, ledger_port, backends } = &self.start;
        let seed = seed.wrapping_mul(1000) + self.index as u64 * 100 + number;
        let mut child = Command::new(program)
            .args([HOLDER, &who, &seed.to_string()])
            .arg(dir.join(format!("{who}.part")))
            .arg(ledger_port.to_string())
            .args(backends)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start a holder process: {error}"))?;
        let orders = child.stdin.take().ok_or("a holder process without stdin")?;
        let output = child.stdout.take().ok_or("a holder process without stdout")?;
        let (index, voice) = (self.index, self.voice.clone());
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = voice.send((index, line));
            }
        });
        *self.life() = Some(Life { number, child, orders });
        Ok(())
    }

    /// SIGKILL; returns when the process is no more.
    pub fn kill(&self) {
        if let Some(life) = self.life().as_mut() {
            let _ = life.child.kill();
            let _ = life.child.wait();
        }
    }

    /// A new process in the place of the one that was killed.
    pub fn restart(&self) -> Result<(), String> {
        let number = self.life().as_ref().map_or(0, |life| life.number);
        self.start_life(number + 1)
    }

    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(life) = self.life().as_ref() {
            // It may have ended by itself, which the next order will tell.
            let _ = kill_process(Pid::from_child(&life.child), signal);
        }
    }

    /// Says something that is not answered; it may have ended by itself.
    pub fn send(&self, words: &str) {
        let _ = self.order(words);
    }

    fn order(&self, order: &str) -> Result<(), String> {
        let mut life = self.life();
        let life = life.as_mut().ok_or("a slot without a process")?;
        writeln!(life.orders, "{order}")
            .map_err(|error| format!("a holder process is gone: {error}"))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.kill();
    }
}

fn who(slot: usize, life: u64) -> String {
    format!("p{slot}.{life}")
}

//! Nothing of the tree runs when another process can have the name.
//!
//! In each run a rival waits for the name, the holder meets a fault, and everything that the program has started is gone
//! when the rival has the name. All processes of the tree share one clock with the rival.

use std::env;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kit::fault::{boottime, connect, let_in, undisturbed, wait_for};
use kit::{Mode, Proxy, Server, eventually, millis};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::{LONG, Running, keepers, parts, processes, run};

/// The number of runs of each fault: 200 in the long form.
fn runs() -> usize {
    env::var("LEASEHOLD_RUNS").map_or(10, |runs| runs.parse().expect("a number of runs"))
}

/// How many run at once.
const AT_ONCE: usize = 5;

/// What all processes of a tree have in their environment.
const MARK: &str = "LEASEHOLD_TEST_TREE";

/// The processes below: some sleep, some write the time. Some are in a session of their own, one of them without a parent
/// that would know it.
const GROW: &str = r#"
    write='while read up rest < /proc/uptime; do echo $up >> "$0"; sleep 0.02; done'
    setsid sleep 1000 &
    sleep 1000 &
    (setsid sh -c "$write" "$0/far" &)
    sh -c "$write" "$0/near" &
    wait
"#;
const PROCESSES: usize = 5;

/// The processes of a program that is no good child.
pub struct Tree {
    mark: String,
    folder: TempDir,
    /// Deaf to the signals that ask it to end.
    deaf: bool,
    /// The program that becomes the shell, such as `setpriv` with its options.
    wrapper: &'static [&'static str],
}

impl Tree {
    pub fn new(deaf: bool) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mark = format!("{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir().expect("a folder");
        // For another user.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("a folder");
        Self { mark, folder, deaf, wrapper: &[] }
    }

    fn by(mut self, wrapper: &'static [&'static str]) -> Self {
        self.wrapper = wrapper;
        self
    }

    /// The words after `run` and its options.
    pub fn words(&self, name: &str) -> Vec<&str> {
        // Cut to the lifetime of `self`.
        let name = Box::leak(name.to_owned().into_boxed_str());
        let mut words = vec![&*name, "--"];
        words.extend(self.command());
        words
    }

    /// The program and its arguments.
    pub fn command(&self) -> Vec<&str> {
        let mark: &str = Box::leak(format!("{MARK}={}", self.mark).into_boxed_str());
        let script =
            if self.deaf { "trap '' TERM INT HUP QUIT; eval \"$1\"" } else { "eval \"$1\"" };
        let folder = self.folder.path().to_str().expect("UTF-8");
        let shell = ["env", mark, "sh", "-c", script, folder, GROW];
        [self.wrapper, &shell[..]].concat()
    }

    /// The processes that are there, stopped ones too.
    pub fn alive(&self) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.mark);
        processes().filter(|pid| parts(*pid, "environ").contains(&mark)).collect()
    }

    /// Waits until all its processes run.
    pub async fn grown(&self) {
        eventually(LONG, || self.last().is_some() && self.alive().len() >= PROCESSES).await;
    }

    /// When a process of the tree has last run, by `CLOCK_BOOTTIME`. None until both writers have begun.
    fn last(&self) -> Option<Duration> {
        let last = |name: &str| {
            let text = fs::read_to_string(self.folder.path().join(name)).ok()?;
            // A last line may be cut.
            let (whole, _) = text.rsplit_once('\n')?;
            Some(Duration::from_secs_f64(whole.lines().last()?.parse().ok()?))
        };
        Some(last("far")?.max(last("near")?))
    }

    /// What each of these processes is, for a message.
    fn named(&self, alive: &[u32]) -> Vec<String> {
        alive.iter().map(|pid| format!("{pid}: {}", parts(*pid, "cmdline").join(" "))).collect()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for pid in self.alive() {
            let pid = Pid::from_raw(pid.try_into().expect("a process id")).expect("not zero");
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// A holder, and the ways to break it.
struct Scene {
    proxy: Proxy,
    running: Running,
    cramped: Option<Cramped>,
}

/// What is done to the holder, and what it ends with if it is still there to tell.
#[derive(Clone, Copy)]
struct Fault {
    name: &'static str,
    /// The program that becomes the shell of the tree.
    wrapper: &'static [&'static str],
    is_cramped: bool,
    happens: fn(&Scene),
    code: Option<i32>,
}

impl Fault {
    fn new(name: &'static str, code: Option<i32>, happens: fn(&Scene)) -> Self {
        Self { name, wrapper: &[], is_cramped: false, happens, code }
    }

    /// Lets it happen to many holders, some at once.
    async fn strikes(self) {
        let server = Arc::new(Server::start());
        let done = Arc::new(AtomicUsize::new(0));
        while done.load(Ordering::Relaxed) < runs() {
            let first = done.load(Ordering::Relaxed);
            let server = Arc::clone(&server);
            undisturbed(move || {
                let server = Arc::clone(&server);
                async move {
                    let mut scenes = JoinSet::new();
                    for run in first..(first + AT_ONCE).min(runs()) {
                        scenes.spawn(self.strikes_once(Arc::clone(&server), run));
                    }
                    while let Some(scene) = scenes.join_next().await {
                        if let Err(error) = scene {
                            std::panic::resume_unwind(error.into_panic());
                        }
                    }
                }
            })
            .await;
            done.fetch_add(AT_ONCE, Ordering::Relaxed);
        }
    }

    async fn strikes_once(self, server: Arc<Server>, run_number: usize) {
        let place = format!("{}, run {run_number}", self.name);
        let name = format!("job-{run_number}");
        // What an earlier try has left.
        server.command(&["DEL", &name]);
        let tree = Tree::new(run_number % 2 == 1).by(self.wrapper);
        let proxy = Proxy::start(server.port());
        let mut command = run(&proxy.url(), &tree.words(&name));
        let cramped = self.is_cramped.then(Cramped::new).flatten();
        if let Some(cramped) = &cramped {
            command = cramped.around(command);
        }
        let mut scene = Scene { proxy, running: Running::start(command), cramped };
        tree.grown().await;
        let others = connect(&server.url(), millis(3_000)).await;
        let waiting = wait_for(&others, &name);
        eventually(LONG, || super::waiting(&server, &name) > 0).await;

        let struck = boottime();
        (self.happens)(&scene);
        let (lease, granted) = let_in(waiting).await;
        let left = tree.alive();
        let named = tree.named(&left);
        let last = tree.last().expect("it has run");
        let after = |at: Duration| at.as_secs_f64() - struck.as_secs_f64();
        assert!(left.is_empty(), "{place}: at {:.2} s these run: {named:#?}", after(granted));
        assert!(
            last <= granted,
            "{place}: it runs at {:.2} s, the rival has the name at {:.2} s",
            after(last),
            after(granted)
        );

        // All is judged. Thirty trees and as many searches for them may keep an answer back for longer than an attempt.
        let _ = lease.unlock().await;
        if let Some(code) = self.code {
            // Of one that was stopped.
            let _ = kill_process(scene.running.pid(), Signal::CONT);
            eventually(LONG, || scene.running.has_ended()).await;
            let text = scene.running.text("err");
            let status = scene.running.child.wait().expect("it has ended");
            assert_eq!(status.code(), Some(code), "{place}: {text}");
        }
        let _ = others.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_is_gone_when_the_network_is_a_black_hole() {
    Fault::new("black hole", Some(123), |scene| scene.proxy.set(Mode::BlackHole)).strikes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_is_gone_when_all_connections_are_refused() {
    Fault::new("refused", Some(123), |scene| scene.proxy.set(Mode::Refuse)).strikes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_is_gone_when_the_command_is_stopped() {
    Fault::new("SIGSTOP", Some(123), |scene| scene.running.signal(Signal::STOP)).strikes().await;
}

/// As a terminal and `kill %1` do it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_is_gone_when_the_whole_group_is_stopped() {
    let stop =
        |scene: &Scene| kill_process_group(scene.running.pid(), Signal::STOP).expect("a group");
    Fault::new("SIGSTOP of the group", Some(123), stop).strikes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_is_gone_when_the_command_is_killed() {
    Fault::new("SIGKILL", None, |scene| scene.running.signal(Signal::KILL)).strikes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_is_gone_when_the_whole_group_is_killed() {
    let kill =
        |scene: &Scene| kill_process_group(scene.running.pid(), Signal::KILL).expect("a group");
    Fault::new("SIGKILL of the group", None, kill).strikes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_is_gone_when_the_keeper_is_killed() {
    let kill = |scene: &Scene| {
        let keepers = keepers(&scene.running);
        assert_eq!(keepers.len(), 1, "one keeper");
        for pid in keepers {
            let pid = Pid::from_raw(pid.try_into().expect("a process id")).expect("not zero");
            kill_process(pid, Signal::KILL).expect("the keeper");
        }
    };
    Fault::new("SIGKILL of the keeper", None, kill).strikes().await;
}

/// The child has become another user, which this user cannot always signal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_of_another_user_is_gone_too() {
    if !rustix::process::geteuid().is_root() {
        report("only root can become another user");
        return;
    }
    let mut fault = Fault::new("another user", Some(123), |scene| scene.proxy.set(Mode::BlackHole));
    fault.wrapper = &["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    fault.strikes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_is_gone_when_the_command_is_out_of_memory() {
    if Cramped::new().is_none() {
        report("there are no cgroups of memory that this user may make");
        return;
    }
    let starve = |scene: &Scene| scene.cramped.as_ref().expect("a cgroup").starve(&scene.running);
    let mut fault = Fault::new("out of memory", None, starve);
    fault.is_cramped = true;
    fault.strikes().await;
}

/// Says what was not tested. Not by a macro: what those print is shown for failed tests only.
fn report(why: &str) {
    let _ = writeln!(std::io::stderr(), "not tested: {why}");
}

/// A cgroup of memory with a limit, in which the kernel kills.
struct Cramped {
    folder: PathBuf,
}

impl Cramped {
    /// None where this user may not make one.
    fn new() -> Option<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        // Another namespace has the same numbers of processes.
        let moment = boottime().as_nanos();
        let name = format!("leasehold-{moment}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let below = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let roots = [
            Path::new("/sys/fs/cgroup/memory").to_owned(),
            Path::new("/sys/fs/cgroup").join(below),
        ];
        roots.iter().find_map(|root| {
            let cramped = Self { folder: root.join(&name) };
            fs::create_dir(&cramped.folder).ok()?;
            // Without swap where that can be said.
            cramped.write(&["memory.swappiness", "memory.swap.max"], "0");
            cramped.write(&["memory.limit_in_bytes", "memory.max"], "128M").then_some(cramped)
        })
    }

    /// Writes to the first of these files that is there: the versions of cgroups have other names.
    fn write(&self, files: &[&str], text: &str) -> bool {
        let mut paths = files.iter().map(|file| self.folder.join(file));
        paths.any(|path| path.exists() && fs::write(path, text).is_ok())
    }

    /// The same command in this cgroup.
    fn around(&self, command: Command) -> Command {
        let mut around = self.shell("exec \"$@\"");
        around.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => around.env(name, value),
                None => around.env_remove(name),
            };
        }
        around
    }

    fn shell(&self, script: &str) -> Command {
        let mut shell = crate::program("sh");
        let enter = format!("echo $$ > '{}/cgroup.procs' && {script}", self.folder.display());
        shell.args(["-c", &enter, "sh"]);
        shell
    }

    /// Takes all memory, so that the kernel kills this process first, and the taker after it.
    fn starve(&self, running: &Running) {
        let pid = running.child.id();
        fs::write(format!("/proc/{pid}/oom_score_adj"), "1000").expect("a process");
        let mut taker = self.shell("exec tail /dev/zero");
        let taken: Child = taker.stdin(Stdio::null()).spawn().expect("a shell");
        let _ = taken.wait_with_output();
        let state = super::parent(pid).map(|(_, state)| state);
        assert_eq!(state.as_deref(), Some("Z"), "the kernel has killed another process");
    }
}

impl Drop for Cramped {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

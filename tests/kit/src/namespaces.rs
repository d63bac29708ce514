//! Namespaces of the kernel: a network of a test's own, with a router in its middle that loses what it
//! must lose; and processes to which another clock is shown.
//!
//! They belong to processes, so nothing is left behind, whatever ends a test. `unshare` and `nsenter`
//! (util-linux) and `ip` (iproute2) are needed, and the permission to make namespaces.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::thread;

use super::holder::Holder;
use super::server::{dying_with_parent, spawn};

/// Set by who cannot have namespaces and wants the other tests all the same.
const WITHOUT: &str = "LEASEHOLD_WITHOUT_NAMESPACES";
/// Set in the process that is inside.
const INSIDE: &str = "LEASEHOLD_TEST_NETWORK";

/// The server's address and the holder's, in [`Network`].
pub const SERVER: &str = "10.77.1.1";
const HOLDER: &str = "10.77.2.1";

/// Whether the user has asked for no tests with namespaces; says so then.
pub fn unchecked() -> bool {
    let unchecked = env::var_os(WITHOUT).is_some_and(|value| value == "1");
    if unchecked {
        let test = thread::current().name().unwrap_or_default().to_owned();
        // Not by a macro: what those print is shown for failed tests only.
        let _ = writeln!(io::stderr(), "NOT CHECKED, as {WITHOUT}=1 asks for: {test}");
    }
    unchecked
}

/// The options by which this user may make namespaces: none as root; else as root of a user
/// namespace, where the system allows that.
fn user_options() -> &'static [&'static str] {
    static OPTIONS: LazyLock<&[&str]> = LazyLock::new(|| {
        let tried: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
        let works = |options: &&&[&str]| {
            let mut command = Command::new("unshare");
            command.args(**options).args(["--net", "true"]).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let found = tried.iter().find(works);
        found.unwrap_or_else(|| {
            panic!(
                "these tests make network namespaces, which this user may not: run them as root \
                 (with CAP_SYS_ADMIN and CAP_NET_ADMIN), or allow unprivileged user namespaces; \
                 `unshare` is in util-linux. To do without them, set {WITHOUT}=1"
            )
        })
    });
    &OPTIONS
}

/// A holder in namespaces of its own, by options of `unshare`.
pub fn unshared(options: &[&str]) -> Holder {
    Holder::start_by(&[&["unshare"], user_options(), options].concat())
}

/// Runs the test of this name with a network of its own, in a process of its own.
pub fn with_own_network<F: Future<Output = ()>>(test: &str, story: impl FnOnce() -> F) {
    if unchecked() {
        return;
    }
    if env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        ip(&["link", "set", "lo", "up"]);
        return runtime.block_on(story());
    }
    let mut command = dying_with_parent("unshare");
    command
        .args(user_options())
        .arg("--net")
        .arg(env::current_exe().expect("the path of this test binary"))
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let inside = spawn(command).expect("unshare can be started");
    let output = inside.wait_with_output().expect("its output");
    let text = String::from_utf8_lossy(&output.stdout);
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    // A name that is not right would be no test at all.
    assert!(output.status.success() && text.contains("1 passed"), "{test} failed:\n{text}");
}

fn ip(words: &[&str]) {
    run("ip", words);
}

#[track_caller]
fn run(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().unwrap_or_else(|error| {
        panic!(
            "cannot run {program}, which these tests need ({error}): \
             install iproute2 and util-linux, or run ./tests/run, which does"
        )
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {said}", words.join(" "));
}

/// A network namespace, which lives as long as a process in it.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let mut command = dying_with_parent("unshare");
        // It says when it is inside, and ends with its input.
        command.args(["--net", "sh", "-c", "echo; exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(command).expect("unshare can be started");
        let output = child.stdout.take().expect("it was asked for");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("it says that it is inside");
        Self(child)
    }

    fn path(&self) -> String {
        format!("--net=/proc/{}/ns/net", self.0.id())
    }

    fn run(&self, words: &[&str]) {
        run("nsenter", &[&[self.path().as_str()], words].concat());
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the router does to those it stands between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// What the holder sends is lost.
    Requests,
    /// What the server sends is lost.
    Replies,
    /// Both: connections are half open on both sides.
    Both,
    /// The holder's cable is out: its side sees no carrier, the server's is told of no route.
    Cable,
}

/// A holder's network and the server's, which is the test's own, with a router between them.
pub struct Network {
    router: Namespace,
    holder: Namespace,
}

impl Network {
    /// To be made in [`with_own_network`].
    pub fn start() -> Self {
        let (router, holder) = (Namespace::new(), Namespace::new());
        let (to_router, to_holder) = (router.0.id().to_string(), holder.0.id().to_string());
        ip(&["link", "add", "server", "type", "veth", "peer", "near", "netns", &to_router]);
        ip(&["addr", "add", &format!("{SERVER}/24"), "dev", "server"]);
        ip(&["link", "set", "server", "up"]);
        router.run(&["ip", "addr", "add", "10.77.1.2/24", "dev", "near"]);
        router.run(&["ip", "link", "set", "near", "up"]);
        let cable = ["ip", "link", "add", "cable", "type", "veth", "peer", "far", "netns"];
        router.run(&[&cable[..], &[&to_holder]].concat());
        router.run(&["ip", "addr", "add", "10.77.2.2/24", "dev", "cable"]);
        router.run(&["ip", "link", "set", "cable", "up"]);
        router.run(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
        holder.run(&["ip", "addr", "add", &format!("{HOLDER}/24"), "dev", "far"]);
        holder.run(&["ip", "link", "set", "far", "up"]);
        holder.run(&["ip", "route", "add", "default", "via", "10.77.2.2"]);
        ip(&["route", "add", "10.77.2.0/24", "via", "10.77.1.2"]);
        Self { router, holder }
    }

    /// A holder on the other side of the router.
    pub fn holder(&self) -> Holder {
        Holder::start_by(&["nsenter", &self.holder.path()])
    }

    pub fn cut(&self, cut: Cut) {
        self.change(cut, "add", "down");
    }

    pub fn heal(&self, cut: Cut) {
        self.change(cut, "del", "up");
    }

    fn change(&self, cut: Cut, blackhole: &str, cable: &str) {
        // A router that sends an address into a black hole drops its packets and tells nobody.
        let lose = |address| self.router.run(&["ip", "route", blackhole, "blackhole", address]);
        if matches!(cut, Cut::Requests | Cut::Both) {
            lose(SERVER);
        }
        if matches!(cut, Cut::Replies | Cut::Both) {
            lose(HOLDER);
        }
        if cut == Cut::Cable {
            self.router.run(&["ip", "link", "set", "cable", cable]);
        }
    }
}

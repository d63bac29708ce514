//! `list`, `inspect` and `waiters`.

use kit::{Server, eventually, within};
use leasehold::{Builder, LeaseManager};
use serde_json::Value;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Runs the command to its end.
async fn leasehold(url: &str, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(["--url", url]).args(words).stdin(Stdio::null());
    command.env_remove("LEASEHOLD_URL").env_remove("LEASEHOLD_PASSWORD_FILE");
    let running = tokio::task::spawn_blocking(move || command.output().expect("it is built"));
    within(LONG, running).await.expect("no panic")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn objects(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| line.parse().expect("an object")).collect()
}

fn builder() -> Builder {
    LeaseManager::builder().describe(leasehold::Owner::new("billing").version("2"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_and_inspect_show_what_is_known_of_all_holders() {
    let server = Server::start();
    let url = server.url();
    let leases = builder().connect(&url).await.expect("a manager");
    let other = builder().connect(&url).await.expect("a manager");
    let mut labelled = leases.lock("orders:42").label("import");
    let held = (
        labelled.lock().await.expect("a lease"),
        leases.rw_lock("orders:rw").read().await.expect("a lease"),
        other.rw_lock("orders:rw").read().await.expect("a lease"),
        leases.semaphore("orders:pool", 5).acquire_many(2).await.expect("permits"),
        leases.lock("else").lock().await.expect("a lease"),
    );
    leases.lock("orders:free").lock().await.expect("a lease").unlock().await.expect("a release");
    let mut described = None;
    while described.is_none() {
        described = other.inspect("orders:42").await.expect("an answer").expect("held").metadata;
    }
    let token = held.0.fence().expect("a token");

    let output = leasehold(&url, &["list", "orders:"]).await;
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let table = text(&output.stdout);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 5, "{table}");
    assert!(lines[0].starts_with("NAME"), "{table}");
    let host = leasehold::Owner::new("").host;
    let owner = format!("billing 2 {host}:{}", std::process::id());
    for word in ["orders:42", "lock", &owner, "import", &token.to_string()] {
        assert!(lines[1].contains(word), "{word}: {table}");
    }
    assert!(lines[2].contains("permits: 2"), "{table}");
    assert!(lines[3].contains("read") && lines[4].contains("read"), "{table}");

    let output = leasehold(&url, &["list", "--all", "--json"]).await;
    let mut found = objects(&output);
    found.sort_by_key(|object| object["name"].as_str().map(str::to_owned));
    let names: Vec<_> = found.iter().map(|object| object["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["else", "orders:42", "orders:pool", "orders:rw"]);
    assert_eq!(found[3]["kind"], "read-write");
    assert_eq!(found[3]["holders"].as_array().unwrap().len(), 2);

    let output = leasehold(&url, &["inspect", "orders:42", "--json"]).await;
    assert_eq!(output.status.code(), Some(0));
    let [object] = &objects(&output)[..] else { panic!("one line") };
    let holder = &object["holders"][0];
    assert_eq!((&holder["label"], &holder["fence"]), (&"import".into(), &token.into()));
    assert_eq!(
        (&holder["owner"]["host"], &holder["owner"]["pid"]),
        (&host.into(), &std::process::id().into())
    );
    assert!(holder["left_ms"].as_u64().is_some_and(|left| left <= 30_000), "{object}");
    assert!(holder["age_ms"].as_u64().is_some_and(|age| age < 60_000), "{object}");

    let output = leasehold(&url, &["inspect", "orders:free"]).await;
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
    assert_eq!(text(&output.stderr), "leasehold: orders:free is free\n");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_that_is_no_lock_or_large_does_not_end_a_list() {
    let server = Server::start();
    let leases = builder().connect(&server.url()).await.expect("a manager");
    let held = leases.lock("a:held").lock().await.expect("a lease");
    let field = |number: usize| format!("0f0e0d0c-9abc-4def-8123-456789abcdef:{number}");
    server.command(&["HSET", "a:odd", &field(1), "x"]);
    let mut connection = server.connection();
    for number in 0..10_001 {
        connection.command(&["HSET", "a:large", &field(number), "1"]);
    }
    let output = leasehold(&server.url(), &["list", "a:"]).await;
    let table = text(&output.stdout);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{table}");
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[2].contains("10000 entries"), "{table}");
    let output = leasehold(&server.url(), &["list", "a:", "--json"]).await;
    assert_eq!(output.status.code(), Some(0));
    for object in objects(&output) {
        assert_eq!(object["error"].is_null(), object["name"] == "a:held", "{object}");
    }
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_shows_what_it_found_before_an_error() {
    let server = Server::start();
    let leases = builder().connect(&server.url()).await.expect("a manager");
    let held = (
        leases.lock("a:lock").lock().await.expect("a lease"),
        leases.semaphore("a:pool", 2).acquire().await.expect("a permit"),
    );
    let user = ["ACL", "SETUSER", "lease", "on", ">secret", "~*", "&*", "+@all", "-zrange"];
    assert_eq!(server.command(&user).error(), None);
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(["list", "a:"]).env("LEASEHOLD_URL", server.url_as("lease", "secret", 0));
    let running = tokio::task::spawn_blocking(move || command.output().expect("it is built"));
    let output = within(LONG, running).await.expect("no panic");
    assert_eq!(output.status.code(), Some(125));
    let shown = text(&output.stdout);
    let why = text(&output.stderr);
    assert!(shown.contains("a:lock"), "{shown} {why}");
    assert!(why.contains("a:pool") && why.contains("+zrange"), "{why}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_of_all_names_must_be_asked_for() {
    let url = "redis://127.0.0.1:1";
    let output = leasehold(url, &["list", ""]).await;
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("--all"), "{}", text(&output.stderr));
    for words in [&["list"][..], &["list", "a", "--all"]] {
        let output = leasehold(url, words).await;
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains("--all"), "{}", text(&output.stderr));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_and_label_never_act_on_a_terminal() {
    let server = Server::start();
    let leases = builder().connect(&server.url()).await.expect("a manager");
    let name = "a\x1b[2J\u{9b}31m\n\u{202e}b";
    let mut lock = leases.lock(name).label("x\x1b]0;y\x07");
    let held = lock.lock().await.expect("a lease");
    while leases.inspect(name).await.expect("an answer").expect("held").metadata.is_none() {}
    for words in [
        &["list", "a"][..],
        &["list", "a", "--json"],
        &["inspect", name],
        &["inspect", name, "--json"],
        &["inspect", "a\x1b[2J"],
        &["waiters", name],
    ] {
        let output = leasehold(&server.url(), words).await;
        for shown in [text(&output.stdout), text(&output.stderr)] {
            let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!shown.contains(acts), "{words:?}: {shown:?}");
        }
    }
    let output = leasehold(&server.url(), &["list", "a", "--json"]).await;
    assert_eq!(objects(&output)[0]["name"], name);
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_shown_in_their_order() {
    let server = Server::start();
    let url = server.url();
    let mut managers = Vec::new();
    for _ in 0..3 {
        managers.push(builder().connect(&url).await.expect("a manager"));
    }
    let held = managers[0].fair_lock("printer").lock().await.expect("a lease");
    let output = leasehold(&url, &["waiters", "printer"]).await;
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()));
    assert_eq!(text(&output.stderr), "leasehold: no manager of leasehold waits for printer\n");
    let mut waiting = Vec::new();
    for manager in &managers[1..] {
        let mut lock = manager.fair_lock("printer");
        let before = managers[0].waiters("printer").await.expect("a line").len();
        waiting.push(tokio::spawn(async move { drop(lock.lock().await) }));
        while managers[0].waiters("printer").await.expect("a line").len() == before {}
    }
    let line = managers[0].waiters("printer").await.expect("a line");
    let output = leasehold(&url, &["waiters", "printer", "--json"]).await;
    let found = objects(&output);
    let found: Vec<_> = found.iter().map(|object| object["manager"].as_str().unwrap()).collect();
    assert_eq!(found, line.iter().map(|waiting| &*waiting.manager).collect::<Vec<_>>());
    let table = text(&leasehold(&url, &["waiters", "printer"]).await.stdout);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.contains("billing 2 "), "{table}");
    drop(held);
    eventually(LONG, || waiting.iter().all(|waiting| waiting.is_finished())).await;
}

/// Lists, inspects, and asks for the waiters of what is held at a URL.
async fn look_at(url: &str) -> Output {
    let leases = builder().ttl(Duration::from_secs(6)).connect(url).await.expect("a manager");
    let held = (
        leases.lock("a:{1}").lock().await.expect("a lease"),
        leases.lock("a:{2}").lock().await.expect("a lease"),
        leases.rw_lock("a:{3}").write().await.expect("a lease"),
    );
    let found = objects(&leasehold(url, &["list", "a:", "--json"]).await);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().all(|object| object["holders"][0]["owner"]["service"] == "billing"));
    let output = leasehold(url, &["inspect", "a:{3}"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("write"), "{}", text(&output.stdout));
    assert_eq!(leasehold(url, &["inspect", "a:free"]).await.status.code(), Some(1));
    let waiters = leasehold(url, &["waiters", "a:{1}"]).await;
    drop(held);
    waiters
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_is_looked_at_as_one_server() {
    let cluster = kit::Cluster::start();
    assert_eq!(look_at(&cluster.url()).await.status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_has_no_line_and_all_else() {
    let servers = [Server::start(), Server::start(), Server::start()];
    // The nodes count once they are older than a time to live.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let waiters = look_at(&servers.each_ref().map(Server::url).join(",")).await;
    assert_eq!(waiters.status.code(), Some(125));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_has_no_line_and_all_else() {
    let servers = kit::zookeeper::ZooKeeper::start();
    let waiters = look_at(&servers.url()).await;
    assert_eq!(waiters.status.code(), Some(125));
}

//! `rediss://` against a server with certificates of a private CA, which the platform's list does
//! not have: it is named by the environment, in a process of its own, or to the builder.

use kit::Server;
use kit::server::free_port;
use leasehold::{Builder, Error, ErrorKind, LeaseManager, TlsLibrary};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIBRARIES: [TlsLibrary; 3] =
    [TlsLibrary::Rustls, TlsLibrary::RustlsAwsLc, TlsLibrary::NativeTls];

fn openssl(dir: &Path, arguments: &str) {
    let made = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(dir)
        .output()
        .expect("openssl in PATH: apt-get install openssl, or run ./tests/run");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A CA, and certificates that it has signed: for localhost, and for a client.
fn certificates() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let openssl = |arguments: &str| openssl(dir.path(), arguments);
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.crt -days 2 -subj /CN=leasehold-ca"));
    openssl(&format!(
        "req {key} -keyout server.key -out server.csr -subj /CN=localhost \
         -addext subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1 -addext basicConstraints=CA:FALSE"
    ));
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 2 \
         -copy_extensions copy",
    );
    // One that has expired, and one for another host.
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out expired.crt -days -1 \
         -copy_extensions copy",
    );
    openssl(
        "req -key server.key -new -out other.csr -subj /CN=other \
         -addext subjectAltName=DNS:other.example -addext basicConstraints=CA:FALSE",
    );
    openssl(
        "x509 -req -in other.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out other.crt -days 2 \
         -copy_extensions copy",
    );
    openssl(&format!(
        "req {key} -keyout client.key -out client.csr -subj /CN=client \
         -addext basicConstraints=CA:FALSE"
    ));
    openssl(
        "x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out client.crt -days 2 \
         -copy_extensions copy",
    );
    dir
}

/// The options of a server that speaks TLS on this port.
fn options(certificates: &Path, port: u16, clients: &str) -> Vec<String> {
    let file = |name: &str| certificates.join(name).to_string_lossy().into_owned();
    [
        ("tls-port", port.to_string()),
        ("tls-cert-file", file("server.crt")),
        ("tls-key-file", file("server.key")),
        ("tls-ca-cert-file", file("ca.crt")),
        ("tls-auth-clients", clients.to_owned()),
    ]
    .into_iter()
    .flat_map(|(name, value)| [format!("--{name}"), value])
    .collect()
}

/// A server that speaks TLS on the port returned; `clients`: whether they must show a certificate.
fn server_for(certificates: &Path, clients: &str, more: &[&str]) -> (Server, u16) {
    let port = free_port();
    let options = options(certificates, port, clients);
    let options: Vec<&str> =
        options.iter().map(String::as_str).chain(more.iter().copied()).collect();
    (Server::start_with(&options), port)
}

fn server(certificates: &Path) -> (Server, u16) {
    server_for(certificates, "no", &[])
}

/// Runs the test `story` once more, in a process that trusts the certificates in `trust`.
fn run_story(story: &str, trust: &Path, port: u16) {
    run_story_with(story, trust, port, &[]);
}

fn run_story_with(story: &str, trust: &Path, port: u16, more: &[(&str, &Path)]) {
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", story])
        .envs(more.iter().copied())
        .env("SSL_CERT_FILE", trust)
        .env(URL, format!("rediss://localhost:{port}"))
        .output()
        .expect("it runs");
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
}

/// Set in the process that runs the story.
const URL: &str = "LEASEHOLD_TLS_URL";

#[tokio::test]
async fn server_whose_ca_is_trusted_is_locked_on() {
    let Ok(url) = std::env::var(URL) else {
        let certificates = certificates();
        let (server, port) = server(certificates.path());
        let trust = certificates.path().join("ca.crt");
        run_story("tls::server_whose_ca_is_trusted_is_locked_on", &trust, port);
        assert_eq!(server.command(&["EXISTS", "redisson_lock_token:{tls}"]).int(), 1);
        return;
    };
    for builder in in_each_library(LeaseManager::builder) {
        let leases = builder.connect(&url).await.expect("a manager");
        let lease = leases.lock("tls").lock().await.expect("a lease");
        assert_eq!(leases.inspect("tls").await.expect("an answer").expect("held").hold_count, 1);
        lease.unlock().await.expect("released");
        leases.close().await.expect("closed");
    }
}

/// Returns a builder for each library, and one for that which is used by default.
fn in_each_library(builder: impl Fn() -> Builder) -> Vec<Builder> {
    let chosen = LIBRARIES.map(|library| builder().tls_library(library));
    chosen.into_iter().chain([builder()]).collect()
}

#[tokio::test]
async fn ca_that_is_given_replaces_those_of_the_platform() {
    const OTHER: &str = "LEASEHOLD_TLS_CA";
    let Ok(url) = std::env::var(URL) else {
        let (theirs, others) = (certificates(), certificates());
        let (_server, port) = server(theirs.path());
        let (trust, other) = (theirs.path().join("ca.crt"), others.path().join("ca.crt"));
        let story = "tls::ca_that_is_given_replaces_those_of_the_platform";
        run_story_with(story, &trust, port, &[(OTHER, &other)]);
        return;
    };
    let other = std::env::var(OTHER).expect("a CA");
    let given = || LeaseManager::builder().tls_ca(fs::read(&other).expect("a CA"));
    let read = || LeaseManager::builder().tls_ca_file(&other);
    for builder in in_each_library(given).into_iter().chain(in_each_library(read)) {
        is_denied(&builder.connect(&url).await.expect_err("another CA"), "is not trusted");
    }
    // As the platform has it.
    LeaseManager::connect(&url).await.expect("a manager").close().await.expect("closed");
}

#[tokio::test]
async fn server_whose_ca_is_not_trusted_is_refused() {
    let Ok(url) = std::env::var(URL) else {
        let (theirs, others) = (certificates(), certificates());
        let (server, port) = server(theirs.path());
        let trust = others.path().join("ca.crt");
        run_story("tls::server_whose_ca_is_not_trusted_is_refused", &trust, port);
        assert!(server.command(&["KEYS", "*"]).list().is_empty());
        return;
    };
    for builder in in_each_library(LeaseManager::builder) {
        let start = Instant::now();
        let error = builder.connect(&url).await.expect_err("not trusted");
        is_denied(&error, "is not trusted; give the CA that has signed it to tls_ca");
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}

#[track_caller]
fn is_denied(error: &Error, says: &str) {
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains(says), "{error:?}");
    assert!(!error.is_retryable());
}

/// Trusts the private CA.
fn trusting(certificates: &Path) -> Builder {
    LeaseManager::builder().tls_ca(fs::read(certificates.join("ca.crt")).expect("a CA"))
}

/// Trusts the private CA, and shows its certificate.
fn known(certificates: &Path) -> Builder {
    let file = |name: &str| fs::read(certificates.join(name)).expect("a file");
    trusting(certificates).tls_identity(file("client.crt"), file("client.key"))
}

async fn locks(builder: Builder, url: &str) {
    let leases = builder.connect(url).await.expect("a manager");
    let lease = leases.lock("tls").lock().await.expect("a lease");
    // A second one waits for a wake-up, which comes by a connection of its own.
    let waiter = tokio::spawn({
        let mut handle = leases.lock("tls");
        async move { handle.lock().await }
    });
    lease.unlock().await.expect("released");
    waiter.await.expect("no panic").expect("a lease").unlock().await.expect("released");
    leases.close().await.expect("closed");
}

#[tokio::test]
async fn builder_takes_a_private_ca_and_a_client_certificate() {
    let certificates = certificates();
    let (_server, port) = server_for(certificates.path(), "yes", &[]);
    let url = format!("rediss://localhost:{port}");
    for library in LIBRARIES {
        let known = || known(certificates.path()).tls_library(library);
        locks(known(), &url).await;
        // By the address, which the certificate names too.
        locks(known(), &format!("rediss://127.0.0.1:{port}")).await;
        let start = Instant::now();
        for (stranger, says) in
            [(trusting(certificates.path()), "tls_identity"), (LeaseManager::builder(), "tls_ca")]
        {
            let stranger = stranger.tls_library(library);
            let error = stranger.connect(&url).await.expect_err("a stranger");
            // OpenSSL ends the handshake before the server refuses, and the first request may fail before that is read.
            let is_closed = library == TlsLibrary::NativeTls
                && error.to_string().contains("closed the connection before it answered");
            match is_closed && says == "tls_identity" {
                true => assert!(error.to_string().contains(says), "{error:?}"),
                false => is_denied(&error, says),
            }
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{library:?}: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn server_is_reached_by_its_ipv6_address() {
    let certificates = certificates();
    // On a machine without IPv6 it does not start: turn it on, at least for the loopback interface.
    let (server, port) = server_for(certificates.path(), "yes", &["--bind", "127.0.0.1", "::1"]);
    let url = format!("rediss://[::1]:{port}");
    for builder in in_each_library(|| known(certificates.path())) {
        locks(builder, &url).await;
    }
    present(&server, &certificates.path().join("other.crt"));
    for library in LIBRARIES {
        let builder = known(certificates.path()).tls_library(library);
        let error = builder.connect(&url).await.expect_err("another name");
        is_denied(&error, "is for other host names");
        assert!(error.to_string().contains(&url["rediss://".len()..]), "{error}");
    }
}

/// Gives the server another certificate, for the connections that follow.
fn present(server: &Server, certificate: &Path) {
    let file = certificate.to_string_lossy();
    assert_eq!(server.command(&["CONFIG", "SET", "tls-cert-file", &file]).error(), None);
}

#[tokio::test]
async fn certificate_that_does_not_fit_is_named_with_what_to_do() {
    let certificates = certificates();
    let (server, port) = server(certificates.path());
    let url = format!("rediss://localhost:{port}");
    for (file, says) in [
        ("expired.crt", "has expired; renew it"),
        ("other.crt", "is for other host names; connect by a name that it has"),
    ] {
        present(&server, &certificates.path().join(file));
        for library in LIBRARIES {
            let builder = trusting(certificates.path()).tls_library(library);
            let error = builder.connect(&url).await.expect_err(file);
            is_denied(&error, says);
            assert!(error.to_string().contains(&format!("localhost:{port}")), "{error}");
        }
    }
    present(&server, &certificates.path().join("server.crt"));
    // As one replaces it: both are given.
    let other = self::certificates();
    let both = ["ca.crt"].iter().flat_map(|file| {
        [&other, &certificates].map(|dir| fs::read(dir.path().join(file)).expect("a CA"))
    });
    let both = both.collect::<Vec<_>>().concat();
    for builder in in_each_library(|| LeaseManager::builder().tls_ca(both.clone())) {
        locks(builder, &url).await;
    }
}

#[tokio::test]
async fn url_without_tls_where_it_is_wanted_is_named_and_the_reverse() {
    let certificates = certificates();
    let (server, port) = server(certificates.path());
    for (url, says) in [
        (format!("redis://localhost:{port}"), "rediss://"),
        (format!("rediss://localhost:{}", server.port()), "does it speak TLS on this port?"),
    ] {
        let builders = match url.starts_with("rediss") {
            true => in_each_library(|| trusting(certificates.path())),
            false => vec![LeaseManager::builder()],
        };
        for builder in builders {
            let error = builder.ttl(Duration::from_secs(3)).connect(&url).await.expect_err(says);
            println!("{url}: {error}");
            assert!(error.to_string().contains(says), "{url}: {error:?}");
        }
    }
}

const LONG: Duration = Duration::from_secs(60);

/// A manager that runs goes on trying, because the operator can put it right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_that_is_replaced_is_denied_until_it_is_right() {
    let certificates = certificates();
    let stories = LIBRARIES.map(|library| certificate_is_replaced(certificates.path(), library));
    let [ring, aws_lc, native] = stories;
    tokio::join!(ring, aws_lc, native);
}

async fn certificate_is_replaced(certificates: &Path, library: TlsLibrary) {
    let (server, port) = server(certificates);
    let url = format!("rediss://localhost:{port}");
    let builder = trusting(certificates).ttl(Duration::from_secs(10)).tls_library(library);
    let leases = builder.connect(&url).await.expect("a manager");
    leases.lock("tls").lock().await.expect("a lease").unlock().await.expect("released");
    present(&server, &certificates.join("expired.crt"));
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let error = kit::within(LONG, async {
        loop {
            match leases.lock("tls").try_lock().await {
                // The request was on its way when the connection was closed.
                Err(error) if error.kind() == ErrorKind::Unavailable => {}
                other => return other.expect_err("not trusted"),
            }
        }
    });
    is_denied(&error.await, "has expired; renew it");
    present(&server, &certificates.join("server.crt"));
    kit::within(LONG, async {
        while let Err(error) = leases.lock("tls").lock().await {
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        }
    })
    .await;
    leases.close().await.expect("closed");
}

#[tokio::test]
async fn certificates_count_for_every_node_of_a_cluster() {
    let certificates = certificates();
    let bus = free_port().to_string();
    let more = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--tls-cluster", "yes"];
    let (server, port) = server_for(certificates.path(), "yes", &more);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    kit::eventually(Duration::from_secs(20), || {
        server.command(&["CLUSTER", "INFO"]).text().contains("cluster_state:ok")
    })
    .await;
    let url = format!("rediss-cluster://127.0.0.1:{port}");
    for builder in in_each_library(|| known(certificates.path())) {
        locks(builder, &url).await;
    }
    locks_over_cuts(certificates.path(), &url, &server).await;
}

#[tokio::test]
async fn certificates_count_for_sentinels_and_servers() {
    let certificates = certificates();
    let (server, port) = server_for(certificates.path(), "yes", &["--tls-replication", "yes"]);
    let sentinel_port = free_port();
    let words = options(certificates.path(), sentinel_port, "yes");
    let lines: Vec<String> =
        words.chunks(2).map(|pair| format!("{} {}", &pair[0][2..], pair[1])).collect();
    let config = format!(
        "{}\ntls-replication yes\nsentinel monitor tls 127.0.0.1 {port} 1\n",
        lines.join("\n")
    );
    let _sentinel = Server::start_sentinel(&config);
    let url = format!("rediss-sentinel://127.0.0.1:{sentinel_port}?sentinelServiceName=tls");
    for builder in in_each_library(|| known(certificates.path())) {
        locks(builder, &url).await;
    }
    locks_over_cuts(certificates.path(), &url, &server).await;
}

/// OpenSSL compares only keys of one algorithm.
fn key_of_another_algorithm() -> Vec<u8> {
    let options = ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"];
    let made = Command::new("openssl").args(options).output().expect("openssl");
    assert!(made.status.success(), "{made:?}");
    made.stdout
}

const HOLLOW: &str = "-----BEGIN CERTIFICATE-----\naHVudGVy\n-----END CERTIFICATE-----\n";
const HOLLOW_KEY: &str = "-----BEGIN PRIVATE KEY-----\naHVudGVy\n-----END PRIVATE KEY-----\n";

#[tokio::test]
async fn certificates_without_sense_are_refused_and_not_shown() {
    let (certificates, others) = (certificates(), certificates());
    let file = |dir: &TempDir, name: &str| fs::read(dir.path().join(name)).expect("a file");
    let tls = "rediss://localhost:1";
    let chain = file(&certificates, "client.crt");
    let table = [
        (LeaseManager::builder().tls_ca("nonsense"), tls, "no certificate"),
        (LeaseManager::builder().tls_ca(HOLLOW), tls, "a certificate that cannot be read"),
        (known(certificates.path()), "redis://localhost:1", "write rediss://"),
        (LeaseManager::builder().tls_identity(chain.clone(), "nonsense"), tls, "no private key"),
        (LeaseManager::builder().tls_identity(chain.clone(), HOLLOW_KEY), tls, "cannot be used"),
        (
            LeaseManager::builder().tls_identity(chain.clone(), file(&others, "client.key")),
            tls,
            "do not fit",
        ),
        (
            LeaseManager::builder().tls_identity(chain, key_of_another_algorithm()),
            tls,
            "do not fit",
        ),
    ];
    for (builder, url, hint) in table {
        for library in LIBRARIES {
            let error = builder.clone().tls_library(library).connect(url).await.expect_err(hint);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{library:?}: {error:?}");
            assert!(error.to_string().contains(hint), "{library:?}: {error}");
        }
    }
    let plain = LeaseManager::builder().tls_library(TlsLibrary::NativeTls);
    let error = plain.connect("redis://localhost:1").await.expect_err("no TLS there");
    assert!(error.to_string().contains("tls_library is for TLS"), "{error}");
    let error = known(certificates.path()).connect("memory:").await.expect_err("no TLS there");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    let key = String::from_utf8(file(&certificates, "client.key")).expect("PEM");
    let shown = format!("{:?}", known(certificates.path()));
    assert!(key.lines().all(|line| !shown.contains(line)), "{shown}");
}

/// Keys are written in several forms.
#[tokio::test]
async fn key_in_another_form_works_or_is_refused_with_what_to_do() {
    let certificates = certificates();
    let dir = certificates.path();
    let (_server, port) = server_for(dir, "yes", &[]);
    let url = format!("rediss://localhost:{port}");
    openssl(dir, "pkey -in client.key -traditional -out sec1.key");
    openssl(
        dir,
        "req -newkey rsa:2048 -nodes -keyout rsa.key -out rsa.csr -subj /CN=client \
         -addext basicConstraints=CA:FALSE",
    );
    openssl(
        dir,
        "x509 -req -in rsa.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out rsa.crt -days 2 -copy_extensions copy",
    );
    openssl(dir, "rsa -in rsa.key -traditional -out pkcs1.key");
    openssl(dir, "pkcs8 -topk8 -in client.key -out encrypted.key -passout pass:hunter2");
    openssl(dir, "pkcs8 -topk8 -nocrypt -in sec1.key -out converted.key");
    let rustls = [TlsLibrary::Rustls, TlsLibrary::RustlsAwsLc];
    let all = &LIBRARIES[..];
    for (chain, key, good, says) in [
        (
            "client.crt",
            "sec1.key",
            &rustls[..],
            "a private key in SEC 1; native-tls expects PKCS#8",
        ),
        ("rsa.crt", "pkcs1.key", &rustls[..], "a private key in PKCS#1; native-tls expects PKCS#8"),
        (
            "client.crt",
            "encrypted.key",
            &[],
            "a private key with a passphrase; expected one without",
        ),
        ("rsa.crt", "rsa.key", all, ""),
        ("client.crt", "converted.key", all, ""),
    ] {
        let file = |name: &str| fs::read(dir.join(name)).expect("a file");
        for library in LIBRARIES {
            let builder = trusting(dir).tls_library(library).tls_identity(file(chain), file(key));
            if good.contains(&library) {
                locks(builder, &url).await;
                continue;
            }
            let error = builder.connect(&url).await.expect_err(key);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{key}, {library:?}: {error}");
            let text = error.to_string();
            assert!(
                text.contains(says) && text.contains("openssl pkcs8 -topk8 -nocrypt"),
                "{text}"
            );
        }
    }
}

/// Returns what a client says first. It gets no answer.
async fn hello(builder: Builder) -> Vec<u8> {
    use tokio::io::AsyncReadExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("rediss://localhost:{}", listener.local_addr().expect("an address").port());
    let client = tokio::spawn(async move { builder.connect(&url).await });
    let (mut stream, _) = listener.accept().await.expect("a client");
    let mut hello = vec![0; 4096];
    let length = stream.read(&mut hello).await.expect("a hello");
    client.abort();
    hello.truncate(length);
    hello
}

/// fred itself would take native-tls here, and would panic without it, because rustls has two providers.
#[tokio::test]
async fn library_is_the_first_of_the_order_unless_one_is_chosen() {
    // How the lists of key exchanges and ciphers differ: a fingerprint of the hello without its random parts.
    let length = async |builder: Builder| {
        let hello = hello(builder).await;
        // Behind the version, the random bytes and the session: the ciphers.
        let session = 43 + usize::from(hello[43]);
        let ciphers = usize::from(u16::from_be_bytes([hello[session + 1], hello[session + 2]]));
        let post_quantum = hello.windows(4).any(|bytes| bytes == [0, 24, 0x11, 0xec]);
        (ciphers, post_quantum)
    };
    let builder = LeaseManager::builder;
    let [ring, aws_lc, native] = LIBRARIES.map(|library| builder().tls_library(library));
    let (ring, aws_lc) = (length(ring).await, length(aws_lc).await);
    let (native, default) = (length(native).await, length(builder()).await);
    println!("ring {ring:?}, aws_lc {aws_lc:?}, native {native:?}, default {default:?}");
    assert_eq!(default, ring);
    assert_ne!(ring, aws_lc);
    assert!(native != ring && native != aws_lc);
}

/// Reads the certificates again, over cuts of all connections of a server.
async fn locks_over_cuts(certificates: &Path, url: &str, server: &Server) {
    for library in LIBRARIES {
        let leases = reading(certificates, library).connect(url).await.expect("a manager");
        for _ in 0..3 {
            locked(&leases, "tls").await;
            cut(server);
        }
        locked(&leases, "tls").await;
        leases.close().await.expect("closed");
    }
}

/// Copies certificates to where a manager reads them, as a secret store does.
fn install(from: &Path, to: &Path) {
    for name in ["ca.crt", "client.crt", "client.key"] {
        let next = to.join("next");
        fs::copy(from.join(name), &next).expect("copied");
        fs::rename(next, to.join(name)).expect("replaced");
    }
}

/// Reads the certificates in a directory.
fn reading(dir: &Path, library: TlsLibrary) -> Builder {
    let builder = LeaseManager::builder().tls_library(library).tls_ca_file(dir.join("ca.crt"));
    builder.tls_identity_files(dir.join("client.crt"), dir.join("client.key"))
}

/// Has a server trust and present other certificates, and cuts its connections.
fn move_to(server: &Server, certificates: &Path) {
    let file = |name: &str| certificates.join(name).to_string_lossy().into_owned();
    let (ca, chain, key) = (file("ca.crt"), file("server.crt"), file("server.key"));
    let set =
        ["CONFIG", "SET", "tls-ca-cert-file", &ca, "tls-cert-file", &chain, "tls-key-file", &key];
    assert_eq!(server.command(&set).error(), None);
    cut(server);
}

fn cut(server: &Server) {
    for kind in ["normal", "pubsub"] {
        server.command(&["CLIENT", "KILL", "TYPE", kind]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_change_are_read_at_the_next_connect() {
    let (old, new) = (certificates(), certificates());
    let stories = LIBRARIES.map(|library| files_change(old.path(), new.path(), library));
    let [ring, aws_lc, native] = stories;
    tokio::join!(ring, aws_lc, native);
}

async fn files_change(old: &Path, new: &Path, library: TlsLibrary) {
    let (server, port) = server_for(old, "yes", &[]);
    let url = format!("rediss://localhost:{port}");
    let dir = tempfile::tempdir().expect("a directory");
    install(old, dir.path());
    let builder = reading(dir.path(), library).ttl(Duration::from_secs(6));
    let leases = builder.connect(&url).await.expect("a manager");
    let kept = leases.lock("kept").lock().await.expect("a lease");
    // While nothing has changed, a cut connection is made again.
    for _ in 0..3 {
        cut(&server);
        locked(&leases, "tls").await;
    }
    // Nothing that the old files have is of use from here on.
    install(new, dir.path());
    move_to(&server, new);
    locked(&leases, "tls").await;
    // Also the connection for wake-ups.
    let lease = leases.lock("tls").lock().await.expect("a lease");
    let other = reading(dir.path(), library).connect(&url).await.expect("a manager");
    let waiter = tokio::spawn({
        let mut handle = leases.lock("tls");
        async move { handle.lock().await }
    });
    lease.unlock().await.expect("released");
    waiter.await.expect("no panic").expect("a lease").unlock().await.expect("released");
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert!(kept.check().is_ok(), "{library:?}: {:?}", kept.check());
    kept.unlock().await.expect("released");
    for leases in [leases, other] {
        leases.close().await.expect("closed");
    }
}

/// Locks, however often a request is on its way when a connection is cut.
async fn locked(leases: &LeaseManager, name: &str) {
    kit::within(LONG, async {
        loop {
            match leases.lock(name).lock().await {
                Ok(lease) => return lease.unlock().await.expect("released"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_that_is_missing_or_broken_is_named_and_costs_no_lease() {
    let certificates = certificates();
    let stories = LIBRARIES.map(|library| files_break(certificates.path(), library));
    let [ring, aws_lc, native] = stories;
    tokio::join!(ring, aws_lc, native);
}

async fn files_break(certificates: &Path, library: TlsLibrary) {
    let (server, port) = server_for(certificates, "yes", &[]);
    let url = format!("rediss://localhost:{port}");
    let dir = tempfile::tempdir().expect("a directory");
    let missing = reading(dir.path(), library).connect(&url).await.expect_err("no files");
    // It has never been there, so most likely the path is wrong.
    assert_eq!(missing.kind(), ErrorKind::Invalid, "{missing:?}");
    let named =
        format!("the file {} of tls_ca_file cannot be read", dir.path().join("ca.crt").display());
    assert!(missing.to_string().contains(&named), "{missing}");

    install(certificates, dir.path());
    let builder = reading(dir.path(), library).ttl(Duration::from_secs(6));
    let leases = builder.connect(&url).await.expect("a manager");
    let kept = leases.lock("kept").lock().await.expect("a lease");
    let key = dir.path().join("client.key");
    // With a connection that works nobody needs the files, for longer than a lease lives.
    fs::remove_file(&key).expect("removed");
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert!(kept.check().is_ok());
    for (content, says) in [
        (None, "cannot be read"),
        (Some(""), "has no private key"),
        (Some(HOLLOW_KEY), "cannot be used"),
    ] {
        if let Some(content) = content {
            fs::write(&key, content).expect("written");
        }
        cut(&server);
        let error = kit::within(LONG, async {
            loop {
                match leases.lock("tls").try_lock().await {
                    Err(error) if !error.to_string().contains("no certificates for TLS") => {}
                    other => return other.expect_err("no key"),
                }
            }
        });
        let error = error.await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        let named = format!("the file {} of tls_identity_files", key.display());
        assert!(error.to_string().contains(&named), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.to_string().contains("aHVudGVy"), "{error}");
        install(certificates, dir.path());
        locked(&leases, "tls").await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(kept.check().is_ok(), "{library:?}: {:?}", kept.check());
    leases.close().await.expect("closed");
}

/// Opening it would wait for a writer.
#[tokio::test]
async fn file_that_is_a_pipe_is_refused_and_one_in_its_place_read() {
    let certificates = certificates();
    let (_server, port) = server(certificates.path());
    let pipe = certificates.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let builder = LeaseManager::builder().tls_ca_file(&pipe).ttl(Duration::from_secs(6));
    let url = format!("rediss://localhost:{port}");
    let connecting = builder.clone().connect(&url);
    let error =
        kit::within(Duration::from_secs(20), connecting).await.expect_err("nothing to read");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("it is no regular file"), "{error}");
    fs::rename(certificates.path().join("ca.crt"), &pipe).expect("in its place");
    locks(builder, &url).await;
}

/// The connection is lost, and with files on disk the next one is made by a new client: a call meanwhile must see that the
/// old one has ended, and not wait for an answer by it.
#[tokio::test]
async fn call_after_a_cut_waits_for_the_next_connection_alone() {
    let certificates = certificates();
    let (server, port) = server_for(certificates.path(), "yes", &[]);
    let url = format!("rediss://localhost:{port}");
    for library in LIBRARIES {
        // An attempt takes 3 s at most.
        let builder = reading(certificates.path(), library).ttl(Duration::from_secs(30));
        let leases = builder.connect(&url).await.expect("a manager");
        locked(&leases, "tls").await;
        let mut longest = Duration::ZERO;
        for _ in 0..10 {
            cut(&server);
            let start = Instant::now();
            locked(&leases, "tls").await;
            longest = longest.max(start.elapsed());
        }
        println!("{library:?}: {longest:?} after a cut");
        assert!(longest < Duration::from_millis(2_500), "{library:?}: {longest:?}");
        leases.close().await.expect("closed");
    }
}

/// The server answers, and what fails is TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_of_tls_is_logged_as_one() {
    let trace = kit::trace::Trace::of_all_threads();
    let certificates = certificates();
    let (server, port) = server_for(certificates.path(), "yes", &[]);
    let url = format!("rediss://localhost:{port}");
    let place = format!("localhost:{port}");
    let dir = tempfile::tempdir().expect("a directory");
    install(certificates.path(), dir.path());
    let builder = || LeaseManager::builder().ttl(Duration::from_secs(3));
    let read = reading(dir.path(), TlsLibrary::Rustls).ttl(Duration::from_secs(3));
    let given = builder().tls_ca(fs::read(dir.path().join("ca.crt")).expect("a CA")).tls_identity(
        fs::read(dir.path().join("client.crt")).expect("a chain"),
        fs::read(dir.path().join("client.key")).expect("a key"),
    );
    for (builder, cause) in [(given, "has expired"), (read, "cannot be read")] {
        let leases = builder.connect(&url).await.expect("a manager");
        match cause {
            "has expired" => present(&server, &certificates.path().join("expired.crt")),
            _ => fs::remove_file(dir.path().join("ca.crt")).expect("removed"),
        }
        cut(&server);
        let lines = || {
            trace.matching(|event| {
                event.target == "leasehold::store::connect::outage"
                    && event.field("server") == place
                    && event.message() != "the server answers again"
            })
        };
        let of_cause = |line: &kit::trace::Traced| line.field("cause").contains(cause);
        kit::eventually(LONG, || lines().iter().any(of_cause)).await;
        for line in lines().iter().filter(|line| of_cause(line)) {
            assert_eq!(line.message(), "there is no TLS connection to the server");
        }
        present(&server, &certificates.path().join("server.crt"));
        install(certificates.path(), dir.path());
        // Until it connects again, the last failure is the answer, whatever its kind.
        let locked = async {
            while leases.lock("tls").lock().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        kit::within(LONG, locked).await;
        leases.close().await.expect("closed");
    }
}

//! `rediss://` against a server with certificates of a private CA, which the platform's list does
//! not have: it is named by the environment, in a process of its own, or to the builder.

use kit::Server;
use kit::server::free_port;
use leasehold::{Builder, Error, ErrorKind, LeaseManager};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A CA, and certificates that it has signed: for localhost, and for a client.
fn certificates() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let openssl = |arguments: &str| {
        let made = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(dir.path())
            .output()
            .expect("openssl in PATH: apt-get install openssl, or run ./tests/run");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.crt -days 2 -subj /CN=leasehold-ca"));
    openssl(&format!(
        "req {key} -keyout server.key -out server.csr -subj /CN=localhost \
         -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=CA:FALSE"
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
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", story])
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
    let leases = LeaseManager::connect(&url).await.expect("a manager");
    let lease = leases.lock("tls").lock().await.expect("a lease");
    assert_eq!(leases.inspect("tls").await.expect("an answer").expect("held").hold_count, 1);
    lease.unlock().await.expect("released");
    leases.close().await.expect("closed");
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
    let start = Instant::now();
    let error = LeaseManager::connect(&url).await.expect_err("not trusted");
    is_denied(&error, "is not trusted; give the CA that has signed it to tls_ca");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
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
    locks(known(certificates.path()), &url).await;
    // By the address, which the certificate names too.
    locks(known(certificates.path()), &format!("rediss://127.0.0.1:{port}")).await;
    let start = Instant::now();
    for (stranger, says) in
        [(trusting(certificates.path()), "tls_identity"), (LeaseManager::builder(), "tls_ca")]
    {
        is_denied(&stranger.connect(&url).await.expect_err("a stranger"), says);
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
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
        let error = trusting(certificates.path()).connect(&url).await.expect_err(file);
        is_denied(&error, says);
        assert!(error.to_string().contains(&format!("localhost:{port}")), "{error}");
    }
    present(&server, &certificates.path().join("server.crt"));
    // As one replaces it: both are given.
    let other = self::certificates();
    let both = ["ca.crt"].iter().flat_map(|file| {
        [&other, &certificates].map(|dir| fs::read(dir.path().join(file)).expect("a CA"))
    });
    locks(LeaseManager::builder().tls_ca(both.collect::<Vec<_>>().concat()), &url).await;
}

#[tokio::test]
async fn url_without_tls_where_it_is_wanted_is_named_and_the_reverse() {
    let certificates = certificates();
    let (server, port) = server(certificates.path());
    for (url, says) in [
        (format!("redis://localhost:{port}"), "rediss://"),
        (format!("rediss://localhost:{}", server.port()), "does it speak TLS on this port?"),
    ] {
        let builder = match url.starts_with("rediss") {
            true => trusting(certificates.path()),
            false => LeaseManager::builder(),
        };
        let error = builder.ttl(Duration::from_secs(3)).connect(&url).await.expect_err(says);
        println!("{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error:?}");
    }
}

/// A manager that runs goes on trying, because the operator can put it right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_that_is_replaced_is_denied_until_it_is_right() {
    const LONG: Duration = Duration::from_secs(60);
    let certificates = certificates();
    let (server, port) = server(certificates.path());
    let url = format!("rediss://localhost:{port}");
    let builder = trusting(certificates.path()).ttl(Duration::from_secs(10));
    let leases = builder.connect(&url).await.expect("a manager");
    leases.lock("tls").lock().await.expect("a lease").unlock().await.expect("released");
    present(&server, &certificates.path().join("expired.crt"));
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
    present(&server, &certificates.path().join("server.crt"));
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
    locks(known(certificates.path()), &format!("rediss-cluster://127.0.0.1:{port}")).await;
}

#[tokio::test]
async fn certificates_count_for_sentinels_and_servers() {
    let certificates = certificates();
    let (_server, port) = server_for(certificates.path(), "yes", &["--tls-replication", "yes"]);
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
    locks(known(certificates.path()), &url).await;
}

#[tokio::test]
async fn certificates_without_sense_are_refused_and_not_shown() {
    let (certificates, others) = (certificates(), certificates());
    let file = |dir: &TempDir, name: &str| fs::read(dir.path().join(name)).expect("a file");
    let tls = "rediss://localhost:1";
    let chain = file(&certificates, "client.crt");
    let table = [
        (LeaseManager::builder().tls_ca("nonsense"), tls, "no certificate"),
        (known(certificates.path()), "redis://localhost:1", "write rediss://"),
        (LeaseManager::builder().tls_identity(chain.clone(), "nonsense"), tls, "no private key"),
        (
            LeaseManager::builder().tls_identity(chain, file(&others, "client.key")),
            tls,
            "do not fit",
        ),
    ];
    for (builder, url, hint) in table {
        let error = builder.connect(url).await.expect_err(hint);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert!(error.to_string().contains(hint), "{error}");
    }
    let error = known(certificates.path()).connect("memory:").await.expect_err("no TLS there");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    let key = String::from_utf8(file(&certificates, "client.key")).expect("PEM");
    let shown = format!("{:?}", known(certificates.path()));
    assert!(key.lines().all(|line| !shown.contains(line)), "{shown}");
}

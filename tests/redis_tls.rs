//! `rediss://` against a server with certificates of a private CA, which the platform's list does
//! not have: each story runs in a process of its own, whose environment names the CA.
#![cfg(feature = "rustls")]

mod common;

use common::Server;
use leasehold::{ErrorKind, LeaseManager};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A CA, and a certificate for localhost that it has signed.
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
         -addext subjectAltName=DNS:localhost -addext basicConstraints=CA:FALSE"
    ));
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 2 \
         -copy_extensions copy",
    );
    dir
}

/// A server that speaks TLS on the port returned.
fn server(certificates: &Path) -> (Server, u16) {
    let file = |name: &str| certificates.join(name).to_string_lossy().into_owned();
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let server = Server::start_with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &file("server.crt"),
        "--tls-key-file",
        &file("server.key"),
        "--tls-ca-cert-file",
        &file("ca.crt"),
        "--tls-auth-clients",
        "no",
    ]);
    (server, port)
}

/// Runs the test `story` once more, in a process that trusts the certificates in `trust`.
fn tell(story: &str, trust: &Path, port: u16) {
    let told = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", story])
        .env("SSL_CERT_FILE", trust)
        .env(URL, format!("rediss://localhost:{port}"))
        .output()
        .expect("it runs");
    let output = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success() && output.contains("1 passed"), "{output}");
}

/// Set in the process that tells the story.
const URL: &str = "LEASEHOLD_TLS_URL";

#[tokio::test]
async fn a_server_whose_ca_is_trusted_is_locked_on() {
    let Ok(url) = std::env::var(URL) else {
        let certificates = certificates();
        let (server, port) = server(certificates.path());
        let trust = certificates.path().join("ca.crt");
        tell("a_server_whose_ca_is_trusted_is_locked_on", &trust, port);
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
async fn a_server_whose_ca_is_not_trusted_is_refused() {
    let Ok(url) = std::env::var(URL) else {
        let (theirs, others) = (certificates(), certificates());
        let (server, port) = server(theirs.path());
        let trust = others.path().join("ca.crt");
        tell("a_server_whose_ca_is_not_trusted_is_refused", &trust, port);
        assert!(server.command(&["KEYS", "*"]).list().is_empty());
        return;
    };
    let start = Instant::now();
    let error = LeaseManager::connect(&url).await.expect_err("not trusted");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

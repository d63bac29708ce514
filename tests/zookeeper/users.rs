//! Users on a ZooKeeper server: the nodes of one are closed to the other, and no password is shown.

use kit::trace::Trace;
use kit::within;
use kit::zookeeper::{Look, ZooKeeper, directory};
use leasehold::{Error, ErrorKind, Fate, LeaseManager, Loss};
use std::error::Error as _;
use std::time::Duration;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

const T: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(15);
const ANNA: &str = "anna:right-secret-1%40";
const BERT: &str = "bert:secret-2";

fn url_as(server: &ZooKeeper, user: &str, path: &str) -> String {
    format!("zookeeper://{user}@{}{path}", server.hosts())
}

async fn connect(url: &str) -> leasehold::Result<LeaseManager> {
    LeaseManager::builder().ttl(T).connect(url).await
}

/// Returns the text of an error, with all its sources.
fn shown(error: &Error) -> String {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        shown += &format!(" {cause} {cause:?}");
        source = cause.source();
    }
    shown
}

#[track_caller]
fn assert_denied(error: &Error) {
    assert_eq!((error.kind(), error.fate()), (ErrorKind::Denied, Fate::NotExecuted), "{error:?}");
    assert!(error.to_string().contains("Check the user and the password"), "{error}");
    assert!(!shown(error).contains("secret"), "{}", shown(error));
}

/// The directories are open to all, as one without credentials makes them.
async fn shared(server: &ZooKeeper) -> LeaseManager {
    connect(&server.url()).await.expect("open to all")
}

async fn acl(client: &Client, path: &str) -> Vec<(Permission, String, String)> {
    let (acls, _) = client.get_acl(path).await.expect("it is there");
    let acls = acls.iter();
    acls.map(|acl| (acl.permission(), acl.scheme().to_owned(), acl.id().to_owned())).collect()
}

#[tokio::test]
async fn nodes_of_a_user_are_the_users_and_without_one_open() {
    let server = ZooKeeper::start();
    let look = Look(
        Client::connector()
            .with_auth("digest", b"anna:right-secret-1@")
            .connect(&server.hosts())
            .await
            .expect("a session"),
    );
    for (url, root, scheme) in [
        (url_as(&server, ANNA, "/shop"), "/shop", "digest"),
        (format!("{}/open", server.url()), "/open", "world"),
    ] {
        let leases = connect(&url).await.expect("a manager");
        let lease = leases.lock("job").lock().await.expect("free");
        let mut lock = leases.lock("job");
        let waiter = tokio::spawn(async move { lock.lock().await });
        let held = format!("{root}{}", directory("job"));
        look.until_children(&held, 1).await;
        let sessions = format!("{root}/leasehold/sessions");
        let mut paths = vec![root.to_owned(), format!("{root}/leasehold"), sessions.clone()];
        paths.extend([format!("{root}/leasehold/locks"), held.clone()]);
        for directory in [sessions, held] {
            let nodes = look.0.list_children(&directory).await.expect("it is there");
            assert!(!nodes.is_empty());
            paths.extend(nodes.iter().map(|node| format!("{directory}/{node}")));
        }
        for path in paths {
            let permissions = acl(&look.0, &path).await;
            let [(permission, found, id)] = &permissions[..] else {
                panic!("{path}: {permissions:?}")
            };
            assert_eq!((*permission, found.as_str()), (Permission::ALL, scheme), "{path}");
            assert_eq!(id.starts_with("anna:"), scheme == "digest", "{path}");
        }
        lease.unlock().await.expect("released");
        let lease = within(LONG, waiter).await.expect("it runs").expect("in the end");
        lease.unlock().await.expect("released");
    }
}

#[tokio::test]
async fn nobody_else_takes_looks_at_or_deletes_the_lease_of_a_user() {
    let server = ZooKeeper::start();
    let nobody = shared(&server).await;
    let anna = connect(&url_as(&server, ANNA, "")).await.expect("a manager");
    let lease = anna.lock("job").lock().await.expect("free");
    let bert = connect(&url_as(&server, BERT, "")).await.expect("a manager");
    for other in [&bert, &nobody] {
        assert_denied(&other.lock("job").try_lock().await.expect_err("not ours"));
        assert_denied(&within(LONG, other.lock("job").lock()).await.expect_err("at once"));
        assert_denied(&other.inspect("job").await.expect_err("not ours"));
        assert_denied(&other.force_unlock("job", "test").await.expect_err("not ours"));
        // It spoils nothing else.
        let own = other.lock("other").lock().await.expect("free");
        own.unlock().await.expect("released");
        delete_directory(&server, "other").await;
    }
    lease.check().expect("held");
    assert!(anna.inspect("job").await.expect("an answer").is_some());
    // Another process of the same user may.
    let too = connect(&url_as(&server, ANNA, "")).await.expect("a manager");
    assert!(too.lock("job").try_lock().await.expect("an answer").is_none());
    // In the directory before the lease goes, or a renewal in between could find nothing there.
    let mut lock = too.lock("job");
    let waiter = tokio::spawn(async move { lock.lock().await });
    let connector = Client::connector().with_auth("digest", b"anna:right-secret-1@");
    let look = Look(connector.connect(&server.hosts()).await.expect("a connection"));
    look.until_children(&directory("job"), 2).await;
    assert!(too.force_unlock("job", "test").await.expect("ours"));
    let taken = within(LONG, waiter).await.expect("no panic").expect("free");
    assert_eq!(within(LONG, lease.lost()).await, Loss::Taken);
    taken.unlock().await.expect("released");
    // As long as the empty directory is there, it is closed.
    assert_denied(&bert.lock("job").try_lock().await.expect_err("not ours"));
}

/// Deletes an empty directory, as the server would after a while.
async fn delete_directory(server: &ZooKeeper, name: &str) {
    let client = Client::connect(&server.hosts()).await.expect("a session");
    client.delete(&directory(name), None).await.expect("the locks are open to all");
}

#[tokio::test]
async fn lease_whose_directory_became_anothers_is_lost() {
    let server = ZooKeeper::start();
    drop(shared(&server).await);
    let anna = connect(&url_as(&server, ANNA, "")).await.expect("a manager");
    let look = Client::connector().with_auth("digest", b"anna:right-secret-1@");
    let look = look.connect(&server.hosts()).await.expect("a session");
    let lease = anna.lock("job").lock().await.expect("free");
    let kept = anna.lock("kept").lock().await.expect("free");
    let nodes = look.list_children(&directory("job")).await.expect("it is there");
    look.delete(&format!("{}/{}", directory("job"), nodes[0]), None).await.expect("deleted");
    look.delete(&directory("job"), None).await.expect("deleted");
    let bert = connect(&url_as(&server, BERT, "")).await.expect("a manager");
    let next = bert.lock("job").lock().await.expect("free");
    assert_eq!(within(LONG, lease.lost()).await, Loss::Taken);
    kept.check().expect("held");
    next.unlock().await.expect("released");
    kept.unlock().await.expect("released");
}

#[tokio::test]
async fn user_without_a_right_to_the_path_is_denied_when_connecting() {
    let server = ZooKeeper::start();
    let anna = connect(&url_as(&server, ANNA, "/shop")).await.expect("a manager");
    for url in [
        url_as(&server, BERT, "/shop"),
        url_as(&server, "anna:wrong-secret-3", "/shop"),
        format!("{}/shop", server.url()),
    ] {
        let start = std::time::Instant::now();
        assert_denied(&connect(&url).await.expect_err("not ours"));
        assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
    }
    let lease = anna.lock("job").lock().await.expect("free");
    lease.unlock().await.expect("released");
}

/// An operator makes the directories, and the user may make nothing above them.
#[tokio::test]
async fn permissions_to_the_two_directories_are_enough() {
    let server = ZooKeeper::start();
    let operator = Client::connector().with_auth("digest", b"root:secret-4");
    let operator = operator.connect(&server.hosts()).await.expect("a session");
    let own = CreateMode::Persistent.with_acls(Acls::creator_all());
    operator.mkdir("/shop/leasehold", &own).await.expect("made");
    // The hash of `bert:secret-2`, as the server makes it.
    operator.create("/hash", b"", &own).await.expect("made");
    let bert = Client::connector().with_auth("digest", b"bert:secret-2");
    let bert = bert.connect(&server.hosts()).await.expect("a session");
    bert.create("/bert", b"", &own).await.expect("made");
    let (acls, _) = bert.get_acl("/bert").await.expect("its own");
    let id = AuthId::new("digest", acls[0].id());
    let permissions = [Acl::new(Permission::ALL, id)];
    let theirs = CreateMode::Persistent.with_acls(Acls::new(&permissions));
    for directory in ["locks", "sessions"] {
        let path = format!("/shop/leasehold/{directory}");
        operator.create(&path, b"", &theirs).await.expect("made");
    }
    let leases = connect(&url_as(&server, BERT, "/shop")).await.expect("a manager");
    let lease = leases.lock("job").lock().await.expect("free");
    lease.unlock().await.expect("released");
    assert_denied(&connect(&url_as(&server, ANNA, "/shop")).await.expect_err("not hers"));
}

#[tokio::test]
async fn password_is_shown_nowhere() {
    let trace = Trace::of_all_threads();
    let server = ZooKeeper::start();
    let builder = LeaseManager::builder().ttl(T);
    let leases = builder.clone().connect(&url_as(&server, ANNA, "")).await.expect("a manager");
    let lease = leases.lock("job").lock().await.expect("free");
    let debugs = format!("{builder:?} {leases:?} {leases:#?} {lease:?} {:?}", leases.lock("job"));
    assert!(!debugs.contains("secret"), "{debugs}");
    lease.unlock().await.expect("released");
    leases.close().await.expect("nothing is left");
    for url in [url_as(&server, "secret-5", ""), url_as(&server, "secret-6:%", "")] {
        let error = connect(&url).await.expect_err("no user and password");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(!shown(&error).contains("secret-"), "{}", shown(&error));
    }
    for event in trace.events() {
        let text = format!("{event:?}");
        assert!(!text.contains("secret-"), "{text}");
    }
    assert!(trace.events().iter().any(|event| event.field("name") == "job"), "nothing was traced");
}

/// The session that was given up is not kept alive until there is another: there may never be one.
#[tokio::test]
async fn leases_go_also_when_no_new_session_is_to_be_had() {
    let server = ZooKeeper::start();
    let operator = Client::connector().with_auth("digest", b"root:secret-4");
    let operator = operator.connect(&server.hosts()).await.expect("a session");
    let own = CreateMode::Persistent.with_acls(Acls::creator_all());
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.mkdir("/leasehold", &own).await.expect("made");
    for path in ["/leasehold/locks", "/leasehold/sessions"] {
        operator.create(path, b"", &open).await.expect("made");
    }
    let look = Look::at(&server.hosts()).await;
    let leases = connect(&server.url()).await.expect("a manager");
    let lease = leases.lock("job").lock().await.expect("free");
    for node in operator.list_children("/leasehold/sessions").await.expect("it is there") {
        let path = format!("/leasehold/sessions/{node}");
        operator.delete(&path, None).await.expect("deleted");
    }
    operator.delete("/leasehold/sessions", None).await.expect("deleted");
    assert_eq!(within(T * 2, lease.lost()).await, Loss::Gone);
    look.until_nodes("job", 0).await;
    // Only those who look have one, however often another was tried.
    kit::eventually(T, || server.number(0, "zk_global_sessions") <= 3).await;
}

/// Servers that want SASL, or an authentication of some scheme, and close the session of who has none.
#[tokio::test]
async fn authentication_of_another_scheme_is_refused() {
    let sasl = "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n\
                sessionRequireClientSASLAuth=true";
    let digest = "enforce.auth.enabled=true\nenforce.auth.schemes=digest";
    for (settings, with_user) in [(sasl, false), (sasl, true), (digest, false), (digest, true)] {
        let server = ZooKeeper::start_with(settings);
        let url = if with_user { url_as(&server, ANNA, "") } else { server.url() };
        if settings == digest && with_user {
            let leases = connect(&url).await.expect("what it wants");
            let lease = leases.lock("job").lock().await.expect("free");
            lease.unlock().await.expect("released");
            continue;
        }
        let error = connect(&url).await.expect_err("it is refused");
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Denied, Fate::NotExecuted));
        assert!(error.to_string().contains("requires authentication"), "{error}");
        assert!(!shown(&error).contains("secret"), "{}", shown(&error));
    }
}

/// The server closes the connection without a word, so the error is that of a server out of reach.
#[tokio::test]
async fn connection_limit_is_named_when_a_server_opens_no_session() {
    let server = ZooKeeper::start_with("maxClientCnxns=1");
    let look = Look::at(&server.hosts()).await;
    let error = connect(&server.url()).await.expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("maxClientCnxns"), "{error}");
    drop(look);
    let leases = kit::connect_in_the_end(LeaseManager::builder().ttl(T), &server.url()).await;
    leases.lock("job").lock().await.expect("free").unlock().await.expect("released");
}

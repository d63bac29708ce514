//! Tests of the test tools, on which all other tests rely.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use kit::janitor::Janitor;
use kit::proxy::frame_length;
use kit::trace::Trace;
use kit::{Mode, Pace, Pipe, Proxy, Reply, Resp, Server, eventually, is_timeout};

const LONG: Duration = Duration::from_secs(10);
/// Long enough to notice that something arrives that should not.
const SHORT: Duration = Duration::from_millis(100);

/// A server, a proxy before it, and a connection through the proxy.
fn proxied() -> (Server, Proxy, Resp) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let connection = Resp::connect(proxy.port());
    (server, proxy, connection)
}

fn ok() -> Reply {
    Reply::Text("OK".to_owned())
}

#[test]
fn server_answers_commands() {
    let server = Server::start();
    assert_eq!(server.command(&["SET", "k", "7"]), ok());
    assert_eq!(server.command(&["GET", "k"]).int(), 7);
    assert_eq!(server.command(&["GET", "k"]).text(), "7");
    assert!(server.command(&["GET", "none"]).is_nil());
    assert_eq!(server.command(&["DEL", "k"]), Reply::Int(1));
    assert!(server.command(&["NONSENSE"]).error().is_some_and(|text| text.starts_with("ERR")));

    server.command(&["HSET", "h", "a", "1", "b", "two words\r\n"]);
    let pairs = server.command(&["HGETALL", "h"]).pairs();
    assert_eq!(pairs, [("a".into(), "1".into()), ("b".into(), "two words\r\n".into())]);
    let list = server.command(&["HMGET", "h", "a", "none"]).list();
    assert_eq!(list, [Reply::Text("1".to_owned()), Reply::Nil]);
    assert_eq!(server.command(&["DEBUG", "SLEEP", "0"]), ok());
}

#[test]
fn server_takes_options() {
    let server = Server::start_with(&["--maxmemory", "64mb", "--requirepass", "secret"]);
    let config = server.command(&["CONFIG", "GET", "maxmemory"]).pairs();
    assert_eq!(config, [("maxmemory".to_owned(), (64 << 20).to_string())]);
    let stranger = Resp::connect(server.port()).command(&["PING"]);
    assert!(stranger.error().is_some_and(|text| text.starts_with("NOAUTH")), "{stranger:?}");
    let url = server.url_as("default", "secret", 3);
    assert_eq!(url, format!("redis://default:secret@127.0.0.1:{}/3", server.port()));
}

#[test]
#[should_panic(expected = "argument must be a memory value")]
fn server_that_cannot_start_shows_its_log() {
    Server::start_with(&["--maxmemory", "plenty"]);
}

#[test]
fn server_is_of_one_brand_and_version() {
    let server = Server::start();
    let info = server.command(&["INFO", "server"]).text();
    let field_of =
        |field: &str| info.lines().find_map(|line| line.strip_prefix(field)).map(str::trim);
    let (brand, version) = match field_of("valkey_version:") {
        Some(version) => ("Valkey", version),
        None => ("Redis", field_of("redis_version:").expect("its version")),
    };
    let major = version.split('.').next().expect("a number");
    assert_eq!(server.check_is(&format!("{brand} {major}")), Ok(()));
    for other in [format!("{brand} 6"), format!("Other {major}")] {
        let error = server.check_is(&other).expect_err("it is another one");
        assert!(error.contains(&other) && error.contains(version), "{error}");
    }
}

#[test]
fn server_listens_on_a_unix_socket() {
    let server = Server::start();
    let url = server.unix_url();
    let path = url.strip_prefix("redis+unix://").expect("the scheme of unix sockets");
    assert!(Path::new(path).is_absolute());
    let mut stream = UnixStream::connect(path).expect("the socket accepts connections");
    stream.write_all(b"PING\r\n").expect("the socket takes a request");
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).expect("the socket gives a reply");
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn restarted_server_is_empty_and_keeps_its_port() {
    let server = Server::start();
    server.command(&["SET", "k", "v"]);
    let mut connection = server.connection();
    let port = server.port();
    server.kill();
    assert!(Resp::try_connect(port).is_err());
    assert!(connection.try_command(&["PING"]).is_err());
    server.restart();
    assert_eq!(server.port(), port);
    assert!(server.command(&["GET", "k"]).is_nil());
    // Also without a kill before it.
    server.command(&["SET", "k", "v"]);
    server.restart();
    assert!(server.command(&["GET", "k"]).is_nil());
}

#[test]
fn paused_server_answers_once_it_resumes() {
    let server = Server::start();
    let mut connection = server.connection();
    server.pause();
    server.pause();
    connection.set_timeout(SHORT);
    let error = connection.try_command(&["PING"]).expect_err("nobody answers");
    assert!(is_timeout(&error), "{error}");
    server.resume();
    connection.set_timeout(LONG);
    assert_eq!(connection.receive().expect("the late reply"), Reply::Text("PONG".to_owned()));

    server.pause();
    server.kill();
    server.restart();
    assert_eq!(server.command(&["PING"]).text(), "PONG");
}

#[test]
fn two_servers_do_not_meet() {
    let (one, two) = (Server::start(), Server::start());
    one.command(&["SET", "k", "one"]);
    assert!(two.command(&["GET", "k"]).is_nil());
    assert_ne!(one.url(), two.url());
    assert_ne!(one.unix_url(), two.unix_url());
}

#[test]
fn dropped_server_leaves_nothing_behind() {
    for paused in [false, true] {
        let server = Server::start();
        let port = server.port();
        let url = server.unix_url();
        let dir = Path::new(url.trim_start_matches("redis+unix://")).parent().expect("a dir");
        assert!(dir.exists());
        if paused {
            server.pause();
        }
        drop(server);
        assert!(!dir.exists());
        assert!(Resp::try_connect(port).is_err());
    }
}

#[test]
fn janitor_removes_what_is_left_when_its_process_is_gone() {
    let [left, gone] = [(); 2].map(|()| tempfile::tempdir().expect("a directory").keep());
    std::fs::write(left.join("redis.log"), "text").expect("a file");
    let mut janitor = Janitor::start();
    janitor.remove_in_the_end(&gone);
    janitor.remove_in_the_end(&left);
    std::fs::remove_dir(&gone).expect("it is empty");
    assert!(left.exists(), "its process is still there");
    drop(janitor);
    assert!(!left.exists());
}

#[test]
fn server_outlives_the_thread_that_started_it() {
    let server = std::thread::spawn(Server::start).join().expect("the server starts");
    std::thread::sleep(SHORT);
    assert_eq!(server.command(&["PING"]).text(), "PONG");
}

#[test]
fn subscriber_gets_the_messages() {
    let server = Server::start();
    let mut subscriber = server.connection();
    subscriber.subscribe("one");
    server.command(&["PUBLISH", "one", "early"]);
    subscriber.subscribe("two");
    server.command(&["PUBLISH", "two", "late"]);
    let early = subscriber.next_message(LONG).expect("the early message");
    assert_eq!(early, ("one".to_owned(), "early".to_owned()));
    let late = subscriber.next_message(LONG).expect("the late message");
    assert_eq!(late, ("two".to_owned(), "late".to_owned()));
    assert_eq!(subscriber.next_message(Duration::ZERO), None);
}

#[tokio::test]
async fn eventually_waits_for_what_comes_true() {
    let start = Instant::now();
    eventually(LONG, || start.elapsed() > Duration::from_millis(20)).await;
    assert!(start.elapsed() < LONG);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "tests/house/harness.rs")]
async fn eventually_gives_up_in_real_time() {
    let start = Instant::now();
    eventually(SHORT, || start.elapsed() > LONG).await;
}

#[test]
fn frames_are_measured() {
    let frames = [
        "+OK\r\n",
        "$-1\r\n",
        "$4\r\na\r\nb\r\n",
        "*0\r\n",
        "*-1\r\n",
        "*2\r\n*1\r\n:1\r\n$0\r\n\r\n",
        "%1\r\n+a\r\n,1.5\r\n",
        "|1\r\n+a\r\n+b\r\n*1\r\n_\r\n",
        ">2\r\n+message\r\n=5\r\ntxt:a\r\n",
        "PING\r\n",
    ];
    for frame in frames {
        let followed = format!("{frame}+next\r\n");
        assert_eq!(frame_length(followed.as_bytes()), Some(frame.len()), "{frame:?}");
        for end in 0..frame.len() {
            assert_eq!(frame_length(&frame.as_bytes()[..end]), None, "{:?}", &frame[..end]);
        }
    }
}

#[test]
fn proxy_passes_and_counts() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    assert_eq!(proxy.url(), format!("redis://127.0.0.1:{}", proxy.port()));
    let mut connection = Resp::connect(proxy.port());
    for i in 0..100 {
        connection.send(&["SET", "k", &i.to_string()]).expect("the proxy takes requests");
        connection.send(&["get", "k"]).expect("the proxy takes requests");
    }
    for i in 0..100 {
        assert_eq!(connection.receive().expect("a reply"), ok());
        assert_eq!(connection.receive().expect("a reply").int(), i);
    }
    assert_eq!(proxy.count("GET"), 100);
    assert_eq!(proxy.requests()[2..4], ["SET k 1", "get k"]);

    let large = "x".repeat(1 << 20);
    connection.command(&["SET", "k", &large]);
    assert_eq!(connection.command(&["GET", "k"]).text(), large);
}

#[test]
fn black_hole_holds_both_ways() {
    let (server, proxy, mut connection) = proxied();
    let mut subscriber = Resp::connect(proxy.port());
    subscriber.subscribe("c");
    connection.command(&["PING"]);

    proxy.set(Mode::BlackHole);
    // A connection per command would change the number of clients.
    let mut observer = server.connection();
    let clients = observer.command(&["CLIENT", "LIST"]).text().lines().count();
    connection.set_timeout(SHORT);
    let error = connection.try_command(&["INCR", "k"]).expect_err("nothing comes back");
    assert!(is_timeout(&error), "{error}");
    observer.command(&["PUBLISH", "c", "held"]);
    assert_eq!(subscriber.next_message(SHORT), None);
    let mut newcomer = Resp::connect(proxy.port());
    newcomer.send(&["INCR", "k"]).expect("a new connection opens");
    std::thread::sleep(SHORT);
    assert!(observer.command(&["GET", "k"]).is_nil());
    assert_eq!(observer.command(&["CLIENT", "LIST"]).text().lines().count(), clients);

    proxy.set(Mode::Pass);
    connection.set_timeout(LONG);
    let replies = [connection.receive(), newcomer.receive()];
    let sum: i64 = replies.map(|reply| reply.expect("a reply").int()).iter().sum();
    assert_eq!(sum, 1 + 2);
    assert_eq!(subscriber.next_message(LONG), Some(("c".to_owned(), "held".to_owned())));
}

#[tokio::test]
async fn held_request_arrives_after_its_sender_is_gone() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    for mode in [Mode::BlackHole, Mode::HoldRequests] {
        server.command(&["DEL", "k"]);
        proxy.set(Mode::Pass);
        let mut connection = Resp::connect(proxy.port());
        connection.command(&["PING"]);
        proxy.set(mode);
        connection.send(&["SET", "k", "late"]).expect("the proxy takes requests");
        drop(connection);
        std::thread::sleep(SHORT);
        assert!(server.command(&["GET", "k"]).is_nil());
        proxy.set(Mode::Pass);
        eventually(LONG, || !server.command(&["GET", "k"]).is_nil()).await;
    }
}

#[tokio::test]
async fn replies_are_held_or_dropped_while_requests_pass() {
    let (server, proxy, mut connection) = proxied();
    connection.command(&["PING"]);

    proxy.set(Mode::HoldReplies);
    connection.send(&["SET", "k", "1"]).expect("the proxy takes requests");
    eventually(LONG, || !server.command(&["GET", "k"]).is_nil()).await;
    connection.set_timeout(SHORT);
    assert!(connection.receive().is_err());
    proxy.set(Mode::Pass);
    assert_eq!(connection.receive().expect("the held reply"), ok());

    proxy.set(Mode::DropReplies);
    assert!(connection.try_command(&["INCR", "k"]).is_err());
    assert_eq!(server.command(&["GET", "k"]).int(), 2);
    proxy.set(Mode::Pass);
    // The next reply is that to the next request: the dropped one is gone for good.
    assert_eq!(connection.command(&["GET", "k"]).text(), "2");
}

#[test]
fn refusing_proxy_closes_what_it_gets() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut old = Resp::connect(proxy.port());
    old.command(&["PING"]);
    proxy.set(Mode::Refuse);
    assert!(is_closed(&mut old));
    let mut new = Resp::connect(proxy.port());
    assert!(is_closed(&mut new));

    proxy.set(Mode::Pass);
    let mut newer = Resp::connect(proxy.port());
    newer.command(&["PING"]);
    proxy.close_all();
    assert!(is_closed(&mut newer));
    assert_eq!(Resp::connect(proxy.port()).command(&["PING"]).text(), "PONG");
}

#[test]
fn reply_to_a_chosen_request_is_dropped() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut one = Resp::connect(proxy.port());
    let mut two = Resp::connect(proxy.port());
    proxy.drop_reply_of(3, "INCR");
    assert_eq!(one.command(&["INCR", "k"]).int(), 1);
    assert_eq!(two.command(&["INCR", "k"]).int(), 2);
    assert_eq!(two.command(&["GET", "k"]).int(), 2);
    assert_eq!(proxy.dropped(), 0);
    one.send(&["GET", "k"]).expect("the proxy takes requests");
    one.send(&["INCR", "k"]).expect("the proxy takes requests");
    assert_eq!(one.receive().expect("an earlier reply").int(), 2);
    assert!(is_closed(&mut one));
    assert_eq!(proxy.dropped(), 1);
    // It was run, and only its connection was closed.
    assert_eq!(two.command(&["GET", "k"]).int(), 3);
    assert_eq!(two.command(&["INCR", "k"]).int(), 4);
}

#[test]
fn chosen_request_is_answered_in_the_servers_place() {
    let (_server, proxy, mut connection) = proxied();
    proxy.answer(2, "INCR", b"-LOADING on purpose\r\n");
    for _ in 0..3 {
        connection.send(&["INCR", "k"]).expect("the proxy takes requests");
    }
    assert_eq!(connection.receive().expect("the server's").int(), 1);
    let wrong = connection.receive().expect("the proxy's");
    assert_eq!(wrong.error(), Some("LOADING on purpose"));
    assert_eq!(connection.receive().expect("the server's").int(), 2);
    assert_eq!((proxy.answered(), proxy.count("INCR")), (1, 2));
}

#[test]
fn requests_that_passed_can_be_sent_once_more() {
    let (_server, proxy, mut connection) = proxied();
    connection.command(&["INCR", "a"]);
    connection.command(&["INCR", "b"]);
    connection.command(&["INCR", "a"]);
    assert_eq!(proxy.replay("a\r\n"), [":3\r\n", ":4\r\n"]);
    assert_eq!(connection.command(&["GET", "b"]).int(), 1);
}

#[test]
fn pipe_passes_pieces_in_its_time_or_closes() {
    let server = Server::start();
    let pipe = Pipe::start(server.port());
    let port = pipe.url().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let mut connection = Resp::connect(port);
    pipe.set(Pace { piece: 1, latency: Duration::from_millis(20), ..Pace::default() });
    let start = Instant::now();
    assert_eq!(connection.command(&["PING"]).text(), "PONG");
    assert!(start.elapsed() >= Duration::from_millis(40));
    pipe.set(Pace { closed: true, ..Pace::default() });
    assert!(is_closed(&mut Resp::connect(port)));
    assert_eq!(connection.command(&["PING"]).text(), "PONG");
    pipe.close_all();
    assert!(is_closed(&mut connection));
    assert_eq!(pipe.accepted(), 2);
}

#[test]
fn messages_do_not_confuse_the_proxy() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    // Under RESP2, a subscriber's connection carries nothing but its subscriptions.
    let mut subscriber = Resp::connect(proxy.port());
    subscriber.command(&["PING"]);
    subscriber.subscribe("c");
    server.command(&["PUBLISH", "c", "1"]);
    assert!(subscriber.next_message(LONG).is_some());
    subscriber.subscribe("d");
    server.command(&["PUBLISH", "d", "2"]);
    assert!(subscriber.next_message(LONG).is_some());
    assert_eq!(proxy.count("SUBSCRIBE"), 2);

    // Under RESP3, messages come between the replies to other commands.
    let mut mixed = Resp::connect(proxy.port());
    mixed.command(&["HELLO", "3"]);
    mixed.subscribe("c");
    server.command(&["PUBLISH", "c", "3"]);
    assert!(mixed.next_message(LONG).is_some());
    proxy.drop_reply_of(2, "SET");
    assert_eq!(mixed.command(&["SET", "k", "1"]), ok());
    server.command(&["PUBLISH", "c", "4"]);
    assert!(mixed.next_message(LONG).is_some());
    assert_eq!(mixed.command(&["GET", "k"]).text(), "1");
    assert!(mixed.try_command(&["SET", "k", "2"]).is_err());
    assert_eq!(server.command(&["GET", "k"]).text(), "2");

    // The confirmation of a subscription can be dropped too.
    for version in ["2", "3"] {
        proxy.drop_reply_of(1, "SUBSCRIBE");
        let mut doomed = Resp::connect(proxy.port());
        doomed.command(&["HELLO", version]);
        doomed.send(&["SUBSCRIBE", "c"]).expect("the proxy takes requests");
        assert!(is_closed(&mut doomed));
    }
    assert_eq!(proxy.dropped(), 3);
}

#[test]
fn proxy_follows_its_server() {
    let (server, proxy, mut connection) = proxied();
    connection.command(&["PING"]);
    server.kill();
    assert!(is_closed(&mut connection));
    assert!(is_closed(&mut Resp::connect(proxy.port())));
    server.restart();
    assert_eq!(Resp::connect(proxy.port()).command(&["PING"]).text(), "PONG");
}

#[test]
fn dropped_proxy_closes_its_connections() {
    let (_server, proxy, mut connection) = proxied();
    connection.command(&["PING"]);
    proxy.set(Mode::BlackHole);
    drop(proxy);
    assert!(is_closed(&mut connection));
}

/// Whether the other side has closed a connection, be it with or without a reset.
fn is_closed(connection: &mut Resp) -> bool {
    connection.set_timeout(LONG);
    connection.receive().is_err_and(|error| !is_timeout(&error))
}

#[tokio::test]
async fn slow_modes_pass_everything_later_and_in_order() {
    let (_server, proxy, mut connection) = proxied();
    let delay = Duration::from_millis(50);
    for (mode, at_least) in
        [(Mode::Delay(delay), delay * 2), (Mode::Drip, Duration::from_millis(4))]
    {
        proxy.set(mode);
        let start = Instant::now();
        connection.command(&["SET", "k", &"x".repeat(50)]);
        assert!(start.elapsed() >= at_least, "{mode:?} took {:?}", start.elapsed());
        for i in 0..5 {
            connection.send(&["ECHO", &i.to_string()]).expect("the proxy takes requests");
        }
        for i in 0..5 {
            assert_eq!(connection.receive().expect("a reply").int(), i);
        }
    }
}

#[tokio::test]
async fn duplicated_script_runs_twice_and_is_answered_once() {
    let (server, proxy, mut connection) = proxied();
    proxy.set(Mode::Duplicate);
    connection.command(&["EVAL", "return redis.call('INCR', 'k')", "0"]);
    eventually(LONG, || server.command(&["GET", "k"]).int() == 2).await;
    // Nothing else is run again, and replies stay in step.
    connection.command(&["SET", "k", "7"]);
    assert_eq!(connection.command(&["GET", "k"]).int(), 7);
    assert_eq!((proxy.duplicated(), proxy.connections()), (1, 1));
}

#[test]
fn dropped_request_closes_its_connection_and_never_runs() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    proxy.drop_request(2, "INCR");
    let mut connection = Resp::connect(proxy.port());
    assert_eq!(connection.command(&["INCR", "k"]).int(), 1);
    assert!(connection.try_command(&["INCR", "k"]).is_err());
    assert_eq!(server.command(&["GET", "k"]).int(), 1);
    assert_eq!(proxy.dropped(), 1);
    assert_eq!(Resp::connect(proxy.port()).command(&["INCR", "k"]).int(), 2);
}

#[test]
fn trace_has_a_callsite_that_another_thread_meets_first() {
    fn line() {
        tracing::warn!("met");
    }
    let (trace, _guard) = Trace::of_this_thread();
    std::thread::spawn(line).join().expect("no panic");
    line();
    assert!(trace.events().iter().any(|event| event.message() == "met"));
}

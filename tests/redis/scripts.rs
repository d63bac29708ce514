//! The scripts by themselves, fed by hand with what leasehold never sends: they must check it before
//! the first write, since Redis does not roll back.

use super::script;
use kit::look::{channel, fence_key};
use kit::{Reply, Resp, Server};
use std::sync::LazyLock;
use std::time::Duration;

static ACQUIRE: LazyLock<String> = LazyLock::new(|| script("acquire_alone"));
static RELEASE: LazyLock<String> = LazyLock::new(|| script("release_alone"));
static BATCH: LazyLock<String> = LazyLock::new(|| script("batch"));
static RENEW: LazyLock<String> = LazyLock::new(|| script("renew"));

/// What acquires have in common: time to live, block and retention.
const GOOD: [&str; 3] = ["30000", "8", "60000"];

struct Bench {
    connection: Resp,
    server: Server,
    /// Whether the scripts for lone requests run what they can.
    alone: bool,
}

/// Runs a test with all items in the batch's script, and with single ones in those for lone requests.
fn both_ways(test: impl Fn(Bench)) {
    [false, true].map(Bench::new).into_iter().for_each(test);
}

impl Bench {
    fn new(alone: bool) -> Self {
        let server = Server::start();
        Self { connection: server.connection(), server, alone }
    }

    fn command(&mut self, words: &[&str]) -> Reply {
        self.connection.command(words)
    }

    fn run(&mut self, script: &str, keys: &[&str], args: &[&str]) -> Reply {
        let count = keys.len().to_string();
        let words = [&["EVAL", script, &count], keys, args].concat();
        self.connection.command(&words)
    }

    /// The reply to each item.
    fn batch(&mut self, keys: &[&str], args: &[&str]) -> Vec<Reply> {
        let alone = match args {
            [ttl, _, _, token, "SA"] => (&*ACQUIRE, vec![*token, ttl]),
            [ttl, block, retention, token, "SF"] => {
                (&*ACQUIRE, vec![*token, ttl, block, retention])
            }
            [token, "R"] if keys[0].contains('{') => (&*RELEASE, vec![*token, "1"]),
            [token, "R"] => (&*RELEASE, vec![*token]),
            _ => return self.run(&BATCH, keys, args).list(),
        };
        if self.alone {
            return vec![self.run(alone.0, keys, &alone.1)];
        }
        self.run(&BATCH, keys, args).list()
    }

    fn keys(&mut self) -> usize {
        self.command(&["KEYS", "*"]).list().len()
    }
}

/// Whether it is a fencing token of these years.
fn is_fence(reply: &Reply) -> bool {
    matches!(reply, Reply::Int(1_500_000_000_000_000..))
}

fn fails_with(reply: &Reply, words: &str) -> bool {
    matches!(reply, Reply::Text(text) if text.contains(words))
        || reply.error().is_some_and(|text| text.contains(words))
}

/// `GOOD` with one of the three replaced.
fn but(index: usize, value: &'static str) -> [&'static str; 3] {
    let mut settings = GOOD;
    settings[index] = value;
    settings
}

#[test]
fn acquire_with_a_bad_argument_writes_nothing() {
    both_ways(|mut bench| {
        let bad = [
            (0, ["", "x", "1.5", "0", "-1", "31536000001", "nan", "inf"]),
            (1, ["", "x", "1.5", "-2", "-1", "1000001", "nan", "inf"]),
            (2, ["", "x", "1.5", "-2", "-1", "9007199254740993", "nan", "inf"]),
        ];
        let fence = fence_key("job");
        for (index, values) in bad {
            for value in values {
                let [ttl, block, retention] = but(index, value);
                for (step, keys) in [("SF", &["job", &fence][..]), ("SA", &["job"])] {
                    if bench.alone && step == "SA" && index > 0 {
                        // Not sent without a fencing token.
                        continue;
                    }
                    let items = bench.batch(keys, &[ttl, block, retention, "me", step]);
                    // Lua refuses what is no number by itself. Only numbers are sent.
                    let is_text = bench.alone && matches!(value, "" | "x");
                    let words = if is_text { "arithmetic" } else { "LEASEHOLD bad argument" };
                    let said = items.iter().all(|item| fails_with(item, words));
                    assert!(items.len() == 1 && said, "{index} {value:?} {step}: {items:?}");
                    assert_eq!(bench.keys(), 0, "{index} {value:?} {step}");
                }
            }
        }
    });
}

#[test]
fn limits_themselves_are_good() {
    both_ways(|mut bench| {
        let fence = fence_key("job");
        for (index, value) in
            [(0, "1"), (0, "31536000000"), (1, "1"), (1, "1000000"), (2, "0"), (2, "1")]
        {
            let [ttl, block, retention] = but(index, value);
            let items = bench.batch(&["job", &fence], &[ttl, block, retention, "me", "SF"]);
            assert!(is_fence(&items[0]), "{index} {value}: {items:?}");
            bench.command(&["FLUSHALL"]);
        }
        bench.batch(&["job"], &[&GOOD[..], &["me", "SA"]].concat());
        let items = bench.batch(&["job"], &["4294967295", "me", "C"]);
        assert_eq!(items, [Reply::Int(0)]);
    });
}

#[test]
fn bad_settings_stop_their_own_acquires_and_nothing_else() {
    both_ways(|mut bench| {
        bench.batch(&["held"], &[&GOOD[..], &["me", "SA"]].concat());
        let bad = but(0, "0");
        let args = [&bad[..], &GOOD, &["one,me,two", "SARSA"]].concat();
        let items = bench.batch(&["first", "held", "second"], &args);
        assert!(fails_with(&items[0], "LEASEHOLD bad argument 0"), "{items:?}");
        assert_eq!(items[1], Reply::Int(0), "the release in between: {items:?}");
        assert_eq!(items[2], Reply::Int(0), "good settings again: {items:?}");
        // Without any there is nothing to go by.
        let items = bench.batch(&["third"], &["three", "A"]);
        assert!(fails_with(&items[0], "LEASEHOLD nothing is set"), "{items:?}");
        assert_eq!(bench.command(&["KEYS", "*"]).list().len(), 1);
    });
}

#[test]
fn count_that_is_none_is_never_recorded() {
    both_ways(|mut bench| {
        bench.batch(&["job"], &[&GOOD[..], &["me", "SA"]].concat());
        for count in ["", "x", "0", "-1", "1.5", "4294967296", "nan"] {
            let items = bench.batch(&["job"], &[count, "me", "L"]);
            assert!(fails_with(&items[0], "LEASEHOLD bad argument"), "{count:?}: {items:?}");
            assert_eq!(bench.command(&["HGET", "job", "me"]).text(), "1", "{count:?}");
        }
        // Checked before it is known whether the token is there at all.
        let items = bench.batch(&["job"], &["0", "somebody", "L"]);
        assert!(fails_with(&items[0], "LEASEHOLD bad argument"), "{items:?}");
    });
}

#[test]
fn items_of_every_kind_that_meet_another_type_spoil_no_other() {
    both_ways(|mut bench| {
        bench.command(&["SET", "text", "somebody's"]);
        for (bad, args) in [("A", &[][..]), ("F", &[]), ("R", &[]), ("L", &["2"])] {
            let fence = fence_key("text");
            let mut keys = vec!["before", "text"];
            if bad == "F" {
                keys.push(&fence);
            }
            keys.push("after");
            let steps = format!("SA{bad}A");
            let args = [&GOOD[..], args, &["me,me,me", &steps]].concat();
            let items = bench.batch(&keys, &args);
            assert_eq!(items[0], Reply::Int(0), "{bad}: {items:?}");
            assert!(fails_with(&items[1], "WRONGTYPE"), "{bad}: {items:?}");
            assert_eq!(items[2], Reply::Int(0), "{bad}: {items:?}");
            bench.command(&["DEL", "before", "after"]);
        }
        assert_eq!(bench.keys(), 1);
    });
}

/// An item that fails has taken what is its own: its key, its token and its count.
#[test]
fn item_behind_a_failed_one_gets_its_own_arguments() {
    both_ways(|mut bench| {
        bench.batch(&["a", "b"], &[&GOOD[..], &["me:1,me:2", "SAA"]].concat());
        let items = bench.batch(&["a", "a"], &["x", "2", "me:1,me:1", "LL"]);
        assert!(fails_with(&items[0], "LEASEHOLD bad argument x"), "{items:?}");
        assert_eq!((&items[1], items.len()), (&Reply::Int(0), 2));
        assert_eq!(bench.command(&["HGET", "a", "me:1"]).text(), "2");
        let args = [&["x"], &GOOD[..], &["me:", "me:1,me:1,2", "LSAMR"]].concat();
        let items = bench.batch(&["a", "c", "b"], &args);
        assert!(fails_with(&items[0], "LEASEHOLD bad argument x"), "{items:?}");
        assert_eq!(items[1..], [Reply::Int(0), Reply::Int(0)]);
        assert_eq!(bench.command(&["HGET", "c", "me:1"]).text(), "1");
        assert_eq!(bench.command(&["EXISTS", "b"]).int(), 0);
    });
}

/// A text without the words that tell of a missing right must be passed on as it is.
#[test]
fn error_has_the_words_of_the_server() {
    both_ways(|mut bench| {
        bench.command(&["SET", "text", "somebody's"]);
        let items = bench.batch(&["text"], &[&GOOD[..], &["me", "SA"]].concat());
        let text = match &items[0] {
            Reply::Text(text) | Reply::Error(text) => text,
            _ => panic!("{items:?}"),
        };
        assert!(text.starts_with("WRONGTYPE") && !text.contains("('"), "{text}");
    });
}

#[test]
fn tokens_begin_as_was_said_last_and_else_stand_alone() {
    both_ways(|mut bench| {
        let names = ["a", "b", "c", "d"];
        let args = [&GOOD[..], &["me:", "you:", "all:1,2,3,4", "SAMAAMA"]].concat();
        assert_eq!(bench.batch(&names, &args), vec![Reply::Int(0); 4]);
        for (name, token) in names.into_iter().zip(["all:1", "me:2", "me:3", "you:4"]) {
            assert_eq!(bench.command(&["HGET", name, token]).text(), "1", "{name}");
        }
        let args = ["2", "me:", "all:1,2,4", "CMRR"];
        let items = bench.batch(&["a", "b", "d"], &args);
        assert_eq!(items, [Reply::Int(0), Reply::Int(0), Reply::Int(-2)]);
        assert_eq!(bench.command(&["HGET", "a", "all:1"]).text(), "2");
    });
}

/// Who holds it is told by how long, or that it is for ever.
#[test]
fn hold_differs_from_one_that_is_gone_or_taken() {
    both_ways(|mut bench| {
        bench.batch(&["job"], &[&GOOD[..], &["me", "SA"]].concat());
        bench.command(&["HSET", "ever", "somebody's", "1"]);
        let first = [&GOOD[..], &["you,you", "SAA"]].concat();
        let items = bench.batch(&["job", "ever"], &first);
        assert!(matches!(items[0], Reply::Int(-30_004..=-20_004)), "{items:?}");
        assert_eq!(items[1], Reply::Int(-3));
        let items = bench.batch(&["job", "none", "job"], &["2", "3", "2", "you,you,me", "CCC"]);
        assert_eq!(items, [Reply::Int(-2), Reply::Int(-1), Reply::Int(0)]);
    });
}

#[test]
fn release_returns_how_many_have_heard_of_it() {
    both_ways(|mut bench| {
        let mut subscribers = Vec::new();
        for listeners in 0..3 {
            bench.batch(&["job"], &[&GOOD[..], &["me", "SA"]].concat());
            let items = bench.batch(&["job"], &["me", "R"]);
            assert_eq!(items, [Reply::Int(listeners)]);
            let mut subscriber = bench.server.connection();
            subscriber.subscribe(&channel("job"));
            subscribers.push(subscriber);
        }
    });
}

#[test]
fn release_that_may_wake_nobody_is_done_and_says_so() {
    both_ways(|mut bench| {
        bench.command(&["ACL", "SETUSER", "mute", "on", "nopass", "~*", "resetchannels", "+@all"]);
        bench.batch(&["job"], &[&GOOD[..], &["me", "SA"]].concat());
        bench.command(&["AUTH", "mute", "any"]);
        assert_eq!(bench.batch(&["job"], &["me", "R"]), [Reply::Int(-3)]);
        assert_eq!(bench.command(&["EXISTS", "job"]).int(), 0);
    });
}

/// Not leasehold's, but nobody's to throw away either.
#[test]
fn release_takes_its_own_field_only() {
    both_ways(|mut bench| {
        bench.batch(&["job"], &[&GOOD[..], &["me", "SA"]].concat());
        bench.command(&["HSET", "job", "somebody's", "1"]);
        let items = bench.batch(&["job", "job"], &["me,me", "RR"]);
        assert_eq!(items, [Reply::Int(0), Reply::Int(-2)]);
        assert_eq!(bench.command(&["HKEYS", "job"]).list(), [Reply::Text("somebody's".to_owned())]);
    });
}

/// Two grants of a name within one block's microseconds, or with a clock that went back.
#[test]
fn fencing_tokens_go_on_behind_the_last_block() {
    both_ways(|mut bench| {
        let fence = fence_key("job");
        let keys = ["job", &fence, "job", "job", &fence];
        let items = bench.batch(&keys, &[&GOOD[..], &["one,one,two", "SFRF"]].concat());
        assert!(is_fence(&items[0]), "{items:?}");
        let fences: Vec<i64> = items.iter().map(Reply::int).collect();
        // An even one says that the clock has reached it: this one is ahead.
        assert_eq!((fences[0] % 2, fences[2]), (0, fences[0] + 9), "{items:?}");
        let last = bench.command(&["GET", &fence]).text().parse::<i64>().expect("a number");
        assert_eq!(last, fences[2] + 7);
        assert!((1..=60_000).contains(&bench.command(&["PTTL", &fence]).int()));
        // Found again as it was.
        let again = bench.batch(&["job", &fence], &[&GOOD[..], &["two", "SF"]].concat());
        assert_eq!(again, [Reply::Int(fences[2])]);
    });
}

/// Microseconds that the clock has not reached: where it went back, or blocks were larger than it could follow.
#[test]
fn fence_ahead_of_the_clock_is_remembered_longer_by_as_much() {
    const AHEAD: i64 = 1_000_000;
    both_ways(|mut bench| {
        let fence = fence_key("job");
        let time = bench.command(&["TIME"]).list();
        let [seconds, micros] =
            [0, 1].map(|i| time[i].clone().text().parse::<i64>().expect("a number"));
        let last = (seconds * 1_000_000 + micros + AHEAD * 1_000).to_string();
        let kept = |bench: &mut Bench| {
            let kept = bench.command(&["PTTL", &fence_key("job")]).int();
            assert!((AHEAD..=60_000 + AHEAD).contains(&kept), "{kept}");
        };
        bench.command(&["SET", &fence, &last]);
        let items = bench.batch(&["job", &fence], &[&GOOD[..], &["me", "SF"]].concat());
        assert!(is_fence(&items[0]), "{items:?}");
        assert_eq!(bench.command(&["PTTL", &fence]).int(), -1, "it had no time to live");
        bench.command(&["DEL", "job"]);
        bench.command(&["SET", &fence, &last, "PX", "1000"]);
        bench.batch(&["job", &fence], &[&GOOD[..], &["me", "SF"]].concat());
        kept(&mut bench);
        bench.command(&["PEXPIRE", &fence, "1000"]);
        let reply = bench.run(&RENEW, &["job", &fence], &["30000", "60000", "me", "F"]);
        assert_eq!(reply, Reply::List(vec![Reply::Int(0)]));
        kept(&mut bench);
        // For ever stays for ever.
        bench.command(&["DEL", "job"]);
        bench.batch(&["job", &fence], &["30000", "8", "0", "me", "SF"]);
        assert_eq!(bench.command(&["PTTL", &fence]).int(), -1);
    });
}

/// As Redisson leaves its counter, and a manager that remembers for ever.
#[test]
fn fencing_token_without_a_time_to_live_keeps_none() {
    both_ways(|mut bench| {
        let fence = fence_key("job");
        for remembered in ["1", "1795382621706818", "8000000000000000"] {
            bench.command(&["SET", &fence, remembered]);
            let items = bench.batch(&["job", &fence], &[&GOOD[..], &["me", "SF"]].concat());
            assert!(is_fence(&items[0]), "{remembered}: {items:?}");
            assert_eq!(bench.command(&["PTTL", &fence]).int(), -1, "{remembered}: granted");
            let last = bench.command(&["GET", &fence]).int();
            assert_eq!(last - items[0].int(), 7, "{remembered}: the block is reserved");
            let reply = bench.run(&RENEW, &["job", &fence], &["30000", "60000", "me", "F"]);
            assert_eq!(reply, Reply::List(vec![Reply::Int(0)]));
            assert_eq!(bench.command(&["PTTL", &fence]).int(), -1, "{remembered}: renewed");
            bench.command(&["DEL", "job"]);
        }
    });
}

/// The tokens tell when it was extended: a grant in the same twentieth of the time does not do it again.
#[test]
fn fence_memory_is_extended_once_in_a_twentieth_of_its_time() {
    const DAY: i64 = 86_400_000;
    both_ways(|mut bench| {
        let fence = fence_key("job");
        let day = [GOOD[0], "8", "86400000"];
        let mut after = |remembered: i64, left: &str| {
            bench.command(&["SET", &fence, &remembered.to_string(), "PX", left]);
            let items = bench.batch(&["job", &fence], &[&day[..], &["me", "SF"]].concat());
            bench.command(&["DEL", "job"]);
            (items[0].int(), bench.command(&["PTTL", &fence]).int())
        };
        let (now, left) = after(1, "1000");
        assert!((DAY - 60_000..=DAY).contains(&left), "another twentieth: {left}");
        // 4320 s are a twentieth.
        let start = now - now % (DAY * 50);
        let (_, left) = after(start, "5000000");
        assert!(left <= 5_000_000, "the same: {left}");
        let (_, left) = after(start - 1, "5000000");
        assert!((DAY - 60_000..=DAY).contains(&left), "the one before: {left}");
        let (_, left) = after(1, "90000000");
        assert!(left > DAY, "another manager remembers for longer: {left}");
    });
}

/// As many as are asked for, also where that changes within a call.
#[test]
fn each_block_is_as_long_as_its_settings_say() {
    both_ways(|mut bench| {
        let (first, second) = (fence_key("first"), fence_key("second"));
        let args = [&GOOD[..], &but(1, "100"), &["me,me", "SFSF"]].concat();
        let items = bench.batch(&["first", &first, "second", &second], &args);
        for (token, (key, block)) in items.iter().zip([(&first, 8), (&second, 100)]) {
            let last = bench.command(&["GET", key]).text().parse::<i64>().expect("a number");
            assert_eq!(last - token.int(), block - 1, "{items:?}");
        }
    });
}

#[test]
fn fence_key_without_a_token_is_put_back() {
    both_ways(|mut bench| {
        let fence = fence_key("job");
        for stuck in ["somebody's", "nan", "9007199254740993", ""] {
            bench.command(&["SET", &fence, stuck]);
            let items = bench.batch(&["job", &fence], &[&GOOD[..], &["me", "SF"]].concat());
            assert!(fails_with(&items[0], "WRONGTYPE"), "{stuck}: {items:?}");
            assert_eq!(bench.command(&["GET", &fence]).text(), stuck);
            assert_eq!(bench.command(&["EXISTS", "job"]).int(), 0, "{stuck}");
        }
    });
}

/// By a grant, whatever is to be remembered, and by a renewal of a lock that was granted before.
#[test]
fn fence_key_without_a_token_keeps_its_time_to_live_or_none() {
    both_ways(|mut bench| {
        let fence = fence_key("job");
        let stays = |bench: &mut Bench, case: &str, left: bool| {
            assert_eq!(bench.command(&["GET", &fence]).text(), "somebody's", "{case}");
            let is = bench.command(&["PTTL", &fence]).int();
            assert!(if left { (1..=20_000).contains(&is) } else { is == -1 }, "{case}: {is}");
        };
        for left in [true, false] {
            let time = if left { &["PX", "20000"][..] } else { &[] };
            for retention in ["0", "60000"] {
                let case = format!("{left} {retention}");
                bench.command(&[&["SET", &fence, "somebody's"], time].concat());
                let settings = but(2, retention);
                let items = bench.batch(&["job", &fence], &[&settings[..], &["me", "SF"]].concat());
                assert!(fails_with(&items[0], "WRONGTYPE"), "{case}: {items:?}");
                stays(&mut bench, &case, left);
            }
            bench.batch(&["job"], &[&GOOD[..], &["me", "SA"]].concat());
            let reply = bench.run(&RENEW, &["job", &fence], &["30000", "60000", "me", "F"]);
            assert_eq!(reply, Reply::List(vec![Reply::Int(0)]));
            stays(&mut bench, "renewed", left);
            bench.command(&["DEL", "job"]);
        }
    });
}

/// It can only get there while the name is held, for a grant refuses it.
#[test]
fn renewal_leaves_a_fence_key_without_a_token_alone() {
    both_ways(|mut bench| {
        let fence = fence_key("job");
        bench.batch(&["job"], &[&GOOD[..], &["me", "SA"]].concat());
        for text in ["9999999999999999999999", "9900000000000000000", "1e300", "inf", "nan", "x"] {
            bench.command(&["SET", &fence, text, "PX", "20000"]);
            let reply = bench.run(&RENEW, &["job", &fence], &["30000", "60000", "me", "F"]);
            assert_eq!(reply, Reply::List(vec![Reply::Int(0)]), "{text}");
            assert_eq!(bench.command(&["GET", &fence]).text(), text);
            assert!((1..=20_000).contains(&bench.command(&["PTTL", &fence]).int()), "{text}");
        }
    });
}

/// A token that is ahead of the clock is odd. A fraction, which others have written, does not hide that.
#[test]
fn token_ahead_of_the_clock_is_odd_after_a_fraction_too() {
    both_ways(|mut bench| {
        let fence = fence_key("job");
        for remembered in ["4000000000000000", "4000000000000000.5", "4000000000000001.5"] {
            bench.command(&["SET", &fence, remembered]);
            let items = bench.batch(&["job", &fence], &[&GOOD[..], &["me", "SF"]].concat());
            assert!(items[0].int() > 4_000_000_000_000_000, "{remembered}: {items:?}");
            assert_eq!(items[0].int() % 2, 1, "{remembered}: {items:?}");
            bench.command(&["DEL", "job"]);
        }
    });
}

/// One that is to be remembered for ever goes on behind the last, and its key has no time to live from then on.
#[test]
fn fencing_tokens_remembered_for_ever_go_on_behind_the_block() {
    both_ways(|mut bench| {
        let fence = fence_key("job");
        let ever = but(2, "0");
        let keys = ["job", &fence, "job", "job", &fence];
        let items = bench.batch(&keys, &[&ever[..], &["one,one,two", "SFRF"]].concat());
        assert!(is_fence(&items[0]), "{items:?}");
        assert_eq!(items[2].int(), items[0].int() + 9, "{items:?}");
        for remembered in ["1", "8000000000000000"] {
            bench.command(&["DEL", "job"]);
            bench.command(&["SET", &fence, remembered, "PX", "20000"]);
            let items = bench.batch(&["job", &fence], &[&ever[..], &["me", "SF"]].concat());
            assert!(is_fence(&items[0]), "{remembered}: {items:?}");
            assert_eq!(bench.command(&["PTTL", &fence]).int(), -1, "{remembered}");
            let last = bench.command(&["GET", &fence]).text().parse::<i64>().expect("a number");
            assert_eq!(last - items[0].int(), 7, "{remembered}");
        }
    });
}

/// Less than a block can be found where somebody has set it, and none where it was evicted.
#[test]
fn holder_gets_a_fencing_token_again_whatever_is_remembered() {
    both_ways(|mut bench| {
        let fence = fence_key("job");
        let enter = [&GOOD[..], &["me", "SF"]].concat();
        let first = bench.batch(&["job", &fence], &enter);
        for remembered in ["0", "1", "5", "7", "-1"] {
            bench.command(&["SET", &fence, remembered]);
            let again = bench.batch(&["job", &fence], &enter);
            assert!(
                is_fence(&again[0]) && again[0].int() > first[0].int(),
                "{remembered}: {again:?}"
            );
        }
        bench.command(&["DEL", &fence]);
        let again = bench.batch(&["job", &fence], &enter);
        assert!(is_fence(&again[0]) && again[0].int() > first[0].int(), "{again:?}");
    });
}

#[test]
fn time_is_asked_for_once_in_a_call() {
    both_ways(|mut bench| {
        let (first, second) = (fence_key("first"), fence_key("second"));
        bench.command(&["CONFIG", "RESETSTAT"]);
        let args = [&GOOD[..], &["me,me", "SFF"]].concat();
        let items = bench.batch(&["first", &first, "second", &second], &args);
        assert!(items.len() == 2 && items.iter().all(is_fence), "{items:?}");
        assert_eq!(kit::look::calls(&mut bench.connection, "time"), 1);
    });
}

#[test]
fn renewal_with_a_bad_argument_changes_no_time_to_live() {
    both_ways(|mut bench| {
        bench.batch(&["job"], &[&GOOD[..], &["me", "SA"]].concat());
        for ttl in ["", "x", "0", "-1", "1.5", "31536000001", "nan"] {
            let reply = bench.run(&RENEW, &["job"], &[ttl, "60000", "me", "L"]);
            assert!(fails_with(&reply, "LEASEHOLD bad argument"), "{ttl:?}: {reply:?}");
            let left = bench.command(&["PTTL", "job"]).int();
            assert!((1..=30_000).contains(&left), "{ttl:?}: {left}");
        }
        let reply = bench.run(&RENEW, &["job"], &["31536000000", "60000", "me", "L"]);
        assert_eq!(reply, Reply::List(vec![Reply::Int(0)]));
    });
}

#[test]
fn when_all_are_renewed_one_number_says_so() {
    both_ways(|mut bench| {
        let fence = fence_key("fenced");
        bench.batch(&["plain"], &[&GOOD[..], &["me:1", "SA"]].concat());
        bench.batch(&["fenced", &fence], &[&GOOD[..], &["me:2.1", "SF"]].concat());
        let args = ["31536000000", "90000", "me:", "1,2.1", "MLF"];
        let reply = bench.run(&RENEW, &["plain", "fenced", &fence], &args);
        assert_eq!(reply, Reply::List(vec![Reply::Int(0)]));
        for (key, at_least) in
            [("plain", 31_535_990_000), ("fenced", 31_535_990_000), (&fence, 80_000)]
        {
            assert!(bench.command(&["PTTL", key]).int() > at_least, "{key}");
        }
    });
}

#[test]
fn each_that_is_not_renewed_spoils_no_other() {
    both_ways(|mut bench| {
        for (name, token) in [("first", "me:1"), ("taken", "me:1"), ("last", "us:1")] {
            bench.batch(&[name], &[&GOOD[..], &[token, "SA"]].concat());
        }
        bench.command(&["SET", "text", "somebody's"]);
        let fence = fence_key("text");
        let keys = ["first", "gone", "taken", "text", &fence, "last"];
        let args = ["31536000000", "90000", "me:", "you:", "us:", "1,1,1,1,1", "MLLMLFML"];
        let items = bench.run(&RENEW, &keys, &args).list();
        assert_eq!(items.len(), 5, "{items:?}");
        assert_eq!(items[..3], [Reply::Int(0), Reply::Int(-1), Reply::Int(-2)]);
        assert!(fails_with(&items[3], "WRONGTYPE"), "{items:?}");
        assert_eq!(items[4], Reply::Int(0));
        for (key, longer) in [("first", true), ("taken", false), ("last", true)] {
            assert_eq!(bench.command(&["PTTL", key]).int() > 30_000, longer, "{key}");
        }
        assert_eq!(bench.command(&["PTTL", "text"]).int(), -1, "it never gets a time to live");
        // One alone that is not renewed is enough.
        let two = ["31536000000", "90000", "me:1,me:1", "LL"];
        for (name, said) in [("taken", -2), ("gone", -1)] {
            bench.command(&["HDEL", "taken", "me:1"]);
            bench.command(&["HSET", "taken", "you:1", "1"]);
            let items = bench.run(&RENEW, &["first", name], &two);
            assert_eq!(items, Reply::List(vec![Reply::Int(0), Reply::Int(said)]), "{name}");
        }
        let items = bench.run(&RENEW, &["first", "text"], &two).list();
        assert!(items.len() == 2 && fails_with(&items[1], "WRONGTYPE"), "{items:?}");
    });
}

/// Redisson grants its `RReadWriteLock` over a lock that is held, and marks the hash.
#[test]
fn read_write_lock_is_no_lock_and_spoils_no_other() {
    both_ways(|mut bench| {
        let rw = |bench: &mut Bench| {
            bench.command(&["DEL", "rw"]);
            bench.command(&["HSET", "rw", "mode", "write", "java:1:write", "1"]);
            bench.command(&["PEXPIRE", "rw", "20000"]);
        };
        let fence = fence_key("rw");
        for bad in ["A", "F"] {
            rw(&mut bench);
            let keys = match bad {
                "F" => vec!["before", "rw", &fence, "after"],
                _ => vec!["before", "rw", "after"],
            };
            let steps = format!("SAS{bad}SA");
            let args = [&GOOD[..], &GOOD, &GOOD, &["me,me,me", &steps]].concat();
            let items = bench.batch(&keys, &args);
            assert_eq!(
                (&items[0], &items[2]),
                (&Reply::Int(0), &Reply::Int(0)),
                "{bad}: {items:?}"
            );
            assert!(fails_with(&items[1], "WRONGTYPE a read-write lock"), "{bad}: {items:?}");
            assert_eq!(bench.command(&["HLEN", "rw"]).int(), 2, "{bad}");
            assert!((1..=20_000).contains(&bench.command(&["PTTL", "rw"]).int()), "{bad}");
            assert_eq!(bench.command(&["EXISTS", &fence]).int(), 0, "{bad}");
            bench.command(&["DEL", "before", "after"]);
        }
        // Over one that was held, whose holder has it no more.
        for name in ["before", "after"] {
            bench.batch(&[name], &[&GOOD[..], &["me", "SA"]].concat());
        }
        rw(&mut bench);
        bench.command(&["HSET", "rw", "me", "1"]);
        let again = [&GOOD[..], &["me", "SA"]].concat();
        assert!(fails_with(&bench.batch(&["rw"], &again)[0], "WRONGTYPE a read-write lock"));
        for told in ["WRONGTYPE a read-write lock", ""] {
            let keys = ["before", "rw", "after"];
            let reply = bench.run(&RENEW, &keys, &["50000", "60000", "me,me,me", "LLL"]).list();
            assert_eq!((&reply[0], &reply[2]), (&Reply::Int(0), &Reply::Int(0)), "{reply:?}");
            let said = if told.is_empty() {
                reply[1] == Reply::Int(-2)
            } else {
                fails_with(&reply[1], told)
            };
            assert!(said, "{told}: {reply:?}");
            // It is left to those whose lock it is.
            assert_eq!(bench.command(&["HLEN", "rw"]).int(), 2);
            assert_eq!(bench.command(&["HGET", "rw", "java:1:write"]).text(), "1");
            assert!((1..=20_000).contains(&bench.command(&["PTTL", "rw"]).int()));
            for name in ["before", "after"] {
                assert!(bench.command(&["PTTL", name]).int() > 30_000, "{name}");
            }
        }
    });
}

static RELEASE_KEEP: LazyLock<String> = LazyLock::new(|| script("release_keep"));

#[test]
fn mark_with_a_bad_argument_writes_nothing() {
    let mut bench = Bench::new(true);
    bench.run(&ACQUIRE, &["job"], &["me", "30000"]);
    for [mark, time] in [
        ["leasehold:done", "0"],
        ["leasehold:done", "-1"],
        ["leasehold:done", "1.5"],
        ["leasehold:done", "x"],
        ["leasehold:done", "31536000001"],
        ["leasehold:other", "1000"],
        ["you", "1000"],
    ] {
        let reply = bench.run(&RELEASE_KEEP, &["job"], &["me", mark, time]);
        assert!(fails_with(&reply, "LEASEHOLD bad argument"), "{mark} {time}: {reply:?}");
        let fields = bench.command(&["HGETALL", "job"]).list();
        assert_eq!(
            fields.into_iter().map(Reply::text).collect::<Vec<_>>(),
            ["me", "1"],
            "{mark} {time}"
        );
    }
}

#[test]
fn mark_takes_the_place_of_its_holder_once() {
    let mut bench = Bench::new(true);
    let mark = |bench: &mut Bench, holder: &str, time: &str| {
        bench.run(&RELEASE_KEEP, &["job"], &[holder, "leasehold:done", time]).int()
    };
    assert_eq!(mark(&mut bench, "me", "60000"), -1);
    assert_eq!(bench.keys(), 0);
    bench.run(&ACQUIRE, &["job"], &["me", "30000"]);
    assert_eq!(mark(&mut bench, "you", "60000"), -2);
    for _ in 0..2 {
        assert_eq!(mark(&mut bench, "me", "60000"), 0);
        let fields = bench.command(&["HGETALL", "job"]).list();
        let fields: Vec<_> = fields.into_iter().map(Reply::text).collect();
        assert_eq!(fields, ["leasehold:done", "60000 me"]);
        let left = bench.command(&["PTTL", "job"]).int();
        assert!(left > 30_000 && left <= 60_000, "{left}");
        bench.command(&["PEXPIRE", "job", "40000"]);
    }
    assert!(bench.command(&["PTTL", "job"]).int() <= 40_000, "the second run sets no time");
    assert_eq!(mark(&mut bench, "you", "60000"), -2);
}

/// PEXPIRE takes a key away whose time is over when it ends: with 1 ms, one of 8 000 on Redis 7.0.
#[test]
fn mark_with_the_shortest_time_never_stays() {
    const HELD: &str = "for i = 1, 1000 do
        redis.call('HSET', 'job' .. i, 'me', 1)
        redis.call('PEXPIRE', 'job' .. i, 60000)
    end";
    const LEFT: &str = "local left = 0
    for i = 1, 1000 do
        if redis.call('PTTL', 'job' .. i) == -1 then left = left + 1 end
    end
    return left";
    let mut bench = Bench::new(true);
    let script = bench.command(&["SCRIPT", "LOAD", &RELEASE_KEEP]).text();
    for _ in 0..100 {
        bench.run(HELD, &[], &[]);
        let names: Vec<_> = (1..=1000).map(|at| format!("job{at}")).collect();
        for name in &names {
            let words = ["EVALSHA", &script, "1", name, "me", "leasehold:done", "1"];
            bench.connection.send(&words).expect("the server reads");
        }
        for name in &names {
            assert_eq!(bench.connection.receive().expect("a reply"), Reply::Int(0), "{name}");
        }
        assert_eq!(bench.run(LEFT, &[], &[]), Reply::Int(0), "marks that stay");
    }
}

/// Redisson grants a read-write lock over a lock.
#[test]
fn mark_leaves_a_read_write_lock_alone() {
    let mut bench = Bench::new(true);
    bench.command(&["HSET", "job", "me", "1", "mode", "read", "java", "1"]);
    let reply = bench.run(&RELEASE_KEEP, &["job"], &["me", "leasehold:done", "1000"]);
    assert_eq!(reply.int(), -2);
    assert_eq!(bench.command(&["HEXISTS", "job", "leasehold:done"]).int(), 0);
    assert_eq!(bench.command(&["HLEN", "job"]).int(), 2, "what is left is not ours");
}

/// Redisson grants a read-write lock over a lock. Once its own holders have left, its mode would keep the name closed for as
/// long as the hash lives.
#[test]
fn mode_that_redisson_left_goes_with_the_lock_below() {
    both_ways(|mut bench| {
        let settings = ["30000", "60000", "me", "L"];
        for (java, left) in [(Some("java:1:write"), 2), (None, 0)] {
            for ends in ["release", "batch", "keep", "renewal"] {
                bench.command(&["DEL", "job"]);
                bench.command(&["HSET", "job", "me", "1", "mode", "write"]);
                if let Some(java) = java {
                    bench.command(&["HSET", "job", java, "1"]);
                }
                let reply = match ends {
                    "release" => bench.run(&RELEASE, &["job"], &["me"]),
                    "batch" => bench.batch(&["job"], &["me", "R"]).remove(0),
                    "keep" => bench.run(&RELEASE_KEEP, &["job"], &["me", "leasehold:done", "1000"]),
                    _ => bench.run(&RENEW, &["job"], &settings).list().remove(0),
                };
                match ends {
                    "renewal" => assert!(fails_with(&reply, "WRONGTYPE a read-write lock")),
                    _ => assert_eq!(reply, Reply::Int(-2), "{ends} {java:?}"),
                }
                assert_eq!(bench.command(&["HLEN", "job"]).int(), left, "{ends} {java:?}");
            }
        }
    });
}

/// For Redisson a semaphore has no permits until it is made, and its clients wait for a message.
#[test]
fn semaphore_that_is_made_wakes_those_who_came_before() {
    let mut bench = Bench::new(true);
    let mut waiter = bench.server.connection();
    waiter.subscribe("redisson_sc:{job}");
    let mut heard = || waiter.next_message(Duration::from_secs(30)).map(|(_, text)| text);
    let acquire = |bench: &mut Bench, id: &str| {
        let args = ["3", "1", "30000", "60000", &id.repeat(14)];
        bench.run(&PERMITS_ACQUIRE, &PERMIT_KEYS, &args).int()
    };
    assert_eq!(acquire(&mut bench, "a"), 0);
    assert_eq!(heard().as_deref(), Some("2"));
    assert_eq!(acquire(&mut bench, "b"), 0);
    bench.command(&["PUBLISH", "redisson_sc:{job}", "end"]);
    assert_eq!(heard().as_deref(), Some("end"), "only the first acquire makes it");
}

static RW_RENEW: LazyLock<String> = LazyLock::new(|| script("rw_renew"));
static RW_RELEASE: LazyLock<String> = LazyLock::new(|| script("rw_release"));
static PERMITS_ACQUIRE: LazyLock<String> = LazyLock::new(|| script("permits_acquire"));
static PERMITS_RENEW: LazyLock<String> = LazyLock::new(|| script("permits_renew"));
static PERMITS_RELEASE: LazyLock<String> = LazyLock::new(|| script("permits_release"));

/// The other keys may be on another server.
#[test]
fn read_write_lock_is_kept_and_left_key_by_key() {
    let mut bench = Bench::new(true);
    let time = "{job}:me:rwlock_timeout:1";
    let renew = |bench: &mut Bench, key: &str, holder: &str, mode: &str, step: &str| {
        bench.run(&RW_RENEW, &[key], &["30000", "0", holder, mode, step]).list().remove(0).int()
    };
    assert_eq!(renew(&mut bench, time, "me", "read", "T"), -1);
    assert_eq!(renew(&mut bench, "job", "me", "read", "H"), -1);
    assert_eq!(bench.keys(), 0, "no key is made");
    bench.command(&["HSET", "job", "mode", "read", "me", "1"]);
    bench.command(&["PEXPIRE", "job", "1000"]);
    assert_eq!(renew(&mut bench, "job", "you", "read", "H"), -1);
    assert_eq!(renew(&mut bench, "job", "me", "write", "H"), -2);
    assert!(bench.command(&["PTTL", "job"]).int() <= 1000);
    assert_eq!(renew(&mut bench, "job", "me", "read", "H"), 0);
    assert!(bench.command(&["PTTL", "job"]).int() > 1000);
    assert_eq!(bench.keys(), 1, "the time is not made");
    bench.command(&["SET", time, "1", "PX", "1000"]);
    assert_eq!(renew(&mut bench, time, "me", "read", "T"), 0);
    assert!(bench.command(&["PTTL", time]).int() > 1000);
    let release = |bench: &mut Bench, mode: &str, count: &str| {
        bench.run(&RW_RELEASE, &["job"], &["me", mode, count]).int()
    };
    assert_eq!(release(&mut bench, "read", "1"), 0);
    assert_eq!(release(&mut bench, "read", "0"), 0);
    assert_eq!(release(&mut bench, "read", "0"), -1);
    assert_eq!(bench.keys(), 1, "the time is left to lapse");
    bench.command(&["HSET", "job", "mode", "write", "me:write", "2"]);
    assert_eq!(renew(&mut bench, "job", "me", "write", "H"), 0);
    assert_eq!(release(&mut bench, "write", "1"), 0);
    assert_eq!(bench.command(&["HGET", "job", "me:write"]).text(), "1");
    assert_eq!(release(&mut bench, "write", "0"), 0);
    assert_eq!(bench.keys(), 1);
}

/// The counter may be on another server. The semaphore keeps its size.
#[test]
fn permits_are_kept_and_left_without_their_counter() {
    let mut bench = Bench::new(true);
    let (both, out) = (["job", "{job}:timeout"], ["{job}:timeout"]);
    let [me, you] = ["m", "y"].map(|byte| byte.repeat(14));
    let acquire = |bench: &mut Bench, ids: &str, take: &str| {
        let keys = ["job", "{job}:timeout", "leasehold_sizes:{job}"];
        let reply = bench.run(&PERMITS_ACQUIRE, &keys, &["3", take, "30000", "60000", ids]);
        assert_eq!(reply, Reply::Int(0));
    };
    let renew = |bench: &mut Bench, keys: &[&str], ids: &str| {
        bench.run(&PERMITS_RENEW, keys, &["30000", "60000", "2", ids]).list().remove(0).int()
    };
    let release = |bench: &mut Bench, keys: &[&str], ids: &str| {
        bench.run(&PERMITS_RELEASE, keys, &["2", ids])
    };
    let free = |bench: &mut Bench| bench.command(&["GET", "job"]).text();
    assert_eq!(renew(&mut bench, &out, &me), -1);
    assert_eq!(release(&mut bench, &out, &me), Reply::Int(-1));
    assert_eq!(bench.keys(), 0);
    acquire(&mut bench, &me, "2");
    bench.command(&["PEXPIRE", "{job}:timeout", "1000"]);
    assert_eq!(renew(&mut bench, &out, &me), 0);
    assert!(bench.command(&["PTTL", "{job}:timeout"]).int() > 30_000);
    for _ in 0..2 {
        assert_eq!(release(&mut bench, &out, &me), Reply::Int(0));
        assert_eq!(renew(&mut bench, &out, &me), -1, "what was released stays so");
        assert_eq!(bench.command(&["ZCOUNT", "{job}:timeout", "0", "0"]).int(), 2);
        assert_eq!(free(&mut bench), "1");
    }
    acquire(&mut bench, &you, "3");
    assert_eq!(
        (free(&mut bench), bench.command(&["ZCARD", "{job}:timeout"]).int()),
        ("0".into(), 3)
    );
    // A release that is repeated once the counter is back runs to its end.
    release(&mut bench, &out, &you);
    assert_eq!(release(&mut bench, &both, &you), Reply::Int(0));
    assert_eq!(
        (free(&mut bench), bench.command(&["ZCARD", "{job}:timeout"]).int()),
        ("2".into(), 1)
    );
    // And so does a late renewal.
    acquire(&mut bench, &me, "2");
    release(&mut bench, &out, &me);
    assert_eq!(renew(&mut bench, &both, &me), -1);
    assert_eq!(
        (free(&mut bench), bench.command(&["ZCARD", "{job}:timeout"]).int()),
        ("2".into(), 1)
    );
}

/// The id of the first permit of the holder whose ids begin with this letter.
fn first_permit(holder: &str) -> String {
    format!("{}\0\u{1}", holder.repeat(14))
}

const PERMIT_KEYS: [&str; 3] = ["job", "{job}:timeout", "leasehold_sizes:{job}"];
/// A time in ms that does not come.
const NEVER: &str = "99999999999999";

/// Two of four permits are left to take after a resize, once those that have expired are taken back.
#[test]
fn release_after_a_shrink_wakes_if_permits_have_expired() {
    let mut bench = Bench::new(true);
    let [one, two, three, four] = ["a", "b", "c", "d"].map(first_permit);
    bench.command(&["SET", "job", "-2"]);
    for (id, ends) in [(one, "1"), (two, "1"), (three, NEVER), (four, NEVER)] {
        bench.command(&["ZADD", "{job}:timeout", ends, &id]);
    }
    let mut waiter = bench.server.connection();
    waiter.subscribe("redisson_sc:{job}");
    let reply = bench.run(&PERMITS_RELEASE, &PERMIT_KEYS[..2], &["1", &"d".repeat(14)]);
    assert_eq!(reply, Reply::Int(1), "one is woken");
    assert_eq!(bench.command(&["GET", "job"]).text(), "-1");
}

/// It is done, so it is no error.
#[test]
fn release_after_a_shrink_needs_no_right_to_count() {
    let mut bench = Bench::new(true);
    bench.command(&["SET", "job", "-2"]);
    for (holder, ends) in [("a", "1"), ("b", NEVER)] {
        bench.command(&["ZADD", "{job}:timeout", ends, &first_permit(holder)]);
    }
    bench.command(&["ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-zcount"]);
    bench.command(&["AUTH", "limited", "any"]);
    let reply = bench.run(&PERMITS_RELEASE, &PERMIT_KEYS[..2], &["1", &"b".repeat(14)]);
    assert_eq!(reply, Reply::Int(0), "none is woken");
    assert_eq!(bench.command(&["GET", "job"]).text(), "-1");
}

#[test]
fn late_copy_of_an_acquire_revives_no_permit_after_a_shrink() {
    let mut bench = Bench::new(true);
    let [own, other] = ["a", "b"].map(first_permit);
    bench.command(&["SET", "job", "-1"]);
    bench.command(&["HSET", PERMIT_KEYS[2], "2", "1"]);
    bench.command(&["ZADD", "{job}:timeout", "1", &own, NEVER, &other]);
    let args = ["2", "1", "30000", "60000", &"a".repeat(14)];
    assert!(bench.run(&PERMITS_ACQUIRE, &PERMIT_KEYS, &args).int() <= -3, "it is held");
    assert_eq!(bench.command(&["ZSCORE", "{job}:timeout", &own]).text(), "1");
    // While all fit, it is the same grant again.
    bench.command(&["SET", "job", "0"]);
    assert_eq!(bench.run(&PERMITS_ACQUIRE, &PERMIT_KEYS, &args).int(), 0);
}

/// A user may extend only the permits that are out.
#[test]
fn acquire_that_may_not_keep_the_counter_takes_no_permit() {
    let mut bench = Bench::new(true);
    bench.command(&["SET", "job", "3", "PX", "5000"]);
    let rules = ["on", ">secret", "~*", "&*", "+@all", "-pexpire", "(+pexpire ~*:timeout)"];
    bench.command(&[&["ACL", "SETUSER", "limited"], &rules[..]].concat());
    let mut limited = bench.server.connection();
    limited.command(&["AUTH", "limited", "secret"]);
    bench.connection = limited;
    let args = ["3", "1", "30000", "60000", &"a".repeat(14)];
    let reply = bench.run(&PERMITS_ACQUIRE, &PERMIT_KEYS, &args);
    assert!(matches!(&reply, Reply::Error(_)), "{reply:?}");
    let mut all = bench.server.connection();
    assert_eq!(all.command(&["GET", "job"]).text(), "3");
    assert_eq!(all.command(&["EXISTS", "{job}:timeout"]).int(), 0);
}

//! The server in this process that the simulation uses, beside a real one: the same commands, and the scripts themselves, have
//! the same replies on both, but for the time that passes between the two.

use super::script_of;
use kit::lua::LuaServer;
use kit::{Dice, Reply, Resp, Server};

/// It takes a processor for some seconds; `LEASEHOLD_SEEDS=60` for a minute or two.
const ROUNDS: u64 = 1;
const CALLS: u64 = 150;

/// How many microseconds may be between what two servers say of the time.
const APART: f64 = 10_000_000.0;

/// What is sent to both servers.
struct Asked {
    /// The name of the script; empty for a command.
    script: &'static str,
    layout: &'static str,
    keys: Vec<String>,
    words: Vec<String>,
}

fn texts<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

const MANAGERS: [&str; 3] = [
    "5e1f3a54-5c1b-4b0e-9a39-0f5d1c0a7b11:",
    "6e1f3a54-5c1b-8b0e-9a39-0f5d1c0a7b11:",
    "7e1f3a54-5c1b-4b0e-9a39-0f5d1c0a7b11:",
];
const TTLS: [&str; 4] = ["200000", "300000", "400000", "31536000000"];
const BLOCKS: [&str; 3] = ["1", "8", "64"];
const RETENTIONS: [&str; 3] = ["0", "400000", "604800000"];
const WAITED: [&str; 3] = ["0", "100000000", "500000000"];
const KEPT: [&str; 3] = ["0", "200000", "500000"];
const MARKS: [&str; 3] = ["leasehold:done", "leasehold:kept", "leasehold:odd"];
const HEADS: [&str; 3] = ["abcdefghijklm1", "abcdefghijklm2", "abcdefghijklm3"];

struct Author {
    dice: Dice,
}

impl Author {
    fn pick(&mut self, from: &[&str]) -> String {
        self.dice.pick(from).to_owned()
    }

    fn holder(&mut self) -> String {
        format!("{}{}", self.pick(&MANAGERS), self.dice.below(3) + 1)
    }

    fn lock(&mut self) -> String {
        self.pick(&["a", "b", "x{c}"])
    }

    fn fence(lock: &str) -> String {
        derived("redisson_lock_token:", lock)
    }

    fn fencing(&mut self) -> Vec<String> {
        vec![self.pick(&BLOCKS), self.pick(&RETENTIONS)]
    }

    fn reason(&mut self) -> Vec<String> {
        texts(["by me", "why not", "leasehold_inbox:", "n"])
    }

    fn asked(&mut self, layout: &'static str) -> Asked {
        if self.dice.percent(25) {
            return self.command(layout);
        }
        let plain = !layout.is_empty();
        let lock = self.lock();
        let holder = self.holder();
        let own = &[
            "acquire_alone",
            "acquire_all",
            "batch",
            "reserve",
            "renew",
            "inspect",
            "annotate",
            "release_alone",
            "force",
            "release_keep",
            "steal",
            "want",
            "note_read",
            "metadata",
            "describe",
            "owner",
            "release_alone",
            "acquire_alone",
        ][..];
        let others = &[
            "line_acquire",
            "line_release",
            "line_leave",
            "line_inspect",
            "rest_yield",
            "rw_acquire",
            "rw_acquire",
            "rw_release",
            "rw_renew",
            "rw_force",
            "rw_leave",
            "rw_inspect",
            "permits_acquire",
            "permits_acquire",
            "permits_release",
            "permits_renew",
            "permits_force",
            "permits_resize",
            "permits_inspect",
        ][..];
        let known = own.len() as u64 + if plain { 0 } else { others.len() as u64 };
        let drawn = self.dice.below(known) as usize;
        let script = own.iter().chain(others).nth(drawn).expect("it is one of them");
        let mut asked = self.call(script, &lock, &holder);
        asked.layout = layout;
        // Something is wrong.
        if self.dice.percent(4) && !asked.words.is_empty() {
            let at = self.dice.below(asked.words.len() as u64) as usize;
            asked.words[at] = self.pick(&["-1", "1.5", "x", "", "1e400", "9007199254740993"]);
        }
        asked
    }

    /// Keys of a lock, of a read-write lock and of a semaphore, so that some are met by the wrong script.
    fn command(&mut self, layout: &'static str) -> Asked {
        let lock = self.lock();
        let key = match self.dice.below(8) {
            0..=2 => lock.clone(),
            3 => Self::fence(&lock),
            4 => derived("leasehold_note:", &lock),
            5 => derived("leasehold_line:", &lock),
            6 => format!("{}:timeout", derived("", &lock)),
            _ => derived("leasehold_sizes:", &lock),
        };
        let number =
            self.pick(&["0", "3", "-2", "1.5", "9007199254740991", "x", "1e3", "+7", "007"]);
        let field = self.pick(&["mode", "f", "g", "h"]);
        let other = self.pick(&["f", "g", "h"]);
        let ttl = self.pick(&["200000", "500000", "-1", "0", "x", "9223372036854775807"]);
        let (first, last) = (self.pick(&["0", "1", "-2", "x"]), self.pick(&["0", "-1", "1", "5"]));
        let words = match self.dice.below(34) {
            0 => vec!["DEL", &key],
            1 => vec!["SET", &key, &number],
            2 => vec!["SET", &key, &number, "PX", &ttl],
            3 => vec!["SET", &key, &number, "NX", "PX", &ttl],
            4 => vec!["SET", &key, &number, "XX", "KEEPTTL"],
            5 => vec!["SET", &key, &number, "KEEPTTL", "GET"],
            6 => vec!["SET", &key, &number, "ODD"],
            7 => vec!["GET", &key],
            8 => vec!["EXISTS", &key, &lock],
            9 => vec!["PTTL", &key],
            10 => vec!["PEXPIRE", &key, &ttl],
            11 => vec!["PEXPIRE", &key, &ttl, "GT"],
            12 => vec!["HSET", &key, &field, &number],
            13 => vec!["HSET", &key, &field, &number, &other, "2"],
            14 => vec!["HSET", &key, &field],
            15 => vec!["HDEL", &key, &field, &other],
            16 => vec!["HGET", &key, &field],
            17 => vec!["HGETALL", &key],
            18 => vec!["HKEYS", &key],
            19 => vec!["HLEN", &key],
            20 => vec!["HEXISTS", &key, &field],
            21 => vec!["ZADD", &key, &number, &field],
            22 => vec!["ZADD", &key, "XX", &number, &field, "1", &other],
            23 => vec!["ZREM", &key, &field, &other],
            24 => vec!["ZCARD", &key],
            25 => vec!["ZCOUNT", &key, "-inf", &number],
            26 => vec!["ZRANGE", &key, &first, &last],
            27 => vec!["ZRANGE", &key, &first, &last, "WITHSCORES"],
            28 => vec!["ZSCORE", &key, &field],
            29 => vec!["ZMSCORE", &key, &field, &other],
            30 => vec!["ZREMRANGEBYRANK", &key, &first, &last],
            31 => vec!["PUBLISH", &key, &field],
            32 => vec!["GET"],
            _ => vec!["HGET", &key, &field, &other],
        };
        let words = words.into_iter().map(str::to_owned).collect();
        // As a client sends it, or as a script does.
        let script = if self.dice.percent(50) { "" } else { "command" };
        Asked { script, layout, keys: Vec::new(), words }
    }

    fn call(&mut self, script: &'static str, lock: &str, holder: &str) -> Asked {
        let of = |kind: &str| derived(kind, lock);
        let ttl = self.pick(&TTLS);
        let fenced = self.dice.percent(60);
        let fence = fenced.then(|| Self::fence(lock));
        let fencing = if fenced { self.fencing() } else { Vec::new() };
        let line = || vec![lock.to_owned(), of("leasehold_line:"), of("leasehold_lapse:")];
        let (waited, kept) = (self.pick(&WAITED), self.pick(&KEPT));
        let mode = self.pick(&["read", "write"]);
        let timeout = format!("{}:{holder}:rwlock_timeout:1", of(""));
        let semaphore =
            || vec![lock.to_owned(), format!("{}:timeout", of("")), of("leasehold_sizes:")];
        let (head, take) = (self.pick(&HEADS), self.pick(&["1", "2", "3"]));
        let size = self.pick(&["3", "3", "3", "4"]);
        let one = || vec![lock.to_owned()];
        let channel = of("redisson_lock__channel:");
        let (keys, words) = match script {
            "acquire_alone" => {
                let mut words = vec![holder.to_owned(), ttl];
                // A proposal.
                let proposes = fenced && self.dice.percent(20);
                words.extend(fencing);
                if proposes {
                    words[2] = "0".to_owned();
                }
                ([one(), Vec::from_iter(fence)].concat(), words)
            }
            "acquire_all" => {
                let locks = ["a", "b"];
                let keys = locks
                    .iter()
                    .flat_map(|lock| [Some(lock.to_string()), fenced.then(|| Self::fence(lock))]);
                let mut words = vec![ttl];
                words.extend(if fenced { fencing } else { texts(["0", "0"]) });
                words.push(self.pick(&MANAGERS));
                words.push(format!("{},{}", self.dice.below(3) + 1, self.dice.below(3) + 1));
                (keys.flatten().collect(), words)
            }
            "batch" => self.batch(),
            "renew" => self.renewal(),
            "reserve" => {
                let first = self.pick(&["1", "2000000000000000", "9007199254740991"]);
                let words = [vec![holder.to_owned(), first], self.fencing()].concat();
                (vec![lock.to_owned(), Self::fence(lock)], words)
            }
            "inspect" => (one(), Vec::new()),
            "annotate" => {
                let ttl = self.pick(&["0", "200000"]);
                let rev = self.pick(&["1", "2", "3"]);
                let mut words = vec![holder.to_owned(), ttl, of("leasehold_leader:"), rev];
                words.extend(texts(["host", "here"]));
                if self.dice.percent(50) {
                    words.extend(texts(["port", "80"]));
                }
                (vec![lock.to_owned(), of("leasehold_meta:")], words)
            }
            "release_alone" => {
                let braced = lock.contains('{').then(|| "1".to_owned());
                (one(), [Some(holder.to_owned()), braced].into_iter().flatten().collect())
            }
            "release_keep" => (one(), vec![holder.to_owned(), self.pick(&MARKS), ttl]),
            "force" | "rw_force" => {
                let mut words = match self.dice.below(3) {
                    0 => Vec::new(),
                    _ => [texts(["force"]), self.reason()].concat(),
                };
                if script == "force" && !words.is_empty() && self.dice.percent(50) {
                    words.push(holder.to_owned());
                }
                (one(), words)
            }
            "steal" => {
                let from = self.holder();
                let words = [vec![holder.to_owned(), ttl, from], self.reason(), fencing].concat();
                let keys = [vec![lock.to_owned(), of("leasehold_note:")], Vec::from_iter(fence)];
                (keys.concat(), words)
            }
            "want" => {
                let words = [vec![holder.to_owned()], self.reason()].concat();
                (vec![lock.to_owned(), of("leasehold_note:")], words)
            }
            "rest_yield" => (one(), texts(["leasehold_inbox:", "n"])),
            "note_read" => (vec![of("leasehold_note:")], Vec::new()),
            "metadata" => (vec![of("leasehold_meta:")], vec![channel, "NUMSUB".to_owned()]),
            "describe" => {
                let ttl = self.pick(&["0", "200000"]);
                (texts(["leasehold:manager:m"]), [vec![ttl], texts(["host", "here"])].concat())
            }
            "owner" => (texts(["leasehold:manager:m"]), Vec::new()),
            "line_acquire" => {
                let keys = [line(), Vec::from_iter(fence)].concat();
                (keys, [vec![holder.to_owned(), ttl, waited, kept], fencing].concat())
            }
            "line_release" | "line_leave" => (line(), vec![holder.to_owned(), waited, kept]),
            "line_inspect" => (line(), Vec::new()),
            "rw_acquire" => {
                let mut sides = [of("leasehold_read:"), of("leasehold_write:")];
                if mode == "write" {
                    sides.reverse();
                }
                let keys = [vec![lock.to_owned(), timeout], sides.to_vec(), Vec::from_iter(fence)];
                let changes = self.pick(&["0", "0", "1"]);
                let words = vec![holder.to_owned(), ttl, mode, changes, waited, kept];
                (keys.concat(), [words, fencing].concat())
            }
            "rw_release" => {
                let count = self.pick(&["0", "0", "2"]);
                (vec![lock.to_owned(), timeout], vec![holder.to_owned(), mode, count])
            }
            "rw_renew" => {
                let keys = [vec![lock.to_owned(), timeout], Vec::from_iter(fence)].concat();
                let step = if fenced { "F" } else { "L" }.to_owned();
                let kept = self.pick(&RETENTIONS);
                (keys, vec![ttl, kept, holder.to_owned(), mode, step])
            }
            "rw_leave" => {
                let side = of(if mode == "write" { "leasehold_write:" } else { "leasehold_read:" });
                (vec![lock.to_owned(), side], vec![holder.to_owned(), mode])
            }
            "rw_inspect" => (one(), vec![channel, "NUMSUB".to_owned()]),
            "permits_acquire" => (semaphore(), vec![size, take, ttl, self.pick(&RETENTIONS), head]),
            "permits_release" => (semaphore()[..2].to_vec(), vec![take, head]),
            "permits_renew" => {
                (semaphore()[..2].to_vec(), vec![ttl, self.pick(&RETENTIONS), take, head])
            }
            "permits_force" => (semaphore(), Vec::new()),
            "permits_resize" => (semaphore(), vec![size, self.pick(&RETENTIONS)]),
            "permits_inspect" => (semaphore()[..2].to_vec(), vec![channel, "NUMSUB".to_owned()]),
            other => panic!("no words for {other}"),
        };
        Asked { script, layout: "", keys, words }
    }

    fn batch(&mut self) -> (Vec<String>, Vec<String>) {
        let (mut keys, mut words, mut holders) = (Vec::new(), Vec::new(), Vec::new());
        let mut steps = "SM".to_owned();
        words.push(self.pick(&TTLS));
        words.extend(self.fencing());
        words.push(self.pick(&MANAGERS));
        for _ in 0..self.dice.below(5) + 1 {
            let step = self.pick(&["A", "F", "R", "R", "C"]);
            let lock = self.lock();
            holders.push((self.dice.below(3) + 1).to_string());
            keys.push(lock.clone());
            match &*step {
                "F" => keys.push(Self::fence(&lock)),
                "C" => words.push(self.pick(&["1", "2", "0"])),
                _ => {}
            }
            steps.push_str(&step);
        }
        words.extend([holders.join(","), steps]);
        (keys, words)
    }

    fn renewal(&mut self) -> (Vec<String>, Vec<String>) {
        let (mut keys, mut words, mut holders) = (Vec::new(), Vec::new(), Vec::new());
        words.extend([self.pick(&TTLS), self.pick(&RETENTIONS)]);
        let mut steps = "M".to_owned();
        words.push(self.pick(&MANAGERS));
        for _ in 0..self.dice.below(4) + 1 {
            if self.dice.percent(20) {
                steps.push('T');
                words.push(self.pick(&TTLS));
            }
            let step = self.pick(&["F", "L"]);
            let lock = self.lock();
            holders.push((self.dice.below(3) + 1).to_string());
            keys.push(lock.clone());
            if step == "F" {
                keys.push(Self::fence(&lock));
            }
            steps.push_str(&step);
        }
        words.extend([holders.join(","), steps]);
        (keys, words)
    }
}

/// As the store derives keys.
fn derived(kind: &str, lock: &str) -> String {
    if lock.contains('{') { format!("{kind}{lock}") } else { format!("{kind}{{{lock}}}") }
}

/// Runs a command that comes without keys as a script does.
const COMMAND: &str = "return redis.pcall(unpack(ARGV))";

fn text_of(asked: &Asked) -> String {
    match asked.script {
        "command" => COMMAND.to_owned(),
        name => script_of(asked.layout, name),
    }
}

/// Whether two replies are the same but for what time has passed.
fn alike(one: &Reply, other: &Reply) -> bool {
    match (one, other) {
        (Reply::Int(one), Reply::Int(other)) => near(*one as f64, *other as f64),
        (Reply::Text(one), Reply::Text(other)) => alike_texts(one, other),
        (Reply::List(one), Reply::List(other)) => {
            let mut pairs = one.iter().zip(other);
            one.len() == other.len() && pairs.all(|(one, other)| alike(one, other))
        }
        // Where in a script it happened does not count.
        (Reply::Error(one), Reply::Error(other)) => {
            without_position(one) == without_position(other)
        }
        _ => one == other,
    }
}

fn near(one: f64, other: f64) -> bool {
    let apart = if one.abs() > 1e8 { APART } else { APART / 1000.0 };
    one == other || one.abs() > 100_000.0 && (one - other).abs() < apart
}

fn alike_texts(one: &str, other: &str) -> bool {
    let (mut ones, mut others) = (one.split(' '), other.split(' '));
    one == other
        || loop {
            let (one, other) = match (ones.next(), others.next()) {
                (None, None) => break true,
                (Some(one), Some(other)) => (one, other),
                _ => break false,
            };
            let same = match (one.parse(), other.parse()) {
                (Ok(one), Ok(other)) => near(one, other),
                _ => one == other,
            };
            if !same {
                break false;
            }
        }
}

fn without_position(text: &str) -> String {
    let text = text.split(" script: ").next().unwrap_or_default();
    let mut words = Vec::new();
    for word in text.split(' ') {
        let position = word.starts_with("user_script:");
        words.push(if position { "user_script:" } else { word });
    }
    words.join(" ")
}

/// All that is on a server, by its own commands.
fn look(ask: &mut dyn FnMut(&[&str]) -> Reply, keys: &[String]) -> Vec<Reply> {
    let mut seen = Vec::new();
    for key in keys {
        seen.push(ask(&["PTTL", key]));
        let mut replies =
            [&["GET", key][..], &["HGETALL", key], &["ZRANGE", key, "0", "-1", "WITHSCORES"]]
                .map(&mut *ask)
                .to_vec();
        // In another order where a server keeps many, or long ones.
        if let Reply::List(items) = &mut replies[1] {
            let mut pairs: Vec<_> = items.chunks(2).map(<[_]>::to_vec).collect();
            pairs.sort_by_key(|pair| pair[0].clone().text());
            *items = pairs.concat();
        }
        seen.extend(replies);
    }
    seen
}

fn set_clock(real: &mut Resp, stub: &LuaServer) {
    let time = real.command(&["TIME"]).list();
    let now = time[0].int() * 1_000_000 + time[1].int();
    stub.state().keys.now = now as u64;
}

fn compare(seed: u64, layout: &'static str, server: &Server) -> u64 {
    let mut real = server.connection();
    real.command(&["FLUSHALL"]);
    let stub = LuaServer::new();
    let mut author = Author { dice: Dice::new(seed) };
    let (mut met, mut refused) = (Vec::<String>::new(), 0);
    for at in 0..CALLS {
        let asked = author.asked(layout);
        set_clock(&mut real, &stub);
        let (ours, theirs) = if asked.script.is_empty() {
            let words: Vec<_> = asked.words.iter().map(|word| word.clone().into_bytes()).collect();
            let command: Vec<_> = asked.words.iter().map(String::as_str).collect();
            (stub.command(&words), real.command(&command))
        } else {
            let text = text_of(&asked);
            let bytes = |words: &[String]| -> Vec<Vec<u8>> {
                words.iter().map(|word| word.clone().into_bytes()).collect()
            };
            let count = asked.keys.len().to_string();
            let mut words = vec!["EVAL", &text, &count];
            words.extend(asked.keys.iter().chain(&asked.words).map(String::as_str));
            let theirs = real.command(&words);
            (stub.eval(&text, &bytes(&asked.keys), &bytes(&asked.words)), theirs)
        };
        let (mut ours, mut theirs) = (Reply::from(ours), theirs);
        if asked.script == "reserve" {
            // For how long each has been up, and the id of its run.
            for reply in [&mut ours, &mut theirs] {
                if let Reply::List(items) = reply {
                    items.drain(..2);
                }
            }
        }
        refused += u64::from(ours.error().is_some());
        let what = || {
            format!("seed {seed}, call {at}: {} {:?} {:?}", asked.script, asked.keys, asked.words)
        };
        assert!(alike(&ours, &theirs), "{}\nreal {theirs:?}\nours {ours:?}", what());
        for key in stub.state().keys.names() {
            let key = String::from_utf8(key).expect("a text");
            if !met.contains(&key) {
                met.push(key);
            }
        }
        let theirs = look(&mut |words| real.command(words), &met);
        let mut ask = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
            Reply::from(stub.command(&words))
        };
        let ours = look(&mut ask, &met);
        for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let key = &met[at / 4];
            assert!(alike(ours, theirs), "{}\n{key}: real {theirs:?}\nours {ours:?}", what());
        }
    }
    let count = real.command(&["DBSIZE"]).int();
    assert_eq!(count, stub.state().keys.names().len() as i64, "seed {seed}");
    assert_eq!(stub.state().unknown, [""; 0], "seed {seed}");
    refused
}

#[test]
fn server_in_this_process_replies_as_a_real_one() {
    let server = Server::start();
    let asked = std::env::var("LEASEHOLD_SEEDS").ok();
    let rounds = asked.map_or(ROUNDS, |seeds| seeds.parse().expect("LEASEHOLD_SEEDS is a number"));
    for layout in ["", "plain_"] {
        let refused: u64 = (0..rounds).map(|seed| compare(seed, layout, &server)).sum();
        println!("{} calls, of which {refused} were refused", rounds * CALLS);
    }
}

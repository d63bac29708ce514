//! The commands that scripts use.

use super::keyspace::{Data, Field, Scored};
use super::number::{of_double, score, whole};
use super::{Answer, Message, State};

type Ran = Result<Answer, String>;

const SYNTAX: &str = "ERR syntax error";

/// How many words a command has, itself included: so many at least, and no more unless it takes any number.
struct Arity {
    least: usize,
    more: bool,
}

fn arity(command: &str) -> Option<Arity> {
    let arity = match command {
        "TIME" => Arity { least: 1, more: false },
        "INFO" => Arity { least: 1, more: true },
        "GET" | "HGETALL" | "HKEYS" | "HLEN" | "PTTL" | "ZCARD" => Arity { least: 2, more: false },
        "DEL" | "EXISTS" | "PUBSUB" => Arity { least: 2, more: true },
        "HEXISTS" | "HGET" | "PUBLISH" | "SPUBLISH" | "ZSCORE" => Arity { least: 3, more: false },
        "HDEL" | "PEXPIRE" | "SET" | "ZMSCORE" | "ZREM" => Arity { least: 3, more: true },
        "HSET" | "ZADD" | "ZRANGE" => Arity { least: 4, more: true },
        "ZCOUNT" | "ZREMRANGEBYRANK" => Arity { least: 4, more: false },
        _ => return None,
    };
    Some(arity)
}

impl State {
    /// Runs a command of a client.
    pub(super) fn run(&mut self, words: &[Vec<u8>]) -> Ran {
        let name = String::from_utf8_lossy(&words[0]).to_ascii_uppercase();
        let Some(Arity { least, more }) = arity(&name) else {
            self.unknown.push(name.clone());
            return Err(format!("ERR unknown command '{name}'"));
        };
        if words.len() < least || words.len() > least && !more {
            let name = name.to_ascii_lowercase();
            return Err(format!("ERR wrong number of arguments for '{name}' command"));
        }
        self.dispatch(&name, &words[1..])
    }

    /// Runs a command that a script calls, which is refused in other words.
    pub(super) fn run_in_script(&mut self, words: &[Vec<u8>]) -> Ran {
        let name = String::from_utf8_lossy(&words[0]).to_ascii_uppercase();
        let Some(Arity { least, more }) = arity(&name) else {
            self.unknown.push(name);
            return Err("ERR Unknown Redis command called from script".to_owned());
        };
        if words.len() < least || words.len() > least && !more {
            return Err("ERR Wrong number of args calling Redis command from script".to_owned());
        }
        self.dispatch(&name, &words[1..])
    }

    fn dispatch(&mut self, name: &str, words: &[Vec<u8>]) -> Ran {
        match name {
            "TIME" => Ok(self.time()),
            "INFO" => Ok(self.info()),
            "PUBLISH" | "SPUBLISH" => Ok(self.publish(&words[0], &words[1])),
            "PUBSUB" => self.pubsub(words),
            "DEL" => Ok(self.count(words, |state, key| state.keys.delete(key))),
            "EXISTS" => Ok(self.count(words, |state, key| state.keys.get(key).is_some())),
            "PTTL" => Ok(self.pttl(&words[0])),
            "PEXPIRE" => self.pexpire(&words[0], &words[1], &words[2..]),
            "GET" => Ok(Answer::optional(self.keys.text(&words[0])?.as_deref())),
            "SET" => self.set(&words[0], &words[1], &words[2..]),
            "HSET" => self.hset(&words[0], &words[1..]),
            "HDEL" => self.hdel(&words[0], &words[1..]),
            _ if name.starts_with('H') => self.look_at_hash(name, words),
            "ZADD" => self.zadd(&words[0], &words[1..]),
            "ZREM" => self.zrem(&words[0], &words[1..]),
            "ZREMRANGEBYRANK" => self.zremrangebyrank(words),
            _ => self.look_at_sorted(name, words),
        }
    }

    fn time(&self) -> Answer {
        let (seconds, micros) = (self.keys.now / 1_000_000, self.keys.now % 1_000_000);
        Answer::List(vec![Answer::bulk(seconds.to_string()), Answer::bulk(micros.to_string())])
    }

    /// The server has been up since its clock began.
    fn info(&self) -> Answer {
        let up = self.keys.now / 1_000_000;
        Answer::bulk(format!("# Server\r\nrun_id:{:040x}\r\nuptime_in_seconds:{up}\r\n", 7))
    }

    fn publish(&mut self, channel: &[u8], text: &[u8]) -> Answer {
        self.published.push(Message { channel: channel.to_vec(), text: text.to_vec() });
        Answer::Int(self.listeners.get(channel).copied().unwrap_or(0))
    }

    fn pubsub(&self, words: &[Vec<u8>]) -> Ran {
        if !matches!(&words[0][..], b"NUMSUB" | b"SHARDNUMSUB") {
            return Err("ERR unknown subcommand".to_owned());
        }
        let count = |channel: &Vec<u8>| {
            let count = self.listeners.get(channel).copied().unwrap_or(0);
            [Answer::Bulk(channel.clone()), Answer::Int(count)]
        };
        Ok(Answer::List(words[1..].iter().flat_map(count).collect()))
    }

    fn count(&mut self, keys: &[Vec<u8>], counts: impl Fn(&mut Self, &[u8]) -> bool) -> Answer {
        let mut count = 0;
        for key in keys {
            count += i64::from(counts(self, key));
        }
        Answer::Int(count)
    }

    fn pttl(&mut self, key: &[u8]) -> Answer {
        if self.keys.get(key).is_none() {
            return Answer::Int(-2);
        }
        let now = self.keys.millis();
        Answer::Int(self.keys.ends(key).map_or(-1, |ends| (ends - now).max(0)))
    }

    fn pexpire(&mut self, key: &[u8], millis: &[u8], options: &[Vec<u8>]) -> Ran {
        let gt = match options {
            [] => false,
            [option] if option.eq_ignore_ascii_case(b"GT") => true,
            _ => return Err("ERR Unsupported option".to_owned()),
        };
        let millis = whole(millis)?;
        let now = self.keys.millis();
        let Some(ends) = now.checked_add(millis) else {
            return Err("ERR invalid expire time in 'pexpire' command".to_owned());
        };
        if self.keys.get(key).is_none() {
            return Ok(Answer::Int(0));
        }
        // A key without a time to live counts as one that never ends.
        if gt && self.keys.ends(key).is_none_or(|before| ends <= before) {
            return Ok(Answer::Int(0));
        }
        if ends <= now {
            self.keys.delete(key);
        } else {
            self.keys.set_end(key, Some(ends));
        }
        Ok(Answer::Int(1))
    }

    fn set(&mut self, key: &[u8], text: &[u8], options: &[Vec<u8>]) -> Ran {
        let (mut nx, mut xx, mut get, mut keeps, mut ends) = (false, false, false, false, None);
        let mut options = options.iter();
        while let Some(option) = options.next() {
            match option.to_ascii_uppercase().as_slice() {
                b"NX" if !xx => nx = true,
                b"XX" if !nx => xx = true,
                b"GET" => get = true,
                b"KEEPTTL" if ends.is_none() => keeps = true,
                b"PX" if !keeps && ends.is_none() => {
                    let millis = whole(options.next().ok_or(SYNTAX)?)?;
                    let wrong = "ERR invalid expire time in 'set' command";
                    let end = self.keys.millis().checked_add(millis).filter(|_| millis > 0);
                    ends = Some(end.ok_or(wrong)?);
                }
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        let before = match get {
            true => Answer::optional(self.keys.text(key)?.as_deref()),
            false => Answer::Nil,
        };
        let there = self.keys.get(key).is_some();
        if nx && there || xx && !there {
            return Ok(before);
        }
        self.keys.put(key, Data::Text(text.to_vec()));
        if !keeps {
            self.keys.set_end(key, ends);
        }
        Ok(if get { before } else { Answer::Status("OK".to_owned()) })
    }

    fn hset(&mut self, key: &[u8], words: &[Vec<u8>]) -> Ran {
        if !words.len().is_multiple_of(2) {
            return Err("ERR wrong number of arguments for 'hset' command".to_owned());
        }
        if self.keys.hash(key)?.is_none() {
            self.keys.put(key, Data::Hash(Vec::new()));
        }
        let fields = self.keys.hash(key)?.expect("it was made");
        let mut added = 0;
        for pair in words.chunks(2) {
            match fields.iter_mut().find(|field| field.name == pair[0]) {
                Some(field) => field.text.clone_from(&pair[1]),
                None => {
                    added += 1;
                    fields.push(Field { name: pair[0].clone(), text: pair[1].clone() });
                }
            }
        }
        Ok(Answer::Int(added))
    }

    fn hdel(&mut self, key: &[u8], names: &[Vec<u8>]) -> Ran {
        let Some(fields) = self.keys.hash(key)? else { return Ok(Answer::Int(0)) };
        let before = fields.len();
        fields.retain(|field| !names.contains(&field.name));
        let deleted = before - fields.len();
        self.keys.tidy(key);
        Ok(Answer::Int(deleted as i64))
    }

    fn look_at_hash(&mut self, name: &str, words: &[Vec<u8>]) -> Ran {
        let none = Vec::new();
        let fields = self.keys.hash(&words[0])?.map_or(&none, |fields| &*fields);
        let field = || fields.iter().find(|field| field.name == words[1]);
        Ok(match name {
            "HEXISTS" => Answer::Int(field().is_some().into()),
            "HGET" => Answer::optional(field().map(|field| &field.text)),
            "HLEN" => Answer::Int(fields.len() as i64),
            "HKEYS" => {
                Answer::List(fields.iter().map(|field| Answer::bulk(&*field.name)).collect())
            }
            _ => {
                let pair = |field: &Field| [Answer::bulk(&*field.name), Answer::bulk(&*field.text)];
                Answer::List(fields.iter().flat_map(pair).collect())
            }
        })
    }

    fn zadd(&mut self, key: &[u8], words: &[Vec<u8>]) -> Ran {
        let (xx, words) = match words {
            [first, rest @ ..] if first.eq_ignore_ascii_case(b"XX") => (true, rest),
            words => (false, words),
        };
        if words.is_empty() || !words.len().is_multiple_of(2) {
            return Err(SYNTAX.to_owned());
        }
        let wrong = "ERR value is not a valid float";
        let scored = |pair: &[Vec<u8>]| {
            score(&pair[0], wrong).map(|score| Scored { score, element: pair[1].clone() })
        };
        let all: Vec<_> = words.chunks(2).map(scored).collect::<Result<_, _>>()?;
        if self.keys.sorted(key)?.is_none() {
            if xx {
                return Ok(Answer::Int(0));
            }
            self.keys.put(key, Data::Sorted(Vec::new()));
        }
        let elements = self.keys.sorted(key)?.expect("it was made");
        let mut added = 0;
        for one in all {
            match elements.iter_mut().find(|other| other.element == one.element) {
                Some(other) => other.score = one.score,
                None if xx => {}
                None => {
                    added += 1;
                    elements.push(one);
                }
            }
        }
        elements.sort_by(|one, other| {
            one.score.total_cmp(&other.score).then_with(|| one.element.cmp(&other.element))
        });
        Ok(Answer::Int(added))
    }

    fn zrem(&mut self, key: &[u8], names: &[Vec<u8>]) -> Ran {
        let Some(elements) = self.keys.sorted(key)? else { return Ok(Answer::Int(0)) };
        let before = elements.len();
        elements.retain(|one| !names.contains(&one.element));
        let removed = before - elements.len();
        self.keys.tidy(key);
        Ok(Answer::Int(removed as i64))
    }

    fn zremrangebyrank(&mut self, words: &[Vec<u8>]) -> Ran {
        let (first, last) = (whole(&words[1])?, whole(&words[2])?);
        let Some(elements) = self.keys.sorted(&words[0])? else { return Ok(Answer::Int(0)) };
        let removed = elements.drain(range(first, last, elements.len())).count();
        self.keys.tidy(&words[0]);
        Ok(Answer::Int(removed as i64))
    }

    fn look_at_sorted(&mut self, name: &str, words: &[Vec<u8>]) -> Ran {
        let wrong = "ERR min or max is not a float";
        let bounds = match name {
            "ZCOUNT" => Some((score(&words[1], wrong)?, score(&words[2], wrong)?)),
            _ => None,
        };
        let ranks = match name {
            "ZRANGE" => Some((whole(&words[1])?, whole(&words[2])?)),
            _ => None,
        };
        let with_scores = match words.get(3) {
            None => false,
            Some(word) if word.eq_ignore_ascii_case(b"WITHSCORES") => true,
            Some(_) if name == "ZRANGE" => return Err(SYNTAX.to_owned()),
            Some(_) => false,
        };
        let none = Vec::new();
        let elements = self.keys.sorted(&words[0])?.map_or(&none, |elements| &*elements);
        let score_of = |element: &Vec<u8>| {
            let found = elements.iter().find(|one| one.element == *element);
            found.map_or(Answer::Nil, |one| Answer::bulk(of_double(one.score)))
        };
        Ok(match (bounds, ranks) {
            (Some((low, high)), _) => {
                let within = elements.iter().filter(|one| low <= one.score && one.score <= high);
                Answer::Int(within.count() as i64)
            }
            (_, Some((first, last))) => {
                let mut list = Vec::new();
                for one in &elements[range(first, last, elements.len())] {
                    list.push(Answer::bulk(&*one.element));
                    if with_scores {
                        list.push(Answer::bulk(of_double(one.score)));
                    }
                }
                Answer::List(list)
            }
            _ if name == "ZCARD" => Answer::Int(elements.len() as i64),
            _ if name == "ZSCORE" => score_of(&words[1]),
            _ => Answer::List(words[1..].iter().map(score_of).collect()),
        })
    }
}

/// The positions from one rank to another; negative ones count from the end.
fn range(first: i64, last: i64, len: usize) -> std::ops::Range<usize> {
    let len = len as i64;
    let of = |rank: i64| if rank < 0 { rank + len } else { rank };
    let (first, last) = (of(first).max(0), of(last).min(len - 1));
    if first > last { 0..0 } else { first as usize..last as usize + 1 }
}

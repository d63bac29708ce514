//! Writes requests as arguments of scripts, and reads their replies as verdicts.

use super::keys::Keys;
use super::reply::{self, Code, Element};
use super::{Script, ScriptCall, Scripts, millis, modes};
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::connect::remote::Replicas;
use crate::store::{
    Absence, Acquire, Acquired, Arrival, Fencing, HolderId, Mode, Name, Release, Released,
    RenewBatch, Renewal,
};
use crate::util::reached::Rare;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A request that is one item of the batch script.
pub(in crate::store::redis) trait Request: Send + Sync + 'static {
    type Verdict: Send + Sync + 'static;

    fn name(&self) -> &Name;
    fn timeout(&self) -> Duration;
    fn write(&self, keys: &Keys, batch: &mut Batch);
    /// Returns the call of the script for a request that is alone in its call; `None` if there is no such script.
    fn alone(&self, codec: &Codec) -> Option<(&'static Script, ScriptCall)>;
    /// Returns the call with a single key, to send while a cluster has moved only some of its keys; `None` if it needs them
    /// together.
    fn with_one_key(&self, codec: &Codec) -> Option<(&'static Script, ScriptCall)>;
    /// Returns whether it cannot share a call with others.
    fn is_apart(&self) -> bool;
    /// Reads the reply to this item: one element, unless it had a call of its own.
    fn read(&self, codec: &Codec, sent: Instant, reply: &[Element]) -> Result<Self::Verdict>;
    /// Returns the verdict if too few replicas confirmed the call.
    fn unconfirmed(&self, verdict: Self::Verdict, error: &Error) -> Result<Self::Verdict>;
}

/// Returns an error if too few replicas confirmed a call: the last element of its reply, if it waited for them.
pub(in crate::store::redis) fn confirmed(
    wait: Option<Replicas>,
    reply: &mut Vec<Element>,
) -> Result<()> {
    let Some(Replicas { count, .. }) = wait else { return Ok(()) };
    match reply.pop() {
        Some(Element::Int(reached)) if reached >= i64::from(count) => Ok(()),
        Some(Element::Int(_)) => Err(Error::new(
            ErrorKind::Rejected,
            "too few replicas confirmed the grant in time; it is released",
        )
        .with_fate(Fate::Executed)),
        Some(Element::Text(text)) => Err(reply::classify(&text).with_fate(Fate::Unknown)),
        Some(Element::Other) | None => Err(reply::malformed_reply()),
    }
}

/// Builds a call of the batch script.
pub(in crate::store::redis) struct Batch {
    call: ScriptCall,
    steps: Steps,
    set: Option<Common>,
    /// Whether it may make a new hold.
    grants: bool,
}

/// The arguments that acquires usually have in common. They are sent once, and when they change.
#[derive(PartialEq, Eq)]
struct Common {
    ttl: Duration,
    fencing: Option<Fencing>,
}

impl Batch {
    /// Creates an empty batch with room for so many items.
    pub(in crate::store::redis) fn of(items: usize) -> Self {
        Self { call: ScriptCall::of(items), steps: Steps::of(items), set: None, grants: false }
    }

    /// Returns the call, which waits for the replicas if it may grant.
    pub(in crate::store::redis) fn finish(mut self, replicas: Option<Replicas>) -> ScriptCall {
        self.steps.finish(&mut self.call);
        self.call.wait = replicas.filter(|_| self.grants);
        self.call
    }

    fn set(&mut self, common: Common) {
        if self.set.as_ref() == Some(&common) {
            return;
        }
        self.steps.letters.push('S');
        self.call.number(millis(common.ttl));
        self.call.number(common.fencing.map_or(1, |fencing| fencing.block.into()));
        let retention = common.fencing.and_then(|fencing| fencing.retention);
        self.call.number(retention.map_or(0, millis));
        self.set = Some(common);
    }
}

/// The steps of a script and their holder ids.
struct Steps {
    letters: String,
    holders: HolderIds,
}

enum HolderIds {
    One(Option<HolderId>),
    /// The prefix of holder ids is sent only once. That pays, because an argument costs the client several times what its
    /// bytes cost.
    Many {
        rest: String,
        manager: Option<Uuid>,
    },
}

impl Steps {
    fn of(items: usize) -> Self {
        let holders = match items {
            0 | 1 => HolderIds::One(None),
            _ => HolderIds::Many { rest: String::with_capacity(items * 12), manager: None },
        };
        Self { letters: String::with_capacity(items + 2), holders }
    }

    /// Adds an item.
    fn item(&mut self, letter: char, holder: HolderId, call: &mut ScriptCall) {
        match &mut self.holders {
            HolderIds::One(one) => *one = Some(holder),
            HolderIds::Many { rest, manager } => {
                if *manager != Some(holder.manager()) {
                    self.letters.push('M');
                    call.manager_of(holder);
                    *manager = Some(holder.manager());
                }
                if !rest.is_empty() {
                    rest.push(',');
                }
                // A String takes whatever is written to it.
                let _ = holder.write_rest(rest);
            }
        }
        self.letters.push(letter);
    }

    fn finish(self, call: &mut ScriptCall) {
        match self.holders {
            HolderIds::One(Some(holder)) => call.holder(holder),
            HolderIds::One(None) => call.text(""),
            HolderIds::Many { rest, .. } => call.text(&rest),
        }
        call.text(&self.letters);
    }
}

/// Writes requests and reads replies.
#[derive(Clone)]
pub(in crate::store::redis) struct Codec {
    pub(in crate::store::redis) keys: Keys,
    pub(in crate::store::redis) scripts: &'static Scripts,
    /// The replicas that must confirm a grant before it counts.
    pub(in crate::store::redis) replicas: Option<Replicas>,
    /// Returns how often a server counts this store among the listeners of a channel. A function, because codecs know no
    /// connections.
    pub(in crate::store::redis) own_listeners: Arc<dyn Fn(&str) -> u64 + Send + Sync>,
}

impl Codec {
    /// Returns the call of a request that is alone in it: of a script of its own, or else of the batch's.
    pub(in crate::store::redis) fn lone_call(
        &self,
        request: &impl Request,
    ) -> (&'static Script, ScriptCall) {
        request.alone(self).unwrap_or_else(|| {
            let mut batch = Batch::of(1);
            request.write(&self.keys, &mut batch);
            (&self.scripts.batch, batch.finish(self.replicas))
        })
    }
}

impl Request for Acquire {
    type Verdict = Acquired;

    fn name(&self) -> &Name {
        &self.target.name
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn write(&self, keys: &Keys, batch: &mut Batch) {
        batch.grants = true;
        batch.set(Common { ttl: self.ttl, fencing: self.fencing });
        let letter = if self.fencing.is_some() { 'F' } else { 'A' };
        batch.steps.item(letter, self.holder, &mut batch.call);
        batch.call.key(&keys.lock(&self.target.name));
        if self.fencing.is_some() {
            batch.call.key(&keys.fence(&self.target.name));
        }
    }

    fn alone(&self, codec: &Codec) -> Option<(&'static Script, ScriptCall)> {
        if self.target.mode != Mode::Exclusive {
            let Codec { keys, scripts, replicas, .. } = codec;
            return Some(modes::acquire(keys, scripts, *replicas, self));
        }
        if let Some(arrival) = self.arrival {
            let mut call = call_in_line(&codec.keys, &self.target.name);
            call.holder(self.holder);
            call.number(millis(self.ttl));
            write_arrival(&mut call, arrival);
            write_fence(self, &codec.keys, &mut call);
            call.wait = codec.replicas;
            return Some((&codec.scripts.line_acquire, call));
        }
        let mut call = ScriptCall::of(1);
        call.key(&codec.keys.lock(&self.target.name));
        call.holder(self.holder);
        call.number(millis(self.ttl));
        write_fence(self, &codec.keys, &mut call);
        call.wait = codec.replicas;
        call.set_first =
            codec.scripts.acquires_by_set && self.fencing.is_none() && codec.replicas.is_none();
        Some((&codec.scripts.acquire, call))
    }

    fn with_one_key(&self, _codec: &Codec) -> Option<(&'static Script, ScriptCall)> {
        None
    }

    fn is_apart(&self) -> bool {
        self.target.mode != Mode::Exclusive || self.arrival.is_some()
    }

    fn read(&self, _codec: &Codec, sent: Instant, reply: &[Element]) -> Result<Acquired> {
        if self.target.mode != Mode::Exclusive {
            return modes::acquired(self, sent, reply);
        }
        let (reply, oldest) = match reply {
            [first, Element::Int(waited)] if self.is_apart() => {
                (first, Some(Duration::from_micros(u64::try_from(*waited).unwrap_or_default())))
            }
            [first] => (first, None),
            _ => return Err(reply::malformed_reply()),
        };
        reply::acquired(reply, self.fencing.is_some(), sent, oldest)
    }

    fn unconfirmed(&self, verdict: Acquired, error: &Error) -> Result<Acquired> {
        match verdict {
            Acquired::Granted { .. } => {
                Rare::RedisUnconfirmed.reached();
                Err(error.clone())
            }
            verdict => Ok(verdict),
        }
    }
}

impl Request for Release {
    type Verdict = Released;

    fn name(&self) -> &Name {
        &self.target.name
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn write(&self, keys: &Keys, batch: &mut Batch) {
        let letter = if self.count == 0 { 'R' } else { 'C' };
        batch.steps.item(letter, self.holder, &mut batch.call);
        batch.call.key(&keys.lock(&self.target.name));
        if self.count > 0 {
            batch.call.number(self.count.into());
        }
    }

    fn alone(&self, codec: &Codec) -> Option<(&'static Script, ScriptCall)> {
        if self.target.mode != Mode::Exclusive {
            return Some(modes::release(&codec.keys, codec.scripts, self));
        }
        if self.count > 0 {
            return None;
        }
        if let Some(keep) = self.keep {
            let mut call = ScriptCall::of(1);
            call.key(&codec.keys.lock(&self.target.name));
            call.holder(self.holder);
            call.text(keep.mark.holder());
            call.number(millis(keep.time));
            return Some((&codec.scripts.release_keep, call));
        }
        if let Some(arrival) = self.arrival {
            let mut call = call_in_line(&codec.keys, &self.target.name);
            call.holder(self.holder);
            write_arrival(&mut call, arrival);
            call.divisible = true;
            return Some((&codec.scripts.line_release, call));
        }
        let mut call = ScriptCall::of(1);
        call.key(&codec.keys.lock(&self.target.name));
        call.holder(self.holder);
        if codec.keys.has_brace(&self.target.name) {
            call.text("1");
        }
        Some((&codec.scripts.release, call))
    }

    fn with_one_key(&self, codec: &Codec) -> Option<(&'static Script, ScriptCall)> {
        if self.target.mode != Mode::Exclusive {
            return Some(modes::release_with_one_key(&codec.keys, codec.scripts, self));
        }
        // The arrival of the next waiter of this process is recorded when it asks.
        self.arrival.and_then(|_| Release { arrival: None, ..self.clone() }.alone(codec))
    }

    fn is_apart(&self) -> bool {
        self.target.mode != Mode::Exclusive
            || self.count == 0 && (self.arrival.is_some() || self.keep.is_some())
    }

    fn read(&self, codec: &Codec, _sent: Instant, reply: &[Element]) -> Result<Released> {
        let [reply] = reply else { return Err(reply::malformed_reply()) };
        let listeners = match reply.code()? {
            Code::Done(listeners) => listeners,
            Code::Absent(absence) => return Ok(Released::NotYours(absence)),
            Code::Other(0) => {
                reply::warn_of_no_wakeup();
                0
            }
            Code::Other(_) => return Err(reply::malformed_reply()),
        };
        // A subscription outlives its last waiter for a while, so we may be one of them.
        if listeners == 0 {
            return Ok(Released::done(0));
        }
        let ours = (codec.own_listeners)(&codec.keys.channel_of(&self.target).concat());
        Ok(Released::done(listeners.saturating_sub(ours)))
    }

    fn unconfirmed(&self, verdict: Released, _: &Error) -> Result<Released> {
        Ok(verdict)
    }
}

/// Writes the key of the fencing token and its settings.
pub(super) fn write_fence(acquire: &Acquire, keys: &Keys, call: &mut ScriptCall) {
    if let Some(fencing) = acquire.fencing {
        call.key(&keys.fence(&acquire.target.name));
        call.number(fencing.block.into());
        call.number(fencing.retention.map_or(0, millis));
    }
}

/// Begins a call with the keys of a lock and of its line.
pub(super) fn call_in_line(keys: &Keys, name: &Name) -> ScriptCall {
    let mut call = ScriptCall::of(2);
    call.key(&keys.lock(name));
    keys.in_line(name).iter().for_each(|key| call.key(key));
    call
}

pub(super) fn write_arrival(call: &mut ScriptCall, arrival: Arrival) {
    call.number(u64::try_from(arrival.waited.as_micros()).unwrap_or(u64::MAX));
    call.number(millis(arrival.kept));
}

/// Builds the call of the renewal script for some items of a batch.
pub(in crate::store::redis) fn renewal(
    keys: &Keys,
    batch: &RenewBatch,
    items: &[Renewal],
) -> ScriptCall {
    let mut call = ScriptCall::of(items.len());
    let mut steps = Steps::of(items.len());
    call.number(millis(batch.ttl));
    call.number(batch.fence_retention.map_or(0, millis));
    let mut ttl = batch.ttl;
    for item in items {
        let keeps = batch.retention_of(item).is_some();
        if ttl != batch.ttl_of(item) {
            ttl = batch.ttl_of(item);
            steps.letters.push('T');
            call.number(millis(ttl));
        }
        steps.item(if keeps { 'F' } else { 'L' }, item.holder, &mut call);
        call.key(&keys.lock(&item.target.name));
        if keeps {
            call.key(&keys.fence(&item.target.name));
        }
    }
    steps.finish(&mut call);
    call
}

/// Reads the reply of the renewal script for so many leases.
pub(in crate::store::redis) fn renewed(
    reply: &[Element],
    count: usize,
) -> Vec<Result<Option<Absence>>> {
    if reply == [Element::Int(0)] {
        return vec![Ok(None); count];
    }
    if reply.len() != count {
        return vec![Err(reply::malformed_reply()); count];
    }
    let one = |element: &Element| match element.code()? {
        Code::Done(0) => Ok(None),
        Code::Absent(absence) => Ok(Some(absence)),
        // By `noted.lua`.
        Code::Other(0) => Ok(Some(Absence::Stolen)),
        Code::Other(1) => Ok(Some(Absence::Forced)),
        Code::Done(_) | Code::Other(_) => Err(reply::malformed_reply()),
    };
    reply.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Mark;
    use crate::store::Target;
    use crate::store::connect::layout::Layout;
    use crate::util::trace;

    #[test]
    fn as_many_replicas_as_were_asked_for_confirm_a_grant() {
        let wait = Some(Replicas { count: 2, timeout: Duration::from_millis(10) });
        let rest = [Element::Int(1), Element::Int(7)];
        let ask = |last: Option<Element>| {
            let mut reply: Vec<Element> = rest.iter().cloned().chain(last).collect();
            (confirmed(wait, &mut reply), reply)
        };
        for enough in [2, 3] {
            let (result, reply) = ask(Some(Element::Int(enough)));
            result.unwrap();
            assert_eq!(reply, rest, "the answers are what is left");
        }
        for few in [0, 1] {
            let error = ask(Some(Element::Int(few))).0.unwrap_err();
            assert_eq!((error.kind(), error.fate()), (ErrorKind::Rejected, Fate::Executed));
        }
        let refused = Element::Text("NOPERM this user has no permissions to run 'wait'".to_owned());
        let error = ask(Some(refused)).0.unwrap_err();
        assert_eq!((error.kind(), error.fate()), (ErrorKind::Denied, Fate::Unknown));
        assert!(confirmed(wait, &mut Vec::new()).is_err());
        let mut reply = rest.to_vec();
        confirmed(None, &mut reply).unwrap();
        assert_eq!(reply, rest, "without replicas nothing was waited for");
    }
    fn codec(replicas: Option<Replicas>) -> Codec {
        Codec {
            keys: Keys::new(""),
            scripts: Scripts::of(Layout::Redisson, false),
            replicas,
            own_listeners: Arc::new(|_| 0),
        }
    }

    fn acquire() -> Acquire {
        let (holder, ttl) = (HolderId::new(Uuid::from_u128(1), 1), Duration::from_secs(30));
        let target = Target::exclusive(Name::new("n").unwrap());
        Acquire::new(target, holder, ttl, ttl)
    }

    fn release() -> Release {
        let Acquire { target, holder, timeout, .. } = acquire();
        Release::new(target, holder, 0, timeout)
    }

    fn of(manager: u128, number: u64) -> Acquire {
        Acquire { holder: HolderId::new(Uuid::from_u128(manager), number), ..acquire() }
    }

    #[tokio::test]
    async fn prefix_of_many_tokens_is_sent_once() {
        let codec = codec(None);
        let said = |requests: &[Acquire]| {
            let mut batch = Batch::of(requests.len());
            requests.iter().for_each(|request| request.write(&codec.keys, &mut batch));
            batch.finish(codec.replicas).arguments().split_off(3)
        };
        let (first, second, other) = (of(1, 7), of(1, 8), of(2, 9));
        let in_attempt = Acquire { holder: second.holder.in_attempt(3), ..second.clone() };
        let [one, two] = [1, 2].map(|manager| format!("{}:", Uuid::from_u128(manager)));
        let all = [first.clone(), second, other.clone(), in_attempt];
        assert_eq!(said(&all[..2]), [&one, "7,8", "SMAA"]);
        assert_eq!(said(&all), [&one, &two, &one, "7,8,9,8.3", "SMAAMAMA"]);
        // A single holder id is sent in full.
        assert_eq!(said(&all[..1]), [&first.holder.to_string(), "SA"]);
        let items = [&first, &other].map(|ask| Renewal::new(ask.target.clone(), ask.holder));
        let batch = RenewBatch::new(items.into(), first.ttl, first.timeout);
        let call = renewal(&codec.keys, &batch, &batch.items);
        assert_eq!(call.arguments(), ["30000", "0", &one, &two, "7,9", "MLML"]);
    }

    #[tokio::test]
    async fn each_answer_means_one_thing_to_each_request() {
        let (codec, sent) = (codec(None), crate::clock::Clock::system().now());
        let fenced = Acquire { fencing: Some(Fencing::new(1, None)), ..acquire() };
        let asked =
            |acquire: &Acquire, said| match acquire.read(&codec, sent, &[Element::Int(said)]) {
                Ok(Acquired::Granted { fence, reached, .. }) => {
                    format!("granted {fence:?} {reached}")
                }
                Ok(Acquired::Held { remaining, .. }) => format!("held {remaining:?}"),
                Ok(Acquired::NotYours(absence)) => format!("{absence:?}"),
                Err(error) => format!("{:?}", error.kind()),
            };
        for (said, plain, with_fence) in [
            (7, "Protocol", "granted Some(7) false"),
            (8, "Protocol", "granted Some(8) true"),
            (0, "granted None true", "Protocol"),
            (-3, "held None", "held None"),
            (-4, "held Some(0ns)", "held Some(0ns)"),
            (-30_004, "held Some(30s)", "held Some(30s)"),
        ] {
            assert_eq!(asked(&acquire(), said), plain, "{said}");
            assert_eq!(asked(&fenced, said), with_fence, "{said}");
        }
        asked(&fenced, i64::MIN);
        let done = |left: i64| acquire().read(&codec, sent, &[Element::Int(-4 - left - (1 << 52))]);
        for (left, known) in [(5, Some(Duration::from_millis(5))), (-1, None)] {
            let closed = Acquired::held(known).with_closed(Some(Mark::Done));
            assert_eq!(done(left).unwrap(), closed);
        }
        assert!(matches!(done(1 << 50), Ok(Acquired::Held { closed: None, .. })));
        let released = |said| {
            let verdict = release().read(&codec, sent, &[Element::Int(said)]);
            verdict.map_err(|error| error.kind())
        };
        for (said, absence) in [(-1, Absence::Gone), (-2, Absence::Taken)] {
            assert_eq!(released(said), Ok(Released::NotYours(absence)));
        }
        assert_eq!(released(-4), Err(ErrorKind::Protocol));
        let renewed = |said: &[i64], count| -> Vec<Result<Option<Absence>, ErrorKind>> {
            let reply: Vec<Element> = said.iter().copied().map(Element::Int).collect();
            let verdicts = renewed(&reply, count);
            verdicts.into_iter().map(|verdict| verdict.map_err(|error| error.kind())).collect()
        };
        assert_eq!(renewed(&[0], 3), [Ok(None), Ok(None), Ok(None)]);
        let all = [Ok(None), Ok(Some(Absence::Gone)), Ok(Some(Absence::Taken))];
        assert_eq!(renewed(&[0, -1, -2], 3), all);
        assert_eq!(renewed(&[1], 1), [Err(ErrorKind::Protocol)]);
        assert_eq!(renewed(&[-3], 1), [Ok(Some(Absence::Stolen))]);
        assert_eq!(renewed(&[-9], 1), [Err(ErrorKind::Protocol)]);
        assert_eq!(renewed(&[], 1), [Err(ErrorKind::Protocol)]);
        assert_eq!(renewed(&[0, 0], 1), [Err(ErrorKind::Protocol)]);
        assert_eq!(renewed(&[0, 0], 3).len(), 3);
    }

    #[tokio::test]
    async fn replicas_are_waited_for_where_a_hold_may_begin() {
        let replicas = Replicas { count: 1, timeout: Duration::from_millis(10) };
        let codec = codec(Some(replicas));
        for acquires in 0..3 {
            let mut batch = Batch::of(acquires + 1);
            (0..acquires).for_each(|_| acquire().write(&codec.keys, &mut batch));
            release().write(&codec.keys, &mut batch);
            let waits = acquires > 0;
            assert_eq!(batch.finish(codec.replicas).wait, waits.then_some(replicas), "{acquires}");
        }
    }

    #[tokio::test]
    async fn command_acquires_a_plain_lock_without_token_and_replicas() {
        let replicas = Replicas { count: 1, timeout: Duration::from_millis(10) };
        let fenced = Acquire { fencing: Some(Fencing::new(1, None)), ..acquire() };
        for (layout, replicas, request, first) in [
            (Layout::Plain, None, acquire(), true),
            (Layout::Plain, None, fenced, false),
            (Layout::Plain, Some(replicas), acquire(), false),
            (Layout::Redisson, None, acquire(), false),
        ] {
            let codec = Codec { scripts: Scripts::of(layout, false), ..codec(replicas) };
            assert_eq!(codec.lone_call(&request).1.set_first, first, "{layout:?}");
        }
    }

    #[tokio::test]
    async fn grant_on_too_few_replicas_is_refused() {
        let error = Error::new(ErrorKind::Rejected, "too few");
        let sent = crate::clock::Clock::system().now();
        let granted = || Acquired::granted_with_fence_reached(sent, None);
        assert!(acquire().unconfirmed(granted(), &error).is_err());
        let held = Acquired::held(None);
        assert!(acquire().unconfirmed(held, &error).is_ok());
        assert!(release().unconfirmed(Released::Done { listeners: 0 }, &error).is_ok());
    }

    /// Counts the warnings that a function logs.
    fn warnings<T>(run: impl FnOnce() -> T) -> usize {
        let lines = std::sync::Arc::new(std::sync::Mutex::new(0));
        let counted = std::sync::Arc::clone(&lines);
        let log =
            tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(move || {
                *counted.lock().unwrap() += 1;
                std::io::sink()
            });
        tracing::subscriber::with_default(log.finish(), run);
        trace::flush();
        *lines.lock().unwrap()
    }

    #[test]
    fn release_counts_how_many_others_listen() {
        let mut codec = codec(None);
        let sent = crate::clock::Clock::system().now();
        let listeners =
            |codec: &Codec, said| match release().read(codec, sent, &[Element::Int(said)]) {
                Ok(Released::Done { listeners }) => listeners,
                other => panic!("{other:?}"),
            };
        let others = |codec: &Codec| [-3, 0, 1, 2].map(|said| listeners(codec, said));
        assert_eq!(others(&codec), [0, 0, 1, 2]);
        assert_eq!(warnings(|| _ = [0, 1].map(|said| listeners(&codec, said))), 0);
        assert_eq!(warnings(|| _ = listeners(&codec, -3)), 1, "no waiter could be woken");
        // One of them are we.
        let channel = codec.keys.channel(&release().target.name).concat();
        codec.own_listeners = Arc::new(move |asked| u64::from(asked == channel));
        assert_eq!(others(&codec), [0, 0, 0, 1]);
    }
}

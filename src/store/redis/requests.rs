//! Requests as the scripts take them, and verdicts as the scripts give them.

use super::keys::Keys;
use super::replies::{self, Code, Element};
use super::scripts::{Call, Scripts};
use super::wakeups::Hub;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::remote::Replicas;
use crate::store::{
    Absence, Acquire, Acquired, Fencing, HolderId, Name, Release, Released, RenewBatch, Renewal,
};
use crate::trace;
use std::time::Duration;
use tracing::Level;
use uuid::Uuid;

/// One item of the batch script.
pub(super) trait Request: Send + Sync + 'static {
    type Verdict: Send + 'static;

    fn name(&self) -> &Name;
    fn timeout(&self) -> Duration;
    fn write(&self, keys: &Keys, batch: &mut Batch);
    /// Reads the reply to this item.
    fn read(&self, wire: &Wire, sent: Instant, reply: &Element) -> Result<Self::Verdict>;
    /// What is left of the verdict if too few replicas have what was done.
    fn unconfirmed(&self, verdict: Self::Verdict, error: &Error) -> Result<Self::Verdict>;
}

/// Whether enough replicas have what a call did: the last element of its reply, if it waited for them.
pub(super) fn confirmed(wait: Option<Replicas>, reply: &mut Vec<Element>) -> Result<()> {
    let Some(Replicas { count, .. }) = wait else { return Ok(()) };
    match reply.pop() {
        Some(Element::Int(reached)) if reached >= i64::from(count) => Ok(()),
        Some(Element::Int(_)) => Err(Error::new(
            ErrorKind::Rejected,
            "too few replicas had the grant in time; it is given back",
        )
        .with_fate(Fate::Executed)),
        Some(Element::Text(text)) => Err(replies::sort(&text).with_fate(Fate::Unknown)),
        Some(Element::Other) | None => Err(replies::nonsense()),
    }
}

/// A call of the batch script as it grows.
pub(super) struct Batch {
    call: Call,
    steps: Steps,
    set: Option<Common>,
    timeout: Duration,
    /// It may make a hold that was not there.
    grants: bool,
}

/// What acquires usually have in common; sent once, and when it changes.
#[derive(PartialEq, Eq)]
struct Common {
    ttl: Duration,
    count: u32,
    fencing: Option<Fencing>,
}

impl Batch {
    /// An empty one with room for so many items.
    pub(super) fn of(items: usize) -> Self {
        Self {
            call: Call::of(items),
            steps: Steps::of(items),
            set: None,
            timeout: Duration::ZERO,
            grants: false,
        }
    }

    pub(super) fn add(&mut self, request: &impl Request, keys: &Keys) {
        request.write(keys, self);
        self.timeout = self.timeout.max(request.timeout());
    }

    /// The call, and how long it may take.
    pub(super) fn finish(mut self, wire: &Wire) -> (Call, Duration) {
        self.steps.finish(&mut self.call);
        self.call.wait = wire.replicas.filter(|_| self.grants);
        (self.call, self.timeout)
    }

    fn set(&mut self, common: Common) {
        if self.set.as_ref() == Some(&common) {
            return;
        }
        self.steps.letters.push('S');
        self.call.number(millis(common.ttl));
        self.call.number(common.count.into());
        self.call.number(common.fencing.map_or(1, |fencing| fencing.block.into()));
        let retention = common.fencing.and_then(|fencing| fencing.retention);
        self.call.number(retention.map_or(0, millis));
        self.set = Some(common);
    }
}

/// What a script is to do in turn, and with which tokens.
struct Steps {
    letters: String,
    tokens: Tokens,
}

enum Tokens {
    One(Option<HolderId>),
    /// It pays to send only once what they begin with: an argument costs the client several times what its
    /// bytes cost.
    Many {
        rest: String,
        manager: Option<Uuid>,
    },
}

impl Steps {
    fn of(items: usize) -> Self {
        let tokens = match items {
            0 | 1 => Tokens::One(None),
            _ => Tokens::Many { rest: String::with_capacity(items * 12), manager: None },
        };
        Self { letters: String::with_capacity(items + 2), tokens }
    }

    /// One more item.
    fn item(&mut self, letter: char, token: HolderId, call: &mut Call) {
        match &mut self.tokens {
            Tokens::One(one) => *one = Some(token),
            Tokens::Many { rest, manager } => {
                if *manager != Some(token.manager()) {
                    self.letters.push('M');
                    call.show(format_args!("{}:", token.manager()));
                    *manager = Some(token.manager());
                }
                if !rest.is_empty() {
                    rest.push(',');
                }
                // A String takes whatever is written to it.
                let _ = token.write_rest(rest);
            }
        }
        self.letters.push(letter);
    }

    fn finish(self, call: &mut Call) {
        match self.tokens {
            Tokens::One(Some(token)) => call.show(token),
            Tokens::One(None) => call.text(""),
            Tokens::Many { rest, .. } => call.text(&rest),
        }
        call.text(&self.letters);
    }
}

/// What it takes to write requests and to read replies.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) keys: Keys,
    pub(super) scripts: &'static Scripts,
    /// Who must have a grant before it counts.
    pub(super) replicas: Option<Replicas>,
    pub(super) hub: Hub,
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
        batch.grants |= self.count == 1;
        batch.set(Common { ttl: self.ttl, count: self.count, fencing: self.fencing });
        let letter = if self.fencing.is_some() { 'F' } else { 'A' };
        batch.steps.item(letter, self.holder, &mut batch.call);
        batch.call.key(&keys.lock(&self.target.name));
        if self.fencing.is_some() {
            batch.call.key(&keys.fence(&self.target.name));
        }
    }

    fn read(&self, _wire: &Wire, sent: Instant, reply: &Element) -> Result<Acquired> {
        match reply.code()? {
            Code::Done(first) if (first > 0) == self.fencing.is_some() => {
                // By `acquire.lua`.
                let reached = first % 2 == 0;
                Ok(Acquired::Granted { sent, fence: self.fencing.map(|_| first), reached })
            }
            Code::Done(_) => Err(replies::nonsense()),
            Code::Absent(absence) => Ok(Acquired::NotYours(absence)),
            Code::Other(left) => Ok(Acquired::held(left.checked_sub(1).map(Duration::from_millis))),
        }
    }

    fn unconfirmed(&self, verdict: Acquired, error: &Error) -> Result<Acquired> {
        match verdict {
            Acquired::Granted { .. } if self.count == 1 => Err(error.clone()),
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
        let letter = if self.count == 0 { 'R' } else { 'L' };
        batch.steps.item(letter, self.holder, &mut batch.call);
        batch.call.key(&keys.lock(&self.target.name));
        if self.count > 0 {
            batch.call.number(self.count.into());
        }
    }

    fn read(&self, wire: &Wire, _sent: Instant, reply: &Element) -> Result<Released> {
        let mut listeners = match reply.code()? {
            Code::Done(listeners) => listeners,
            Code::Absent(absence) => return Ok(Released::NotYours(absence)),
            Code::Other(0) => {
                trace::later(Level::WARN, || {
                    || {
                        tracing::warn!(
                            "the server refused to wake waiters; leasehold::guide::redis lists the permissions"
                        )
                    }
                });
                0
            }
            Code::Other(_) => return Err(replies::nonsense()),
        };
        // A subscription outlives its last waiter for a while, so we may be one of them.
        if listeners > 0 && wire.hub.hears(&wire.keys.channel(&self.target.name).concat()) {
            listeners -= 1;
        }
        Ok(Released::done(listeners))
    }

    fn unconfirmed(&self, verdict: Released, _: &Error) -> Result<Released> {
        Ok(verdict)
    }
}

/// The call of the renewal script for some items of a batch.
pub(super) fn renewal(keys: &Keys, batch: &RenewBatch, items: &[Renewal]) -> Call {
    let (mut call, mut steps) = (Call::of(items.len()), Steps::of(items.len()));
    call.number(millis(batch.ttl));
    call.number(batch.fence_retention.map_or(0, millis));
    for item in items {
        let keeps = batch.retention_of(item).is_some();
        steps.item(if keeps { 'F' } else { 'L' }, item.holder, &mut call);
        call.key(&keys.lock(&item.target.name));
        if keeps {
            call.key(&keys.fence(&item.target.name));
        }
    }
    steps.finish(&mut call);
    call
}

/// The renewal script's word on each of so many leases.
pub(super) fn renewed(reply: &[Element], count: usize) -> Vec<Result<Option<Absence>>> {
    if reply == [Element::Int(0)] {
        return vec![Ok(None); count];
    }
    if reply.len() != count {
        return vec![Err(replies::nonsense()); count];
    }
    let one = |element: &Element| match element.code()? {
        Code::Done(0) => Ok(None),
        Code::Absent(absence) => Ok(Some(absence)),
        Code::Done(_) | Code::Other(_) => Err(replies::nonsense()),
    };
    reply.iter().map(one).collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Target;

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
    fn wire(replicas: Option<Replicas>) -> Wire {
        let (hub, _) = Hub::of_orders();
        Wire { keys: Keys::new(""), scripts: &super::super::scripts::PLAIN, replicas, hub }
    }

    fn acquire(count: u32) -> Acquire {
        let (holder, ttl) = (HolderId::new(Uuid::from_u128(1), 1), Duration::from_secs(30));
        let target = Target::exclusive(Name::new("n").unwrap());
        Acquire::new(target, holder, ttl, ttl).with_count(count)
    }

    fn release() -> Release {
        let Acquire { target, holder, timeout, .. } = acquire(1);
        Release::new(target, holder, 0, timeout)
    }

    fn of(manager: u128, number: u64) -> Acquire {
        Acquire { holder: HolderId::new(Uuid::from_u128(manager), number), ..acquire(1) }
    }

    #[tokio::test]
    async fn prefix_of_many_tokens_is_said_once() {
        let wire = wire(None);
        let said = |requests: &[Acquire]| {
            let mut batch = Batch::of(requests.len());
            requests.iter().for_each(|request| batch.add(request, &wire.keys));
            batch.finish(&wire).0.finish().arguments().split_off(4)
        };
        let (first, second, other) = (of(1, 7), of(1, 8), of(2, 9));
        let in_round = Acquire { holder: second.holder.in_round(3), ..second.clone() };
        let [one, two] = [1, 2].map(|manager| format!("{}:", Uuid::from_u128(manager)));
        let all = [first.clone(), second, other.clone(), in_round];
        assert_eq!(said(&all[..2]), [&one, "7,8", "SMAA"]);
        assert_eq!(said(&all), [&one, &two, &one, "7,8,9,8.3", "SMAAMAMA"]);
        // One alone is said in full.
        assert_eq!(said(&all[..1]), [&first.holder.to_string(), "SA"]);
        let items = [&first, &other].map(|ask| Renewal::new(ask.target.clone(), ask.holder));
        let batch = RenewBatch::new(items.into(), first.ttl, first.timeout);
        let call = renewal(&wire.keys, &batch, &batch.items).finish();
        assert_eq!(call.arguments(), ["30000", "0", &one, &two, "7,9", "MLML"]);
    }

    #[tokio::test]
    async fn each_answer_means_one_thing_to_each_request() {
        let (wire, sent) = (wire(None), crate::clock::Clock::system().now());
        let fenced = Acquire { fencing: Some(Fencing::new(1, None)), ..acquire(1) };
        let asked = |acquire: &Acquire, said| match acquire.read(&wire, sent, &Element::Int(said)) {
            Ok(Acquired::Granted { fence, reached, .. }) => format!("granted {fence:?} {reached}"),
            Ok(Acquired::Held { remaining }) => format!("held {remaining:?}"),
            Ok(Acquired::NotYours(absence)) => format!("{absence:?}"),
            Err(error) => format!("{:?}", error.kind()),
        };
        for (said, plain, with_fence) in [
            (7, "Protocol", "granted Some(7) false"),
            (8, "Protocol", "granted Some(8) true"),
            (0, "granted None true", "Protocol"),
            (-1, "Gone", "Gone"),
            (-2, "Taken", "Taken"),
            (-3, "held None", "held None"),
            (-4, "held Some(0ns)", "held Some(0ns)"),
            (-30_004, "held Some(30s)", "held Some(30s)"),
        ] {
            assert_eq!(asked(&acquire(1), said), plain, "{said}");
            assert_eq!(asked(&fenced, said), with_fence, "{said}");
        }
        asked(&fenced, i64::MIN);
        let released = |said| {
            let verdict = release().read(&wire, sent, &Element::Int(said));
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
        assert_eq!(renewed(&[-3], 1), [Err(ErrorKind::Protocol)]);
        assert_eq!(renewed(&[], 1), [Err(ErrorKind::Protocol)]);
        assert_eq!(renewed(&[0, 0], 1), [Err(ErrorKind::Protocol)]);
        assert_eq!(renewed(&[0, 0], 3).len(), 3);
    }

    #[tokio::test]
    async fn replicas_are_waited_for_where_a_hold_may_begin() {
        let replicas = Replicas { count: 1, timeout: Duration::from_millis(10) };
        let wire = wire(Some(replicas));
        for (counts, waits) in
            [(&[1][..], true), (&[2], false), (&[2, 1], true), (&[1, 2], true), (&[], false)]
        {
            let mut batch = Batch::of(counts.len() + 1);
            counts.iter().for_each(|count| batch.add(&acquire(*count), &wire.keys));
            batch.add(&release(), &wire.keys);
            assert_eq!(batch.finish(&wire).0.wait, waits.then_some(replicas), "{counts:?}");
        }
    }

    #[tokio::test]
    async fn grant_on_too_few_replicas_is_refused_but_a_hold_goes_on() {
        let error = Error::new(ErrorKind::Rejected, "too few");
        let sent = crate::clock::Clock::system().now();
        let granted = || Acquired::Granted { sent, fence: None, reached: true };
        assert!(acquire(1).unconfirmed(granted(), &error).is_err());
        assert!(acquire(2).unconfirmed(granted(), &error).is_ok());
        let held = Acquired::Held { remaining: None };
        assert!(acquire(1).unconfirmed(held, &error).is_ok());
        assert!(release().unconfirmed(Released::Done { listeners: 0 }, &error).is_ok());
    }

    /// How many lines of warning something is worth.
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

    #[tokio::test]
    async fn a_release_tells_how_many_others_listen() {
        let (hub, mut orders) = Hub::of_orders();
        let wire = Wire { hub, ..wire(None) };
        let sent = crate::clock::Clock::system().now();
        let told = |said| match release().read(&wire, sent, &Element::Int(said)) {
            Ok(Released::Done { listeners }) => listeners,
            other => panic!("{other:?}"),
        };
        assert_eq!([-3, 0, 1, 2].map(told), [0, 0, 1, 2]);
        assert_eq!(warnings(|| [0, 1].map(told)), 0);
        assert_eq!(warnings(|| told(-3)), 1, "nobody could be woken");
        // One of them are we.
        let channel = wire.keys.channel(&release().target.name).concat();
        let (waiter, ()) = tokio::join!(wire.hub.subscribe(channel), wire.hub.confirm(&mut orders));
        assert_eq!([-3, 0, 1, 2].map(told), [0, 0, 0, 1]);
        drop(waiter.unwrap());
    }
}

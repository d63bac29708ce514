//! Requests as the scripts take them, and verdicts as the scripts give them.

use super::keys::Keys;
use super::replies::{self, Code, Element};
use super::scripts::{Call, Scripts};
use super::wakeups::Hub;
use crate::clock::Instant;
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::remote::Replicas;
use crate::store::{Absence, Acquire, Acquired, Fencing, Name, Release, Released, Renewal};
use std::time::Duration;

/// One item of the batch script.
pub(super) trait Request: Send + Sync + 'static {
    type Verdict: Send + 'static;

    fn name(&self) -> &Name;
    fn timeout(&self) -> Duration;
    fn write(&self, keys: &Keys, batch: &mut Batch);
    /// Reads this item's part of the reply.
    fn read(&self, wire: &Wire, sent: Instant, reply: &[Element]) -> Result<Self::Verdict>;
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
        None => Err(replies::nonsense()),
    }
}

/// A call of the batch script as it grows.
#[derive(Default)]
pub(super) struct Batch {
    call: Call,
    steps: String,
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
        Self { call: Call::of(items), ..Self::default() }
    }

    pub(super) fn add(&mut self, request: &impl Request, keys: &Keys) {
        request.write(keys, self);
        self.timeout = self.timeout.max(request.timeout());
    }

    /// The call, and how long it may take.
    pub(super) fn finish(mut self, wire: &Wire) -> (Call, Duration) {
        self.call.text(self.steps);
        self.call.wait = wire.replicas.filter(|_| self.grants);
        (self.call, self.timeout)
    }

    fn set(&mut self, common: Common) {
        if self.set.as_ref() == Some(&common) {
            return;
        }
        self.steps.push('S');
        self.call.number(millis(common.ttl));
        self.call.number(common.count.into());
        self.call.number(common.fencing.map_or(1, |fencing| fencing.block.into()));
        let retention = common.fencing.and_then(|fencing| fencing.retention);
        self.call.number(retention.map_or(0, millis));
        self.set = Some(common);
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

/// How many elements of the reply belong to one item.
pub(super) const REPLY_SIZE: usize = 2;

impl Request for Acquire {
    type Verdict = Acquired;

    fn name(&self) -> &Name {
        &self.name
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn write(&self, keys: &Keys, batch: &mut Batch) {
        batch.grants |= self.count == 1;
        batch.set(Common { ttl: self.ttl, count: self.count, fencing: self.fencing });
        batch.steps.push(if self.fencing.is_some() { 'F' } else { 'A' });
        batch.call.key(&keys.lock(&self.name));
        if self.fencing.is_some() {
            batch.call.key(&keys.fence(&self.name));
        }
        batch.call.text(self.token);
    }

    fn read(&self, _wire: &Wire, sent: Instant, reply: &[Element]) -> Result<Acquired> {
        let (code, value) = item(reply)?;
        match code {
            Code::Yes => {
                let fence = u64::try_from(value).map_err(|_| replies::nonsense())?;
                Ok(Acquired::Granted { sent, fence: self.fencing.is_some().then_some(fence) })
            }
            Code::No => Ok(Acquired::Held { remaining: replies::remaining(value) }),
            Code::Absent(absence) => Ok(Acquired::NotYours(absence)),
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
        &self.name
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn write(&self, keys: &Keys, batch: &mut Batch) {
        batch.steps.push(if self.count == 0 { 'R' } else { 'L' });
        batch.call.key(&keys.lock(&self.name));
        batch.call.text(self.token);
        if self.count > 0 {
            batch.call.number(self.count.into());
        }
    }

    fn read(&self, wire: &Wire, _sent: Instant, reply: &[Element]) -> Result<Released> {
        match item(reply)? {
            (Code::Yes, listeners) => {
                if listeners < 0 {
                    tracing::warn!(
                        "the server refused to wake waiters; see the README for the ACL"
                    );
                }
                let mut listeners = u64::try_from(listeners).unwrap_or_default();
                // A subscription outlives its last waiter for a while, so we may be one of them.
                if listeners > 0 && wire.hub.hears(&wire.keys.channel(&self.name).concat()) {
                    listeners -= 1;
                }
                Ok(Released::Done { listeners })
            }
            (Code::Absent(absence), _) => Ok(Released::NotYours(absence)),
            (Code::No, _) => Err(replies::nonsense()),
        }
    }

    fn unconfirmed(&self, verdict: Released, _: &Error) -> Result<Released> {
        Ok(verdict)
    }
}

fn item(reply: &[Element]) -> Result<(Code, i64)> {
    match reply {
        [code, value] => Ok((code.code()?, value.int()?)),
        _ => Err(replies::nonsense()),
    }
}

/// The call of the renewal script. All are of one manager, so their times are the same.
pub(super) fn renewal(keys: &Keys, batch: &[Renewal]) -> Call {
    let mut call = Call::of(batch.len());
    let mut steps = String::with_capacity(batch.len());
    call.number(batch.first().map_or(0, |renewal| millis(renewal.ttl)));
    call.number(batch.iter().find_map(|renewal| renewal.fence_retention).map_or(0, millis));
    for renewal in batch {
        call.key(&keys.lock(&renewal.name));
        if renewal.fence_retention.is_some() {
            call.key(&keys.fence(&renewal.name));
        }
        steps.push(if renewal.fence_retention.is_some() { 'F' } else { 'L' });
    }
    call.tokens(batch.iter().map(|renewal| renewal.token));
    call.text(steps);
    call
}

/// The renewal script's word on each of so many leases.
pub(super) fn renewed(reply: &[Element], count: usize) -> Vec<Result<Option<Absence>>> {
    // One word for all: to read a number of a reply costs the client as much as to write a key.
    if reply == [Element::Int(0)] {
        return vec![Ok(None); count];
    }
    let one = |element: &Element| match element.code()? {
        Code::Yes => Ok(None),
        Code::Absent(absence) => Ok(Some(absence)),
        Code::No => Err(replies::nonsense()),
    };
    reply.iter().map(one).collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Mode, Token};
    use uuid::Uuid;

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
        let (name, token) = (Name::new("n").unwrap(), Token::new(Uuid::from_u128(1), 1));
        let (mode, ttl) = (Mode::Exclusive, Duration::from_secs(30));
        Acquire { name, token, mode, count, ttl, fencing: None, timeout: ttl }
    }

    fn release() -> Release {
        let Acquire { name, token, timeout, .. } = acquire(1);
        Release { name, token, count: 0, timeout }
    }

    #[tokio::test]
    async fn replicas_are_waited_for_where_a_hold_may_begin() {
        let replicas = Replicas { count: 1, timeout: Duration::from_millis(10) };
        let wire = wire(Some(replicas));
        for (counts, waits) in
            [(&[1][..], true), (&[2], false), (&[2, 1], true), (&[1, 2], true), (&[], false)]
        {
            let mut batch = Batch::default();
            counts.iter().for_each(|count| batch.add(&acquire(*count), &wire.keys));
            batch.add(&release(), &wire.keys);
            assert_eq!(batch.finish(&wire).0.wait, waits.then_some(replicas), "{counts:?}");
        }
    }

    #[tokio::test]
    async fn what_too_few_replicas_have_is_not_granted_but_a_hold_goes_on() {
        let error = Error::new(ErrorKind::Rejected, "too few");
        let sent = crate::clock::Clock::system().now();
        let granted = || Acquired::Granted { sent, fence: None };
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
        *lines.lock().unwrap()
    }

    #[tokio::test]
    async fn a_release_tells_how_many_others_listen() {
        let (hub, mut orders) = Hub::of_orders();
        let wire = Wire { hub, ..wire(None) };
        let sent = crate::clock::Clock::system().now();
        let told = |listeners| {
            let reply = [Element::Int(1), Element::Int(listeners)];
            match release().read(&wire, sent, &reply) {
                Ok(Released::Done { listeners }) => listeners,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([-1, 0, 1, 2].map(told), [0, 0, 1, 2]);
        assert_eq!(warnings(|| [0, 1].map(told)), 0);
        assert_eq!(warnings(|| told(-1)), 1, "nobody could be woken");
        // One of them are we.
        let channel = wire.keys.channel(&release().name).concat();
        let (waiter, ()) = tokio::join!(wire.hub.subscribe(channel), wire.hub.confirm(&mut orders));
        assert_eq!([-1, 0, 1, 2].map(told), [0, 0, 0, 1]);
        drop(waiter.unwrap());
    }
}

//! Names that several share: readers beside each other and never beside a writer, and permits up to the size.

use super::{Case, Excuse, Excused, Span, Wipe, overlap};
use crate::soak::leases::{Lease, Mode, slot};

/// The rule that is broken, since when, and how.
type Found = (&'static str, u64, String);

impl Case<'_> {
    /// Returns whether a lease should have a larger fencing token than one that was believed in before. Readers come in any
    /// order.
    pub(super) fn comes_too_late(&self, before: &Lease, lease: &Lease) -> bool {
        let both_read = (before.mode, lease.mode) == (Mode::Read, Mode::Read);
        let keys =
            self.rules.kept_by_downgrade && (before.mode, lease.mode) == (Mode::Write, Mode::Read);
        let same = before.fence == lease.fence && !keys;
        !both_read && (before.fence > lease.fence || same)
    }

    /// Readers of two processes have two grants, and so two fencing tokens.
    pub(super) fn strange_reader(&self, one: &Lease, other: &Lease, both: Span) -> Option<Found> {
        let same = one.fence == other.fence && one.mode == Mode::Read;
        if !same || slot(&one.who) == slot(&other.who) {
            return None;
        }
        let text = format!(
            "{}: {} and {} are there together, with one fence, {}",
            one.name,
            one.words(),
            other.words(),
            one.fence
        );
        Some(("fence", both.0, text))
    }

    /// Returns whether a living primary that was replaced may have granted a lease, for all of a span.
    pub(super) fn is_misled(&self, lease: &Lease, span: Span) -> bool {
        let mut misled = self.wipes.iter().filter_map(|wipe| self.misled(wipe, lease));
        misled.any(|misled| misled.0 <= span.0 && span.1 <= misled.1)
    }

    /// No more permits are believed in than there are, whenever somebody comes, and when an excuse ends.
    pub(super) fn permits(
        &self,
        name: &str,
        size: u32,
        beliefs: &[(Span, &Lease)],
        found: &mut Vec<Found>,
        excused: &mut Vec<Excused>,
    ) {
        for (_, lease) in beliefs.iter().filter(|(_, lease)| lease.fence > 0) {
            let text = format!("{name}: {} has fence {} for a permit", lease.who, lease.fence);
            found.push(("fence", lease.granted.unwrap_or_default(), text));
        }
        let wipes = self.wipes.iter().filter(|wipe| wipe.name == name);
        let ends = wipes.flat_map(|wipe| {
            let until = wipe.span.1;
            [until, until + self.setting(name).ttl]
        });
        let mut moments: Vec<u64> =
            beliefs.iter().map(|(belief, _)| belief.0).chain(ends).collect();
        moments.sort_unstable();
        moments.dedup();
        let (mut here, mut next): (Vec<(Span, &Lease)>, _) = (Vec::new(), 0);
        for moment in moments {
            here.retain(|(belief, _)| belief.1 > moment);
            while let Some((belief, lease)) = beliefs.get(next).filter(|(b, _)| b.0 <= moment) {
                next += 1;
                if belief.1 > moment {
                    here.push((*belief, lease));
                }
            }
            let all: u32 = here.iter().map(|(_, lease)| lease.permits()).sum();
            if all <= size {
                continue;
            }
            let now = (moment, moment + 1);
            let is_sure = |(_, lease): &&(Span, &Lease)| {
                let stays = !self.may_be_hit(lease) || self.unexcused(lease, now).is_some();
                stays && !self.is_misled(lease, now)
            };
            let sure: u32 = here.iter().filter(is_sure).map(|(_, lease)| lease.permits()).sum();
            let end = here.iter().map(|(belief, _)| belief.1).min().unwrap_or(moment);
            if sure <= size {
                excused.push(Excused { why: self.why(name, now), nanos: end - moment });
                continue;
            }
            let who: Vec<_> = here.iter().map(|(_, lease)| lease.words()).collect();
            let ms = (end - moment) as f64 / 1e6;
            let who = who.join(", ");
            let text = format!("{name}: {sure} of {size} permits are out for {ms:.3} ms: {who}");
            found.push(("overlap", moment, text));
        }
    }

    /// Returns whether the name was taken away, or may have been, after this lease was granted.
    fn may_be_hit(&self, lease: &Lease) -> bool {
        let later = |wipe: &Wipe| lease.granted.is_none_or(|granted| granted < wipe.span.1);
        self.was_reported(lease)
            || self.wipes.iter().any(|wipe| wipe.name == lease.name && later(wipe))
    }

    /// Returns why holders of a name may not be the only ones at a moment.
    fn why(&self, name: &str, now: Span) -> Excuse {
        let ttl = self.setting(name).ttl;
        let wipes = self.wipes.iter().filter(|wipe| wipe.name == name);
        let near = wipes.filter(|wipe| overlap((wipe.span.0, wipe.span.1 + ttl), now).is_some());
        near.map(|wipe| wipe.why).min().unwrap_or(Excuse::Reported)
    }
}

impl Lease {
    fn permits(&self) -> u32 {
        match self.mode {
            Mode::Permits(permits) => permits,
            _ => 1,
        }
    }

    /// Returns who has it, and in which mode if several may have the name.
    pub(super) fn words(&self) -> String {
        match self.mode {
            Mode::Exclusive => self.who.clone(),
            Mode::Read => format!("{} reading", self.who),
            Mode::Write => format!("{} writing", self.who),
            Mode::Permits(permits) => format!("{} by {permits}", self.who),
        }
    }
}

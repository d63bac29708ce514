//! Steals: the thief has the largest fencing token, and those with a smaller one are told.

use super::{Case, Excuse, REACTION, Span, overlap};
use crate::soak::leases::Lease;

impl Case<'_> {
    pub(super) fn steals(&mut self) {
        let mut found = Vec::new();
        let thieves = self.leases.iter().filter(|lease| lease.how == "steal");
        for (thief, stolen) in thieves.filter_map(|thief| Some((thief, thief.granted?))) {
            let others = self.leases.iter().filter(|other| other.name == thief.name);
            for (old, granted) in others.filter_map(|old| Some((old, old.granted?))) {
                // What was taken away, or granted by a primary that was replaced, has no order.
                if self.is_unordered(&thief.name, (granted.min(stolen), granted.max(stolen))) {
                    continue;
                }
                let before = granted < thief.asked;
                if self.rules.fenced && before && old.fence >= thief.fence {
                    let text = format!(
                        "{}: {} has stolen fence {}, and {} had {} before",
                        thief.name, thief.who, thief.fence, old.who, old.fence
                    );
                    found.push((stolen, text));
                }
                let is_old = if self.rules.fenced { old.fence < thief.fence } else { before };
                found.extend(self.knows_nothing(old, thief, stolen).filter(|_| is_old));
            }
        }
        for (at, text) in found {
            self.find("steal", at, text);
        }
    }

    /// Whether something else than a steal may have changed who has a name, in a span or so shortly before that old holders
    /// still believe.
    fn is_unordered(&self, name: &str, span: Span) -> bool {
        let ttl = self.setting(name).ttl;
        let mut wipes = self.wipes.iter().filter(|wipe| wipe.name == name);
        wipes.any(|wipe| {
            let (from, until) = wipe.span;
            wipe.why != Excuse::Stolen
                && overlap((from.saturating_sub(ttl), until + ttl), (span.0, span.1 + 1)).is_some()
        })
    }

    /// An old holder, or one to whom its process has handed the hold off since, that still believes when it must have been
    /// told.
    fn knows_nothing(&self, old: &Lease, thief: &Lease, stolen: u64) -> Option<(u64, String)> {
        let (_, until) = old.believed?;
        let setting = self.setting(&old.name);
        let trouble = self.trouble(&old.who, &setting, (stolen, until.max(stolen)));
        let bound = setting.ttl / 3 + setting.attempt() + setting.grace() + REACTION;
        let late = until.saturating_sub(stolen);
        (late > bound + trouble.stalled && !trouble.faulty).then(|| {
            let ms = late / 1_000_000;
            let text = format!(
                "{}: {} believes {ms} ms after {} has stolen it",
                old.name, old.who, thief.who
            );
            (until, text)
        })
    }
}

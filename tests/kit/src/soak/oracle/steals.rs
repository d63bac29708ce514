//! Steals: the thief has the largest fencing token, and those with a smaller one are told.

use super::{Case, Excuse, REACTION, Span, overlap};
use crate::soak::leases::Lease;
use std::collections::HashMap;

impl Case<'_> {
    pub(super) fn steals(&mut self) {
        let mut names: HashMap<&str, Vec<(u64, &Lease)>> = HashMap::new();
        for lease in &self.leases {
            if let Some(granted) = lease.granted {
                names.entry(&lease.name).or_default().push((granted, lease));
            }
        }
        let mut found = Vec::new();
        for (name, leases) in names {
            let setting = self.setting(name);
            // Until the next renewal of the old holder, which may take an attempt, and a step that began before it.
            let bound = setting.ttl / 3 + setting.attempt() + setting.grace() + REACTION;
            for (stolen, thief) in leases.iter().filter(|(_, lease)| lease.how == "steal") {
                for (granted, old) in &leases {
                    let before = *granted < thief.asked;
                    let is_first = before && old.fence >= thief.fence;
                    let is_old = old.fence < thief.fence;
                    let until = old.believed.map_or(0, |believed| believed.1).max(*stolen);
                    let is_late = is_old && until > stolen + bound;
                    // What was taken away, or granted by a primary that was replaced, has no order.
                    let span = (*granted.min(stolen), *granted.max(stolen));
                    if !(is_first || is_late) || self.is_unordered(name, span) {
                        continue;
                    }
                    if is_first {
                        let text = format!(
                            "{name}: {} has stolen fence {}, and {} had {} before",
                            thief.who, thief.fence, old.who, old.fence
                        );
                        found.push((*stolen, text));
                    }
                    let trouble = self.trouble(&old.who, &setting, (*stolen, until));
                    if is_late && until > stolen + bound + trouble.stalled && !trouble.faulty {
                        let ms = (until - stolen) / 1_000_000;
                        let text = format!(
                            "{name}: {} believes {ms} ms after {} has stolen it",
                            old.who, thief.who
                        );
                        found.push((until, text));
                    }
                }
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
}

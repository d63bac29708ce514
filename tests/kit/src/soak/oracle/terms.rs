//! What views of an election show: terms that never go back, one holder for each, and the value of that holder alone.

use super::{Case, Finding};
use crate::soak::history::{Event, What};
use std::collections::HashMap;

impl Case<'_> {
    pub(super) fn terms(&mut self) {
        let mut found = Vec::new();
        let mut latest: HashMap<(&str, &str), u64> = HashMap::new();
        let mut leaders: HashMap<(&str, u64), &str> = HashMap::new();
        for Event { at, who, what } in self.history {
            let What::Observed { name, term, holder, value } = what else { continue };
            let mut find = |rule, text| found.push(Finding { rule, at: *at, text });
            // The value of a candidate that has not told its own yet.
            if !["none", "-", holder].contains(&value.as_str()) {
                find("value", format!("{name}: {who} sees {holder} lead with the value {value}"));
            }
            // Not told yet, or a store without terms.
            if *term == 0 {
                continue;
            }
            let seen = latest.entry((who, name)).or_default();
            if term < seen {
                find("term", format!("{name}: {who} sees term {term} after {seen}"));
            }
            *seen = (*seen).max(*term);
            let leader = leaders.entry((name, *term)).or_insert(holder);
            if leader != holder {
                find("term", format!("{name}: {leader} and {holder} both lead in term {term}"));
            }
        }
        self.findings.extend(found);
    }
}

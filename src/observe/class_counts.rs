//! Counts holds by class and mode, and waiters by class, in the order of the events.

use super::event::{ClassCounts, Event, EventKind, How};
use crate::store::Mode;

/// The numbers of all classes. There are few.
#[derive(Default)]
pub(super) struct Classes(Vec<Class>);

struct Class {
    class: &'static str,
    waiters: u32,
    leases: [u32; Mode::COUNT],
}

impl Classes {
    /// Counts an event, and puts the numbers after it into it.
    pub(super) fn count(&mut self, event: &mut Event) {
        let Some(mode) = event.mode() else { return };
        let class = self.of(event.class());
        let leases = &mut class.leases[mode.index()];
        let mut leases_before = 0;
        match event.kind() {
            EventKind::Waiting { .. } => class.waiters += 1,
            EventKind::Granted { how, was_waiting, .. } => {
                *leases += u32::from(*how != How::Joined);
                class.waiters = class.waiters.saturating_sub(u32::from(*was_waiting));
            }
            EventKind::NotGranted { was_waiting, .. } => {
                class.waiters = class.waiters.saturating_sub(u32::from(*was_waiting));
            }
            EventKind::Lost { .. }
            | EventKind::HandedOff { .. }
            | EventKind::Released { .. }
            | EventKind::NotReleased { held: Some(_), .. } => *leases = leases.saturating_sub(1),
            EventKind::ModeChanged { from, .. } => {
                *leases += 1;
                let before = &mut class.leases[from.index()];
                *before = before.saturating_sub(1);
                leases_before = *before;
            }
            _ => {}
        }
        let leases = class.leases[mode.index()];
        event.counts = ClassCounts { leases, leases_before, waiters: class.waiters };
    }

    fn of(&mut self, class: &'static str) -> &mut Class {
        let found = self.0.iter().position(|one| one.class == class);
        let index = found.unwrap_or_else(|| {
            self.0.push(Class { class, waiters: 0, leases: [0; Mode::COUNT] });
            self.0.len() - 1
        });
        &mut self.0[index]
    }
}

//! The options of a handle. They go with each of its acquires into the hold.

use crate::observe::DEFAULT_CLASS;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// The place in the user's code where a name is acquired, if it is known.
pub(crate) type Caller = Option<&'static Location<'static>>;

/// The options of a handle. Without any, it is empty: it allocates nothing and costs one pointer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options(Option<Arc<Set>>);

/// Those of a handle that has none.
pub(crate) static NO_OPTIONS: Options = Options(None);

#[derive(Clone, Debug)]
struct Set {
    min_hold: Option<Duration>,
    lock_delay: Duration,
    label: Option<Arc<str>>,
    class: &'static str,
}

impl Default for Set {
    fn default() -> Self {
        Self { min_hold: None, lock_delay: Duration::ZERO, label: None, class: DEFAULT_CLASS }
    }
}

#[allow(dead_code, reason = "labels and classes are to come")]
impl Options {
    /// Returns the time from the grant for which the name stays closed, even if the hold is released earlier.
    pub(crate) fn min_hold(&self) -> Option<Duration> {
        self.0.as_ref()?.min_hold
    }

    /// Returns the time for which the store keeps the name closed after the time to live of a hold that was not released.
    pub(crate) fn lock_delay(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |set| set.lock_delay)
    }

    /// Returns the text that tells a person what the hold is for.
    pub(crate) fn label(&self) -> Option<&Arc<str>> {
        self.0.as_ref()?.label.as_ref()
    }

    /// Returns the class by which holds are counted.
    pub(crate) fn class(&self) -> &'static str {
        self.0.as_ref().map_or(DEFAULT_CLASS, |set| set.class)
    }

    pub(crate) fn set_min_hold(&mut self, min_hold: Duration) {
        self.set().min_hold = Some(min_hold);
    }

    pub(crate) fn set_lock_delay(&mut self, lock_delay: Duration) {
        self.set().lock_delay = lock_delay;
    }

    pub(crate) fn set_label(&mut self, label: Arc<str>) {
        self.set().label = Some(label);
    }

    pub(crate) fn set_class(&mut self, class: &'static str) {
        self.set().class = class;
    }

    /// Returns the options to change. A clone that shares them keeps its own.
    fn set(&mut self) -> &mut Set {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_take_one_pointer() {
        assert_eq!(size_of::<Options>(), size_of::<usize>());
        assert!(NO_OPTIONS.0.is_none());
    }

    #[test]
    fn options_of_a_clone_change_apart() {
        let mut options = Options::default();
        options.set_class("jobs");
        let mut other = options.clone();
        other.set_label("backup".into());
        other.set_class("nightly");
        assert_eq!((options.class(), options.label()), ("jobs", None));
        assert_eq!(other.class(), "nightly");
        assert_eq!(other.label().map(|label| &**label), Some("backup"));
        assert_eq!(NO_OPTIONS.class(), DEFAULT_CLASS);
    }
}

//! What the builder sets for the whole engine, besides T.

use super::options::Options;
use crate::observe::DEFAULT_CLASS;
use crate::store::{Fencing, Name};
use std::time::Duration;

/// Returns the class of a name.
pub(crate) type Classify = fn(&str) -> &'static str;

/// The settings of the builder, besides T.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) max_hold: Option<Duration>,
    /// The longest time between two reports of progress.
    pub(crate) stall_after: Option<Duration>,
    /// The age of a hold at which it is reported.
    pub(crate) warn_held: Option<Duration>,
    pub(crate) max_poll_interval: Duration,
    /// The maximum number of consecutive hand-offs in memory.
    pub(crate) max_local_handoffs: u32,
    /// For how long a hold rests that no call waits for.
    pub(crate) linger: Option<Duration>,
    pub(crate) fencing: Option<Fencing>,
    /// Returns the class of a name whose handle has none.
    pub(crate) classify: Option<Classify>,
    /// The seed of the jitter, so that a simulation can be repeated.
    #[cfg(feature = "testing")]
    pub(crate) seed: Option<u64>,
}

impl Settings {
    /// Without fencing tokens and hand-offs, for tests.
    #[cfg(test)]
    pub(in crate::engine) const PLAIN: Self = Self {
        max_hold: None,
        stall_after: None,
        warn_held: None,
        max_poll_interval: Duration::from_secs(1),
        max_local_handoffs: 0,
        linger: None,
        fencing: None,
        classify: None,
        #[cfg(feature = "testing")]
        seed: None,
    };

    /// Returns options with the class of the name, if those of its handle have none.
    pub(in crate::engine) fn classified(&self, name: &Name, options: &Options) -> Option<Options> {
        let classify = self.classify.filter(|_| options.class() == DEFAULT_CLASS)?;
        let mut options = options.clone();
        options.set_class(classify(name.as_str()));
        Some(options)
    }

    pub(super) fn seed(&self) -> Option<u64> {
        #[cfg(feature = "testing")]
        return self.seed;
        #[cfg(not(feature = "testing"))]
        None
    }
}

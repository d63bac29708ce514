//! Pauses between tries.

use std::time::Duration;
use uuid::Uuid;

/// Pauses between tries. Each is twice as long as the one before, up to the longest, less some jitter.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        let first = first.min(longest);
        Self { first, next: first, longest }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let full = self.next;
        self.next = (full * 2).min(self.longest);
        let [random, ..] = Uuid::new_v4().into_bytes();
        full / 2 + full / 2 * u32::from(random) / 255
    }

    /// Begins with the first pause again.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "for the connections to Redis"))]
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest_and_begin_again() {
        let (first, longest) = (Duration::from_millis(50), Duration::from_secs(1));
        let mut pauses = Backoff::new(first, longest);
        for _ in 0..2 {
            for round in 0..10 {
                let (last, full) = (pauses.next(), (first * 2u32.pow(round)).min(longest));
                assert!((full / 2..=full).contains(&last), "{round}: {last:?}");
            }
            pauses.reset();
        }
    }
}

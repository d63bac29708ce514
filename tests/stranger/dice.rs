//! Random numbers from a seed.

use std::time::Duration;

pub struct Dice(kit::Dice);

impl Dice {
    pub fn new(seed: u64) -> Self {
        let mixed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D;
        Self(kit::Dice::new(mixed))
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit.max(1))
    }

    pub fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).expect("small")
    }

    /// Returns true in `part` of a hundred.
    pub fn percent(&mut self, part: u64) -> bool {
        self.below(100) < part
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// Returns a time up to `limit`, in microseconds, that is often short.
    pub fn time(&mut self, limit: Duration) -> Duration {
        let micros = u64::try_from(limit.as_micros()).expect("short");
        let limit = if self.percent(60) { micros / 8 } else { micros };
        Duration::from_micros(self.below(limit + 1))
    }
}

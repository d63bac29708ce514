//! What a plan draws from the numbers of its seed.

use kit::Dice;
use std::ops::Range;
use std::time::Duration;

pub struct Random(Dice);

impl Random {
    /// A generator of its own for `part` of what `seed` stands for.
    pub fn part(seed: u64, part: u64) -> Self {
        let mut random = Self(Dice::new(seed ^ part.wrapping_mul(0xa076_1d64_78bd_642f)));
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0.roll()
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(range.start + self.next() % (range.end - range.start))
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

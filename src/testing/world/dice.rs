//! The only source of chance in a world: splitmix64.

#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `low..=high`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high.saturating_sub(low) + 1)
    }

    pub(super) fn percent(&mut self, chance: u64) -> bool {
        self.roll() % 100 < chance
    }

    /// Returns one of them, if there are any.
    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let last = of.len().checked_sub(1)?;
        of.get(self.between(0, last as u64) as usize)
    }
}

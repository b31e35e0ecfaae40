//! Choices that a seed repeats.
#![allow(dead_code, reason = "every test program uses a part")]

use std::time::{Duration, SystemTime};

/// `AGENTBIN_SEED`, else what the clock says.
pub fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos().into();
    std::env::var("AGENTBIN_SEED").ok().map_or_else(now, |s| s.parse().unwrap())
}

/// splitmix64: the same seed, the same choices.
pub struct Random(pub u64);

impl Random {
    /// Says how the run is repeated.
    pub fn new(test: &str) -> Random {
        let seed = seed();
        println!("{test}: AGENTBIN_SEED={seed}");
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// The place of one of so many.
    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).unwrap()
    }

    /// A moment within this span, in microseconds.
    pub fn moment(&mut self, span: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(span.as_micros()).unwrap()))
    }

    /// So many of these, in any order.
    pub fn draw<T>(&mut self, mut from: Vec<T>, count: usize) -> Vec<T> {
        let mut drawn = Vec::new();
        while drawn.len() < count && !from.is_empty() {
            let at = self.index(from.len());
            drawn.push(from.swap_remove(at));
        }
        drawn
    }
}

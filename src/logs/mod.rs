//! Own one task's output: from its pipe or FIFO into rotated files, and back out to whoever reads along. Never knows
//! allocations.

mod dir;
pub mod rotator;

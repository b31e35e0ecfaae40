//! Own one task's output: from its pipe or FIFO into rotated files, and back out to whoever reads along. Never knows
//! allocations.

mod buffer;
pub mod collector;
mod dir;
pub mod fifo;
pub mod pump;
pub mod rotator;

//! Group C: identity, capabilities, and what of the kernel can be reached.

use crate::framework::Attack;

pub const ATTACKS: &[Attack] = &[];

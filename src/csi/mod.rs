//! Volumes of CSI (Container Storage Interface) plugins: fingerprints, calls, and users of volumes. Never knows allocations: a
//! user of a volume is a name.
//!
//! ```text
//! Manager::join ─▶ the turn of the volume ─▶ VolumeUse::next ─▶ the record ─▶ Calls ─▶ Client ─▶ plugin
//! Manager::leave ─▶ the same, until nobody uses it and nothing of it is there
//! ```

mod calls;
mod capability;
mod client;
mod controller;
mod error;
mod fingerprint;
mod ledger;
mod manager;
mod node;
mod plugins;
mod retry;
mod usage;

pub use capability::{AccessMode, AttachmentMode, Capability, Secrets, Usage};
pub use client::Client;
pub use controller::{Created, NewVolume, Page, Segments, Snapshot, VolumeEntry};
pub use error::CsiError;
pub use fingerprint::{ControllerFlags, Fingerprint, Health, NodeFlags, NodeInfo, PluginInfo};
pub use ledger::Files;
pub use manager::{Join, Ledger, Locked, Manager, Recorded};
pub use node::{Calls, Places, Plugin, Volume, VolumeId, Work};
pub use plugins::{Instance, Plugins, SecretsOf};
pub use usage::{Needs, Phase, Step, User, VolumeUse};

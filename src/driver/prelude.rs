//! Everything that a driver needs: `use agentbin::driver::prelude::*;`.
//!
//! A driver whose tasks are processes is a [`Plan`] for [`OnExecutor`], and `agentbin::driver_main::<MyPlan>()` is its `main`;
//! any other driver implements [`Driver`] and is served by `agentbin::serve_driver`. `docs/driver-authors.md` writes one from
//! scratch.

pub use tonic::async_trait;

pub use super::{
    Attribute, Capabilities, Common, Driver, DriverError, DriverNetwork, ExecTaskResult, Fingerprint, FsIsolation,
    Health, IsolatedConfig, NetworkMode, NodeConfig, OnExecutor, Plan, Reader, Settings, TaskConfig, TaskEvent,
    TaskHandle, TaskState, TaskStatus,
};
pub use crate::cgroup::Regime;
pub use crate::executor::Isolation;
pub use crate::spec::{DriverConfig, ExitResult, LaunchSpec, Mount, Signal, TaskStats};
pub use crate::wire::hclspec::Spec;
pub use crate::wire::schema::{self, Literal};

//! Codecs of the wire: the generated protobuf messages and services. Never validates meaning.

mod channel;
pub mod cty;
mod erased;

pub use channel::Channel;
pub(crate) use channel::Connector;
pub(crate) use erased::{Answering, call, health};
pub mod msgpack;
pub mod schema;

macro_rules! generated {
    ($(#[$doc:meta])* $name:ident, $package:literal) => {
        $(#[$doc])*
        pub mod $name {
            #![allow(
                missing_docs,
                clippy::all,
                clippy::pedantic,
                clippy::allow_attributes_without_reason,
                rustdoc::all,
                reason = "generated"
            )]
            tonic::include_proto!($package);
        }
    };
}

generated! {
    /// go-plugin's own services (`plugin.*`).
    goplugin, "plugin"
}

generated! {
    /// What every Nomad plugin serves (`hashicorp.nomad.plugins.base.proto`).
    base, "hashicorp.nomad.plugins.base.proto"
}

generated! {
    /// A plugin's description of its configuration (`hashicorp.nomad.plugins.shared.hclspec`).
    hclspec, "hashicorp.nomad.plugins.shared.hclspec"
}

generated! {
    /// Values that the plugin services share (`hashicorp.nomad.plugins.shared.structs`).
    structs, "hashicorp.nomad.plugins.shared.structs"
}

generated! {
    /// The driver service (`hashicorp.nomad.plugins.drivers.proto`).
    drivers, "hashicorp.nomad.plugins.drivers.proto"
}

generated! {
    /// The executor service (`hashicorp.nomad.plugins.executor.proto`).
    executor, "hashicorp.nomad.plugins.executor.proto"
}

generated! {
    /// The logmon service (`hashicorp.nomad.client.logmon.proto`).
    logmon, "hashicorp.nomad.client.logmon.proto"
}

generated! {
    /// The docker_logger service (`hashicorp.nomad.drivers.docker.docklog.proto`).
    docker_logger, "hashicorp.nomad.drivers.docker.docklog.proto"
}

generated! {
    /// The Container Storage Interface (`csi.v1`). Its messages have no `Debug`: they hold secrets.
    csi, "csi.v1"
}

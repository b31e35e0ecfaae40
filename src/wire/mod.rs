//! Codecs of the wire: the generated protobuf messages and services. Never validates meaning.

/// go-plugin's own services (`plugin.*`).
pub mod goplugin {
    #![allow(
        missing_docs,
        clippy::pedantic,
        clippy::allow_attributes_without_reason,
        rustdoc::all,
        reason = "generated"
    )]
    tonic::include_proto!("plugin");
}

/// Messages of the driver service (`hashicorp.nomad.plugins.drivers.proto`).
pub mod drivers {
    #![allow(
        missing_docs,
        clippy::pedantic,
        clippy::allow_attributes_without_reason,
        rustdoc::all,
        reason = "generated"
    )]
    tonic::include_proto!("hashicorp.nomad.plugins.drivers.proto");
}

/// The executor service (`hashicorp.nomad.plugins.executor.proto`).
pub mod executor {
    #![allow(
        missing_docs,
        clippy::pedantic,
        clippy::allow_attributes_without_reason,
        rustdoc::all,
        reason = "generated"
    )]
    tonic::include_proto!("hashicorp.nomad.plugins.executor.proto");
}

/// The logmon service (`hashicorp.nomad.client.logmon.proto`).
pub mod logmon {
    #![allow(
        missing_docs,
        clippy::pedantic,
        clippy::allow_attributes_without_reason,
        rustdoc::all,
        reason = "generated"
    )]
    tonic::include_proto!("hashicorp.nomad.client.logmon.proto");
}

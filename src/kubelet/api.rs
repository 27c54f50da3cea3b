//! The kubelet's protocols, as `build.rs` generates them from `proto/`.

/// Messages between a kubelet and a device plugin.
#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::unwrap_used, reason = "generated")]
pub mod device_plugin {
    tonic::include_proto!("v1beta1");
}

/// Messages in which a kubelet lists the devices of its pods.
#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::unwrap_used, reason = "generated")]
pub mod pod_resources {
    tonic::include_proto!("v1");
}

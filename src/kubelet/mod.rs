//! The device plugin of a Kubernetes node: offers places on the manager's daemons to the kubelet as resources, and makes a tenant for
//! each container that gets some.
//!
//! Invariant: the plugin keeps no state of its own. Its places follow from the daemons, and their holders from the names and labels of
//! tenants; the kubelet alone knows which pods live.

mod allocation;
mod allocator;
pub mod api;
mod channel;
mod context;
mod device_plugin;
mod facts;
mod follow;
mod places;
mod preference;
mod registration;
mod release;
mod usage;

use std::sync::Arc;

pub use self::context::KubeletPluginOptions;
pub use self::preference::GpuPreference;

use self::context::PluginContext;
use self::follow::{keep_offer, keep_replicated};
use self::registration::{keep_registered, remove_sockets};
use self::release::keep_released;
use crate::client::Client;
use crate::lifecycle::StopSignals;

/// Serves the kubelet until a signal stops it. Tenants and their processes stay: a plugin that is started later takes them over.
pub async fn serve(client: Client, options: KubeletPluginOptions) -> std::io::Result<()> {
    let mut signals = StopSignals::listen()?;
    let context = Arc::new(PluginContext::new(client, options));
    let outcome = tokio::select! {
        outcome = keep_registered(&context) => outcome,
        () = keep_offer(&context) => Ok(()),
        () = keep_replicated(&context) => Ok(()),
        () = keep_released(&context) => Ok(()),
        () = signals.next() => Ok(()),
    };
    remove_sockets(&context.options.plugin_dir);
    outcome
}

//! Registers each class with the kubelet, and again after a restart of the kubelet, which removes every socket in its directory.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::api::device_plugin::RegisterRequest;
use super::api::device_plugin::registration_client::RegistrationClient;
use super::channel::connected;
use super::context::PluginContext;
use super::device_plugin::{plugin_options, serve};
use super::usage::is_checkpoint_missing;
use crate::host::Watch;

/// The version of the device plugin API.
const VERSION: &str = "v1beta1";
/// The kubelet's socket in the directory.
const KUBELET: &str = "kubelet.sock";
/// Prefix and suffix of the names of our sockets.
const PREFIX: &str = "mps-manager-";
const SUFFIX: &str = ".sock";
/// Pause between two readings of the directory without a report of a change, or after a failure.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
/// Longest time for the kubelet to register a class; it connects to the class's socket meanwhile.
const REGISTERED_WITHIN: Duration = Duration::from_secs(10);

/// Identity of the file at a path: a later file may get the same inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SocketStamp {
    inode: u64,
    changed: (i64, i64),
}

impl SocketStamp {
    fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Self { inode: file.ino(), changed: (file.ctime(), file.ctime_nsec()) })
    }
}

/// A class that is served.
struct ServedClass {
    socket: SocketStamp,
    server: JoinHandle<()>,
    /// The kubelet with which it is registered.
    kubelet: Option<SocketStamp>,
}

impl Drop for ServedClass {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Keeps every class registered until shutdown.
pub(super) async fn keep_registered(context: &Arc<PluginContext>) -> io::Result<()> {
    let directory = &context.options.plugin_dir;
    remove_sockets(directory);
    let (mut watch, mut offers) = (Watch::new()?, context.offer.subscribe());
    let mut served: BTreeMap<String, ServedClass> = BTreeMap::new();
    let mut failure = None;
    loop {
        let outcome = match watch.cover(directory) {
            Ok(()) => register_all(context, &mut served).await,
            Err(error) => Err(format!("{} cannot be watched: {error}", directory.display())),
        };
        let pause = if outcome.is_ok() { POLL_INTERVAL } else { RETRY };
        if failure != outcome.as_ref().err().cloned() {
            failure = outcome.err();
            if let Some(failure) = &failure {
                tracing::warn!("{failure}; it is tried again");
            }
        }
        tokio::select! {
            () = watch.changed() => {}
            changed = offers.changed() => if changed.is_err() { return Ok(()) },
            () = sleep(pause) => {}
        }
    }
}

/// Removes the sockets of an earlier plugin, or ours at the end, which shows the kubelet that nobody serves them.
pub(super) fn remove_sockets(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        if is_ours && let Err(error) = fs::remove_file(entry.path()) {
            tracing::warn!(%error, "{} cannot be removed", entry.path().display());
        }
    }
}

async fn register_all(
    context: &Arc<PluginContext>,
    served: &mut BTreeMap<String, ServedClass>,
) -> Result<(), String> {
    let directory = &context.options.plugin_dir;
    let kubelet_socket = directory.join(KUBELET);
    // A kubelet that starts makes its socket after it has removed all others.
    let Some(kubelet) = SocketStamp::of(&kubelet_socket) else {
        return Err(format!("there is no kubelet at {}", kubelet_socket.display()));
    };
    let classes: Vec<String> = context.offer.borrow().classes.keys().cloned().collect();
    for class in classes {
        let endpoint = format!("{PREFIX}{class}{SUFFIX}");
        let socket = directory.join(&endpoint);
        let is_served = served.get(&class).is_some_and(|served| {
            !served.server.is_finished() && SocketStamp::of(&socket) == Some(served.socket)
        });
        if !is_served {
            served.insert(class.clone(), start(context, &class, &socket)?);
        }
        let Some(served) = served.get_mut(&class) else { continue };
        if served.kubelet != Some(kubelet) {
            context.is_checkpoint_lost.fetch_or(is_checkpoint_missing(directory), Ordering::Relaxed);
            register(&kubelet_socket, &endpoint, &context.resource(&class)).await?;
            served.kubelet = Some(kubelet);
        }
    }
    Ok(())
}

fn start(context: &Arc<PluginContext>, class: &str, socket: &Path) -> Result<ServedClass, String> {
    let refused = |error: io::Error| format!("{} cannot be served: {error}", socket.display());
    let serving = serve(Arc::clone(context), class, socket).map_err(refused)?;
    let stamp = SocketStamp::of(socket).ok_or_else(|| format!("{} is gone already", socket.display()))?;
    Ok(ServedClass { socket: stamp, server: tokio::spawn(serving), kubelet: None })
}

async fn register(kubelet: &Path, endpoint: &str, resource: &str) -> Result<(), String> {
    let refused = |why: String| format!("the kubelet did not register {resource}: {why}");
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: Some(plugin_options()),
    };
    let registered = async {
        let channel = connected(kubelet).await.map_err(|error| refused(error.to_string()))?;
        let answer = RegistrationClient::new(channel).register(request).await;
        answer.map_err(|status| refused(status.message().to_owned()))
    };
    let late = || refused(format!("no answer within {} s", REGISTERED_WITHIN.as_secs()));
    timeout(REGISTERED_WITHIN, registered).await.unwrap_or_else(|_| Err(late()))?;
    tracing::info!("{resource} is registered with the kubelet");
    Ok(())
}

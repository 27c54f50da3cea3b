//! Follows the manager: reads the offer of the node again at each event that may change it, and at intervals.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::context::{PluginContext, answered};
use super::facts;
use super::places::NodeOffer;
use super::usage::replicated_gpus;
use crate::client::{Client, ClientError};
use crate::http::api::List;
use crate::service::daemons::DaemonView;
use crate::service::host::GpuView;

/// Events after which the health of places may differ, beginning now.
const EVENTS: &str = "/api/v1/events/stream?type=daemon.,server.,settings.,layout.,gpu.,host.";
/// Pause between two readings of everything without an event.
const REFRESH: Duration = Duration::from_secs(5);
/// Pause before the manager is tried again after it did not answer.
const RETRY: Duration = Duration::from_millis(250);

/// Keeps the offer current until shutdown.
pub(super) async fn keep_offer(context: &PluginContext) {
    let (mut lost, mut gpus): (Option<Instant>, Vec<GpuView>) = (None, Vec::new());
    // Before the first offer, so that no pod is placed on a GPU that is shared already.
    learn_replicated(context).await;
    loop {
        if let Err(error) = follow(context, &mut lost, &mut gpus).await
            && lost.is_none()
        {
            tracing::warn!(%error, "the manager does not answer");
        }
        if lost.get_or_insert_with(Instant::now).elapsed() >= context.options.grace {
            let offer = NodeOffer::clone(&context.offer.borrow());
            context.publish(offer.without_manager());
        }
        sleep(RETRY).await;
    }
}

/// Asks the kubelet at intervals which GPUs another device plugin shares, until shutdown.
pub(super) async fn keep_replicated(context: &PluginContext) {
    loop {
        sleep(context.options.interval).await;
        learn_replicated(context).await;
    }
}

/// Asks the kubelet once.
async fn learn_replicated(context: &PluginContext) {
    if let Some(gpus) = replicated_gpus(&context.options).await {
        context.replicated.send_if_modified(|replicated| {
            let is_other = *replicated != gpus;
            *replicated = gpus;
            is_other
        });
    }
}

/// Keeps the offer current until the manager ends the stream of its events or does not answer.
///
/// `gpus` are those that were listed last.
async fn follow(
    context: &PluginContext,
    lost: &mut Option<Instant>,
    gpus: &mut Vec<GpuView>,
) -> Result<(), ClientError> {
    let client = &context.client;
    // The stream begins now, so that no event is missed between it and the reading that follows.
    let mut stream = answered(client.stream(EVENTS)).await?;
    // Before any event is taken: a class is named by the SMs of its GPUs.
    *gpus = with_absent_parts(answered(gpus_of(client)).await?, std::mem::take(gpus));
    let mut replicated = context.replicated.subscribe();
    let mut due = interval(REFRESH);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_due = tokio::select! {
            _ = due.tick() => true,
            _ = replicated.changed() => false,
            message = stream.next() => match message? {
                None => return Ok(()),
                // A sign of life.
                Some(message) if message.data.is_none() => continue,
                Some(_) => false,
            },
        };
        if is_due {
            let listed = answered(gpus_of(client)).await?;
            *gpus = with_absent_parts(listed, std::mem::take(gpus));
        }
        let daemons: Vec<DaemonView> = answered(daemons(client)).await?;
        if lost.take().is_some() {
            tracing::info!("the manager answers");
        }
        context.publish(NodeOffer::of(&daemons, gpus).beside(&replicated.borrow_and_update()));
        if let Some(file) = &context.options.features_file
            && let Err(error) = facts::keep(file, &daemons)
        {
            tracing::warn!("{} cannot be written: {error}", file.display());
        }
    }
}

/// Adds the MLOPart devices that were listed before and are not now, as missing: they are listed only while a server has them.
fn with_absent_parts(mut gpus: Vec<GpuView>, before: Vec<GpuView>) -> Vec<GpuView> {
    let is_absent =
        |gpu: &GpuView| gpu.mlopart.is_some() && gpus.iter().all(|listed| listed.uuid != gpu.uuid);
    let absent: Vec<GpuView> = before.into_iter().filter(is_absent).collect();
    gpus.extend(absent.into_iter().map(|gpu| GpuView { present: false, ..gpu }));
    gpus
}

async fn daemons(client: &Client) -> Result<Vec<DaemonView>, ClientError> {
    client.list("/api/v1/daemons", usize::MAX).await
}

async fn gpus_of(client: &Client) -> Result<Vec<GpuView>, ClientError> {
    Ok(client.get::<List<GpuView>>("/api/v1/gpus").await?.items)
}

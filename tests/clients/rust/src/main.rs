//! A tenant's life through the client that progenitor generates.

#[allow(clippy::all, clippy::pedantic, dead_code, unused_imports)]
mod client {
    include!(concat!(env!("OUT_DIR"), "/client.rs"));
}

use std::time::{Duration, Instant};

use client::types::{AddStep, Layout, LayoutRequest, LayoutStep, RemoveStep, TenantSpec};
use client::{Client, Error};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// The status of a call that must have been refused.
fn refused<T, E>(answer: Result<T, Error<E>>) -> Option<u16> {
    answer.err().and_then(|error| error.status()).map(|status| status.as_u16())
}

fn tenant(max_clients: u32) -> Result<TenantSpec, serde_json::Error> {
    // A manager that is not root serves its own user alone.
    let own = std::fs::metadata("/proc/self").map_err(serde_json::Error::io)?;
    serde_json::from_value(serde_json::json!({
        "daemon": "gpu0",
        "uid": std::os::unix::fs::MetadataExt::uid(&own),
        "device_memory_limit": "4G",
        "max_clients": max_clients,
        "active_thread_percentage": 25,
    }))
}

#[tokio::main]
async fn main() -> Outcome {
    let bearer = format!("Bearer {}", setting("HOST_A_TOKEN"));
    let headers = reqwest::header::HeaderMap::from_iter([(reqwest::header::AUTHORIZATION, bearer.parse()?)]);
    let http = reqwest::Client::builder().default_headers(headers).build()?;
    let api = Client::new_with_client(&setting("HOST_A_URL"), http);
    let web = "web".parse()?;

    let made = api.put_tenant(&web, None, None, None, Some("*".parse()?), &tenant(2)?).await?;
    assert_eq!(made.status().as_u16(), 201);
    let tag = made.headers()["etag"].to_str()?.to_owned();
    let tried = api.put_tenant(&web, Some(true), None, None, None, &tenant(3)?).await?;
    assert_eq!(tried.spec.max_clients.map(u64::from), Some(3));
    api.put_tenant(&web, None, None, Some(&tag.parse()?), None, &tenant(3)?).await?;
    assert_eq!(refused(api.put_tenant(&web, None, None, Some(&tag.parse()?), None, &tenant(2)?).await), Some(412));

    let deadline = Instant::now() + Duration::from_secs(60);
    while !api.get_readiness().await.is_ok_and(|readiness| readiness.ready) {
        assert!(Instant::now() < deadline, "never happened: every daemon is ready");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let read = api.get_tenant(&web, Some(true), None, None).await?;
    // A number in answers, whatever the request wrote.
    let limit = serde_json::to_value(&read.spec.device_memory_limit)?;
    assert_eq!(limit, 4_u64 << 30);
    let patch = serde_json::from_value(serde_json::json!({"labels": {"team": "ml"}}))?;
    let patched = api.patch_tenant(&web, None, Some(30), None, &patch).await?;
    assert_eq!(patched.spec.labels.len(), 1);
    let list = api.list_tenants(None, Some(&"gpu0".parse()?), None, None, None).await?;
    assert!(list.items.iter().any(|tenant| tenant.name == web));
    let environment = api.get_tenant_environment(&web, None).await?;
    assert!(environment.variables.contains_key("CUDA_MPS_PIPE_DIRECTORY"));

    let partition: client::types::PartitionName = "web".parse()?;
    let add = AddStep { gpu: 0, partition: partition.clone(), chunks: 7.try_into()?, tenants: Vec::new() };
    let steps = vec![
        LayoutStep::Add(client::types::LayoutStepAdd { add }),
        LayoutStep::Remove(client::types::LayoutStepRemove { remove: RemoveStep { partition } }),
    ];
    let layout = Layout { enforcement: None, sku: None, steps };
    let layout = LayoutRequest { layout, note: None };
    api.put_layout(&"prod".parse()?, None, None, None, &layout).await?;

    let key = "restart-once".parse()?;
    let first = api.restart_daemon(&"gpu1".parse()?, None, Some(0), Some(&key), None).await?;
    let second = api.restart_daemon(&"gpu1".parse()?, None, Some(0), Some(&key), None).await?;
    assert_eq!(first.id, second.id);

    api.delete_tenant(&web, None, None, None, None).await?;
    assert_eq!(refused(api.get_tenant(&web, None, None, None).await), Some(404));
    println!("progenitor: a tenant's life: passed");
    Ok(())
}

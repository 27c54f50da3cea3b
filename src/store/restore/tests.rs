use super::*;
use crate::domain::TenantDirectory;
use crate::domain::daemon::DaemonSpec;
use crate::domain::tenant::tests::{h200, spec};
use crate::store::{Fate, Store};

fn name(text: &str) -> TenantName {
    TenantName::parse(text).expect("name")
}

/// A database with a daemon and tenants, each created at a time.
async fn database(directory: &Path, file: &str, tenants: &[(&'static str, i64)]) -> SqliteConnection {
    let path = directory.join(file);
    let store = Store::open(&path, 0).await.expect("a store");
    let tenants = tenants.to_vec();
    let written: Result<(), StoreError> = store
        .write(move |db| {
            Box::pin(async move {
                let daemon = DaemonName::parse("gpu0").expect("name");
                daemons::put(&mut *db, &daemon, &DaemonSpec::of(vec![h200(0).uuid]), 1).await?;
                for (tenant, created_at) in tenants {
                    let spec = spec(r#"{"daemon":"gpu0"}"#);
                    tenants::put(&mut *db, &name(tenant), &spec, 1, created_at).await?;
                }
                Ok(((), Fate::Commit))
            })
        })
        .await;
    written.expect("written");
    store.close().await;
    connect(&path).await.expect("connected")
}

async fn directory_of(db: &mut SqliteConnection, tenant: &str) -> TenantDirectory {
    tenants::get(db, &name(tenant)).await.expect("read").expect("there").directory
}

#[tokio::test]
async fn restored_tenant_keeps_its_present_directory() {
    let home = tempfile::tempdir().expect("directory");
    // The migration gives the tenants of an older backup names at random, as a new tenant gets one.
    let mut backup = database(home.path(), "backup.db", &[("same", 1), ("another", 1)]).await;
    let mut present = database(home.path(), "present.db", &[("same", 1), ("another", 2)]).await;
    let (own, theirs) =
        (directory_of(&mut backup, "another").await, directory_of(&mut present, "same").await);
    assert_ne!(directory_of(&mut backup, "same").await, theirs);
    let mut notes = Vec::new();
    carry_tenants(&mut backup, &mut present, &mut notes).await.expect("carried");
    assert_eq!(directory_of(&mut backup, "same").await, theirs);
    assert_eq!(directory_of(&mut backup, "another").await, own, "no other tenant ever gets a directory");
    assert_eq!(notes.len(), 1, "{notes:?}");
}

//! Reads the objects of the host in one transaction.

use std::collections::BTreeSet;

use sqlx::SqliteConnection;

use crate::domain::LayoutName;
use crate::domain::host_file::{HostFile, StoredHost, StoredLayout};
use crate::domain::layout::VersionRef;
use crate::service::change::Objects;
use crate::store::{self, StoreError};

/// Reads the objects of the host, as far as a comparison with `file` needs them.
pub(super) async fn load(
    db: &mut SqliteConnection,
    file: Option<&HostFile>,
) -> Result<StoredHost, StoreError> {
    let objects = Objects::load(&mut *db).await?;
    with_layouts(db, objects, file).await
}

/// Adds the layouts to daemons and tenants, as far as a comparison with `file` needs them.
pub(super) async fn with_layouts(
    db: &mut SqliteConnection,
    objects: Objects,
    file: Option<&HostFile>,
) -> Result<StoredHost, StoreError> {
    let mut stored = StoredHost::default();
    for newest in store::layouts::page(&mut *db, "", i64::MAX).await? {
        let content = StoredLayout { version: newest.version, layout: newest.layout, note: newest.note };
        stored.layouts.insert(newest.name, content);
    }
    stored.daemons = objects.daemons.into_iter().map(|(name, daemon)| (name, daemon.spec)).collect();
    let draining = objects.tenants.values().filter(|tenant| tenant.draining);
    stored.draining = draining.map(|tenant| tenant.name.clone()).collect();
    let tenants = objects.tenants.values();
    stored.tenants = tenants.map(|tenant| (tenant.name.clone(), tenant.spec.clone())).collect();
    let mut older: BTreeSet<VersionRef> = BTreeSet::new();
    older.extend(stored.daemons.values().filter_map(|daemon| Some(daemon.layout.as_ref()?.version_ref())));
    if let Some(file) = file {
        for binding in file.bindings.values() {
            older.extend(binding.version.map(|version| VersionRef { name: binding.layout.clone(), version }));
        }
        let names: Vec<&LayoutName> = file.layouts.keys().collect();
        for name in names {
            stored.next_versions.insert(name.clone(), store::layouts::next_number(&mut *db, name).await?);
        }
    }
    older.retain(|wanted| stored.content(wanted).is_none());
    for wanted in older {
        if let Some(version) = store::layouts::version(&mut *db, &wanted).await? {
            stored.versions.insert(wanted, version.layout);
        }
    }
    Ok(stored)
}

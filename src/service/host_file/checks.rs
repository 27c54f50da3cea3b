//! Checks made before anything is written: all those that need a poll, a look at processes, or the users of the host.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Compared;
use super::faults::Faults;
use crate::domain::count::counted;
use crate::domain::daemon::{DaemonSpec, Mode};
use crate::domain::host_file::{HostChange, HostChangeAction, HostObjectKind, StoredHost, fits};
use crate::domain::layout::Layout;
use crate::domain::layout::active::ActiveLayout;
use crate::domain::layout::outlook::Allowed;
use crate::domain::{DaemonName, GpuUuid, LayoutName};
use crate::service::daemons::layout_fit::refuse_strategy;
use crate::service::layouts::Projected;
use crate::service::{Backend, Result, ServiceError};
use crate::store;

/// Results of the checks that the transaction needs.
#[derive(Default)]
pub(super) struct Checked {
    /// Reason why a daemon that was only observed cannot be managed, by daemon.
    pub(super) objections: BTreeMap<DaemonName, String>,
    /// Daemons whose layout is applied by an operation of its own, because they are running.
    pub(super) applied_later: BTreeSet<DaemonName>,
}

impl Compared {
    /// The changes of one kind.
    pub(super) fn changed(&self, kind: HostObjectKind) -> impl Iterator<Item = &HostChange> {
        self.changes.iter().filter(move |change| change.kind == kind)
    }

    /// Returns true if the file creates or changes an object.
    pub(super) fn writes(&self, kind: HostObjectKind, name: &str) -> bool {
        self.changed(kind).any(|change| change.name == name && change.action != HostChangeAction::Delete)
    }

    /// Returns true if the file deletes an object.
    pub(super) fn deletes(&self, kind: HostObjectKind, name: &str) -> bool {
        self.changed(kind).any(|change| change.name == name && change.action == HostChangeAction::Delete)
    }

    /// Returns the objects that the checks looked at: the daemons that the file writes, binds or deletes, and the layouts that it writes or
    /// binds.
    pub(super) fn subject(&self) -> StoredHost {
        let StoredHost { mut layouts, next_versions, mut versions, mut daemons, .. } = self.stored.clone();
        daemons.retain(|name, _| {
            self.spec.daemons.contains_key(name)
                || self.spec.bindings.contains_key(name)
                || self.deletes(HostObjectKind::Daemon, name.as_str())
                || self.spec.tenants.values().any(|tenant| tenant.daemon == *name)
        });
        let bound =
            self.spec.bindings.values().chain(daemons.values().filter_map(|daemon| daemon.layout.as_ref()));
        let bound: BTreeSet<LayoutName> = bound.map(|active| active.name.clone()).collect();
        layouts.retain(|name, _| {
            self.spec.layouts.contains_key(name)
                || bound.contains(name)
                || self.deletes(HostObjectKind::Layout, name.as_str())
        });
        versions.retain(|version, _| bound.contains(&version.name));
        StoredHost { layouts, next_versions, versions, daemons, ..StoredHost::default() }
    }

    /// A daemon's spec as it will be, without its layout.
    pub(super) fn daemon(&self, name: &DaemonName) -> Option<&DaemonSpec> {
        self.spec.daemons.get(name).or_else(|| self.stored.daemons.get(name))
    }
}

impl Backend {
    /// Refuses a file that the host cannot follow as its processes are now.
    pub(super) async fn check_host(&self, compared: &Compared) -> Result<Checked> {
        let mut faults = Faults::default();
        let mut checked = Checked::default();
        for (name, spec) in &compared.spec.daemons {
            if !compared.writes(HostObjectKind::Daemon, name.as_str()) {
                continue;
            }
            let place = format!("/daemons/{name}");
            faults.keep(&place, self.check_name_fits(name))?;
            if let Some(Some(objection)) =
                faults.keep(&place, self.objection_to(name, spec, &compared.gpus).await)?
            {
                checked.objections.insert(name.clone(), objection);
            }
            self.refuse_restart_under_clients(&mut faults, compared, name, spec).await;
        }
        self.check_tenants(&mut faults, compared).await?;
        for (name, active) in &compared.spec.bindings {
            if let Some(daemon) = compared.daemon(name) {
                faults.keep(&format!("/bindings/{name}"), refuse_strategy(name, daemon))?;
            }
            if compared.writes(HostObjectKind::Binding, name.as_str()) {
                self.check_binding(&mut faults, &mut checked, compared, name, active).await?;
            }
        }
        for (name, spec) in &compared.stored.daemons {
            if compared.deletes(HostObjectKind::Daemon, name.as_str()) {
                let clients = self.connected_to(name).await;
                if spec.is_observed() {
                    let reason = format!(
                        "daemon {name} is only observed, and is not deleted: release it first, or add it to the file"
                    );
                    faults.conflict("/daemons".to_owned(), reason);
                } else if clients > 0 {
                    let reason = format!(
                        "daemon {name} would be deleted, and {} connected: end them first (mps-manager daemon drain {name}), or add \
                         it to the file",
                        are(clients)
                    );
                    faults.conflict("/daemons".to_owned(), reason);
                }
            }
        }
        faults.check()?;
        Ok(checked)
    }

    async fn check_tenants(&self, faults: &mut Faults, compared: &Compared) -> Result<()> {
        let mut reached: BTreeMap<(DaemonName, bool, u32), Result<(), String>> = BTreeMap::new();
        for (name, spec) in &compared.spec.tenants {
            if !compared.writes(HostObjectKind::Tenant, name.as_str()) {
                continue;
            }
            let place = format!("/tenants/{name}");
            faults.keep(&place, self.refuse_move_with_clients(name, &spec.daemon).await)?;
            let multi_user = compared.daemon(&spec.daemon).is_some_and(|daemon| daemon.multi_user);
            let key = (spec.daemon.clone(), multi_user, spec.uid);
            if !reached.contains_key(&key) {
                let reachable = self.parts.fleet.check_reachable(&spec.daemon, multi_user, spec.uid).await;
                reached.insert(key.clone(), reachable);
            }
            if let Some(Err(unreachable)) = reached.get(&key) {
                faults.keep::<()>(&place, Err(ServiceError::field("/uid", unreachable.clone())))?;
            }
        }
        for name in compared.stored.tenants.keys() {
            if compared.deletes(HostObjectKind::Tenant, name.as_str()) {
                faults.keep("/tenants", self.refuse_with_processes(name).await)?;
            }
        }
        Ok(())
    }

    /// Plans a layout on a daemon that runs as it will; of one that is new, stopped or to be restarted, only the chunks are checked.
    async fn check_binding(
        &self,
        faults: &mut Faults,
        checked: &mut Checked,
        compared: &Compared,
        name: &DaemonName,
        active: &ActiveLayout,
    ) -> Result<()> {
        let layout = compared.spec.layouts.get(&active.name).map(|(layout, _)| layout);
        let content = layout.filter(|_| compared.stored.content(&active.version_ref()).is_none());
        let Some(layout) = content.or_else(|| compared.stored.content(&active.version_ref())).cloned() else {
            return Ok(());
        };
        let place = format!("/bindings/{name}");
        let Some(before) =
            compared.stored.daemons.get(name).filter(|_| !self.takes_layout_at_once(name, &compared.stored))
        else {
            return self.check_chunks(faults, compared, &place, active, &layout).await;
        };
        let earlier = before.layout.as_ref();
        let is_policy_alone = earlier.is_some_and(|earlier| {
            earlier.version_ref() == active.version_ref() && earlier.gpu_map == active.gpu_map
        });
        if is_policy_alone {
            return Ok(());
        }
        checked.applied_later.insert(name.clone());
        let becomes = compared.daemon(name).unwrap_or(before);
        if becomes.mode != before.mode || becomes.gpus != before.gpus {
            // What cannot be counted now is checked by what is known, and by the daemon once it was restarted.
            if becomes.gpus == before.gpus
                && before.mode == Mode::Shared
                && let Err(error) = self.parts.engine.chunks_of(name, &before.gpus).await
            {
                tracing::warn!(daemon = %name, %error, "the chunks of its GPUs could not be counted");
            }
            return self.check_chunks(faults, compared, &place, active, &layout).await;
        }
        let Some(daemon) = self.stored_daemon(name).await? else { return Ok(()) };
        let projected = Projected { daemon, active: active.clone(), layout };
        if let Some(plan) = faults.keep(&place, self.plan_of(&projected, Duration::ZERO).await)? {
            for blocker in plan.refusals(Allowed { recreate: compared.file_options.recreate, drain: false }) {
                // The file is applied again, since its layout is not stored yet.
                let remedy = "apply the file with `mps-manager apply --recreate`";
                faults.conflict(place.clone(), blocker.what.in_words(remedy));
            }
        }
        Ok(())
    }

    /// Refuses a layout for which a GPU has too few chunks, as far as those are known before its daemon lists them.
    async fn check_chunks(
        &self,
        faults: &mut Faults,
        compared: &Compared,
        place: &str,
        active: &ActiveLayout,
        layout: &Layout,
    ) -> Result<()> {
        let census = store::probe_results::chunks(&mut *self.parts.store.read().await?).await?;
        let mut counted: BTreeMap<GpuUuid, u32> =
            census.into_iter().map(|(gpu, census)| (gpu, census.chunks)).collect();
        for (_, effective) in self.parts.fleet.of_each(|observed| observed.status.effective.clone()) {
            let listed = effective.and_then(|effective| effective.partitions).unwrap_or_default();
            counted.extend(listed.into_iter().map(|row| (row.gpu, row.free_chunks + row.used_chunks)));
        }
        if let Err(reason) = fits(layout, &active.gpu_map, &compared.gpus, &counted) {
            faults.conflict(format!("{place}/layout"), reason.to_string());
        }
        Ok(())
    }

    /// Refuses to restart a daemon that has clients: the change would have to wait until they end, which may be never.
    async fn refuse_restart_under_clients(
        &self,
        faults: &mut Faults,
        compared: &Compared,
        name: &DaemonName,
        spec: &DaemonSpec,
    ) {
        let Some(before) = compared.stored.daemons.get(name) else { return };
        let fields = [
            ("gpus", before.gpus != spec.gpus),
            ("mode", before.mode != spec.mode),
            ("multi_user", before.multi_user != spec.multi_user),
            ("desired_state", before.desired_state != spec.desired_state),
        ];
        let changed: Vec<&str> =
            fields.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field).collect();
        let clients = if changed.is_empty() { 0 } else { self.connected_to(name).await };
        for field in changed.into_iter().filter(|_| clients > 0) {
            faults.conflict(
                format!("/daemons/{name}/{field}"),
                format!(
                    "daemon {name} would have to be stopped for a change of {field}, and {} connected: end them first (mps-manager \
                     daemon drain {name})",
                    are(clients)
                ),
            );
        }
    }

    /// The clients of a daemon, by a fresh poll, or by the last one where the daemon does not answer now.
    async fn connected_to(&self, name: &DaemonName) -> usize {
        let Some(handle) = self.parts.fleet.get(name) else { return 0 };
        let observed = handle.fresh(self.parts.timeout).await.unwrap_or_else(|_| handle.observed());
        observed.clients.len()
    }
}

fn are(clients: usize) -> String {
    format!("{} {}", counted(clients, "client"), if clients == 1 { "is" } else { "are" })
}

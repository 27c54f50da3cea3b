//! Checks of a host file: in itself, and on one host.

use std::collections::BTreeMap;

use super::template::{faults_of, on_host, with_template};
use super::{HostFile, HostSpec, LayoutBinding, StoredHost};
use crate::admission::on_gpus_of;
use crate::daemon::Management;
use crate::gpu::Gpu;
use crate::layout::active::ActiveLayout;
use crate::layout::{
    GpuMap, Invalid, Layout, PartitionChange, ResolvedStep, VersionRef, check_note, map_roles,
};
use crate::{DaemonName, GpuUuid, InvalidValue};

/// Layouts, daemons and tenants of a file at most, each: while it is written, nothing else is.
const MOST_OF_A_KIND: usize = 2000;

/// Errors in a host file, each with its place.
#[derive(Debug, Clone, Default)]
pub struct FileErrors {
    /// All errors that were found.
    pub errors: Vec<Invalid>,
    /// True if an error is a conflict with the host, so that the file may be valid elsewhere.
    pub conflict: bool,
}

impl FileErrors {
    fn add(&mut self, pointer: String, reason: impl Into<String>) {
        self.errors.push(Invalid { pointer, reason: InvalidValue(reason.into()) });
    }

    /// Returns a value, or records the error.
    fn take<T>(&mut self, pointer: String, value: Result<T, InvalidValue>) -> Option<T> {
        value.map_err(|reason| self.errors.push(Invalid { pointer, reason })).ok()
    }
}

impl HostFile {
    /// Returns the errors that do not depend on the host.
    pub(super) fn check(&self) -> Vec<Invalid> {
        let mut faults = FileErrors::default();
        let most = [
            ("layouts", self.layouts.len()),
            ("daemons", self.daemons.len()),
            ("tenants", self.tenants.len()),
        ];
        for (of, count) in most.into_iter().filter(|(_, count)| *count > MOST_OF_A_KIND) {
            faults.add(
                format!("/{of}"),
                format!("there are {count} {of}: a host file may have {MOST_OF_A_KIND}, since it is written at once; split it"),
            );
        }
        for (name, entry) in &self.layouts {
            let within = |pointer: &str| format!("/layouts/{name}{pointer}");
            if let Err(Invalid { pointer, reason }) = entry.layout().check() {
                faults.errors.push(Invalid { pointer: within(&pointer), reason });
            }
            faults.take(within("/note"), check_note(entry.note.as_deref()));
            if !name.is_free() {
                let reason = format!(
                    "no layout can be called {name}, since that is a path of the API: choose another name"
                );
                faults.add(within(""), reason);
            }
            if entry.recorded.is_some() {
                faults.add(
                    within("/recorded"),
                    "a host file states what is desired, and not what was recorded elsewhere: take recorded out, or replay the \
                     layout (mps-manager layout replay)",
                );
            }
        }
        for (name, daemon) in &self.daemons {
            if daemon.layout.is_some() {
                let reason = format!(
                    "the layout of a daemon stands under bindings in a host file: write it to /bindings/{name}"
                );
                faults.add(format!("/daemons/{name}/layout"), reason);
            }
        }
        for (pointer, reason) in faults_of(&self.templates, |daemon| self.daemons.contains_key(daemon)) {
            faults.add(pointer, reason);
        }
        namesakes(&mut faults, "template", self.templates.keys().map(|name| (name.folded(), name.as_str())));
        for (name, tenant) in &self.tenants {
            if tenant.expires_at.is_some() {
                let reason = format!(
                    "a host file says what stays, and a tenant that expires does not: take expires_at out, or create the tenant with \
                     mps-manager tenant ensure {name} --ttl 48h"
                );
                faults.add(format!("/tenants/{name}/expires_at"), reason);
            }
        }
        namesakes(&mut faults, "layout", self.layouts.keys().map(|name| (name.folded(), name.as_str())));
        namesakes(&mut faults, "daemon", self.daemons.keys().map(|name| (name.folded(), name.as_str())));
        namesakes(&mut faults, "tenant", self.tenants.keys().map(|name| (name.folded(), name.as_str())));
        faults.errors
    }
}

/// Refuses two names that differ only in hyphens and underscores.
fn namesakes<'n>(faults: &mut FileErrors, kind: &str, names: impl Iterator<Item = (String, &'n str)>) {
    let mut folded_names: BTreeMap<String, &str> = BTreeMap::new();
    for (folded, name) in names {
        if let Some(other) = folded_names.insert(folded, name) {
            faults.add(
                format!("/{kind}s/{name}"),
                format!(
                    "{kind} {name} differs from {kind} {other} only in hyphens and underscores, and newer versions of MPS take \
                     both for the same: choose another name"
                ),
            );
        }
    }
}

/// Reads a host file for a host; fails with every error that it has there.
pub fn resolve(
    file: &HostFile,
    stored: &StoredHost,
    gpus: &[Gpu],
    prune: bool,
) -> Result<HostSpec, FileErrors> {
    let mut faults = FileErrors::default();
    let mut spec = HostSpec::default();
    for (name, entry) in &file.layouts {
        spec.layouts.insert(name.clone(), (entry.layout(), entry.note.clone()));
    }
    for (name, daemon) in &file.daemons {
        let resolved = daemon.clone().resolve_gpus(gpus);
        let resolved = resolved.and_then(|resolved| with_template(&file.templates, name, resolved, gpus));
        match resolved.and_then(|resolved| resolved.check(gpus).map(|()| resolved)) {
            Ok(resolved) => {
                spec.daemons.insert(name.clone(), resolved);
            }
            Err((field, reason)) => {
                faults.take::<()>(format!("/daemons/{name}/{field}"), Err(reason));
            }
        }
    }
    let templates = on_host(&file.templates, &spec.daemons, gpus);
    for (pointer, reason) in templates.errors {
        // The file may be valid on GPUs with more memory.
        faults.conflict = true;
        faults.add(pointer, reason);
    }
    let warning = |(pointer, reason)| Invalid { pointer, reason: InvalidValue(reason) };
    spec.warnings = templates.warnings.into_iter().map(warning).collect();
    one_daemon_a_gpu(&mut faults, &spec, stored, gpus, prune);
    for (name, tenant) in &file.tenants {
        let within = |field: &str| format!("/tenants/{name}/{field}");
        let is_kept = stored.daemons.contains_key(&tenant.daemon) && !prune;
        if !file.daemons.contains_key(&tenant.daemon) && !is_kept {
            faults.add(within("daemon"), missing_daemon(&tenant.daemon, stored));
        }
        let resolved = tenant.clone().resolve_gpus(gpus);
        match resolved.and_then(|tenant| tenant.check().map(|()| tenant)) {
            Ok(tenant) => {
                let daemon = spec.daemons.get(&tenant.daemon);
                let is_stored = is_kept && !file.daemons.contains_key(&tenant.daemon);
                let daemon = daemon.or_else(|| stored.daemons.get(&tenant.daemon).filter(|_| is_stored));
                if let Some(daemon) = daemon
                    && let Err(refusal) = on_gpus_of(tenant.daemon.as_str(), daemon, name, &tenant, gpus)
                {
                    faults.add(within(refusal.field), refusal.detail);
                }
                spec.tenants.insert(name.clone(), tenant);
            }
            Err((field, reason)) => {
                faults.take::<()>(within(field), Err(reason));
            }
        }
    }
    for (name, binding) in &file.bindings {
        if let Some(active) = bound(&mut faults, name, binding, &spec, file, stored, gpus, prune) {
            spec.bindings.insert(name.clone(), active);
        }
    }
    if faults.errors.is_empty() { Ok(spec) } else { Err(faults) }
}

fn missing_daemon(name: &DaemonName, stored: &StoredHost) -> String {
    if stored.daemons.contains_key(name) {
        format!(
            "daemon {name} is not in the file, so pruning deletes it: add it under daemons, or name another"
        )
    } else {
        format!(
            "there is no daemon {name}, neither in the file nor on the host: add it under daemons, or name another"
        )
    }
}

/// Refuses two daemons on one GPU, in the file or together with those that stay on the host.
fn one_daemon_a_gpu(
    faults: &mut FileErrors,
    spec: &HostSpec,
    stored: &StoredHost,
    gpus: &[Gpu],
    prune: bool,
) {
    let mut holders: BTreeMap<&GpuUuid, (&DaemonName, bool)> = BTreeMap::new();
    // A daemon that is pruned is stopped first and releases its GPUs.
    let staying = stored.daemons.iter().filter(|(name, _)| !prune && !spec.daemons.contains_key(*name));
    for (name, daemon) in staying.filter(|(_, daemon)| daemon.management == Management::Managed) {
        holders.extend(daemon.gpus.iter().map(|gpu| (gpu, (name, false))));
    }
    for (name, daemon) in spec.daemons.iter().filter(|(_, daemon)| daemon.management == Management::Managed) {
        for gpu in &daemon.gpus {
            let Some((other, in_file)) = holders.insert(gpu, (name, true)) else { continue };
            let shown = gpus.iter().find(|listed| listed.uuid == *gpu && listed.present);
            let shown = shown.map_or_else(|| gpu.to_string(), |listed| format!("{} ({gpu})", listed.index));
            let (place, remedy) = if in_file {
                ("", "give it to one of them")
            } else {
                faults.conflict = true;
                (
                    ", which is on the host and not in the file",
                    "let the file have that daemon with other GPUs, choose another GPU, or delete that daemon with --prune",
                )
            };
            faults.add(
                format!("/daemons/{name}/gpus"),
                format!(
                    "GPU {shown} is also held by daemon {other}{place}, and a GPU has one daemon: {remedy}"
                ),
            );
        }
    }
}

/// Returns the layout that a binding puts on its daemon.
#[allow(clippy::too_many_arguments, reason = "the file, the host, and what is known of both")]
fn bound(
    faults: &mut FileErrors,
    name: &DaemonName,
    binding: &LayoutBinding,
    spec: &HostSpec,
    file: &HostFile,
    stored: &StoredHost,
    gpus: &[Gpu],
    prune: bool,
) -> Option<ActiveLayout> {
    let within = |field: &str| format!("/bindings/{name}{field}");
    let daemon = match (spec.daemons.get(name), stored.daemons.get(name)) {
        (Some(daemon), _) => daemon,
        // The daemon is in the file, and its errors were recorded already.
        (None, _) if file.daemons.contains_key(name) => return None,
        (None, Some(daemon)) if !prune => daemon,
        (None, _) => {
            faults.add(within(""), missing_daemon(name, stored));
            return None;
        }
    };
    let (version, layout) = version_of(binding, spec, stored, prune)
        .map_err(|(field, reason)| faults.add(within(field), reason))
        .ok()?;
    let mut given = GpuMap::new();
    for (role, gpu) in &binding.gpu_map {
        let uuid = gpu.resolve(gpus).map(|gpu| gpu.uuid.clone());
        given.insert(*role, faults.take(within(&format!("/gpu_map/{role}")), uuid)?);
    }
    let map = map_roles(layout, &given, &daemon.gpus, gpus);
    let gpu_map = faults.take(within("/gpu_map"), map)?;
    faults.take(within("/layout"), fits(layout, &gpu_map, gpus, &BTreeMap::new()))?;
    let VersionRef { name, version } = version;
    Some(ActiveLayout { name, version, gpu_map, drift_policy: binding.drift_policy })
}

/// Returns the version that a binding means, with its content.
fn version_of<'s>(
    binding: &LayoutBinding,
    spec: &'s HostSpec,
    stored: &'s StoredHost,
    prune: bool,
) -> Result<(VersionRef, &'s Layout), (&'static str, String)> {
    let name = &binding.layout;
    let wanted = |version| VersionRef { name: name.clone(), version };
    let newest = stored.layouts.get(name);
    let pruned = || {
        format!(
            "layout {name} is not in the file, so pruning deletes it: add it under layouts, or name another"
        )
    };
    if let Some(version) = binding.version {
        let wanted = wanted(version);
        let content = stored.content(&wanted).ok_or_else(|| {
            let reason = format!(
                "there is no layout {wanted} on the host: leave version out for the layout as the file has it"
            );
            ("/version", reason)
        })?;
        if prune && !spec.layouts.contains_key(name) {
            return Err(("/layout", pruned()));
        }
        return Ok((wanted, content));
    }
    match (spec.layouts.get(name), newest) {
        (Some((layout, _)), Some(newest)) if newest.layout == *layout => Ok((wanted(newest.version), layout)),
        (Some((layout, _)), _) => Ok((wanted(stored.next_versions.get(name).copied().unwrap_or(1)), layout)),
        (None, Some(newest)) if !prune => Ok((wanted(newest.version), &newest.layout)),
        (None, Some(_)) => Err(("/layout", pruned())),
        (None, None) => {
            let reason = format!(
                "there is no layout {name}, neither in the file nor on the host: add it under layouts, or name another"
            );
            Err(("/layout", reason))
        }
    }
}

/// Refuses a layout with more chunks than a GPU has: by the count of that GPU, or the smallest count of others of its kind.
///
/// Chunks do not follow from the number of SMs, which is only the bound if nothing was counted.
pub fn fits(
    layout: &Layout,
    map: &GpuMap,
    gpus: &[Gpu],
    counted: &BTreeMap<GpuUuid, u32>,
) -> Result<(), InvalidValue> {
    let steps = layout.resolve(map)?;
    for (role, uuid) in map {
        let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == *uuid) else { continue };
        let (Some(sms), Some(capability)) = (gpu.sms, gpu.compute_capability) else { continue };
        let alike = gpus.iter().filter(|other| other.name == gpu.name && other.sms == gpu.sms);
        let alike_count = alike.filter_map(|other| counted.get(&other.uuid)).min();
        let most = counted.get(uuid).or(alike_count).copied().unwrap_or(sms / capability.chunk_sms());
        let needed = peak(&steps, uuid);
        if needed > most {
            return Err(InvalidValue(format!(
                "layout does not fit: it needs {needed} chunks at once on GPU {role} of the layout, and GPU {} ({}) has at most \
                 {most}: use fewer chunks",
                gpu.index, gpu.name
            )));
        }
    }
    Ok(())
}

/// Returns the most chunks that the steps hold on a GPU at the same time.
fn peak(steps: &[ResolvedStep], gpu: &GpuUuid) -> u32 {
    let (mut now, mut most) = (0_u32, 0);
    for step in steps.iter().filter(|step| step.gpu == *gpu) {
        now = match step.change {
            PartitionChange::Add => now.saturating_add(step.chunks),
            PartitionChange::Remove => now.saturating_sub(step.chunks),
        };
        most = most.max(now);
    }
    most
}

//! Admission: checks that a daemon can take a set of tenants, and shows the arithmetic in each refusal.
//!
//! With `admission: open` nothing is reserved. With `reserved` a tenant reserves its memory limit × `max_clients` on each of its
//! GPUs, since MPS limits a process and not a tenant, and `max_clients` of the clients that MPS takes. Percentages are not added up: MPS
//! lets them overlap, and they reserve nothing.

mod of_gpu;
mod refusal;

pub use self::of_gpu::expected_clients_fit;
use self::of_gpu::{before_volta, has_compute_mode, static_before_ampere, takes};
pub use self::refusal::AdmissionError;
use super::count::counted;
use super::daemon::{DaemonSpec, Mode};
use super::gpu::{Gpu, full_name};
use super::memory::Bytes;
use super::provisioning::ShareBasis;
use super::resolution::percentage_of;
use super::shares;
use super::tenant::{Sharer, TenantSpec, VisibleDevices};
use super::{DeviceMemoryLimit, GpuUuid, TenantName};

/// Returns the memory that all processes of a tenant may hold on a GPU, in bytes: its limit × `max_clients`, or the limit once if
/// `max_clients` is not set. `None` without a limit.
pub fn memory_of(tenant: &TenantSpec, daemon: &DaemonSpec, gpu: &GpuUuid) -> Option<u64> {
    let limit = tenant.memory_limit(daemon, gpu)?;
    Some(limit.bytes().saturating_mul(u64::from(tenant.max_clients.unwrap_or(1))))
}

/// Checks that `tenants` fit on `daemon`. The last of them is the one being written, and refusals are worded for it.
///
/// `ceiling` is the number of clients that one device takes with this daemon's version of MPS (48 on 13.0, 60 from 13.1).
pub fn admit(
    daemon_name: &str,
    daemon: &DaemonSpec,
    tenants: &[Sharer<'_>],
    gpus: &[Gpu],
    ceiling: u32,
) -> Result<(), AdmissionError> {
    for (name, tenant) in tenants {
        on_gpus_of(daemon_name, daemon, name, tenant, gpus)?;
        percentage_of(tenant, daemon, None, gpus)
            .map_err(|error| AdmissionError { field: "sms", detail: format!("tenant {name}: {error}") })?;
    }
    numbered_gpus(daemon_name, daemon, tenants)?;
    no_percentages(daemon_name, daemon, tenants)?;
    shares_are_left(daemon_name, daemon, tenants, gpus)?;
    same_user(daemon_name, daemon, tenants)?;
    for uuid in &daemon.gpus {
        let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == *uuid) else { continue };
        let on_gpu: Vec<&Sharer<'_>> = tenants.iter().filter(|(_, tenant)| tenant.sees(uuid)).collect();
        static_before_ampere(daemon_name, daemon, gpu)?;
        before_volta(daemon_name, daemon, gpu, &on_gpu)?;
        has_compute_mode(daemon_name, daemon, gpu)?;
        within_gpu(daemon_name, daemon, gpu, &on_gpu)?;
        let ceiling = gpu.client_ceiling(ceiling);
        // Only of the one being written: one of before a driver of fewer clients must not be in the way of others.
        if let Some((name, clients)) =
            tenants.last().and_then(|(name, tenant)| Some((name, tenant.max_clients?)))
            && clients > ceiling
            && on_gpu.iter().any(|(tenant, _)| tenant == name)
        {
            return Err(AdmissionError {
                field: "max_clients",
                detail: format!("tenant {name} has max_clients {clients}, and {}", takes(gpu, ceiling)),
            });
        }
        if daemon.reserves() {
            memory_fits(daemon_name, daemon, gpu, &on_gpu)?;
            clients_fit(daemon_name, gpu, &on_gpu, ceiling)?;
        }
    }
    Ok(())
}

/// Refuses a tenant that names a GPU which its daemon does not have.
pub fn on_gpus_of(
    daemon_name: &str,
    daemon: &DaemonSpec,
    name: &TenantName,
    tenant: &TenantSpec,
    gpus: &[Gpu],
) -> Result<(), AdmissionError> {
    let limited = tenant.device_memory_limit.iter().flat_map(DeviceMemoryLimit::gpus);
    for device in tenant.gpus.iter().chain(limited).filter(|gpu| gpu.mlo().is_some()) {
        if daemon.gpus.contains(&device.whole()) {
            on_devices_of(daemon_name, daemon, name, device, gpus)?;
        }
    }
    let is_beyond = |uuid: &&GpuUuid| !daemon.gpus.iter().any(|gpu| uuid.is_of(gpu));
    let beyond = tenant.gpus.iter().find(is_beyond).map(|gpu| ("gpus", "names", gpu));
    let limit = tenant.device_memory_limit.as_ref();
    let limited = || Some(("device_memory_limit", "limits", limit?.names_beyond(&daemon.gpus)?));
    let Some((field, does, foreign)) = beyond.or_else(limited) else { return Ok(()) };
    let offered: Vec<String> = daemon.gpus.iter().map(|gpu| full_name(gpu, gpus)).collect();
    Err(AdmissionError {
        field,
        detail: format!(
            "tenant {name} {does} {}, which daemon {daemon_name} does not offer: choose among {}",
            full_name(foreign, gpus),
            offered.join(", ")
        ),
    })
}

/// Refuses a tenant that names an MLOPart device which its daemon does not give, or which its server is known not to have.
fn on_devices_of(
    daemon_name: &str,
    daemon: &DaemonSpec,
    name: &TenantName,
    device: &GpuUuid,
    gpus: &[Gpu],
) -> Result<(), AdmissionError> {
    let refused = |detail| Err(AdmissionError { field: "gpus", detail });
    if !daemon.mlopart {
        return refused(format!(
            "tenant {name} names the MLOPart device {}, and the clients of daemon {daemon_name} get whole GPUs: set mlopart on the \
             daemon, or name the GPU",
            full_name(device, gpus)
        ));
    }
    let listed: Vec<&Gpu> =
        gpus.iter().filter(|gpu| gpu.mlopart.is_some() && gpu.uuid.whole() == device.whole()).collect();
    if listed.is_empty() || listed.iter().any(|gpu| gpu.uuid == *device) {
        return Ok(());
    }
    let places: Vec<String> = listed.iter().map(|gpu| gpu.index.to_string()).collect();
    refused(format!(
        "tenant {name} names {}, which the daemon's server does not have: it has {}",
        full_name(device, gpus),
        places.join(", ")
    ))
}

/// Refuses ordinals on a daemon with several GPUs: the order in which a client numbers them was not recorded.
fn numbered_gpus(
    daemon_name: &str,
    daemon: &DaemonSpec,
    tenants: &[Sharer<'_>],
) -> Result<(), AdmissionError> {
    let by_ordinal = |(_, tenant): &&Sharer<'_>| tenant.visible_devices == VisibleDevices::Ordinal;
    let Some((name, _)) = tenants.iter().find(by_ordinal) else { return Ok(()) };
    let why = if daemon.mlopart {
        "gives MLOPart devices, of which no ordinal is documented: use"
    } else if daemon.gpus.len() > 1 {
        "has several GPUs, which programs of other users may number otherwise: use a daemon with one GPU, or"
    } else {
        return Ok(());
    };
    Err(AdmissionError {
        field: "visible_devices",
        detail: format!(
            "tenant {name} is told its GPU by ordinal, and daemon {daemon_name} {why} visible_devices: uuid"
        ),
    })
}

/// Number of tenants that a refusal names; further ones are counted.
const NAMED: usize = 12;

/// Joins terms, shortening long lists. The last term is always kept, since the refusal is about it.
fn listed(terms: &[String], joiner: &str) -> String {
    match terms {
        [first @ .., last] if terms.len() > NAMED => {
            let shown = first[..NAMED - 1].join(joiner);
            format!("{shown}{joiner}{}{joiner}{last}", counted(terms.len() - NAMED, "other"))
        }
        _ => terms.join(joiner),
    }
}

/// Under `-S` MPS ignores thread percentages (NVIDIA's documentation), so no tenant of such a daemon has one.
fn no_percentages(
    daemon_name: &str,
    daemon: &DaemonSpec,
    tenants: &[Sharer<'_>],
) -> Result<(), AdmissionError> {
    if daemon.mode == Mode::Shared {
        return Ok(());
    }
    let share = |tenant: &TenantSpec| match (tenant.sms, tenant.active_thread_percentage) {
        (Some(sms), _) => Some(("sms", sms.to_string())),
        (None, Some(percentage)) => Some(("active_thread_percentage", percentage.to_string())),
        (None, None) => None,
    };
    let having: Vec<_> = tenants.iter().filter_map(|(name, tenant)| Some((name, share(tenant)?))).collect();
    let Some((_, (field, _))) = having.last() else { return Ok(()) };
    let named: Vec<String> =
        having.iter().map(|(name, (field, value))| format!("{name} ({field} {value})")).collect();
    Err(AdmissionError {
        field,
        detail: format!(
            "daemon {daemon_name} in static mode gives a client the SMs of its partition, and MPS ignores thread \
             percentages there, but these tenants have a share of their own: {}. Remove it, or use a daemon in shared mode",
            listed(&named, ", ")
        ),
    })
}

/// Refuses tenants with shares of their own that leave nothing to those that the daemon's strategy gives shares to.
fn shares_are_left(
    daemon_name: &str,
    daemon: &DaemonSpec,
    tenants: &[Sharer<'_>],
    gpus: &[Gpu],
) -> Result<(), AdmissionError> {
    let field =
        tenants.last().map_or("sms", |(_, tenant)| match (tenant.sms, tenant.active_thread_percentage) {
            (None, Some(_)) => "active_thread_percentage",
            _ => "sms",
        });
    let basis = shares::basis(daemon, tenants.iter().map(|(_, tenant)| *tenant), gpus)
        .map_err(|error| AdmissionError { field, detail: error.to_string() })?;
    let Some(basis) = basis.filter(ShareBasis::leaves_nothing) else { return Ok(()) };
    let mut terms = Vec::new();
    for (name, tenant) in tenants.iter().filter(|(_, tenant)| tenant.states_share()) {
        let own = percentage_of(tenant, daemon, None, gpus).map(|own| own.to_string()).unwrap_or_default();
        terms.push(format!("{name} {own} % × {}", tenant.max_clients.unwrap_or(1)));
    }
    Err(AdmissionError {
        field,
        detail: format!(
            "daemon {daemon_name} gives shares by strategy {}, and the tenants with shares of their own leave nothing to divide: {} = {} %; \
             lower one or its max_clients, or set the daemon's provisioning to none",
            basis.strategy.as_str(),
            listed(&terms, " + "),
            basis.taken_percentage(),
        ),
    })
}

/// Without `-M` a client of another user waits until the present user's clients are gone, which may be never
/// (recording 03), so all tenants of such a daemon have one user.
fn same_user(daemon_name: &str, daemon: &DaemonSpec, tenants: &[Sharer<'_>]) -> Result<(), AdmissionError> {
    let Some((name, tenant)) = tenants.last() else { return Ok(()) };
    if daemon.multi_user {
        return Ok(());
    }
    match tenants.iter().find(|(_, other)| other.uid != tenant.uid) {
        None => Ok(()),
        Some((other, spec)) => Err(AdmissionError {
            field: "uid",
            detail: format!(
                "tenant {name} has uid {} and tenant {other} on daemon {daemon_name} has uid {}: a daemon that is \
                 not multi-user serves one user at a time, and the second would wait for the first forever; use \
                 the same uid, another daemon, or (from CUDA 12.5 on) set multi_user on the daemon",
                tenant.uid, spec.uid
            ),
        }),
    }
}

/// Refuses a limit that no process could reach, of a tenant or as the daemon's default.
fn within_gpu(
    daemon_name: &str,
    daemon: &DaemonSpec,
    gpu: &Gpu,
    on_gpu: &[&Sharer<'_>],
) -> Result<(), AdmissionError> {
    let Some(total) = gpu.memory_total else { return Ok(()) };
    let beyond = |limit: &Option<DeviceMemoryLimit>| {
        limit.as_ref()?.largest_on(&gpu.uuid).filter(|limit| limit.bytes() > total)
    };
    let own = on_gpu.iter().find_map(|(name, tenant)| {
        let limit = beyond(&tenant.device_memory_limit)?;
        Some(("device_memory_limit", format!("tenant {name} asks for {limit}")))
    });
    let default = || {
        let limit = beyond(&daemon.defaults.device_memory_limit)?;
        Some(("daemon", format!("daemon {daemon_name} gives each process {limit} by default")))
    };
    let Some((field, who)) = own.or_else(default) else { return Ok(()) };
    let detail = format!("{who} and GPU {} has {}: give at most that", gpu.index, Bytes(total));
    Err(AdmissionError { field, detail })
}

/// Refuses tenants that together reserve more of a GPU's memory than it has, times the over-commit ratio.
fn memory_fits(
    daemon_name: &str,
    daemon: &DaemonSpec,
    gpu: &Gpu,
    on_gpu: &[&Sharer<'_>],
) -> Result<(), AdmissionError> {
    let Some(total) = gpu.memory_total else {
        return Err(AdmissionError { field: "daemon", detail: unreserved(gpu) });
    };
    let (mut reserved, mut terms) = (0_u64, Vec::new());
    for (name, tenant) in on_gpu {
        let Some(limit) = tenant.memory_limit(daemon, &gpu.uuid) else {
            return Err(must_state(daemon_name, name, "device_memory_limit"));
        };
        let Some(clients) = tenant.max_clients else {
            return Err(must_state(daemon_name, name, "max_clients"));
        };
        reserved = reserved.saturating_add(limit.bytes().saturating_mul(u64::from(clients)));
        terms.push(format!("{name} {limit} × {clients}"));
    }
    let allowed = daemon.memory_overcommit.budget(total);
    if reserved <= allowed {
        return Ok(());
    }
    Err(AdmissionError {
        field: "device_memory_limit",
        detail: format!(
            "GPU {} ({}) has {} × over-commit {} = {} to reserve, and the tenants come to {} = {}, which is {} too much: lower a limit or \
             max_clients, raise memory_overcommit on the daemon, or set its admission to open, which reserves nothing",
            gpu.index,
            gpu.uuid,
            Bytes(total),
            daemon.memory_overcommit,
            Bytes(allowed),
            listed(&terms, " + "),
            Bytes(reserved),
            Bytes(reserved - allowed),
        ),
    })
}

/// Explains why nothing can be reserved of a GPU whose memory size the driver does not report.
pub(crate) fn unreserved(gpu: &Gpu) -> String {
    format!(
        "the driver does not report how much memory GPU {} ({}) has, as of a GPU that shares the host's, so nothing can be reserved of it: \
         set the daemon's admission to open",
        gpu.index, gpu.name
    )
}

fn must_state(daemon: &str, tenant: &TenantName, field: &'static str) -> AdmissionError {
    AdmissionError {
        field,
        detail: format!(
            "tenants of daemon {daemon} reserve what they may use (admission: reserved), and tenant {tenant} states no {field}: give one, \
             or set the daemon's admission to open"
        ),
    }
}

/// Refuses tenants that together reserve more clients than MPS takes on a GPU.
fn clients_fit(
    daemon_name: &str,
    gpu: &Gpu,
    on_gpu: &[&Sharer<'_>],
    ceiling: u32,
) -> Result<(), AdmissionError> {
    let stated = || on_gpu.iter().filter_map(|(name, tenant)| Some((name, tenant.max_clients?)));
    let clients: u64 = stated().map(|(_, clients)| u64::from(clients)).sum();
    if clients <= u64::from(ceiling) {
        return Ok(());
    }
    let terms: Vec<String> = stated().map(|(name, clients)| format!("{name} {clients}")).collect();
    Err(AdmissionError {
        field: "max_clients",
        detail: format!(
            "GPU {} ({}) takes {ceiling} clients {}, and the tenants of daemon {daemon_name} reserve {} = {clients}: \
             lower max_clients by {}, or set the daemon's admission to open",
            gpu.index,
            gpu.uuid,
            of_gpu::why_so_many(gpu),
            listed(&terms, " + "),
            clients - u64::from(ceiling),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::ComputeCapability;
    use crate::testing::{h200, spec};

    fn daemon(extra: &str) -> DaemonSpec {
        serde_json::from_str(&format!("{{\"gpus\":[\"{}\"]{extra}}}", h200(0).uuid)).expect("daemon")
    }

    fn reserved(extra: &str) -> DaemonSpec {
        daemon(&format!(r#","admission":"reserved"{extra}"#))
    }

    fn admit(
        name: &str,
        daemon: &DaemonSpec,
        tenants: &[(TenantName, TenantSpec)],
        gpus: &[Gpu],
        ceiling: u32,
    ) -> Result<(), AdmissionError> {
        let tenants: Vec<Sharer<'_>> = tenants.iter().map(|(name, spec)| (name, spec)).collect();
        super::admit(name, daemon, &tenants, gpus, ceiling)
    }

    fn check(daemon: &DaemonSpec, tenants: &[&str]) -> Result<(), AdmissionError> {
        let tenants: Vec<_> = tenants
            .iter()
            .enumerate()
            .map(|(n, json)| (TenantName::parse(&format!("t{n}")).expect("name"), spec(json)))
            .collect();
        admit("gpu0", daemon, &tenants, &[h200(0)], 48)
    }

    #[test]
    fn open_daemon_takes_tenants_without_limits() {
        let plain = [r#"{"daemon":"gpu0","uid":0}"#; 60];
        assert_eq!(check(&daemon(""), &plain), Ok(()));
        let large = r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"100G","max_clients":40}"#;
        assert_eq!(check(&daemon(""), &[large, large]), Ok(()));
        let beyond = r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"200G"}"#;
        assert_eq!(check(&daemon(""), &[beyond]).expect_err("139.8 GiB").field, "device_memory_limit");
        for default in ["200G".to_owned(), format!("{}=300G", h200(0).uuid)] {
            let refused =
                check(&daemon(&format!(r#","defaults":{{"device_memory_limit":"{default}"}}"#)), &[]);
            let refused = refused.expect_err("a default, with no tenant yet");
            assert!(refused.field == "daemon" && refused.detail.contains("by default"), "{refused:?}");
        }
    }

    #[test]
    fn reserved_tenants_state_what_they_use() {
        let error =
            check(&reserved(""), &[r#"{"daemon":"gpu0", "uid": 0,"max_clients":2}"#]).expect_err("no limit");
        assert_eq!(error.field, "device_memory_limit");
        assert!(error.detail.contains("tenant t0 states no device_memory_limit"), "{}", error.detail);
        let error = check(&reserved(""), &[r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"4G"}"#]);
        assert_eq!(error.expect_err("no number").field, "max_clients");
        let default = reserved(r#","defaults":{"device_memory_limit":"4G"}"#);
        assert_eq!(check(&default, &[r#"{"daemon":"gpu0", "uid": 0,"max_clients":2}"#]), Ok(()));
    }

    #[test]
    fn the_arithmetic_is_shown() {
        let error = check(
            &reserved(""),
            &[
                r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"40G","max_clients":3}"#,
                r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"30G","max_clients":1}"#,
            ],
        )
        .expect_err("150 GiB on 139.8");
        assert_eq!(error.field, "device_memory_limit");
        for part in ["t0 40 GiB × 3", "t1 30 GiB × 1", "150 GiB", "139.8 GiB"] {
            assert!(error.detail.contains(part), "{part} in {}", error.detail);
        }
    }

    #[test]
    fn overcommit_widens_the_budget() {
        let tenants = [r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"100G","max_clients":2}"#];
        assert!(check(&reserved(""), &tenants).is_err());
        assert_eq!(check(&reserved(r#","memory_overcommit":1.5"#), &tenants), Ok(()));
        let many = [r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"100G","max_clients":40}"#];
        assert_eq!(check(&reserved(r#","memory_overcommit":1000.25"#), &many), Ok(()));
    }

    #[test]
    fn clients_beyond_the_gpu_are_refused() {
        let mut gpu = h200(0);
        let many = |clients: u32| {
            vec![(
                TenantName::parse("web").expect("name"),
                spec(&format!(r#"{{"daemon":"gpu0","uid":0,"max_clients":{clients}}}"#)),
            )]
        };
        let expects = |clients: u32| {
            daemon(&format!(r#","provisioning":{{"strategy":"none","expected_clients":{clients}}}"#))
        };
        for (major, version, most) in [(9, 48, 48), (9, 60, 60), (6, 48, 16), (6, 60, 16)] {
            gpu.compute_capability =
                gpu.compute_capability.map(|capability| ComputeCapability { major, ..capability });
            let gpus = [gpu.clone()];
            let admitted = |clients| admit("gpu0", &daemon(""), &many(clients), &gpus, version);
            assert!(admitted(most).is_ok());
            assert_eq!(admitted(most + 1).expect_err("too many").field, "max_clients");
            let fitting = |clients| expected_clients_fit("gpu0", &expects(clients), &gpus, version);
            assert!(fitting(most).is_ok());
            let fits_static = admit("gpu0", &daemon(r#","mode":"static""#), &[], &gpus, version);
            assert_eq!(fits_static.is_ok(), major >= 8, "{fits_static:?}");
            let refused = fitting(most + 1).expect_err("too many").detail;
            assert!(refused.contains(&format!("takes {most} ")), "{refused}");
        }
    }

    #[test]
    fn reserved_clients_stay_within_the_ceiling() {
        let tenant = r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"1G","max_clients":25}"#;
        let error = check(&reserved(""), &[tenant, tenant]).expect_err("50 clients");
        assert_eq!(error.field, "max_clients");
        assert!(error.detail.contains("25 + t1 25 = 50"), "{}", error.detail);
    }

    #[test]
    fn memory_is_summed_per_gpu() {
        let (zero, one) = (h200(0).uuid, h200(1).uuid);
        let json = format!(r#"{{"gpus":["{zero}","{one}"],"admission":"reserved"}}"#);
        let daemon: DaemonSpec = serde_json::from_str(&json).expect("daemon");
        let check = |limits: [&str; 2]| {
            let tenant = |limit: &str| {
                spec(&format!(
                    r#"{{"daemon":"gpu0", "uid": 0,"max_clients":1,"device_memory_limit":{limit}}}"#
                ))
            };
            let name = |text: &str| TenantName::parse(text).expect("name");
            let tenants = [(name("a"), tenant(limits[0])), (name("b"), tenant(limits[1]))];
            admit("gpu0", &daemon, &tenants, &[h200(0), h200(1)], 48)
        };
        let (left, right) = (
            format!(r#"{{"{zero}":"100G","{one}":"10G"}}"#),
            format!(r#"{{"{zero}":"10G","{one}":"100G"}}"#),
        );
        assert_eq!(check([&left, &right]), Ok(()));
        let error = check([&left, &left]).expect_err("200 GiB on the first");
        assert!(
            error.detail.contains("GPU 0") && error.detail.contains("a 100 GiB × 1 + b 100 GiB × 1"),
            "{}",
            error.detail
        );
        let partial = format!(r#"{{"{zero}":"1G"}}"#);
        assert_eq!(check([&left, &partial]).expect_err("none on the second").field, "device_memory_limit");
    }

    #[test]
    fn limit_of_another_daemons_gpu_is_refused() {
        let tenant =
            format!(r#"{{"daemon":"gpu0", "uid": 0,"device_memory_limit":{{"{}":"1G"}}}}"#, h200(1).uuid);
        let error = check(&daemon(""), &[&tenant]).expect_err("not offered");
        assert_eq!(error.field, "device_memory_limit");
        assert!(error.detail.contains(&format!("choose among GPU 0 ({})", h200(0).uuid)), "{}", error.detail);
    }

    #[test]
    fn ordinals_number_one_gpu() {
        let ordinal = (
            TenantName::parse("t0").expect("name"),
            spec(r#"{"daemon":"gpu0", "uid": 0,"visible_devices":"ordinal"}"#),
        );
        let tenants = std::slice::from_ref(&ordinal);
        assert_eq!(admit("gpu0", &daemon(""), tenants, &[h200(0), h200(1)], 48), Ok(()));
        let mut pair = daemon("");
        pair.gpus.push(h200(1).uuid);
        let error = admit("gpu0", &pair, tenants, &[h200(0), h200(1)], 48).expect_err("two to number");
        assert_eq!(error.field, "visible_devices");
    }

    #[test]
    fn own_shares_leave_something_to_divide() {
        let uniform = daemon(r#","provisioning":{"strategy":"uniform"}"#);
        let own = r#"{"daemon":"gpu0", "uid": 0,"active_thread_percentage":25,"max_clients":4}"#;
        let plain = r#"{"daemon":"gpu0","uid":0}"#;
        assert_eq!(check(&uniform, &[own, own]), Ok(()), "nobody is given a share");
        let error = check(&uniform, &[plain, own]).expect_err("nothing is left");
        assert_eq!(error.field, "active_thread_percentage");
        assert!(error.detail.contains("t1 25.0 % × 4 = 100 %"), "{}", error.detail);
        assert_eq!(check(&daemon(""), &[plain, own]), Ok(()));
    }

    #[test]
    fn refusal_shortens_long_tenant_lists() {
        let tenants = vec![r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"1G","max_clients":1}"#; 60];
        let error = check(&reserved(""), &tenants).expect_err("60 clients");
        assert!(error.detail.contains("t10 1 + 48 others + t59 1 = 60"), "{}", error.detail);
    }

    #[test]
    fn static_daemon_refuses_thread_shares() {
        let tenants = [
            r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"1G","active_thread_percentage":25}"#,
            r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"1G"}"#,
            r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"1G","sms":32}"#,
        ];
        let partitioned = daemon(r#","mode":"static""#);
        let error = check(&partitioned, &tenants).expect_err("two of them have");
        assert_eq!(error.field, "sms");
        assert!(
            error.detail.contains("of their own: t0 (active_thread_percentage 25.0), t2 (sms 32). Remove it"),
            "{}",
            error.detail
        );
        assert_eq!(check(&partitioned, &tenants[..1]).expect_err("it has").field, "active_thread_percentage");
        assert!(check(&partitioned, &tenants[1..2]).is_ok());
        assert!(check(&daemon(""), &tenants).is_ok());
    }

    #[test]
    fn users_do_not_mix_without_multi_user() {
        let tenants = [
            r#"{"daemon":"gpu0","device_memory_limit":"1G","uid":1000}"#,
            r#"{"daemon":"gpu0","device_memory_limit":"1G","uid":1001}"#,
        ];
        assert_eq!(check(&daemon(""), &tenants).expect_err("two users").field, "uid");
        assert!(check(&daemon(r#","multi_user":true"#), &tenants).is_ok());
    }
}

//! The shares that a daemon's strategy gives its tenants.
//!
//! Tenants with a percentage or SMs of their own take theirs off first, once for each of their `max_clients`; the rest of the GPU is
//! divided among the others. The number of clients includes all tenants of the daemon, whichever of its GPUs they see, since a process
//! has one percentage for all its GPUs.

use super::daemon::DaemonSpec;
use super::gpu::Gpu;
use super::provisioning::{ProvisioningStatus, ShareBasis, SharingTenant, SmShare, TenantShare};
use super::resolution::{gpus_of, resolve, stated_percentage};
use super::tenant::TenantSpec;
use super::{InvalidValue, TenantName, ThreadPercentage};

/// Returns the basis from which the shares of a daemon's tenants are computed; `None` if it has no strategy.
///
/// Fails if a tenant states SMs that no percentage gives.
pub fn basis<'t>(
    daemon: &DaemonSpec,
    tenants: impl IntoIterator<Item = &'t TenantSpec>,
    gpus: &[Gpu],
) -> Result<Option<ShareBasis>, InvalidValue> {
    if !daemon.provisioning.is_active() {
        return Ok(None);
    }
    let (mut taken, mut sharing) = (0_u64, Vec::new());
    for tenant in tenants {
        match stated_percentage(tenant, daemon, gpus)? {
            Some(own) => taken += u64::from(own.tenths()) * u64::from(tenant.max_clients.unwrap_or(1)),
            None => sharing.push(SharingTenant { max_clients: tenant.max_clients, weight: tenant.weight }),
        }
    }
    Ok(ShareBasis::new(daemon.provisioning, taken, &sharing))
}

/// Returns the shares as the API shows them; `None` if the daemon has no strategy, or if they cannot be computed.
///
/// `with_another` counts the connected clients of a tenant that were started with another percentage.
pub fn status<'t>(
    daemon: &DaemonSpec,
    tenants: impl IntoIterator<Item = (&'t TenantName, &'t TenantSpec)>,
    gpus: &[Gpu],
    with_another: impl Fn(&TenantName, ThreadPercentage) -> u64,
) -> Option<ProvisioningStatus> {
    if !daemon.provisioning.is_active() {
        return None;
    }
    let tenants: Vec<(&TenantName, &TenantSpec)> = tenants.into_iter().collect();
    let basis = basis(daemon, tenants.iter().map(|(_, spec)| *spec), gpus).ok()??;
    let mut shares = Vec::with_capacity(tenants.len());
    for (name, spec) in tenants {
        let percentage = resolve(spec, daemon, Some(&basis), gpus).ok()?.percentage;
        let of = |uuid| {
            let total =
                gpus.iter().find(|gpu| gpu.uuid == uuid).and_then(|gpu| gpu.sms).filter(|_| !daemon.mlopart);
            SmShare::of(uuid, percentage, total)
        };
        shares.push(TenantShare {
            tenant: name.clone(),
            weight: spec.weight,
            active_thread_percentage: percentage,
            stated: spec.states_share(),
            gpus: gpus_of(spec, daemon).into_iter().map(of).collect(),
            clients_with_another: with_another(name, percentage),
        });
    }
    shares.sort_by(|one, other| one.tenant.cmp(&other.tenant));
    Some(ProvisioningStatus {
        strategy: basis.strategy,
        clients: basis.clients,
        clients_from: basis.clients_from,
        capacity: capacity([daemon]),
        taken_percentage: basis.taken_percentage(),
        shares,
    })
}

/// Returns the number of clients that all GPUs of these daemons are divided among, for those that state `expected_clients`; `None` if none
/// does.
pub fn capacity<'d>(daemons: impl IntoIterator<Item = &'d DaemonSpec>) -> Option<u64> {
    let expected =
        |daemon: &DaemonSpec| Some(u64::from(daemon.provisioning.expected_clients?) * count_of(&daemon.gpus));
    daemons.into_iter().filter_map(expected).reduce(|sum, more| sum + more)
}

fn count_of<T>(items: &[T]) -> u64 {
    u64::try_from(items.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provisioning::ClientCountSource;
    use crate::testing::{h200, spec};

    fn shares(provisioning: &str, tenants: &[&str]) -> ProvisioningStatus {
        let json = format!(r#"{{"gpus":["{}"],"provisioning":{provisioning}}}"#, h200(0).uuid);
        let daemon: DaemonSpec = serde_json::from_str(&json).expect("daemon");
        let names = (0..).map(|number| TenantName::parse(&format!("t{number}")).expect("name"));
        let tenants: Vec<(TenantName, TenantSpec)> = names
            .zip(tenants)
            .map(|(name, extra)| (name, spec(&format!(r#"{{"daemon":"gpu0","uid":0{extra}}}"#))))
            .collect();
        let tenants = tenants.iter().map(|(name, spec)| (name, spec));
        status(&daemon, tenants, &[h200(0)], |_, _| 0).expect("a strategy")
    }

    #[test]
    fn capacity_sums_daemons_that_state_one() {
        let daemon = |gpus: u32, extra: &str| -> DaemonSpec {
            let gpus: Vec<_> = (0..gpus).map(|index| h200(index).uuid).collect();
            let gpus = serde_json::to_string(&gpus).expect("JSON");
            serde_json::from_str(&format!("{{\"gpus\":{gpus}{extra}}}")).expect("a daemon")
        };
        let expects = r#","provisioning":{"strategy":"uniform","expected_clients":8}"#;
        let daemons = [daemon(1, ""), daemon(1, expects), daemon(2, expects)];
        assert_eq!(capacity(&daemons), Some(24));
        assert_eq!(capacity(&daemons[..1]), None);
    }

    #[test]
    fn status_shows_percentages_and_sms() {
        let status = shares(r#"{"strategy":"uniform"}"#, &["", "", "", ""]);
        assert_eq!((status.clients, status.clients_from), (4, ClientCountSource::Tenants));
        assert_eq!(status.capacity, None);
        assert_eq!(shares(r#"{"strategy":"uniform","expected_clients":8}"#, &[]).capacity, Some(8));
        let [share, ..] = &status.shares[..] else { panic!("no share") };
        assert_eq!((share.active_thread_percentage.tenths(), share.stated), (250, false));
        assert_eq!((share.gpus[0].predicted_sms, share.gpus[0].below_minimum), (Some(32), false));
        let words = status.share_of(&share.tenant).expect("it is the strategy's");
        assert!(
            words.starts_with("Each client of t0 gets 25.0 %. The GPU is divided equally among 4 clients"),
            "{words}"
        );
    }

    #[test]
    fn stated_shares_are_kept_and_taken_off() {
        let own = r#","active_thread_percentage":20,"max_clients":2"#;
        let status = shares(r#"{"strategy":"weighted"}"#, &[own, r#","weight":3"#, r#","sms":32"#, ""]);
        let tenths: Vec<u16> =
            status.shares.iter().map(|share| share.active_thread_percentage.tenths()).collect();
        // 32 of 132 SMs need 24.3 %, which leaves 100 − 2 × 20 − 24.3 %.
        assert_eq!(tenths, [200, 267, 243, 89]);
        assert!((status.taken_percentage - 64.3).abs() < 1e-9, "{}", status.taken_percentage);
        assert_eq!(status.clients, 2);
        let stated: Vec<bool> = status.shares.iter().map(|share| share.stated).collect();
        assert_eq!(stated, [true, false, true, false]);
        let words = status.shares_in_words();
        assert_eq!(words[0], "t0: 20.0 %, 26 SMs, stated by the tenant");
        assert!(words[1].starts_with("t1: weight 3, 26.7 %, ") && words[1].ends_with(" SMs"), "{words:?}");
    }
}

//! Strategies that give thread percentages to the tenants of a daemon that state none, and their arithmetic.
//!
//! NVIDIA's MPS guide names three ways to divide a GPU among `n` clients: 100/n for each, 100/(0.5 n) for each, and portions in the ratio
//! of their work. A share is a bound and reserves nothing. Percentages are tenths of a percent, rounded down and never 0.

use serde::{Deserialize, Serialize};

use super::count::counted;
use super::occupancy::MAX_CLIENTS;
use super::percentage::{FEWEST_SMS, sms_unbounded};
use super::{GpuUuid, InvalidValue, TenantName, ThreadPercentage};

/// Assignment of thread percentages to tenants that state neither a percentage nor SMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Provisioning {
    /// The strategy.
    #[serde(default)]
    pub strategy: ProvisioningStrategy,
    /// Clients that the GPU is divided among; if it is left out, the sum of the tenants' `max_clients`, or else the number of tenants. With
    /// strategy `none` the threads are not divided, and this is the number of places that engines are offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 60)]
    pub expected_clients: Option<u32>,
}

/// Strategy for dividing the threads of a GPU among `n` clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProvisioningStrategy {
    /// No division: a tenant that states nothing has the daemon's default percentage, or else 100.
    #[default]
    None,
    /// 100/n for each client.
    Uniform,
    /// 100/(0.5 n) for each client, 100 at most: two clients can use each SM, so that one uses what the other leaves idle.
    Relaxed,
    /// Portions in the ratio of the tenants' weights.
    Weighted,
}

api_words!(ProvisioningStrategy: None "none", Uniform "uniform", Relaxed "relaxed", Weighted "weighted");

impl Provisioning {
    /// Returns true if a strategy gives shares.
    pub fn is_active(&self) -> bool {
        self.strategy != ProvisioningStrategy::None
    }

    /// Refuses invalid values; an error comes with its field.
    pub fn check(&self) -> Result<(), (&'static str, InvalidValue)> {
        let field = "provisioning/expected_clients";
        match self.expected_clients {
            Some(clients) if !(1..=MAX_CLIENTS).contains(&clients) => {
                let text = format!(
                    "expected_clients is {clients}, and no version of MPS takes more than {MAX_CLIENTS} on a GPU: give 1 to {MAX_CLIENTS}, or \
                     leave it out"
                );
                Err((field, InvalidValue(text)))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Weight of a tenant under the strategy `weighted`, relative to the others: a whole number from 1 to 1000.
///
/// There is no weight 0: MPS gives every client at least 8 SMs, so no tenant can be given nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct TenantWeight(u32);

/// The largest weight.
const MAX_WEIGHT: u32 = 1000;

impl Default for TenantWeight {
    fn default() -> Self {
        Self(1)
    }
}

impl TryFrom<u32> for TenantWeight {
    type Error = InvalidValue;

    fn try_from(weight: u32) -> Result<Self, InvalidValue> {
        match weight {
            0 => Err(InvalidValue(format!(
                "a weight of 0 is refused, since MPS gives every client at least {FEWEST_SMS} SMs: give 1 to {MAX_WEIGHT}, or leave it out \
                 for 1"
            ))),
            1..=MAX_WEIGHT => Ok(Self(weight)),
            _ => Err(InvalidValue(format!(
                "{weight} is not a weight: give 1 to {MAX_WEIGHT}; only the ratio of the weights counts"
            ))),
        }
    }
}

impl From<TenantWeight> for u32 {
    fn from(weight: TenantWeight) -> u32 {
        weight.0
    }
}

impl std::fmt::Display for TenantWeight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Source of the number of clients that a GPU is divided among.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientCountSource {
    /// The daemon's `expected_clients`.
    ExpectedClients,
    /// The sum of the tenants' `max_clients`, in which a tenant that states none counts as one client.
    MaxClients,
    /// The number of tenants, of which none states `max_clients`.
    Tenants,
}

/// A tenant that a strategy gives a share to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharingTenant {
    /// Its `max_clients`.
    pub max_clients: Option<u32>,
    /// Its weight.
    pub weight: TenantWeight,
}

impl SharingTenant {
    fn clients(&self) -> u64 {
        u64::from(self.max_clients.unwrap_or(1).max(1))
    }
}

/// Basis from which the shares of a daemon's tenants are computed: equal bases give equal shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareBasis {
    /// The strategy.
    pub strategy: ProvisioningStrategy,
    /// Clients that the GPU is divided among.
    pub clients: u64,
    /// Source of that number.
    pub clients_from: ClientCountSource,
    /// Tenths of a percent that tenants with a share of their own take off.
    taken: u64,
    /// Clients that the tenants state, one for each that states none.
    stated: u64,
    /// The sum of weight × clients.
    weighted: u64,
}

/// Tenths of a percent of a whole GPU.
const WHOLE: u64 = 1000;

impl ShareBasis {
    /// Builds the basis of shares for these tenants; `None` without a strategy. `taken` are the tenths of a percent that tenants with
    /// shares of their own take off, counting each of their clients.
    pub fn new(provisioning: Provisioning, taken: u64, tenants: &[SharingTenant]) -> Option<Self> {
        if !provisioning.is_active() {
            return None;
        }
        let stated: u64 = tenants.iter().map(SharingTenant::clients).sum();
        let weighted = tenants.iter().map(|tenant| u64::from(tenant.weight.0) * tenant.clients()).sum();
        let (clients, clients_from) = match provisioning.expected_clients {
            Some(expected) => (u64::from(expected), ClientCountSource::ExpectedClients),
            None if tenants.iter().any(|tenant| tenant.max_clients.is_some()) => {
                (stated, ClientCountSource::MaxClients)
            }
            None => (stated, ClientCountSource::Tenants),
        };
        Some(Self { strategy: provisioning.strategy, clients, clients_from, taken, stated, weighted })
    }

    /// Returns the percentage that tenants with shares of their own take off; it is above 100 if they overlap.
    pub fn taken_percentage(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "tenths of a percent of at most 60 clients a tenant")]
        let tenths = self.taken as f64;
        tenths / 10.0
    }

    /// Returns true if nothing is left for tenants that get their shares from the strategy.
    pub fn leaves_nothing(&self) -> bool {
        self.stated > 0 && self.taken >= WHOLE
    }

    /// Returns the share of each client of a tenant with this weight.
    pub fn share(&self, weight: TenantWeight) -> ThreadPercentage {
        let rest = WHOLE.saturating_sub(self.taken);
        let clients = self.clients.max(1);
        let tenths = match self.strategy {
            ProvisioningStrategy::None => WHOLE,
            ProvisioningStrategy::Uniform => rest / clients,
            ProvisioningStrategy::Relaxed => (2 * rest / clients).min(WHOLE),
            // 100 × w / Σ(w × clients), scaled where another number of clients is expected than the tenants state.
            ProvisioningStrategy::Weighted => {
                let part = u128::from(rest) * u128::from(weight.0) * u128::from(self.stated);
                let share = part / (u128::from(clients) * u128::from(self.weighted)).max(1);
                u64::try_from(share).unwrap_or(u64::MAX).min(rest)
            }
        };
        let tenths = u16::try_from(tenths.clamp(1, WHOLE)).unwrap_or(1);
        ThreadPercentage::from_tenths(tenths).unwrap_or(ThreadPercentage::FULL)
    }
}

/// Shares that the strategy of a daemon gives its tenants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ProvisioningStatus {
    /// The strategy.
    pub strategy: ProvisioningStrategy,
    /// Clients that the GPU is divided among.
    pub clients: u64,
    /// Source of that number.
    pub clients_from: ClientCountSource,
    /// Clients that all GPUs of the daemon are divided among: its GPUs × `expected_clients`; `null` if it states none.
    pub capacity: Option<u64>,
    /// The percentage that tenants with a percentage or SMs of their own take off before the rest is divided: for each of them, its
    /// percentage × its `max_clients`, or its percentage once if it states none.
    pub taken_percentage: f64,
    /// The shares of the daemon's tenants, by name. Lists of tenants, and users who see one tenant only, get the share of that tenant only;
    /// lists of daemons have none.
    pub shares: Vec<TenantShare>,
}

impl ProvisioningStatus {
    /// Returns true if the strategy uses weights.
    pub fn is_weighted(&self) -> bool {
        self.strategy == ProvisioningStrategy::Weighted
    }

    /// Describes the share of each client of a tenant, and its computation; `None` for a tenant that states its own share.
    pub fn share_of(&self, tenant: &TenantName) -> Option<String> {
        let share = self.shares.iter().find(|share| share.tenant == *tenant && !share.stated)?;
        let weight = if self.is_weighted() { format!(" (weight {})", share.weight) } else { String::new() };
        let percentage = share.active_thread_percentage;
        Some(format!("Each client of {tenant} gets {percentage} %{weight}. {}", self.meaning()))
    }

    /// Describes the share of each tenant's clients, one line per tenant: `demo: weight 3, 37.5 %, 48 SMs`.
    pub fn shares_in_words(&self) -> Vec<String> {
        let words = |share: &TenantShare| {
            let mut parts = vec![format!("{} %", share.active_thread_percentage)];
            if self.is_weighted() && !share.stated {
                parts.insert(0, format!("weight {}", share.weight));
            }
            if !share.gpus.is_empty() {
                parts.push(format!("{} SMs", share.sms()));
            }
            if share.stated {
                parts.push("stated by the tenant".to_owned());
            }
            if share.clients_with_another > 0 {
                parts.push(format!("{} with another share", counted(share.clients_with_another, "client")));
            }
            format!("{}: {}", share.tenant, parts.join(", "))
        };
        self.shares.iter().map(words).collect()
    }

    /// Describes the division: the part of the GPU that is divided, the rule, and the number of clients.
    pub fn meaning(&self) -> String {
        let from = match self.clients_from {
            ClientCountSource::ExpectedClients => "the daemon's expected_clients",
            ClientCountSource::MaxClients => "the sum of the tenants' max_clients",
            ClientCountSource::Tenants => "one for each tenant that states no share",
        };
        let (how, doubled) = match self.strategy {
            ProvisioningStrategy::None => ("not divided", ""),
            ProvisioningStrategy::Uniform => ("divided equally", ""),
            ProvisioningStrategy::Relaxed => {
                ("divided equally", ", and each share is doubled, so that two clients can use each SM")
            }
            ProvisioningStrategy::Weighted => ("divided by weight", ""),
        };
        let among = match self.clients {
            0 => "clients, of which there are none yet".to_owned(),
            clients => format!("{} ({from})", counted(clients, "client")),
        };
        let rest = if self.taken_percentage > 0.0 {
            format!(
                "What tenants with shares of their own leave of the GPU (100 − {} %)",
                self.taken_percentage
            )
        } else {
            "The GPU".to_owned()
        };
        format!(
            "{rest} is {how} among {among}{doubled}. A client keeps the share that it was started with; shares reserve nothing."
        )
    }
}

/// The share of each client of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TenantShare {
    /// The tenant.
    pub tenant: TenantName,
    /// Its weight, which counts with the strategy `weighted`.
    #[schema(value_type = u32)]
    pub weight: TenantWeight,
    /// The percentage.
    pub active_thread_percentage: ThreadPercentage,
    /// True if the tenant states it itself, as a percentage or as SMs; else the strategy gives it.
    pub stated: bool,
    /// The share in SMs, for each GPU that the tenant sees.
    pub gpus: Vec<SmShare>,
    /// Its connected clients that were started with another percentage, which they keep until they end.
    pub clients_with_another: u64,
}

impl TenantShare {
    /// Returns the SMs of a client on each GPU, with equal neighbours merged: `48`, or `48 / 52`.
    pub fn sms(&self) -> String {
        let number =
            |share: &SmShare| share.predicted_sms.map_or_else(|| "?".to_owned(), |sms| sms.to_string());
        let mut numbers: Vec<String> = self.gpus.iter().map(number).collect();
        numbers.dedup();
        numbers.join(" / ")
    }

    /// Returns true if it is below the minimum that MPS gives every client, on one of its GPUs.
    pub fn is_below_minimum(&self) -> bool {
        self.gpus.iter().any(|share| share.below_minimum)
    }
}

/// A share in SMs of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SmShare {
    /// The GPU.
    pub gpu: GpuUuid,
    /// SMs that a client is predicted to see; `null` where the SMs of the GPU are not known.
    pub predicted_sms: Option<u32>,
    /// True if the percentage is below the minimum of 8 SMs that MPS gives every client, so that the shares of all tenants may exceed
    /// the GPU.
    pub below_minimum: bool,
}

impl SmShare {
    /// Computes the share of a percentage on a GPU with `total` SMs.
    pub fn of(gpu: GpuUuid, percentage: ThreadPercentage, total: Option<u32>) -> Self {
        let below_minimum =
            total.is_some_and(|total| sms_unbounded(percentage, total) < FEWEST_SMS.min(total));
        Self {
            gpu,
            predicted_sms: total.map(|total| super::percentage::sms_for(percentage, total)),
            below_minimum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tenant(max_clients: Option<u32>, weight: u32) -> SharingTenant {
        SharingTenant { max_clients, weight: TenantWeight::try_from(weight).expect("a weight") }
    }

    fn shares(
        strategy: ProvisioningStrategy,
        expected_clients: Option<u32>,
        taken: u64,
        tenants: &[SharingTenant],
    ) -> Vec<u16> {
        let provisioning = Provisioning { strategy, expected_clients };
        let basis = ShareBasis::new(provisioning, taken, tenants).expect("a strategy");
        tenants.iter().map(|tenant| basis.share(tenant.weight).tenths()).collect()
    }

    use ProvisioningStrategy::{Relaxed, Uniform, Weighted};

    #[test]
    fn strategies_divide_as_nvidia_says() {
        let four = [tenant(None, 1); 4];
        assert_eq!(shares(Uniform, None, 0, &four), [250; 4]);
        assert_eq!(shares(Uniform, None, 0, &[tenant(None, 1); 5]), [200; 5]);
        assert_eq!(shares(Uniform, None, 0, &[tenant(None, 1); 3]), [333; 3], "rounded down");
        assert_eq!(shares(Relaxed, None, 0, &four), [500; 4]);
        assert_eq!(shares(Relaxed, None, 0, &four[..1]), [1000], "100 at most");
        assert_eq!(shares(Weighted, None, 0, &[tenant(None, 3), tenant(None, 7)]), [300, 700]);
        assert_eq!(shares(Weighted, None, 0, &[tenant(Some(2), 3), tenant(None, 4)]), [300, 400]);
    }

    #[test]
    fn number_of_clients_has_three_sources() {
        let basis = |expected, tenants: &[SharingTenant]| {
            let provisioning = Provisioning { strategy: Uniform, expected_clients: expected };
            let basis = ShareBasis::new(provisioning, 0, tenants).expect("a strategy");
            (basis.clients, basis.clients_from)
        };
        let (plain, two) = (tenant(None, 1), tenant(Some(2), 1));
        assert_eq!(basis(Some(8), &[two, plain]), (8, ClientCountSource::ExpectedClients));
        assert_eq!(basis(None, &[two, plain]), (3, ClientCountSource::MaxClients));
        assert_eq!(basis(None, &[plain, plain]), (2, ClientCountSource::Tenants));
        assert_eq!(ShareBasis::new(Provisioning::default(), 0, &[plain]), None);
    }

    #[test]
    fn expected_clients_scale_every_strategy() {
        let two = [tenant(None, 1); 2];
        assert_eq!(shares(Uniform, Some(4), 0, &two), [250; 2]);
        assert_eq!(shares(Relaxed, Some(4), 0, &two), [500; 2]);
        assert_eq!(shares(Weighted, Some(4), 0, &two), [250; 2], "equal weights are uniform");
        assert_eq!(shares(Weighted, Some(4), 0, &[tenant(None, 1), tenant(None, 3)]), [125, 375]);
    }

    #[test]
    fn own_shares_are_taken_off_first() {
        assert_eq!(shares(Uniform, None, 500, &[tenant(None, 1); 2]), [250; 2]);
        let full = ShareBasis::new(
            Provisioning { strategy: Uniform, ..Provisioning::default() },
            1000,
            &[tenant(None, 1)],
        );
        assert!(full.expect("a strategy").leaves_nothing());
        let alone = ShareBasis::new(Provisioning { strategy: Uniform, ..Provisioning::default() }, 1500, &[]);
        assert!(!alone.expect("a strategy").leaves_nothing(), "nobody is left out");
    }

    #[test]
    fn weights_have_a_range() {
        for (json, words) in
            [("0", "8 SMs"), ("1001", "1 to 1000"), ("1.5", "1.5"), ("-1", "-1"), ("\"2\"", "\"2\"")]
        {
            let error = serde_json::from_str::<TenantWeight>(json).expect_err(json).to_string();
            assert!(error.contains(words), "{json}: {error}");
        }
        assert_eq!(serde_json::to_string(&TenantWeight::default()).expect("JSON"), "1");
    }

    #[test]
    fn expected_clients_are_what_mps_takes() {
        let check = |strategy, expected_clients| Provisioning { strategy, expected_clients }.check();
        assert_eq!(check(Uniform, Some(60)), Ok(()));
        assert_eq!(check(ProvisioningStrategy::None, Some(4)), Ok(()), "places that share all SMs");
        for (strategy, clients) in [(Uniform, 0), (Uniform, 61), (ProvisioningStrategy::None, 1000)] {
            assert_eq!(
                check(strategy, Some(clients)).expect_err("refused").0,
                "provisioning/expected_clients"
            );
        }
    }

    #[test]
    fn shares_below_eight_sms_are_known() {
        let share = |tenths| {
            let percentage = ThreadPercentage::from_tenths(tenths).expect("a percentage");
            let share = SmShare::of(crate::testing::h200(0).uuid, percentage, Some(132));
            (share.predicted_sms, share.below_minimum)
        };
        assert_eq!((share(60), share(61)), ((Some(8), true), (Some(8), false)));
        assert_eq!((share(250), share(1000)), ((Some(32), false), (Some(132), false)));
    }

    fn tenants() -> impl Strategy<Value = Vec<SharingTenant>> {
        let sharing = (proptest::option::of(1_u32..=60), 1_u32..=1000)
            .prop_map(|(clients, weight)| tenant(clients, weight));
        proptest::collection::vec(sharing, 1..40)
    }

    fn strategies() -> impl Strategy<Value = ProvisioningStrategy> {
        prop_oneof![Just(Uniform), Just(Relaxed), Just(Weighted)]
    }

    proptest! {
        #[test]
        fn shares_are_percentages(
            strategy in strategies(), tenants in tenants(), expected in proptest::option::of(1_u32..=1000), taken in 0_u64..2000
        ) {
            for share in shares(strategy, expected, taken, &tenants) {
                prop_assert!((1..=1000).contains(&share));
            }
        }

        #[test]
        fn all_clients_fit_the_rest(tenants in tenants(), weighted in any::<bool>(), taken in 0_u64..1000) {
            let strategy = if weighted { Weighted } else { Uniform };
            let shares = shares(strategy, None, taken, &tenants);
            // A share of 0 is raised to one tenth.
            let sum: u64 = tenants.iter().zip(&shares)
                .filter(|(_, share)| **share > 1)
                .map(|(tenant, share)| tenant.clients() * u64::from(*share))
                .sum();
            prop_assert!(sum <= 1000 - taken, "{sum} of {}", 1000 - taken);
        }

        #[test]
        fn a_larger_weight_gives_no_less(tenants in tenants(), at in any::<prop::sample::Index>(), more in 1_u32..500) {
            let before = shares(Weighted, None, 0, &tenants);
            let at = at.index(tenants.len());
            let mut raised = tenants.clone();
            raised[at] = tenant(tenants[at].max_clients, (u32::from(tenants[at].weight) + more).min(1000));
            let after = shares(Weighted, None, 0, &raised);
            prop_assert!(after[at] >= before[at]);
            for (other, share) in after.iter().enumerate().filter(|(other, _)| *other != at) {
                prop_assert!(*share <= before[other]);
            }
        }

        #[test]
        fn order_changes_no_share(strategy in strategies(), tenants in tenants(), by in 0_usize..40) {
            let mut turned = tenants.clone();
            let by = by % tenants.len();
            turned.rotate_left(by);
            let mut expected = shares(strategy, None, 0, &tenants);
            expected.rotate_left(by);
            prop_assert_eq!(shares(strategy, None, 0, &turned), expected);
        }

        #[test]
        fn newcomer_raises_no_share(strategy in strategies(), tenants in tenants(), weight in 1_u32..=1000) {
            let before = shares(strategy, None, 0, &tenants);
            let mut more = tenants.clone();
            more.push(tenant(None, weight));
            for (after, before) in shares(strategy, None, 0, &more).iter().zip(before) {
                prop_assert!(*after <= before);
            }
        }
    }
}

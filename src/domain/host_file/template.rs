//! Templates: the settings that daemons of one kind share, and the number of clients that their GPUs are divided among.
//!
//! Only host files have templates: a template becomes the provisioning and the defaults of the daemons that it names, by the model of
//! their GPUs. So an export has none, and applying a file with one again changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::admission::unreserved;
use crate::count::{counted, enumerated};
use crate::daemon::DaemonSpec;
use crate::device_memory_limit::DeviceMemoryLimit;
use crate::gpu::Gpu;
use crate::memory::Bytes;
use crate::provisioning::{Provisioning, ProvisioningStrategy};
use crate::{DaemonName, InvalidValue, MemoryLimit, TemplateName};

/// Division of the GPUs of some daemons among clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DaemonTemplate {
    /// The daemons of this file that it is for.
    #[schema(min_items = 1)]
    pub daemons: Vec<DaemonName>,
    /// Clients that each GPU is divided among.
    #[schema(minimum = 1, maximum = 60)]
    pub clients_per_gpu: u32,
    /// Strategy by which the threads of a GPU are divided among them.
    #[serde(default = "uniform")]
    pub strategy: ProvisioningStrategy,
    /// The memory of each client; if it is left out, tenants without a limit have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory_limit: Option<MemoryLimit>,
    /// Overrides for GPUs of a model, by its product name, as `NVIDIA H200`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpu_models: BTreeMap<String, TemplateOverride>,
}

/// Values that override those of a template for one model of GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateOverride {
    /// Clients that each GPU is divided among.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 60)]
    pub clients_per_gpu: Option<u32>,
    /// The memory of each client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory_limit: Option<MemoryLimit>,
}

fn uniform() -> ProvisioningStrategy {
    ProvisioningStrategy::Uniform
}

impl DaemonTemplate {
    /// Returns the number of clients of a GPU, and the memory of each.
    fn on(&self, gpu: &Gpu) -> (u32, Option<MemoryLimit>) {
        let model = self.gpu_models.get(&gpu.name).copied().unwrap_or_default();
        (
            model.clients_per_gpu.unwrap_or(self.clients_per_gpu),
            model.device_memory_limit.or(self.device_memory_limit),
        )
    }

    /// Applies the template to a daemon; fails if the values for its GPUs differ.
    fn give(&self, daemon: &mut DaemonSpec, gpus: &[Gpu]) -> Result<(), (&'static str, InvalidValue)> {
        if daemon.provisioning != Provisioning::default() {
            return Err(("provisioning", InvalidValue(stated("provisioning"))));
        }
        if daemon.defaults.device_memory_limit.is_some() && self.states_memory() {
            let field = "defaults/device_memory_limit";
            return Err((field, InvalidValue(stated("defaults.device_memory_limit"))));
        }
        let own: Vec<&Gpu> = gpus.iter().filter(|gpu| daemon.gpus.contains(&gpu.uuid)).collect();
        let Some((first, rest)) = own.split_first() else { return Ok(()) };
        let (clients, memory) = self.on(first);
        if let Some(other) = rest.iter().find(|gpu| self.on(gpu) != (clients, memory)) {
            return Err((
                "gpus",
                InvalidValue(format!(
                    "its template divides {} (GPU {}) and {} (GPU {}) in different ways: give each model a daemon of its own",
                    first.name, first.index, other.name, other.index
                )),
            ));
        }
        daemon.provisioning = Provisioning { strategy: self.strategy, expected_clients: Some(clients) };
        if let Some(memory) = memory {
            daemon.defaults.device_memory_limit = Some(DeviceMemoryLimit::Same(memory));
        }
        Ok(())
    }

    fn states_memory(&self) -> bool {
        self.device_memory_limit.is_some()
            || self.gpu_models.values().any(|model| model.device_memory_limit.is_some())
    }
}

fn stated(setting: &str) -> String {
    format!("the daemon states {setting}, and so does its template: take it out of one of them")
}

/// The templates of a file.
pub(super) type Templates = BTreeMap<TemplateName, DaemonTemplate>;

/// Returns the errors of templates that do not depend on the host, each with its place; `is_in_file` is true for the daemons of the file.
pub(super) fn faults_of(
    templates: &Templates,
    is_in_file: impl Fn(&DaemonName) -> bool,
) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    let mut holders: BTreeMap<&DaemonName, &TemplateName> = BTreeMap::new();
    for (name, template) in templates {
        let daemons = format!("/templates/{name}/daemons");
        if template.daemons.is_empty() {
            let why = "the template is for no daemon: name one, or take it out";
            faults.push((daemons.clone(), why.to_owned()));
        }
        for daemon in &template.daemons {
            if !is_in_file(daemon) {
                let why =
                    format!("there is no daemon {daemon} in the file: add it under daemons, or name another");
                faults.push((daemons.clone(), why));
            } else if let Some(other) = holders.insert(daemon, name) {
                let why = format!("daemon {daemon} has template {other} already: name it in one of them");
                faults.push((daemons.clone(), why));
            }
        }
        let own = (format!("/templates/{name}"), Some(template.clients_per_gpu));
        let models = template
            .gpu_models
            .iter()
            .map(|(model, settings)| (within_model(name, model), settings.clients_per_gpu));
        for (place, clients) in std::iter::once(own).chain(models) {
            let provisioning = Provisioning { strategy: template.strategy, expected_clients: clients };
            if let Err((_, why)) = provisioning.check() {
                faults.push((
                    format!("{place}/clients_per_gpu"),
                    why.to_string().replace("expected_clients", "clients_per_gpu"),
                ));
            }
        }
    }
    faults
}

/// Applies its template to a daemon, if it has one.
pub(super) fn with_template(
    templates: &Templates,
    name: &DaemonName,
    mut daemon: DaemonSpec,
    gpus: &[Gpu],
) -> Result<DaemonSpec, (&'static str, InvalidValue)> {
    if let Some(template) = templates.values().find(|template| template.daemons.contains(name)) {
        template.give(&mut daemon, gpus)?;
    }
    Ok(daemon)
}

/// Faults of templates on one host, each with its place.
#[derive(Debug, Default)]
pub(super) struct TemplateFaults {
    /// Faults for which the file is refused.
    pub(super) errors: BTreeSet<(String, String)>,
    /// Faults that may be intended.
    pub(super) warnings: BTreeSet<(String, String)>,
}

/// Compares the memory that templates give the clients of a GPU with its total, and the models that they name with those of the host.
pub(super) fn on_host(
    templates: &Templates,
    daemons: &BTreeMap<DaemonName, DaemonSpec>,
    gpus: &[Gpu],
) -> TemplateFaults {
    let mut faults = TemplateFaults::default();
    let models: BTreeSet<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    for (name, template) in templates {
        for daemon in template.daemons.iter().filter_map(|daemon| daemons.get(daemon)) {
            for gpu in gpus.iter().filter(|gpu| daemon.gpus.contains(&gpu.uuid)) {
                template.memory_faults(name, daemon, gpu, &mut faults);
            }
        }
        for model in template.gpu_models.keys().filter(|model| !models.contains(model.as_str())) {
            if !models.is_empty() {
                faults.warnings.insert((within_model(name, model), unknown_model(model, &models)));
            }
        }
    }
    faults
}

impl DaemonTemplate {
    /// Adds the faults of the memory that it gives the clients of a GPU, by the rules of admission for tenants.
    fn memory_faults(
        &self,
        name: &TemplateName,
        daemon: &DaemonSpec,
        gpu: &Gpu,
        faults: &mut TemplateFaults,
    ) {
        let (clients, Some(limit)) = self.on(gpu) else { return };
        let Some(memory_total) = gpu.memory_total else {
            if daemon.reserves() {
                faults.errors.insert((format!("/templates/{name}"), unreserved(gpu)));
            }
            return;
        };
        let place = match self.gpu_models.get_key_value(&gpu.name) {
            Some((model, _)) => within_model(name, model),
            None => format!("/templates/{name}"),
        };
        let (model, total) = (&gpu.name, Bytes(memory_total));
        if limit.bytes() > memory_total {
            let why = format!(
                "each client gets {limit}, and a GPU of model {model} has {total}: give at most that"
            );
            faults.errors.insert((place, why));
            return;
        }
        let needed = limit.bytes().saturating_mul(u64::from(clients));
        let all = format!("{} of {limit} each come to {}", counted(clients, "client"), Bytes(needed));
        if daemon.reserves() {
            let allowed = daemon.memory_overcommit.budget(memory_total);
            if needed > allowed {
                let why = format!(
                    "{all}, and a GPU of model {model} has {total} × over-commit {} = {} to reserve: lower clients_per_gpu or \
                     device_memory_limit, raise memory_overcommit on the daemon, or set its admission to open, which reserves nothing",
                    daemon.memory_overcommit,
                    Bytes(allowed)
                );
                faults.errors.insert((place, why));
            }
        } else if needed > memory_total {
            let why = format!(
                "{all}, and a GPU of model {model} has {total}: not all of them can use what they may. If that is not meant, lower \
                 clients_per_gpu or device_memory_limit"
            );
            faults.warnings.insert((place, why));
        }
    }
}

/// Returns the JSON pointer to a template's overrides for a model.
fn within_model(template: &TemplateName, model: &str) -> String {
    format!("/templates/{template}/gpu_models/{}", model.replace('~', "~0").replace('/', "~1"))
}

/// Returns the warning for an unknown model. A file may be for several hosts, so a model that this one lacks is no error.
fn unknown_model(model: &str, models: &BTreeSet<&str>) -> String {
    let near = models.iter().find(|existing| is_near(model, existing));
    let remedy = match near {
        Some(existing) => format!("if {existing} is meant, write that"),
        None => "check the name, unless it is for other hosts".to_owned(),
    };
    let models: Vec<&str> = models.iter().copied().collect();
    format!("no GPU of this host is of model {model:?}, but of {}: {remedy}", enumerated(&models))
}

/// Returns true if one may be a misspelling of the other: a part of it, or with less than a third of the letters wrong.
fn is_near(written: &str, meant: &str) -> bool {
    let (written, meant) = (written.to_lowercase(), meant.to_lowercase());
    meant.contains(&written) || strsim::levenshtein(&written, &meant) * 3 < meant.chars().count()
}

//! The target of a layout: the daemon, and the GPU for each role.

use std::collections::BTreeMap;

use crate::domain::daemon::Mode;
use crate::domain::gpu::GpuRef;
use crate::domain::layout::{Enforcement, Layout, Role, Version};
use crate::domain::{GpuUuid, LayoutName};
use crate::http::extract::Call;
use crate::http::pages::forms::Form;
use crate::http::pages::gpus::{GpuDisplayNames, GpuRow};
use crate::http::problem::Problem;
use crate::service::daemons::DaemonView;
use crate::service::layouts::LayoutTarget;

/// The daemons of this host, and their GPUs.
pub(super) struct Places {
    pub(super) daemons: Vec<DaemonView>,
    gpus: Vec<GpuRow>,
    pub(super) names: GpuDisplayNames,
}

/// A role of the layout, and the GPUs that can take it.
pub(super) struct RoleChoice {
    pub(super) role: Role,
    pub(super) gpus: Vec<GpuChoice>,
}

/// A GPU to choose.
pub(super) struct GpuChoice {
    pub(super) uuid: GpuUuid,
    pub(super) called: String,
    pub(super) chosen: bool,
}

impl Places {
    pub(super) async fn of(call: &Call) -> Result<Self, Problem> {
        let gpus = call.gpus().await?;
        Ok(Self { daemons: call.daemons().await?, names: GpuDisplayNames::of(&gpus), gpus })
    }

    /// The named daemon, or the only one that can hold the layout.
    pub(super) fn daemon(&self, named: &str, enforcement: Enforcement) -> Option<&DaemonView> {
        if !named.is_empty() {
            return self.daemons.iter().find(|daemon| daemon.name.as_str() == named);
        }
        let mode = match enforcement {
            Enforcement::Static => Mode::Static,
            Enforcement::Percentage => Mode::Shared,
        };
        let mut fit =
            self.daemons.iter().filter(|daemon| daemon.spec.mode == mode && !daemon.spec.is_observed());
        fit.next().filter(|_| fit.next().is_none())
    }

    /// A version of a layout on a daemon, on the GPUs that the form chooses.
    pub(super) fn target(&self, version: &Version, daemon: &DaemonView, form: &Form) -> LayoutTarget {
        LayoutTarget {
            daemon: daemon.name.clone(),
            version: Some(version.version),
            gpu_map: gpu_map(&self.roles(&version.name, &version.layout, daemon, form)),
            layout: None,
        }
    }

    /// The GPU of each role: as chosen, as the daemon has it, by the host's order, otherwise the daemon's in its order.
    pub(super) fn roles(
        &self,
        name: &LayoutName,
        layout: &Layout,
        daemon: &DaemonView,
        form: &Form,
    ) -> Vec<RoleChoice> {
        let held = daemon.spec.layout.as_ref().filter(|held| held.name == *name);
        let offered = &daemon.spec.gpus;
        let sku = layout.sku.clone().or_else(|| {
            let first = self.gpus.iter().find(|row| offered.first() == Some(&row.gpu.uuid))?;
            first.gpu.name.clone()
        });
        let of_sku: Vec<&GpuUuid> =
            self.gpus.iter().filter(|row| row.gpu.name == sku).map(|row| &row.gpu.uuid).collect();
        let choice = |(place, role): (usize, Role)| {
            let typed = form.text(&format!("gpu-{role}")).to_owned();
            let typed = offered.iter().find(|gpu| gpu.as_str() == typed);
            let mapped = held.and_then(|held| held.gpu_map.get(&role));
            let by_index = usize::try_from(role).ok().and_then(|role| of_sku.get(role).copied());
            let by_index = by_index.filter(|gpu| offered.contains(gpu));
            let chosen =
                typed.or(mapped).or(by_index).or_else(|| offered.get(place)).or_else(|| offered.first());
            let gpu = |uuid: &GpuUuid| GpuChoice {
                uuid: uuid.clone(),
                called: self.names.name(uuid),
                chosen: Some(uuid) == chosen,
            };
            RoleChoice { role, gpus: offered.iter().map(gpu).collect() }
        };
        layout.roles().into_iter().enumerate().map(choice).collect()
    }
}

/// The choice for a request.
pub(super) fn gpu_map(roles: &[RoleChoice]) -> BTreeMap<Role, GpuRef> {
    let chosen = |choice: &RoleChoice| {
        let gpu = choice.gpus.iter().find(|gpu| gpu.chosen)?;
        Some((choice.role, GpuRef(gpu.uuid.to_string())))
    };
    roles.iter().filter_map(chosen).collect()
}

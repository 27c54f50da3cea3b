//! The environment of a tenant's processes, ready to be copied.

use crate::domain::environment::{as_shell, cdi, formats};
use crate::service::tenants::EnvironmentView;

/// The environment in each format, by the ID of the format.
pub(super) fn texts(view: &EnvironmentView) -> Vec<(&'static str, String)> {
    let EnvironmentView { variables, unset, container, container_refused, cdi_device } = view;
    let pairs: Vec<(String, String)> =
        variables.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let json = formats::as_json(variables, unset, container.as_ref());
    let mut texts = vec![("shell", as_shell(&pairs)), ("json", json)];
    if let Some(container) = container {
        texts.push(("docker", formats::as_container_options(variables, container)));
        let device = cdi_device.as_ref().map(|device| cdi::as_options(device, variables, container));
        texts.extend(device.map(|text| ("cdi", text)));
        texts.push(("compose", formats::as_compose(variables, container)));
        texts.extend(formats::as_apptainer(variables, container).map(|text| ("apptainer", text)));
        texts.push(("nomad", formats::as_nomad_task(variables, container)));
        texts.extend(formats::as_env_file(variables, container).map(|text| ("env-file", text)));
    }
    texts.extend(container_refused.as_ref().map(|_| ("containers", String::new())));
    texts.push(("systemd", formats::as_unit(variables, unset)));
    texts
}

//! The environment of a tenant's processes, ready to be copied.

use crate::domain::TenantName;
use crate::domain::environment::{as_shell, formats};
use crate::http::problem::Problem;
use crate::service::ServiceError;
use crate::service::tenants::EnvironmentView;

/// What a page has of it.
pub(super) enum Environment {
    /// Why none is handed out.
    Refused(String),
    /// The same in each format.
    Ready(Vec<Format>),
}

/// A format that somebody copies it in.
pub(super) struct Format {
    pub(super) id: &'static str,
    pub(super) name: &'static str,
    pub(super) hint: String,
    pub(super) text: String,
}

impl Environment {
    pub(super) fn of(view: Result<EnvironmentView, ServiceError>, tenant: &TenantName) -> Self {
        match view {
            Ok(view) => Self::Ready(all(&view, tenant)),
            Err(error) => Self::Refused(Problem::from(error).detail),
        }
    }
}

fn all(view: &EnvironmentView, tenant: &TenantName) -> Vec<Format> {
    let EnvironmentView { variables, unset } = view;
    let pairs: Vec<(String, String)> =
        variables.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let pipe = variables.get("CUDA_MPS_PIPE_DIRECTORY").map(String::as_str).unwrap_or_default();
    let of_container = format!(
        "A container also has to reach the daemon: --ipc=host and --volume {pipe}:{pipe}, as the tenant's user."
    );
    let format = |id, name, hint: &str, text| Format { id, name, hint: hint.to_owned(), text };
    let mut formats = vec![
        format(
            "shell",
            "Shell",
            &format!("mps-manager env {tenant} gives the same. Variables of another tenant are unset first."),
            as_shell(&pairs),
        ),
        format("json", "JSON", "As the API gives it.", formats::as_json(variables, unset)),
        format("docker", "docker run", &of_container, formats::as_container_options(variables)),
    ];
    if let Some(text) = formats::as_env_file(variables) {
        formats.push(format("env-file", "--env-file", &of_container, text));
    }
    formats.push(format(
        "systemd",
        "systemd unit",
        "For the [Service] section, with User= set to the tenant's user.",
        formats::as_unit(variables, unset),
    ));
    formats
}

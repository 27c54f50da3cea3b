//! The environment of a tenant's processes, ready to be copied.

use crate::domain::TenantName;
use crate::domain::environment::{as_shell, cdi, formats};
use crate::http::problem::Problem;
use crate::service::ServiceError;
use crate::service::access::context::RequestContext;
use crate::service::tenants::EnvironmentView;

/// The environment on a page.
pub(super) enum Environment {
    /// Reason for which there is no environment.
    Refused(String),
    /// The environment in each format.
    Ready(Vec<EnvironmentFormat>),
}

/// A format to copy.
pub(super) struct EnvironmentFormat {
    pub(super) id: &'static str,
    pub(super) name: &'static str,
    pub(super) hint: String,
    pub(super) text: String,
}

impl Environment {
    pub(super) fn of(
        ctx: &RequestContext,
        view: Result<EnvironmentView, ServiceError>,
        tenant: &TenantName,
    ) -> Self {
        match view {
            Ok(view) => Self::Ready(all(&view, tenant)),
            Err(error) => Self::Refused(Problem::of(error, &ctx.actor).detail),
        }
    }
}

fn all(view: &EnvironmentView, tenant: &TenantName) -> Vec<EnvironmentFormat> {
    let EnvironmentView { variables, unset, container, container_refused, cdi_device } = view;
    let pairs: Vec<(String, String)> =
        variables.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let format = |id, name, hint: &str, text| EnvironmentFormat { id, name, hint: hint.to_owned(), text };
    let mut formats = vec![
        format(
            "shell",
            "Shell",
            &format!(
                "mps-manager env {tenant} prints the same. Variables of another tenant are unset first."
            ),
            as_shell(&pairs),
        ),
        format(
            "json",
            "JSON",
            "As returned by the API.",
            formats::as_json(variables, unset, container.as_ref()),
        ),
    ];
    if let Some(container) = container {
        let mount = format!(
            "Mounts {}, which contains the one socket that a client needs: no process in the container can control the daemon. \
             Variables set by the image are unset.",
            container.mount
        );
        let text = formats::as_container_options(variables, container);
        formats.push(format("docker", "docker run", &mount, text));
        if let Some(device) = cdi_device {
            let hint = "For podman run and docker run with CDI: the device brings the variables and the directory, and the GPU's own \
                        device is requested beside it. No container that begins while the tenant takes no new processes gets it.";
            formats.push(format("cdi", "CDI", hint, cdi::as_options(device, variables, container)));
        }
        formats.push(format("compose", "Compose", &mount, formats::as_compose(variables, container)));
        if let Some(text) = formats::as_apptainer(variables, container) {
            let hint = "For a shell, before apptainer exec or singularity exec: the directory is bound, and the image's own variables lose.";
            formats.push(format("apptainer", "Apptainer", hint, text));
        }
        let text = formats::as_nomad_task(variables, container);
        formats.push(format("nomad", "Nomad", &mount, text));
        if let Some(text) = formats::as_env_file(variables, container) {
            let ipc = if container.host_ipc { " --ipc host" } else { "" };
            let beside = format!(
                "Beside it: --mount type=bind,source={0},target={0},readonly --user {1}{ipc}",
                container.mount, container.uid
            );
            formats.push(format("env-file", "--env-file", &beside, text));
        }
    }
    if let Some(why) = container_refused {
        formats.push(format("docker", "Containers", why, String::new()));
    }
    formats.push(format(
        "systemd",
        "systemd unit",
        "For the [Service] section, with User= set to the tenant's user.",
        formats::as_unit(variables, unset),
    ));
    formats
}

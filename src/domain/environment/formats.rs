//! The environment of a tenant's processes in other formats: JSON, container options, systemd units.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::container::ContainerAccess;
use super::{SIMULATED_WORLD, as_shell, quoted};
use crate::GpuUuid;

/// Writes the variables, the names to unset and the container access as JSON, as the API does.
pub fn as_json(
    variables: &BTreeMap<String, String>,
    unset: &[String],
    container: Option<&ContainerAccess>,
) -> String {
    let json = serde_json::json!({ "variables": variables, "unset": unset, "container": container });
    format!("{json:#}\n")
}

/// Returns the variables of a container: the tenant's, and the defaults of those that its image may set.
pub(super) fn of_container<'v>(
    variables: &'v BTreeMap<String, String>,
    container: &'v ContainerAccess,
) -> BTreeMap<&'v str, &'v str> {
    let all = container.defaults.iter().chain(variables);
    all.map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// Returns the directory that simulates the GPUs of a simulated host. A container mounts it instead of a GPU, which no engine has there.
pub fn simulated(variables: &BTreeMap<String, String>) -> Option<&str> {
    variables.get(SIMULATED_WORLD).map(String::as_str)
}

/// Writes options for `docker run` in a shell, each on a line of its own: the tenant's directory and no other, its user, its GPUs
/// and its variables.
pub fn as_container_options(variables: &BTreeMap<String, String>, container: &ContainerAccess) -> String {
    let ContainerAccess { mount, uid, gpus, host_ipc, .. } = container;
    let devices = gpus.iter().map(GpuUuid::as_str).collect::<Vec<_>>().join(",");
    let bind = |path: &str, rest: &str| {
        format!("--mount {}", quoted(&format!("type=bind,source={path},target={path}{rest}")))
    };
    let mut lines = vec![
        match simulated(variables) {
            Some(world) => bind(world, ""),
            // Docker reads the value as a line of comma-separated fields, in which this is one.
            None => format!("--gpus {}", quoted(&format!("\"device={devices}\""))),
        },
        bind(mount, ",readonly"),
        format!("--user {uid}"),
    ];
    if *host_ipc {
        lines.push("--ipc host".to_owned());
    }
    let environment = of_container(variables, container);
    lines.extend(environment.iter().map(|(name, value)| format!("--env {name}={}", quoted(value))));
    format!("{}\n", lines.join(" \\\n"))
}

/// Writes a file for `docker run --env-file`, which takes everything after the first `=` literally. `None` if a value has a line break,
/// which such a file cannot hold.
pub fn as_env_file(variables: &BTreeMap<String, String>, container: &ContainerAccess) -> Option<String> {
    let all = of_container(variables, container);
    let whole = all.values().all(|value| !value.contains(['\n', '\r']));
    let line = |(name, value): (&&str, &&str)| format!("{name}={value}");
    whole.then(|| all.iter().map(line).collect::<Vec<_>>().join("\n") + "\n")
}

/// Writes a service for a file of `docker compose`. Strings of JSON are also strings of YAML; a dollar sign is doubled.
pub fn as_compose(variables: &BTreeMap<String, String>, container: &ContainerAccess) -> String {
    let text = |value: &str| serde_json::Value::from(value.replace('$', "$$")).to_string();
    let ContainerAccess { mount, uid, gpus, host_ipc, .. } = container;
    let devices = gpus.iter().map(|gpu| text(gpu.as_str())).collect::<Vec<_>>().join(", ");
    let mut lines = format!("services:\n  client:\n    user: \"{uid}\"\n");
    if *host_ipc {
        lines.push_str("    ipc: host\n");
    }
    let mount = text(mount);
    let _ = write!(
        lines,
        "    volumes:\n      - {{type: bind, source: {mount}, target: {mount}, read_only: true}}\n"
    );
    let _ = match simulated(variables).map(text) {
        Some(world) => writeln!(lines, "      - {{type: bind, source: {world}, target: {world}}}"),
        None => write!(
            lines,
            "    deploy:\n      resources:\n        reservations:\n          devices:\n            \
             - {{driver: nvidia, device_ids: [{devices}], capabilities: [gpu]}}\n"
        ),
    };
    lines.push_str("    environment:\n");
    for (name, value) in of_container(variables, container) {
        let _ = writeln!(lines, "      {name}: {}", text(value));
    }
    lines
}

/// Prefixes of variables that Apptainer and `SingularityCE` set in a container. They override the image's variables, which those of the
/// host do not. Apptainer reads both and warns if they differ; `SingularityCE` reads its own.
const FOR_IMAGES: [&str; 2] = ["APPTAINERENV", "SINGULARITYENV"];

/// Writes lines for a POSIX shell, after which Apptainer and `SingularityCE` start containers as clients: the lines of `--format sh`, the
/// variables for containers, and the tenant's directory, which is added to those that they bind. The directory of an earlier tenant is
/// removed, since a missing directory makes each start fail. `None` if a path cannot be written in such a list.
pub fn as_apptainer(variables: &BTreeMap<String, String>, container: &ContainerAccess) -> Option<String> {
    let ContainerAccess { mount, .. } = container;
    let (tenants, _) = mount.rsplit_once('/')?;
    let world = simulated(variables);
    if [Some(mount.as_str()), world].iter().flatten().any(|path| path.contains([',', ':', '\n'])) {
        return None;
    }
    let pairs: Vec<(String, String)> = variables.iter().map(|(a, b)| (a.clone(), b.clone())).collect();
    let mut lines = as_shell(&pairs);
    for (name, value) in of_container(variables, container) {
        for prefix in FOR_IMAGES {
            let _ = writeln!(lines, "export {prefix}_{name}={}", quoted(value));
        }
    }
    let world = world.map_or_else(String::new, |world| format!(",{world}:{world}"));
    let _ = write!(
        lines,
        "mps_manager_bind=$(printf '%s\\n' \"${{APPTAINER_BIND:-${{SINGULARITY_BIND:-}}}}\" | tr ',' '\\n' | while IFS= read -r entry; do\n    \
         case $entry in '' | {}/*) ;; *) printf '%s,' \"$entry\" ;; esac\n\
         done)\n\
         mps_manager_bind=$mps_manager_bind{}\n\
         export APPTAINER_BIND=\"$mps_manager_bind\" SINGULARITY_BIND=\"$mps_manager_bind\"\n\
         unset mps_manager_bind\n",
        quoted(tenants),
        quoted(&format!("{mount}:{mount}:ro{world}")),
    );
    Some(lines)
}

/// Writes the lines that Slurm's `TaskProlog` prints to change the environment of a task: Slurm takes everything after the first `=`
/// literally, up to the end of the line. If the tenant has a directory for containers, their variables come last. `None` if a value has a
/// line break.
pub fn as_task_prolog(
    variables: &BTreeMap<String, String>,
    unset: &[String],
    container: Option<&ContainerAccess>,
) -> Option<String> {
    let whole = variables.values().all(|value| !value.contains(['\n', '\r']));
    let unset = unset.iter().map(|name| format!("unset {name}\n"));
    let set = variables.iter().map(|(name, value)| format!("export {name}={value}\n"));
    let for_images = container.into_iter().flat_map(|container| {
        let all = of_container(variables, container).into_iter();
        all.flat_map(|(name, value)| FOR_IMAGES.map(|prefix| format!("export {prefix}_{name}={value}\n")))
    });
    whole.then(|| unset.chain(set).chain(for_images).collect())
}

/// Writes blocks for a task of a Nomad job, with the driver `docker` or `podman`. Nomad assigns GPUs by the task's `device` block, which is
/// not among them; a comment names the GPUs for it.
pub fn as_nomad_task(variables: &BTreeMap<String, String>, container: &ContainerAccess) -> String {
    let ContainerAccess { mount, uid, gpus, host_ipc, .. } = container;
    let devices = gpus.iter().map(GpuUuid::as_str).collect::<Vec<_>>().join(", ");
    let mut lines = if simulated(variables).is_some() {
        String::new()
    } else {
        format!("# The task needs, by its device block: {devices}\n")
    };
    let _ = write!(lines, "user = \"{uid}\"\nconfig {{\n");
    if *host_ipc {
        lines.push_str("  ipc_mode = \"host\"\n");
    }
    let world = simulated(variables).map(|world| format!("{world}:{world}"));
    let volumes = [Some(format!("{mount}:{mount}:ro")), world];
    let volumes: Vec<String> = volumes.iter().flatten().map(|volume| in_hcl(volume)).collect();
    let _ = writeln!(lines, "  volumes = [{}]\n}}\nenv {{", volumes.join(", "));
    for (name, value) in of_container(variables, container) {
        let _ = writeln!(lines, "  {name} = {}", in_hcl(value));
    }
    lines.push_str("}\n");
    lines
}

/// Quotes a string for HCL, in which `${` and `%{` begin a template unless their first letter is doubled.
fn in_hcl(value: &str) -> String {
    let mut text = String::from('"');
    for letter in value.chars() {
        match letter {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            letter if letter.is_control() => {
                let _ = write!(text, "\\u{:04x}", u32::from(letter));
            }
            letter => text.push(letter),
        }
    }
    text.push('"');
    text.replace("${", "$${").replace("%{", "%%{")
}

/// Writes lines for the `[Service]` section of a systemd unit.
pub fn as_unit(variables: &BTreeMap<String, String>, unset: &[String]) -> String {
    let mut lines = String::new();
    if !unset.is_empty() {
        let _ = writeln!(lines, "UnsetEnvironment={}", unset.join(" "));
    }
    for (name, value) in variables {
        let _ = writeln!(lines, "Environment=\"{name}={}\"", in_unit(value));
    }
    lines
}

/// Escapes a value inside double quotes in a unit: systemd.syntax(7) for the backslash, systemd.unit(5) for the percent sign.
fn in_unit(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '%' => text.push_str("%%"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            letter => text.push(letter),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("X".to_owned(), value.to_owned())])
    }

    fn container() -> ContainerAccess {
        ContainerAccess {
            mount: "/run/tenants/0123456789".into(),
            uid: 7,
            gpus: vec![GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")],
            host_ipc: false,
            defaults: BTreeMap::from([("X".into(), "an image's".into()), ("Y".into(), "100".into())]),
        }
    }

    fn through_a_shell(options: &str) -> Vec<String> {
        let script = format!("set -- {options}\nprintf '%s\\0' \"$@\"");
        let out = std::process::Command::new("sh").arg("-c").arg(script).output().expect("sh runs");
        String::from_utf8_lossy(&out.stdout).split_terminator('\0').map(str::to_owned).collect()
    }

    #[test]
    fn container_options_survive_a_shell() {
        for value in ["plain", "", "two words", "it's", "$HOME", "GPU-1=4096M,GPU-2=4096M", "a\nb"] {
            let words = through_a_shell(&as_container_options(&one(value), &container()));
            let after = |word: &str| {
                words.iter().position(|other| other == word).map(|index| words[index + 1].clone())
            };
            assert_eq!(after("--env").as_deref(), Some(format!("X={value}").as_str()), "the tenant's wins");
            assert_eq!(words.last().map(String::as_str), Some("Y=100"));
            assert_eq!(after("--user").as_deref(), Some("7"));
            let mount = "type=bind,source=/run/tenants/0123456789,target=/run/tenants/0123456789,readonly";
            assert_eq!(after("--mount").as_deref(), Some(mount));
            let gpus = "\"device=GPU-514466a0-8e68-f857-9f73-e438010e48cb\"";
            assert_eq!(after("--gpus").as_deref(), Some(gpus));
            assert!(!words.iter().any(|word| word.contains("ipc")), "{words:?}");
        }
        let shared = as_container_options(&one("1"), &ContainerAccess { host_ipc: true, ..container() });
        assert!(shared.contains("--ipc host"), "{shared}");
    }

    #[test]
    fn env_file_refuses_line_breaks() {
        let text = as_env_file(&one("it's $HOME"), &container());
        assert_eq!(text.as_deref(), Some("X=it's $HOME\nY=100\n"));
        assert_eq!(as_env_file(&one("a\nb"), &container()), None);
    }

    #[test]
    fn compose_file_mounts_the_tenants_directory_only() {
        let text = as_compose(&one("it's $HOME\n"), &container());
        let read: serde_json::Value = serde_saphyr::from_str(&text).expect("YAML");
        let service = &read["services"]["client"];
        assert_eq!(service["environment"], serde_json::json!({ "X": "it's $$HOME\n", "Y": "100" }));
        assert_eq!(service["volumes"].as_array().map(Vec::len), Some(1));
        assert_eq!(service["volumes"][0]["source"], "/run/tenants/0123456789");
        assert_eq!(service["user"], "7");
        assert!(service["ipc"].is_null());
    }

    #[test]
    fn unit_values_are_escaped_for_systemd() {
        let text = as_unit(&one("50% of \"it\" \\ $HOME"), &["Y".to_owned(), "Z".to_owned()]);
        assert_eq!(text, "UnsetEnvironment=Y Z\nEnvironment=\"X=50%% of \\\"it\\\" \\\\ $HOME\"\n");
        assert_eq!(as_unit(&one("1"), &[]), "Environment=\"X=1\"\n");
    }

    #[test]
    fn task_prolog_prints_one_variable_a_line() {
        let set =
            BTreeMap::from([("X".to_owned(), "it's $HOME = \"1\"".to_owned()), ("Y".into(), String::new())]);
        let text = as_task_prolog(&set, &["A".to_owned(), "B".to_owned()], None);
        assert_eq!(text.as_deref(), Some("unset A\nunset B\nexport X=it's $HOME = \"1\"\nexport Y=\n"));
        for value in ["a\nb", "a\rb"] {
            assert_eq!(as_task_prolog(&one(value), &[], None), None, "{value:?}");
        }
        let text = as_task_prolog(&one("1"), &[], Some(&container())).expect("whole");
        let expected = "export X=1\nexport APPTAINERENV_X=1\nexport SINGULARITYENV_X=1\n\
                        export APPTAINERENV_Y=100\nexport SINGULARITYENV_Y=100\n";
        assert_eq!(text, expected, "the image's Y is set back");
    }

    #[test]
    fn nomad_task_mounts_the_tenants_directory_only() {
        let text = as_nomad_task(&one("a \"b\" \\ ${HOME} %{if}\n\u{7}"), &container());
        let expected = "# The task needs, by its device block: GPU-514466a0-8e68-f857-9f73-e438010e48cb\n\
                        user = \"7\"\n\
                        config {\n  volumes = [\"/run/tenants/0123456789:/run/tenants/0123456789:ro\"]\n}\n\
                        env {\n  X = \"a \\\"b\\\" \\\\ $${HOME} %%{if}\\n\\u0007\"\n  Y = \"100\"\n}\n";
        assert_eq!(text, expected);
        let shared = as_nomad_task(&one("1"), &ContainerAccess { host_ipc: true, ..container() });
        assert!(shared.contains("config {\n  ipc_mode = \"host\"\n  volumes = ["), "{shared}");
    }

    #[test]
    fn other_texts_are_exactly_these() {
        let docker = as_container_options(&one("1"), &container());
        let expected = "--gpus '\"device=GPU-514466a0-8e68-f857-9f73-e438010e48cb\"' \\\n\
                        --mount type=bind,source=/run/tenants/0123456789,target=/run/tenants/0123456789,readonly \\\n\
                        --user 7 \\\n--env X=1 \\\n--env Y=100\n";
        assert_eq!(docker, expected);
        let compose = as_compose(&one("1"), &container());
        let expected = "services:\n  client:\n    user: \"7\"\n    volumes:\n      \
                        - {type: bind, source: \"/run/tenants/0123456789\", target: \"/run/tenants/0123456789\", read_only: true}\n    \
                        deploy:\n      resources:\n        reservations:\n          devices:\n            \
                        - {driver: nvidia, device_ids: [\"GPU-514466a0-8e68-f857-9f73-e438010e48cb\"], capabilities: [gpu]}\n    \
                        environment:\n      X: \"1\"\n      Y: \"100\"\n";
        assert_eq!(compose, expected);
    }

    #[test]
    fn apptainer_binds_the_directory_beside_what_was_bound() {
        let text = as_apptainer(&one("it's"), &container()).expect("a plain path");
        let bound = |before: Option<(&str, &str)>| {
            let script = format!(
                "{text}printf '%s|' \"$APPTAINER_BIND\" \"$SINGULARITY_BIND\" \"$APPTAINERENV_X\" \"$SINGULARITYENV_Y\""
            );
            let mut shell = std::process::Command::new("sh");
            shell
                .args(["-euc", &script])
                .env_clear()
                .env("PATH", std::env::var_os("PATH").unwrap_or_default());
            shell.envs(before);
            let out = shell.output().expect("sh runs");
            String::from_utf8_lossy(&out.stdout).into_owned()
        };
        let bind = "/run/tenants/0123456789:/run/tenants/0123456789:ro";
        assert_eq!(bound(None), format!("{bind}|{bind}|it's|100|"));
        let mut earlier = bind.replace('9', "8");
        for name in ["APPTAINER_BIND", "SINGULARITY_BIND"] {
            let before = format!("/my data,{earlier},/scratch:/s:ro");
            let now = bound(Some((name, &before)));
            let kept = format!("/my data,/scratch:/s:ro,{bind}");
            assert_eq!(now, format!("{kept}|{kept}|it's|100|"), "{name}");
        }
        earlier.push(',');
        assert!(bound(Some(("APPTAINER_BIND", &earlier))).starts_with(&format!("{bind}|")), "no empty entry");
        let odd = ContainerAccess { mount: "/run/a,b/0123456789".into(), ..container() };
        assert_eq!(as_apptainer(&one("1"), &odd), None, "it would be two");
    }

    #[test]
    fn simulated_host_gives_its_world_and_no_gpu() {
        let variables = BTreeMap::from([(SIMULATED_WORLD.to_owned(), "/run/sim".to_owned())]);
        let docker = as_container_options(&variables, &container());
        assert!(docker.starts_with("--mount type=bind,source=/run/sim,target=/run/sim \\\n"), "{docker}");
        let compose: serde_json::Value =
            serde_saphyr::from_str(&as_compose(&variables, &container())).expect("YAML");
        let service = &compose["services"]["client"];
        assert_eq!(
            (&service["volumes"][1]["source"], service["deploy"].is_null()),
            (&"/run/sim".into(), true)
        );
        let nomad = as_nomad_task(&variables, &container());
        assert!(
            nomad.contains(":ro\", \"/run/sim:/run/sim\"]") && !nomad.contains("device block"),
            "{nomad}"
        );
        let apptainer = as_apptainer(&variables, &container()).expect("plain paths");
        assert!(apptainer.contains(":ro,/run/sim:/run/sim\n"), "{apptainer}");
        for text in [docker, compose.to_string(), nomad, apptainer] {
            assert!(!text.contains("GPU-"), "{text}");
        }
    }

    #[test]
    fn json_is_what_the_api_gives() {
        let read: serde_json::Value =
            serde_json::from_str(&as_json(&one("a\"b"), &["Y".to_owned()], None)).expect("JSON");
        assert_eq!(
            read,
            serde_json::json!({ "variables": { "X": "a\"b" }, "unset": ["Y"], "container": null })
        );
    }
}

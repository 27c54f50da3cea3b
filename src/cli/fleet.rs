//! Several hosts at once: their names, a connection to each, and the result of a request to each.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use futures_util::stream::{self, StreamExt as _};

use super::context::{SavedContexts, context_names};
use super::server::ServerArgs;
use super::wait::ProgressLine;
use crate::client::{Client, ClientError};
use crate::config::{self, Config};
use crate::domain::count::counted;
use crate::domain::saved_host::is_loopback;
use crate::host::trust::read_text;

/// The heading of these options in `--help`.
const SEVERAL: &str = "Several hosts";
/// The options that name one server.
const ONE: [&str; 3] = ["context", "url", "runtime_dir"];

/// Several hosts, instead of one server.
#[derive(Debug, Args)]
pub(super) struct FleetArgs {
    /// Hosts, separated by commas: names, addresses, URLs, or runtime directories of managers on this machine
    #[arg(long, visible_alias = "to", value_name = "HOST,HOST", value_delimiter = ',', help_heading = SEVERAL,
        conflicts_with_all = ONE)]
    hosts: Vec<HostAddress>,
    /// A file with one host a line; `#` begins a comment
    #[arg(long, value_name = "FILE", help_heading = SEVERAL, conflicts_with_all = ONE)]
    hosts_file: Option<PathBuf>,
    /// Saved contexts, separated by commas, or `all`
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', help_heading = SEVERAL, conflicts_with_all = ONE,
        add = ArgValueCandidates::new(context_names))]
    contexts: Vec<String>,
    /// Nodes of Slurm, as `gpu[01-16]`; `scontrol show hostnames` expands them
    #[arg(long, value_name = "NODES", help_heading = SEVERAL, conflicts_with_all = ONE)]
    slurm: Option<String>,
    /// Nodes of Kubernetes with these labels, as `nvidia.com/gpu.present=true`; `kubectl get nodes` lists them
    #[arg(long, value_name = "SELECTOR", help_heading = SEVERAL, conflicts_with_all = ONE)]
    kubernetes: Option<String>,
    /// The file with the token of a host, for example host-b=/etc/mps-manager/host-b.token; by default `MPS_MANAGER_TOKEN`
    #[arg(long = "token-file", value_name = "HOST=FILE", value_parser = token_file, help_heading = SEVERAL)]
    token_files: Vec<(String, PathBuf)>,
    /// The most hosts that are worked on at once
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = SEVERAL,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
}

/// A manager as named on the command line.
#[derive(Debug, Clone)]
pub(super) struct HostAddress(pub(super) String);

impl std::str::FromStr for HostAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("a host has no name".into()) } else { Ok(Self(text.to_owned())) }
    }
}

/// One of several hosts.
#[derive(Debug)]
pub(super) enum FleetHost {
    Address(HostAddress),
    Context(String),
}

impl FleetHost {
    fn name(&self) -> &str {
        match self {
            Self::Address(HostAddress(name)) | Self::Context(name) => name,
        }
    }
}

/// Results of a request to several hosts, each with the host's name, in the order of the hosts.
pub(super) type HostResults<T> = Vec<(String, Result<T, ClientError>)>;

impl FleetArgs {
    /// Returns true if hosts were named; otherwise the command is about one server.
    pub(super) fn is_given(&self) -> bool {
        !self.hosts.is_empty()
            || self.hosts_file.is_some()
            || !self.contexts.is_empty()
            || self.slurm.is_some()
            || self.kubernetes.is_some()
    }

    /// Creates a client for a host at this address, which may also be another than these hosts, such as the source of a layout.
    pub(super) fn client_of(
        &self,
        host: &HostAddress,
        ca_file: Option<&Path>,
    ) -> Result<Client, ClientError> {
        let HostAddress(name) = host;
        if name.starts_with('/') || name.starts_with('.') {
            let trusted = config::trusted_managers()?;
            return Client::over_socket(&config::socket_in(Path::new(name)), trusted);
        }
        // A token that goes over a network goes over TLS, unless the caller writes http://.
        let scheme = if ca_file.is_none() && is_loopback(name) { "http" } else { "https" };
        let url = if name.contains("://") {
            name.clone()
        } else if name.contains(':') {
            format!("{scheme}://{name}")
        } else {
            format!("{scheme}://{name}:{}", Config::default().listen.port())
        };
        let token = match self.token_files.iter().find(|(host, _)| host == name) {
            Some((_, file)) => {
                let text = read_text(file).map_err(|error| format!("{}: {error}", file.display()))?;
                Some(text.trim().to_owned())
            }
            None => std::env::var("MPS_MANAGER_TOKEN").ok(),
        };
        Client::over_url(&url, token, ca_file)
    }

    /// Sends a request to each host, given its name and client; at most as many at once as the caller allows.
    pub(super) async fn ask_each<T, A: Future<Output = Result<T, ClientError>>>(
        &self,
        hosts: &[FleetHost],
        server: &ServerArgs,
        doing: &str,
        ask: impl Fn(String, Client) -> A,
    ) -> HostResults<T> {
        let ca_file = server.ca_file();
        let (ca_file, ask, all) = (ca_file.as_deref(), &ask, hosts.len());
        let each = hosts.iter().map(|host| async move {
            let client = match host {
                FleetHost::Address(address) => self.client_of(address, ca_file),
                FleetHost::Context(name) => {
                    ServerArgs { context: Some(name.clone()), ..ServerArgs::default() }.client()
                }
            };
            let name = host.name().to_owned();
            let result = match client {
                Ok(client) => ask(name.clone(), client).await,
                Err(error) => Err(error),
            };
            (name, result)
        });
        let progress = ProgressLine::new(&format!("{doing}: 0 of {}", counted(all, "host")));
        let mut answers = stream::iter(each).buffered(self.parallel.into());
        let mut results = Vec::new();
        while let Some(answer) = answers.next().await {
            results.push(answer);
            progress.say(&format!("{doing}: {} of {}", results.len(), counted(all, "host")));
        }
        results
    }

    /// Finds the hosts, once per command: programs and files may name others a moment later.
    ///
    /// A token file is refused if its host is neither among them nor among those `beside` them.
    pub(super) fn hosts(&self, beside: &[&HostAddress]) -> Result<Vec<FleetHost>, ClientError> {
        let hosts = self.all()?;
        let is_known = |name: &str| {
            hosts.iter().any(|host| host.name() == name) || beside.iter().any(|host| host.0 == name)
        };
        match self.token_files.iter().find(|(host, _)| !is_known(host)) {
            Some((stray, _)) => Err(format!(
                "there is a --token-file for {stray}, which is none of the hosts: write the host as given there"
            ).into()),
            None => Ok(hosts),
        }
    }

    /// Finds the hosts, each once: those of `--hosts`, of the file, of Slurm, of Kubernetes, and the saved contexts.
    fn all(&self) -> Result<Vec<FleetHost>, String> {
        let mut hosts: Vec<FleetHost> = self.hosts.iter().cloned().map(FleetHost::Address).collect();
        let mut names = Vec::new();
        if let Some(file) = &self.hosts_file {
            let text = read_text(file).map_err(|error| format!("{}: {error}", file.display()))?;
            names.extend(listed(&text));
            if names.is_empty() {
                return Err(format!("{} names no host", file.display()));
            }
        }
        if let Some(nodes) = &self.slurm {
            names.extend(listed(&output_of("scontrol", &["show", "hostnames", nodes])?));
        }
        if let Some(labels) = &self.kubernetes {
            let nodes = listed(&output_of("kubectl", &["get", "nodes", "-o", "name", "-l", labels])?);
            if nodes.is_empty() {
                return Err(format!("kubectl lists no node with the labels {labels}"));
            }
            names.extend(nodes.into_iter().map(|node| node.trim_start_matches("node/").to_owned()));
        }
        hosts.extend(names.into_iter().map(|name| FleetHost::Address(HostAddress(name))));
        if !self.contexts.is_empty() {
            let saved = SavedContexts::read()?;
            if self.contexts == ["all"] {
                if saved.contexts.is_empty() {
                    return Err("no context is saved: `mps-manager context add` saves one".into());
                }
                hosts.extend(saved.contexts.into_keys().map(FleetHost::Context));
            } else {
                for name in &self.contexts {
                    saved.find(Some(name))?;
                }
                hosts.extend(self.contexts.iter().cloned().map(FleetHost::Context));
            }
        }
        let mut names = BTreeSet::new();
        hosts.retain(|host| names.insert((matches!(host, FleetHost::Context(_)), host.name().to_owned())));
        Ok(hosts)
    }
}

/// Returns the trimmed lines that are not empty, without comments.
fn listed(text: &str) -> Vec<String> {
    let host_of = |line: &str| {
        let line = line.split('#').next().unwrap_or_default().trim();
        (!line.is_empty()).then(|| line.to_owned())
    };
    text.lines().filter_map(host_of).collect()
}

/// Runs another program and returns its output; an error if it cannot be run or fails.
fn output_of(program: &str, arguments: &[&str]) -> Result<String, String> {
    let command = || format!("{program} {}", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("`{}` could not be run: {error}", command()))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{}` failed ({}): {}", command(), output.status, complaint.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn token_file(text: &str) -> Result<(String, PathBuf), String> {
    let (host, file) = text.rsplit_once('=').ok_or("give HOST=FILE")?;
    Ok((host.to_owned(), file.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(hosts: &[&str]) -> FleetArgs {
        FleetArgs {
            hosts: hosts.iter().map(|host| HostAddress((*host).to_owned())).collect(),
            hosts_file: None,
            contexts: Vec::new(),
            slurm: None,
            kubernetes: None,
            token_files: Vec::new(),
            parallel: 2,
        }
    }

    #[test]
    fn each_host_is_asked_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("hosts");
        std::fs::write(&file, "# rack 1\n\n gpu01\ngpu02  # spare\n").expect("written");
        let all = FleetArgs { hosts_file: Some(file), ..fleet(&["gpu02", "gpu03"]) }.all().expect("hosts");
        let names: Vec<&str> = all.iter().map(FleetHost::name).collect();
        assert_eq!(names, ["gpu02", "gpu03", "gpu01"]);
        assert!(!fleet(&[]).is_given() && fleet(&["gpu01"]).is_given());
    }

    #[test]
    fn program_that_fails_says_what_it_was_asked() {
        let error = output_of("sh", &["-c", "echo no such node >&2; exit 3"]).expect_err("it fails");
        assert!(error.contains("exit status: 3") && error.ends_with("no such node"), "{error}");
        let error = output_of("no-such-program", &["show"]).expect_err("there is none");
        assert!(error.starts_with("`no-such-program show` could not be run"), "{error}");
    }

    #[tokio::test]
    async fn results_are_in_the_order_of_the_hosts() {
        let fleet = fleet(&["http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"]);
        let ask = |_, client: Client| async move { client.get::<serde_json::Value>("/healthz").await };
        let hosts = fleet.hosts(&[]).expect("hosts");
        let results = fleet.ask_each(&hosts, &ServerArgs::default(), "asking", ask).await;
        let names: Vec<&str> = results.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"]);
        assert!(results.iter().all(|(_, result)| matches!(result, Err(ClientError::Unreachable { .. }))));
        let stray = FleetArgs { token_files: vec![("other".into(), "t".into())], ..fleet };
        let error = stray.hosts(&[]).expect_err("no such host").to_string();
        assert!(error.starts_with("there is a --token-file for other"), "{error}");
    }
}

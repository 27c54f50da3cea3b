//! Calls to the server.

use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;

use clap::Args;

use super::output::{DIFFERS, complain};
use crate::client::{Client, ClientError};
use crate::config;

/// The status of a conflict with the state of the host.
const CONFLICT: u16 = 409;

/// How to reach the server.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// The server's URL; by default the unix socket [env: `MPS_MANAGER_URL`]
    #[arg(long)]
    pub(super) url: Option<String>,
    /// PEM file with the certificates to verify an https:// server with, instead of the system's [env: `MPS_MANAGER_CA_FILE`]
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The server's runtime directory, where its unix socket is [env: `MPS_MANAGER_RUNTIME_DIR`]
    #[arg(long)]
    pub(super) runtime_dir: Option<PathBuf>,
}

/// The variable for an option; an empty one counts as unset.
///
/// Not read by clap, whose usage in error messages shows options with a variable as if they were required.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The directory of the socket.
pub(super) fn runtime_dir(given: Option<PathBuf>) -> PathBuf {
    let of_environment = || variable("MPS_MANAGER_RUNTIME_DIR").map(PathBuf::from);
    given.or_else(of_environment).unwrap_or_else(config::default_runtime_dir)
}

impl ServerArgs {
    /// The certificates to verify a server with.
    pub(super) fn ca_file(&self) -> Option<PathBuf> {
        self.ca_file.clone().or_else(|| variable("MPS_MANAGER_CA_FILE").map(PathBuf::from))
    }

    pub(super) fn client(&self) -> Result<Client, ClientError> {
        let of_environment = || variable("MPS_MANAGER_URL").map(|value| value.to_string_lossy().into_owned());
        match self.url.clone().or_else(of_environment) {
            Some(url) => {
                let token = std::env::var("MPS_MANAGER_TOKEN").ok();
                Client::over_url(&url, token, self.ca_file().as_deref())
            }
            None => {
                let directory = runtime_dir(self.runtime_dir.clone());
                let trusted = config::trusted_managers().map_err(ClientError::Address)?;
                Client::over_socket(&config::socket_in(&directory), trusted)
            }
        }
    }
}

/// Runs a request to the server to completion.
pub(super) fn ask(question: impl Future<Output = Result<ExitCode, ClientError>>) -> Result<ExitCode, String> {
    // One type for all verbs: each would get a copy of the runtime's loop.
    let question: Pin<Box<dyn Future<Output = _>>> = Box::pin(question);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(question).or_else(|error| match error {
        // A conflict is not the caller's error, and the exit code is the same for every verb.
        ClientError::Refused(problem) if problem.status == CONFLICT => {
            complain(&ClientError::Refused(problem).to_string());
            Ok(ExitCode::from(DIFFERS))
        }
        error => Err(error.to_string()),
    })
}

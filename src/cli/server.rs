//! Connection of a command to the server, and the exit code for its outcome.

use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;

use super::context::{SavedContexts, context_names};
use super::output::{CommandResult, DIFFERS, ERROR, OutputArgs, OutputFormat, complain};
use crate::client::{Client, ClientError};
use crate::config;

/// The status of a conflict with the state of the host.
const CONFLICT: u16 = 409;

/// The heading of these options in `--help`, which stands last.
const CONNECTION: &str = "Connection";

/// Options that select the server.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ServerArgs {
    /// A saved context (`mps-manager context add`) [env: `MPS_MANAGER_CONTEXT`]
    #[arg(long, value_name = "NAME", help_heading = CONNECTION, conflicts_with_all = ["url", "runtime_dir"],
        add = ArgValueCandidates::new(context_names))]
    pub(super) context: Option<String>,
    /// The server's URL, used with the token in `MPS_MANAGER_TOKEN` [env: `MPS_MANAGER_URL`]
    #[arg(long, help_heading = CONNECTION)]
    pub(super) url: Option<String>,
    /// PEM file with the certificates to trust for an https:// URL, instead of the system's [env: `MPS_MANAGER_CA_FILE`]
    #[arg(long, value_name = "FILE", help_heading = CONNECTION)]
    pub(super) ca_file: Option<PathBuf>,
    /// The server's runtime directory, where its unix socket is; this is the default [env: `MPS_MANAGER_RUNTIME_DIR`]
    #[arg(long, value_name = "DIR", help_heading = CONNECTION)]
    pub(super) runtime_dir: Option<PathBuf>,
}

/// Options of nearly every command.
#[derive(Debug, Clone, Args)]
pub(super) struct CallArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

impl CallArgs {
    /// The client of the server.
    pub(super) fn client(&self) -> Result<Client, ClientError> {
        self.server.client()
    }

    /// Returns the format in which the result is printed.
    pub(super) fn format(&self) -> OutputFormat {
        self.output.format
    }
}

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CallTarget {
    Url { url: String, token: Option<String>, ca_file: Option<PathBuf> },
    Socket(PathBuf),
}

/// Reads the environment variable of an option; an empty one counts as unset.
///
/// It is not read by clap, whose usage in error messages shows options with a variable as if they were required.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Reads the environment variable of an option as text; bytes that are not UTF-8 are replaced.
fn text_variable(name: &str) -> Option<String> {
    variable(name).map(|value| value.to_string_lossy().into_owned())
}

/// Returns the runtime directory: the given one, or that of the environment, or the default.
pub(super) fn runtime_dir(given: Option<PathBuf>) -> PathBuf {
    let from_environment = || variable("MPS_MANAGER_RUNTIME_DIR").map(PathBuf::from);
    given.or_else(from_environment).unwrap_or_else(config::default_runtime_dir)
}

impl ServerArgs {
    /// Returns the file of certificates to verify a server with, from the option or the environment.
    pub(super) fn ca_file(&self) -> Option<PathBuf> {
        self.ca_file.clone().or_else(|| variable("MPS_MANAGER_CA_FILE").map(PathBuf::from))
    }

    pub(super) fn client(&self) -> Result<Client, ClientError> {
        match self.address()? {
            CallTarget::Url { url, token, ca_file } => Client::over_url(&url, token, ca_file.as_deref()),
            CallTarget::Socket(directory) => {
                let trusted = config::trusted_managers()?;
                Client::over_socket(&config::socket_in(&directory), trusted)
            }
        }
    }

    /// Finds the server's address in the options, then the environment, then the context in use; by default it is the socket of this host.
    fn address(&self) -> Result<CallTarget, String> {
        if let Some(name) = &self.context {
            return self.of_context(Some(name)).map(|target| target.expect("a named context or an error"));
        }
        if let Some(url) = &self.url {
            return Ok(self.of_url(url.clone()));
        }
        if let Some(directory) = &self.runtime_dir {
            return Ok(CallTarget::Socket(directory.clone()));
        }
        if let Some(name) = text_variable("MPS_MANAGER_CONTEXT") {
            return self.of_context(Some(&name)).map(|target| target.expect("a named context or an error"));
        }
        if let Some(url) = text_variable("MPS_MANAGER_URL") {
            return Ok(self.of_url(url));
        }
        if variable("MPS_MANAGER_RUNTIME_DIR").is_none()
            && let Some(address) = self.of_context(None)?
        {
            return Ok(address);
        }
        Ok(CallTarget::Socket(runtime_dir(None)))
    }

    fn of_url(&self, url: String) -> CallTarget {
        CallTarget::Url { url, token: text_variable("MPS_MANAGER_TOKEN"), ca_file: self.ca_file() }
    }

    /// Returns the address of the named context, or without a name of the one in use; `None` if none is in use.
    fn of_context(&self, name: Option<&str>) -> Result<Option<CallTarget>, String> {
        let saved = SavedContexts::read()?;
        let Some(context) = saved.find(name)? else { return Ok(None) };
        Ok(Some(match (&context.url, &context.runtime_dir) {
            (Some(url), _) => CallTarget::Url {
                url: url.clone(),
                token: text_variable("MPS_MANAGER_TOKEN")
                    .map_or_else(|| context.token(), |token| Ok(Some(token)))?,
                ca_file: self.ca_file().or_else(|| context.ca_file.clone()),
            },
            (None, Some(directory)) => CallTarget::Socket(directory.clone()),
            (None, None) => CallTarget::Socket(config::default_runtime_dir()),
        }))
    }
}

/// Runs work to completion, on this thread alone.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work))
}

/// Runs a request to the server to completion.
pub(super) fn ask(question: impl Future<Output = Result<ExitCode, ClientError>>) -> CommandResult {
    // Boxed, so that all commands share one copy of the runtime's loop.
    let question: Pin<Box<dyn Future<Output = _>>> = Box::pin(question);
    block_on(question)?.or_else(|error| match exit_code(&error) {
        ERROR => Err(error.into()),
        code => {
            complain(&error.to_string());
            Ok(ExitCode::from(code))
        }
    })
}

/// Returns the exit code of a failed call. It is the same for every command: a conflict is not the caller's error.
pub(super) fn exit_code(error: &ClientError) -> u8 {
    match error {
        ClientError::Refused(problem) if problem.status == CONFLICT => DIFFERS,
        ClientError::Declined => DIFFERS,
        _ => ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declined_question_is_no_error() {
        assert_eq!(exit_code(&ClientError::Declined), DIFFERS);
        assert_eq!(exit_code(&ClientError::Caller("no address".into())), ERROR);
    }
}

//! `mps-manager session`: browsers that are logged in.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::fetch::filtered;
use super::nouns::{SESSION, TOKEN};
use super::server::CallArgs;
use super::values::user;
use crate::client::ClientError;

/// Commands on sessions.
#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// List the sessions of browsers, the last used first
    #[command(after_help = "Examples:
  mps-manager session list")]
    List(CallArgs),
    /// Log browsers out: your own, or those of a token or a user
    #[command(after_help = "Examples:
  mps-manager session end
  mps-manager session end --token 0123456789abcdef
  mps-manager session end --uid 1000")]
    End {
        /// The sessions of the token with this ID, or of the admin token with `admin`
        #[arg(long, value_name = "ID", conflicts_with = "uid", add = TOKEN.complete())]
        token: Option<String>,
        /// The sessions of this user of the host
        #[arg(long, value_parser = user)]
        uid: Option<u32>,
        #[command(flatten)]
        call: CallArgs,
    },
}

pub(super) async fn run(command: SessionCommand) -> Result<ExitCode, ClientError> {
    let (token, uid, call) = match command {
        SessionCommand::List(call) => return SESSION.list(&call, &[], 0).await,
        SessionCommand::End { token, uid, call } => (token, uid, call),
    };
    let sentence = match (&token, uid) {
        (Some(token), _) => format!("all sessions of token {token} have ended"),
        (None, Some(uid)) => format!("all sessions of uid {uid} have ended"),
        (None, None) => "all your sessions have ended".to_owned(),
    };
    let filters = [("token", token), ("uid", uid.map(|uid| uid.to_string()))];
    call.client()?.delete(&filtered(SESSION.path(), &filters)).await?;
    call.format().announce(&sentence, "sessions", &json!({ "ended": true }));
    Ok(ExitCode::SUCCESS)
}

//! `mps-manager session`: browsers that are logged in.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::fetch::filtered;
use super::server::{CallArgs, ask};

/// Commands on sessions.
#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// Log browsers out: your own, or those of a token or a user
    #[command(after_help = "Examples:
  mps-manager session end
  mps-manager session end --token 0123456789abcdef
  mps-manager session end --uid 1000")]
    End {
        /// The sessions of the token with this ID, or of the admin token with `admin`
        #[arg(long, value_name = "ID", conflicts_with = "uid")]
        token: Option<String>,
        /// The sessions of this user of the host
        #[arg(long)]
        uid: Option<u32>,
        #[command(flatten)]
        call: CallArgs,
    },
}

pub(super) fn run(command: SessionCommand) -> Result<ExitCode, String> {
    ask(async move {
        let SessionCommand::End { token, uid, call } = command;
        let of = match (&token, uid) {
            (Some(token), _) => format!("of token {token}"),
            (None, Some(uid)) => format!("of uid {uid}"),
            (None, None) => "of yours".to_owned(),
        };
        let filters = [("token", token), ("uid", uid.map(|uid| uid.to_string()))];
        call.client()?.delete(&filtered("/api/v1/sessions", &filters)).await?;
        call.format().announce(
            &format!("all sessions {of} have ended"),
            "sessions",
            &json!({ "ended": true }),
        );
        Ok(ExitCode::SUCCESS)
    })
}

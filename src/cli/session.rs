//! `mps-manager session`: browsers that are logged in.

use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::engine::ArgValueCandidates;
use serde_json::json;

use super::completion;
use super::fetch::filtered;
use super::output::{ListColumn, ListLayout, age};
use super::server::{CallArgs, ask};
use super::values::user;
use crate::domain::rfc3339;
use crate::http::api::List;
use crate::service::access::sessions::SessionView;

/// Commands on sessions.
#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// List the sessions of browsers, the last used first
    #[command(after_help = "Examples:
  mps-manager session list")]
    List {
        #[command(flatten)]
        call: CallArgs,
    },
    /// Log browsers out: your own, or those of a token or a user
    #[command(after_help = "Examples:
  mps-manager session end
  mps-manager session end --token 0123456789abcdef
  mps-manager session end --uid 1000")]
    End {
        /// The sessions of the token with this ID, or of the admin token with `admin`
        #[arg(long, value_name = "ID", conflicts_with = "uid", add = ArgValueCandidates::new(completion::tokens))]
        token: Option<String>,
        /// The sessions of this user of the host
        #[arg(long, value_parser = user)]
        uid: Option<u32>,
        #[command(flatten)]
        call: CallArgs,
    },
}

const SESSIONS: &str = "/api/v1/sessions";

const LAYOUT: ListLayout<SessionView> = ListLayout {
    noun: "sessions",
    name: |session| session.subject.clone(),
    columns: &[
        ListColumn::cut("USER", |session| session.subject.as_str().into()),
        ListColumn::new("GRANT", |session| session.grant.to_string().into()),
        ListColumn::ranked(3, ListColumn::new("AGE", |session| age(session.created_at).into())),
        ListColumn::ranked(
            1,
            ListColumn::new("LAST USED", |session| format!("{} ago", age(session.last_used_at)).into()),
        ),
        ListColumn::ranked(
            2,
            ListColumn::new("ENDS UNUSED", |session| rfc3339::format(session.ends_at).into()),
        ),
    ],
};

pub(super) fn run(command: SessionCommand) -> Result<ExitCode, String> {
    ask(async move {
        let (token, uid, call) = match command {
            SessionCommand::End { token, uid, call } => (token, uid, call),
            SessionCommand::List { call } => {
                let list: List<SessionView> = call.client()?.get(SESSIONS).await?;
                LAYOUT.print(&list.items, call.format());
                return Ok(ExitCode::SUCCESS);
            }
        };
        let of = match (&token, uid) {
            (Some(token), _) => format!(" of token {token}"),
            (None, Some(uid)) => format!(" of uid {uid}"),
            (None, None) => String::new(),
        };
        let whose = if of.is_empty() { "your " } else { "" };
        let filters = [("token", token), ("uid", uid.map(|uid| uid.to_string()))];
        call.client()?.delete(&filtered(SESSIONS, &filters)).await?;
        call.format().announce(
            &format!("all {whose}sessions{of} have ended"),
            "sessions",
            &json!({ "ended": true }),
        );
        Ok(ExitCode::SUCCESS)
    })
}

//! `mps-manager token`.

use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use serde_json::json;

use super::completion;
use super::fetch::all;
use super::output::{ListColumn, ListLayout, OutputFormat, TableCell, age, line, remark};
use super::server::{CallArgs, ask};
use crate::client::{Client, ClientError};
use crate::domain::access::Grant;
use crate::domain::duration::parse_seconds;
use crate::domain::rfc3339;
use crate::domain::token::{Secret, TokenId};
use crate::domain::{TokenName, token::TokenState};
use crate::service::access::tokens::{NewToken, TokenRequest, TokenView};

const TOKENS: &str = "/api/v1/tokens";

/// Commands on tokens.
#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Create a token and print it: it is shown only this once
    #[command(after_help = "Examples:
  mps-manager token create ci --grant operator --expires-in 30d
  token=$(mps-manager token create jobs --grant tenant:web)")]
    Create {
        /// Name of the token, which says its purpose
        name: TokenName,
        /// Grant: viewer, operator, admin, or tenant:NAME
        #[arg(long, add = ArgValueCandidates::new(grants))]
        grant: Grant,
        /// When it expires, for example 24h or 7d; by default it is valid until revoked
        #[arg(long, value_name = "DURATION", value_parser = parse_seconds::<u64>)]
        expires_in: Option<u64>,
        #[command(flatten)]
        call: CallArgs,
    },
    /// List tokens
    #[command(after_help = "Examples:
  mps-manager token list")]
    List {
        #[command(flatten)]
        call: CallArgs,
    },
    /// Revoke a token
    #[command(after_help = "Examples:
  mps-manager token revoke ci
  mps-manager token revoke 0123456789abcdef")]
    Revoke {
        /// The token, by ID, or by name where one active token has it
        #[arg(add = ArgValueCandidates::new(completion::tokens))]
        token: String,
        #[command(flatten)]
        call: CallArgs,
    },
}

/// Returns the possible grants of a token, for completions.
fn grants() -> Vec<CompletionCandidate> {
    let of_tenants = completion::tenants().into_iter().map(|tenant| tenant.add_prefix("tenant:"));
    ["viewer", "operator", "admin"].into_iter().map(CompletionCandidate::new).chain(of_tenants).collect()
}

const LAYOUT: ListLayout<TokenView> = ListLayout {
    noun: "tokens",
    name: |token| token.id.to_string(),
    columns: &[
        ListColumn::new("TOKEN", |token| token.id.to_string().into()),
        ListColumn::new("NAME", |token| token.name.as_str().into()),
        ListColumn::ranked(1, ListColumn::new("GRANT", |token| token.grant.to_string().into())),
        ListColumn::new("STATE", |token| {
            TableCell::state(match token.state {
                TokenState::Active => "active",
                TokenState::Expired => "expired",
                TokenState::Revoked => "revoked",
            })
        }),
        ListColumn::ranked(
            2,
            ListColumn::new("EXPIRES", |token| TableCell::optional(token.expires_at.map(rfc3339::format))),
        ),
        ListColumn::ranked(
            3,
            ListColumn::new("LAST USED", |token| {
                TableCell::optional(token.last_used_at.map(|at| format!("{} ago", age(at))))
            }),
        ),
        ListColumn::ranked(5, ListColumn::new("AGE", |token| age(token.created_at).into())),
        ListColumn::ranked(4, ListColumn::cut("CREATED BY", |token| token.created_by.as_str().into())),
    ],
};

pub(super) fn run(command: TokenCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            TokenCommand::Create { name, grant, expires_in, call } => {
                create(&call, &TokenRequest { name, grant, expires_in_s: expires_in }).await?;
            }
            TokenCommand::List { call } => LAYOUT.print(&all(&call.client()?, TOKENS).await?, call.format()),
            TokenCommand::Revoke { token, call } => revoke(&call, &token).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

async fn create(call: &CallArgs, request: &TokenRequest) -> Result<(), ClientError> {
    let made: NewToken = call.client()?.post(TOKENS, request).await?;
    match call.format() {
        OutputFormat::Name => line!("{}", made.token.id),
        OutputFormat::Json | OutputFormat::Yaml => drop(call.format().print_value(&made)),
        // The only text on standard output, for scripts.
        OutputFormat::Table | OutputFormat::Wide => {
            remark(&format!(
                "token {} ({}) grants {}; its text is shown only this once:",
                made.token.id, made.token.name, made.token.grant
            ));
            line!("{}", made.secret.as_ref().map(Secret::reveal).unwrap_or_default());
        }
    }
    Ok(())
}

async fn revoke(call: &CallArgs, token: &str) -> Result<(), ClientError> {
    let client = call.client()?;
    let id = match (TokenId::parse(token), TokenName::parse(token)) {
        (Ok(id), _) => id,
        (Err(_), Ok(name)) => active_token(&client, &name).await?,
        (Err(error), Err(_)) => return Err(error.to_string().into()),
    };
    client.delete(&format!("{TOKENS}/{id}")).await?;
    let answer = json!({ "id": id, "revoked": true });
    call.format().announce(&format!("token {id} was revoked"), id.as_str(), &answer);
    Ok(())
}

/// Finds the only active token of a name.
async fn active_token(client: &Client, name: &TokenName) -> Result<TokenId, ClientError> {
    let mut tokens: Vec<TokenView> = all(client, TOKENS).await?;
    tokens.retain(|token| token.state == TokenState::Active && token.name == *name);
    match tokens.as_slice() {
        [one] => Ok(one.id.clone()),
        [] => Err(format!(
            "there is no active token {name}: `mps-manager token list` shows those that there are"
        )
        .into()),
        several => {
            let ids: Vec<&str> = several.iter().map(|token| token.id.as_str()).collect();
            Err(format!("several active tokens are named {name}: give one of {}", ids.join(", ")).into())
        }
    }
}

//! `mps-manager token`.

use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use serde_json::json;

use super::fetch::only_one;
use super::nouns::{TENANT, TOKEN};
use super::output::{OutputFormat, line, remark};
use super::server::CallArgs;
use crate::client::{Client, ClientError};
use crate::domain::access::Grant;
use crate::domain::duration::parse_seconds;
use crate::domain::token::{Secret, TokenId};
use crate::domain::{TokenName, token::TokenState};
use crate::service::access::tokens::{NewToken, TokenRequest};

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
    List(CallArgs),
    /// Revoke a token
    #[command(after_help = "Examples:
  mps-manager token revoke ci
  mps-manager token revoke 0123456789abcdef")]
    Revoke {
        /// The token, by ID, or by name where one active token has it
        #[arg(add = TOKEN.complete())]
        token: String,
        #[command(flatten)]
        call: CallArgs,
    },
}

/// Returns the possible grants of a token, for completions.
fn grants() -> Vec<CompletionCandidate> {
    let tenant_grants = TENANT.candidates().into_iter().map(|tenant| tenant.add_prefix("tenant:"));
    ["viewer", "operator", "admin"].into_iter().map(CompletionCandidate::new).chain(tenant_grants).collect()
}

pub(super) async fn run(command: TokenCommand) -> Result<ExitCode, ClientError> {
    match command {
        TokenCommand::Create { name, grant, expires_in, call } => {
            create(&call, &TokenRequest { name, grant, expires_in_s: expires_in }).await
        }
        TokenCommand::List(call) => TOKEN.list(&call, &[], 0).await,
        TokenCommand::Revoke { token, call } => revoke(&call, &token).await,
    }
}

async fn create(call: &CallArgs, request: &TokenRequest) -> Result<ExitCode, ClientError> {
    let made: NewToken = call.client()?.post(TOKEN.path(), request).await?;
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
    Ok(ExitCode::SUCCESS)
}

async fn revoke(call: &CallArgs, token: &str) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    let id = match (TokenId::parse(token), TokenName::parse(token)) {
        (Ok(id), _) => id,
        (Err(_), Ok(name)) => active_token(&client, &name).await?,
        (Err(error), Err(_)) => return Err(error.to_string().into()),
    };
    client.delete(&TOKEN.path_of(&id)).await?;
    let answer = json!({ "id": id, "revoked": true });
    call.format().announce(&format!("token {id} was revoked"), id.as_str(), &answer);
    Ok(ExitCode::SUCCESS)
}

/// Finds the only active token of a name.
async fn active_token(client: &Client, name: &TokenName) -> Result<TokenId, ClientError> {
    let mut tokens = TOKEN.read(client, &[], 0).await?;
    tokens.retain(|token| token.state == TokenState::Active && token.name == *name);
    let ids: Vec<TokenId> = tokens.into_iter().map(|token| token.id).collect();
    let none =
        format!("there is no active token {name}: `mps-manager token list` shows those that there are");
    let several = format!("several active tokens are named {name}: give one of {{}}");
    only_one(&ids, &none, &several).cloned()
}

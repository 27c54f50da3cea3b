//! `mps-manager token …` and `whoami`.

use std::process::ExitCode;

use clap::Subcommand;
use jiff::Timestamp;

use super::{OutputFormat, ServerArgs, ask, line, show};
use crate::client::{Client, ClientError};
use crate::domain::TokenName;
use crate::domain::access::Grant;
use crate::domain::duration::parse_seconds;
use crate::domain::token::{Secret, TokenId, TokenState};
use crate::http::api::sessions::LoginUrl;
use crate::service::access::tokens::{NewToken, TokenRequest, TokenView};
use crate::service::access::whoami::WhoamiView;

/// Commands on tokens.
#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Create a token and print it: it is shown only this once
    Create {
        #[command(flatten)]
        server: ServerArgs,
        /// What it is for
        name: TokenName,
        /// What it grants: viewer, operator, admin, or tenant:NAME
        #[arg(long)]
        grant: Grant,
        /// When it expires: seconds, or a time as 24h or 7d; by default it is valid until revoked
        #[arg(long, value_name = "DURATION", value_parser = parse_seconds::<u64>)]
        expires_in: Option<u64>,
        /// As the token alone, or as JSON with its metadata
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
        output: OutputFormat,
    },
    /// List the tokens
    List {
        #[command(flatten)]
        server: ServerArgs,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
        output: OutputFormat,
    },
    /// Revoke a token
    Revoke {
        #[command(flatten)]
        server: ServerArgs,
        /// The token's ID, as `list` prints it
        id: TokenId,
    },
}

pub(super) fn run(command: TokenCommand) -> Result<ExitCode, String> {
    match command {
        TokenCommand::Create { server, name, grant, expires_in, output } => {
            let request = TokenRequest { name, grant, expires_in_s: expires_in };
            ask(async move { create(&server.client()?, &request, output).await })
        }
        TokenCommand::List { server, output } => ask(async move { list(&server.client()?, output).await }),
        TokenCommand::Revoke { server, id } => ask(async move {
            server.client()?.delete(&format!("/api/v1/tokens/{id}")).await?;
            Ok(ExitCode::SUCCESS)
        }),
    }
}

async fn create(
    client: &Client,
    request: &TokenRequest,
    output: OutputFormat,
) -> Result<ExitCode, ClientError> {
    let made: NewToken = client.post("/api/v1/tokens", request).await?;
    match output {
        OutputFormat::Json => line!("{:#}", serde_json::json!(made)),
        // The only text on standard output, for scripts.
        OutputFormat::Table => {
            eprintln!(
                "token {} ({}) grants {}; its text is shown only this once:",
                made.token.id, made.token.name, made.token.grant
            );
            line!("{}", made.secret.as_ref().map(Secret::reveal).unwrap_or_default());
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, output: OutputFormat) -> Result<ExitCode, ClientError> {
    let tokens: Vec<TokenView> = show::all(client, "/api/v1/tokens").await?;
    if matches!(output, OutputFormat::Json) {
        line!("{:#}", serde_json::json!(tokens));
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows =
        vec![["ID", "NAME", "GRANT", "STATE", "CREATED BY", "EXPIRES", "LAST USED"].map(str::to_owned)];
    for token in tokens {
        let state = match token.state {
            TokenState::Active => "active",
            TokenState::Expired => "expired",
            TokenState::Revoked => "revoked",
        };
        rows.push([
            token.id.to_string(),
            token.name.to_string(),
            token.grant.to_string(),
            state.to_owned(),
            token.created_by,
            time(token.expires_at),
            time(token.last_used_at),
        ]);
    }
    show::table(&rows);
    Ok(ExitCode::SUCCESS)
}

fn time(ms: Option<i64>) -> String {
    let time = ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| "-".to_owned(), |time| format!("{time:.0}"))
}

/// A link that logs in once.
pub(super) async fn login_url(client: &Client) -> Result<ExitCode, ClientError> {
    let made: LoginUrl = client.post("/api/v1/login-urls", &serde_json::json!({})).await?;
    line!("{}", made.url.reveal());
    Ok(ExitCode::SUCCESS)
}

/// Who the server takes the caller for.
pub(super) async fn whoami(client: &Client, output: OutputFormat) -> Result<ExitCode, ClientError> {
    let who: WhoamiView = client.get("/api/v1/whoami").await?;
    match output {
        OutputFormat::Json => line!("{:#}", serde_json::json!(who)),
        OutputFormat::Table => line!("{}: {} (from {})", who.subject, who.grant, who.origin),
    }
    Ok(ExitCode::SUCCESS)
}

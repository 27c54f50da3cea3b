//! `whoami` and `login-url`.

use std::process::ExitCode;

use serde_json::json;

use super::output::line;
use super::server::CallArgs;
use crate::client::ClientError;
use crate::http::api::sessions::LoginUrl;
use crate::service::access::whoami::WhoamiView;

/// A link that logs in once.
pub(super) async fn login_url(call: CallArgs) -> Result<ExitCode, ClientError> {
    let made: LoginUrl = call.client()?.post("/api/v1/login-urls", &json!({})).await?;
    if !call.format().print_value(&made) {
        line!("{}", made.url.reveal());
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the identity of the caller as the server sees it, with its grant.
pub(super) async fn whoami(call: CallArgs) -> Result<ExitCode, ClientError> {
    let who: WhoamiView = call.client()?.get("/api/v1/whoami").await?;
    let sentence = format!("{}: {} (from {})", who.subject, who.grant, who.origin);
    call.format().announce(&sentence, &who.subject, &who);
    Ok(ExitCode::SUCCESS)
}

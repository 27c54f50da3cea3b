//! Questions before work of others ends.

use std::io::{IsTerminal as _, Write as _};

use clap::Args;

use crate::client::{Client, ClientError};
use crate::domain::count::counted;
use crate::domain::printable::printable_lines;
use crate::service::tenants::clients::ClientView;

/// Option that answers questions in advance.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct ConfirmArgs {
    /// Do not ask; without a terminal there is no question
    #[arg(short = 'y', long)]
    yes: bool,
}

impl ConfirmArgs {
    /// Value for a command that never asks.
    pub(super) const NEVER: Self = Self { yes: true };

    /// Returns true if a question would be asked: there is a terminal, and no `--yes`.
    pub(super) fn asks(self) -> bool {
        !self.yes && std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
    }

    /// Asks on a terminal; an error if the answer is no.
    pub(super) fn ask(self, question: &str) -> Result<(), ClientError> {
        if !self.asks() {
            return Ok(());
        }
        if is_confirmed(question) { Ok(()) } else { Err(ClientError::Declined) }
    }

    /// Asks if clients of a daemon would lose their work.
    pub(super) async fn ask_for_clients(
        self,
        client: &Client,
        daemon: &str,
        question: &str,
    ) -> Result<(), ClientError> {
        if self.yes || !std::io::stdin().is_terminal() {
            return Ok(());
        }
        let clients: Vec<ClientView> =
            super::fetch::all(client, &format!("/api/v1/clients?fresh=true&daemon={daemon}")).await?;
        if clients.is_empty() {
            return Ok(());
        }
        self.ask(&format!("{} {question}?", lost_work(clients.len(), &owners(&clients))))
    }
}

/// Asks on the terminal, and returns true if the answer is yes.
pub(super) fn is_confirmed(question: &str) -> bool {
    eprint!("{} [y/N] ", printable_lines(question));
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Returns a sentence that says how many clients of these owners would lose their work.
fn lost_work(clients: usize, owners: &str) -> String {
    let whose = if clients == 1 { "its" } else { "their" };
    format!("{} of {owners} would lose {whose} work.", counted(clients, "client"))
}

/// The tenants of clients, as `demo and batch`.
pub(super) fn owners(clients: &[ClientView]) -> String {
    let mut names: Vec<String> = clients
        .iter()
        .map(|client| client.tenant.as_ref().map_or_else(|| "no tenant".to_owned(), ToString::to_string))
        .collect();
    names.sort();
    names.dedup();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_work_agrees_in_number() {
        assert_eq!(lost_work(1, "demo"), "1 client of demo would lose its work.");
        assert_eq!(lost_work(2, "demo and web"), "2 clients of demo and web would lose their work.");
    }
}

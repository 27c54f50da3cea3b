//! `mps-manager layout`: partition layouts as files, planned, applied, compared, and replayed on other hosts.

use std::process::ExitCode;

use clap::Subcommand;

use super::line;
use crate::http::api::layout_schema::layout_document_schema;

#[derive(Debug, Subcommand)]
pub(super) enum LayoutCommand {
    /// Print the JSON Schema of layout documents
    Schema,
}

pub(super) fn run(command: LayoutCommand) -> Result<ExitCode, String> {
    match command {
        LayoutCommand::Schema => {
            line!("{:#}", layout_document_schema());
            Ok(ExitCode::SUCCESS)
        }
    }
}

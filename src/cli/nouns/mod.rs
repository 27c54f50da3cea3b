//! Nouns of the command line: where the API has them, and their fields. Lists, details and completions follow from these.
//!
//! The commands of a noun are in its own file or folder beside this one, where what does not follow is written by hand.

mod audit;
mod client;
mod daemon;
mod foreign;
mod gpu;
mod incident;
mod layout;
mod lease;
mod operation;
mod replay;
mod session;
mod tenant;
mod token;

use std::fmt::Display;
use std::process::ExitCode;

use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(super) use self::audit::AUDIT;
pub(super) use self::client::{CLIENT, tenant_of};
pub(super) use self::daemon::DAEMON;
pub(super) use self::foreign::FOREIGN;
pub(super) use self::gpu::GPU;
pub(super) use self::incident::INCIDENT;
pub(super) use self::layout::LAYOUT;
pub(super) use self::lease::LEASES;
pub(super) use self::operation::OPERATION;
pub(super) use self::replay::REPLAY;
pub(super) use self::session::SESSION;
pub(super) use self::tenant::TENANT;
pub(super) use self::token::TOKEN;
use super::completion::offered;
use super::fetch::{GpuNames, all, encoded, filtered, newest, whole};
use super::output::{DetailsTable, ListField, ListLayout, OutputFormat, word};
use super::server::CallArgs;
use super::short_id::ShortId;
use crate::client::{Client, ClientError};
use crate::domain::condition::Condition;
use crate::service::incidents::IncidentView;

// Paths of nouns by which those of others are found.
const DAEMONS: &str = "/api/v1/daemons";
const INCIDENTS: &str = "/api/v1/incidents";
const TENANTS: &str = "/api/v1/tenants";

/// Number of candidates from a list that grows without end, such as that of operations.
const LATEST: usize = 50;

/// Query that selects items of a list, or the incidents of one.
pub(super) type Filter = (&'static str, Option<String>);

/// A noun: its name, its path in the API, and its fields.
pub(super) struct Noun<T: 'static> {
    /// Singular, as `token`.
    name: &'static str,
    /// Path of its list.
    path: &'static str,
    layout: ListLayout<T>,
    /// Returns the name that a completion offers, and a few words about the item.
    candidate: fn(&T) -> Option<(String, String)>,
    /// Number of items that a completion reads; 0 for all.
    candidates: usize,
    /// True for a list that the server returns in pages.
    has_pages: bool,
    sort: fn(&mut Vec<T>),
    /// Conditions of an item, for its details.
    conditions: fn(&T) -> &[Condition],
    /// Query that finds the incidents of an item, for its details.
    incidents: Option<fn(&T) -> Vec<Filter>>,
}

impl<T> Noun<T> {
    /// Creates a noun with its singular and plural, the path of its list, the name or ID of an item, and its fields.
    const fn new(
        [name, plural, path]: [&'static str; 3],
        id: fn(&T) -> String,
        fields: &'static [ListField<T>],
    ) -> Self {
        Self {
            name,
            path,
            layout: ListLayout { noun: plural, name: id, fields },
            candidate: |_| None,
            candidates: 0,
            has_pages: true,
            sort: |_| {},
            conditions: |_| &[],
            incidents: None,
        }
    }

    /// Presentation of its lists.
    pub(super) fn layout(&self) -> &ListLayout<T> {
        &self.layout
    }

    /// Path of its list in the API.
    pub(super) fn path(&self) -> &'static str {
        self.path
    }

    /// Path of an item in the API.
    pub(super) fn path_of(&self, id: impl Display) -> String {
        format!("{}/{}", self.path, encoded(id))
    }
}

impl<T: Serialize + DeserializeOwned> Noun<T> {
    /// Reads the first items that pass the filters, or all with `most` 0.
    ///
    /// A daemon or a tenant that does not exist is an error: a list of what it has would be empty.
    pub(super) async fn read(
        &self,
        client: &Client,
        filters: &[Filter],
        most: usize,
    ) -> Result<Vec<T>, ClientError> {
        require_named(client, filters).await?;
        let path = filtered(self.path, filters);
        let mut items = match most {
            _ if !self.has_pages => whole(client, &path).await?,
            0 => all(client, &path).await?,
            most => newest(client, &path, most).await?,
        };
        (self.sort)(&mut items);
        Ok(items)
    }

    /// Prints the first items that pass the filters, or all with `most` 0.
    pub(super) async fn list(
        &self,
        call: &CallArgs,
        filters: &[Filter],
        most: usize,
    ) -> Result<ExitCode, ClientError> {
        self.layout.print(&self.read(&call.client()?, filters, most).await?, call.format());
        Ok(ExitCode::SUCCESS)
    }

    /// Prints an item.
    pub(super) async fn get(&self, call: &CallArgs, id: impl Display) -> Result<ExitCode, ClientError> {
        let client = call.client()?;
        let item = client.get(&self.path_of(id)).await?;
        self.show(&client, call.format(), &item).await
    }

    /// Prints an item that was read already.
    pub(super) async fn show(
        &self,
        client: &Client,
        format: OutputFormat,
        item: &T,
    ) -> Result<ExitCode, ClientError> {
        let mut details = DetailsTable::default();
        if format.is_table() {
            let names =
                if self.layout.names_gpus() { GpuNames::read(client).await } else { GpuNames::default() };
            details = self.layout.details(item, &names).conditions((self.conditions)(item));
            if let Some(filters) = self.incidents {
                details = with_incidents(details, client, &filters(item)).await?;
            }
        }
        details.print(format, &(self.layout.name)(item), item);
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the item with this ID, or the only one whose ID begins so.
    pub(super) async fn find(&self, client: &Client, id: &ShortId) -> Result<T, ClientError> {
        let whole = match id.whole() {
            Some(whole) => whole,
            None => {
                let items = self.read(client, &[], 0).await?;
                let ids: Vec<_> =
                    items.iter().filter_map(|item| (self.layout.name)(item).parse().ok()).collect();
                id.only_one(&ids, self.name).map_err(ClientError::Caller)?
            }
        };
        client.get(&self.path_of(whole)).await
    }

    /// Completes an argument by what the server has.
    pub(super) fn complete(&'static self) -> ArgValueCandidates {
        ArgValueCandidates::new(|| self.candidates())
    }

    /// Returns what the server has, for completions.
    pub(super) fn candidates(&self) -> Vec<CompletionCandidate> {
        offered(&async |client: &Client| {
            let items = self.read(client, &[], self.candidates).await?;
            Ok(items.iter().filter_map(self.candidate).collect())
        })
    }
}

/// Fails if a filter names a daemon or a tenant that does not exist.
pub(super) async fn require_named(client: &Client, filters: &[Filter]) -> Result<(), ClientError> {
    for (name, value) in filters {
        let path = match *name {
            "tenant" => TENANTS,
            "daemon" => DAEMONS,
            _ => continue,
        };
        if let Some(value) = value {
            client.get::<serde_json::Value>(&format!("{path}/{}", encoded(value))).await?;
        }
    }
    Ok(())
}

/// Adds a line for each incident that is open, or that recovered within the last hour and was not acknowledged.
async fn with_incidents(
    details: DetailsTable,
    client: &Client,
    filters: &[Filter],
) -> Result<DetailsTable, ClientError> {
    let path = filtered(&format!("{INCIDENTS}?current=true"), filters);
    let incidents: Vec<IncidentView> = all(client, &path).await?;
    let line =
        |incident: &IncidentView| format!("{}: {} ({})", incident.id, incident.summary, word(incident.state));
    Ok(incidents.iter().fold(details, |details, incident| details.row("Incident", line(incident))))
}

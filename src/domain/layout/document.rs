//! Layouts as files: self-contained, with the IDs or shares that their steps gave elsewhere, and a checksum.
//!
//! A document carries no UUID of a machine. Its [`Fingerprint`] states what another host has to have; it is compared before anything is
//! done there, and simulated IDs are never expectations on a real host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::format::DocumentKind;
use super::status::PartitionStatus;
use super::{Enforcement, Invalid, Layout, LayoutStep, check_note};
use crate::count::counted;
use crate::printable::is_shown;
use crate::{
    DaemonName, InvalidValue, LONGEST_WORDS, LayoutName, PartitionId, PartitionName, ThreadPercentage,
};

/// The version of a document's shape.
pub const VERSION: &str = "v1";

/// The kind of layout documents.
pub(super) const KIND: DocumentKind =
    DocumentKind { noun: "layout document", version: VERSION, longest_refusal: LONGEST_WORDS };
/// The protocol of the control daemon that this manager speaks.
pub const PROTOCOL: u32 = 2;

/// Layouts in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Version of the document's format.
    #[schema(pattern = "^v1$", example = "v1")]
    pub version: String,
    /// The layouts, by name.
    pub layouts: BTreeMap<LayoutName, DocumentLayout>,
    /// `sha256:` and the digest of the rest of the document. Every export has one. It is required where anything is recorded, and has to
    /// match where it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^sha256:[0-9a-f]{64}$")]
    pub checksum: Option<String>,
}

/// A layout in a document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DocumentLayout {
    /// The mechanism that enforces the partitions.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// The product name of its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        pattern = "^[^\\s\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb]([^\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb]{0,94}[^\\s\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb])?$",
        example = "NVIDIA H200"
    )]
    pub sku: Option<String>,
    /// Purpose of the layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(
        max_length = 1024,
        pattern = "^[^\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb]*$"
    )]
    pub note: Option<String>,
    /// Steps in their order, beginning with empty GPUs.
    pub steps: Vec<LayoutStep>,
    /// The result of its steps on the host where the document was exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
}

/// The result of the steps of a layout on one daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// The ID that each step gave or took away; empty where the enforcement has no IDs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<PartitionId>,
    /// The thread percentage and SMs of each partition, where the enforcement is a percentage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<PartitionShare>,
    /// The hardware and software of the host.
    pub fingerprint: Fingerprint,
    /// Source of the record.
    pub provenance: Provenance,
}

/// The thread percentage of a partition, and its SMs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PartitionShare {
    /// The partition.
    pub partition: PartitionName,
    /// Its thread percentage.
    pub active_thread_percentage: ThreadPercentage,
    /// SMs that it gives.
    pub sms: u32,
}

impl PartitionShare {
    /// Returns the shares of these partitions; `None` where they are static.
    pub fn of<'p>(partitions: impl IntoIterator<Item = &'p PartitionStatus>) -> Option<Vec<Self>> {
        let share = |partition: &PartitionStatus| {
            Some(Self {
                partition: partition.partition.clone(),
                active_thread_percentage: partition.percentage?,
                sms: partition.sms?,
            })
        };
        partitions.into_iter().map(share).collect()
    }
}

/// The hardware and software on which a layout's IDs or shares depend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// True if the host was simulated.
    pub simulated: bool,
    /// The product name of the GPUs.
    pub sku: String,
    /// SMs of each GPU.
    pub sms: u32,
    /// SMs of a chunk.
    pub chunk_sms: u32,
    /// Chunks of an empty GPU.
    pub chunk_count: u32,
    /// The protocol of the control daemon.
    pub protocol: u32,
    /// Binary version of the control daemon, 13010 for CUDA 13.1.
    pub binary_version: u32,
    /// The driver's version.
    pub driver_version: String,
}

/// Source of a recorded layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The name of the host.
    pub host: String,
    /// The daemon.
    pub daemon: DaemonName,
    /// Version of the layout on that host.
    pub layout_version: u32,
    /// Author of that version, as in the audit log.
    pub author: String,
    /// Time at which the document was exported.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub exported_at: i64,
    /// Version of the manager that exported it.
    pub manager_version: String,
}

/// A field in which two fingerprints differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FingerprintDifference {
    /// The field.
    pub field: String,
    /// Value in the document.
    pub recorded: String,
    /// Value on this host.
    pub here: String,
    /// True if `force` passes over the difference: versions may differ, the hardware may not.
    pub forceable: bool,
}

impl std::fmt::Display for FingerprintDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is {} here and {} in the document", self.field, self.here, self.recorded)
    }
}

impl Fingerprint {
    /// Returns the fields in which this fingerprint, recorded elsewhere, differs from that of this host.
    pub fn differences(&self, here: &Self) -> Vec<FingerprintDifference> {
        let Self { simulated, sku, sms, chunk_sms, chunk_count, protocol, binary_version, driver_version } =
            self;
        let word = |simulated: bool| if simulated { "true" } else { "false" }.to_owned();
        let fields = [
            ("simulated", word(*simulated), word(here.simulated), false),
            ("sku", sku.clone(), here.sku.clone(), false),
            ("sms", sms.to_string(), here.sms.to_string(), false),
            ("chunk_sms", chunk_sms.to_string(), here.chunk_sms.to_string(), false),
            ("chunk_count", chunk_count.to_string(), here.chunk_count.to_string(), false),
            ("protocol", protocol.to_string(), here.protocol.to_string(), true),
            ("binary_version", binary_version.to_string(), here.binary_version.to_string(), true),
            ("driver_version", driver_version.clone(), here.driver_version.clone(), true),
        ];
        fields
            .into_iter()
            .filter(|(_, recorded, here, _)| recorded != here)
            .map(|(field, recorded, here, forceable)| FingerprintDifference {
                field: field.to_owned(),
                recorded,
                here,
                forceable,
            })
            .collect()
    }
}

impl DocumentLayout {
    /// Returns the layout without note and record.
    pub fn layout(&self) -> Layout {
        Layout { enforcement: self.enforcement, sku: self.sku.clone(), steps: self.steps.clone() }
    }

    /// Creates the entry of a layout.
    pub fn of(layout: &Layout, note: Option<String>, recorded: Option<Recorded>) -> Self {
        let Layout { enforcement, sku, steps } = layout.clone();
        Self { enforcement, sku, note, steps, recorded }
    }
}

impl Document {
    /// Creates a document with its checksum.
    pub fn sealed(layouts: BTreeMap<LayoutName, DocumentLayout>) -> Self {
        let mut document = Self { version: VERSION.to_owned(), layouts, checksum: None };
        document.checksum = Some(document.digest());
        document
    }

    /// Returns `sha256:` and the digest of everything but the checksum. It is the digest of the JSON, with fields in the order of
    /// declaration and layouts by name, so it does not depend on the format of the file.
    pub fn digest(&self) -> String {
        let bare = Self { checksum: None, ..self.clone() };
        let text = serde_json::to_string(&bare).expect("a document has text for keys and no odd number");
        format!("sha256:{}", hex::encode(Sha256::digest(text)))
    }

    /// Refuses a document that was changed after its checksum was made, or whose layouts are invalid.
    pub fn check(&self) -> Result<(), Invalid> {
        let wrong = |pointer: String, reason: String| Invalid { pointer, reason: InvalidValue(reason) };
        KIND.check_version(&self.version).map_err(|reason| Invalid { pointer: "/version".into(), reason })?;
        let digest = self.digest();
        if let Some(given) = self.checksum.as_ref().filter(|given| **given != digest) {
            let given: String = given.chars().take(80).collect();
            let reason = format!(
                "the checksum {given} is not the document's: it was changed after it was exported; export it again, or take checksum \
                 and recorded out to import it as a layout of your own"
            );
            return Err(wrong("/checksum".into(), reason));
        }
        let recorded = self.layouts.iter().find(|(_, entry)| entry.recorded.is_some());
        if let (Some((name, _)), None) = (recorded, &self.checksum) {
            let reason = format!(
                "layout {name} has what was recorded elsewhere, and the document has no checksum that would show whether it was \
                 changed since: export it again, or take recorded out too to import it as a layout of your own"
            );
            return Err(wrong("/checksum".into(), reason));
        }
        if self.layouts.is_empty() {
            return Err(wrong("/layouts".into(), "there is no layout in it: name at least one".into()));
        }
        for (name, entry) in &self.layouts {
            let within = |pointer: &str| format!("/layouts/{name}{pointer}");
            entry
                .layout()
                .check()
                .map_err(|Invalid { pointer, reason }| Invalid { pointer: within(&pointer), reason })?;
            check_note(entry.note.as_deref())
                .map_err(|reason| Invalid { pointer: within("/note"), reason })?;
            if let Some(recorded) = &entry.recorded {
                check_recorded(entry, recorded)
                    .map_err(|(field, reason)| wrong(within(&format!("/recorded/{field}")), reason))?;
            }
        }
        Ok(())
    }
}

fn check_recorded(entry: &DocumentLayout, recorded: &Recorded) -> Result<(), (&'static str, String)> {
    let partitions: Vec<&PartitionName> = entry
        .steps
        .iter()
        .filter_map(|step| match step {
            LayoutStep::Add(add) => Some(&add.partition),
            LayoutStep::Remove(_) => None,
        })
        .collect();
    let (of, from) = (&recorded.fingerprint, &recorded.provenance);
    let texts = [&of.sku, &of.driver_version, &from.host, &from.author, &from.manager_version];
    match entry.enforcement {
        _ if !texts.into_iter().all(|text| is_shown(text, 253)) => {
            Err(("provenance", "a text is too long, or has control characters or invisible ones".into()))
        }
        Enforcement::Static if recorded.ids.len() != entry.steps.len() => Err((
            "ids",
            format!(
                "{} for {}: each step has one",
                counted(recorded.ids.len(), "ID"),
                counted(entry.steps.len(), "step")
            ),
        )),
        Enforcement::Static if !recorded.shares.is_empty() => {
            Err(("shares", "static partitions have IDs and no shares".into()))
        }
        Enforcement::Percentage if !recorded.ids.is_empty() => Err(("ids", "a percentage has no IDs".into())),
        Enforcement::Percentage
            if recorded.shares.len() != partitions.len()
                || recorded.shares.iter().zip(&partitions).any(|(share, name)| share.partition != **name) =>
        {
            Err((
                "shares",
                format!(
                    "{} for {}: each partition has one, in the order of the steps",
                    counted(recorded.shares.len(), "share"),
                    counted(partitions.len(), "partition")
                ),
            ))
        }
        _ => Ok(()),
    }
}

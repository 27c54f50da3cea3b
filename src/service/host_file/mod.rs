//! The host file: the objects of a host as one document, compared with another, and applied.
//!
//! A file goes through the same decisions as single requests: [`Backend::write_daemon`], [`Backend::write_tenant`] and the plan of a
//! layout. All that it changes in the database is one transaction, with the operation that waits for the daemons; a part that is
//! refused refuses the whole.

mod apply;
mod checks;
mod faults;
mod stored;

use sha2::{Digest as _, Sha256};

use crate::domain::access::Right;
use crate::domain::gpu::Gpu;
use crate::domain::host_file::{
    ExportedHost, HostChange, HostFile, HostObject, HostSpec, StoredHost, changes, export, resolve, text,
};
use crate::domain::layout::Invalid;
use crate::domain::layout::text::LayoutFormat;
use crate::domain::operation::Operation;
use crate::service::access::context::RequestContext;
use crate::service::error::conflict;
use crate::service::host_file::faults::Faults;
use crate::service::{Backend, FieldError, Result, Service, ServiceError, WriteOptions};

/// Maximum number of comparisons of a file whose objects others change at the same time, before it is refused.
const COMPARISONS: u32 = 5;

/// Options for applying a host file.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostFileOptions {
    /// True if objects that the file does not contain are deleted.
    pub prune: bool,
    /// True if partitions that stay in a layout may be recreated, which may change their IDs.
    pub recreate: bool,
}

/// Changes that a host file makes, and the operation that carries them out.
#[derive(Debug, Clone)]
pub struct AppliedHostFile {
    /// The changes, in the order in which they are made.
    pub changes: Vec<HostChange>,
    /// Possible mistakes in the file, for which nothing is refused.
    pub warnings: Vec<FieldError>,
    /// The operation; `None` after a dry run, and if nothing changes.
    pub operation: Option<Operation>,
    /// The entity tag of the changes: with it as `If-Match`, exactly these changes are made, or none.
    pub tag: String,
}

/// A host as a file, with its entity tag.
#[derive(Debug, Clone)]
pub struct HostFileView {
    /// The file.
    pub exported: ExportedHost,
    /// Its entity tag.
    pub tag: String,
}

/// A host file compared with a host.
#[derive(Clone)]
struct Compared {
    spec: HostSpec,
    stored: StoredHost,
    gpus: Vec<Gpu>,
    changes: Vec<HostChange>,
    file_options: HostFileOptions,
}

impl Compared {
    /// Reads a file for a host, and finds what it changes there.
    fn of(file: &HostFile, stored: StoredHost, gpus: &[Gpu], file_options: HostFileOptions) -> Result<Self> {
        let prune = file_options.prune;
        let mut spec =
            resolve(file, &stored, gpus, prune).map_err(|errors| Faults::of_host(errors).refusal())?;
        for (name, desired) in spec.tenants.iter_mut().filter(|(name, _)| stored.draining.contains(name)) {
            // A file that is applied again and again must not take a drain back.
            desired.expires_at = stored.tenants.get(name).and_then(|now| now.expires_at);
        }
        let changes = changes(&spec, &stored, gpus, prune);
        Ok(Self { spec, stored, gpus: gpus.to_vec(), changes, file_options })
    }
}

impl Service {
    /// Returns the objects of the host as a host file.
    pub async fn host_spec(&self, ctx: &RequestContext) -> Result<HostFileView> {
        let backend = self.with(&ctx.require(Right::View)?);
        let gpus = backend.held_gpus().await?;
        let stored = stored::load(&mut *backend.parts.store.read().await?, None).await?;
        let exported = export(&stored, &gpus);
        let tag = tag_of(&exported);
        Ok(HostFileView { exported, tag })
    }

    /// Returns an object of the host as the text of a host file, in YAML.
    pub async fn host_object(&self, ctx: &RequestContext, object: HostObject<'_>) -> Result<String> {
        let gpus = self.with(&ctx.require(Right::View)?).held_gpus().await?;
        Ok(text::write(&object.alone(&gpus), LayoutFormat::Yaml))
    }

    /// Changes the host to the state that a file describes.
    ///
    /// A dry run returns the changes, and refuses the file for the same reasons.
    pub async fn put_host_spec(
        &self,
        ctx: &RequestContext,
        file: HostFile,
        file_options: HostFileOptions,
        options: WriteOptions,
    ) -> Result<AppliedHostFile> {
        let permit = ctx.require(Right::Administer)?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let gpus = backend.gpus().await?;
        for _ in 0..COMPARISONS {
            let stored = stored::load(&mut *backend.parts.store.read().await?, Some(&file)).await?;
            let host = tag_of(&export(&stored, &gpus));
            let compared = Compared::of(&file, stored, &gpus, file_options)?;
            // What was shown is what is written: other objects of the host may change as they like.
            let tag = tag_of_changes(&compared.changes);
            check_tag(&options, [&host, &tag])?;
            let warnings = faults::fields(compared.spec.warnings.clone());
            let changes = compared.changes.clone();
            if changes.is_empty() {
                return Ok(AppliedHostFile { changes, warnings, operation: None, tag });
            }
            let checked = backend.check_host(&compared).await?;
            let written = backend.write_host(&permit, &file, compared, checked, options.dry_run).await?;
            if let Some(written) = written {
                let operation = Some(written).filter(|_| !options.dry_run);
                return Ok(AppliedHostFile { changes, warnings, operation, tag });
            }
        }
        Err(conflict!(
            "what the file is about was changed {COMPARISONS} times while the file was compared with it, and nothing was written: try \
             again once the other writes are done"
        ))
    }
}

/// The refusal of a file that is wrong in itself.
pub fn refused_file(errors: Vec<Invalid>) -> ServiceError {
    Faults::of_file(errors).refusal()
}

/// Refuses a write whose entity tag is not the present one.
fn check_tag(options: &WriteOptions, tags: [&str; 2]) -> Result<()> {
    if options.must_be_new {
        return Err(ServiceError::PreconditionFailed(
            "a host is always there, and If-None-Match: * was given".into(),
        ));
    }
    let Some(wanted) = &options.if_match else { return Ok(()) };
    if wanted == "*" || wanted.split(',').any(|tag| tags.contains(&tag.trim())) {
        return Ok(());
    }
    let tag = tags[1];
    Err(ServiceError::PreconditionFailed(format!(
        "the host was changed since, so that the file would change something else: If-Match is {wanted} and the entity tag is now {tag}; \
         compare the file again and repeat"
    )))
}

/// The entity tag of what a host has.
fn tag_of(exported: &ExportedHost) -> String {
    let digest = Sha256::digest(text::write(exported, LayoutFormat::Json));
    format!("\"{}\"", hex::encode(&digest[..8]))
}

/// The entity tag of what a file would change.
fn tag_of_changes(changes: &[HostChange]) -> String {
    let digest = Sha256::digest(serde_json::to_vec(changes).expect("changes are plain data"));
    format!("\"{}\"", hex::encode(&digest[..8]))
}

impl Backend {
    /// Returns true if a daemon of the file can get its layout in the transaction, without an operation that applies it.
    fn takes_layout_at_once(&self, name: &crate::domain::DaemonName, stored: &StoredHost) -> bool {
        !stored.daemons.contains_key(name) || !self.runs(name)
    }
}

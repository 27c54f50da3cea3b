//! Other hosts: saved with a token, read beside this one, and given layouts.
//!
//! Reads and changes there are those that the token allows; the audit log of that host names the token.

mod answers;
mod reading;
pub mod remote;
mod replaying;
mod row;
mod sealing;

pub(in crate::service) use remote::Remote;
pub use replaying::ReplayOutlook;
pub(in crate::service) use row::OtherHosts;
pub use row::{HostReading, HostState};
pub use sealing::{HOSTS_KEY, TokenSealer};

use serde::Deserialize;

use self::remote::{HostLink, RemoteHost};
use crate::domain::HostName;
use crate::domain::access::Right;
use crate::domain::audit::Target;
use crate::domain::saved_host::{HostUrl, SavedHost};
use crate::domain::token::Secret;
use crate::service::access::context::RequestContext;
use crate::service::error::{Found as _, conflict};
use crate::service::{Backend, Result, Service, ServiceError};
use crate::store::saved_hosts::SavedHostRow;
use crate::store::{self, TransactionEnd, transact};

/// Most saved hosts: all are read for one page.
const MAX_HOSTS: usize = 64;

/// A host to be saved.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedHostRequest {
    /// Its name; a host that has it already is replaced.
    pub name: HostName,
    /// The address of its manager.
    pub url: HostUrl,
    /// Certificates to trust there, as PEM; by default those of the system.
    #[serde(default)]
    pub ca: Option<String>,
    /// A token of that host.
    pub token: Secret,
}

impl Service {
    /// Saves a host. It may be down at present.
    pub async fn save_host(&self, ctx: &RequestContext, request: SavedHostRequest) -> Result<()> {
        let SavedHostRequest { name, url, ca, token } = request;
        let permit = ctx.require(Right::Administer)?.on(target(&name));
        let backend = self.with(&permit);
        backend.refuse_sealed().await?;
        if let Some(ca) = &ca {
            let checked = backend.parts.remote.check_certificates(ca);
            checked.map_err(|why| ServiceError::field("/ca", why))?;
        }
        let (saved_at, saved_by) = (ctx.clock.unix_ms(), ctx.actor.subject.to_string());
        let host = SavedHost { name, url, ca, saved_at, saved_by };
        let sealed = backend.parts.host_tokens.seal(&host, &token).map_err(|error| {
            ServiceError::Internal(format!("the token cannot be encrypted with {HOSTS_KEY}: {error}"))
        })?;
        transact!(backend, write(&permit), |db| {
            let others = store::saved_hosts::all(&mut *db).await?;
            if others.iter().filter(|other| other.host.name != host.name).count() >= MAX_HOSTS {
                return Err(conflict!(
                    "there are {MAX_HOSTS} saved hosts, which is the limit: remove one first"
                ));
            }
            store::saved_hosts::put(db, &host, &sealed).await?;
            Ok(((), TransactionEnd::Commit))
        })
    }

    /// Removes a saved host with its token, which stays valid there.
    pub async fn remove_host(&self, ctx: &RequestContext, name: HostName) -> Result<()> {
        let permit = ctx.require(Right::Administer)?.on(target(&name));
        let backend = self.with(&permit);
        backend.refuse_sealed().await?;
        backend.parts.remote.forget(&name);
        transact!(backend, write(&permit), |db| {
            if !store::saved_hosts::remove(db, &name).await? {
                return Err(ServiceError::not_found("saved host", &name));
            }
            Ok(((), TransactionEnd::Commit))
        })
    }

    /// The saved hosts, by name.
    pub async fn saved_hosts(&self, ctx: &RequestContext) -> Result<Vec<SavedHost>> {
        let backend = self.with(&ctx.require(Right::View)?);
        let stored = store::saved_hosts::all(&mut *backend.parts.store.read().await?).await?;
        Ok(stored.into_iter().map(|stored| stored.host).collect())
    }

    /// A saved host.
    pub async fn saved_host(&self, ctx: &RequestContext, name: &HostName) -> Result<SavedHost> {
        let host = self.saved_hosts(ctx).await?.into_iter().find(|host| host.name == *name);
        host.found("saved host", name)
    }
}

impl Backend {
    /// The connection to a saved host.
    async fn remote_host(&self, name: &HostName) -> Result<RemoteHost<'_>> {
        let stored = store::saved_hosts::all(&mut *self.parts.store.read().await?).await?;
        let stored = stored.into_iter().find(|stored| stored.host.name == *name);
        let (_, connection) = self.connected(stored.found("saved host", name)?);
        connection.ok_or_else(|| ServiceError::Unavailable(format!("{name}: {NO_TOKEN}")))
    }

    fn connected(&self, SavedHostRow { host, token }: SavedHostRow) -> (SavedHost, Option<RemoteHost<'_>>) {
        let link =
            |token| HostLink { name: host.name.clone(), url: host.url.clone(), ca: host.ca.clone(), token };
        let link = self.parts.host_tokens.open(&host, &token).map(link);
        let connection = link.map(|link| RemoteHost { remote: &*self.parts.remote, link });
        (host, connection)
    }
}

/// Remedy for a token that was encrypted with another key, as in a database from a backup of another machine.
const NO_TOKEN: &str = "its token cannot be read with the key of this host: save the host again";

fn target(name: &HostName) -> Target {
    Target::Other(format!("hosts/{name}"))
}

//! Connections to the managers of other hosts, for the console.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use reqwest::Method;

use crate::client::{Client, ClientError};
use crate::domain::HostName;
use crate::service::hosts::remote::{HostLink, LONGEST, Remote, RemoteAnswer, RemoteRequest, no_answer};

/// Hosts over their URLs; a client keeps its connections, and the certificates that it has read.
#[derive(Default)]
pub(super) struct OverHttp {
    clients: Mutex<HashMap<HostName, (HostLink, Arc<Client>)>>,
}

impl OverHttp {
    fn client(&self, host: &HostLink) -> Result<Arc<Client>, ClientError> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = clients.get(&host.name).filter(|(link, _)| link == host) {
            return Ok(Arc::clone(client));
        }
        let token = Some(host.token.reveal().to_owned());
        let client = Arc::new(Client::trusting(host.url.as_str(), token, host.ca.as_deref())?);
        clients.insert(host.name.clone(), (host.clone(), Arc::clone(&client)));
        Ok(client)
    }
}

impl Remote for OverHttp {
    fn check_certificates(&self, pem: &str) -> Result<(), String> {
        Client::trusting("https://localhost", None, Some(pem)).map(drop).map_err(|error| error.to_string())
    }

    fn forget(&self, host: &HostName) {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).remove(host);
    }

    fn send(&self, host: HostLink, request: RemoteRequest) -> BoxFuture<'_, Result<RemoteAnswer, String>> {
        Box::pin(async move {
            let client = self.client(&host).map_err(|error| error.to_string())?;
            let RemoteRequest { method, path, body, if_match } = request;
            let method = Method::from_bytes(method.as_bytes()).map_err(|error| error.to_string())?;
            let sent = client.exchange(method, &path, body.as_ref(), if_match.as_deref());
            match tokio::time::timeout(LONGEST, sent).await {
                Ok(Ok((status, tag, body))) => Ok(RemoteAnswer { status: status.as_u16(), tag, body }),
                // The client's words are for those who started it.
                Ok(Err(
                    ClientError::Unreachable { detail, .. } | ClientError::Interrupted { detail, .. },
                )) => Err(format!("{} cannot be reached: {detail}", host.url)),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(no_answer(&host.url)),
            }
        })
    }
}

//! Connections to the kubelet's sockets.

use std::io;
use std::path::Path;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Error, Uri};
use tower::service_fn;

/// A connection to a server on a unix socket.
pub(super) async fn connected(socket: &Path) -> Result<Channel, Error> {
    let socket = socket.to_owned();
    let connect = service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
    });
    // The name is in every request and means nothing.
    Endpoint::from_static("http://localhost").connect_with_connector(connect).await
}

//! Ending a client in the safe order.

use super::daemon::{handle, the_daemon};
use super::{Engine, Failure};
use crate::domain::client::ClientId;
use crate::domain::operation::Operation;

pub(super) async fn run(engine: &Engine, operation: &Operation, client: ClientId) -> Result<(), Failure> {
    let handle = handle(engine, the_daemon(operation)?)?;
    engine
        .step(operation.id, "terminate", async {
            let ended = handle.terminate(client).await.map_err(|error| error.to_string())?;
            Ok(((), ended.as_str().to_owned()))
        })
        .await
}

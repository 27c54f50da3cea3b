//! Handouts that an earlier manager left.

use std::path::Path;

use crate::domain::daemon::Incarnation;
use crate::domain::plan::Desired;
use crate::host::Identity;
use crate::supervisor::context::SupervisorContext;
use crate::supervisor::handout::ControlSocket;

/// Takes over the sockets that an earlier manager handed out.
pub(super) fn begin(
    context: &SupervisorContext,
    desired: &Desired,
    earlier: Option<&Incarnation>,
    pipe: &Path,
) {
    let control = earlier.filter(|earlier| earlier.boot_id == context.boot_id).and_then(|earlier| {
        let (pid, start_time) = earlier.process?;
        Some(ControlSocket {
            identity: Identity { pid, start_time },
            pipe: pipe.to_owned(),
            foreign: earlier.is_foreign(),
        })
    });
    context.handouts.begin(&desired.into(), control);
}

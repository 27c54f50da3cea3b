//! Compares a daemon with a layout of thread percentages.

use super::PlannedShare;
use crate::daemon::DaemonStatus;
use crate::layout::active::ActiveLayout;
use crate::layout::assertion::{DifferenceKind, LayoutDifference, spec_difference};
use crate::layout::status::PartitionStatus;

/// Returns the differences between a daemon and a layout: its spec, the SMs that CUDA clients saw in its control process, and the
/// percentage that its servers hold now.
pub fn differences(
    active: &ActiveLayout,
    spec: Option<&ActiveLayout>,
    shares: &[PlannedShare],
    status: &DaemonStatus,
) -> Vec<LayoutDifference> {
    let mut found: Vec<LayoutDifference> = spec_difference(active, spec).into_iter().collect();
    let known = status.layout.iter().flat_map(|layout| &layout.partitions);
    let servers = status.effective.iter().flat_map(|seen| &seen.servers);
    let held = servers.filter_map(|server| server.active_thread_percentage).min();
    for share in shares {
        let name = &share.partition;
        let same = |known: &&PartitionStatus| (&known.partition, &known.gpu) == (name, &share.gpu);
        let seen = known.clone().find(same).and_then(|known| Some((known.sms?, known.percentage?)));
        let message = match (seen, held) {
            (None, _) => {
                format!("no CUDA client has seen the {} SMs of partition {name} on {}", share.sms, share.gpu)
            }
            (Some((sms, _)), _) if sms != share.sms => {
                format!("a CUDA client saw {sms} SMs in partition {name}, and {} are planned", share.sms)
            }
            (Some((_, percentage)), Some(held)) if held < percentage => format!(
                "the server holds {held} %, and partition {name} needs {percentage} %: another program has changed it"
            ),
            _ => continue,
        };
        found.push(LayoutDifference {
            kind: DifferenceKind::NotProven,
            gpu: Some(share.gpu.clone()),
            partition: Some(name.clone()),
            expected: None,
            got: None,
            message,
        });
    }
    found
}

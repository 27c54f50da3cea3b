//! Division of a GPU's multiprocessors by CUDA's splitter (`cuDevSmResourceSplitByCount`).
//!
//! Recorded on five H200s: 15 groups of 8 with 12 SMs over, 8 of 16 with 4 over, 4 of 32 with 4 over (02, 08), and no groups under a thread
//! percentage (hardware/10). The rule is made up to give these: each group has one whole chunk at least, which lies in one GPC, and is
//! filled up with any SMs. Its results for other GPUs are synthetic.

use serde::Serialize;

use super::profile::Gpu;

/// One division.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Split {
    pub(crate) min_sms: u32,
    pub(crate) groups: u32,
    pub(crate) sms_per_group: u32,
    pub(crate) remaining: u32,
}

impl Gpu {
    /// Divides into groups of at least `min_sms`, which is a multiple of a chunk, for a process that sees `sms` of this GPU.
    pub(crate) fn split(&self, sms: u32, min_sms: u32) -> Split {
        if sms < self.sms {
            return Split { min_sms, groups: 0, sms_per_group: 0, remaining: sms };
        }
        let chunks: u32 = self.gpcs.iter().map(|pairs| pairs / self.chunk_pairs()).sum();
        let groups = chunks.min(sms / min_sms);
        Split {
            min_sms,
            groups,
            sms_per_group: if groups == 0 { 0 } else { min_sms },
            remaining: sms - groups * min_sms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::profile;

    #[test]
    fn h200_split_matches_recording_for_any_gpcs() {
        for profile in ["h200x1", "h200x1@13.0:gpcs=9.9.9.9.9.9.8.4"] {
            let gpu = profile::host(profile, "seed").unwrap().gpus.remove(0);
            let all = [8, 16, 32].map(|size| gpu.split(132, size));
            let splits = all.map(|split| (split.groups, split.sms_per_group, split.remaining));
            assert_eq!(splits, [(15, 8, 12), (8, 16, 4), (4, 32, 4)]);
            let limited = gpu.split(32, 8);
            assert_eq!((limited.groups, limited.sms_per_group, limited.remaining), (0, 0, 32));
        }
    }
}

//! Number of chunks of a GPU, as CUDA's own splitter counts them.
//!
//! A chunk lies in one GPC, and which multiprocessors of a GPC work differs from die to die, so the count does not
//! follow from the number of multiprocessors. The splitter's smallest group is a chunk, and it gave 15 of them on
//! each of five H200s (recordings 02 and 08), as for a static daemon.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::prober::{PIPE_ENV, ProbeRequest, Prober};
use crate::domain::GpuUuid;
use crate::domain::gpu::ChunkCensus;
use crate::gpu::report::{CudaDevice, Report};

/// A directory without a daemon: a process that is given it runs outside MPS.
const NO_DAEMON: &str = "/nonexistent";

/// A request to count the chunks of GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CensusRequest {
    /// The directory of the sockets of the daemon that has the GPUs; `None` to count outside MPS.
    ///
    /// A client of a daemon with static partitions sees its partition only, so those are counted outside, too.
    pub pipe_directory: Option<PathBuf>,
    /// User of the counting process.
    pub uid: u32,
    /// The GPUs.
    pub gpus: Vec<GpuUuid>,
    /// Time after which the wait for CUDA is given up.
    pub timeout: Duration,
}

/// Why chunks were not counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CensusError {
    /// CUDA saw nothing, or not everything.
    #[error("CUDA does not count the chunks: {0}")]
    Failed(String),
    /// The GPU was not among the devices.
    #[error("a CUDA process that was given {0} does not see it: is it in MIG mode, or gone?")]
    Unseen(GpuUuid),
    /// A thread percentage was in force, under which the splitter makes no groups.
    #[error("{0} was seen through a thread percentage or a partition, under which CUDA counts no chunks")]
    Limited(GpuUuid),
    /// The driver has no splitter.
    #[error("the driver cannot divide {0}: CUDA has a splitter from version 12.4 on")]
    NoSplitter(GpuUuid),
}

impl Prober {
    /// Counts the chunks of each GPU.
    ///
    /// Counts as a client of the daemon first, and outside MPS where the daemon's percentage prevents it: there the
    /// process has a context of the whole GPU for a moment, unless the compute mode forbids it.
    pub async fn census(
        &self,
        request: &CensusRequest,
    ) -> Result<BTreeMap<GpuUuid, ChunkCensus>, CensusError> {
        let inside = match &request.pipe_directory {
            Some(pipe) => self.count(request, &pipe.to_string_lossy()).await,
            None => return self.count(request, NO_DAEMON).await,
        };
        match inside {
            Err(CensusError::Limited(_)) => self.count(request, NO_DAEMON).await,
            counted => counted,
        }
    }

    async fn count(
        &self,
        request: &CensusRequest,
        pipe: &str,
    ) -> Result<BTreeMap<GpuUuid, ChunkCensus>, CensusError> {
        let gpus: Vec<&str> = request.gpus.iter().map(GpuUuid::as_str).collect();
        let report = self
            .see(&ProbeRequest {
                variables: BTreeMap::from([
                    (PIPE_ENV.to_owned(), pipe.to_owned()),
                    ("CUDA_VISIBLE_DEVICES".to_owned(), gpus.join(",")),
                ]),
                uid: request.uid,
                allocate_up_to: None,
                timeout: request.timeout,
            })
            .await;
        counted(&report, &request.gpus)
    }
}

/// Reads the chunks of each of `gpus` from a report.
fn counted(report: &Report, gpus: &[GpuUuid]) -> Result<BTreeMap<GpuUuid, ChunkCensus>, CensusError> {
    if let Some(failure) = &report.error {
        return Err(CensusError::Failed(format!("{}: {}", failure.name, failure.message)));
    }
    let find = |gpu: &GpuUuid| {
        let device = report.devices.iter().find(|device| gpu.is_reported_as(&device.uuid));
        Ok((gpu.clone(), chunks(device.ok_or_else(|| CensusError::Unseen(gpu.clone()))?)?))
    };
    gpus.iter().map(find).collect()
}

/// Reads the groups of a device that have the size of a chunk.
fn chunks(device: &CudaDevice) -> Result<ChunkCensus, CensusError> {
    let unknown = || CensusError::NoSplitter(device.uuid.clone());
    let chunk_sms = device.compute_capability.ok_or_else(unknown)?.chunk_sms();
    let split = device.splitter.iter().find(|split| split.min_sms == chunk_sms).ok_or_else(unknown)?;
    if split.groups == 0 {
        return Err(CensusError::Limited(device.uuid.clone()));
    }
    Ok(ChunkCensus {
        sms: device.sms,
        // If the splitter's smallest group is larger than a chunk, its groups are counted instead.
        chunk_sms: split.sms_per_group,
        chunks: split.groups,
        left_over_sms: split.remaining,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::report::{Failure, ProbeFailure};

    /// Report of an H200 outside MPS (recording hardware/10), with the compute capability, which probes report since then.
    const OUTSIDE: &str = r#"{"schema":1,"pid":474,"driver_version":"580.159.04","cuda_version":"13.0","mps":false,"init_ms":92.5,
        "devices":[{"ordinal":0,"uuid":"GPU-13dc5e2c-c325-9824-495b-64a6d94e666f","name":"NVIDIA H200","compute_capability":"9.0",
        "mps":false,"sms":132,"memory_free":149557477376,"memory_total":150109880320,"context_ms":93.2,
        "priorities":{"least":0,"greatest":-5},"splitter":[{"min_sms":8,"groups":15,"sms_per_group":8,"remaining":12},
        {"min_sms":16,"groups":8,"sms_per_group":16,"remaining":4},{"min_sms":32,"groups":4,"sms_per_group":32,"remaining":4}],
        "allocation":null}],"error":null}"#;

    fn outside() -> Report {
        serde_json::from_str(OUTSIDE).expect("a report")
    }

    #[test]
    fn h200_chunks_are_counted_from_splitter() {
        let report = outside();
        let gpu = report.devices[0].uuid.clone();
        let chunks = counted(&report, std::slice::from_ref(&gpu)).expect("counted")[&gpu];
        assert_eq!((chunks.sms, chunks.chunk_sms, chunks.chunks, chunks.left_over_sms), (132, 8, 15, 12));
    }

    #[test]
    fn uncountable_chunks_are_an_error() {
        let gpu = outside().devices[0].uuid.clone();
        let of = |change: fn(&mut Report)| {
            let mut report = outside();
            change(&mut report);
            counted(&report, std::slice::from_ref(&gpu)).expect_err("not counted")
        };
        // As recorded under a thread percentage.
        let limited = of(|report| {
            report.devices[0].sms = 32;
            let split = &mut report.devices[0].splitter[0];
            (split.groups, split.sms_per_group, split.remaining) = (0, 0, 32);
        });
        assert_eq!(limited, CensusError::Limited(gpu.clone()));
        assert_eq!(of(|report| report.devices.clear()), CensusError::Unseen(gpu.clone()));
        assert_eq!(of(|report| report.devices[0].splitter.clear()), CensusError::NoSplitter(gpu.clone()));
        let failed = of(|report| report.error = Some(Failure::own(ProbeFailure::Timeout, "it waits")));
        assert_eq!(failed, CensusError::Failed("timeout: it waits".into()));
    }
}

//! As much of the CUDA driver as the client needs, obeying the environment as the recordings show.

use super::super::control::pipe_directory;
use super::super::envvar::{self, Limit};
use super::super::kernel::{self, Kind, MIB, Presence};
use super::super::profile::{Gpu, Part};
use super::super::protocol::{ClientRequest, FaultKind, Grant, Notice};
use super::super::world::World;
use super::link::{Link, Sticky};

/// Free memory that a client sees when its limit was written as `512K`.
const NONSENSE_FREE: u64 = 140_081_990_000_000;
/// Connections a context takes unless `CUDA_DEVICE_MAX_CONNECTIONS` says otherwise: 2 under MPS.
const CONNECTIONS: u32 = 2;

/// The driver after `cuInit`.
pub(super) struct Cuda {
    /// The visible GPUs by this process's own ordinals.
    devices: Vec<Gpu>,
    mps: Option<Link>,
    /// PID of this process on the host, as the server reports it: its PID namespace may be another.
    pid: u32,
    sticky: Sticky,
    several: bool,
    /// Number of contexts so far, by which they are numbered.
    contexts: u32,
    /// The connection at which this process kills itself: 0 for its own, from 1 on for its contexts.
    dies_at: Option<u32>,
}

/// GPU on which a context in a partition takes the same memory, whatever the partition's size, and that memory (recording 27).
const PARTITION_CONTEXT: (&str, u64) = ("NVIDIA L40S", 426 * MIB);

/// A primary context.
pub(super) struct Context {
    ordinal: usize,
    number: u32,
    gpu: Gpu,
    sms: u32,
    limit: Option<Limit>,
    presence: Presence,
    /// Closes before the process's own connection does.
    _link: Option<Link>,
}

impl Cuda {
    /// `cuInit`: joins MPS if a daemon is in the pipe directory, else goes on without MPS, with every GPU. With `stops` the process stops
    /// when MPS asks it to exit.
    pub(super) fn init(world: &World, dies_at: Option<u32>, stops: bool) -> Result<Self, String> {
        let sticky = Sticky::new(stops);
        let pipe = pipe_directory();
        let (daemon, mps, pid): (Vec<Gpu>, _, _) = if Link::probe(&pipe) {
            const LOST: &str = "CUDA_ERROR_MPS_RPC_FAILURE";
            let (link, grant) = Link::open(&pipe, request(0, None), &sticky, dies_at == Some(0))?;
            let Grant::Welcome { gpus, pid } = grant else { return Err(LOST.to_owned()) };
            let pid = u32::try_from(pid).map_err(|_| LOST.to_owned())?;
            (gpus, Some(link), pid)
        } else {
            (world.devices(), None, std::process::id())
        };
        let listed: Vec<&Gpu> = daemon.iter().collect();
        let visible = envvar::visible(&listed, variable("CUDA_VISIBLE_DEVICES").as_deref());
        let devices: Vec<Gpu> = visible.iter().map(|&position| daemon[position].clone()).collect();
        if devices.is_empty() {
            return Err("CUDA_ERROR_NO_DEVICE".to_owned());
        }
        Ok(Self { devices, mps, pid, sticky, several: daemon.len() > 1, contexts: 0, dies_at })
    }

    pub(super) fn devices(&self) -> &[Gpu] {
        &self.devices
    }

    pub(super) fn under_mps(&self) -> bool {
        self.mps.is_some()
    }

    /// Returns the error that every call returns from now on, if there is one.
    pub(super) fn error(&self) -> Option<String> {
        self.sticky.get()
    }

    /// `cuDevicePrimaryCtxRetain`.
    pub(super) fn retain(&mut self, world: &World, ordinal: usize) -> Result<Context, String> {
        let gpu = self.devices.get(ordinal).ok_or("CUDA_ERROR_INVALID_DEVICE")?.clone();
        self.contexts += 1;
        let number = self.contexts;
        let own = variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").as_deref().and_then(envvar::percentage);
        let mut is_partition = false;
        let (link, sms, limit) = if self.mps.is_some() {
            let request = request(number, Some(gpu.uuid.clone()));
            let (link, grant) =
                Link::open(&pipe_directory(), request, &self.sticky, self.dies_at == Some(number))?;
            let Grant::Context { percentage, limits, partition_sms } = grant else {
                return Err("CUDA_ERROR_MPS_RPC_FAILURE".to_owned());
            };
            is_partition = partition_sms.is_some();
            let share = own.map_or(percentage, |own| own.min(percentage));
            // Before Volta there are neither shares nor limits, documented.
            let holds = gpu.compute_capability[0] >= 7;
            let sms =
                partition_sms.unwrap_or_else(|| if holds { envvar::sms(share, gpu.sms) } else { gpu.sms });
            (Some(link), sms, self.limit(ordinal, &limits).filter(|_| holds))
        } else {
            if !kernel::admits(world, &gpu) {
                return Err("CUDA_ERROR_DEVICE_UNAVAILABLE".to_owned());
            }
            (None, gpu.sms, None)
        };
        let kind = if link.is_some() { Kind::MpsClient } else { Kind::Compute };
        let unavailable = |_| "CUDA_ERROR_DEVICE_UNAVAILABLE".to_owned();
        let name = std::env::args().next().unwrap_or_default();
        let presence = Presence::enter(world, &gpu, kind, self.pid, &name).map_err(unavailable)?;
        let recorded = is_partition && gpu.name == PARTITION_CONTEXT.0;
        let cost = if recorded { PARTITION_CONTEXT.1 } else { self.cost(sms) };
        let mut context = Context { ordinal, number, gpu, sms, limit, presence, _link: link };
        context.allocate(cost)?;
        Ok(context)
    }

    /// The smaller of the server's limit and this process's own.
    ///
    /// The server's comes with the daemon's ordinal and is taken for the process's own one: on a daemon with
    /// several GPUs a renumbered client gets another GPU's. Where the process's own variable is void, so is it.
    fn limit(&self, ordinal: usize, server: &[(usize, u64)]) -> Option<Limit> {
        let visible: Vec<&Gpu> = self.devices.iter().collect();
        let own = envvar::limits(&visible, variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").as_deref())?;
        let own = own.into_iter().rfind(|(device, _)| *device == ordinal).map(|(_, limit)| limit);
        let server = server.iter().find(|(device, _)| *device == ordinal).map(|(_, bytes)| *bytes);
        match (own, server) {
            (Some(Limit::Bytes(own)), Some(server)) => Some(Limit::Bytes(own.min(server))),
            (own, server) => own.or(server.map(Limit::Bytes)),
        }
    }

    /// Returns the memory of a context itself: 27.5 MiB and 3.7 MiB for each SM, 2 MiB more beside other GPUs.
    fn cost(&self, sms: u32) -> u64 {
        (275 + 37 * u64::from(sms)) * MIB / 10 + if self.several { 2 * MIB } else { 0 }
    }
}

impl Context {
    pub(super) fn ordinal(&self) -> usize {
        self.ordinal
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(super) fn sms(&self) -> u32 {
        self.sms
    }

    /// Returns true if its GPU is gone.
    pub(super) fn is_lost(&self, world: &World) -> bool {
        kernel::is_lost(world, &self.gpu)
    }

    /// Returns the whole GPU's memory, whatever the limit.
    pub(super) fn total(&self) -> u64 {
        self.gpu.memory_total
    }

    pub(super) fn free(&self) -> u64 {
        // The two MLOPart devices of a GPU share its memory: what one takes both have less of (documented), half of it each here.
        let shared_by = if matches!(self.gpu.part, Some(Part::Mlo { .. })) { 2 } else { 1 };
        let free = self.presence.free() / shared_by;
        match self.limit {
            Some(Limit::Nonsense) => NONSENSE_FREE,
            Some(Limit::Bytes(limit)) => limit.saturating_sub(self.presence.used()).min(free),
            None => free,
        }
    }

    pub(super) fn allocate(&mut self, bytes: u64) -> Result<(), String> {
        let own = match self.limit {
            // The context itself still fits; everything after it does not.
            Some(Limit::Nonsense) => self.presence.used() == 0,
            Some(Limit::Bytes(limit)) => self.presence.used() + bytes <= limit,
            None => true,
        };
        if own && self.presence.take(bytes).unwrap_or(false) {
            Ok(())
        } else {
            Err("CUDA_ERROR_OUT_OF_MEMORY".to_owned())
        }
    }

    /// Frees an allocation.
    pub(super) fn release(&mut self, bytes: u64) {
        // If the file cannot be written, the memory stays taken until this process ends.
        let _ = self.presence.give_back(bytes);
    }

    /// Faults in a kernel of this context; returns the resulting error.
    pub(super) fn fault(&self, cuda: &Cuda, error: FaultKind) -> String {
        let own = error.runtime_error().to_owned();
        let Some(process) = cuda.mps.as_ref().filter(|_| error != FaultKind::Assert) else { return own };
        let sent = process.conn().send_message(&Notice::Fault { context: self.number, error });
        // The server answers with an error for everybody, this process included; if the server is dead, that shows too.
        while sent.is_ok() && cuda.error().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        cuda.error().unwrap_or(own)
    }
}

fn request(context: u32, device: Option<String>) -> ClientRequest {
    ClientRequest {
        context,
        device,
        partition: variable("CUDA_MPS_SM_PARTITION"),
        connections: variable("CUDA_DEVICE_MAX_CONNECTIONS")
            .and_then(|text| text.trim().parse().ok())
            .filter(|count| (1..=32).contains(count))
            .unwrap_or(CONNECTIONS),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns the driver's number and sentence for a result.
pub(super) fn result(name: &str) -> Option<(u32, &'static str)> {
    Some(match name {
        "CUDA_ERROR_OUT_OF_MEMORY" => (2, "out of memory"),
        "CUDA_ERROR_DEVICE_UNAVAILABLE" => (46, "CUDA-capable device(s) is/are busy or unavailable"),
        "CUDA_ERROR_NO_DEVICE" => (100, "no CUDA-capable device is detected"),
        "CUDA_ERROR_INVALID_DEVICE" => (101, "invalid device ordinal"),
        "CUDA_ERROR_MPS_CONNECTION_FAILED" => {
            (805, "MPS client failed to connect to the MPS control daemon or the MPS server")
        }
        "CUDA_ERROR_MPS_RPC_FAILURE" => {
            (806, "the remote procedural call between the MPS server and the MPS client failed")
        }
        "CUDA_ERROR_MPS_SERVER_NOT_READY" => {
            (807, "MPS server is not ready to accept new MPS client requests")
        }
        "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED" => {
            (808, "the hardware resources required to create MPS client have been exhausted")
        }
        "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED" => {
            (809, "the hardware resources required to support device connections have been exhausted")
        }
        "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION" => (915, "invalid resource configuration"),
        _ => return None,
    })
}

/// Returns the runtime's sentence for an error.
pub(super) fn describe(error: &str) -> &'static str {
    match error {
        "cudaErrorMpsRpcFailure" => {
            "the remote procedural call between the MPS server and the MPS client failed"
        }
        "cudaErrorMpsClientTerminated" => "the MPS client has been terminated by the server",
        "cudaErrorIllegalAddress" => "an illegal memory access was encountered",
        "cudaErrorUnknown" => "unknown error",
        "cudaErrorLaunchFailure" => "unspecified launch failure",
        "cudaErrorMisalignedAddress" => "misaligned address",
        _ => "unrecognized error code",
    }
}

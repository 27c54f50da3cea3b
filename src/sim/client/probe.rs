//! Report of a simulated CUDA process: the one JSON object that `mps-manager cuda-probe` answers with on a real host (recording
//! hardware/10), written here a second time.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;

use super::super::kernel::MIB;
use super::super::splitter::Split;
use super::super::world;
use super::cuda::{self, Context, Cuda};

/// The version of the object's shape.
const SCHEMA: u32 = 1;
/// Exit code when CUDA refuses.
const REFUSED: u8 = 3;
/// Group sizes that the splitter is queried for, from the chunk of the GPU on.
const GROUP_SIZES: [u32; 4] = [4, 8, 16, 32];

#[derive(Serialize)]
struct Report {
    schema: u32,
    pid: u32,
    driver_version: Option<String>,
    cuda_version: Option<String>,
    mps: Option<bool>,
    init_ms: Option<f64>,
    devices: Vec<Device>,
    error: Option<Failure>,
}

#[derive(Serialize)]
struct Device {
    ordinal: usize,
    uuid: String,
    name: String,
    compute_capability: String,
    mps: bool,
    sms: u32,
    memory_free: u64,
    memory_total: u64,
    context_ms: f64,
    priorities: Priorities,
    splitter: Vec<Split>,
    allocation: Option<Allocation>,
}

#[derive(Serialize)]
struct Priorities {
    least: i32,
    greatest: i32,
}

#[derive(Serialize)]
struct Allocation {
    asked: u64,
    largest: u64,
    refused_with: Option<Failure>,
}

#[derive(Serialize)]
struct Failure {
    code: Option<u32>,
    name: String,
    message: String,
}

/// Reads the simulated GPUs of a world and prints the report.
///
/// Like the real one, it may wait forever to be admitted by MPS, and ends without a word if nobody is there any more
/// who wants to know.
pub fn run(dir: &Path, allocate_up_to: Option<u64>) -> ExitCode {
    let parent = rustix::process::getppid();
    let Some(report) = probe(dir, allocate_up_to, || rustix::process::getppid() == parent) else {
        return ExitCode::from(REFUSED);
    };
    let text = serde_json::to_string(&report).expect("the report has string keys only");
    if writeln!(std::io::stdout().lock(), "{text}").is_err() {
        return ExitCode::from(2);
    }
    if report.error.is_none() { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) }
}

fn probe(dir: &Path, allocate_up_to: Option<u64>, still_wanted: impl Fn() -> bool) -> Option<Report> {
    let mut report = Report {
        schema: SCHEMA,
        pid: std::process::id(),
        driver_version: None,
        cuda_version: None,
        mps: None,
        init_ms: None,
        devices: Vec::new(),
        error: None,
    };
    let world = match world::open(dir) {
        Ok(world) => world,
        Err(error) => {
            let message = format!("there is no simulated host: {error}");
            report.error = Some(Failure { code: None, name: "no_driver".to_owned(), message });
            return Some(report);
        }
    };
    let host = world.host();
    report.driver_version = Some(host.driver_version.clone());
    let started = Instant::now();
    let initialised = Cuda::init(&world, None, false);
    if !still_wanted() {
        return None;
    }
    report.init_ms = Some(milliseconds(started));
    let version = host.cuda_driver_version;
    report.cuda_version = Some(format!("{}.{}", version / 1000, version % 1000 / 10));
    let mut cuda = match initialised {
        Ok(cuda) => cuda,
        Err(error) => {
            report.error = Some(failure(&error, "cuInit"));
            return Some(report);
        }
    };
    for ordinal in 0..cuda.devices().len() {
        let started = Instant::now();
        match cuda.retain(&world, ordinal) {
            Ok(mut context) => {
                let context_ms = milliseconds(started);
                report.devices.push(describe(&mut context, cuda.under_mps(), context_ms, allocate_up_to));
            }
            Err(error) => {
                let call = format!("cuDevicePrimaryCtxRetain on device {ordinal}");
                report.error.get_or_insert_with(|| failure(&error, &call));
            }
        }
    }
    report.mps = (!report.devices.is_empty()).then(|| cuda.under_mps());
    Some(report)
}

fn describe(context: &mut Context, mps: bool, context_ms: f64, allocate_up_to: Option<u64>) -> Device {
    let gpu = context.gpu().clone();
    let sms = context.sms();
    let [major, minor] = gpu.compute_capability;
    let sizes = GROUP_SIZES.into_iter().filter(|size| *size >= gpu.chunk_pairs() * 2);
    Device {
        ordinal: context.ordinal(),
        compute_capability: format!("{major}.{minor}"),
        mps,
        sms,
        memory_free: context.free(),
        memory_total: context.total(),
        context_ms,
        priorities: Priorities { least: 0, greatest: -5 },
        splitter: sizes.map(|size| gpu.split(sms, size)).collect(),
        allocation: allocate_up_to.map(|requested| largest_allocation(context, requested)),
        // CUDA reports bytes, which do not say what kind of device it is.
        uuid: gpu.uuid.replacen("MIG-", "GPU-", 1),
        name: gpu.name,
    }
}

/// The largest single allocation up to `requested` bytes, to the MiB; each is freed at once.
fn largest_allocation(context: &mut Context, requested: u64) -> Allocation {
    let (mut granted, mut refused, mut refused_with) = (0, requested / MIB + 1, None);
    let mut size = requested / MIB;
    while granted + 1 < refused {
        match context.allocate(size * MIB) {
            Ok(()) => {
                context.release(size * MIB);
                granted = size;
            }
            Err(error) => {
                refused = size;
                refused_with = Some(failure(&error, &format!("cuMemAlloc of {size} MiB")));
            }
        }
        size = granted.midpoint(refused);
    }
    Allocation { asked: requested, largest: granted * MIB, refused_with }
}

fn failure(error: &str, call: &str) -> Failure {
    let (code, description) = cuda::result(error).unzip();
    let message = format!("{call}: {}", description.unwrap_or("no description"));
    Failure { code, name: error.to_owned(), message }
}

/// Returns the time since `started`, in tenths of milliseconds.
fn milliseconds(started: Instant) -> f64 {
    (started.elapsed().as_secs_f64() * 1e4).round() / 10.0
}

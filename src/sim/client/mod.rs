//! `mps-manager sim client`: a CUDA program on the simulated host.
//!
//! It prints what the recordings' client prints, a line at once, and leaves with its exit codes: 3 when a call
//! of the driver fails, 4 when an error comes while it spins.

mod cuda;
mod link;
pub mod probe;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::kernel::MIB;
use super::protocol::FaultKind;
use super::world::{self, WORLD_VARIABLE};
use cuda::{Context, Cuda};

/// Size of the recorded client's allocations.
const BLOCK_MIB: u64 = 256;
/// Time that the recorded client stays after its fault.
const AFTER_FAULT: Duration = Duration::from_secs(2);
/// Shortest time until the contexts of a neighbour's process are gone after a fault (recorded: 24 to 350 ms). Not scaled: the log is
/// compared by the millisecond.
const LOSING: Duration = Duration::from_millis(24);
/// Time of one kernel.
const LAUNCH: Duration = Duration::from_millis(2);

/// The options of `mps-manager sim client`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ClientArgs {
    /// Keep launching kernels for so many seconds
    #[arg(long, value_name = "SECONDS")]
    pub spin: Option<f64>,
    /// Allocate so much memory on each GPU, in blocks of 256 MiB
    #[arg(long, value_name = "MIB")]
    pub alloc: Option<u64>,
    /// Fault after so many seconds
    #[arg(long, value_name = "SECONDS")]
    pub fault_after: Option<f64>,
    /// Kind of the fault
    #[arg(long, value_enum, default_value_t, value_name = "KIND")]
    pub fault_kind: FaultKind,
    /// Die (SIGKILL) while this connection is taken: 0 for the process's own, 1 for its first context
    #[arg(long, value_name = "CONNECTION")]
    pub die_connecting: Option<u32>,
    /// Stop (SIGSTOP) when MPS asks this process to exit, which hangs the daemon
    #[arg(long)]
    pub stop_terminating: bool,
    /// Ordinals of the GPUs to use, as this process sees them [default: all of them]
    #[arg(long, value_name = "ORDINALS", value_delimiter = ',')]
    pub gpus: Option<Vec<usize>>,
    /// The simulated host's directory
    #[arg(long, value_name = "DIR", env = WORLD_VARIABLE)]
    pub world: Option<PathBuf>,
    /// Print what is seen as one JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct Seen {
    pid: u32,
    mps: bool,
    devices: Vec<SeenDevice>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct SeenDevice {
    ordinal: usize,
    uuid: String,
    name: String,
    sms: u32,
    memory_free: u64,
    memory_total: u64,
}

/// The client alone, as a program of its own has it.
#[derive(Debug, clap::Parser)]
#[command(name = "sim client")]
struct Alone {
    #[command(flatten)]
    args: ClientArgs,
}

/// Runs the client if the words are a program's name, `sim client` and its options.
pub fn dispatch(words: &[OsString]) -> Option<ExitCode> {
    let [_, sim, client, ..] = words else { return None };
    let alone = || <Alone as clap::Parser>::parse_from(&words[2..]);
    (sim == "sim" && client == "client").then(|| run(&alone().args))
}

/// Runs the client.
pub fn run(args: &ClientArgs) -> ExitCode {
    let Some(dir) = &args.world else {
        eprintln!("no simulated host: give --world DIR or set {WORLD_VARIABLE}");
        return ExitCode::from(2);
    };
    match Program::new(args, dir) {
        Ok(mut program) => ExitCode::from(program.run()),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

struct Program<'a> {
    args: &'a ClientArgs,
    world: world::World,
}

/// Early end of the program, with its exit code.
struct Exit(u8);

impl<'a> Program<'a> {
    fn new(args: &'a ClientArgs, dir: &Path) -> Result<Self, world::WorldError> {
        Ok(Self { args, world: world::open(dir)? })
    }

    fn run(&mut self) -> u8 {
        match self.try_run() {
            Ok(()) => 0,
            Err(Exit(code)) => code,
        }
    }

    fn try_run(&self) -> Result<(), Exit> {
        let start = Instant::now();
        let (dies_at, stops) = (self.args.die_connecting, self.args.stop_terminating);
        let mut cuda = Cuda::init(&self.world, dies_at, stops)
            .map_err(|error| self.refused("cuInit(0)", error, false))?;
        self.say(&format!(
            "cuInit(0) -> CUDA_SUCCESS\ndriver {} devices {} pid {}",
            self.world.host().cuda_driver_version,
            cuda.devices().len(),
            std::process::id()
        ));
        let wanted = self.args.gpus.clone().unwrap_or_else(|| (0..cuda.devices().len()).collect());
        let mps = cuda.under_mps();
        let mut contexts = Vec::new();
        for ordinal in wanted {
            if let Some(gpu) = cuda.devices().get(ordinal) {
                self.say(&format!(
                    "{} uuid {}",
                    gpu.name,
                    gpu.uuid.trim_start_matches("GPU-").trim_start_matches("MIG-").replace('-', "")
                ));
            }
            let call = "cuDevicePrimaryCtxRetain(&ctx,d)";
            let context =
                cuda.retain(&self.world, ordinal).map_err(|error| self.refused(call, error, mps))?;
            self.say(&format!(
                "{call} -> CUDA_SUCCESS\ncuCtxSetCurrent(ctx) -> CUDA_SUCCESS\nctx create {:.3} s",
                start.elapsed().as_secs_f64()
            ));
            self.say(&format!(
                "SM {} free {} total {} prio least 0 greatest -5",
                context.sms(),
                context.free(),
                context.total()
            ));
            contexts.push(context);
        }
        if self.args.json {
            self.show(&Seen {
                pid: std::process::id(),
                mps: cuda.under_mps(),
                devices: contexts.iter().map(seen).collect(),
                error: None,
            });
        }
        if let Some(mib) = self.args.alloc {
            for context in &mut contexts {
                self.allocate(context, mib);
            }
        }
        self.work(&cuda, &contexts)
    }

    fn allocate(&self, context: &mut Context, wanted: u64) {
        let mut got = 0;
        while got < wanted {
            let block = BLOCK_MIB.min(wanted - got);
            if let Err(error) = context.allocate(block * MIB) {
                self.say(&format!("alloc fails after {got} MiB: {error}"));
                break;
            }
            got += block;
        }
        self.say(&format!("got {got} MiB\nfree {} total {}", context.free(), context.total()));
    }

    /// Launches kernels, among them the one that faults.
    fn work(&self, cuda: &Cuda, contexts: &[Context]) -> Result<(), Exit> {
        let start = Instant::now();
        let end = start + Duration::from_secs_f64(self.args.spin.unwrap_or(0.0).max(0.0));
        let fault = self.args.fault_after.map(|seconds| start + Duration::from_secs_f64(seconds.max(0.0)));
        let mut launches = 0_u64;
        while Instant::now() < fault.unwrap_or(end) {
            sleep(LAUNCH);
            let lost = || contexts.iter().any(|context| context.is_lost(&self.world));
            if let Some(error) = cuda.error().or_else(|| lost().then(|| "cudaErrorUnknown".to_owned())) {
                sleep(LOSING);
                self.fail(&format!("after {launches} launches: {error} {}", cuda::describe(&error)));
                return Err(Exit(4));
            }
            launches += 1;
        }
        if fault.is_some() {
            let error = contexts
                .first()
                .map_or_else(|| "cudaErrorNoDevice".to_owned(), |c| c.fault(cuda, self.args.fault_kind));
            self.say(&format!("fault: {error}"));
            sleep(self.world.scaled(AFTER_FAULT));
        } else if self.args.spin.is_some() {
            self.say(&format!("launches {launches}"));
        }
        Ok(())
    }

    fn refused(&self, call: &str, error: String, mps: bool) -> Exit {
        self.say(&format!("{call} -> {error}"));
        if self.args.json {
            self.show(&Seen { pid: std::process::id(), mps, devices: Vec::new(), error: Some(error) });
        }
        Exit(3)
    }

    fn say(&self, text: &str) {
        if !self.args.json {
            line(text);
        }
    }

    /// Prints an error; with `--json`, one that comes after the JSON object goes to stderr.
    fn fail(&self, text: &str) {
        if self.args.json { eprintln!("{text}") } else { line(text) }
    }

    #[allow(clippy::unused_self, reason = "one of the program's three ways to speak")]
    fn show(&self, seen: &Seen) {
        line(&serde_json::to_string(seen).expect("what is seen has string keys only"));
    }
}

fn line(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

fn seen(context: &Context) -> SeenDevice {
    SeenDevice {
        ordinal: context.ordinal(),
        uuid: context.gpu().uuid.clone(),
        name: context.gpu().name.clone(),
        sms: context.sms(),
        memory_free: context.free(),
        memory_total: context.total(),
    }
}

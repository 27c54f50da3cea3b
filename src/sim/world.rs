//! The world: the directory that is the simulated host's kernel and driver.
//!
//! ```text
//! world.json                        the host: versions and GPUs; never changes
//! seed                              source of the UUIDs, besides the profile
//! gpus/<uuid>/compute_mode          default | exclusive_process | prohibited
//! gpus/<uuid>/processes/<pid>       one GPU process, held by flock for life
//! gpus/<uuid>/memory.lock           held while memory is taken
//! time_scale                        durations of the programs, as a multiple of the recorded times; 1 without it
//! dev/nvidia<minor>                 the device file, which each GPU process keeps open for life
//! gpus/<uuid>/lost                  marks the GPU as gone: made and removed by hand
//! gpus/<uuid>/mig                   marks the GPU as in MIG mode: made and removed by hand. Each line is an instance: its number, UUID,
//!                                   profile, SMs, and memory in bytes
//! kernel.log                        the kernel's log, in the form of /dev/kmsg
//! bin/nvidia-cuda-mps-{control,server}
//! ```
//! Processes of any uid use GPUs, so the directories of processes are open to all, as `/dev/nvidia*` is.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::profile::{self, Gpu, Host, Part};

/// The name under which the binary is the control program.
pub(super) const CONTROL: &str = "nvidia-cuda-mps-control";
/// The name under which the binary is the server.
pub(super) const SERVER: &str = "nvidia-cuda-mps-server";

/// The environment variable that names the world.
pub const WORLD_VARIABLE: &str = "MPS_SIM_WORLD";

/// Why a world cannot be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The profile names no host that can be simulated.
    #[error("cannot simulate {profile:?}: {reason}. Profiles are {known}")]
    Profile {
        /// The profile as given.
        profile: String,
        /// Reason why it is refused.
        reason: String,
        /// The known profiles, in words.
        known: String,
    },
    /// The directory already holds another host.
    #[error("{dir} already simulates {existing}, not {wanted}; use another directory or remove this one")]
    Different {
        /// The world's directory.
        dir: PathBuf,
        /// The profile that it has.
        existing: String,
        /// The profile that was requested.
        wanted: String,
    },
    /// The directory holds something that is not a world.
    #[error("{path} is not a simulated host: {reason}")]
    Broken {
        /// The file that cannot be read as what it should be.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file concerned.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// A simulated host's directory.
#[derive(Debug, Clone)]
pub struct World {
    dir: PathBuf,
    host: Host,
    time_scale: f64,
}

impl World {
    /// The world's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of the simulated MPS programs, to be put on `PATH`.
    pub fn bin(&self) -> PathBuf {
        self.dir.join("bin")
    }

    /// The profile in its full spelling, such as `h200x2@13.1`.
    pub fn profile(&self) -> &str {
        &self.host.profile
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Scales a time that was recorded on real hardware to the time scale of this host.
    pub(crate) fn scaled(&self, recorded: Duration) -> Duration {
        recorded.mul_f64(self.time_scale)
    }

    pub(crate) fn device_file(&self, gpu: &Gpu) -> PathBuf {
        self.dir.join("dev").join(format!("nvidia{}", gpu.minor))
    }

    /// Returns the path of the kernel's log, which servers of every user write.
    pub fn kernel_log(&self) -> PathBuf {
        self.dir.join("kernel.log")
    }

    /// Returns the directory of a device, which an MLOPart device shares with its GPU.
    pub(crate) fn gpu_dir(&self, gpu: &Gpu) -> PathBuf {
        let uuid = match &gpu.part {
            Some(Part::Mlo { parent, .. }) => parent,
            _ => &gpu.uuid,
        };
        self.dir.join("gpus").join(uuid)
    }

    /// Returns the devices that CUDA and MPS find now: each GPU, or its MIG instances in its place.
    pub(crate) fn devices(&self) -> Vec<Gpu> {
        self.host
            .gpus
            .iter()
            .flat_map(|gpu| self.instances(gpu).unwrap_or_else(|| vec![gpu.clone()]))
            .collect()
    }

    /// Returns the MIG instances of a GPU, which have directories from then on; `None` if it is not in MIG mode.
    pub(crate) fn instances(&self, gpu: &Gpu) -> Option<Vec<Gpu>> {
        let text = fs::read_to_string(self.gpu_dir(gpu).join("mig")).ok()?;
        let instances = text.lines().filter_map(|line| {
            let [_, uuid, profile, sms, memory] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                return None;
            };
            let instance = Gpu {
                uuid: uuid.to_owned(),
                name: format!("{} MIG {profile}", gpu.name),
                sms: sms.parse().ok()?,
                memory_total: memory.parse().ok()?,
                mlo_sms: None,
                part: Some(Part::Mig {
                    parent: gpu.uuid.clone(),
                    slices: profile.split('g').next()?.parse().ok()?,
                }),
                ..gpu.clone()
            };
            prepare(&self.gpu_dir(&instance)).ok().map(|()| instance)
        });
        Some(instances.collect())
    }
}

/// Refuses a profile that names no host that can be simulated.
pub fn check_profile(profile: &str) -> Result<(), WorldError> {
    profile::canonical(profile).map(drop).map_err(|reason| bad_profile(profile, reason))
}

/// Makes the world of a profile in `dir`, or opens it where it already is.
///
/// Idempotent: a world keeps its UUIDs, its compute modes and its processes; only the links in `bin` are made to
/// point again at the running binary, or at `simulated-mps` beside it, which starts faster.
pub fn create(dir: &Path, profile: &str) -> Result<World, WorldError> {
    let manager = std::env::current_exe().map_err(at(dir))?;
    let small = manager.with_file_name("simulated-mps");
    create_for(dir, profile, if small.is_file() { &small } else { &manager })
}

/// Makes a world as [`create`] does, for a caller that is not itself the binary which plays the programs: a test.
pub fn create_for(dir: &Path, profile: &str, program: &Path) -> Result<World, WorldError> {
    let wanted = profile::canonical(profile).map_err(|reason| bad_profile(profile, reason))?;
    fs::create_dir_all(dir).map_err(at(dir))?;
    let dir = dir.canonicalize().map_err(at(dir))?;
    let file = dir.join("world.json");
    let world = if file.exists() {
        let world = open(&dir)?;
        if world.host.profile != wanted {
            return Err(WorldError::Different { dir, existing: world.host.profile, wanted });
        }
        world
    } else {
        let seed = seed(&dir)?;
        let host = profile::host(&wanted, &seed).map_err(|reason| bad_profile(profile, reason))?;
        let world = World { dir: dir.clone(), host, time_scale: time_scale(&dir)? };
        for gpu in &world.host.gpus {
            prepare(&world.gpu_dir(gpu))?;
            if let Some(instances) = profile::mig_instances(&world.host, gpu, &seed) {
                write_once(&world.gpu_dir(gpu).join("mig"), instances.as_bytes())?;
            }
        }
        let log = world.kernel_log();
        write_once(&log, b"")?;
        fs::set_permissions(&log, Permissions::from_mode(0o666)).map_err(at(&log))?;
        // Last, so that a world with this file is whole.
        write_once(&file, &serde_json::to_vec_pretty(&world.host).expect("the host has string keys only"))?;
        world
    };
    devices(&world)?;
    link(&world, program)?;
    Ok(world)
}

/// Opens the world in `dir`.
pub(crate) fn open(dir: &Path) -> Result<World, WorldError> {
    let path = dir.join("world.json");
    let text = fs::read(&path).map_err(at(&path))?;
    match serde_json::from_slice::<Host>(&text) {
        Ok(host) if host.schema == 1 => Ok(World { dir: dir.to_owned(), host, time_scale: time_scale(dir)? }),
        Ok(host) => Err(WorldError::Broken { path, reason: format!("its schema is {}", host.schema) }),
        Err(error) => Err(WorldError::Broken { path, reason: error.to_string() }),
    }
}

/// Finds the world that an MPS program, called as `argv0`, belongs to.
///
/// The variable wins; without it the program's link lies in the world's `bin`, so that shell scripts run
/// unchanged with that directory on `PATH`.
pub(crate) fn of_program(argv0: &Path) -> Result<World, WorldError> {
    if let Some(dir) = std::env::var_os(WORLD_VARIABLE) {
        return open(Path::new(&dir));
    }
    let link = if argv0.components().count() > 1 {
        argv0.to_owned()
    } else {
        std::env::var_os("PATH")
            .and_then(|path| {
                std::env::split_paths(&path).map(|dir| dir.join(argv0)).find(|file| file.exists())
            })
            .unwrap_or_else(|| argv0.to_owned())
    };
    let bin = link.parent().unwrap_or(Path::new("."));
    open(&bin.join(".."))
}

fn bad_profile(profile: &str, reason: String) -> WorldError {
    WorldError::Profile { profile: profile.to_owned(), reason, known: profile::known() }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> WorldError + '_ {
    move |source| WorldError::Io { path: path.to_owned(), source }
}

/// Reads the file that makes a test's host faster than a real one.
fn time_scale(dir: &Path) -> Result<f64, WorldError> {
    let path = dir.join("time_scale");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(1.0),
        Err(error) => return Err(at(&path)(error)),
    };
    match text.trim().parse() {
        Ok(scale) if (0.0..=100.0).contains(&scale) => Ok(scale),
        _ => Err(WorldError::Broken {
            path,
            reason: format!("{:?} is not a number from 0 to 100", text.trim()),
        }),
    }
}

fn seed(dir: &Path) -> Result<String, WorldError> {
    let path = dir.join("seed");
    if !path.exists() {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| WorldError::Broken {
            path: path.clone(),
            reason: format!("no random numbers: {error}"),
        })?;
        write_once(&path, hex::encode(bytes).as_bytes())?;
    }
    Ok(fs::read_to_string(&path).map_err(at(&path))?.trim().to_owned())
}

/// Makes the files of a GPU, unless they are there: those of another user cannot be changed.
fn prepare(gpu: &Path) -> Result<(), WorldError> {
    let compute_mode = gpu.join("compute_mode");
    if compute_mode.exists() {
        return Ok(());
    }
    let processes = gpu.join("processes");
    fs::create_dir_all(&processes).map_err(at(&processes))?;
    // No sticky bit: a dead process's file may be removed, or taken over with its PID, by any other uid.
    for dir in [gpu, &processes] {
        fs::set_permissions(dir, Permissions::from_mode(0o777)).map_err(at(dir))?;
    }
    let lock = gpu.join("memory.lock");
    write_once(&lock, b"")?;
    fs::set_permissions(&lock, Permissions::from_mode(0o666)).map_err(at(&lock))?;
    // Last, so that a GPU with this file has all.
    write_once(&compute_mode, b"default\n")
}

/// Makes the device files, also in a world of before there were any.
fn devices(world: &World) -> Result<(), WorldError> {
    let dev = world.dir.join("dev");
    fs::create_dir_all(&dev).map_err(at(&dev))?;
    for gpu in &world.host.gpus {
        let path = world.device_file(gpu);
        // An existing file is kept: processes have this very file open.
        if !path.exists() {
            write_once(&path, b"")?;
        }
    }
    Ok(())
}

/// Writes a file that no reader ever sees half written.
fn write_once(path: &Path, content: &[u8]) -> Result<(), WorldError> {
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = fs::File::create(&draft).map_err(at(&draft))?;
    file.write_all(content).map_err(at(&draft))?;
    file.set_permissions(Permissions::from_mode(0o644)).map_err(at(&draft))?;
    fs::rename(&draft, path).map_err(at(path))
}

fn link(world: &World, program: &Path) -> Result<(), WorldError> {
    let bin = world.bin();
    fs::create_dir_all(&bin).map_err(at(&bin))?;
    for name in [CONTROL, SERVER] {
        let path = bin.join(name);
        if fs::read_link(&path).is_ok_and(|target| target == program) {
            continue;
        }
        let draft = bin.join(format!(".{name}.{}", std::process::id()));
        let _ = fs::remove_file(&draft);
        symlink(program, &draft).map_err(at(&draft))?;
        fs::rename(&draft, &path).map_err(at(&path))?;
    }
    Ok(())
}

//! A trial: a simulated host that is ended with everything it started and wrote.
//!
//! Nothing else is touched. A process is ended only if it plays a simulated program, or is one of MPS's own programs that the manager was
//! given instead, and names this simulated host. A directory loses only the files that a manager writes, and is removed only if it is
//! empty then.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;

use super::{CONTROL_PROGRAM, DATABASE, StartupError, refused};
use crate::config::Config;
use crate::host::signal::{SignalReason, is_of_simulated_host, send};
use crate::host::{Identity, Signal, process};
use crate::mps::process::is_same_directory;
use crate::sim::world::WORLD_VARIABLE;
use crate::store;
use crate::store::audit_head::AUDIT_HEAD;

/// Marker file in a state directory that began with a manager of a simulated host.
const SIMULATED: &str = "simulated";
/// Files of a manager in a state directory, beside the database with its log and its copies.
const STATE: [&str; 4] = ["admin.token", AUDIT_HEAD, super::seed::SEEDING, "lock"];
/// Entries of a runtime directory of a simulated host's manager.
const RUNTIME: [&str; 6] = ["api.sock", "by-name", "daemons", "env", "sim", "tenants"];
/// Longest time for processes to die of a signal.
const DYING: Duration = Duration::from_secs(2);
/// Number of searches for processes: a daemon may start a server while it is being ended.
const ROUNDS: usize = 10;

/// Why a trial was not ended, or not wholly.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// Nothing is simulated in this directory.
    #[error(
        "{0} holds no simulated host (no sim/world.json): give the --runtime-dir that `mps-manager serve --sim` was started with"
    )]
    NotSimulated(PathBuf),
    /// The state directory may be that of a real host.
    #[error(
        "{0} is not a state directory of a simulated host (no file {SIMULATED:?}): nothing in it was removed; remove it by hand if nobody \
         needs it"
    )]
    StateNotSimulated(PathBuf),
    /// A process could not be ended.
    #[error(
        "process {process} cannot be ended: {reason}; end it as its user or as root, and repeat the command"
    )]
    Process {
        /// The process.
        process: Identity,
        /// The reason.
        reason: String,
    },
    /// A manager serves from the state directory.
    #[error(transparent)]
    Lock(#[from] store::lock::LockError),
    /// A directory could not be removed.
    #[error("{path} cannot be removed: {source}", path = path.display())]
    Remove {
        /// The directory or a file in it.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Result of the removal of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryRemoval {
    /// It was not there.
    Missing,
    /// It is gone.
    Removed,
    /// It stays, with these entries that no manager wrote.
    Kept(Vec<String>),
}

/// Marks a new state directory as that of a simulated host.
pub(super) fn mark(config: &Config) -> Result<(), StartupError> {
    if config.sim.is_none() || config.state_dir.join(DATABASE).exists() {
        return Ok(());
    }
    let file = config.state_dir.join(SIMULATED);
    let text = format!("{}\n", config.runtime_dir.display());
    fs::write(&file, text).map_err(|error| StartupError(format!("{}: {error}", file.display())))
}

/// Refuses a trial whose end would remove what was there before: a directory must be new, empty, or left by an earlier trial. Returns the
/// directories around them that do not exist yet, the innermost first.
pub(super) fn check_removable(config: &Config) -> Result<Vec<PathBuf>, StartupError> {
    if config.sim.is_none() {
        return Err(StartupError(
            "--rm removes the state and the runtime directory at the end, which is for simulated hosts only: add --sim PROFILE, as \
             --sim h200x2, or leave --rm out"
                .to_owned(),
        ));
    }
    let refuse = |path: &Path, why: &str| {
        Err(StartupError(format!(
            "--rm would remove {} at the end, and {why}: give another directory, or leave --rm out",
            path.display()
        )))
    };
    let (state, runtime) = (&config.state_dir, &config.runtime_dir);
    if state.starts_with(runtime) || runtime.starts_with(state) {
        return refuse(state, "one of the two directories lies in the other");
    }
    let names = entries(state).map_err(refused)?;
    let foreign = foreign(&names, is_state);
    if !foreign.is_empty() {
        return refuse(state, &format!("it holds {}, which no manager put there", foreign.join(", ")));
    }
    if !names.is_empty() && !names.contains(SIMULATED) {
        return refuse(state, "it is not known to be that of a simulated host");
    }
    let names = entries(runtime).map_err(refused)?;
    let foreign = self::foreign(&names, is_runtime);
    if !foreign.is_empty() {
        return refuse(runtime, &format!("it holds {}, which no manager put there", foreign.join(", ")));
    }
    if !names.is_empty() && !names.contains("sim") {
        return refuse(runtime, "it is that of a real host");
    }
    let around = [state, runtime].into_iter().flat_map(|directory| directory.ancestors().skip(1));
    Ok(around.filter(|path| !path.exists()).map(Path::to_owned).collect())
}

/// Refuses a runtime directory that is not a simulated host's.
pub fn check_simulated(runtime_dir: &Path) -> Result<(), TrialError> {
    let is_simulated = world(runtime_dir).join("world.json").is_file();
    if is_simulated { Ok(()) } else { Err(TrialError::NotSimulated(runtime_dir.to_owned())) }
}

/// Refuses a state directory that did not begin as a simulated host's; one that is missing or empty holds nothing to lose.
pub fn check_simulated_state(state_dir: &Path) -> Result<(), TrialError> {
    let names = entries(state_dir)?;
    if names.is_empty() || names.contains(SIMULATED) {
        return Ok(());
    }
    Err(TrialError::StateNotSimulated(state_dir.to_owned()))
}

/// Ends every process of the simulated host in a runtime directory; returns how many there were.
pub async fn end_processes(runtime_dir: &Path) -> Result<usize, TrialError> {
    let world = world(runtime_dir);
    let mut ended = BTreeSet::new();
    for round in 0..ROUNDS {
        let running = processes(&world);
        if running.is_empty() {
            return Ok(ended.len());
        }
        let signal = if round == 0 { Signal::TERM } else { Signal::KILL };
        for &process in &running {
            let sent = send(process, signal, SignalReason::SimulatedProgram);
            sent.map_err(|error| TrialError::Process { process, reason: error.to_string() })?;
            ended.insert((process.pid, process.start_time));
        }
        let deaths = join_all(running.into_iter().map(process::death));
        // A process that survives is found in the next round.
        let _ = tokio::time::timeout(DYING, deaths).await;
    }
    match processes(&world).first() {
        None => Ok(ended.len()),
        Some(&process) => {
            Err(TrialError::Process { process, reason: "it does not die of SIGKILL".to_owned() })
        }
    }
}

/// Ends the manager of a simulated host, and waits until it has ended.
pub async fn end_manager(process: Identity) -> Result<(), TrialError> {
    let failed = |reason: String| TrialError::Process { process, reason };
    send(process, Signal::TERM, SignalReason::SimulatedManager).map_err(|error| failed(error.to_string()))?;
    let longest = crate::lifecycle::SOFT_STOP + DYING;
    let ended = tokio::time::timeout(longest, process::death(process)).await;
    ended.map_err(|_| failed("it does not stop".to_owned()))
}

/// Removes the files of a simulated host's manager from a runtime directory.
pub fn remove_runtime(runtime_dir: &Path) -> Result<DirectoryRemoval, TrialError> {
    remove(runtime_dir, is_runtime)
}

/// Removes the files of a simulated host's manager from a state directory, unless a manager serves from it.
pub async fn remove_state(state_dir: &Path) -> Result<DirectoryRemoval, TrialError> {
    check_simulated_state(state_dir)?;
    if !state_dir.exists() {
        return Ok(DirectoryRemoval::Missing);
    }
    let lock = store::lock::take(state_dir).await?;
    let removed = remove(state_dir, is_state);
    drop(lock);
    removed
}

/// Ends and removes everything of a simulated host whose manager has just stopped, with the directories `around` that were made for it;
/// reports what it could not remove.
pub(super) async fn remove_all(config: &Config, around: &[PathBuf]) -> Result<(), StartupError> {
    end_processes(&config.runtime_dir).await.map_err(refused)?;
    let removals = [
        (&config.runtime_dir, remove_runtime(&config.runtime_dir)),
        (&config.state_dir, remove_state(&config.state_dir).await),
    ];
    for (path, removal) in removals {
        if let DirectoryRemoval::Kept(names) = removal.map_err(refused)? {
            tracing::warn!("{} was not removed: it holds {}", path.display(), names.join(", "));
        }
    }
    for path in around {
        // A directory that others use meanwhile stays.
        let _ = fs::remove_dir(path);
    }
    Ok(())
}

fn world(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("sim")
}

/// Finds the processes of this simulated host: by its directory in their environment, or as a client's `--world`.
fn processes(world: &Path) -> Vec<Identity> {
    let named = process::having(WORLD_VARIABLE)
        .into_iter()
        .filter(|(_, directory)| is_same_directory(Path::new(directory), world))
        .map(|(id, _)| id);
    let by_option = process::find_by_command(|words| {
        let mut values = words.iter().skip(3).zip(words.iter().skip(2));
        values.any(|(value, option)| option == "--world" && is_same_directory(Path::new(value), world))
    });
    let mut identities: Vec<Identity> = named.chain(by_option).collect();
    identities.retain(|id| is_of_simulated_host(id.pid));
    identities.sort_unstable_by_key(|id| (id.pid, id.start_time));
    identities.dedup();
    identities
}

fn is_state(name: &str) -> bool {
    STATE.contains(&name) || name == SIMULATED || name.starts_with("mps-manager.")
}

fn is_runtime(name: &str) -> bool {
    RUNTIME.contains(&name) || name.strip_suffix(".json").unwrap_or(name) == CONTROL_PROGRAM
}

/// Returns the names in a directory; none if it is missing.
fn entries(directory: &Path) -> Result<BTreeSet<String>, TrialError> {
    let failed = |source| TrialError::Remove { path: directory.to_owned(), source };
    let list = match fs::read_dir(directory) {
        Ok(list) => list,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(failed(error)),
    };
    list.map(|entry| Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned())).collect()
}

/// Returns the names in a directory that are not a manager's.
fn foreign(names: &BTreeSet<String>, is_own: impl Fn(&str) -> bool) -> Vec<String> {
    names.iter().filter(|name| !is_own(name)).cloned().collect()
}

/// Removes a manager's files, and the directory if it is empty then.
fn remove(directory: &Path, is_own: impl Fn(&str) -> bool) -> Result<DirectoryRemoval, TrialError> {
    if !directory.exists() {
        return Ok(DirectoryRemoval::Missing);
    }
    let names = entries(directory)?;
    for name in names.iter().filter(|name| is_own(name)) {
        let path = directory.join(name);
        let is_directory = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        let removed = if is_directory { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(TrialError::Remove { path, source });
            }
            _ => {}
        }
    }
    let kept = foreign(&names, is_own);
    if !kept.is_empty() {
        return Ok(DirectoryRemoval::Kept(kept));
    }
    fs::remove_dir(directory).map_err(|source| TrialError::Remove { path: directory.to_owned(), source })?;
    Ok(DirectoryRemoval::Removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(directory: &Path) -> Config {
        Config {
            sim: Some("h200x2".to_owned()),
            state_dir: directory.join("state"),
            runtime_dir: directory.join("run"),
            ..Config::default()
        }
    }

    #[test]
    fn only_trials_own_directories_are_removable() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = config(directory.path());
        assert_eq!(check_removable(&config).expect("nothing is there yet"), Vec::<PathBuf>::new());
        let below = directory.path().join("a");
        let deep = Config { state_dir: below.join("b/state"), ..config.clone() };
        assert_eq!(check_removable(&deep).expect("nothing is there yet"), [below.join("b"), below]);
        let refusal = |config: &Config| check_removable(config).expect_err("refused").to_string();
        let real = Config { sim: None, ..config.clone() };
        assert!(refusal(&real).contains("add --sim"), "{}", refusal(&real));

        for path in [&config.state_dir, &config.runtime_dir] {
            fs::create_dir(path).expect("made");
            check_removable(&config).expect("it is empty");
        }
        mark(&config).expect("marked");
        fs::write(config.state_dir.join(DATABASE), "x").expect("written");
        check_removable(&config).expect("an earlier trial's");
        fs::write(config.state_dir.join("thesis.txt"), "x").expect("written");
        assert!(refusal(&config).contains("thesis.txt"));
        fs::remove_file(config.state_dir.join("thesis.txt")).expect("removed");
        fs::remove_file(config.state_dir.join(SIMULATED)).expect("removed");
        assert!(refusal(&config).contains("not known to be that of a simulated host"));
        mark(&config).expect("nothing to do");
        assert!(!config.state_dir.join(SIMULATED).exists(), "a database was there before");
        fs::remove_file(config.state_dir.join(DATABASE)).expect("removed");
        fs::create_dir(config.runtime_dir.join("daemons")).expect("made");
        assert!(refusal(&config).contains("a real host"));
        let nested = Config { state_dir: config.runtime_dir.join("state"), ..config };
        assert!(refusal(&nested).contains("lies in the other"));
    }

    #[test]
    fn foreign_files_survive_the_removal() {
        let directory = tempfile::tempdir().expect("a directory");
        let runtime = directory.path().join("run");
        assert_eq!(remove_runtime(&runtime).expect("missing"), DirectoryRemoval::Missing);
        fs::create_dir_all(runtime.join("sim/gpus")).expect("made");
        fs::create_dir(runtime.join("mine")).expect("made");
        let kept = remove_runtime(&runtime).expect("the rest is removed");
        assert_eq!(kept, DirectoryRemoval::Kept(vec!["mine".to_owned()]));
        assert!(runtime.join("mine").exists() && !runtime.join("sim").exists());
        fs::remove_dir(runtime.join("mine")).expect("removed");
        assert_eq!(remove_runtime(&runtime).expect("empty"), DirectoryRemoval::Removed);
    }

    #[tokio::test]
    async fn unmarked_state_directory_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join(DATABASE), "x").expect("written");
        let error = remove_state(directory.path()).await.expect_err("refused").to_string();
        assert!(error.contains("not a state directory of a simulated host"), "{error}");
        assert!(directory.path().join(DATABASE).exists());
    }
}

//! `mps-manager bootstrap`: a fresh host from nothing to a service with a host file.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;

use super::change::memory_limit;
use super::output::{CommandResult, complain, line, remark};
use super::values::{device_index, thread_percentage, user};
use crate::domain::DeviceMemoryLimit;
use crate::domain::count::counted;
use crate::domain::device_index::DeviceIndex;
use crate::domain::host_file::text;
use crate::domain::layout::text::LayoutFormat;
use crate::gpu::Inventory as _;
use crate::gpu::nvml::NvmlInventory;
use crate::host::signal::CONTROL;
use crate::host::systemd;

/// The unit of a host without the package.
const UNIT: &str = include_str!("../../deploy/mps-manager.service");
/// Path at which that unit expects this program.
const EXPECTED: &str = "/usr/local/bin/mps-manager";
/// Path at which a package installs this program.
const PACKAGED: &str = "/usr/bin/mps-manager";
/// Directories in which a package or an administrator puts units.
const UNITS: [&str; 3] = ["etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];
const SERVICE: &str = "mps-manager.service";
const DROP_IN: &str = "etc/systemd/system/mps-manager.service.d/50-host-file.conf";
const WANTS: &str = "etc/systemd/system/multi-user.target.wants";

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager bootstrap --concurrency 4
  mps-manager bootstrap --concurrency 8 --pinned-memory-limit 0=8G,1=16G --uid 1000
  mps-manager bootstrap --concurrency 4 --gpus 0,1 --root /mnt/image")]
pub(super) struct BootstrapArgs {
    /// Number of processes that share each GPU
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=60))]
    concurrency: u32,
    /// The share of the threads of a GPU that each process gets; by default 100 divided by the concurrency
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = thread_percentage)]
    active_thread_percentage: Option<f64>,
    /// The memory that each process gets: one size, or one for each GPU
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = memory_limit)]
    pinned_memory_limit: Option<String>,
    /// The GPUs, by index, and MIG instances, as 0/mig1; by default all that the driver lists, of a GPU in MIG mode its instances
    #[arg(long, value_name = "INDEX,INDEX", value_delimiter = ',', value_parser = device_index)]
    gpus: Vec<DeviceIndex>,
    /// The user of the processes, by name or number
    #[arg(long, value_name = "USER", default_value = "0", value_parser = user)]
    uid: u32,
    /// The host file that is written
    #[arg(long, value_name = "FILE", default_value = "/etc/mps-manager/host.yaml")]
    host_file: PathBuf,
    /// Replace a host file that says otherwise
    #[arg(long)]
    force: bool,
    /// Write the files below this directory, as for an image that has the program; starts nothing
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Enable the service without starting it
    #[arg(long)]
    no_start: bool,
}

pub(super) fn run(args: &BootstrapArgs) -> CommandResult {
    let gpus = if args.gpus.is_empty() { listed_gpus()? } else { args.gpus.clone() };
    let written = host_file(args, &gpus)?;
    if !args.host_file.is_absolute() {
        return Err(format!(
            "{} is not an absolute path: the service reads the host file",
            args.host_file.display()
        )
        .into());
    }
    let applied = in_unit(&args.host_file)?;
    let root = args.root.as_deref().unwrap_or(Path::new("/"));
    let root = &root.canonicalize().unwrap_or(root.to_owned());
    let place = below(root, &args.host_file);
    for written in [&place, &root.join(UNITS[0]).join(SERVICE), &root.join(DROP_IN), &root.join(WANTS)] {
        stays_inside(root, written)?;
    }
    let is_new = is_to_be_written(&place, &written, args.force)?;
    let installed = UNITS.iter().map(|units| root.join(units).join(SERVICE)).find(|unit| unit.exists());
    let has_unit = installed.is_some();
    let unit = installed.unwrap_or_else(|| root.join(UNITS[0]).join(SERVICE));
    let text = if has_unit {
        fs::read_to_string(&unit).map_err(|error| format!("{}: {error}", unit.display()))?
    } else {
        UNIT.replace(EXPECTED, &program(args, root)?)
    };
    let starts = with_host_file(&text, applied)
        .ok_or_else(|| format!("{} has no ExecStart= that serves: write one yourself", unit.display()))?;
    // Everything that can be refused was refused above, before anything is written.
    if is_new {
        write(&place, &written)?;
    }
    if !has_unit {
        write(&unit, &text)?;
    }
    write(
        &root.join(DROP_IN),
        &format!("# Written by mps-manager bootstrap.\n[Service]\nExecStart=\nExecStart={starts}\n"),
    )?;
    enable(args, root, &unit)?;
    report(args, &gpus, &place);
    for unit in systemd::services_that_start(root, CONTROL) {
        complain(&format!(
            "{unit} starts an MPS control daemon at boot, which serves GPUs beside the manager's: systemctl{} disable {unit}",
            args.root.as_ref().map(|root| format!(" --root {}", root.display())).unwrap_or_default()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// A path of the host as it is reached from here.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Refuses a path of an image whose links lead out of it, since they are the image's own.
fn stays_inside(root: &Path, path: &Path) -> Result<(), String> {
    let is_image = root != Path::new("/");
    let leads_out =
        |place: &&Path| place.canonicalize().map_or(place.is_symlink(), |real| !real.starts_with(root));
    let mut below = path.ancestors().take_while(|place| is_image && *place != root);
    let Some(link) = below.find(leads_out) else { return Ok(()) };
    let (link, root) = (link.display(), root.display());
    Err(format!(
        "{link} leads out of {root}, so nothing was written: make it a directory, or a relative link"
    ))
}

/// Returns a path as text for a unit; a path that systemd would read differently is refused.
fn in_unit(path: &Path) -> Result<&str, String> {
    let is_plain = |character: char| character.is_alphanumeric() || "/._-+@:,=~".contains(character);
    path.to_str().filter(|text| text.chars().all(is_plain)).ok_or_else(|| {
        format!(
            "{} cannot stand in a unit of systemd: use a path of letters, digits and / . _ - + @ : , = ~",
            path.display()
        )
    })
}

/// Returns true if the host file must be written: it is missing, or it differs and `force` is given. Differing without `force` is an error.
fn is_to_be_written(place: &Path, written: &str, force: bool) -> Result<bool, String> {
    match fs::read_to_string(place) {
        Ok(before) if before == written => Ok(false),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        _ if force => Ok(true),
        Ok(_) => Err(format!(
            "{} exists and says otherwise, so nothing was written: compare them (mps-manager diff), or replace it with --force",
            place.display()
        )),
        Err(error) => Err(format!(
            "{} cannot be read ({error}), so nothing was written: look at what it is, or replace it with --force",
            place.display()
        )),
    }
}

/// The program that a new unit starts: this one, or with `--root` the one that the image has.
fn program(args: &BootstrapArgs, root: &Path) -> Result<String, String> {
    if args.root.is_none() {
        let own =
            std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?;
        return in_unit(&own).map(ToOwned::to_owned);
    }
    // A symbolic link of the image leads nowhere from here.
    let is_there = |program: &&str| fs::symlink_metadata(below(root, Path::new(program))).is_ok();
    [EXPECTED, PACKAGED].into_iter().find(is_there).map(ToOwned::to_owned).ok_or_else(|| {
        format!(
            "{} has neither {EXPECTED} nor {PACKAGED}, so its service would start nothing: install the program there first",
            root.display()
        )
    })
}

/// The GPUs that can be managed.
fn listed_gpus() -> Result<Vec<DeviceIndex>, String> {
    let open = NvmlInventory::open().and_then(|inventory| inventory.gpus());
    let gpus = open.map_err(|error| format!("{error}\nOn a machine without GPUs, name them: --gpus 0,1"))?;
    let usable: Vec<DeviceIndex> = gpus.iter().filter(|gpu| !gpu.mig_enabled).map(|gpu| gpu.index).collect();
    if usable.is_empty() {
        return Err("the driver lists no GPU, or only GPUs in MIG mode without instances: make some (mig-parted, or nvidia-smi mig -cgi)".into());
    }
    Ok(usable)
}

/// The file of a host on which each GPU has a daemon and a tenant; it is read back as `apply` reads it.
fn host_file(args: &BootstrapArgs, gpus: &[DeviceIndex]) -> Result<String, String> {
    let percentage = args.active_thread_percentage.unwrap_or_else(|| share(args.concurrency));
    let limits = args.pinned_memory_limit.as_deref().map(per_gpu).transpose()?;
    if let Some(DeviceMemoryLimit::PerGpu(named)) = &limits {
        let is_there = |name: &String| gpus.iter().any(|gpu| gpu.to_string() == *name);
        if let Some((stray, _)) = named.iter().find(|(name, _)| !is_there(name)) {
            let gpus: Vec<String> = gpus.iter().map(ToString::to_string).collect();
            return Err(format!(
                "--pinned-memory-limit names GPU {stray}, which is not among the GPUs {}",
                gpus.join(", ")
            ));
        }
    }
    let mut daemons = String::new();
    let mut tenants = String::new();
    for gpu in gpus {
        let name = gpu.daemon_name();
        let _ = writeln!(daemons, "  {name}: {{gpus: [{gpu}]}}");
        let limit = match &limits {
            Some(DeviceMemoryLimit::Same(limit)) => Some(*limit),
            Some(DeviceMemoryLimit::PerGpu(named)) => {
                named.iter().find(|(name, _)| *name == gpu.to_string()).map(|(_, limit)| *limit)
            }
            None => None,
        };
        let limit =
            limit.map(|limit| format!(", device_memory_limit: {}", limit.as_mps())).unwrap_or_default();
        let _ = writeln!(
            tenants,
            "  {name}: {{daemon: {name}, uid: {}, active_thread_percentage: {percentage}, max_clients: {}{limit}}}",
            args.uid, args.concurrency
        );
    }
    let written = format!(
        "# Written by mps-manager bootstrap; `mps-manager diff -f` compares it with the host.\nversion: v1\ndaemons:\n{daemons}tenants:\n{tenants}"
    );
    match text::read(&written, LayoutFormat::Yaml) {
        Ok(_) => Ok(written),
        Err(errors) => Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
    }
}

/// An equal share of 100 percent, in tenths.
fn share(concurrency: u32) -> f64 {
    f64::from(1000 / concurrency) / 10.0
}

fn per_gpu(text: &str) -> Result<DeviceMemoryLimit<String>, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).map_err(|error| error.to_string())
}

/// The command of a unit that serves, with the host file instead of the one it may have.
fn with_host_file(unit: &str, host_file: &str) -> Option<String> {
    let settings = settings_of(unit);
    let command = settings.iter().rev().find_map(|setting| {
        let (name, value) = setting.split_once('=')?;
        (name.trim() == "ExecStart").then_some(value)
    })?;
    let mut words = words_of(command);
    words.contains(&"serve").then_some(())?;
    if let Some(position) = words.iter().position(|word| *word == "--apply") {
        words.drain(position..(position + 2).min(words.len()));
    }
    words.retain(|word| !word.starts_with("--apply="));
    Some(format!("{} --apply {host_file}", words.join(" ")))
}

/// The lines of a unit without comments; those that a backslash continues are one, as systemd reads them.
fn settings_of(unit: &str) -> Vec<String> {
    let mut settings = Vec::new();
    let mut begun = String::new();
    for line in unit.lines() {
        let trimmed = line.trim_start();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(continued) = line.strip_suffix('\\') {
            begun.push_str(continued);
            begun.push(' ');
        } else {
            begun.push_str(line);
            settings.push(std::mem::take(&mut begun));
        }
    }
    settings.push(begun);
    settings
}

/// The words of a command of systemd, with their quotes and backslashes.
fn words_of(command: &str) -> Vec<&str> {
    let mut quote = None;
    let mut is_escaped = false;
    let is_between = |character: char| {
        let was_escaped = is_escaped;
        is_escaped = character == '\\' && !was_escaped;
        if !was_escaped {
            quote = match quote {
                None if matches!(character, '"' | '\'') => Some(character),
                Some(open) if open == character => None,
                unchanged => unchanged,
            };
        }
        quote.is_none() && !was_escaped && character.is_whitespace()
    };
    command.split(is_between).filter(|word| !word.is_empty()).collect()
}

/// Writes a file with its directories, whole or not at all.
fn write(path: &Path, text: &str) -> Result<(), String> {
    let refused = |error: std::io::Error| format!("{} cannot be written: {error}", path.display());
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(refused)?;
    let new = path.with_extension("new");
    // One that was left there may be a link that leads elsewhere.
    let _ = fs::remove_file(&new);
    let written = File::create_new(&new).and_then(|mut file| file.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(&new, path)).map_err(refused)
}

/// Enables the service, and starts it on a running host.
fn enable(args: &BootstrapArgs, root: &Path, unit: &Path) -> Result<(), String> {
    if args.root.is_some() {
        // As `systemctl enable` does it; an image may be made on a machine without systemd.
        let wanted = root.join(WANTS);
        let link = wanted.join(SERVICE);
        let target = Path::new("/").join(unit.strip_prefix(root).unwrap_or(unit));
        let linked = fs::create_dir_all(&wanted).and_then(|()| match fs::symlink_metadata(&link) {
            Ok(_) => Ok(()),
            Err(_) => symlink(&target, &link),
        });
        return linked.map_err(|error| format!("{} cannot be written: {error}", link.display()));
    }
    if !Path::new("/run/systemd/system").is_dir() {
        remark(
            "systemd does not run here, so the service was neither enabled nor started: run `mps-manager serve --apply` yourself",
        );
        return Ok(());
    }
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", SERVICE])?;
    // A manager that runs takes the file at its next start; daemons and clients do not notice.
    if args.no_start { Ok(()) } else { systemctl(&["restart", SERVICE]) }
}

fn systemctl(arguments: &[&str]) -> Result<(), String> {
    let status = Command::new("systemctl").args(arguments).status();
    let command = || format!("systemctl {}", arguments.join(" "));
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` failed ({status}): journalctl -u mps-manager says why", command())),
        Err(error) => Err(format!("`{}` could not be run: {error}", command())),
    }
}

/// Prints what was created, and how processes use it.
fn report(args: &BootstrapArgs, gpus: &[DeviceIndex], place: &Path) {
    let percentage = args.active_thread_percentage.unwrap_or_else(|| share(args.concurrency));
    let memory = args
        .pinned_memory_limit
        .as_deref()
        .map(|limit| format!(" and {limit} of memory"))
        .unwrap_or_default();
    line!(
        "{}: {} with {} each; each process gets {percentage} % of the threads{memory}",
        place.display(),
        counted(gpus.len(), "GPU"),
        counted(args.concurrency as usize, "process")
    );
    for gpu in gpus {
        line!("mps-manager run --tenant {} -- COMMAND", gpu.daemon_name());
    }
    line!(
        "variables=$(mps-manager env {}) && eval \"$variables\"   # the same for a shell of that user",
        gpus.first().copied().unwrap_or(0.into()).daemon_name()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(concurrency: u32) -> BootstrapArgs {
        BootstrapArgs {
            concurrency,
            active_thread_percentage: None,
            pinned_memory_limit: None,
            gpus: Vec::new(),
            uid: 0,
            host_file: "/etc/mps-manager/host.yaml".into(),
            force: false,
            root: None,
            no_start: false,
        }
    }

    #[test]
    fn each_gpu_gets_tenant_with_equal_share() {
        let limit = Some("0=2G,1=4096M".to_owned());
        let written =
            host_file(&BootstrapArgs { pinned_memory_limit: limit, ..args(3) }, &[0.into(), 1.into()]);
        let written = written.expect("a host file");
        assert!(
            written.contains("active_thread_percentage: 33.3, max_clients: 3, device_memory_limit: 2048M"),
            "{written}"
        );
        assert!(written.contains("gpu1: {daemon: gpu1, uid: 0, "), "{written}");
        let half = BootstrapArgs { active_thread_percentage: Some(50.0), ..args(4) };
        assert!(
            host_file(&half, &[5.into()])
                .expect("a host file")
                .contains("active_thread_percentage: 50, max_clients: 4}")
        );
    }

    #[test]
    fn limits_of_other_gpus_are_refused() {
        for (limit, words) in [("7=2G", "names GPU 7"), ("banana", "banana"), ("512K", "512K")] {
            let args = BootstrapArgs { pinned_memory_limit: Some(limit.into()), ..args(2) };
            let error = host_file(&args, &[0.into()]).expect_err(limit);
            assert!(error.contains(words), "{limit}: {error}");
        }
    }

    #[test]
    fn host_file_replaces_an_earlier_one() {
        let with = |unit: &str| with_host_file(unit, "/etc/h.yaml");
        assert_eq!(
            with("ExecStart=/usr/bin/mps-manager serve\n").as_deref(),
            Some("/usr/bin/mps-manager serve --apply /etc/h.yaml")
        );
        assert_eq!(
            with("ExecStart=/m serve --apply /old.yaml --listen 0.0.0.0:1\n").as_deref(),
            Some("/m serve --listen 0.0.0.0:1 --apply /etc/h.yaml")
        );
        assert_eq!(
            with("ExecStart = /m serve --apply=/old.yaml --config '/etc/a  b.toml'\n").as_deref(),
            Some("/m serve --config '/etc/a  b.toml' --apply /etc/h.yaml")
        );
        assert_eq!(
            with("ExecStart=/m serve --apply \"/old one.yaml\" --sim h200x2\n").as_deref(),
            Some("/m serve --sim h200x2 --apply /etc/h.yaml")
        );
        assert_eq!(with("ExecStart=/usr/bin/other\n"), None);
        assert!(with(UNIT).is_some());
    }

    #[test]
    fn continued_lines_of_a_unit_are_one() {
        let unit = "[Service]\nExecStart=/m serve \\\n  --config /c.toml \\\n# why\n\n  --log-format json\nRestart=no\n";
        assert_eq!(
            with_host_file(unit, "/etc/h.yaml").as_deref(),
            Some("/m serve --config /c.toml --log-format json --apply /etc/h.yaml")
        );
    }

    #[test]
    fn paths_that_systemd_reads_otherwise_are_refused() {
        for path in
            ["/etc/mps manager/h.yaml", "/etc/%h.yaml", "/etc/$HOME.yaml", "/etc/a\\b.yaml", "/etc/\"h.yaml"]
        {
            let error = in_unit(Path::new(path)).expect_err(path);
            assert!(error.contains(path), "{error}");
        }
        assert_eq!(in_unit(Path::new("/etc/über-1/h.yaml")), Ok("/etc/über-1/h.yaml"));
    }
}

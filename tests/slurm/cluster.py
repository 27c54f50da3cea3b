"""A Slurm cluster of one node on this machine, with munge and files of its own, for a simulated host."""

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
from pathlib import Path

from host import BINARY, eventually

ROOT = Path(__file__).resolve().parents[2]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What the recipe for one machine needs beside deploy/slurm/slurm.conf. A requeued job waits for as long as a credential is valid.
ONE_MACHINE = """
ClusterName=mps
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
FirstJobId={first_job}
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket,cred_expire=30
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
KillWait=2
MinJobAge=3600
ReturnToService=0
"""

# The Prolog and its time, for what it takes until the environment is there. Where Slurm has NVML, it names MIG instances by their UUIDs in place
# of numbers, which stand in a file here.
TIMED = """#!/bin/sh
. {home}/environment
if [ -e {home}/instances ]; then
    CUDA_VISIBLE_DEVICES=$(for number in $(echo "$SLURM_JOB_GPUS" | tr , ' '); do sed -n "$((number + 1))p" {home}/instances; done | paste -sd ,)
    export CUDA_VISIBLE_DEVICES
fi
begin=$(date +%s%N)
{scripts}/prolog.sh
status=$?
echo "$SLURM_JOB_ID $begin $(date +%s%N)" >>{home}/times
exit $status
"""

PLAIN = """#!/bin/sh
. {home}/environment
exec {scripts}/{name}.sh
"""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def installed(path, text):
    path.write_text(text)
    path.chmod(0o755)


class Cluster:
    """munged, slurmctld and slurmd; `close` ends them and every job. Its devices are two GPUs, or MIG instances of these UUIDs."""

    def __init__(self, host, instances=()):
        self.host, self.home = host, host.home / "slurm"
        self.instances, self.devices = instances, len(instances) or 2
        self.records, self.results = self.home / "records", self.home / "results"
        self.processes, self.logs = [], []
        self.programs = self.home / "programs"
        for folder in ["munge", "state", "spool", "scripts", "results", "programs"]:
            (self.home / folder).mkdir(parents=True)
        self.results.chmod(0o1777)
        # Jobs of every user run it, and not all may pass through the build directory.
        shutil.copy(BINARY, self.programs / "mps-manager")
        installed(self.programs / "logger", f'#!/bin/sh\necho "$*" >>{self.home}/scripts.log\n')
        self.name = socket.gethostname().split(".")[0]
        self.install()
        if instances:
            (self.home / "instances").write_text("".join(f"{uuid}\n" for uuid in instances))
        self.configure()
        path = f"{self.programs}:{SYSTEM_PATH}"
        self.environment = {"PATH": path, "SLURM_CONF": str(self.home / "slurm.conf"), "HOME": "/", "LC_ALL": "C"}
        # What a job of a real GPU host has no need of.
        self.simulated = {"MPS_SIM_WORLD": str(host.home / "run/sim"), "RESULTS": str(self.results)}

    def install(self):
        """The scripts of deploy/slurm, and the devices of the simulated GPUs."""
        scripts = self.home / "scripts"
        (self.home / "environment").write_text("".join(f"export {line}\n" for line in [
            f"PATH={self.programs}:{SYSTEM_PATH}",
            f"MPS_MANAGER_RUNTIME_DIR={self.host.home}/run",
            f"MPS_MANAGER_SLURM_DIR={self.records}",
            f"MPS_MANAGER_SLURM_SHARES={self.home}/slurm-shares.conf",
            "MPS_MANAGER_DRIVER_DIR=/nonexistent",
        ]))
        for script in ["prolog", "epilog"]:
            shutil.copy(ROOT / f"deploy/slurm/{script}.sh", scripts / f"{script}.sh")
            wrapper = TIMED if script == "prolog" else PLAIN
            installed(self.home / f"{script}.sh", wrapper.format(home=self.home, scripts=scripts, name=script))
        # It runs with the variables of the job, and believes none about its paths.
        text = (ROOT / "deploy/slurm/taskprolog.sh").read_text()
        for path, here in [("/etc/mps-manager/slurm-shares.conf", self.home / "slurm-shares.conf"), ("/run/mps-manager-slurm", self.records)]:
            assert text.count(path) == 1, text
            text = text.replace(path, str(here))
        installed(self.home / "taskprolog.sh", text)
        example = (ROOT / "deploy/slurm/slurm-shares.conf").read_text()
        (self.home / "slurm-shares.conf").write_text(shares(example))
        # Slurm takes device files only, and those of the simulated GPUs are plain ones.
        (self.home / "dev").mkdir()
        for number in range(self.devices):
            os.mknod(self.home / f"dev/nvidia{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))

    def configure(self, change=lambda text: text, first_job=1):
        """Slurm's configuration: the examples of deploy/slurm, with a change to both."""
        name = self.name
        conf = change((ROOT / "deploy/slurm/slurm.conf").read_text())
        conf = conf.replace("Gres=gpu:2,shard:16", f"Gres=gpu:{self.devices},shard:{8 * self.devices}")
        conf = conf.replace("/etc/slurm/mps-manager", str(self.home)).replace("Nodes=gpu[01-08]", f"Nodes={name}")
        conf = conf.replace("NodeName=gpu[01-08]", f"NodeName={name} NodeAddr=127.0.0.1")
        ports = {"controller_port": free_port(), "node_port": free_port()}
        (self.home / "slurm.conf").write_text(conf + ONE_MACHINE.format(name=name, home=self.home, first_job=first_job, **ports))
        gres = change((ROOT / "deploy/slurm/gres.conf").read_text())
        gres = gres.replace("nvidia[0-1]", f"nvidia[0-{self.devices - 1}]").replace("shard Count=16", f"shard Count={8 * self.devices}")
        (self.home / "gres.conf").write_text(gres.replace("/dev/nvidia", f"{self.home}/dev/nvidia"))

    def daemon(self, *command, **options):
        log = self.home / f"{command[0]}.log"
        if log not in self.logs:
            self.logs.append(log)
        with open(log, "ab") as out:
            self.processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=self.environment, **options))
        return self.processes[-1]

    def start(self):
        munge = pwd.getpwnam("munge")
        folder = self.home / "munge"
        key = folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for path in [folder, key]:
            os.chown(path, munge.pw_uid, munge.pw_gid)
        files = {name: folder / name for name in ["socket", "pid", "log", "seed"]}
        self.daemon("munged", "--foreground", f"--key-file={key}", f"--socket={files['socket']}", f"--pid-file={files['pid']}",
                    f"--log-file={files['log']}", f"--seed-file={files['seed']}",
                    user=munge.pw_uid, group=munge.pw_gid, extra_groups=[])
        eventually("munged listens", files["socket"].exists)
        self.start_slurm()

    def start_slurm(self):
        self.controller = self.daemon("slurmctld", "-D", "-c", "-f", self.home / "slurm.conf")
        self.start_node()
        eventually("the node is idle", lambda: self.node_state() == "idle", timeout=60)

    def start_node(self):
        self.node = self.daemon("slurmd", "-D", "-f", self.home / "slurm.conf")

    def reconfigure(self, change):
        """Slurm with another configuration, without jobs; the numbers of jobs go on."""
        first_job = max(self.states(), default=0) + 1
        for process in [self.node, self.controller]:
            process.terminate()
            process.wait(60)
            self.processes.remove(process)
        self.configure(change, first_job)
        self.start_slurm()

    def crash_node(self):
        """The end of everything that Slurm has on the node, and of what is in /run there."""
        self.node.kill()
        self.node.wait()
        self.processes.remove(self.node)
        self.kill_processes(but=[process.pid for process in self.processes])
        shutil.rmtree(self.records)

    def clean_up(self):
        """What mps-manager-slurm.service does."""
        self.run(self.home / "epilog.sh")

    @contextlib.contextmanager
    def one_late_list(self, seconds):
        """The next `mps-manager tenant list` prints what it read only after so long, as on a busy node."""
        program, itself = self.programs / "mps-manager", self.programs / "mps-manager-itself"
        program.rename(itself)
        program.write_text(f"""#!/bin/sh
[ "$1 $2" = "tenant list" ] || exec {itself} "$@"
listed=$({itself} "$@") || exit
mkdir {self.programs}/listed 2>/dev/null && sleep {seconds}
printf '%s\\n' "$listed"
""")
        program.chmod(0o755)
        yield
        itself.replace(program)

    def with_own_manager(self):
        """A PATH whose mps-manager serves a simulated host of its own, without daemons, where it would serve the node's GPUs."""
        own = self.home / "own"
        (own / "simulated").mkdir(parents=True)
        for program in [Path(BINARY), Path(BINARY).with_name("simulated-mps")]:
            shutil.copy(program, own / "simulated")
        (own / "host.yaml").write_text("version: v1\n")
        installed(own / "mps-manager", f"""#!/bin/sh
[ "$1" != serve ] || set -- "$@" --sim h200x2 --apply {own}/host.yaml
exec {own}/simulated/mps-manager "$@"
""")
        return f"{own}:{SYSTEM_PATH}"

    def run(self, *command, user=None, check=True, timeout=60, **environment):
        """Runs a command of Slurm, as `user` or as root."""
        options = {}
        if user:
            entry = pwd.getpwnam(user)
            options = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        done = subprocess.run(command, env={**self.environment, **self.simulated, **environment}, cwd=self.results, capture_output=True,
                              text=True, timeout=timeout, **options)
        assert not check or done.returncode == 0, f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
        return done

    def submit(self, user, script, *options, **environment):
        """Submits a batch script, given as text; returns the ID of the job."""
        path = self.results / f"script-{abs(hash(script))}.sh"
        if not path.exists():
            installed(path, script)
        done = self.run("sbatch", "--parsable", f"--output={self.results}/%j.out", *options, path, user=user, **environment)
        return int(done.stdout.strip())

    def states(self):
        """The state of each job, as RUNNING or FAILED, by its ID."""
        lines = self.run("squeue", "--noheader", "--states=all", "--format=%A %T").stdout.splitlines()
        return {int(job): state for job, state in map(str.split, lines)}

    def node_state(self):
        done = self.run("sinfo", "--noheader", "--Node", "--partition=shared", "--format=%T", check=False)
        return done.stdout.strip()

    def output(self, job):
        path = self.results / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def describe(self):
        """What explains a failure."""
        parts = [f"--- {log}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-40:]) for log in self.logs]
        scripts = self.home / "scripts.log"
        parts.append("--- scripts\n" + ("\n".join(scripts.read_text().splitlines()[-60:]) if scripts.exists() else "nothing was logged"))
        return "\n".join(parts)

    def close(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()
        self.kill_processes()

    def kill_processes(self, but=()):
        """Kills steps, which outlive slurmd by design, and their tasks: all have this cluster's configuration in their environment.

        Spares these processes and their children.
        """
        mark = f"SLURM_CONF={self.home}/".encode()
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) in [os.getpid(), *but]:
                continue
            try:
                if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) in but:
                    continue
                if mark in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
            except OSError:
                continue


def shares(example):
    """The example, with a shard in the partition `debug` that is half of a GPU, so that Slurm gives more of them than a GPU has."""
    changed = re.sub(r"^#(partition debug +)8( +)8G$", r"\g<1>2\g<2>8G", example, flags=re.MULTILINE)
    changed = re.sub(r"^#(feature +bigmem.*)$", r"\1", changed, flags=re.MULTILINE)
    assert changed.count("\npartition debug") == 1 and changed.count("\nfeature") == 1, changed
    return changed

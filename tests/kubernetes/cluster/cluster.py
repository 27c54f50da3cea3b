"""A Kubernetes of one node inside the namespaces that tests/kubernetes/cluster.sh makes: etcd, control plane, containerd, kubelet."""

import io
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from host import BINARY, eventually

HERE = Path(__file__).resolve().parent
NODE = "gpu-node"
NODE_ADDRESS = "192.0.2.1"
SERVER = "https://127.0.0.1:6443"
IMAGE = "docker.io/library/mps-manager:0.1.0"
PAUSE_IMAGE = "docker.io/library/pause:1"
RUNTIME_DIR = Path("/run/mps-manager")
CHECKPOINT = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
POD_LOGS = Path("/var/log/pods")
# What a kubelet changes in the kernel of its host.
TUNABLES = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"]

# The class `nvidia` as `nvidia-ctk runtime configure` writes it. containerd of Debian 12 takes no memory from the OOM killer's scores here.
CONTAINERD = """version = 2
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{home}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  privileged_without_host_devices = false
  runtime_engine = ""
  runtime_root = ""
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
    BinaryName = "{home}/nvidia-container-runtime"
"""

# In the place of NVIDIA's container runtime, which adds the GPUs and hands on to runc as well.
NVIDIA_RUNTIME = """#!/bin/sh
echo "$*" >>{home}/nvidia-container-runtime.log
exec {runc} "$@"
"""

# Each pod has an address and a link to the node.
NETWORK = {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": {
    "type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "192.0.2.128/25"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}

KUBELET = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {address}
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
cgroupDriver: cgroupfs
cgroupRoot: /{group}
enforceNodeAllocatable: []
evictionHard: {{}}
failSwapOn: false
featureGates: {{LocalStorageCapacityIsolation: false}}
imageGCHighThresholdPercent: 100
makeIPTablesUtilChains: false
"""

KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{{name: test, cluster: {{server: "{server}", insecure-skip-tls-verify: true}}}}]
users: [{{name: admin, user: {{token: "{token}"}}}}]
contexts: [{{name: test, context: {{cluster: test, user: admin}}}}]
current-context: test
"""


def run(*command, check=True, timeout=120, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, **options)
    assert not check or done.returncode == 0, f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def processes(*words):
    """The processes whose command line has these words, but for wrappers."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if all(word in line for word in words) and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return sorted(found)


class Cluster:
    def __init__(self, programs, home):
        self.programs, self.home, self.group = Path(programs), Path(home), Path(home).name
        self.running, self.logs = {}, {}
        self.token = os.urandom(16).hex()
        self.tls = ssl.create_default_context()
        self.tls.check_hostname, self.tls.verify_mode = False, ssl.CERT_NONE
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "KUBECONFIG": str(self.home / "kubeconfig"), "LC_ALL": "C"}

    def start(self):
        self.enter()
        self.configure()
        self.daemon("etcd", "etcd", "--data-dir", self.home / "etcd", "--listen-client-urls=http://127.0.0.1:2379",
                    "--advertise-client-urls=http://127.0.0.1:2379", "--listen-peer-urls=http://127.0.0.1:2380")
        key = self.home / "service-account.key"
        self.daemon("kube-apiserver", self.programs / "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--bind-address=127.0.0.1",
                    f"--advertise-address={NODE_ADDRESS}", "--endpoint-reconciler-type=none", f"--cert-dir={self.home}/certificates",
                    "--allow-privileged=true", "--authorization-mode=AlwaysAllow", f"--token-auth-file={self.home}/tokens",
                    f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
                    "--service-account-issuer=https://test", "--service-cluster-ip-range=198.51.100.0/24")
        eventually("the API server is ready", lambda: self.get("/readyz", text=True) == "ok", timeout=90)
        client = [f"--kubeconfig={self.home}/kubeconfig", "--leader-elect=false", "--bind-address=127.0.0.1", "--port=0"]
        self.daemon("kube-controller-manager", self.programs / "kube-controller-manager", *client, f"--service-account-private-key-file={key}")
        self.daemon("kube-scheduler", self.programs / "kube-scheduler", *client)
        self.daemon("containerd", "containerd", "--config", self.home / "containerd.toml")
        eventually("containerd answers", lambda: Path("/run/containerd/containerd.sock").exists())
        self.import_image()
        self.start_kubelet()
        eventually("the node is ready", self.is_ready, timeout=90)

    def enter(self):
        """Gives this mount namespace directories of its own, and the network namespace its node's address."""
        # As systemd has it.
        run("mount", "--make-rshared", "/")
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        for name in ["var/lib", "var/log"]:
            folder = self.home / "host" / name
            folder.mkdir(parents=True)
            run("mount", "--bind", folder, f"/{name}")
        for name in ["upper", "work"]:
            (self.home / "etc" / name).mkdir(parents=True)
        run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/etc,upperdir={self.home}/etc/upper,workdir={self.home}/etc/work", "/etc")
        run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
        for name in TUNABLES:
            ours = self.home / "sysctl" / name
            ours.parent.mkdir(parents=True, exist_ok=True)
            ours.write_text((Path("/proc/sys") / name).read_text())
            run("mount", "--bind", ours, Path("/proc/sys") / name)
        if not Path("/etc/machine-id").exists():
            Path("/etc/machine-id").write_text(os.urandom(16).hex() + "\n")
        run("ip", "link", "set", "lo", "up")
        run("ip", "address", "add", f"{NODE_ADDRESS}/32", "dev", "lo")

    def configure(self):
        home = self.home
        run("openssl", "genrsa", "-out", home / "service-account.key", "2048")
        (home / "tokens").write_text(f'{self.token},admin,admin,"system:masters"\n')
        (home / "kubeconfig").write_text(KUBECONFIG.format(server=SERVER, token=self.token))
        (home / "kubeconfig").chmod(0o600)
        (home / "kubelet.yaml").write_text(KUBELET.format(address=NODE_ADDRESS, group=self.group))
        (home / "containerd.toml").write_text(CONTAINERD.format(pause=PAUSE_IMAGE, home=home))
        (home / "nvidia-container-runtime").write_text(NVIDIA_RUNTIME.format(home=home, runc=shutil.which("runc")))
        (home / "nvidia-container-runtime").chmod(0o755)
        (home / "cni").mkdir()
        (home / "cni/pods.conflist").write_text(json.dumps(NETWORK))

    def import_image(self):
        """The image of the manager, the pods and their sandboxes: our programs with what ldd names, and a shell."""
        root = self.home / "image"
        for source, name in [(BINARY, "usr/bin/mps-manager"), (Path(BINARY).with_name("simulated-mps"), "usr/bin/simulated-mps"),
                             (shutil.which("busybox"), "bin/busybox")]:
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            target.chmod(0o755)
        run("strip", root / "usr/bin/mps-manager", root / "usr/bin/simulated-mps")
        for name in ["sh", "sleep", "grep", "cat"]:
            (root / "bin" / name).symlink_to("busybox")
        (root / "tmp").mkdir()
        # `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, and the loader alone on its line.
        for library in sorted(set(re.findall(r"(/\S+) \(", run("ldd", root / "usr/bin/mps-manager", root / "usr/bin/simulated-mps")))):
            target = root / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(library), target)
            target.chmod(0o755)
        layer = self.home / "layer.tar"
        run("tar", "-C", root, "-cf", layer, ".")
        digest = run("sha256sum", layer).split()[0]
        configs = {IMAGE: ["/usr/bin/mps-manager"], PAUSE_IMAGE: ["/bin/busybox", "tail", "-f", "/dev/null"]}
        archive = self.home / "images.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(layer, "layer.tar")
            index = []
            for number, (image, entrypoint) in enumerate(configs.items()):
                config = {"architecture": "amd64", "os": "linux", "config": {"Entrypoint": entrypoint, "Env": ["PATH=/usr/bin:/bin"]},
                          "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}
                add(tar, f"config{number}.json", config)
                index.append({"Config": f"config{number}.json", "RepoTags": [image], "Layers": ["layer.tar"]})
            add(tar, "manifest.json", index)
        run("ctr", "--address", "/run/containerd/containerd.sock", "-n", "k8s.io", "images", "import", archive)
        for path in [layer, archive]:
            path.unlink()
        shutil.rmtree(root)

    def daemon(self, name, *command):
        log = self.home / f"{name}.log"
        self.logs[name] = log
        with open(log, "ab") as out:
            self.running[name] = subprocess.Popen([str(word) for word in command], stdout=out, stderr=out, env=self.environment)
        return self.running[name]

    def start_kubelet(self):
        self.daemon("kubelet", self.programs / "kubelet", f"--config={self.home}/kubelet.yaml", f"--kubeconfig={self.home}/kubeconfig",
                    "--container-runtime=remote", "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
                    f"--hostname-override={NODE}", f"--node-ip={NODE_ADDRESS}")

    def kill(self, name):
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(30)

    def get(self, path, text=False):
        """What the API server answers, or None."""
        request = urllib.request.Request(SERVER + path, headers={"Authorization": f"Bearer {self.token}"})
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.tls) as response:
                answer = response.read().decode()
                return answer if text else json.loads(answer)
        except (urllib.error.URLError, OSError):
            return None

    def kubectl(self, *command, stdin=None, timeout=120):
        return run(self.programs / "kubectl", *command, input=stdin, env=self.environment, timeout=timeout)

    def apply(self, *objects):
        return self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def is_ready(self):
        node = self.get(f"/api/v1/nodes/{NODE}") or {"status": {}}
        return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))

    def allocatable(self):
        """The places of each class that may be allocated on the node."""
        node = self.get(f"/api/v1/nodes/{NODE}") or {"status": {}}
        domain = "mps-manager.dev/"
        return {name[len(domain):]: int(count) for name, count in node["status"].get("allocatable", {}).items() if name.startswith(domain)}

    def pods(self, namespace="default", label=""):
        """The pods that are not being deleted."""
        listed = self.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={label}")
        assert listed is not None, "the API server does not answer"
        return [pod for pod in listed["items"] if "deletionTimestamp" not in pod["metadata"]]

    def describe(self):
        """What explains a failure."""
        logs = [*self.logs.values(), *sorted(POD_LOGS.glob("mps-manager_*/*/*.log"))]
        parts = [f"--- {log}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-25:]) for log in logs if log.exists()]
        for command in [["get", "pods", "-A", "-o", "wide"], ["get", "events", "-A", "--sort-by=.lastTimestamp"]]:
            try:
                parts.append("--- kubectl\n" + "\n".join(self.kubectl(*command, timeout=20).splitlines()[-40:]))
            except (AssertionError, subprocess.TimeoutExpired, OSError) as error:
                parts.append(f"--- kubectl: {error}")
        return "\n".join(parts)

    def close(self):
        for process in reversed(self.running.values()):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.clear()


def add(tar, name, content):
    data = json.dumps(content).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))

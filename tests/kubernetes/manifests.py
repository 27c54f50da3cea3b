"""What no schema of Kubernetes says of deploy/kubernetes: `manifests.py FOLDER`, into which it writes the ConfigMap's host file as host.yaml.
In the folder, documented.yaml is the host file of the documentation, and pod.yaml the container's part of a pod, which is made a pod."""

import json
import sys
from pathlib import Path

import jsonschema
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
scratch = Path(sys.argv[1])
every = {file.name: list(yaml.safe_load_all(file.read_text())) for file in FOLDER.glob("*.yaml")}


def one(name):
    [manifest] = every[name]
    return manifest


schema = json.loads((ROOT / "tests/fixtures/kubernetes/podmonitor.json").read_text())
podmonitor = jsonschema.Draft202012Validator(schema)
monitor = one("podmonitor.yaml")
podmonitor.validate(monitor)
wrong = json.loads(json.dumps(monitor).replace('"scheme"', '"schema"'))
assert not podmonitor.is_valid(wrong), "the schema takes a field that does not exist"

# example.yaml is not part of the installation.
assert sorted(one("kustomization.yaml")["resources"]) == sorted(every.keys() - {"kustomization.yaml", "example.yaml"})

namespace = one("namespace.yaml")["metadata"]["name"]
for name in every.keys() - {"kustomization.yaml", "example.yaml", "namespace.yaml"}:
    assert all(manifest["metadata"]["namespace"] == namespace for manifest in every[name]), f"{name} is of another namespace"

daemonset, config = one("daemonset.yaml"), one("configmap.yaml")
pod = daemonset["spec"]["template"]
labels, spec = pod["metadata"]["labels"], pod["spec"]
assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items(), "the PodMonitor selects other pods"
[endpoint] = monitor["spec"]["podMetricsEndpoints"]
containers = {container["name"]: container for container in spec["containers"]}
assert endpoint["port"] in [port["name"] for port in containers["manager"]["ports"]], "the manager has no such port"
accounts = [one["metadata"]["name"] for one in every["rbac.yaml"] if one["kind"] == "ServiceAccount"]
assert spec["serviceAccountName"] in accounts, "the DaemonSet's service account does not exist"
volumes = {volume["name"]: volume for volume in spec["volumes"]}
mounted = {mount["name"] for container in containers.values() for mount in container["volumeMounts"]}
assert mounted == volumes.keys(), "volumes and mounts differ"
assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
# The files that the manager is started with are the ConfigMap's.
mounts = {mount["mountPath"]: mount.get("subPath") for mount in containers["manager"]["volumeMounts"] if mount["name"] == "config"}
named = {argument for argument in containers["manager"]["args"] if argument.startswith("/")}
assert named == mounts.keys() and set(mounts.values()) == config["data"].keys(), "the manager reads other files than the ConfigMap's"

host = yaml.safe_load(config["data"]["host.yaml"])
assert host == yaml.safe_load((scratch / "documented.yaml").read_text()), "the documentation has another host file"
(scratch / "host.yaml").write_text(config["data"]["host.yaml"])
container = {"name": "cuda", "image": "cuda", **yaml.safe_load((scratch / "pod.yaml").read_text())}
example = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "documented"}, "spec": {"containers": [container]}}
(scratch / "pod.yaml").write_text(yaml.safe_dump(example))

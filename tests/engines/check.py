"""What an engine makes of a tenant's text is what the tenant has: `check.py docker|compose|merged|nomad ENVIRONMENT.json FILE`. The first file is that
of `env --format json`, the second what the engine read: Docker's request for a container, a service for Compose or what Compose merged of it,
a Nomad job."""

import json
import sys
from pathlib import Path

import hcl2
import jsonschema
import yaml

SCHEMA = Path(__file__).resolve().parents[1] / "fixtures/compose/schema.json"
engine, environment, file = sys.argv[1:]
wanted = json.loads(Path(environment).read_text())
container = wanted["container"]
text = Path(file).read_text()


def docker():
    request = json.loads(text)
    host = request["HostConfig"]
    [devices] = host["DeviceRequests"]
    assert devices["Capabilities"] == [["gpu"]] and not devices["Count"], devices
    [mount] = host["Mounts"]
    assert mount == {"Type": "bind", "Source": mount["Target"], "Target": mount["Target"], "ReadOnly": True}, mount
    assert not host["Binds"] and not host["Privileged"], host
    variables = dict(variable.split("=", 1) for variable in request["Env"])
    assert len(variables) == len(request["Env"]), "a variable is set twice"
    return request["Image"], request["User"], mount["Target"], devices["DeviceIDs"], variables


def compose():
    jsonschema.validate(yaml.safe_load(text), json.loads(SCHEMA.read_text()))
    return merged()


def merged():
    read = yaml.safe_load(text)
    [service] = read["services"].values()
    [devices] = service["deploy"]["resources"]["reservations"]["devices"]
    assert devices["driver"] == "nvidia" and devices["capabilities"] == ["gpu"], devices
    [mount] = service["volumes"]
    # What Compose adds: that it would make a directory that is missing.
    mount.pop("bind", None)
    assert mount == {"type": "bind", "source": mount["target"], "target": mount["target"], "read_only": True}, mount
    return service.get("image"), service["user"], mount["target"], devices["device_ids"], service["environment"]


def nomad():
    job = hcl2.loads(text, serialization_options=hcl2.SerializationOptions(strip_string_quotes=True))
    [job] = job["job"][0].values()
    [group] = job["group"][0].values()
    [task] = group["task"][0].values()
    [config], [variables], [resources] = task["config"], task["env"], task["resources"]
    [volume] = config["volumes"]
    source, target, mode = volume.split(":")
    assert source == target and mode == "ro", volume
    assert "nvidia/gpu" in resources["device"][0], resources
    variables = {name: value for name, value in variables.items() if not name.startswith("__")}
    # Which GPUs Nomad has to give is a comment.
    [line] = [line for line in text.splitlines() if "# The task needs, by its device block:" in line]
    return config["image"], task["user"], target, line.split(": ")[1].split(", "), variables


image, user, mount, gpus, variables = {"docker": docker, "compose": compose, "merged": merged, "nomad": nomad}[engine]()
assert (engine == "compose" and image is None) or image == "nvcr.io/nvidia/pytorch:26.01-py3", image
assert user == str(container["uid"]), user
assert mount == container["mount"], mount
assert gpus == container["gpus"], gpus
assert variables == container["defaults"] | wanted["variables"], variables

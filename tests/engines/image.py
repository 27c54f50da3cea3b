"""A container image without a network: `image.py ARCHIVE NAME PROGRAM SIMULATED [VARIABLE=VALUE]...` writes an archive for `docker load` that has
the two programs with the libraries that ldd names, busybox as its shell, and `python`, which plays the program of the documentation. The variables are
those that the image sets."""

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ARCHIVE, NAME, PROGRAM, SIMULATED, *VARIABLES = sys.argv[1:]
CLIENT = b"#!/bin/sh\nexec /usr/bin/mps-manager sim client --json\n"


def info(name, mode=0o755):
    entry = tarfile.TarInfo(name)
    entry.mode = mode
    return entry


def layer():
    """The one layer, as the bytes of a tar archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar, tempfile.TemporaryDirectory() as scratch:
        folders = set()

        def parents(target):
            # Engines make a missing one for root alone.
            for folder in reversed(Path(target).parents[:-1]):
                if folder not in folders:
                    folders.add(folder)
                    entry = info(str(folder))
                    entry.type = tarfile.DIRTYPE
                    tar.addfile(entry)

        def write(target, content):
            parents(target)
            entry = info(target)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))

        def add(source, target):
            write(target, Path(source).read_bytes())

        write("etc/passwd", b"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/:/bin/sh\n")
        write("etc/group", b"root:x:0:\nuser:x:1000:\n")
        for source, target in ((PROGRAM, "mps-manager"), (SIMULATED, "nvidia-cuda-mps-control")):
            stripped = Path(scratch, target)
            subprocess.run(["strip", "-o", stripped, source], check=True)
            add(stripped, f"usr/bin/{target}")
        add(shutil.which("busybox"), "bin/busybox")
        for name in ("sh", "rm", "touch", "sleep", "env", "cat"):
            entry = info(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
        write("usr/bin/python", CLIENT)
        # `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, and the loader alone on its line.
        named = subprocess.run(["ldd", PROGRAM, SIMULATED], check=True, capture_output=True, text=True).stdout
        # It may be linked to nothing.
        named += subprocess.run(["ldd", shutil.which("busybox")], capture_output=True, text=True).stdout
        for library in sorted(set(re.findall(r"(/[^ :]*) \(", named))):
            add(library, library.removeprefix("/"))
    return data.getvalue()


data = layer()
config = {"architecture": "amd64", "os": "linux",
          "config": {"Env": ["PATH=/usr/bin:/bin", *VARIABLES], "Cmd": ["/bin/sh"]},
          "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(data).hexdigest()]}}
manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
with tarfile.open(ARCHIVE, "w") as archive:
    for name, content in (("layer.tar", data), ("config.json", json.dumps(config).encode()), ("manifest.json", json.dumps(manifest).encode())):
        entry = info(name, 0o644)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))

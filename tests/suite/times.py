#!/usr/bin/env python3
"""Runs the tests and prints what each takes: `tests/suite/times.py [--slowest N] [--write FILE] [FILTER...]`.

Prints name and seconds of the slowest tests, the seconds by file, and how long each program of tests ran. A test's seconds are those of the
clock, so they hold what others took meanwhile. The test harness measures them itself (`--report-time`), which it has under an unstable
flag: RUSTC_BOOTSTRAP lets the finished programs take it, and is not set while anything is compiled.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"^test (\S+) \.\.\. .*?(ok|FAILED)? ?<([0-9.]+)s>")


def programs():
    """The programs that `cargo test` runs, by name and path."""
    command = ["cargo", "test", "--locked", "--no-run", "--message-format=json"]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    messages = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {m["target"]["name"]: m["executable"] for m in messages if m.get("executable") and m["profile"]["test"]}


def environment():
    """What Cargo gives the programs that it runs."""
    settings = tomllib.loads((ROOT / ".cargo/config.toml").read_text())["env"]
    return {**settings, **os.environ, "RUSTC_BOOTSTRAP": "1", "CARGO_MANIFEST_DIR": str(ROOT)}


def times(program, filters):
    """Runs one program; the seconds of each of its tests, and whether it passed."""
    command = [program, "-Zunstable-options", "--report-time", *filters]
    run = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
    found = {}
    for line in run.stdout:
        if match := LINE.match(line):
            found[match[1]] = float(match[3])
        if not line.startswith("test ") or "FAILED" in line:
            print(line, end="")
    return found, run.wait() == 0


def table(rows, head):
    lines = [f"| {head} | seconds |", "| --- | ---: |"]
    return "\n".join(lines + [f"| `{name}` | {seconds:.1f} |" for name, seconds in rows])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--slowest", type=int, default=40)
    arguments.add_argument("--write", help="a file for all names and seconds, as JSON")
    arguments.add_argument("filters", nargs="*")
    arguments = arguments.parse_args()
    tests, passed, ran = {}, True, []
    for name, program in sorted(programs().items()):
        begun = time.monotonic()
        found, ok = times(program, arguments.filters)
        ran.append((f"{name}, {len(found)} tests", time.monotonic() - begun))
        passed &= ok
        tests |= {(name, test): seconds for test, seconds in found.items()}
    files = collections.Counter()
    for (program, test), seconds in tests.items():
        # `server::audit::name` is in server/audit.rs; of the library, the folder is enough.
        parts = test.split("::")
        files["/".join([program, *(parts[:-1] if program == "it" else parts[:1])])] += seconds
    slowest = sorted(tests.items(), key=lambda item: -item[1])[: arguments.slowest]
    print(table([(test, seconds) for (_, test), seconds in slowest], "the slowest tests"), "\n")
    print(table(files.most_common(arguments.slowest), "file"), "\n")
    print(table(ran, "program"))
    if arguments.write:
        Path(arguments.write).write_text(json.dumps({"::".join(test): seconds for test, seconds in tests.items()}))
    sys.exit(not passed)


if __name__ == "__main__":
    main()

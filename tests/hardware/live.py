"""What a live read costs beside the control program itself, for the hardware scenario.

    live.py SOCKET DAEMON PIPE_DIRECTORY

Reads DAEMON live, and runs one control process with one command, by turns, one at a time. Prints one JSON object: the median
of each in milliseconds, and the first as a multiple of the second. What starting a process costs this program counts for the
control process; it is the same `posix_spawn` that a shell's `vfork` is.
"""

import json
import os
import statistics
import sys
import time

from unix import Unix

ROUNDS = 300


def milliseconds(call):
    before = time.perf_counter()
    call()
    return (time.perf_counter() - before) * 1000


daemon, environment = sys.argv[2], {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": sys.argv[3]}
connection = Unix(sys.argv[1])
program = next(path for path in (f"{folder}/nvidia-cuda-mps-control" for folder in os.environ["PATH"].split(":")) if os.access(path, os.X_OK))


def live():
    connection.request("GET", f"/api/v1/daemons/{daemon}?fresh=true")
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body


def control():
    read, write = os.pipe()
    os.write(write, b"get_server_list\n")
    os.close(write)
    out, into = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, read, 0), (os.POSIX_SPAWN_DUP2, into, 1), (os.POSIX_SPAWN_CLOSE, out)]
    pid = os.posix_spawn(program, [program], environment, file_actions=actions)
    os.close(read)
    os.close(into)
    text = b""
    while part := os.read(out, 4096):
        text += part
    os.close(out)
    _, status = os.waitpid(pid, 0)
    assert status == 0 and text.strip().isdigit(), (status, text)


reads, processes = [], []
for _ in range(ROUNDS):
    reads.append(milliseconds(live))
    processes.append(milliseconds(control))
read, process = statistics.median(reads), statistics.median(processes)
print(json.dumps({"live_read_ms": round(read, 2), "control_process_ms": round(process, 2), "ratio": round(read / process, 2)}))

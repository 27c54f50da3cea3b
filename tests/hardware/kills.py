"""Kills clients as a ready server takes them, until that hangs it.

    kills.py CLIENT PIPE_DIRECTORY LOG_DIRECTORY SERVER MOST

Each is killed 0 to 12 ms after its start, which hung a server of 13.0 six times in 136. Prints how many it took, or 0 when
MOST did no harm. Such a server is recognised by the last line that it logs.
"""

import os
import random
import subprocess
import sys
import time

client, pipe, log, server, most = sys.argv[1:4] + [int(sys.argv[4]), int(sys.argv[5])]
environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=pipe)


def hangs():
    with open(os.path.join(log, "server.log"), errors="replace") as lines:
        return any(f"{server}] User did not send valid credentials" in line for line in lines)


for number in range(1, most + 1):
    process = subprocess.Popen(
        [client, "info"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(random.choice([random.uniform(0, 0.012), random.uniform(0.0015, 0.0035)]))
    process.kill()
    process.wait()
    time.sleep(0.02)
    if hangs():
        print(number)
        break
else:
    print(0)

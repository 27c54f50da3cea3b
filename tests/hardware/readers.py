"""1008 live reads of one daemon by 16 callers, counted for the hardware scenario.

    readers.py SOCKET DAEMON SERVER [LIMIT_BYTES PERCENTAGE]

Prints one JSON object. A read is wrong when its answer names another server than SERVER, or, where they are given, when
any limit or percentage of daemon and server is another than these.
"""

import json
import sys
import threading
import time

from unix import Unix

CALLERS, READS = 16, 63


daemon, server, truth = sys.argv[2], int(sys.argv[3]), sys.argv[4:]
failed, wrong, times, polls, lock = [], [], [], {}, threading.Lock()


def is_wrong(seen):
    if [s["pid"] for s in seen["servers"]] != [server]:
        return True
    if not truth:
        return False
    readings = seen["default_memory_limits"] + [m for s in seen["servers"] for m in s["memory_limits"]]
    shares = [seen["default_active_thread_percentage"]] + [s["active_thread_percentage"] for s in seen["servers"]]
    return {m["bytes"] for m in readings} != {int(truth[0])} or set(shares) != {float(truth[1])}


def reader():
    connection = Unix(sys.argv[1])
    for _ in range(READS):
        before = time.time()
        connection.request("GET", f"/api/v1/daemons/{daemon}?fresh=true")
        answer = connection.getresponse()
        body = json.loads(answer.read())
        with lock:
            times.append(time.time() - before)
            if answer.status != 200:
                failed.append((answer.status, body))
                continue
            seen = body["status"]["effective"]
            polls[seen["observed_at"]] = seen["control_processes"]
            if is_wrong(seen):
                wrong.append(body)


threads = [threading.Thread(target=reader) for _ in range(CALLERS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
times.sort()
print(
    json.dumps(
        {
            "reads": len(times),
            "failed": len(failed),
            "wrong": len(wrong),
            "median_ms": times[len(times) // 2] * 1000,
            "longest_ms": times[-1] * 1000,
            "polls": len(polls),
            "control_processes": sum(polls.values()),
            "first_failed": failed[:1],
            "first_wrong": wrong[:1],
        }
    )
)

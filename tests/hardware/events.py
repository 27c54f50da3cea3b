"""The event stream of a manager, read for the hardware scenario, and compared with server.log.

    events.py follow SOCKET TOKEN_FILE     prints each event as a JSON line, with `seen_at` in seconds since 1970
    events.py lateness EVENTS SERVER_LOG   prints {"came": N, "left": N, "slowest_ms": N, "unheard": [...]}

Lateness is from the time that the server wrote before its line (`Client {PID: …, Context ID: 1} connected`, `Client process …
disconnected`) to the arrival of client.connected or client.left at this reader. A client of server.log of which no event tells
is unheard.
"""

import datetime
import json
import re
import sys
import time

from unix import Unix


def follow():
    connection = Unix(sys.argv[2], timeout=None)
    token = open(sys.argv[3]).read().strip()
    connection.request("GET", "/api/v1/events/stream", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"{answer.status} {answer.read()!r}")
    print(json.dumps({"type": "following"}), flush=True)
    while line := answer.readline():
        if line.startswith(b"data:") and (text := line[5:].strip()):
            event = json.loads(text)
            event["seen_at"] = time.time()
            print(json.dumps(event), flush=True)


CAME = re.compile(r"^\[([0-9 :.-]+) \w+ +\d+\] Client \{PID: (\d+), Context ID: 1\} connected")
LEFT = re.compile(r"^\[([0-9 :.-]+) \w+ +\d+\] Client process (\d+) disconnected")


def lateness():
    reported = {}
    for line in open(sys.argv[2]):
        event = json.loads(line)
        if event["type"] in ("client.connected", "client.left"):
            reported.setdefault((event["type"], event["details"]["pid"]), event["seen_at"])
    counts, slowest, unheard = {"client.connected": 0, "client.left": 0}, 0.0, []
    for line in open(sys.argv[3], errors="replace"):
        for kind, pattern in (("client.connected", CAME), ("client.left", LEFT)):
            if not (found := pattern.match(line)):
                continue
            at = datetime.datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S.%f").timestamp()
            key = (kind, int(found[2]))
            if key not in reported:
                unheard.append([kind, key[1]])
                continue
            counts[kind] += 1
            slowest = max(slowest, (reported[key] - at) * 1000)
    print(json.dumps({"came": counts["client.connected"], "left": counts["client.left"], "slowest_ms": round(slowest), "unheard": unheard}))


{"follow": follow, "lateness": lateness}[sys.argv[1]]()

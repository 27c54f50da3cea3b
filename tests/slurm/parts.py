"""Jobs on MIG instances, and on GPUs with MLOPart devices, under a real Slurm: tests/slurm/run.sh starts this after jobs.py."""

import signal
import sys
import time

from jobs import GIB, USERS, Job, nothing_left, refused, say, slurm_on, until_ended

# A shard is a quarter of a device, whichever it is.
SHARES = "default - 4 2G\n"

MLOPART = """version: v1
daemons:
  gpu0: {gpus: [0], mlopart: true, multi_user: true}
  gpu1: {gpus: [1], mlopart: true, multi_user: true}
"""


def on_instances(instances):
    lines = "".join(f'  mig{number}: {{gpus: ["{uuid}"], multi_user: true}}\n' for number, uuid in enumerate(instances))
    return f"version: v1\ndaemons:\n{lines}"


def seen(job):
    found = job.seen()
    is_seen = job.state == "COMPLETED" and found and found["mps"] and not found.get("error")
    assert is_seen, f"job {job.id} is {job.state}: {found}, {job.cluster.output(job.id)}"
    return found["devices"]


def limits(devices):
    """The limits of these devices in GiB: what the context itself takes is paid from them."""
    return [-(-device["memory_free"] // GIB) for device in devices]


def mig(cluster):
    """Whole instances and shares of them, each job on the instance that Slurm gave it."""
    instances = cluster.instances
    whole = [Job(cluster, USERS[number % 3], gpus=1) for number in range(len(instances))]
    until_ended(whole, "jobs with an instance end")
    for job in whole:
        (device,) = seen(job)
        assert device["sms"] == instances[device["uuid"]], f"job {job.id} saw {device}"
    jobs = [Job(cluster, USERS[number % 3], shards=2) for number in range(6)]
    until_ended(jobs, "jobs with shards of an instance end")
    for job in jobs:
        (device,) = seen(job)
        half = instances[device["uuid"]] // 2
        assert device["sms"] == half and limits([device]) == [4], f"job {job.id} saw {device}, not {half} SMs and 4 GiB"
    refused(cluster, "name GPUs of one daemon", "--gres=gpu:2")
    say(f"ok: {len(whole)} jobs with a MIG instance each and {len(jobs)} with half of one saw it, and a job with two is refused")


def mlopart(cluster):
    """Jobs of a GPU see all of its devices, each with their share and limit."""
    jobs = [Job(cluster, USERS[number], **request) for number, request in enumerate([{"gpus": 1}, {"shards": 1}, {"shards": 2}])]
    until_ended(jobs, "jobs on MLOPart devices end")
    whole, quarter, half = [seen(job) for job in jobs]
    for devices in [whole, quarter, half]:
        assert len({device["uuid"] for device in devices}) == 2, devices
    sms = [sum(device["sms"] for device in devices) for devices in [whole, quarter, half]]
    assert sms[0] > sms[2] > sms[1], sms
    assert (limits(quarter), limits(half)) == ([2, 2], [4, 4]), (quarter, half)
    say("ok: jobs with a GPU, a quarter and half of one saw both of its MLOPart devices")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = time.monotonic()
    for profile, host_file, scenario in [("h100x2-mig@13.1", on_instances, mig), ("b300x2@13.1", lambda _: MLOPART, mlopart)]:
        with slurm_on(profile, host_file) as (host, cluster, before):
            (cluster.home / "slurm-shares.conf").write_text(SHARES)
            scenario(cluster)
            nothing_left(cluster, host, before)
    say(f"all of MIG and MLOPart passed in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

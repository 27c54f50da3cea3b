"""What the document cannot say of valid requests: where a value may be refused for what it means.

A request that fits the document is answered 422 for the fields named here only. Any other is a finding: the document takes what
the server does not.
"""

import fnmatch

import schemathesis
from schemathesis.core.failures import Failure
from schemathesis.generation.meta import TestPhase
from schemathesis.generation.modes import GenerationMode

# By operation ID and JSON pointer, both as patterns.
MEANING = {
    # A cursor is opaque, and one that this server did not give is refused.
    ("list_*", "/cursor"): "a cursor of another list",
    # What is named is not on this host, or not what it has to be.
    ("*", "/daemon"): "there is no such daemon",
    ("*", "/gpus"): "there is no such GPU, or it is named twice",
    ("*", "/gpus/*"): "there is no such GPU, or it is named twice",
    ("*", "/gpu_map*"): "there is no such GPU, or not such a role",
    ("replace_gpu", "/with"): "there is no such GPU",
    ("create_lease", "/pid"): "there is no such process, or not the caller",
    ("create_lease", "/kind"): "a process takes its lease through the socket",
    ("create_lease", "/start_time"): "the process ID was reused",
    ("adopt_daemon", "/process"): "there is no such process",
    ("confirm_host", "/machine_id"): "it is not this machine's",
    # Values that exclude each other, or depend on the GPU.
    ("put_tenant", "/sms"): "beside a percentage, or more than the GPU has",
    ("put_tenant", "/active_thread_percentage"): "beside SMs, or with two decimals",
    ("put_tenant", "/device_memory_limit"): "more than the GPU has",
    ("put_tenant", "/expires_at"): "it has passed",
    ("patch_*", "/*"): "not with the rest of what is stored",
    ("put_daemon", "/defaults*"): "more than the GPU has, or with two decimals",
    ("put_daemon", "/memory_overcommit"): "with two decimals",
    ("put_daemon", "/compute_mode"): "one that cannot be kept",
    ("put_daemon", "/provisioning*"): "expected clients without a strategy that divides",
    ("put_daemon", "/layout*"): "there is no such layout",
    ("put_daemon", "/mode"): "not with this layout",
    ("put_daemon", "/management"): "only adopted daemons are observed",
    # A layout is a sequence: a step removes what an earlier one added, and a name is used once.
    ("*_layout", "/layout*"): "steps that do not follow from each other",
    ("*_layout", "/steps*"): "steps that do not follow from each other",
    ("*_layout", "/version"): "beside a layout, or none that there is",
    ("create_replay", "/document*"): "a document that contradicts itself, or is not the one that was exported",
    ("create_replay", "/layout"): "beside a document",
    ("create_replay", "/entry"): "not in the document",
    ("create_replay", "/version"): "without a layout",
    ("import_layouts", "*"): "a document that contradicts itself",
    ("apply_host_spec", "*"): "a file that contradicts itself or the host",
    ("begin_maintenance", "/gpus*"): "there is no such GPU",
    ("create_token", "/grant"): "there is no such tenant",
    ("end_sessions", "/uid"): "beside a token",
    ("list_events", "/type"): "there is no such type",
    ("list_events", "/gpu"): "there is no such GPU",
    ("list_incidents", "/gpu"): "there is no such GPU",
}


@schemathesis.hook
def filter_case(ctx, case):
    """HTTP takes the space around a header's value away, so what is wrong only for that space is right when it comes. In a sequence of
    requests a dry run would pass for a deletion, after which what is still there looks wrong; the other phases send it."""
    in_sequence = case.meta and case.meta.phase.name == TestPhase.STATEFUL
    if in_sequence and case.method == "DELETE" and str((case.query or {}).get("dry_run")).lower() == "true":
        return False
    values = [value for value in dict(case.headers or {}).values() if isinstance(value, str)]
    return all(value == value.strip(" \t") for value in values)


@schemathesis.check
def refused_for_its_meaning(ctx, response, case):
    """A valid request is refused as invalid only where MEANING says so."""
    generation = case.meta.generation if case.meta else None
    if response.status_code != 422 or generation is None or generation.mode != GenerationMode.POSITIVE:
        return None
    problem = response.json()
    if problem["type"].endswith(":idempotency-key-reused"):
        return None
    operation = case.operation.definition.raw["operationId"]
    pointers = [error["pointer"] for error in problem.get("errors", [])]
    # The coverage phase sends an empty tag as valid, which neither its pattern nor its least length allows.
    if problem["detail"].startswith(('If-Match is ""', 'If-None-Match is ""')):
        return None
    known = [
        any(fnmatch.fnmatch(operation, of) and fnmatch.fnmatch(pointer, at) for of, at in MEANING)
        for pointer in pointers
    ]
    if not known or not all(known):
        raise Failure(
            operation=case.operation.label,
            title="The document takes what the server refuses",
            message=f"{operation} refused {pointers}: {problem['detail']}",
        )
    return None

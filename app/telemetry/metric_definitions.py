"""The metrics: names, labels, help texts and buckets.

To add a metric, add a row here and a line of code that counts it. The values of the service's gauges are read in
`app.service_gauges`. Label values come from closed sets (route templates, methods and codes), never from text chosen by
a client. A process exposes the names of at most MOST_TENSORS resident tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from app import __version__
from app.errors import CODES

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
"""The methods that are counted by name; all others are counted as "other"."""
BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets in the histogram of request times, in seconds. One more bucket has no upper bound."""

MOST_TENSORS: Final = 100
"""A process counts lookups by name for this many resident tensors; all other tensors count as OTHER_TENSORS."""
OTHER_TENSORS: Final = "other"

BUILD_INFO: Final = (
    "gathernd_build_info",
    {"version": __version__},
    "Always 1; the label says which version runs.",
)
"""Name, labels and help of the metric with the running version."""
REQUEST_SECONDS: Final = ("gathernd_request_seconds", ("path",), "Seconds from request to response.")
"""Name, labels and help of the histogram of request times."""
CLIENT_GONE: Final = "client_gone"
"""Counted in addition to the codes of the catalogue: the client disconnected before its response."""


class Counter(NamedTuple):
    """A counter. `from_start` lists label values that are exposed as 0 from the beginning.

    Without that 0, Prometheus would not see the first error as an increase.
    """

    labels: tuple[str, ...]
    help: str
    from_start: tuple[str, ...] = ()


COUNTERS: Final[Mapping[str, Counter]] = {
    "gathernd_requests": Counter(
        ("method", "path", "status"),
        "Requests answered, by route template and status; status 0: the client went away first.",
    ),
    "gathernd_grpc_requests": Counter(
        ("method", "code"),
        "gRPC calls, and requests of its streams, by method and status. They count as requests, too, with the status "
        "that HTTP would have.",
    ),
    "gathernd_errors": Counter(
        ("code",), "Errors answered, by code of the catalogue: what was rejected, and why.", (*CODES, CLIENT_GONE)
    ),
    "gathernd_caller_deadlines": Counter(
        ("path",),
        "Errors deadline_exceeded for which the caller set the deadline, shorter than the service's.",
    ),
    "gathernd_limit_refusals": Counter(("limit",), "Requests refused because of a limit, by the limit's name."),
    "gathernd_kernel_routes": Counter(("route",), "Gathers, by route: loop, thread, split, gpu or shards."),
    "gathernd_route_measured_seconds": Counter(
        ("route",), "Seconds that gathers took in the kernel, by the same route."
    ),
    "gathernd_gpu_fallbacks": Counter((), "Gathers that the CPU ran because the GPU failed or was short of memory."),
    "gathernd_tensor_lookups": Counter(
        ("tensor",),
        "Gathers answered from a resident tensor, and features of lookups, by the name of the tensor or alias in the "
        f"request, without its version. A process counts the first {MOST_TENSORS} names; the rest together are "
        '"other".',
    ),
    "gathernd_lookups": Counter(
        ("features",),
        "Lookups answered, by their number of features, rounded up to a power of two.",
    ),
    "gathernd_shard_requests": Counter(
        ("shard", "outcome"),
        "Requests to shards for rows of tables in row ranges, by the shard's address and their outcome: ok; or why "
        "another replica was asked: refused, lost, late, busy, starting, deadline, stale, broken; or dropped: the "
        "answer was no longer needed, or another replica answered first. The label of an address longer than 128 "
        "characters is its first 111 and a checksum.",
    ),
    "gathernd_shard_seconds": Counter(("shard",), "Total seconds that requests to shards took."),
    "gathernd_range_scatters": Counter(
        ("outcome",),
        "Scatters that routers sent to this shard as the primary of a range: ok, repeated (its Idempotency-Key was "
        "known), changed (the range is not at the requested sequence), or the code of the error.",
        ("ok",),
    ),
    "gathernd_range_replicas_left": Counter(
        ("why",),
        "Replicas that left the in-sync set of a range whose primary is this shard, by reason: silent (no answer), "
        "behind (committed records were not applied), lost (the replica lost its rows).",
        ("silent", "behind", "lost"),
    ),
    "gathernd_range_replicas_joined": Counter(
        (), "Replicas that joined the in-sync set of a range whose primary is this shard."
    ),
    "gathernd_range_copies": Counter(
        ("outcome",),
        "Copies of writable ranges that this shard made to get in sync again: done or failed.",
        ("done", "failed"),
    ),
    "gathernd_range_takeovers": Counter(
        (), "Ranges whose primary this shard has become: it committed their logs and accepts scatters."
    ),
    "gathernd_imports": Counter(
        ("outcome",), "Imports that have ended, by outcome: done, failed or cancelled.", ("done", "failed", "cancelled")
    ),
    "gathernd_imported_bytes": Counter((), "Bytes of items that imports have read."),
    "gathernd_stage_seconds": Counter(("path", "stage"), "Total seconds that gathers spent in each stage."),
    "gathernd_connections_closed_idle": Counter((), "Idle connections closed to make room for new ones."),
    "gathernd_connections_refused": Counter((), "Connections refused because the limit was reached and none was idle."),
    "gathernd_received_bytes": Counter((), "Bytes of request bodies received."),
    "gathernd_sent_bytes": Counter((), "Bytes of response bodies sent."),
    "gathernd_workers_started": Counter((), "Worker processes started, the first ones included."),
    "gathernd_workers_died": Counter((), "Worker processes that ended without being asked to."),
    "gathernd_background_failures": Counter(
        ("task",),
        "Failures of background tasks; each task is restarted.",
    ),
}
"""Counters by name. Only these names may be counted, and all of them are exposed."""
CERTIFICATE_EXPIRY: Final = "gathernd_tls_certificate_expiry_timestamp_seconds"
SHARD_GAUGES: Final[Mapping[str, str]] = {
    "gathernd_ranges_primary": "Writable ranges whose primary is this shard.",
    "gathernd_ranges_in_sync": "Writable ranges with which this shard is in sync.",
    "gathernd_ranges_out_of_sync": "Writable ranges assigned to this shard with which it is not in sync.",
    "gathernd_ranges_refusing_scatters": "Ranges whose primary is this shard that refuse scatters because too few "
    "replicas are in sync.",
    "gathernd_range_lag_seconds": "Time since a replica last reported all committed records as applied: the longest "
    "over all ranges whose primary is this shard.",
    "gathernd_catalogue_age_seconds": "Seconds since etcd last confirmed this shard's catalogue; after 15 it "
    "refuses reads of writable ranges.",
}
"""Gauges that only a shard of a cluster exposes."""
GAUGES: Final[Mapping[str, str]] = {
    "gathernd_requests_in_flight": "Requests being answered.",
    "gathernd_requests_limit": "Maximum number of requests in progress; further ones are refused.",
    "gathernd_connections": "Open connections.",
    "gathernd_connections_limit": (
        "Maximum number of open connections; a further one closes an idle one, or is refused."
    ),
    "gathernd_queue_depth": "Calls of the thread pool that are running or waiting.",
    "gathernd_queue_capacity": (
        "Maximum number of calls of the thread pool that may run or wait; further ones are refused."
    ),
    "gathernd_memory_used_bytes": "Bytes of the memory budget that requests and responses hold.",
    "gathernd_memory_budget_bytes": "Bytes of the memory budget.",
    "gathernd_processes": "Processes that answer requests.",
    "gathernd_processes_expected": "Number of processes in the settings; more run while workers are replaced.",
    "gathernd_resident_tensors": "Resident tensors.",
    "gathernd_resident_versions": "Versions of all resident tensors that are kept.",
    "gathernd_aliases": "Aliases of versions of resident tensors.",
    "gathernd_resident_tensors_damaged": "Versions of resident tensors whose data is known to be damaged.",
    "gathernd_resident_bytes": "Bytes of the resident tensors, all versions of them.",
    "gathernd_resident_tensors_limit": "Maximum number of resident tensors that the store accepts.",
    "gathernd_resident_bytes_free": "Bytes of resident tensors that the quota and the disk still have room for.",
    **SHARD_GAUGES,
    "gathernd_gpu_memory_bytes": "Bytes of the GPU's memory that the service may use; 0 without a GPU.",
    "gathernd_gpu_used_bytes": "Bytes of GPU memory that copies of tensors and gathers hold.",
    "gathernd_gpu_resident_bytes": "Bytes of GPU memory that copies of resident tensors hold.",
    CERTIFICATE_EXPIRY: "When the TLS certificate in use, or one of its chain, expires, in seconds since 1970; "
    "absent without TLS.",
}
OF_ONE_PROCESS: Final = "per process of the service: 0 is the one that was started, the others are its workers"
PROCESS_COUNTERS: Final[Mapping[str, str]] = {
    "process_cpu_seconds": f"User and system CPU time spent in seconds, {OF_ONE_PROCESS}.",
}
"""Help texts of the per-process counters that Prometheus's own libraries define; the label is `process`."""
PROCESS_GAUGES: Final[Mapping[str, str]] = {
    "process_virtual_memory_bytes": f"Virtual memory size in bytes, {OF_ONE_PROCESS}.",
    "process_resident_memory_bytes": (
        f"Resident memory size in bytes, {OF_ONE_PROCESS}; pages of tensors that processes share count for each."
    ),
    "process_start_time_seconds": f"Start time in seconds since 1970, {OF_ONE_PROCESS}.",
    "process_open_fds": f"Number of open file descriptors, {OF_ONE_PROCESS}.",
    "process_max_fds": f"Maximum number of open file descriptors, {OF_ONE_PROCESS}.",
}
"""Help texts of the gauges that the same libraries define."""

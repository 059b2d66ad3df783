"""The settings: environment variables GATHERND_* and equivalent flags of `gathernd serve`, read once and passed down.

Other modules receive the values that they need. A test checks that docs/reference/settings.md matches the table here.
"""

from __future__ import annotations

import os
import re
import resource
import socket
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Final, Literal, Self, get_args

from platformdirs import user_cache_path, user_data_path
from pydantic import ByteSize, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.imports.source_urls import BadUrl, parse_prefix
from app.memory.container_memory import memory_limit
from app.tensors.shape_limits import Limits

_ORIGIN = re.compile(r"https?://[a-z0-9._-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9._-]+(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?")

ADDRESS: Final = r"^(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"
_ALL_ADDRESSES: Final = ("0.0.0.0", "::")  # noqa: S104  (compared, not listened on)
_CONNECTIONS = 10_000
_OWN_FILES = 128
"""Number of open files other than connections and uploads: those of the store, listeners and libraries."""
_UNLIMITED = 1 << 20


def _process_file_limit() -> int:
    """Return the maximum number of files this process may open.

    A service raises its limit to this number at startup.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _UNLIMITED if most == resource.RLIM_INFINITY else most


def size_of(text: str) -> ByteSize:
    """Parse a size such as 1000 or 1GiB, in bytes. Raises ValueError."""
    return ByteSize(ByteSize._validate(text, None))  # type: ignore[arg-type]


class Settings(BaseSettings):
    """Every setting of the service, with its default. A size is a plain number of bytes or has a unit (64MiB)."""

    model_config = SettingsConfigDict(
        env_prefix="GATHERND_", extra="ignore", cli_kebab_case=True, cli_implicit_flags=True, frozen=True
    )

    host: str = Field(
        "127.0.0.1",
        description="Address or name to listen on. For a name, the service listens on all of its addresses. `::` also "
        "accepts IPv4.",
    )
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 picks a free port.")
    grpc_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of the inference protocol over gRPC; 0 picks a free port. Needs the extra `grpc` (default: "
        "no gRPC).",
    )
    workers: int = Field(1, ge=1, le=256, description="Number of processes that share the port.")
    uds: Path | None = Field(
        None,
        description="Path of a Unix socket for HTTP, without TLS. If it is set, TCP is served only if HOST or PORT is "
        "set too (default: none).",
    )
    grpc_uds: Path | None = Field(
        None,
        description="Path of a Unix socket for the inference protocol over gRPC, without TLS. Needs the extra `grpc` "
        "and one worker (default: none).",
    )
    uds_mode: str = Field(
        "0600",
        pattern="^0?[0-7]{3}$",
        description="Permissions of both socket files, in octal: whoever may write to a file may connect. A service "
        "without keys refuses changes to tensors if others may write to the files.",
    )
    uds_owner: str | None = Field(
        None,
        min_length=1,
        description="Owner of the socket files, as `user`, `user:group` or `:group` (default: the owner of the "
        "process).",
    )
    device: Literal["auto", "cpu", "gpu"] = Field(
        "auto",
        description="Where gathers run if the request does not say: `auto` decides by size; `cpu` never uses a GPU; "
        "`gpu` uses the GPU for every gather that fits, and refuses to start if there is no GPU.",
    )
    gpu_memory: ByteSize | None = Field(
        None,
        ge=2**20,
        description="Maximum GPU memory to use (default: nine tenths of what is free at startup).",
    )
    store_dir: Path = Field(
        default_factory=lambda: user_data_path("gathernd") / "store",
        description="Folder of the resident tensors (default: a per-user data folder).",
    )
    cache_dir: Path = Field(
        default_factory=lambda: user_cache_path("gathernd"),
        description="Folder of compiled kernels and measured rates (default: a per-user cache folder).",
    )
    max_json_bytes: ByteSize = Field(
        size_of("64MiB"), ge=1, description="Maximum size of a JSON body, as sent and after decompression."
    )
    max_body_bytes: ByteSize = Field(
        size_of("1GiB"), ge=1, description="Maximum size of a binary body, as sent and after decompression."
    )
    max_output_bytes: ByteSize = Field(size_of("1GiB"), ge=1, description="Maximum size of the output.")
    max_upload_bytes: ByteSize = Field(size_of("64GiB"), ge=1, description="Maximum size of one upload.")
    max_store_bytes: ByteSize | None = Field(
        None, ge=1, description="Maximum size of all resident tensors together (default: limited only by the disk)."
    )
    max_tensors: int = Field(
        10_000,
        ge=1,
        description="Maximum number of resident tensors, however many versions each has; the number of aliases has "
        "the same limit.",
    )
    keep_versions: int = Field(
        1,
        ge=1,
        le=10_000,
        description="Number of versions of a tensor that an upload keeps, including the new one. Versions that aliases "
        "point to are also kept. `keep` in the upload's query overrides this setting.",
    )
    max_idempotency_keys: int = Field(
        10_000_000,
        ge=1,
        description="Maximum number of Idempotency-Keys to remember, each for 24 hours. A key needs about 300 bytes of "
        "disk.",
    )
    import_from: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="URL prefixes from which tensors may be imported, comma-separated, as in "
        "`https://models.example/tables/, s3://bucket/tables/, file:///data/tables/`. After an https or http prefix "
        "and a space, list the networks (`10.0.0.0/8`) in which its host may have addresses; public addresses are "
        "always allowed.",
    )
    import_s3_endpoint: str | None = Field(None, description="URL of the S3 service for `s3://` URLs (default: AWS).")
    max_imports: int = Field(4, ge=1, le=64, description="Maximum number of imports that a process runs at once.")
    cluster: str | None = Field(
        None,
        description="Cluster to whose tables this service routes requests: `etcd://HOST:PORT[,HOST:PORT...][/PREFIX]` "
        "(`etcds://` over TLS) for a catalogue in etcd, or the path of a map file of shards. A changed file takes "
        "effect within a second.",
    )
    shard: bool = Field(
        False,
        description="Whether this service is a shard of the cluster at `etcd://`. A shard registers itself and pulls "
        "the segments of tables that the reconciler assigns to it. Its callers need the cluster's key.",
    )
    node: str = Field(
        default_factory=socket.gethostname,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of the shard in its cluster; it belongs to the shard's store (default: the host name).",
    )
    zone: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,64}$",
        description="Failure domain of the shard, such as a rack. The copies of a row range are placed in different "
        "zones.",
    )
    advertise: str | None = Field(
        None,
        pattern=ADDRESS,
        description="HOST:PORT at which routers and other shards reach the shard (default: the address it listens on).",
    )
    cluster_key_file: Path | None = Field(
        None,
        description="File with an API key of scope `gather`, which is sent to the shards of a map file if they require "
        "one. A changed file takes effect within a second.",
    )
    cluster_ca: Path | None = Field(
        None,
        description="PEM file of the authorities that sign the shards' certificates. If set, shards are called over "
        "TLS only, and a certificate must name the shard's address in the map. A changed file takes effect within a "
        "second.",
    )
    shard_timeout: float = Field(
        2.0,
        gt=0,
        description="Seconds that a shard may take to begin its response, or pause within it, before the router tries "
        "another replica.",
    )
    max_rank: int = Field(32, ge=1, le=64, description="Maximum rank of data, indices and output.")
    max_dimension: int = Field(2**63 - 1, ge=1, description="Maximum size of one dimension.")
    max_elements: int = Field(2**33, ge=1, description="Maximum number of elements of data, indices or output.")
    max_string_bytes: ByteSize = Field(
        size_of("16MiB"), ge=1, description="Maximum length of a string element, in UTF-8 bytes."
    )
    max_features: int = Field(1024, ge=1, le=65536, description="Maximum number of features in a lookup.")
    max_header_bytes: ByteSize = Field(size_of("64KiB"), ge=1024, description="Maximum size of a request's header.")
    max_header_fields: int = Field(100, ge=8, description="Maximum number of header fields in a request.")
    grpc_max_message_bytes: ByteSize = Field(
        size_of("16MiB"),
        ge=1024,
        description="Maximum size of a gRPC message, as sent and after decompression. A message is in memory before it "
        "is charged, so the service admits only as many concurrent calls as messages of this size fit into "
        "MEMORY_BUDGET.",
    )
    memory_budget: ByteSize = Field(
        default_factory=lambda: ByteSize(memory_limit() // 2),
        ge=2**20,
        description="Maximum bytes that all requests and responses together may hold (default: half of the memory "
        "that the process may use).",
    )
    threads: int = Field(
        default_factory=lambda: len(os.sched_getaffinity(0)),
        ge=1,
        le=1024,
        description="Number of threads in the kernel pool, which is also the maximum for one gather (default: the "
        "number of cores that the process may use).",
    )
    max_requests: int = Field(1024, ge=1, description="Maximum number of requests in progress per process.")
    max_connections: int = Field(
        default_factory=lambda: max(1, min(_CONNECTIONS, (_process_file_limit() - _OWN_FILES) * 3 // 4)),
        ge=1,
        description="Maximum number of open connections per process. A further connection closes the one that has been "
        "idle longest, or is refused if none is idle (default: three quarters of the files a process may open, at "
        "most 10000).",
    )
    max_queue: int = Field(
        64,
        ge=0,
        description="Maximum number of requests that wait for a thread of the pool; as many more may wait for their "
        "large body to be read.",
    )
    queue_timeout: float = Field(
        10.0,
        gt=0,
        description="Seconds that a request may wait for a thread of the pool, or for its large body to be read.",
    )
    deadline: float = Field(
        30.0, gt=0, description="Seconds after which a request that has arrived but not started is refused."
    )
    header_timeout: float = Field(
        10.0, gt=0, description="Seconds that a sender may take to send the header of a request."
    )
    body_timeout: float = Field(10.0, gt=0, description="Seconds that a sender may pause within a body.")
    min_body_rate: int = Field(
        1024, ge=0, description="Lowest average rate at which a body may arrive, in bytes per second."
    )
    answer_timeout: float = Field(
        30.0, gt=0, description="Seconds that a client may pause while it reads its response."
    )
    min_answer_rate: int = Field(
        1024, ge=0, description="Lowest average rate at which a client may read its response, in bytes per second."
    )
    keep_alive: float = Field(
        130.0,
        gt=0,
        description="Seconds to keep an idle connection open. Set it higher than in the proxies in front of the "
        "service (Caddy: 120).",
    )
    grpc_max_connections: int = Field(
        default_factory=lambda: max(1, min(_CONNECTIONS, (_process_file_limit() - _OWN_FILES) // 8)),
        ge=1,
        description="Maximum number of open gRPC connections per process; further ones are closed at once (default: an "
        "eighth of the files a process may open, at most 10000).",
    )
    grpc_keepalive: float = Field(
        60.0, gt=0, description="Seconds of silence after which the service pings a gRPC connection."
    )
    grpc_keepalive_timeout: float = Field(
        20.0, gt=0, description="Seconds to wait for the reply to a ping before the connection is closed."
    )
    grpc_max_connection_age: float | None = Field(
        None,
        gt=0,
        description="Seconds after which a gRPC connection is closed gracefully, so that clients reconnect and reach "
        "other workers and replicas. Its calls have DRAIN_TIMEOUT to finish (default: never).",
    )
    drain_delay: float = Field(
        0.0,
        ge=0,
        description="Seconds after SIGTERM during which requests are still accepted while /readyz reports not ready.",
    )
    drain_timeout: float = Field(
        30.0, gt=0, description="Seconds that running requests have to finish after DRAIN_DELAY."
    )
    loop_max_us: float | None = Field(
        None,
        ge=0,
        description="Longest gather that runs in the event loop, in microseconds as estimated from measured rates "
        "(default: measured).",
    )
    split_min_us: float | None = Field(
        None,
        ge=0,
        description="Shortest gather that is split over threads, in microseconds as estimated from measured rates "
        "(default: 10).",
    )
    kernel: Literal["numba", "numpy"] = Field(
        "numba",
        description="CPU kernel: `numba` or `numpy`. With `numpy`, nothing is compiled: the service starts in 2 s, but "
        "reading and writing JSON takes about a hundred times as long.",
    )
    api_keys_file: Path | None = Field(None, description="File of API keys; if not set, no key is required.")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Host names, comma-separated, that requests may use in addition to loopback names (default: none "
        "on a loopback address, any elsewhere).",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Origins, comma-separated, whose pages may call the service (CORS), as in https://app.example.",
    )
    tls_cert: Path | None = Field(
        None,
        description="PEM file of the certificate and its chain. If set, the service speaks HTTPS only. A renewed file "
        "takes effect within a second.",
    )
    tls_key: Path | None = Field(
        None, description="PEM file of the certificate's private key (default: the certificate's file)."
    )
    tls_key_password_file: Path | None = Field(None, description="File of the private key's password, if it has one.")
    tls_client_ca: Path | None = Field(
        None,
        description="PEM file of authorities. If set, every caller must present a certificate signed by one of them. "
        "A changed file takes effect within a second.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")
    log_format: Literal["text", "json"] = Field(
        "text", description="Format of the log: lines of text for people, or a JSON object per line."
    )
    log_rate: int = Field(
        100,
        ge=0,
        description="Maximum number of log lines per second and process about refused requests; one more line counts "
        "the rest.",
    )
    access_log: bool = Field(
        False, description="Whether every request is logged. This slows small requests noticeably."
    )
    otlp_endpoint: str | None = Field(
        None,
        description="URL of the OpenTelemetry collector (OTLP over HTTP) that receives a trace of each request. Needs "
        "the extra `otel` (default: `OTEL_EXPORTER_OTLP_ENDPOINT`; if neither is set, nothing is traced).",
    )

    @property
    def limits(self) -> Limits:
        """The limits on tensors."""
        return Limits(**{limit.name: getattr(self, f"max_{limit.name}") for limit in fields(Limits)})

    @property
    def serves_tcp(self) -> bool:
        """Whether HTTP is served on a port."""
        return self.uds is None or bool({"host", "port"} & self.model_fields_set)

    @property
    def serves_grpc(self) -> bool:
        """Whether gRPC is served, on a port or a socket."""
        return self.grpc_port is not None or self.grpc_uds is not None

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_empty_path(cls, value: object, known: ValidationInfo) -> object:
        if value == "" and _is_path_field(cls.model_fields[str(known.field_name)]):
            raise ValueError("is empty: give a path, or leave it out")  # it would be the working directory
        return value

    @field_validator("grpc_uds")
    @classmethod
    def _check_one_worker(cls, value: Path | None, known: ValidationInfo) -> Path | None:
        if value is not None and known.data.get("workers", 1) > 1:
            raise ValueError("needs GATHERND_WORKERS=1; several workers share GATHERND_GRPC_PORT")
        return value

    @model_validator(mode="after")
    def _check_grpc_address(self) -> Self:
        """Check that HTTP and gRPC use different ports and sockets.

        Two sockets that are not listening yet may bind the same port without an error.
        """
        if self.serves_tcp and self.grpc_port == self.port != 0:
            raise _refusal("grpc_port", self.grpc_port, f"{self.grpc_port} is already the HTTP port, GATHERND_PORT")
        if self.uds is not None and self.grpc_uds is not None and self.uds.resolve() == self.grpc_uds.resolve():
            raise _refusal("grpc_uds", self.grpc_uds, f"{self.grpc_uds} is already the HTTP socket, GATHERND_UDS")
        return self

    @model_validator(mode="after")
    def _check_shard(self) -> Self:
        if self.shard and not (self.cluster or "").startswith(("etcd://", "etcds://")):
            raise _refusal("shard", True, "needs GATHERND_CLUSTER, as in etcd://10.0.0.1:2379")
        if self.shard and self.advertise is None and (not self.serves_tcp or self.host in _ALL_ADDRESSES):
            raise _refusal("advertise", None, "is required: others cannot reach the address that the shard listens on")
        return self

    @field_validator("max_connections", "grpc_max_connections")
    @classmethod
    def _check_file_limit(cls, value: int) -> int:
        room = _process_file_limit() - _OWN_FILES
        if value > max(room, 1):
            raise ValueError(f"is more than {room}, which is what the process's limit on open files allows (ulimit -n)")
        return value

    @field_validator("tls_key", "tls_key_password_file", "tls_client_ca")
    @classmethod
    def _check_certificate_given(cls, value: Path | None, known: ValidationInfo) -> Path | None:
        if value is not None and known.data.get("tls_cert") is None:
            raise ValueError("needs GATHERND_TLS_CERT")
        return value

    @field_validator("allowed_hosts", "cors_origins", "import_from", mode="before")
    @classmethod
    def _split_list(cls, value: object, known: ValidationInfo) -> object:
        if not isinstance(value, str):
            return value
        text = value if known.field_name == "import_from" else value.lower()
        return tuple(entry.strip() for entry in text.split(",") if entry.strip())

    @field_validator("import_from")
    @classmethod
    def _check_prefixes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            try:
                parse_prefix(entry)
            except BadUrl as problem:
                raise ValueError(f"{entry!r} is not a URL prefix: {problem}") from None
        return value

    @field_validator("import_s3_endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is not None and not _ENDPOINT.fullmatch(value):
            raise ValueError("must be a URL such as https://host or http://host:9000")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is not an origin: write https://app.example or http://app.example:81")
        return value


def _is_path_field(field: FieldInfo) -> bool:
    return Path in (field.annotation, *get_args(field.annotation))


def _refusal(name: str, value: object, why: str) -> ValidationError:
    """The error for a setting that conflicts with others, in the form of pydantic's own errors for one setting."""
    return ValidationError.from_exception_data(
        "Settings", [{"type": "value_error", "loc": (name,), "input": value, "ctx": {"error": ValueError(why)}}]
    )


TOPICS: Final = {
    "host": "Address and processes",
    "device": "GPU",
    "store_dir": "Folders",
    "max_json_bytes": "Sizes of requests and responses",
    "max_upload_bytes": "Tables",
    "import_from": "Imports",
    "cluster": "Clusters",
    "max_rank": "Limits of a request",
    "memory_budget": "Memory, threads and queues",
    "queue_timeout": "Timeouts",
    "loop_max_us": "Where gathers run",
    "api_keys_file": "Access",
    "tls_cert": "TLS",
    "log_level": "Logs and traces",
}
"""The topics of the settings, keyed by the first setting of each topic.

A topic extends to the first setting of the next one.
"""


def topics() -> dict[str, str]:
    """The topic of each setting, in the order of the fields."""
    found: dict[str, str] = {}
    topic = ""
    for name in Settings.model_fields:
        topic = TOPICS.get(name, topic)
        found[name] = topic
    return found


SETTING_NAMES = tuple(f"GATHERND_{name.upper()}" for name in Settings.model_fields)


def settings_tables() -> str:
    """The settings as a Markdown table for each topic, as docs/reference/settings.md shows them."""
    lines: list[str] = []
    for name, field in Settings.model_fields.items():
        if name in TOPICS:
            lines += ["", f"## {TOPICS[name]}", "", "| variable | flag | default | what it sets |", "|---|---|---|---|"]
        text = default_text(field)
        default = f"`{text}`" if text else ""
        flag = f"--{name.replace('_', '-')}"
        lines.append(f"| `GATHERND_{name.upper()}` | `{flag}` | {default} | {field.description} |")
    return "\n".join(lines[1:])


def default_text(field: FieldInfo) -> str:
    """A field's default in the form a user types it; "" if it has none or if it depends on the machine."""
    default = field.default
    if field.default_factory is not None or default in (None, ()):
        return ""
    if isinstance(default, ByteSize):
        return default.human_readable(separator=" ").removesuffix(".0").replace(".0 ", " ").replace(" ", "")
    return str(default)

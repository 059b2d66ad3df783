"""The settings: environment variables GATHERND_* and equal flags of `gathernd serve`, built once and passed down.

Other modules are given what they need of it. A test keeps docs/reference/settings.md equal to it.
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
"""Files that are no connections and no uploads: the store's, listeners, libraries."""
_UNLIMITED = 1 << 20


def _files_of_process() -> int:
    """How many files this process may open once it has raised its limit, as a service does when it starts."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _UNLIMITED if most == resource.RLIM_INFINITY else most


def size_of(text: str) -> ByteSize:
    """The number of bytes that a text says, as 1000 or 1GiB. Raises ValueError."""
    return ByteSize(ByteSize._validate(text, None))  # type: ignore[arg-type]


class Settings(BaseSettings):
    """Every setting of the service, with its default. Sizes take plain bytes or a unit (64MiB)."""

    model_config = SettingsConfigDict(
        env_prefix="GATHERND_", extra="ignore", cli_kebab_case=True, cli_implicit_flags=True, frozen=True
    )

    host: str = Field(
        "127.0.0.1", description="Address to listen on, or a name, for all of its addresses; `::` takes IPv4 too."
    )
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    grpc_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port on which the inference protocol is served over gRPC too, 0 for a free one; needs the extra "
        "`grpc` (default: none, and no gRPC).",
    )
    workers: int = Field(1, ge=1, le=256, description="Processes that share the port.")
    uds: Path | None = Field(
        None,
        description="Path of a Unix socket on which HTTP is served, without TLS; on TCP it is then served only where "
        "HOST or PORT is set too (default: none).",
    )
    grpc_uds: Path | None = Field(
        None,
        description="Path of a Unix socket on which the inference protocol is served over gRPC, without TLS; needs the "
        "extra `grpc`, and one worker (default: none).",
    )
    uds_mode: str = Field(
        "0600",
        pattern="^0?[0-7]{3}$",
        description="Permissions of the files of both sockets, in octal: whoever may write to one may connect. Without "
        "keys and with one that others may write to no tensor can be changed.",
    )
    uds_owner: str | None = Field(
        None,
        min_length=1,
        description="Owner of these files, as `user`, `user:group` or `:group` (default: that of the process).",
    )
    device: Literal["auto", "cpu", "gpu"] = Field(
        "auto",
        description="Where gathers run that leave it to the service: auto, by their size; cpu, "
        "and no GPU is used at all; gpu, on the GPU whatever it can hold, and no start without one.",
    )
    gpu_memory: ByteSize | None = Field(
        None,
        ge=2**20,
        description="Most bytes of the GPU's memory (default: nine tenths of what is free at the start).",
    )
    store_dir: Path = Field(
        default_factory=lambda: user_data_path("gathernd") / "store",
        description="Folder of the resident tensors (default: a per-user data folder).",
    )
    cache_dir: Path = Field(
        default_factory=lambda: user_cache_path("gathernd"),
        description="Folder of compiled kernels and the measured rates (default: a per-user cache folder).",
    )
    max_json_bytes: ByteSize = Field(size_of("64MiB"), ge=1, description="Largest JSON body, as sent and as inflated.")
    max_body_bytes: ByteSize = Field(size_of("1GiB"), ge=1, description="Largest binary body, as sent and as inflated.")
    max_output_bytes: ByteSize = Field(size_of("1GiB"), ge=1, description="Largest output, in bytes of its items.")
    max_upload_bytes: ByteSize = Field(size_of("64GiB"), ge=1, description="Largest upload of a resident tensor.")
    max_store_bytes: ByteSize | None = Field(
        None, ge=1, description="Most bytes of all resident tensors together (default: what the disk holds)."
    )
    max_tensors: int = Field(
        10_000, ge=1, description="Most resident tensors, each with any number of versions, and most aliases."
    )
    keep_versions: int = Field(
        1,
        ge=1,
        le=10_000,
        description="How many versions of a tensor an upload keeps, itself among them, beside those that aliases name; "
        "`keep` in the upload's query wins.",
    )
    max_idempotency_keys: int = Field(
        10_000_000, ge=1, description="Most Idempotency-Keys of the last 24 hours; each takes some 300 bytes of disk."
    )
    import_from: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Prefixes, comma-separated, of the URLs that tensors may be imported from, as in "
        "`https://models.example/tables/, s3://bucket/tables/, file:///data/tables/`. Behind one of https or http, and "
        "a space, stand networks (`10.0.0.0/8`) of which its host may have addresses besides public ones.",
    )
    import_s3_endpoint: str | None = Field(
        None, description="URL of the service that has the buckets of `s3://` (default: that of AWS)."
    )
    max_imports: int = Field(4, ge=1, le=64, description="Imports that a process may carry out at once.")
    cluster: str | None = Field(
        None,
        description="The cluster whose tables this service routes to: `etcd://HOST:PORT[,HOST:PORT...][/PREFIX]` "
        "(`etcds://` over TLS), where its catalogue is, or a file with a map of shards. A changed file is in force "
        "within a second.",
    )
    shard: bool = Field(
        False,
        description="Whether this service is a shard of the cluster at `etcd://`: it registers itself and holds the "
        "segments of tables that a reconciler has it pull. Its callers need the cluster's key.",
    )
    node: str = Field(
        default_factory=socket.gethostname,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of the shard in its cluster, which goes with its store (default: the host's name).",
    )
    zone: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,64}$",
        description="What fails together with the shard, such as a rack: copies of rows are put into several zones.",
    )
    advertise: str | None = Field(
        None,
        pattern=ADDRESS,
        description="HOST:PORT by which routers and other shards reach the shard (default: what it listens on).",
    )
    cluster_key_file: Path | None = Field(
        None,
        description="File of the API key, of scope `gather`, that the shards of a map's file are asked with, if they "
        "ask for one. A changed file is in force within a second.",
    )
    cluster_ca: Path | None = Field(
        None,
        description="PEM file of the authorities of the shards' certificates; with it shards are asked over TLS only, "
        "and a certificate has to name the address that the map has. A changed file is in force within a second.",
    )
    shard_timeout: float = Field(
        2.0,
        gt=0,
        description="Seconds that a shard may take to begin its answer, or pause in it, before another replica is "
        "asked.",
    )
    max_rank: int = Field(32, ge=1, le=64, description="Largest rank of data, indices and output.")
    max_dimension: int = Field(2**63 - 1, ge=1, description="Largest size of one dimension.")
    max_elements: int = Field(2**33, ge=1, description="Most elements of data, indices or output.")
    max_string_bytes: ByteSize = Field(size_of("16MiB"), ge=1, description="Longest string element, in UTF-8 bytes.")
    max_features: int = Field(1024, ge=1, le=65536, description="Most features of a lookup.")
    max_header_bytes: ByteSize = Field(size_of("64KiB"), ge=1024, description="Most bytes of a request's header.")
    max_header_fields: int = Field(100, ge=8, description="Most header fields of a request.")
    grpc_max_message_bytes: ByteSize = Field(
        size_of("16MiB"),
        ge=1024,
        description="Largest message of a gRPC call, as sent and as inflated. A message is in memory before it can be "
        "charged: as many calls may be under way at once as messages of this size fit MEMORY_BUDGET.",
    )
    memory_budget: ByteSize = Field(
        default_factory=lambda: ByteSize(memory_limit() // 2),
        ge=2**20,
        description="Bytes that all requests and answers together may hold (default: half of the memory the process "
        "may use).",
    )
    threads: int = Field(
        default_factory=lambda: len(os.sched_getaffinity(0)),
        ge=1,
        le=1024,
        description="Threads of the kernel pool, and most that share a gather "
        "(default: the cores the process may use).",
    )
    max_requests: int = Field(1024, ge=1, description="Requests of a process that may be under way at once.")
    max_connections: int = Field(
        default_factory=lambda: max(1, min(_CONNECTIONS, (_files_of_process() - _OWN_FILES) * 3 // 4)),
        ge=1,
        description="Connections that a process may have open: for one more the longest idle is closed, and without an "
        "idle one it is refused (default: three quarters of the files a process may open, at most 10000).",
    )
    max_queue: int = Field(
        64,
        ge=0,
        description="Requests that may wait for a thread of the pool, and as many for a large body to be read.",
    )
    queue_timeout: float = Field(
        10.0, gt=0, description="Seconds a request may wait for a thread of the pool, or for its large body to be read."
    )
    deadline: float = Field(
        30.0, gt=0, description="Seconds after which a request that has arrived and not run is refused."
    )
    header_timeout: float = Field(10.0, gt=0, description="Seconds a sender may take for a request's header.")
    body_timeout: float = Field(10.0, gt=0, description="Seconds a sender may pause within a body.")
    min_body_rate: int = Field(1024, ge=0, description="Bytes a second that a body must arrive with on average.")
    answer_timeout: float = Field(30.0, gt=0, description="Seconds a client may pause in reading its answer.")
    min_answer_rate: int = Field(1024, ge=0, description="Bytes a second that an answer must be read with on average.")
    keep_alive: float = Field(
        130.0,
        gt=0,
        description="Seconds an idle connection is kept: longer than the proxies in front keep theirs (Caddy: 120).",
    )
    grpc_max_connections: int = Field(
        default_factory=lambda: max(1, min(_CONNECTIONS, (_files_of_process() - _OWN_FILES) // 8)),
        ge=1,
        description="gRPC connections that a process may have open; further ones are closed at once (default: an "
        "eighth of the files a process may open, at most 10000).",
    )
    grpc_keepalive: float = Field(60.0, gt=0, description="Seconds after which an idle gRPC connection is sent a ping.")
    grpc_keepalive_timeout: float = Field(
        20.0, gt=0, description="Seconds that the ping may stay without an answer before the connection is closed."
    )
    grpc_max_connection_age: float | None = Field(
        None,
        gt=0,
        description="Seconds after which a gRPC connection is closed politely, so that clients connect anew and reach "
        "other workers and replicas; its calls have DRAIN_TIMEOUT to finish (default: never).",
    )
    drain_delay: float = Field(
        0.0, ge=0, description="Seconds after SIGTERM in which requests are still accepted while /readyz says no."
    )
    drain_timeout: float = Field(30.0, gt=0, description="Seconds after that for running requests to finish.")
    loop_max_us: float | None = Field(
        None,
        ge=0,
        description="Longest gather, in microseconds by measured rates, that the event loop runs (default: measured).",
    )
    split_min_us: float | None = Field(
        None,
        ge=0,
        description="Shortest gather, in microseconds by measured rates, that is split over threads (default: 10).",
    )
    kernel: Literal["numba", "numpy"] = Field(
        "numba",
        description="CPU kernel: numba, or numpy, with which nothing is compiled, neither what reads nor what writes "
        "requests: the start takes 2 s, and JSON some hundred times as long.",
    )
    api_keys_file: Path | None = Field(None, description="File of API keys; without it no key is asked for.")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Host names, comma-separated, by which the service may be called besides loopback names (default: "
        "no others on a loopback address, any name elsewhere).",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Origins, comma-separated, as in https://app.example, whose pages may call the service (CORS).",
    )
    tls_cert: Path | None = Field(
        None,
        description="PEM file of the certificate and its chain; with it the service speaks HTTPS only. "
        "A renewed one is in force within a second.",
    )
    tls_key: Path | None = Field(
        None, description="PEM file of the certificate's private key (default: it stands in the certificate's file)."
    )
    tls_key_password_file: Path | None = Field(None, description="File of the private key's password, if it has one.")
    tls_client_ca: Path | None = Field(
        None,
        description="PEM file of authorities; with it every caller must show a certificate of one of them. A changed "
        "file is in force within a second.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log line printed."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Log lines as text for people, or as a JSON object each."
    )
    log_rate: int = Field(
        100,
        ge=0,
        description="Most lines a second and process about refused requests; one line says how many more there were.",
    )
    access_log: bool = Field(
        False, description="Whether every request gets a line in the log, which costs small requests a good deal."
    )
    otlp_endpoint: str | None = Field(
        None,
        description="URL of the OpenTelemetry collector (OTLP over HTTP) that gets a trace of each request; needs the "
        "extra `otel` (default: what `OTEL_EXPORTER_OTLP_ENDPOINT` says; without either nothing is traced).",
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
        """Whether gRPC is served, wherever that is."""
        return self.grpc_port is not None or self.grpc_uds is not None

    @field_validator("*", mode="before")
    @classmethod
    def _is_a_path(cls, value: object, known: ValidationInfo) -> object:
        if value == "" and _takes_a_path(cls.model_fields[str(known.field_name)]):
            raise ValueError("is empty: give a path, or leave it out")  # it would be the working directory
        return value

    @field_validator("grpc_uds")
    @classmethod
    def _has_one_worker(cls, value: Path | None, known: ValidationInfo) -> Path | None:
        if value is not None and known.data.get("workers", 1) > 1:
            raise ValueError("is served by one worker, GATHERND_WORKERS=1; several share GATHERND_GRPC_PORT")
        return value

    @model_validator(mode="after")
    def _grpc_has_a_place_of_its_own(self) -> Self:
        """Sockets that do not listen yet may share a port: nothing else would refuse it."""
        if self.serves_tcp and self.grpc_port == self.port != 0:
            raise _refusal("grpc_port", self.grpc_port, f"{self.grpc_port} is the port of HTTP, GATHERND_PORT")
        if self.uds is not None and self.grpc_uds is not None and self.uds.resolve() == self.grpc_uds.resolve():
            raise _refusal("grpc_uds", self.grpc_uds, f"{self.grpc_uds} is the socket of HTTP, GATHERND_UDS")
        return self

    @model_validator(mode="after")
    def _shard_is_reached(self) -> Self:
        if self.shard and not (self.cluster or "").startswith(("etcd://", "etcds://")):
            raise _refusal("shard", True, "needs GATHERND_CLUSTER, as in etcd://10.0.0.1:2379")
        if self.shard and self.advertise is None and (not self.serves_tcp or self.host in _ALL_ADDRESSES):
            raise _refusal("advertise", None, "is needed, since others cannot reach the shard by what it listens on")
        return self

    @field_validator("max_connections", "grpc_max_connections")
    @classmethod
    def _fits_the_files(cls, value: int) -> int:
        room = _files_of_process() - _OWN_FILES
        if value > max(room, 1):
            raise ValueError(
                f"is more than a process may have here, {room}: its limit on open files says so (ulimit -n)"
            )
        return value

    @field_validator("tls_key", "tls_key_password_file", "tls_client_ca")
    @classmethod
    def _needs_certificate(cls, value: Path | None, known: ValidationInfo) -> Path | None:
        if value is not None and known.data.get("tls_cert") is None:
            raise ValueError("is of no use without GATHERND_TLS_CERT")
        return value

    @field_validator("allowed_hosts", "cors_origins", "import_from", mode="before")
    @classmethod
    def _split(cls, value: object, known: ValidationInfo) -> object:
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
                raise ValueError(f"{entry!r} is no prefix of URLs: {problem}") from None
        return value

    @field_validator("import_s3_endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is not None and not _ENDPOINT.fullmatch(value):
            raise ValueError("is no URL of the form https://host or http://host:9000")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is no origin: it has the form https://app.example or http://app.example:81"
                )
        return value


def _takes_a_path(field: FieldInfo) -> bool:
    return Path in (field.annotation, *get_args(field.annotation))


def _refusal(name: str, value: object, why: str) -> ValidationError:
    """What refuses a setting for the sake of others, told as that of the setting's own checks."""
    return ValidationError.from_exception_data(
        "Settings", [{"type": "value_error", "loc": (name,), "input": value, "ctx": {"error": ValueError(why)}}]
    )


TOPICS: Final = {
    "host": "Address and processes",
    "device": "GPU",
    "store_dir": "Folders",
    "max_json_bytes": "Sizes of requests and answers",
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
"""The topics of the settings, each by the first of its fields; it goes on up to the next one's."""


def topics() -> dict[str, str]:
    """The topic of each setting, by the names of the fields in their order."""
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
    """A field's default as it may be given, "" where there is none or where it depends on the machine."""
    default = field.default
    if field.default_factory is not None or default in (None, ()):
        return ""
    if isinstance(default, ByteSize):
        return default.human_readable(separator=" ").removesuffix(".0").replace(".0 ", " ").replace(" ", "")
    return str(default)

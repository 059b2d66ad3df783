"""What the service takes from the inside of uvicorn, which may change it in any minor version."""

from __future__ import annotations

import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from packaging.requirements import Requirement
from packaging.version import Version
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.server import ServerState

from app.server.http1_connection import Http1Connection
from app.server.http_exchange import HttpExchange
from app.server.serve import Server

ROOT = Path(__file__).parents[2]
INSTALLED = Version(version("uvicorn"))


def test_uvicorn_is_bounded_to_the_minor_version_that_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = (
        found.specifier for found in map(Requirement, project["dependencies"]) if found.name.startswith("uvicorn")
    )
    assert wanted.contains(INSTALLED)
    assert wanted.contains(f"{INSTALLED.major}.{INSTALLED.minor}.99")
    assert not wanted.contains(f"{INSTALLED.major}.{INSTALLED.minor + 1}.0")
    assert not wanted.contains(f"{INSTALLED.major}.{INSTALLED.minor - 1}.99")


def protocol_of(kind: type[Any]) -> Any:
    """A connection of this kind of protocol, at a transport that does nothing."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    async def make() -> Any:
        config = uvicorn.Config(app, http=kind, log_config=None, lifespan="off")
        config.load()
        made = kind(config, ServerState(), {}, asyncio.get_running_loop())
        addresses = {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}
        made.connection_made(SimpleNamespace(get_extra_info=lambda name, _=None: addresses.get(name)))
        return made

    return asyncio.run(make())


def state(thing: Any) -> dict[str, Any]:
    """What an object holds, events and buffers by what they say."""
    held = {name: getattr(thing, name) for name in vars(thing)}
    return {name: value.is_set() if isinstance(value, asyncio.Event) else value for name, value in held.items()}


def test_a_cycle_starts_with_all_that_uvicorns_starts_with() -> None:
    """Ours does not call the constructor of uvicorn, which costs each request more than what ours does of it."""
    protocol = protocol_of(Http1Connection)
    scope: dict[str, Any] = {"type": "http", "headers": [], "method": "POST"}
    ours = HttpExchange(protocol, scope, keep_alive=True)
    theirs = httptools_impl.RequestResponseCycle(
        scope=scope,  # type: ignore[arg-type]
        transport=protocol.transport,
        flow=protocol.flow,
        logger=protocol.logger,
        access_logger=protocol.access_logger,
        access_log=False,
        default_headers=protocol.server_state.default_headers,
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=protocol.on_response_complete,
    )
    for name, value in state(theirs).items():
        found = getattr(ours, name)
        assert (found.is_set() if isinstance(found, asyncio.Event) else found) == value, name


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Http1Connection, httptools_impl.HttpToolsProtocol),
        (HttpExchange, httptools_impl.RequestResponseCycle),
        (Server, uvicorn.Server),
    ],
)
def test_what_is_replaced_is_called_as_uvicorn_calls_it(ours: type, theirs: type) -> None:
    replaced = [
        name for name, value in vars(ours).items()
        if inspect.isfunction(value) and hasattr(theirs, name) and name != "__init__"
    ]  # fmt: skip
    assert replaced
    for name in replaced:
        of_ours, of_theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (ours, theirs))
        assert list(of_ours) == list(of_theirs), name
        assert inspect.iscoroutinefunction(getattr(ours, name)) == inspect.iscoroutinefunction(getattr(theirs, name))


def test_what_is_used_of_a_connection_is_there() -> None:
    theirs = protocol_of(httptools_impl.HttpToolsProtocol)
    used = {
        "access_logger", "app", "app_state", "asgi_version", "client", "connections", "cycle", "expect_100_continue",
        "flow", "headers", "logger", "loop", "parser", "pipeline", "scheme", "server", "server_state", "tasks",
        "transport",
    }  # fmt: skip
    assert used <= set(vars(theirs))
    assert {"_start_asgi_task", "on_header", "on_url", "pause_writing", "resume_writing"} <= set(dir(theirs))
    assert {"connections", "default_headers", "tasks", "total_requests"} <= set(vars(theirs.server_state))
    flow = {"pause_reading", "resume_reading", "pause_writing", "resume_writing", "read_paused", "write_paused"}
    assert flow <= set(dir(theirs.flow))
    assert flow_control.HIGH_WATER_LIMIT == 1 << 16
    assert httptools_impl.STATUS_LINE[503] == b"HTTP/1.1 503 Service Unavailable\r\n"


def test_what_is_used_of_a_server_is_there() -> None:
    server = uvicorn.Server(uvicorn.Config(lambda: None, log_config=None))
    assert {"config", "server_state", "should_exit", "started"} <= set(vars(server))
    assert inspect.iscoroutinefunction(uvicorn.Server.on_tick)
    assert inspect.iscoroutinefunction(uvicorn.Server.shutdown)

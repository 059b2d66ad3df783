"""Imports point one way. Read from the AST, so that a lazy import or one for types only counts like any other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.for_each import for_each
from tests.parsed import parsed

ROOT = Path(__file__).parents[2]

# layer: the layers right below it; what those may import it may import too. A layer's own modules may import each
# other. A new module or package directly under app/ needs a line here, and so a decision.
BELOW: dict[str, set[str]] = {
    "main": {"route_handlers", "grpc_api", "service_gauges", "periodic_tasks", "shard_from_settings", "warmup"},
    "shard_from_settings": {"cluster"},
    "route_handlers": {"api", "cluster"},
    "service_gauges": {"cluster"},
    "periodic_tasks": {"services", "server", "memory"},
    "imports": {"formats", "store", "telemetry"},
    "warmup": {"kernels", "compile_request_functions"},
    "compile_request_functions": {"kernels", "telemetry", "json_text", "keys"},
    "cli": {"server_from_settings"},
    "server_from_settings": {"grpc_from_settings", "cluster", "server"},
    "grpc_from_settings": {"main"},
    "settings": {"memory", "imports"},
    "api": {
        "imports",
        "services",
        "formats",
        "security",
        "telemetry",
        "server",
        "surrogate_safe_json",
    },
    "grpc_api": {"api"},
    "cluster": {"api", "json_text", "security"},
    "services": {"dispatch", "store", "telemetry", "bounded_cache"},
    "server": {"security", "telemetry", "memory"},
    "security": {"errors", "bounded_cache"},
    "telemetry": {"memory", "surrogate_safe_json", "bounded_cache", "compilation"},
    "dispatch": {"kernels", "telemetry"},
    "kernels": {"operators", "compilation", "bounded_cache"},
    "operators": {"tensors"},
    "formats": {"requests"},
    "requests": {"json_text"},
    "json_text": {"tensors"},
    "store": {"catalogue", "memory", "keys"},
    "catalogue": {"tensors"},
    "tensors": {"errors", "memory", "near_name", "compilation"},
    "memory": {"errors", "bounded_cache"},
    "errors": {"near_name"},
    "keys": {"tensors"},
    "compilation": set(),
    "surrogate_safe_json": set(),
    "near_name": set(),
    "bounded_cache": set(),
}
READS_SETTINGS = {
    "main",
    "shard_from_settings",
    "route_handlers",
    "service_gauges",
    "cli",
    "server_from_settings",
    "grpc_from_settings",
    "server",
}
"""The layers that know the settings. What is below them is handed numbers, so that it can be used with any."""
# Packages of an extra, without which the service starts: only these modules import them. A name ending in a dot stands
# for all that it starts.
ONLY_IN: dict[str, tuple[str, ...]] = {
    "cupy": ("app.kernels.cupy_gpu.device",),
    "cupyx": ("app.kernels.cupy_gpu.device",),
    "opentelemetry": ("app.telemetry.tracing",),
    "grpc": (
        "app.grpc_api.calls",
        "app.grpc_api.grpc_package",
        "app.grpc_api.listener",
        "app.grpc_api.unsent_answers",
    ),
    "google": (
        "app.formats.grpc.messages.classes",
        "app.formats.grpc.infer_request",
        "app.grpc_api.health_and_model_calls",
    ),
    "obstore": ("app.imports.s3_source",),
    "ray": ("app.cluster.ray_launcher",),
    "gathernd": (),
    "gathernd_cli": ("app.cli.",),
}


def module_name(folder: Path, path: Path) -> str:
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(folder: Path, *packages: str) -> dict[str, Path]:
    return {
        module_name(folder, path): path for package in packages for path in sorted((folder / package).rglob("*.py"))
    }


MODULES = modules(ROOT, "app")
CLIENT_MODULES = modules(ROOT / "clients/python", "gathernd", "gathernd_cli")


def layer(module: str) -> str:
    return module.split(".")[1]


@cache
def imports(source: str, package: str) -> tuple[str, ...]:
    """Every module that `source` imports, by absolute name, wherever in the file the import stands."""
    return tuple(_imports(source, package))


def imports_of(module: str, path: Path) -> tuple[str, ...]:
    """Every module that `module`, the file at `path`, imports."""
    return imports(path.read_text(), module if path.name == "__init__.py" else module.rpartition(".")[0])


def _imports(source: str, package: str) -> Iterator[str]:
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (base, node.module) if part)
            # `from app import errors` imports a module, `from app.errors import Code` does not: take what exists
            yield from (
                f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in MODULES | CLIENT_MODULES else origin
                for alias in node.names
            )


def allowed(top: str) -> set[str]:
    """`top` and every layer below it along the arrows."""
    found, todo = {top}, [top]
    while todo:
        new = BELOW[todo.pop()] - found
        found |= new
        todo += new
    return found


def faults(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """What `source`, as `module`, imports against the rules."""
    package = module if is_package else module.rpartition(".")[0]
    found = []
    for name in imports(source, package):
        if name == "app" or not name.startswith("app."):
            owners = ONLY_IN.get(name.split(".")[0])
            if owners is not None and not any(
                module == owner or (owner[-1] == "." and module.startswith(owner)) for owner in owners
            ):
                found.append(f"{module} imports {name}")
        elif layer(name) == "settings" != layer(module):
            if layer(module) not in READS_SETTINGS:
                found.append(f"{module} imports {name}")
        elif layer(name) not in allowed(layer(module)):
            found.append(f"{module} imports {name}")
    return found


@for_each("module", [name for name in MODULES if name != "app"])
def test_imports_point_one_way(module: str) -> None:
    assert layer(module) in BELOW, f"app/{layer(module)} has no place in the order of layers"
    path = MODULES[module]
    assert faults(module, path.read_text(), is_package=path.name == "__init__.py") == []


@for_each("module", CLIENT_MODULES)
def test_the_client_imports_nothing_of_the_service(module: str) -> None:
    assert "app" not in {name.split(".")[0] for name in imports_of(module, CLIENT_MODULES[module])}


@for_each("of", [MODULES, CLIENT_MODULES])
def test_no_modules_import_each_other_in_a_circle(of: dict[str, Path]) -> None:
    imported = {
        name: {found for found in imports_of(name, path) if found in of and found not in (name, "app")}
        for name, path in of.items()
    }
    assert circle(imported) == []


def circle(imported: dict[str, set[str]]) -> list[str]:
    """The modules along one circle of imports, [] where there is none."""
    finished: set[str] = set()

    def search(module: str, way: list[str]) -> list[str]:
        if module in way:
            return way[way.index(module) :]
        if module in finished:
            return []
        for found in sorted(imported[module]):
            if on_circle := search(found, [*way, module]):
                return on_circle
        finished.add(module)
        return []

    return next(filter(None, (search(module, []) for module in imported)), [])

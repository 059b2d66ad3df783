"""`gathernd bench`: what this machine does, in under a minute, as a table to paste into a report.

It needs nothing but the installed package. A server of its own is asked over loopback, then the kernel is compared with
NumPy in this process, then the crossovers are those of the calibration that the server keeps.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import numpy as np
import orjson
import typer

from app import __version__
from app.cli import bench_kernels, bench_requests
from app.cli.bench_server import KEPT_SETTINGS, BenchFailed, running_server
from app.cli.calibrate_command import ROW_BYTES, TABLE_ROWS, first_rows, lookup
from app.cli.offline_service import ROUTE_NAMES, CacheDir, service_of, settings_with
from app.dispatch.backend_calibration import cpu_model
from app.dispatch.choose_backend import BackendChooser, Facts
from app.memory.container_memory import memory_limit
from app.server.exit_codes import NOT_AVAILABLE
from app.settings import Settings

SECONDS: Final = 2.0
"""By default, of each of the fifteen measurements."""

app = typer.Typer(add_completion=False)


@app.command("bench")
def bench(
    seconds: Annotated[
        float, typer.Option(help="Seconds of each measurement; there are some fifteen.", min=0.001, max=600)
    ] = SECONDS,
    cache_dir: CacheDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of Markdown.")] = False,
) -> None:
    """Measure the service and its kernel on this machine, and print tables in Markdown. Best on an idle machine."""
    settings = settings_with(cache_dir).model_copy(update={"workers": 1})
    try:
        report = measured(settings, seconds)
    except BenchFailed as error:
        typer.echo(f"gathernd: {error}", err=True)
        raise typer.Exit(NOT_AVAILABLE) from None
    typer.echo(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() if as_json else "\n".join(markdown(report)))


def measured(settings: Settings, seconds: float) -> dict[str, Any]:
    """All numbers. Raises BenchFailed."""
    report = machine(settings)
    _progress("starting a server on 127.0.0.1; the first start compiles for some ten seconds")
    requests = []
    with running_server(settings.cache_dir) as port:
        table = bench_requests.make_table()
        _progress("uploading the table")
        bench_requests.put_table(port, table)
        for work in bench_requests.make_work(table):
            _progress(work.name)
            requests.append(bench_requests.measure(port, work, seconds))
        del table
    service = service_of(settings, refresh=False)
    kernels = []
    for shapes in bench_kernels.SHAPES:
        _progress(shapes.name)
        kernels.append(bench_kernels.compare(service, shapes, seconds))
    return {
        **report,
        "client": bench_requests.CLIENT,
        "requests": requests,
        "kernels": kernels,
        "crossovers": list(crossovers(service.chooser)),
        "no_gpu": service.chooser.no_gpu,
    }


def machine(settings: Settings) -> dict[str, Any]:
    """When and where the numbers come from."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "gathernd": __version__,
        "cpu": cpu_model().partition(":")[2].strip() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_limit(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kernel": settings.kernel,
        "settings": {name: os.environ[name] for name in KEPT_SETTINGS if name in os.environ},
    }


def crossovers(chooser: BackendChooser) -> Iterator[dict[str, Any]]:
    """From how many rows on a lookup takes each route, with data in memory and, where there is a GPU, data on it."""
    for on_gpu in (False,) if chooser.no_gpu is not None else (False, True):
        rows = first_rows(chooser, resident=on_gpu)
        for route, count in sorted(rows.items(), key=lambda each: each[1]):
            predicted = chooser.decide(lookup(count), Facts(on_gpu=on_gpu)).choice.seconds
            yield {
                "data": "on the GPU" if on_gpu else "in memory",
                "route": ROUTE_NAMES[route],
                "from_rows": count,
                "predicted_us": predicted * 1e6,
            }


def markdown(report: dict[str, Any]) -> Iterator[str]:
    """The lines of the report."""
    settings = "".join(f", {name}={value}" for name, value in report["settings"].items())
    yield (
        f"{report['date']}, gathernd {report['gathernd']}, {report['cpu']}, {report['cores']} cores, "
        f"{report['memory_bytes'] / 2**30:.1f} GiB, {report['system']}, Python {report['python']}, "
        f"NumPy {report['numpy']}, kernel {report['kernel']}{settings}"
    )
    yield ""
    yield "| request | requests/s | p50 µs | p99 µs | client µs |"
    yield "|---|---:|---:|---:|---:|"
    for row in report["requests"]:
        numbers = (_number(row[name]) for name in ("requests_per_s", "p50_us", "p99_us", "client_us"))
        yield f"| {' | '.join((row['work'], *numbers))} |"
    rows, columns = bench_requests.TABLE_SHAPE
    yield ""
    yield f"{report['client']} Lookups are in a resident table of {rows:,} × {columns} float32."
    yield ""
    yield "| kernel, float32 | threads | gathernd µs | NumPy µs | ratio |"
    yield "|---|---:|---:|---:|---:|"
    for row in report["kernels"]:
        numbers = (_number(row[name]) for name in ("gathernd_us", "numpy_us"))
        yield f"| {' | '.join((row['work'], str(row['threads']), *numbers, format(row['ratio'], '.2f')))} |"
    yield ""
    yield f"| a lookup of rows of {ROW_BYTES} bytes, table of {TABLE_ROWS:,} | data | from rows | predicted µs |"
    yield "|---|---|---:|---:|"
    for row in report["crossovers"]:
        yield f"| {row['route']} | {row['data']} | {row['from_rows']:,} | {_number(row['predicted_us'])} |"
    yield ""
    yield "GPU: used" if report["no_gpu"] is None else f"GPU: {report['no_gpu']}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _progress(text: str) -> None:
    typer.echo(f"gathernd bench: {text}", err=True)

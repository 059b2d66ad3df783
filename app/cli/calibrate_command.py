"""`gathernd calibrate`: measure what the backends cost on this machine, and show where each becomes the fastest."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import orjson
import typer
from rich.console import Console
from rich.table import Table

from app.cli.offline_service import ROUTE_NAMES, CacheDir, Json, service_of, settings_with
from app.dispatch.choose_backend import ROUTES, BackendChooser, Facts, Route
from app.operators.gather_plan import GatherPlan

# The lookup whose times are shown: rows of 64 float32 from a table of 51 MB, more than most CPUs cache.
ROW_BYTES: Final = 256
TABLE_ROWS: Final = 200_000
MAX_ROWS: Final = 1 << 19
"""The most rows in one lookup that is shown: 128 MiB of output."""

app = typer.Typer(add_completion=False)


@app.command("calibrate")
def calibrate(
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Measure this machine again, keep that for the service, and show it. Best on a machine that is idle otherwise."""
    settings = settings_with(cache_dir)
    chooser = service_of(settings, refresh=True).chooser
    if as_json:
        body = {
            "kernel": settings.kernel,
            "threads": chooser.threads,
            "loop_max_us": chooser.loop_max_s * 1e6,
            "coefficients": asdict(chooser.coefficients),
            "no_gpu": chooser.no_gpu,
            "chosen_from_rows": first_rows(chooser, resident=True),
        }
        typer.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
        return
    _print_coefficients(chooser)
    for resident in (True, False) if chooser.no_gpu is None else (True,):
        about = "" if chooser.no_gpu is not None else " of resident data" if resident else " of inline data"
        chosen = first_rows(chooser, resident)
        text = ", ".join(f"{ROUTE_NAMES[route]} from {chosen[route]:,} rows" for route in ROUTES if route in chosen)
        typer.echo(f"chosen for lookups{about} of {ROW_BYTES} bytes a row: {text}")
    if chooser.no_gpu is not None:
        typer.echo(f"GPU: {chooser.no_gpu}")


def lookup(rows: int) -> GatherPlan:
    """The plan of a lookup of `rows` rows of 256 bytes from a table of 200,000 rows."""
    return GatherPlan(1, rows, (TABLE_ROWS,), ROW_BYTES // 4, 4, False, True)


def first_rows(chooser: BackendChooser, resident: bool) -> dict[Route, int]:
    """The smallest number of rows for which each route is chosen; a route that is never chosen is left out."""
    found: dict[Route, int] = {}
    count = 1
    while count <= MAX_ROWS:
        found.setdefault(chooser.decide(lookup(count), Facts(on_gpu=resident)).choice.route, count)
        count += max(1, count // 50)
    return found


def _print_coefficients(chooser: BackendChooser) -> None:
    console = Console()
    prices = chooser.coefficients
    table = Table()
    table.add_column("what it takes")
    table.add_column("", justify="right")
    rows: list[tuple[str, str]] = [
        ("a call", f"{prices.call_s * 1e6:.2f} µs"),
        ("a slice of data in the first cache", f"{prices.near_slice_s * 1e9:.2f} ns"),
        ("a byte of it", f"{prices.near_byte_s * 1e9:.4f} ns"),
        ("a slice of data in memory", f"{prices.far_slice_s * 1e9:.2f} ns"),
        ("a byte of it", f"{prices.far_byte_s * 1e9:.4f} ns"),
        ("a further component of a tuple", f"{prices.component_s * 1e9:.2f} ns"),
        ("a thread and back", f"{prices.hand_off_s * 1e6:.1f} µs"),
        ("a helper that sleeps, for a split", f"{prices.wakeup_s * 1e6:.1f} µs"),
        (f"gain of {chooser.threads} threads", f"{prices.gain:.2f}"),
        ("longest on the event loop", f"{chooser.loop_max_s * 1e6:.0f} µs"),
    ]
    if prices.gpu is not None:
        rows += [
            ("GPU: launch and come back", f"{prices.gpu.launch_s * 1e6:.1f} µs"),
            ("GPU: to it", f"{1e-9 / prices.gpu.to_device_byte_s:.1f} GB/s"),
            ("GPU: from it", f"{1e-9 / prices.gpu.from_device_byte_s:.1f} GB/s"),
            ("GPU: a slice", f"{prices.gpu.slice_s * 1e9:.4f} ns"),
        ]
    for line in rows:
        table.add_row(*line)
    console.print(table)

"""`gathernd calibrate`: measure this machine, and show the smallest gather for which each route is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

import orjson
import typer
from rich.console import Console
from rich.table import Table

from app.api.schemas.explain_answer import size_body
from app.cli.offline_service import ROUTE_NAMES, CacheDir, Json, service_of, settings_with
from app.dispatch.choose_backend import BackendChooser, Facts, Route
from app.operators.gather_plan import GatherPlan

# The command shows the routes for this lookup: rows of 64 float32 items from a table of 51 MB, which is larger than
# most CPU caches.
ROW_BYTES: Final = 256
TABLE_ROWS: Final = 200_000
MAX_ROWS: Final = 1 << 19
"""The largest lookup that is shown, in rows: 128 MiB of output."""

app = typer.Typer(add_completion=False)


@app.command("calibrate")
def calibrate(cache_dir: CacheDir = None, as_json: Json = False) -> None:
    """Measure this machine again, save the rates for the service, and print them. The machine should be idle."""
    settings = settings_with(cache_dir)
    chooser = service_of(settings, refresh=True).chooser
    thresholds = {
        **{f"{name}_of_cached_data": size_body(size) for name, size in chooser.cached_thresholds._asdict().items()},
        **{f"{name}_of_far_data": size_body(size) for name, size in chooser.memory_thresholds._asdict().items()},
        "gpu": size_body(chooser.gpu_from),
    }
    if as_json:
        body = {
            "kernel": settings.kernel,
            "threads": chooser.threads,
            "loop_max_us": chooser.loop_max_s * 1e6,
            "rates": asdict(chooser.rates),
            "thresholds": thresholds,
            "no_gpu": chooser.no_gpu,
            "chosen_from_rows": first_rows(chooser, resident=True),
        }
        typer.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
        return
    _print_tables(chooser, thresholds)
    for resident in (True, False) if chooser.no_gpu is None else (True,):
        about = "" if chooser.no_gpu is not None else " of resident data" if resident else " of inline data"
        chosen = first_rows(chooser, resident)
        text = ", ".join(f"{ROUTE_NAMES[route]} from {rows:,} rows" for route, rows in chosen.items())
        typer.echo(f"\nroutes of lookups{about} ({ROW_BYTES}-byte rows, table of {TABLE_ROWS:,} rows): {text}")
    if chooser.no_gpu is not None:
        typer.echo(f"GPU: {chooser.no_gpu}")


def lookup(rows: int) -> GatherPlan:
    """Return the plan of a lookup of `rows` rows of 256 bytes from a table of 200,000 rows."""
    return GatherPlan(1, rows, (TABLE_ROWS,), ROW_BYTES // 4, 4, False, True)


def first_rows(chooser: BackendChooser, resident: bool) -> dict[Route, int]:
    """Return the smallest number of rows for which each route is chosen. Routes that are never chosen are left out."""
    found: dict[Route, int] = {}
    count = 1
    while count <= MAX_ROWS:
        found.setdefault(chooser.decide(lookup(count), Facts(on_gpu=resident)).choice.route, count)
        count += max(1, count // 50)
    return found


def _print_tables(chooser: BackendChooser, thresholds: Mapping[str, Mapping[str, int | None]]) -> None:
    rates = chooser.rates
    table = Table()
    table.add_column("cost")
    table.add_column("time", justify="right")
    for line in (
        ("hand-off to a thread and back", f"{rates.hand_off_s * 1e6:.1f} µs"),
        ("copy, per byte", f"{rates.byte_s * 1e9:.4f} ns"),
        ("item, data in a CPU cache", f"{rates.near_item_s * 1e9:.2f} ns"),
        ("item, data in memory", f"{rates.far_item_s * 1e9:.2f} ns"),
        ("limit for the event loop", f"{chooser.loop_max_s * 1e6:.0f} µs"),
    ):
        table.add_row(*line)
    Console().print(table)
    table = Table()
    for name in ("threshold", "items", "bytes"):
        table.add_column(name, justify="left" if name == "threshold" else "right")
    for name, size in thresholds.items():
        numbers = ("none" if number is None else f"{number:,}" for number in size.values())
        table.add_row(name.replace("_", " "), *numbers)
    Console().print(table)

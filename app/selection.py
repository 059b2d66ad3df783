"""The commands `gathernd calibrate` and `gathernd explain`: how this machine would run a gather, without a service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import orjson
import typer
from rich.console import Console
from rich.table import Table

from app import plot
from app.api.schemas.explain_answer import explanation_body
from app.dispatch.backend_calibration import calibrated
from app.dispatch.backend_cost_model import DATA_BYTES, DEPTHS, ROUTES, WIDTHS, BackendChooser, Route
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels.device import NoDevice
from app.kernels.numba_cpu import gather_kernel
from app.main import KERNELS, limits_of, threads_of_gather, use_gpu
from app.memory.budget import Budget, MemoryReservation
from app.memory.malloc_tuning import keep_freed_memory
from app.operators.dialects import DIALECTS
from app.operators.gather_plan import GatherPlan
from app.service import Service
from app.settings import Settings
from app.store import EmptyStore
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call, Device, Operator
from app.tensors.tensor import Tensor

ROW_BYTES: Final = 256
TABLE_ROWS: Final = 200_000
MOST_ROWS: Final = 1 << 19
_WHERE: Final[dict[Route, str]] = {
    "loop": "event loop",
    "thread": "one thread",
    "split": "split over threads",
    "gpu": "the GPU",
}

CacheDir = Annotated[Path | None, typer.Option(help="Folder of the calibration; default GATHERND_CACHE_DIR.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


class _Op(Enum):
    GATHERND = "gathernd"
    GATHER = "gather"


@dataclass(frozen=True)
class _Machine:
    """A service without a store that nobody calls: what `explain` asks."""

    service: Service
    settings: Settings

    @property
    def chooser(self) -> BackendChooser:
        return self.service.chooser


def _settings(cache_dir: Path | None) -> Settings:
    return Settings() if cache_dir is None else Settings(cache_dir=cache_dir)


def _machine(settings: Settings, *, refresh: bool) -> _Machine:
    """The service that `settings` make, as far as choices are concerned, measured anew or by the file."""
    keep_freed_memory(settings.memory_budget // 8)
    kernel = KERNELS[settings.kernel]
    threads = threads_of_gather(settings)
    if settings.kernel == "numba":
        gather_kernel.configure(settings.cache_dir)
        gather_kernel.warm()
    chooser = BackendChooser(
        loop_max_us=settings.loop_max_us,
        split_min_us=settings.split_min_us,
        threads=threads,
        coefficients=calibrated(kernel, settings.cache_dir, threads=threads, refresh=refresh),
    )
    budget = Budget(settings.memory_budget // settings.workers)
    service = Service(
        limits_of(settings), EmptyStore(), kernel, RequestThreadPool(settings.threads, 0), chooser, budget
    )
    try:
        use_gpu(settings, service)
    except NoDevice as reason:
        typer.echo(f"gathernd: {reason}", err=True)
        raise typer.Exit(1) from None
    return _Machine(service, settings)


def lookup(rows: int) -> GatherPlan:
    """A lookup of so many rows of 256 bytes from a table of 200,000."""
    return GatherPlan(1, rows, (TABLE_ROWS,), ROW_BYTES // 4, 4, False, True)


def curves(chooser: BackendChooser) -> dict[str, list[plot.Point]]:
    """Predicted microseconds over the number of rows of 256 bytes from a table of 200,000, for each route."""
    found: dict[str, list[plot.Point]] = {}
    count = 1
    while count <= MOST_ROWS:
        plan = lookup(count)
        for resident in (True, False):
            for route, choice in chooser.predict(plan, resident).items():
                name = _WHERE[route]
                if route == "gpu":
                    name = "resident on the GPU" if resident else "inline to the GPU"
                elif not resident:
                    continue
                found.setdefault(name, []).append((count, choice.seconds * 1e6))
        count *= 2
    return found


def first_rows(chooser: BackendChooser, resident: bool) -> dict[Route, int]:
    """From how many rows on each route is chosen first; a route that never is, is left out."""
    found: dict[Route, int] = {}
    count = 1
    while count <= MOST_ROWS:
        found.setdefault(chooser.choose(lookup(count), resident).route, count)
        count += max(1, count // 50)
    return found


def calibrate(
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="SVG file to draw the crossovers into.", show_default=False)
    ] = None,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Measure this machine again, keep that for the service, and show it. Best on a machine that is idle otherwise."""
    settings = _settings(cache_dir)
    chooser = _machine(settings, refresh=True).chooser
    lines = curves(chooser)
    if plot_file is not None:
        title = f"Predicted time of a lookup: rows of {ROW_BYTES} bytes from a table of {TABLE_ROWS:,}"
        plot_file.write_text(plot.svg(title, "rows", "microseconds", lines))
    if as_json:
        body = {
            "kernel": settings.kernel,
            "threads": chooser.threads,
            "loop_max_us": chooser.loop_max_s() * 1e6,
            "coefficients": asdict(chooser.coefficients),
            "no_gpu": chooser.no_gpu,
            "chosen_from_rows": first_rows(chooser, resident=True),
        }
        typer.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
        return
    _print_coefficients(Console(), chooser)
    typer.echo(f"\nPredicted microseconds over rows of {ROW_BYTES} bytes from a table of {TABLE_ROWS:,}, by route:\n")
    typer.echo(plot.text(lines))
    for resident in (True, False) if chooser.no_gpu is None else (True,):
        about = "" if chooser.no_gpu is not None else " of resident data" if resident else " of inline data"
        chosen = first_rows(chooser, resident)
        text = ", ".join(f"{_WHERE[route]} from {chosen[route]:,} rows" for route in ROUTES if route in chosen)
        typer.echo(f"\nchosen for lookups{about}: {text}")
    if chooser.no_gpu is not None:
        typer.echo(f"GPU: {chooser.no_gpu}")


def _print_coefficients(console: Console, chooser: BackendChooser) -> None:
    prices = chooser.coefficients
    table = Table(title="Nanoseconds for a slice, by its bytes and those of the data")
    table.add_column("data", justify="right")
    for width in WIDTHS:
        table.add_column(_size(width), justify="right")
    for size, row in zip(DATA_BYTES, prices.slice_s, strict=True):
        table.add_row(_size(size), *(f"{price * 1e9:.2f}" for price in row))
    console.print(table)
    table = Table(title="Beside that")
    table.add_column("what")
    table.add_column("", justify="right")
    rows: list[tuple[str, str]] = [("a call", f"{prices.call_s * 1e6:.2f} µs")]
    rows += [
        (f"a tuple of {depth} components, more", f"{price * 1e9:.2f} ns")
        for depth, price in zip(DEPTHS[1:], prices.tuple_s[1:], strict=True)
    ]
    rows += [
        ("a narrow slice of odd width, more", f"{prices.odd_slice_s * 1e9:.2f} ns"),
        ("a byte of a large output, more", f"{prices.output_byte_s * 1e9:.4f} ns"),
        ("a thread and back", f"{prices.hand_off_s * 1e6:.1f} µs"),
        ("a helper that sleeps, for a split", f"{prices.wakeup_s * 1e6:.1f} µs"),
        ("a component for another core, more", f"{prices.index_move_s * 1e9:.4f} ns"),
        ("a byte of output for another core, more", f"{prices.output_move_s * 1e9:.4f} ns"),
        (f"gain of {chooser.threads} threads on items", f"{prices.item_gain:.2f}"),
        (f"gain of {chooser.threads} threads on rows", f"{prices.row_gain:.2f}"),
        (f"gain of {chooser.threads} threads on large output", f"{prices.output_gain:.2f}"),
        ("longest on the event loop", f"{chooser.loop_max_s() * 1e6:.0f} µs"),
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


def _size(size: int) -> str:
    for unit, step in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= step:
            return f"{size // step} {unit}"
    return f"{size} B"


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in text.split(",") if size.strip())
    except ValueError:
        shape = (-1,)
    if any(size < 0 for size in shape):
        raise typer.BadParameter(f"{text!r} is no shape such as 200000,64")
    return shape


def explain(
    data_shape: Annotated[str, typer.Option(help="Shape of the data, such as 200000,64.")],
    indices_shape: Annotated[str, typer.Option(help="Shape of the indices, such as 256,1.")],
    data_dtype: Annotated[str, typer.Option(help="Element type of the data.")] = "float32",
    indices_dtype: Annotated[str, typer.Option(help="Element type of the indices.")] = "int64",
    op: Annotated[_Op, typer.Option(help="Which operator.")] = _Op.GATHERND,
    batch_dims: Annotated[int, typer.Option(help="Leading dimensions that are batches (gathernd).")] = 0,
    axis: Annotated[int, typer.Option(help="Axis to gather on (gather).")] = 0,
    dialect: Annotated[str, typer.Option(help="Whose rules hold.")] = "onnx-13",
    device: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
    resident: Annotated[bool, typer.Option("--resident", help="The data lies on the GPU already.")] = False,
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Say what the service would do with a gather of these shapes, and why, without running it."""
    operator: Operator = "gathernd" if op is _Op.GATHERND else "gather"
    if (axis if operator == "gathernd" else batch_dims) != 0:
        raise typer.BadParameter("--batch-dims belongs to --op gathernd, --axis to --op gather")
    _among("dialect", dialect, DIALECTS[operator])
    _among("device", device, ("auto", "cpu", "gpu"))
    _among("data-dtype", data_dtype, DTYPES)
    _among("indices-dtype", indices_dtype, DTYPES)
    shapes = _shape(data_shape), _shape(indices_shape)
    machine = _machine(_settings(cache_dir), refresh=False)
    # Only types and shapes are looked at: the tensors have no items.
    data, indices = (
        Tensor(dtype, shape, np.empty(0, dtype.numpy), shape_pointer=pointer, dtype_pointer=pointer)
        for dtype, shape, pointer in zip(
            (DTYPES[data_dtype], DTYPES[indices_dtype]), shapes, ("/data", "/indices"), strict=True
        )
    )
    parameter = batch_dims if operator == "gathernd" else axis
    asked: Device = "auto" if device == "auto" else "cpu" if device == "cpu" else "gpu"
    service = machine.service
    try:
        found = service.explain(
            Call(operator, data, indices, parameter, dialect, asked),
            MemoryReservation(service.budget),
            on_device=resident,
        )
    except GatherError as error:
        typer.echo(f"gathernd: {error.code}: {error.detail}", err=True)
        raise typer.Exit(1) from None
    body = explanation_body(found)
    if as_json:
        typer.echo(orjson.dumps(body, option=orjson.OPT_INDENT_2).decode())
    else:
        _print_explanation(body, Console(), typer.echo)


def _among(name: str, value: str, known: Any) -> None:
    if value not in known:
        raise typer.BadParameter(f"--{name} must be one of {', '.join(known)}")


def _print_explanation(body: dict[str, Any], console: Console, echo: Callable[[str], object]) -> None:
    output, found = body["output"], body["explanation"]
    plan, choice = found["plan"], found["choice"]
    size = "" if found["output_bytes"] is None else f", {found['output_bytes']:,} bytes"
    echo(f"output: {output['dtype']} {list(output['shape'])}{size}")
    shared = ", which all batches share" if plan["shared"] else ""
    echo(
        f"plan: {plan['batches']:,} x {plan['tuples']:,} tuples{shared} over axes of {list(plan['dims'])}, "
        f"slices of {plan['slice_items']:,} x {plan['item_size']} bytes"
    )
    table = Table()
    for name in ("route", "predicted µs", "open", "why not"):
        table.add_column(name, justify="right" if "µ" in name else "left")
    for note in found["routes"]:
        time = "" if note["microseconds"] is None else f"{note['microseconds']:,.1f}"
        table.add_row(_WHERE[note["route"]], time, "yes" if note["open"] else "no", note.get("reason", ""))
    console.print(table)
    parts = f" in {choice['parts']} parts" if choice["parts"] > 1 else ""
    echo(f"choice: {_WHERE[choice['route']]}{parts}, on the {body['device'].upper()}")
    echo(found["not_checked"])

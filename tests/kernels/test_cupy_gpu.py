"""The host side of the GPU kernel on a fake of CuPy that runs the very source on the CPU."""

from __future__ import annotations

import gc
import importlib
import random
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from app.kernels.gpu_interface import DeviceFailed, NoDevice, OutOfDeviceMemory
from app.operators.gather_plan import GatherPlan
from tests.conftest import samples
from tests.kernels import emulated, fake_cupy
from tests.kernels.fake_cupy import CompileException, CUDADriverError, CUDARuntimeError, Machine
from tests.kernels.reference import check, gather, make_case, random_plan


@pytest.fixture
def machine() -> Machine:
    try:
        emulated.library()
    except ImportError as absent:
        pytest.skip(str(absent))
    return Machine()


@pytest.fixture
def cupy_gpu(machine: Machine) -> Iterator[ModuleType]:
    with fake_cupy.cupy_gpu(machine) as module:
        yield module


@pytest.fixture(params=[512, 4096, 4 << 20])
def device(request: pytest.FixtureRequest, cupy_gpu: ModuleType) -> Any:
    """With staging memory so small that nearly everything goes in many pieces, and with the usual one."""
    return cupy_gpu.CupyDevice(stage_bytes=request.param)


def named(device: Any) -> Any:
    """With the name that a kernel has as a module."""
    device.name = "fake"
    return device


def test_any_gather_gives_what_the_reference_gives(device: Any) -> None:
    source = random.Random(11)
    for number in range(samples(160)):
        check(named(device), make_case(random_plan(source), source, spoiled=number % 3 == 0))


def test_data_on_the_device_is_gathered_from_there_and_not_sent_again(device: Any, machine: Machine) -> None:
    case = make_case(GatherPlan(1, 50, (3000,), 5, 4, False, True), random.Random(2))
    copy = device.upload(case.data)
    assert copy.nbytes == case.data.nbytes
    assert machine.sent == case.data.nbytes
    expected, _ = gather(case)
    for _ in range(3):
        machine.sent = 0
        out = case.out()
        assert device.run(case.plan, copy, case.indices, out) == -1
        assert out.tobytes() == expected
        assert machine.sent == case.indices.nbytes


def test_output_of_a_small_gather_is_written_into_pinned_memory_and_takes_none_on_the_device(
    cupy_gpu: ModuleType, machine: Machine
) -> None:
    data = np.random.default_rng(4).integers(0, 255, (1000, 64), np.uint8)
    most = cupy_gpu._SMALL_TUPLES
    device = cupy_gpu.CupyDevice(memory=data.nbytes + 8 * most + 256)
    copy = device.upload(data.reshape(-1))
    operations: list[str] = []
    machine.fails = operations.append
    for count in (1, most):
        plan = GatherPlan(1, count, (1000,), 64, 1, False, True)
        indices = np.random.default_rng(count).integers(-1000, 1000, count)
        out = np.zeros(plan.output_items, np.uint8)
        assert device.run(plan, copy, indices, out) == -1
        assert (out.reshape(-1, 64) == data[indices]).all()
        indices[-1] = 1000
        assert device.run(plan, copy, indices, out) == count - 1
    assert operations == 4 * ["malloc", "memcpyAsync", "launch", "synchronize"]
    plan = GatherPlan(1, most + 1, (1000,), 64, 1, False, True)
    with pytest.raises(OutOfDeviceMemory):
        device.run(plan, copy, np.zeros(most + 1, np.int64), np.zeros(plan.output_items, np.uint8))


def test_a_stream_whose_gather_was_left_by_an_exception_has_nothing_under_way(
    cupy_gpu: ModuleType, machine: Machine
) -> None:
    device = named(cupy_gpu.CupyDevice(streams=1))
    case = make_case(GatherPlan(1, 50, (40,), 7, 4, False, True), random.Random(5))
    bad = make_case(GatherPlan(1, 50, (40,), 7, 4, False, True), random.Random(6), spoiled=1)
    left = [True]

    def leave(name: str) -> None:
        if name == "synchronize" and left:
            left.clear()
            raise KeyboardInterrupt

    machine.fails = leave
    with pytest.raises(KeyboardInterrupt):
        device.run(bad.plan, bad.data, bad.indices, bad.out())
    for _ in range(2):
        check(device, case)


def test_a_uint64_beyond_int64_does_not_count_from_the_end(device: Any) -> None:
    plan = GatherPlan(1, 3, (100,), 1, 8, False, True)
    copy = device.upload(np.arange(100, dtype=np.uint64))
    for value in (2**63, 2**64 - 100, 2**64 - 1):
        assert device.run(plan, copy, np.array([0, 99, value], np.uint64), np.zeros(3, np.uint64)) == 2


def test_memory_is_given_back_whatever_comes_of_a_gather(device: Any, machine: Machine) -> None:
    source = random.Random(5)
    held = len(machine.spaces)
    for spoiled in (0, 1, 0):
        case = make_case(GatherPlan(1, 500, (40,), 7, 4, False, True), source, spoiled)
        device.run(case.plan, case.data, case.indices, case.out())
        gc.collect()
        assert device.used() == 0
        assert len(machine.spaces) == held
    copy = device.upload(np.zeros(1000, np.uint8))
    assert device.used() == 1000
    del copy
    gc.collect()
    assert device.used() == 0


def test_the_limit_on_memory_is_kept_and_what_failed_holds_nothing(cupy_gpu: ModuleType, machine: Machine) -> None:
    device = cupy_gpu.CupyDevice(memory=100_000)
    assert device.memory == 100_000
    copy = device.upload(np.zeros(60_000, np.uint8))
    with pytest.raises(OutOfDeviceMemory, match="60000 bytes"):
        device.upload(np.zeros(60_000, np.uint8))
    plan = GatherPlan(1, 6000, (600,), 100, 1, False, True)
    with pytest.raises(OutOfDeviceMemory):
        device.run(plan, copy, np.zeros(6000, np.int64), np.zeros(600_000, np.uint8))
    gc.collect()
    assert device.used() == 60_000
    out = np.ones(100, np.uint8)
    assert device.run(GatherPlan(1, 1, (600,), 100, 1, False, True), copy, np.array([599]), out) == -1
    assert not out.any()


@pytest.mark.parametrize("operation", ["malloc", "memcpyAsync", "launch"])
@pytest.mark.parametrize(
    ("error", "raised"),
    [(CUDARuntimeError(2), OutOfDeviceMemory), (CUDADriverError(2), OutOfDeviceMemory),
     (CUDARuntimeError(700), DeviceFailed), (CUDADriverError(719), DeviceFailed)],
)  # fmt: skip
def test_errors_of_the_device_have_two_names_and_streams_survive(
    operation: str, error: Exception, raised: type[Exception], cupy_gpu: ModuleType, machine: Machine
) -> None:
    device = cupy_gpu.CupyDevice(streams=1)
    case = make_case(GatherPlan(1, 5, (40,), 7, 4, False, True), random.Random(5))

    def fail(name: str) -> None:
        if name == operation:
            raise error

    machine.fails = fail
    with pytest.raises(raised):
        device.run(case.plan, case.data, case.indices, case.out())
    machine.fails = lambda name: None
    check(named(device), case)


@pytest.mark.parametrize(
    ("error", "raised"), [(CUDARuntimeError(2), OutOfDeviceMemory), (CUDARuntimeError(700), DeviceFailed)]
)
def test_errors_of_a_kernel_arrive_where_it_is_waited_for(
    error: Exception, raised: type[Exception], cupy_gpu: ModuleType, machine: Machine
) -> None:
    device = cupy_gpu.CupyDevice(streams=1)
    case = make_case(GatherPlan(1, 5, (40,), 7, 4, False, True), random.Random(5))
    errors = [error]

    def fail(name: str) -> None:
        if name == "synchronize" and errors:
            raise errors.pop()

    machine.fails = fail
    with pytest.raises(raised):
        device.run(case.plan, case.data, case.indices, case.out())
    check(named(device), case)


def test_more_threads_than_streams_wait_for_each_other(cupy_gpu: ModuleType) -> None:
    device = named(cupy_gpu.CupyDevice(streams=2, stage_bytes=1024))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        source = random.Random(seed)
        try:
            for _ in range(20):
                check(device, make_case(random_plan(source), source))
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("error", [CUDARuntimeError(35), CUDADriverError(100), CompileException("no"), None])
def test_a_machine_whose_gpu_cannot_be_used_has_none(
    error: Exception | None, cupy_gpu: ModuleType, machine: Machine
) -> None:
    def fail(name: str) -> None:
        if error is not None and name == ("compile" if isinstance(error, CompileException) else "getDeviceCount"):
            raise error

    machine.fails = fail
    machine.devices = 0 if error is None else 1
    with pytest.raises(NoDevice):
        cupy_gpu.CupyDevice()


def test_the_fake_has_nothing_that_cupy_lacks(machine: Machine) -> None:
    """Runs where CuPy is installed, for which no GPU is needed."""
    pytest.importorskip("cupy")
    for name, fake in fake_cupy.build(machine).items():
        real = importlib.import_module(name)
        for member, value in vars(fake).items():
            if not member.startswith("__"):
                assert hasattr(real, member), f"{name}.{member}"
                for inner in vars(value) if isinstance(value, type) else ():
                    if not inner.startswith("_") and inner not in ("machine", "put", "run_to", "give_back"):
                        assert hasattr(getattr(real, member), inner), f"{name}.{member}.{inner}"

"""NVRTC, the compiler that CuPy runs, without CuPy and without a GPU: `make cuda` brings the library."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from app.kernels.cupy_gpu import kernel_launch
from tests.needs import in_environment

FOLDER: Final = ".venv-cuda/nvidia/cuda_nvrtc/lib"


@dataclass(frozen=True)
class Compiled:
    """What the compiler said and made: machine code and what it is made from."""

    log: str
    ptx: str
    cubin: bytes

    def entries(self) -> dict[str, str]:
        """The PTX of each entry point."""
        parts = re.split(r"^\.visible \.entry (\w+)\(", self.ptx, flags=re.MULTILINE)
        return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def nvrtc() -> ctypes.CDLL:
    """The library; without it the test is skipped."""
    (found,) = in_environment(FOLDER, "cuda").glob("libnvrtc.so.*")
    return ctypes.CDLL(str(found))


def architectures() -> list[int]:
    """The compute capabilities that it compiles for, as 90 for 9.0."""
    count = ctypes.c_int()
    assert nvrtc().nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    numbers = (ctypes.c_int * count.value)()
    assert nvrtc().nvrtcGetSupportedArchs(numbers) == 0
    return list(numbers)


def compile_for(architecture: str, source: bytes | None = None) -> Compiled:
    """Compile gather.cu with the options of the service and a report of what each entry point takes."""
    program = ctypes.c_void_p()
    text = kernel_launch.SOURCE.read_bytes() if source is None else source
    assert nvrtc().nvrtcCreateProgram(ctypes.byref(program), text, b"gather.cu", 0, None, None) == 0
    try:
        options = [*kernel_launch.OPTIONS, f"--gpu-architecture={architecture}", "--ptxas-options=-v"]
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = nvrtc().nvrtcCompileProgram(program, len(options), encoded)
        log = _read(program, "ProgramLog").rstrip(b"\0").decode()
        assert not failed, log
        return Compiled(log, _read(program, "PTX").rstrip(b"\0").decode(), _read(program, "CUBIN"))
    finally:
        nvrtc().nvrtcDestroyProgram(ctypes.byref(program))


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    assert getattr(nvrtc(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    room = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc(), f"nvrtcGet{what}")(program, room) == 0
    return room.raw

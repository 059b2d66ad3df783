"""The functions that read, measure and copy strings in frames (see `frame_format`), compiled once that is ready."""

from __future__ import annotations

from typing import Final

from app.compiled_later import CompiledLater
from app.tensors import plain_string_frames

read_frames: Final = CompiledLater(plain_string_frames.read_frames)
frames_size: Final = CompiledLater(plain_string_frames.frames_size)
first_longer: Final = CompiledLater(plain_string_frames.first_longer)
copy_frames: Final = CompiledLater(plain_string_frames.copy_frames)

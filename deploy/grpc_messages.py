"""Writes app/formats/grpc/messages/descriptor.py from the .proto files beside it, with the compiler of grpcio-tools,
which comes with KServe's SDK: `make grpc-messages`.

    python -m deploy.grpc_messages            write it
    python -m deploy.grpc_messages --check    say whether it is current: exit code 1 if not
"""

from __future__ import annotations

import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "app" / "formats" / "grpc" / "messages"
WRITTEN: Final = FOLDER / "descriptor.py"
_FILES: Final = ("inference.proto", "health.proto")
_WIDTH: Final = 96
_HEAD: Final = '''"""The .proto files of this folder as a base64 FileDescriptorSet, written by `make grpc-messages`."""

from __future__ import annotations

from typing import Final

DESCRIPTOR: Final = (
'''


def compiled() -> bytes:
    """The serialized FileDescriptorSet of the .proto files, without their comments."""
    from grpc_tools import protoc  # noqa: PLC0415  (of development alone)

    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "set"
        code = protoc.main(["protoc", f"--proto_path={FOLDER}", f"--descriptor_set_out={found}", *_FILES])
        if code:
            raise SystemExit(code)
        return found.read_bytes()


def source() -> str:
    """The text of descriptor.py as it should be."""
    text = b64encode(compiled()).decode()
    lines = "".join(f'    "{text[at : at + _WIDTH]}"\n' for at in range(0, len(text), _WIDTH))
    return f"{_HEAD}{lines})\n"


def main() -> None:
    """Write the file, or check it."""
    if "--check" in sys.argv[1:]:
        raise SystemExit(WRITTEN.read_text() != source())
    WRITTEN.write_text(source())


if __name__ == "__main__":
    main()

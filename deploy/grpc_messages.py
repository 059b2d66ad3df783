"""Writes app/formats/grpc/messages/messages.pb from the .proto files beside it, with the compiler of grpcio-tools,
which comes with KServe's SDK: `make grpc-messages`.

    python -m deploy.grpc_messages            write it
    python -m deploy.grpc_messages --check    say whether it is current: exit code 1 if not
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "app" / "formats" / "grpc" / "messages"
WRITTEN: Final = FOLDER / "messages.pb"
_FILES: Final = ("inference.proto", "health.proto")


def compiled() -> bytes:
    """The serialized FileDescriptorSet of the .proto files, without their comments."""
    from grpc_tools import protoc  # noqa: PLC0415  (of development alone)

    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "set"
        code = protoc.main(["protoc", f"--proto_path={FOLDER}", f"--descriptor_set_out={found}", *_FILES])
        if code:
            raise SystemExit(code)
        return found.read_bytes()


def main() -> None:
    """Write the file, or check it."""
    if "--check" in sys.argv[1:]:
        raise SystemExit(WRITTEN.read_bytes() != compiled())
    WRITTEN.write_bytes(compiled())


if __name__ == "__main__":
    main()

"""The classes of the messages, created from `messages.pb`, the descriptors that `make grpc-messages` writes.

They are in a separate descriptor pool, because other packages in the process, such as Triton's client, may define
messages with the same names, and protobuf's default pool rejects a second definition of a name.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

POOL: Final = DescriptorPool()
for _file in FileDescriptorSet.FromString((files("app.formats.grpc.messages") / "messages.pb").read_bytes()).file:
    POOL.AddSerializedFile(_file.SerializeToString())


def message_class(name: str) -> Any:
    """Return the class of the message with this full name, such as `inference.ModelInferRequest`."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))


INFERENCE: Final = POOL.FindServiceByName("inference.GRPCInferenceService")
HEALTH: Final = POOL.FindServiceByName("grpc.health.v1.Health")
ModelInferRequest: Final = message_class("inference.ModelInferRequest")
ModelInferResponse: Final = message_class("inference.ModelInferResponse")

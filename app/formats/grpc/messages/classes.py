"""The messages' classes, made from the descriptor.

They have their own pool: a process may have messages with the same names from other packages, such as Triton's client,
and protobuf refuses a second message of a name in its default pool.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from app.formats.grpc.messages.descriptor import DESCRIPTOR

POOL: Final = DescriptorPool()
for _file in FileDescriptorSet.FromString(b64decode(DESCRIPTOR)).file:
    POOL.AddSerializedFile(_file.SerializeToString())


def message_class(name: str) -> Any:
    """The class of the message with this full name, such as `inference.ModelInferRequest`."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))


INFERENCE: Final = POOL.FindServiceByName("inference.GRPCInferenceService")
HEALTH: Final = POOL.FindServiceByName("grpc.health.v1.Health")
ModelInferRequest: Final = message_class("inference.ModelInferRequest")
ModelInferResponse: Final = message_class("inference.ModelInferResponse")

"""The inference protocol over gRPC: reads requests from protobuf messages, and writes answers as messages."""

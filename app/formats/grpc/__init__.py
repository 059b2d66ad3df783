"""The inference protocol over gRPC: reads requests from protobuf messages, and writes responses as messages."""

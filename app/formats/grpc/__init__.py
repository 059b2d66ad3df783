"""The inference protocol over gRPC: protobuf messages to requests, and answers to messages."""

"""The messages of the inference protocol over gRPC and of gRPC's health checks: .proto files and classes."""

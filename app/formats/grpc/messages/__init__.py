"""The messages of the inference protocol over gRPC and of gRPC's health checks, as .proto files and classes."""

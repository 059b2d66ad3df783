"""The Open Inference Protocol over gRPC: calls, their errors, and the gRPC server (the `grpc` extra)."""

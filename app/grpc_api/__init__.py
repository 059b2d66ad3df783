"""The Open Inference Protocol over gRPC: calls, their errors, and the server that listens (extra `grpc`)."""

"""gathernd: a gather inference service (ONNX GatherND and Gather, OpenVINO GatherND-8) over HTTP."""

__version__ = "0.1.0"

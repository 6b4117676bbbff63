"""Trained models as ONNX files, for inference without Python: graphs and a description.

``encoder.onnx`` and ``decoder.onnx``, and for pointing networks ``refinement.onnx`` (`pflow.export.pointing`), go in
this order from an event's hits and tracks to its particles. ``tokens.json`` holds the rest: names, shapes and types of
all tensors, and further constants for a host. How to use the files step by step: cpp/README.md.
"""

import os

# Since 1.29, Microsoft's builds of ONNX Runtime send usage data unless this is set before the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

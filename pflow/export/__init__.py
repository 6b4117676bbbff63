"""Trained models as ONNX files, for inference without Python: graphs and a description.

``encoder.onnx`` and ``decoder.onnx``, and for pointing networks ``refinement.onnx`` (`pflow.export.pointing`), run in
this order for each event. ``tokens.json`` holds the rest: names, shapes and types of all tensors, further constants for
a host, and under ``how_to`` how to use the files step by step.
"""

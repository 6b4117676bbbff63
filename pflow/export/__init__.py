"""Trained models as ONNX files, for inference without Python: graphs and a description.

``encoder.onnx`` and ``decoder.onnx``, and for pointing networks ``refinement.onnx`` (`pflow.export.pointing`), are run
one after the other for each event. ``tokens.json`` holds the rest: names, shapes and types of all tensors, what a host
must know besides, and under ``how_to`` how to use the files step by step.
"""

"""The pointing networks as three ONNX graphs that go from physical hits and tracks to physical particles.

All arithmetic is in the graphs; who runs them moves tensors by name (`HOW_TO` of `pflow.export.pointing.graphs`).
No axis counts events: one event is reconstructed at a time.
"""

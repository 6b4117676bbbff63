"""Names in a folder of ONNX files, which `pflow export` writes and `pflow reconstruct --engine onnxruntime` reads."""

from __future__ import annotations

__all__ = ["FORMAT_OF_POINTING", "FORMAT_OF_TRANSLATION", "GRAPHS", "TOKENS"]

GRAPHS = {"encoder": "encoder.onnx", "step": "decoder_step.onnx", "refinement": "refinement.onnx"}
"""Files of the graphs; translation networks have no refinement."""

TOKENS = "tokens.json"
"""Description beside them."""

FORMAT_OF_TRANSLATION, FORMAT_OF_POINTING = 1, 2
"""Version of the description's layout, by which the graphs of the architectures are told apart."""

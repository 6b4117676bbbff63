"""Names in a folder of ONNX files, which `pflow export` writes and `pflow reconstruct --engine onnxruntime` reads."""

from __future__ import annotations

__all__ = ["FILES", "FORMAT_OF_POINTING", "FORMAT_OF_TRANSLATION", "GRAPHS", "POINTING_GRAPHS", "TOKENS"]

GRAPHS = {name: f"{name}.onnx" for name in ("encoder", "decoder", "refinement")} | {"step": "decoder_step.onnx"}
"""Files of the graphs."""

POINTING_GRAPHS = ("encoder", "decoder", "refinement")
"""Those of a pointing network, in the order in which they are run; a translation network has encoder and step."""

TOKENS = "tokens.json"
"""Description beside them."""

FILES = (*GRAPHS.values(), TOKENS)
"""What such a folder can hold."""

FORMAT_OF_TRANSLATION, FORMAT_OF_POINTING = 1, 3
"""Version of the description's layout, by which the graphs of the architectures are told apart. Up
to 2 the host repeated the decoder steps of pointing networks."""

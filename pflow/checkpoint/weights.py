"""Trained weights without the state of their training: a folder of a safetensors file and a JSON text."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from pflow.errors import InputError, first_line

__all__ = ["HEADER", "WEIGHTS", "Weights", "read_weights"]

WEIGHTS = "model.safetensors"
"""Name of the file that holds the tensors and nothing else."""

HEADER = "model.json"
"""Name of the text beside it: a checkpoint's header, and ``sha256`` of the tensors' file."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Weights:
    """What a folder of weights holds.

    Parameters
    ----------
    header
        The text beside the tensors, as it stands there.
    state_dict
        Tensors by name, on the CPU.
    digest
        SHA-256 of the tensors' file, hexadecimal.
    """

    header: dict[str, Any]
    state_dict: dict[str, torch.Tensor]
    digest: str


def read_weights(folder: str | Path) -> Weights:
    """Read a folder that `pflow export --format weights` made. Nothing in it is run.

    The tensors are those whose digest stands in the text; what else the text says, `read_checkpoint` checks.

    Raises
    ------
    InputError
        A file is missing or is not what its name says, or the tensors are not those that the text was written for;
        names the file and, if there is one, the field.
    """
    folder = Path(folder)
    for name in (HEADER, WEIGHTS):
        if not (folder / name).is_file():
            raise InputError(
                f"not a folder of weights: it has no {name}", file=folder, suggestions=map(str, folder.glob("*.ckpt"))
            )
    path = folder / HEADER
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"not JSON: {error}", file=path) from error
    stated = header.get("sha256") if isinstance(header, dict) else None
    if not isinstance(stated, str):
        raise InputError("missing, or not a text: the digest of the weights", file=path, field="sha256")
    path = folder / WEIGHTS
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != stated:
        raise InputError(
            f"not the weights that {HEADER} was written for: their SHA-256 is {digest}, expected {stated}", file=path
        )
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise InputError(f"not a safetensors file: {first_line(error)}", file=path) from error
    return Weights(header=header, state_dict=tensors, digest=digest)

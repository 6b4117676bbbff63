"""What a checkpoint carries beside its weights: one JSON text under the key ``pflow``, read without running code."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pflow.errors import ConfigError, InputError
from pflow.tokens.tokeniser import Tokeniser

__all__ = ["FORMAT", "KEY", "Checkpoint", "pack_header", "read_checkpoint"]

KEY = "pflow"
"""Key of the header in the checkpoint's mapping."""

FORMAT = 1
"""Version of the header's layout. A reader refuses newer ones."""


def pack_header(
    *,
    tokeniser: Tokeniser,
    network: Mapping[str, Any],
    loss: Mapping[str, Any],
    max_particles: int,
    provenance: Mapping[str, Any],
    version: str,
) -> str:
    """The header as JSON text: all that is needed to use the weights, and where they come from.

    Parameters
    ----------
    tokeniser
        The one that the network was trained with.
    network, loss
        Arguments of the network and of the loss, plain data.
    max_particles
        Longest sentence to generate.
    provenance
        How it was trained: files, epochs, seed and the like, plain data.
    version
        Version of pflow.

    Raises
    ------
    ConfigError
        Something that is not plain data.
    """
    header = {
        "format": FORMAT,
        "version": version,
        "tokeniser": tokeniser.to_dict(),
        "network": dict(network),
        "loss": dict(loss),
        "max_particles": max_particles,
        "provenance": dict(provenance),
    }
    try:
        return json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a checkpoint's header holds plain data only: {error}") from error


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """A checkpoint as read from a file.

    Parameters
    ----------
    path
        The file.
    digest
        SHA-256 of the file, hexadecimal.
    header
        The parsed header.
    tokeniser
        Built from it.
    state_dict
        Weights by name, on the CPU.
    """

    path: str
    digest: str
    header: dict[str, Any]
    tokeniser: Tokeniser
    state_dict: dict[str, torch.Tensor]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint that `pflow fit` wrote. Nothing in the file is run: weights and plain data only.

    Raises
    ------
    InputError
        No such file, not a checkpoint, one that would run code, one that pflow did not write, or one written by a
        newer pflow; names the file and, if there is one, the field.
    """
    if not Path(path).is_file():
        raise InputError("no such checkpoint", file=path)
    content = _load(path)
    if not isinstance(content, dict) or not isinstance(content.get(KEY), str):
        raise InputError(f"not a checkpoint of pflow: it has no text under the key '{KEY}'", file=path, field=KEY)
    try:
        header = json.loads(content[KEY])
    except json.JSONDecodeError as error:
        raise InputError(f"the header is not JSON: {error}", file=path, field=KEY) from error
    number = header.get("format") if isinstance(header, dict) else None
    if not isinstance(number, int) or number < 1:
        raise InputError("the header states no format", file=path, field=f"{KEY}.format")
    if number > FORMAT:
        raise InputError(
            f"written by pflow {header.get('version', '(unknown version)')} in format {number}; this version reads "
            f"formats up to {FORMAT}",
            file=path,
            field=f"{KEY}.format",
        )
    for field, kind in (("tokeniser", dict), ("network", dict), ("max_particles", int)):
        if not isinstance(header.get(field), kind):
            raise InputError("missing from the header, or not of the expected type", file=path, field=f"{KEY}.{field}")
    try:
        tokeniser = Tokeniser.from_dict(header["tokeniser"])
    except ConfigError as error:
        raise InputError(str(error), file=path, field=f"{KEY}.tokeniser") from error
    weights = content.get("state_dict")
    if not isinstance(weights, dict):
        raise InputError("the weights are missing", file=path, field="state_dict")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Checkpoint(path=str(path), digest=digest, header=header, tokeniser=tokeniser, state_dict=weights)


def _load(path: str | Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            "not a checkpoint, or one that holds more than weights and plain data; pflow runs no code from files",
            file=path,
        ) from error
    except Exception as error:  # the unpickler reads any bytes as instructions and fails in any way
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"not a checkpoint, or a truncated one: {reason}", file=path) from error

"""Reading trained models: network and tokeniser together, without Lightning and without running code from files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from pflow.calibration.uncertainty import UncertaintyCalibration
from pflow.checkpoint.format import HEADER_FILE, KEY, WEIGHTS_FILE, Header
from pflow.checkpoint.migrate import migrate_state_dict
from pflow.errors import InputError, first_line, nearest
from pflow.model.api import ModelInputs, Reconstructor, build_reconstructor
from pflow.resources import shipped_models, weights_dir
from pflow.tokens.tokeniser import Tokeniser

__all__ = ["PREFIX", "Checkpoint", "Model", "load_model", "load_weights", "read_checkpoint"]

PREFIX = "reconstructor."
"""Beginning of the names of the model's weights in a checkpoint."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """A trained model as read.

    Parameters
    ----------
    path
        The file or folder; of a model that comes with pflow, its name.
    digest
        SHA-256, hexadecimal: of the file, or of a folder's tensors.
    header
        What the weights are for.
    state_dict
        Weights by name, on the CPU.
    """

    path: str
    digest: str
    header: Header
    state_dict: dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """All that turns events into particles.

    Parameters
    ----------
    reconstructor
        In evaluation mode, on the CPU.
    tokeniser
        The one that it was trained with.
    digest, path
        As of `Checkpoint`.
    config
        The header as plain data.
    calibration
        Calibration of the predicted uncertainties, or None.
    """

    reconstructor: Reconstructor
    tokeniser: Tokeniser
    digest: str
    path: str
    config: dict[str, Any]
    calibration: UncertaintyCalibration | None = None


def load_model(source: str | Path) -> Model:
    """Load a trained model.

    Parameters
    ----------
    source
        Path of a checkpoint that `pflow fit` wrote or of a folder of weights that `pflow export` wrote, or the name of
        a model that comes with pflow (`pflow.shipped_models` lists them).

    Raises
    ------
    InputError
        No such model (with the nearest names), one that would run code, one of a newer pflow, or one whose weights do
        not fit its configuration; names the file.
    """
    checkpoint = read_checkpoint(source)
    header = checkpoint.header
    try:
        reconstructor = build_reconstructor(header.model, ModelInputs(**header.tokeniser.sizes))
    except (TypeError, ValueError) as error:
        raise InputError(f"its configuration makes no network: {error}", file=source, field="model") from error
    load_weights(reconstructor, checkpoint)
    return Model(
        reconstructor=reconstructor.eval(),
        tokeniser=header.tokeniser,
        calibration=header.calibration,
        digest=checkpoint.digest,
        path=checkpoint.path,
        config=header.to_dict(),
    )


def load_weights(reconstructor: Reconstructor, checkpoint: Checkpoint) -> None:
    """Give a reconstructor the weights of a checkpoint.

    Raises
    ------
    InputError
        They do not fit; names the file and the first weights.
    """
    weights = {name.removeprefix(PREFIX): w for name, w in checkpoint.state_dict.items() if name.startswith(PREFIX)}
    try:
        reconstructor.load_state_dict(weights)
    except (RuntimeError, AttributeError) as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines()[1:4]) or str(error)
        raise InputError(
            f"its weights do not fit its configuration: {reason}", file=checkpoint.path, field="state_dict"
        ) from error


def read_checkpoint(source: str | Path) -> Checkpoint:
    """Read a trained model. Nothing in it is run: weights and plain data only.

    Parameters
    ----------
    source
        As for `load_model`. A file goes before a name and a name before a folder, which ``./NAME`` tells apart.

    Raises
    ------
    InputError
        No such model, one that would run code, one that pflow did not write, or one of a newer pflow; names the file
        and, if there is one, the field.
    """
    if Path(source).is_file():
        return _read_file(str(source))
    if str(source) in (shipped := shipped_models()):
        return _read_folder(weights_dir() / source, path=str(source))
    if Path(source).is_dir():
        return _read_folder(Path(source), path=str(source))
    known = ", ".join(shipped) or "none does"
    raise InputError(
        f"no such checkpoint or folder of weights, and no model of that name comes with pflow ({known})",
        file=source,
        suggestions=nearest(str(source), shipped),
    )


def _read_file(path: str) -> Checkpoint:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            "not a checkpoint, or one that holds more than weights and plain data; pflow runs no code from files",
            file=path,
        ) from error
    except Exception as error:  # the unpickler reads any bytes as instructions and fails in any way
        raise InputError(f"not a checkpoint, or a truncated one: {first_line(error)}", file=path) from error
    if not isinstance(content, dict) or not isinstance(content.get(KEY), str):
        raise InputError(f"not a checkpoint of pflow: it has no text under the key '{KEY}'", file=path, field=KEY)
    try:
        header = Header.from_dict(json.loads(content[KEY]), file=path, prefix=f"{KEY}.")
    except json.JSONDecodeError as error:
        raise InputError(f"the header is not JSON: {error}", file=path, field=KEY) from error
    weights = content.get("state_dict")
    if not isinstance(weights, dict):
        raise InputError("the weights are missing", file=path, field="state_dict")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Checkpoint(path=path, digest=digest, header=header, state_dict=migrate_state_dict(weights))


def _read_folder(folder: Path, *, path: str) -> Checkpoint:
    for name in (HEADER_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise InputError(
                f"not a folder of weights: it has no {name}", file=folder, suggestions=map(str, folder.glob("*.ckpt"))
            )
    text, tensors = folder / HEADER_FILE, folder / WEIGHTS_FILE
    try:
        content = json.loads(text.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"not JSON: {error}", file=text) from error
    stated = content.get("sha256") if isinstance(content, dict) else None
    if not isinstance(stated, str):
        raise InputError("missing, or not a text: the digest of the weights", file=text, field="sha256")
    data = tensors.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != stated:
        raise InputError(
            f"not the weights that {HEADER_FILE} was written for: their SHA-256 is {digest}, expected {stated}",
            file=tensors,
        )
    header = Header.from_dict(content, file=str(text))
    try:
        weights = safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise InputError(f"not a safetensors file: {first_line(error)}", file=tensors) from error
    return Checkpoint(path=path, digest=digest, header=header, state_dict=migrate_state_dict(weights))

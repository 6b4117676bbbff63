"""A trained model to a folder of its weights, without the state of the training, that appears only when whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from safetensors.torch import save

from pflow.io.atomic import check_folder, replacing_folder
from pflow.reco.load import load_model
from pflow.tokens.checkpoint import read_checkpoint
from pflow.tokens.weights import HEADER, WEIGHTS

__all__ = ["write_weights"]


def write_weights(checkpoint: str | Path, folder: str | Path) -> tuple[Path, ...]:
    """Write a model as ``model.safetensors`` and ``model.json``; `pflow.load_model` takes the folder.

    The same checkpoint gives the same files, byte for byte.

    Parameters
    ----------
    checkpoint
        What `pflow.load_model` takes.
    folder
        To be made; one that exists must be empty.

    Returns
    -------
    tuple of Path
        The two files.

    Raises
    ------
    ConfigError
        The folder cannot be made there.
    InputError
        Not a model that can be loaded.
    """
    check_folder(folder)
    load_model(checkpoint)  # what is passed on must be usable
    trained = read_checkpoint(checkpoint)
    # A copy of each: what shares memory in the network is stored like all others.
    content = save({name: value.contiguous().clone() for name, value in sorted(trained.state_dict.items())})
    header = {
        **trained.header,
        "sha256": hashlib.sha256(content).hexdigest(),
        "checkpoint_sha256": trained.header.get("checkpoint_sha256", trained.digest),
    }
    with replacing_folder(folder) as partial:
        (partial / WEIGHTS).write_bytes(content)
        text = json.dumps(header, indent=2, ensure_ascii=False, allow_nan=False)
        (partial / HEADER).write_text(text + "\n", encoding="utf-8")
    return Path(folder) / WEIGHTS, Path(folder) / HEADER

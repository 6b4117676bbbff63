"""Writing trained models: a folder of weights without the state of their training."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

from safetensors.torch import save

from pflow.checkpoint.format import HEADER_FILE, WEIGHTS_FILE
from pflow.checkpoint.load import load_model, read_checkpoint
from pflow.io.atomic import check_output, replacing
from pflow.model.api import DecodingConfig
from pflow.tokens.particles import Calibration

FILES = (WEIGHTS_FILE, HEADER_FILE)
"""What a folder of weights holds."""


def write_weights(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    calibration: Calibration | None = None,
    decoding: DecodingConfig | None = None,
    force: bool = False,
) -> tuple[Path, ...]:
    """Write a model as ``model.safetensors`` and ``model.json``, the paths; `pflow.load_model` takes the folder.

    The folder appears only when it is complete; one that exists must be empty, or with `force` hold nothing but these
    files. The same checkpoint gives the same bytes. `calibration` and `decoding` replace the model's own. ConfigError:
    the folder cannot be made. InputError: not a model that can be loaded.
    """
    check_output(folder, inputs=[checkpoint], force=force, holds=FILES)
    load_model(checkpoint)  # the model must be usable
    trained = read_checkpoint(checkpoint)
    # A copy of each: tensors that share memory are stored like all others.
    content = save({name: value.contiguous().clone() for name, value in sorted(trained.state_dict.items())})
    header, made = trained.header, {"checkpoint_sha256": trained.digest, **trained.header.provenance}
    if decoding is not None:
        init_args = {**header.model["init_args"], "decoding": dataclasses.asdict(decoding)}
        header = dataclasses.replace(header, model={**header.model, "init_args": init_args})
    header = dataclasses.replace(header, calibration=calibration or header.calibration, provenance=made)
    text = header.to_dict() | {"sha256": hashlib.sha256(content).hexdigest()}
    with replacing(folder, force=force, holds=FILES) as partial:
        (partial / WEIGHTS_FILE).write_bytes(content)
        (partial / HEADER_FILE).write_text(json.dumps(text, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return tuple(Path(folder) / name for name in FILES)

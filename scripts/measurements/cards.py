"""The table of a card that says how the weights of a shipped model were trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from measurements.rows import table
from pflow.checkpoint.format import Header


def training_table(header: Header, summary: Path) -> str:
    """How weights were made; all options are in the header, ``model.json``.

    Parameters
    ----------
    header
        Of the checkpoint.
    summary
        ``training.json`` with the time of each stage, if there is one.
    """
    made, config = header.provenance, header.tokeniser.config
    merge = config.merge
    cells = "as read"
    if merge is not None:
        deep = f"{merge.depth:g} X0 or {merge.depth / 10:g} lambda deep" if merge.depth else f"{merge.layers} layers"
        cells = f"{merge.ecal_mm:g} mm (ECAL), {merge.hcal_mm:g} mm (HCAL), {deep}"
    files, sample = dict.fromkeys(made["train"]), header.tokeniser.sample
    detectors = (sample and sample.detectors) or (header.tokeniser.detector.name,)
    lines = {
        "training files": f"{', '.join(f'`{name}`' for name in files)}: {made['n_events']:,} events",
        "detectors": ", ".join(f"`{name}`" for name in detectors),
        "targets": f"rule `{config.rule}`, from {config.e_min:g} GeV, order `{config.order}`",
        "cells": cells,
        "network": f"`{header.model['class_path'].rpartition('.')[2]}`, width "
        f"{header.model['init_args']['network']['width']}; all options: `model.json`",
        "last stage": f"{made['step']:,} steps of at most {made['batch_size']} events, "
        f"{made.get('optimiser', 'adamw')}, learning rate "
        f"{made['lr']:g}, schedule `cosine`, seed {made['seed']}",
        "started from": ", ".join(f"`{digest[:12]}`" for digest in _ancestors(made)) or "random weights",
    }
    if summary.is_file():
        stages = json.loads(summary.read_text("utf-8"))
        lines["stages, the last first"] = f"{'; '.join(_stages(stages))}; on a machine with {stages['device']}"
    return table(["training", ""], lines.items(), left=2)


def _ancestors(made: dict[str, Any]) -> list[str]:
    """Digests of the weights that a training started from, and those from theirs."""
    before = made.get("began_with")
    return [before["sha256"], *_ancestors(before)] if before else []


def _stages(summary: dict[str, Any]) -> list[str]:
    text = f"{summary['steps']:,} steps in {summary['wall_s'] / 60:.0f} minutes"
    return [text, *(_stages(summary["before"]) if "before" in summary else [])]

"""Models of earlier versions: options that are gone, and former names of weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

__all__ = ["migrate_state_dict", "without_removed"]

_T = TypeVar("_T")

CLASS_PATHS = {
    "translation": "pflow.model.translation.TranslationReconstructor",
    "pointing": "pflow.model.pointing.PointingReconstructor",
}

REMOVED = {
    "embedder_feedforward": (None,),
    "embedder_hidden_layers": (None, 2),
    "target_width": (None,),
    "head_feedforward": (None,),
    "bias": (True,),
    "energy_width": (False,),
    "energy_sigma": (False,),
}
"""Options of translation networks that are gone, and the values with which a model is read all the same."""

POINTING_CONSTANTS: dict[str, dict[str, Any]] = {
    "network": {
        "local_attention": True,
        "cone_angle": 0.3,
        "use_proxies": True,
        "coverage": True,
        "delta_theta_phi_features": True,
        "pairwise_messages": True,
        "refine_delta_theta_phi_features": True,
    },
    "decoding": {"max_empty_steps": 3, "min_deposit_fraction": 0.5},
    "training": {"scheduled_sampling_prob": None, "order_noise_std": None},
}
"""Options of the pointing network, by part, that are constants now, and their values; None: it matters in training
only, and a model with any value is read."""

TRANSLATION_LOSSES = ("energy", "direction", "label_smoothing")
"""Options of the translation models' losses that are gone. They matter in training only."""


def without_removed(model: Mapping[str, Any]) -> dict[str, Any]:
    """``class_path`` and ``init_args`` without the options that are gone; a ValueError if one had an effect."""
    if model.get("class_path") == CLASS_PATHS["pointing"]:
        return _without_constants(model)
    if model.get("class_path") != CLASS_PATHS["translation"]:
        return dict(model)
    parts = {"network": {}, "loss": {}, **(model.get("init_args") or {})}
    network = dict(parts["network"])
    for name, harmless in REMOVED.items():
        if network.pop(name, harmless[0]) not in harmless:
            raise ValueError(f"'{name}' is no longer an option: use the version of pflow that wrote the model")
    loss = {name: value for name, value in parts["loss"].items() if name not in TRANSLATION_LOSSES}
    return {**model, "init_args": {**parts, "network": network, "loss": loss}}


def _without_constants(model: Mapping[str, Any]) -> dict[str, Any]:
    """A pointing network without the options that are constants."""
    parts = {part: dict(options) for part, options in (model.get("init_args") or {}).items()}
    refined = bool(parts.get("network", {}).get("refine_layers"))
    for part, constants in POINTING_CONSTANTS.items():
        for name, value in constants.items():
            found = parts.get(part, {}).pop(name, value)
            matters = refined or name not in ("pairwise_messages", "refine_delta_theta_phi_features")
            if value is not None and found != value and matters:
                raise ValueError(
                    f"'{name}' is no longer an option: it is {value}, and the model was made with {found}; use the "
                    "version of pflow that wrote it"
                )
    return {**model, "init_args": parts}


POINTING_WEIGHTS = (
    (r"(embed_hit|embed_track)\.", r"encoder.\1."),
    (r"encoder\.layers\.(\d+)\.norm\.", r"encoder.stack.layers.\1.attention_residual.norm."),
    (r"encoder\.layers\.(\d+)\.feedforward_norm\.", r"encoder.stack.layers.\1.feedforward_residual.norm."),
    (r"encoder\.(layers|norm)\.", r"encoder.stack.\1."),
    (r"begin$", r"decoder.bos"),
    (r"(embed_particle|embed_seed|embed_pooled)\.", r"decoder.\1."),
    (r"pointer\.stop\.", r"decoder.pointer.eos."),
    (r"pointer\.", r"decoder.pointer."),
    (r"decoder\.(layers|norm)\.", r"decoder.stack.\1."),
    (r"query\.", r"assignment.query."),
    (r"incidence\.", r"assignment.pair_logits."),
    (r"(describe|identity|correct)\.", r"head.\1."),
    (r"revision\.enter\.", r"refiner.embed_query."),
    (r"revision\.decoder\.", r"refiner.stack."),
    (r"revision\.change\.", r"refiner.query_update."),
    (r"revision\.incidence\.", r"refiner.pair_logits."),
    (r"revision\.nobody\.", r"refiner.unassigned."),
    (r"revision\.real\.", r"refiner.existence."),
    (r"revision\.describe\.", r"refiner.describe."),
    (r"relation\.one\.", r"refiner.messages.receiver."),
    (r"relation\.other\.", r"refiner.messages.sender."),
    (r"relation\.(geometry|out)\.", r"refiner.messages.\1."),
    (r"unbend\.share\.", r"refiner.direction_correction.fraction."),
)
"""Patterns at the start of names in the first pointing networks' files, as that of ild-g4-photon, and what replaces the
first that matches."""

POINTING_LAYERS = (
    (r"\.attention_norm\.", ".attention_residual.norm."),
    (r"\.memory_norm\.", ".memory_residual.norm."),
    (r"\.feedforward_norm\.", ".feedforward_residual.norm."),
    (r"\.left_strength$", ".memory_attention.strength"),
    (r"\.memory_attention\.(query|key_value|out)\.", r".memory_attention.attention.\1."),
)
"""The same within the decoder layers of the pointing network."""


def migrate_state_dict(state_dict: Mapping[str, _T]) -> dict[str, _T]:
    """Weights under the names of this version, which stay as they are."""
    if "network.begin" not in state_dict:
        return dict(state_dict)
    return {_renamed(name): value for name, value in state_dict.items()}


def _renamed(name: str) -> str:
    if not name.startswith("network."):
        return name
    name = name.removeprefix("network.")
    for pattern, new in POINTING_WEIGHTS:
        if re.match(pattern, name):
            name = re.sub(rf"^{pattern}", new, name)
            break
    if ".stack.layers." in name:
        for pattern, new in POINTING_LAYERS:
            name = re.sub(pattern, new, name)
    return f"reconstructor.network.{name}"

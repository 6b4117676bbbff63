"""Models of earlier versions: options that are gone, and former names of weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")

ANY: tuple[Any, ...] = ()
"""Any value: the option matters in training only."""

REMOVED: dict[str, dict[str, dict[str, tuple[Any, ...]]]] = {
    "pflow.model.translation.TranslationReconstructor": {
        "network": {
            "embedder_feedforward": (None,),
            "embedder_hidden_layers": (None, 2),
            "target_width": (None,),
            "head_feedforward": (None,),
            "bias": (True,),
            "energy_width": (False,),
            "energy_sigma": (False,),
        },
        "loss": {"energy": ANY, "direction": ANY, "label_smoothing": ANY},
    },
    "pflow.model.pointing.PointingReconstructor": {
        "network": {
            "local_attention": (True,),
            "cone_angle": (0.3,),
            "use_proxies": (True,),
            "coverage": (True,),
            "delta_theta_phi_features": (True,),
            "pairwise_messages": (True,),
            "refine_delta_theta_phi_features": (True,),
        },
        "decoding": {"max_empty_steps": (3,), "min_deposit_fraction": (0.5,)},
        "training": {"scheduled_sampling_prob": ANY, "order_noise_std": ANY},
    },
}
"""Removed options, by class and part; models with one of these values can still be read."""

OF_REFINEMENT = ("pairwise_messages", "refine_delta_theta_phi_features")
"""Options that have no effect without ``refine_layers``."""


def without_removed(model: Mapping[str, Any]) -> dict[str, Any]:
    """``class_path`` and ``init_args`` without the options that are gone; a ValueError if one had an effect."""
    removed = REMOVED.get(model["class_path"])
    if removed is None:
        return dict(model)
    parts = {part: dict(options) for part, options in (model.get("init_args") or {}).items()}
    refined = parts.get("network", {}).get("refine_layers", 0) > 0
    for part, options in removed.items():
        for name in options.keys() & parts.get(part, {}).keys():
            value, harmless = parts[part].pop(name), options[name]
            if harmless and value not in harmless and (refined or name not in OF_REFINEMENT):
                raise ValueError(
                    f"'{name}' is no longer an option: it is {harmless[0]}, and the model was made with {value}; use "
                    "the version of pflow that wrote it"
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
"""Patterns at the start of names in the first pointing networks' files, such as ild-g4-photon, each with its
replacement; the first that matches counts."""

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

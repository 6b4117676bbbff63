"""What a translation network saw and weighed while it decoded an event, step by step.

Letters: S source tokens with bos and eos, T particles, H heads, V classes of a head, special ones included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pflow.data.batch import Batch, Target
from pflow.model.api import GeneratedParticles
from pflow.model.common.attention import CrossAttention, SelfAttention
from pflow.model.translation.network import TranslationNetwork


@torch.inference_mode()
def explain(network: TranslationNetwork, batch: Batch, particles: GeneratedParticles) -> dict[str, Tensor]:
    """Probabilities and attention of each decoder step, by decoding the particles once more with teacher forcing.

    The causal mask makes this the same computation as decoding one by one with a cache. The `particles` are what the
    network decoded from the `batch`, one event without padding.

    ``probability.charge``, ``probability.pdg`` and, with special tokens of version 2, ``probability.kind``: float [T +
    1, V], for the step that predicts the first particle to the one that predicts eos; ``energy`` [T + 1], log10(E /
    GeV) normalised, and ``direction`` [T + 1, 3]; and by the names of the modules, after ``attention.``, each layer's
    weights, [H, S, S] of the encoder, [H, T + 1, T + 1] of the decoder and [H, T + 1, S] of ``memory_attention``; a row
    sums to 1.
    """
    names = ("charge", "pdg", "energy", "direction", "mask")
    target = Target(**{name: getattr(particles, name) for name in names})
    attention: dict[str, Tensor] = {}

    def record(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            attention[name] = module.weights(*args, **options)[0]  # type: ignore[operator]

        return hook

    handles = [
        module.register_forward_pre_hook(record(name), with_kwargs=True)
        for name, module in network.named_modules()
        if isinstance(module, SelfAttention | CrossAttention)
    ]
    try:
        prediction = network(dataclasses.replace(batch, target=target))
    finally:
        for handle in handles:
            handle.remove()
    probability = {f"probability.{name}": prediction[name][0].softmax(-1) for name in network.heads.classifiers}
    continuous = {name: prediction[name][0] for name in ("energy", "direction")}
    return {**probability, **continuous, **{f"attention.{name}": value for name, value in attention.items()}}

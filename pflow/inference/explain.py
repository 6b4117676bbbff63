"""Explain the decoding of one event: probabilities, hit weights and attention of each step."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pflow.checkpoint.load import TrainedModel
from pflow.data.batch import Batch
from pflow.data.collate import collate
from pflow.errors import ConfigError, InputError
from pflow.event.events import Events
from pflow.model.common.transformer import CrossAttention, SelfAttention, split_heads
from pflow.model.pointing import PointingReconstructor
from pflow.model.pointing.generate import decode_first_stage
from pflow.model.translation import TranslationReconstructor
from pflow.physics.pdg import name_of
from pflow.tokens.tokens import select
from pflow.tokens.vocab import CHARGES

# Special classes by their number; the charges or PDG codes follow them.
SPECIAL = {1: ("eos",), 2: ("particle", "end"), 3: ("pad", "bos", "eos"), 4: ("pad", "bos", "eos", "particle")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a decoding: a particle with `energy`, GeV, or the end of the sequence (`energy` is None).

    `probability`: class probabilities by name, of a translation ``pdg``, ``charge`` and ``kind``; of a pointing model
    ``pdg``, and ``start`` (whether a further particle starts). `hits`: records with ``energy`` (GeV, as the model reads
    it) and ``position`` (mm); of a translation its cells. `weight`, float [hits]: fraction of each hit that the
    particle has; of a translation the attention of the last decoder layer, averaged over heads. `attention`, of a
    translation: float [heads, tokens] for each decoder layer, to the particles so far and, as ``memory_attention``, to
    the encoded bos, eos, cells, tracks, tracker hits.
    """

    energy: float | None
    probability: dict[str, dict[str, float]]
    hits: ak.Array
    weight: npt.NDArray[Any]
    attention: dict[str, npt.NDArray[Any]]

    def __str__(self) -> str:
        pdg = self.probability.get("pdg", {})
        name = max(pdg, key=pdg.__getitem__, default="")
        return "end" if self.energy is None else f"{name} ({pdg[name]:.2f}), {self.energy:.3g} GeV"


def explain(model: TrainedModel, event: Events) -> list[Step]:
    """Decoding steps of one event, e.g. ``events[3:4]``, as ``pflow.reconstruct`` decodes it, on the CPU.

    Of a pointing model these are the steps of the first stage, before the refinement; particles with a track, which are
    decoded at once, come first. ConfigError: another architecture. InputError: not exactly one event, or an event
    without tokens that the model reads.

    >>> events = pflow.read_events("gammasep_test_small.root", entry_stop=1)
    >>> print(*explain(pflow.load_model("ild-g4-photon"), events), sep="; ")
    gamma (1.00), ... GeV; ...end
    """
    if len(event) != 1:
        raise InputError(f"expected one event, e.g. events[3:4], found {len(event)}")
    reconstructor, tokeniser = model.reconstructor.cpu().eval(), model.tokeniser
    tokens, selection = tokeniser.encode(event, truth=False), select(event, tokeniser.config)
    if not tokens.n_source[0]:
        raise InputError("the event has no hits or tracks that the model reads")
    if isinstance(reconstructor, PointingReconstructor):
        hits, rows = selection.hits[0], _pointing(reconstructor, collate(tokens))
    elif isinstance(reconstructor, TranslationReconstructor):
        hits, rows = selection.tokens.hits[0], _translation(reconstructor, collate(tokens))
    else:
        raise ConfigError(f"the steps of a {type(reconstructor).__name__} are not known")
    known = {
        "charge": [f"{charge:+d}" if charge else "0" for charge in CHARGES],
        "pdg": [name_of(code) for code in tokeniser.pdg.codes],
    }
    steps = []
    for row in rows:
        probability = {}
        for name in [name for name in row if name in ("pdg", "charge", "kind", "start")]:
            values, names = row.pop(name).tolist(), known.get(name, [])
            probability[name] = dict(zip([*SPECIAL.get(len(values) - len(names), ()), *names], values, strict=True))
        energy, weight = row.pop("energy"), row.pop("weight")[: len(hits)].numpy()
        energy = None if energy is None else float(tokeniser.energy.invert(np.array([[float(energy)]]))[0, 0])
        attention = {name: value.numpy() for name, value in row.items()}
        steps.append(Step(energy=energy, probability=probability, hits=hits, weight=weight, attention=attention))
    return steps


@torch.inference_mode()
def _pointing(reconstructor: PointingReconstructor, batch: Batch) -> list[dict[str, Any]]:
    network, end = reconstructor.network, list[Tensor]()
    with network.decoder.register_forward_hook(
        lambda _, __, output: end.append(torch.cat(output[1:], dim=1).softmax(-1)[0, -1])
    ):
        columns, mask, _ = decode_first_stage(network, network.encode(batch), reconstructor._decoding(None))
    first = {name: values[0, : int(mask.sum())] for name, values in columns.items()}
    energy = network.energy_scale.normalised(first["log_energy"]).float()
    pdg, weight = first["pdg_logits"].softmax(-1), first["hit_fraction"]
    rows: list[dict[str, Any]] = [{"energy": energy[i], "weight": weight[i], "pdg": pdg[i]} for i in range(len(energy))]
    rows.append({"energy": None, "weight": torch.zeros_like(columns["hit_fraction"][0].sum(0))})
    for row, p in zip(rows[len(rows) - len(end) :], end, strict=True):  # those before start with their tracks at once
        row["start"] = torch.stack([1 - p, p])
    return rows


@torch.inference_mode()
def _translation(reconstructor: TranslationReconstructor, batch: Batch) -> list[dict[str, Any]]:
    network, seen = reconstructor.network, defaultdict[str, list[Tensor]](list)

    def attend(name: str, layer: Any, args: tuple[Any, ...], options: dict[str, Any], _: Tensor) -> None:
        if isinstance(layer, CrossAttention):
            query, key = split_heads(layer.query(args[0]), layer.heads), args[1].key
        else:
            projected = split_heads(layer.query_key_value(args[0]), 3 * layer.heads)
            query, key = projected[:, : layer.heads], options["cache"].known.key
        seen[name].append((query @ key.transpose(2, 3)).softmax(-1)[0, :, 0])

    def classify(_: Any, args: Any, output: dict[str, Tensor]) -> None:
        for name in network.heads.classifiers:
            seen[name].append(output[name][0, 0].softmax(-1))

    with ExitStack() as hooks:
        hooks.enter_context(network.heads.register_forward_hook(classify))
        for name, layer in network.decoder.named_modules():
            if isinstance(layer, SelfAttention | CrossAttention):
                hooks.enter_context(layer.register_forward_hook(partial(attend, name), with_kwargs=True))
        particles = reconstructor.generate(batch)
    rows: list[dict[str, Any]] = [dict(zip(seen, values, strict=True)) for values in zip(*seen.values(), strict=True)]
    last = [name for name in seen if name.endswith("memory_attention")][-1]
    for row, energy in zip(rows, [*particles.energy[0, particles.mask[0]], None], strict=False):
        row |= {"energy": energy, "weight": row[last].mean(0)[2:]}  # behind bos and eos
    return rows

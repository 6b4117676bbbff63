"""Explain the decoding of one event: probabilities, hit weights and attention of each step."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from contextlib import ExitStack
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
import torch

from pflow.checkpoint.load import TrainedModel
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
SPECIAL = {0: (), 1: ("eos",), 2: ("particle", "end"), 3: ("pad", "bos", "eos"), 4: ("pad", "bos", "eos", "particle")}


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


@torch.no_grad()
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
    batch, seen = collate(tokens), defaultdict[str, list[Any]](list)  # what is seen, [step] each
    if isinstance(reconstructor, PointingReconstructor):
        hits, pointing = selection.hits[0], reconstructor.network
        with pointing.decoder.register_forward_hook(
            lambda _, __, output: seen["start"].append(torch.cat(output[1:], dim=1).softmax(-1)[0, -1])
        ):
            columns, mask, _ = decode_first_stage(pointing, pointing.encode(batch), reconstructor._decoding(None))
        first = {name: values[mask] for name, values in columns.items()}
        energies = [*pointing.energy_scale.normalised(first["log_energy"]).float(), None]
        weights = [*first["hit_fraction"], torch.zeros(first["hit_fraction"].shape[-1])]
        seen["pdg"] = [*first["pdg_logits"].softmax(-1), None]
        starts = [torch.stack([1 - p, p]) for p in seen["start"]]
        seen["start"] = [*[None] * (len(energies) - len(starts)), *starts]  # tracks start particles at once, before
    elif isinstance(reconstructor, TranslationReconstructor):
        hits, network = selection.tokens.hits[0], reconstructor.network
        kinds = SelfAttention, CrossAttention
        attentions = {layer: name for name, layer in network.decoder.named_modules() if isinstance(layer, kinds)}

        def look(layer: Any, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
            if layer is network.heads:
                for name in network.heads.classifiers:
                    seen[name].append(output[name][0, 0].softmax(-1))
                return
            if isinstance(layer, CrossAttention):
                query, key = layer.query(args[0]), args[1].key
            else:
                query, key = layer.query_key_value(args[0]).chunk(3, dim=-1)[0], options["cache"].known.key
            seen[attentions[layer]].append((split_heads(query, layer.heads) @ key.transpose(2, 3)).softmax(-1)[0, :, 0])

        with ExitStack() as hooks:
            for layer in (network.heads, *attentions):
                hooks.enter_context(layer.register_forward_hook(look, with_kwargs=True))
            particles = reconstructor.generate(batch)
        energies = [*particles.energy[0, particles.mask[0]], None]
        *_, last = (values for name, values in seen.items() if name.endswith("memory_attention"))
        weights = [attention.mean(0)[2:] for attention in last]  # behind bos and eos
    else:
        raise ConfigError(f"the steps of a {type(reconstructor).__name__} are not known")
    charges, codes = [f"{charge:+d}" if charge else "0" for charge in CHARGES], map(name_of, tokeniser.pdg.codes)
    known: dict[str, list[str]] = {"pdg": list(codes), "charge": charges, "kind": [], "start": []}
    steps = []
    for energy, weight, *parts in zip(energies, weights, *seen.values(), strict=False):
        row = {name: part.numpy() for name, part in zip(seen, parts, strict=True) if part is not None}
        if energy is not None:
            energy = float(tokeniser.energy.invert(np.array([[float(energy)]]))[0, 0])
        probability = {}
        for name in known.keys() & row.keys():
            values = row.pop(name).tolist()
            names = *SPECIAL[len(values) - len(known[name])], *known[name]
            probability[name] = dict(zip(names, values, strict=True))
        weight = weight[: len(hits)].numpy()
        steps.append(Step(energy=energy, probability=probability, hits=hits, weight=weight, attention=row))
    return steps

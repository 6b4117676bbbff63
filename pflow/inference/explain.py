"""How a model came to the particles of one event, step by step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import awkward as ak
import numpy.typing as npt

from pflow.checkpoint.load import TrainedModel
from pflow.data.collate import collate
from pflow.errors import InputError, nearest
from pflow.event.events import Events
from pflow.physics.pdg import CLASSES, class_index, name_of
from pflow.tokens.tokens import select
from pflow.tokens.vocab import CHARGES

SPECIAL = ("pad", "bos", "eos", "particle")
"""Names of the kinds of tokens; vocabularies begin with one class, or with the first three of these."""


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a network computed at each step of the decoding of one event: arrays by name.

    A translation network has T + 1 steps, the last one ends the sequence: ``probability.charge``,
    ``probability.pdg`` and, with special tokens by kind, ``probability.kind``, float [T + 1, classes]; ``energy``
    (GeV) and ``direction`` [T + 1, 3]; and by the names of the layers ``attention.source...`` [heads, S, S],
    ``attention.decoder...`` [heads, T + 1, T + 1 or S], whose rows sum to 1. The S source tokens are bos, eos, then the
    cells, then tracks and tracker hits where they are tokens.

    A pointing network has the T particles of its first stage: ``probability.seed`` [T + 1, S + 1], where the next
    particle starts: one of S tokens (cells, then tracks), in the last column nowhere; ``seed`` int64 [T];
    ``probability.pdg``; ``assignment`` [T, M], the fraction of M items (hits above the threshold, then tracks) that the
    particle gets; ``energy``, ``direction``; and ``refined_assignment`` of the particles that a refinement keeps.

    Parameters
    ----------
    cells, hits
        Records with ``energy`` (GeV, as the model reads it) and ``position`` (mm) of the hits, or sums of hits, that
        are source tokens, and of the hits that are kept, which a pointing network assigns.
    classes
        Names of the classes of each ``probability``.
    first_cell
        Index of the first cell among the source tokens: 2 where bos and eos come first.
    """

    cells: ak.Array
    hits: ak.Array
    classes: Mapping[str, tuple[str, ...]]
    first_cell: int
    arrays: Mapping[str, npt.NDArray[Any]]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self.arrays:
            raise KeyError(f"'{name}'; nearest: {', '.join(nearest(name, self.arrays)) or ', '.join(self.arrays)}")
        return self.arrays[name]

    def __repr__(self) -> str:
        return "Explanation:\n" + "\n".join(f"  {name} {list(array.shape)}" for name, array in self.arrays.items())

    def on_cells(self, name: str) -> npt.NDArray[Any]:
        """The columns of an attention, or of ``probability.seed``, that belong to the cells: float [..., cells]."""
        return self[name][..., self.first_cell : self.first_cell + len(self.cells)]

    def steps(self, most: int | None = None) -> list[tuple[str, ak.Array, npt.NDArray[Any]]]:
        """The first steps: the particle in words, and the hits or cells with their weights.

        Weights are the fractions that a pointing network assigns, or the attention of a translation's last decoder
        layer, averaged over the heads.
        """
        steps = []
        if "assignment" in self.arrays:
            records, weights = self.hits, self["assignment"][:, : len(self.hits)]
        else:
            last = [name for name in self.arrays if "memory_attention" in name][-1]
            records, weights = self.cells, self.on_cells(last).mean(axis=0)
        for pdg, energy, weight in zip(self["probability.pdg"], self["energy"][:most], weights, strict=False):
            name = self.classes["probability.pdg"][int(pdg.argmax())]
            text = f"{name} ({pdg.max():.2f})" + (f", {energy:.3g} GeV" if name != "eos" else "")
            steps.append((text, records, weight))
        return steps


def explain(model: TrainedModel, event: Events) -> Explanation:
    """Probabilities, attention and assignment in each step of the decoding of one event, e.g. ``events[3:4]``.

    The steps lead to the particles of ``pflow.reconstruct(event, model)``, on the CPU.

    Raises
    ------
    ConfigError
        The architecture of the model tells nothing of its steps.
    InputError
        Not one event, or one without tokens or of another detector.

    Examples
    --------
    >>> events = pflow.read_events("multi_test_small.root", entry_stop=1)
    >>> explained = pflow.explain(pflow.load_model("general"), events[0])
    >>> len(explained["probability.seed"])  # two particles of the first stage, and the end
    3
    """
    if len(event) != 1:
        raise InputError(f"expected one event, e.g. events[3:4], found {len(event)}")
    tokens = model.tokeniser.encode(event, truth=False)
    if not tokens.n_source[0]:
        raise InputError("the event has no hits or tracks that the model reads")
    reconstructor, tokeniser = model.reconstructor.cpu().eval(), model.tokeniser
    arrays = {name: value.numpy() for name, value in reconstructor.explain(collate(tokens)).items()}
    arrays["energy"] = tokeniser.energy.invert(arrays["energy"][:, None])[:, 0]
    codes = tokeniser.pdg.codes
    kinds = class_index(codes)
    names = {
        "charge": [f"{charge:+d}" for charge in CHARGES],
        "pdg": [CLASSES[kind].replace("_", " ") for kind in kinds],
    }
    if len(set(kinds.tolist())) < len(codes):  # a code does not stand for all particles of its class
        names["pdg"] = [name_of(code) for code in codes]
    classes: dict[str, tuple[str, ...]] = {}
    for name, value in arrays.items():
        head = name.removeprefix("probability.")
        if head in names:
            special = SPECIAL[: value.shape[1] - len(names[head])]
            classes[name] = (*(special if len(special) != 1 else ("special",)), *names[head])
        elif head == "kind":
            classes[name] = SPECIAL
    selection = select(event, tokeniser.config)
    return Explanation(
        cells=selection.tokens.hits[0],
        hits=selection.hits[0],
        classes=classes,
        first_cell=0 if reconstructor.gives_links else 2,
        arrays=arrays,
    )

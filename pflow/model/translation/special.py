"""Three treatments of the special tokens pad, bos and eos with one interface.

Each defines how an input token is marked, which heads exist beside charge and PDG, what the losses ignore and what ends
a sequence. They have no weights. Letters: B batch, T target particles, N tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from pflow.data.batch import Target

__all__ = [
    "BOS",
    "EOS",
    "IGNORE",
    "PAD",
    "SAMPLE",
    "SPECIAL",
    "Choice",
    "Choose",
    "Flags",
    "Kind",
    "Learned",
    "SpecialTokens",
    "kind_of_input",
    "kind_of_next",
    "special_tokens",
]

PAD, BOS, EOS, SAMPLE = range(4)
IGNORE = -100  # the label that torch's cross-entropy ignores

Choose = Callable[[Tensor], Tensor]  # logits [B, V] -> int64 [B]


class Choice(NamedTuple):
    """The next token of each event.

    Parameters
    ----------
    ended : bool [B]
        The sequence has ended; the other fields then have no meaning.
    charge, pdg : int64 [B], physical indices from 0
    score : float32 [B], probability of `pdg` among the physical classes
    """

    ended: Tensor
    charge: Tensor
    pdg: Tensor
    score: Tensor


class SpecialTokens(Protocol):
    """The interface. `kind` is int64 [...]: pad 0, bos 1, eos 2, sample 3."""

    @property
    def offset(self) -> int:
        """Index of the first physical class in the charge and PDG vocabularies."""

    @property
    def n_marks(self) -> int:
        """Numbers appended to the features of each input token."""

    @property
    def vectors(self) -> bool:
        """Whether bos and eos are learned vectors in place of an embedded token."""

    @property
    def heads(self) -> Mapping[str, int]:
        """Classifying heads beside charge and PDG, with their number of classes."""

    def index(self, value: Tensor, kind: Tensor) -> Tensor:
        """Vocabulary index of a token with physical index `value`; both int64 [...]."""

    def marks(self, kind: Tensor) -> Tensor:
        """Numbers that mark a token, float32 [..., n_marks]."""

    def labels(self, target: Target) -> dict[str, Tensor]:
        """Target of each classifying head, int64 [B, T + 1]; `IGNORE` where it has no loss."""

    def choose(self, prediction: Mapping[str, Tensor], choose: Choose) -> Choice:
        """Next tokens from the heads' logits [B, V], each chosen by `choose`; pad and bos are never candidates."""


def kind_of_input(mask: Tensor) -> Tensor:
    """Kinds of the decoder's input, bos and the particles: bool [B, T] to int64 [B, T + 1]."""
    return functional.pad(mask * SAMPLE, (1, 0), value=BOS)


def kind_of_next(mask: Tensor) -> Tensor:
    """Kinds of the decoder's output, the particles and eos: bool [B, T] to int64 [B, T + 1]."""
    here = functional.pad(mask, (0, 1), value=False)
    before = functional.pad(mask, (1, 0), value=True)
    return here * SAMPLE + (before & ~here) * EOS


def _next_value(value: Tensor) -> Tensor:
    return functional.pad(value, (0, 1))  # [B, T] -> [B, T + 1]


def _choose_physical(charge: Tensor, pdg: Tensor, ended: Tensor, choose: Choose) -> Choice:
    return _choose_pdg(choose(charge), pdg, ended, choose)


def _choose_pdg(charge: Tensor, pdg: Tensor, ended: Tensor, choose: Choose) -> Choice:
    chosen = choose(pdg)
    score = pdg.float().softmax(-1).gather(-1, chosen[:, None]).squeeze(-1)
    return Choice(ended, charge, chosen, score)


class Flags:
    """Version 1 of the paper: two binary features a token, three special classes in each vocabulary.

    Sample (0, 0), pad (0, 1), eos (1, 0), bos (1, 1); pad is class 0, bos 1, eos 2, physical values follow from 3. The
    charge head ends the sequence with the class eos. Pads are ignored by the losses.
    """

    offset = 3
    n_marks = 2
    vectors = False
    heads: Mapping[str, int] = {}

    def index(self, value: Tensor, kind: Tensor) -> Tensor:
        """Three classes behind the special ones, whose indices are their kinds."""
        return torch.where(kind == SAMPLE, value + self.offset, kind)

    def marks(self, kind: Tensor) -> Tensor:
        """The two flags: bos or eos, and pad or bos."""
        return torch.stack([(kind == BOS) | (kind == EOS), (kind == BOS) | (kind == PAD)], dim=-1).float()

    def labels(self, target: Target) -> dict[str, Tensor]:
        """Charge and PDG, where eos is a class."""
        kind = kind_of_next(target.mask)
        values = {"charge": target.charge, "pdg": target.pdg}
        return {
            name: self.index(_next_value(value), kind).masked_fill(kind == PAD, IGNORE)
            for name, value in values.items()
        }

    def choose(self, prediction: Mapping[str, Tensor], choose: Choose) -> Choice:
        """The charge head decides between eos and the physical charges."""
        charge = choose(prediction["charge"][:, EOS:])
        return _choose_pdg((charge - 1).clamp(min=0), prediction["pdg"][:, self.offset :], charge == 0, choose)


class Kind:
    """Version 2 of the paper: one integer a token, given as one of four, and one special class in each vocabulary.

    A fourth head predicts the kind of the next token (pad ignored) and alone ends the sequence; the charge and PDG
    losses ignore the special class.
    """

    offset = 1
    n_marks = 4
    vectors = False
    heads: Mapping[str, int] = {"kind": 4}

    def index(self, value: Tensor, kind: Tensor) -> Tensor:
        """Physical classes from 1; every special token is class 0."""
        return torch.where(kind == SAMPLE, value + self.offset, 0)

    def marks(self, kind: Tensor) -> Tensor:
        """One of four."""
        return functional.one_hot(kind, 4).float()

    def labels(self, target: Target) -> dict[str, Tensor]:
        """Charge and PDG on particles only, and the kind."""
        kind = kind_of_next(target.mask)
        values = {"charge": target.charge, "pdg": target.pdg}
        physical = {
            name: (_next_value(value) + self.offset).masked_fill(kind != SAMPLE, IGNORE)
            for name, value in values.items()
        }
        return {**physical, "kind": kind.masked_fill(kind == PAD, IGNORE)}

    def choose(self, prediction: Mapping[str, Tensor], choose: Choose) -> Choice:
        """The kind head decides between eos and sample."""
        ended = choose(prediction["kind"][:, EOS:]) == 0
        return _choose_physical(
            prediction["charge"][:, self.offset :], prediction["pdg"][:, self.offset :], ended, choose
        )


class Learned:
    """Ours: bos and eos are learned vectors, vocabularies are physical only and one head says go on (0) or stop (1)."""

    offset = 0
    n_marks = 0
    vectors = True
    heads: Mapping[str, int] = {"stop": 2}

    def index(self, value: Tensor, kind: Tensor) -> Tensor:
        """The physical index itself; 0 for a special token, whose embedding is replaced or never seen."""
        return torch.where(kind == SAMPLE, value, 0)

    def marks(self, kind: Tensor) -> Tensor:
        """None, [..., 0]."""
        return torch.empty((*kind.shape, 0), device=kind.device)

    def labels(self, target: Target) -> dict[str, Tensor]:
        """Charge and PDG on particles only, and whether to stop."""
        kind = kind_of_next(target.mask)
        values = {"charge": target.charge, "pdg": target.pdg}
        physical = {name: _next_value(value).masked_fill(kind != SAMPLE, IGNORE) for name, value in values.items()}
        return {**physical, "stop": (kind == EOS).long().masked_fill(kind == PAD, IGNORE)}

    def choose(self, prediction: Mapping[str, Tensor], choose: Choose) -> Choice:
        """The stop head decides."""
        return _choose_physical(prediction["charge"], prediction["pdg"], choose(prediction["stop"]) == 1, choose)


SPECIAL: Mapping[str, type[SpecialTokens]] = {"flags": Flags, "kind": Kind, "learned": Learned}


def special_tokens(name: str) -> SpecialTokens:
    """Look up the treatment called `name`.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    if name not in SPECIAL:
        raise ValueError(f"special: '{name}' is not one of {sorted(SPECIAL)}")
    return SPECIAL[name]()

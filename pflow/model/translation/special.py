"""The first paper's two treatments of the special tokens pad, bos and eos.

Each defines how an input token is marked, which heads exist beside charge and PDG, what the losses ignore and what ends
a sequence. They have no weights. Letters: B batch, T target particles, V vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pflow.data.batch import Target

PAD, BOS, EOS, SAMPLE = range(4)
IGNORE = -100  # the label that torch's cross-entropy ignores


class NextToken(NamedTuple):
    """The next token of each event."""

    ended: Tensor  # bool [B], the sequence has ended; the other fields then have no meaning
    charge: Tensor  # int64 [B], physical index from 0, as pdg
    pdg: Tensor
    score: Tensor  # float32 [B], probability of `pdg` among the physical classes


def kind_of_input(mask: Tensor) -> Tensor:
    """Kinds of the decoder's input, bos and the particles: bool [B, T] to int64 [B, T + 1]."""
    return functional.pad(mask * SAMPLE, (1, 0), value=BOS)


def kind_of_next(mask: Tensor) -> Tensor:
    """Kinds of the decoder's output, the particles and eos: bool [B, T] to int64 [B, T + 1]."""
    here = functional.pad(mask, (0, 1), value=False)
    before = functional.pad(mask, (1, 0), value=True)
    return here * SAMPLE + (before & ~here) * EOS


class SpecialTokens(ABC):
    """What both treatments have in common. `kind` is int64 [...]: pad 0, bos 1, eos 2, sample 3."""

    offset: ClassVar[int]
    """Index of the first physical class in the charge and PDG vocabularies."""
    n_marks: ClassVar[int]
    """Numbers appended to the features of each input token."""
    heads: ClassVar[Mapping[str, int]] = {}
    """Classifying heads beside charge and PDG, with their number of classes."""
    end: ClassVar[str]
    """Head whose class `EOS` ends the sequence; its classes before that one are never chosen."""

    @abstractmethod
    def index(self, value: Tensor, kind: Tensor) -> Tensor:
        """Vocabulary index of a token with physical index `value`; both int64 [...]."""

    @abstractmethod
    def marks(self, kind: Tensor) -> Tensor:
        """Numbers that mark a token, float32 [..., n_marks]."""

    def labels(self, target: Target) -> dict[str, Tensor]:
        """Target of each classifying head, int64 [B, T + 1]; `IGNORE` where it has no loss."""
        kind = kind_of_next(target.mask)
        # Charge and PDG learn the end only where no head of its own does.
        ignored = kind != SAMPLE if self.heads else kind == PAD
        values = {"charge": target.charge, "pdg": target.pdg}
        labels = {name: self.index(functional.pad(value, (0, 1)), kind) for name, value in values.items()}
        return {
            **{name: label.masked_fill(ignored, IGNORE) for name, label in labels.items()},
            **{name: kind.masked_fill(kind == PAD, IGNORE) for name in self.heads},
        }

    def choose(self, prediction: Mapping[str, Tensor], *, eos_threshold: float = 0.5) -> NextToken:
        """Next tokens from the heads' logits [B, V], each the most probable.

        The sequence ends where eos is chosen. A threshold other than 0.5 moves its logit by the logit of the threshold,
        so that of eos and one other class eos is the most probable if its probability is above the threshold.
        """
        logits = prediction[self.end][:, EOS:]
        if eos_threshold != 0.5:
            shift = -math.inf if eos_threshold == 1 else math.log1p(-eos_threshold) - math.log(eos_threshold)
            logits = torch.cat([logits[:, :1] + shift, logits[:, 1:]], dim=-1)
        end = logits.argmax(-1)  # 0: the sequence ends
        pdg_logits = prediction["pdg"][:, self.offset :]
        if self.end == "charge":  # its physical classes follow eos
            charge = (end - 1).clamp(min=0)
        else:
            charge = prediction["charge"][:, self.offset :].argmax(-1)
        pdg = pdg_logits.argmax(-1)
        score = pdg_logits.float().softmax(-1).gather(-1, pdg[:, None]).squeeze(-1)
        return NextToken(end == 0, charge, pdg, score)


class Flags(SpecialTokens):
    """Version 1 of the paper: two binary features a token, three special classes in each vocabulary.

    Sample (0, 0), pad (0, 1), eos (1, 0), bos (1, 1); pad is class 0, bos 1, eos 2, physical values follow from 3. The
    charge head ends the sequence with the class eos. Pads are ignored by the losses.
    """

    offset = 3
    n_marks = 2
    end = "charge"

    def index(self, value: Tensor, kind: Tensor) -> Tensor:
        """Three classes behind the special ones, whose indices are their kinds."""
        return torch.where(kind == SAMPLE, value + self.offset, kind)

    def marks(self, kind: Tensor) -> Tensor:
        """The two flags: bos or eos, and pad or bos."""
        return torch.stack([(kind == BOS) | (kind == EOS), (kind == BOS) | (kind == PAD)], dim=-1).float()


class Kind(SpecialTokens):
    """Version 2 of the paper: one integer a token, given as one of four, and one special class in each vocabulary.

    A fourth head predicts the kind of the next token (pad ignored) and alone ends the sequence; the charge and PDG
    losses ignore the special class.
    """

    offset = 1
    n_marks = 4
    heads = {"kind": 4}  # noqa: RUF012
    end = "kind"

    def index(self, value: Tensor, kind: Tensor) -> Tensor:
        """Physical classes from 1; every special token is class 0."""
        return torch.where(kind == SAMPLE, value + self.offset, 0)

    def marks(self, kind: Tensor) -> Tensor:
        """One of four."""
        return functional.one_hot(kind, 4).float()


SPECIAL: Mapping[str, type[SpecialTokens]] = {"flags": Flags, "kind": Kind}
"""The treatments by their names in the configuration."""

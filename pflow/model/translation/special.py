"""The first paper's two treatments of the special tokens pad, bos and eos.

Each defines how an input token is marked, which heads exist beside charge and PDG, what the losses ignore and what ends
a sequence. They have no weights. Letters: B batch, T target particles, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple

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
    is_particle = functional.pad(mask, (0, 1), value=False)
    before = functional.pad(mask, (1, 0), value=True)
    return is_particle * SAMPLE + (before & ~is_particle) * EOS


@functools.cache
def _on_device(rows: tuple[tuple[float, ...], ...], device: torch.device) -> Tensor:
    """A constant, copied to a device once, to avoid a GPU synchronisation at each use."""
    with torch.inference_mode(False):  # training uses it, too
        return torch.tensor(rows, device=device)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """One of the two treatments. `kind` is int64 [...]: pad 0, bos 1, eos 2, sample 3."""

    offset: int  # index of the first physical class in the charge and PDG vocabularies
    marks_of_kinds: tuple[tuple[float, ...], ...]  # appended to the features of each input token, by its kind
    heads: Mapping[str, int] = dataclasses.field(default_factory=dict)  # beside charge and PDG: number of classes
    end: str  # head whose class `EOS` ends the sequence; its classes before that one are never chosen

    def index(self, value: Tensor, kind: Tensor) -> Tensor:
        """Vocabulary index of a token with physical index `value`, of special ones their kind; all int64 [...]."""
        return torch.where(kind == SAMPLE, value + self.offset, kind.clamp(max=self.offset - 1))

    def marks(self, kind: Tensor) -> Tensor:
        """Numbers that mark a token, float32 [..., marks]."""
        return _on_device(self.marks_of_kinds, kind.device)[kind]

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

        The sequence ends where the probability of eos, among it and the particles, reaches the threshold.
        """
        end = prediction[self.end][:, EOS:].softmax(-1)[:, 0]
        charge, pdg_logits = (prediction[name][:, self.offset :] for name in ("charge", "pdg"))
        pdg = pdg_logits.argmax(-1)
        score = pdg_logits.float().softmax(-1).gather(-1, pdg[:, None]).squeeze(-1)
        return NextToken(end >= eos_threshold, charge.argmax(-1), pdg, score)


SPECIAL: Mapping[str, SpecialTokens] = {
    # The first one: two flags a token (bos or eos; bos or pad), and three special classes in each vocabulary, whose
    # indices are their kinds. The charge head ends the sequence.
    "flags": SpecialTokens(offset=3, marks_of_kinds=((0.0, 1.0), (1.0, 1.0), (1.0, 0.0), (0.0, 0.0)), end="charge"),
    # The later one: one of four a token, and one special class in each vocabulary, which the losses ignore. A fourth
    # head predicts the kind of the next token and alone ends the sequence.
    "kind": SpecialTokens(
        offset=1,
        marks_of_kinds=((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0)),
        heads={"kind": 4},
        end="kind",
    ),
}
"""The treatments by their names in the configuration."""

"""Vocabularies: charge and |PDG| to indices from 0 and back. Special tokens are the model's, not part of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError
from pflow.physics.arrays import Index, Mask
from pflow.physics.pdg import CLASS_PDG, CLASSES, class_index, class_of

CHARGES = (-1, 0, 1)  # the charge vocabulary, in e. Index 0 is -1, index 1 is 0, index 2 is +1

NEXT_CLASS = {
    "charged_hadron": ("muon", "electron", "neutral_hadron", "photon"),
    "neutral_hadron": ("photon", "charged_hadron", "electron", "muon"),
    "photon": ("neutral_hadron", "electron", "charged_hadron", "muon"),
    "electron": ("muon", "charged_hadron", "photon", "neutral_hadron"),
    "muon": ("charged_hadron", "electron", "neutral_hadron", "photon"),
}
"""Which classes replace one that is not in the training files, in this order: first those with the same charge (0 or
not), then those with the most similar showers."""


def charge_index(charge: npt.ArrayLike) -> Index:
    """Index into `CHARGES` of each charge in e, same shape; of a multiple charge only the sign is kept."""
    values = np.asarray(charge, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ConfigError("a charge is not a finite number; the vocabulary knows -1, 0 and +1")
    return np.sign(values).astype(np.int64) + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PdgVocabulary:
    """The |PDG| codes of the training files, increasing, and how often each occurs in training.

    With `coarse` the codes stand for the five classes (`pflow.physics.pdg.CLASS_PDG`), which makes every code known.
    Else a code that is not in the vocabulary becomes the most frequent one of its class (of equally frequent ones the
    smallest), or of the first class of `NEXT_CLASS` that the vocabulary has.
    """

    codes: tuple[int, ...]
    counts: tuple[int, ...]
    coarse: bool = False

    def __post_init__(self) -> None:
        if not self.codes:
            raise ConfigError("a PDG vocabulary needs at least one code: were there no target particles to fit on?")
        if len(self.counts) != len(self.codes) or list(self.codes) != sorted(set(self.codes)) or self.codes[0] < 0:
            raise ConfigError(f"a PDG vocabulary needs increasing codes above 0 with a count each, found {self.codes}")

    @classmethod
    def from_counts(cls, counts: Mapping[int, int], *, coarse: bool = False) -> PdgVocabulary:
        """From the number of each PDG code in training; with `coarse`, the codes of a class count together."""
        seen: Counter[int] = Counter(dict.fromkeys(CLASS_PDG.values(), 0) if coarse else {})
        for code, count in counts.items():
            seen[CLASS_PDG[class_of(int(code))] if coarse else abs(int(code))] += int(count)
        codes = tuple(sorted(seen))
        return cls(codes=codes, counts=tuple(seen[code] for code in codes), coarse=coarse)

    def __len__(self) -> int:
        return len(self.codes)

    def encode(self, pdg: npt.ArrayLike) -> tuple[Index, Mask]:
        """Index of each code's |PDG|, and whether the code is unknown and was replaced; both of its shape."""
        absolute, codes = np.abs(np.asarray(pdg, dtype=np.int64)), np.array(self.codes, dtype=np.int64)
        if self.coarse:
            absolute = np.array([CLASS_PDG[name] for name in CLASSES])[class_index(absolute)]
        index = np.minimum(np.searchsorted(codes, absolute), len(codes) - 1)
        unknown = codes[index] != absolute
        if unknown.any():
            rising = sorted(range(len(self)), key=lambda i: (self.counts[i], -self.codes[i]))
            most_frequent = {class_of(self.codes[i]): i for i in rising}
            orders = [(name, *NEXT_CLASS[name]) for name in CLASSES]
            stand_in = [next(most_frequent[name] for name in order if name in most_frequent) for order in orders]
            index = np.where(unknown, np.array(stand_in)[class_index(absolute)], index)
        return index, unknown

    def decode(self, index: npt.ArrayLike) -> Index:
        """|PDG| of each index, same shape."""
        return np.array(self.codes, dtype=np.int64)[np.asarray(index, dtype=np.int64)]


def unknown_pdg_message(unknown: Counter[int]) -> str:
    """A warning of PDG codes that are not in the vocabulary, with their numbers."""
    codes = ", ".join(f"{code} ({count} times)" for code, count in sorted(unknown.items()))
    return f"{unknown.total()} particles have codes that are not in the vocabulary and get one of their class: {codes}"

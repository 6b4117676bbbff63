"""Vocabularies: charge and |PDG| to class indices and back. Physical values only, counted from 0."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError
from pflow.physics.pdg import CLASS_PDG, CLASSES, charge_of, class_index, class_of

__all__ = ["CHARGES", "NEXT_CLASS", "PdgVocabulary", "charge_index", "signed_pdg"]

CHARGES = (-1, 0, 1)
"""The charge vocabulary, in e. Index 0 is -1, index 1 is 0, index 2 is +1."""

NEXT_CLASS = {
    "charged_hadron": ("muon", "electron", "neutral_hadron", "photon"),
    "neutral_hadron": ("photon", "charged_hadron", "electron", "muon"),
    "photon": ("neutral_hadron", "electron", "charged_hadron", "muon"),
    "electron": ("muon", "charged_hadron", "photon", "neutral_hadron"),
    "muon": ("charged_hadron", "electron", "neutral_hadron", "photon"),
}
"""Which class stands in for one that training never showed: first the classes with the same charge (0 or not), then
the one whose showers look most alike."""

Index = npt.NDArray[np.int64]


def charge_index(charge: npt.ArrayLike) -> Index:
    """Index into `CHARGES` of each charge in e, same shape; of a multiple charge only the sign is kept.

    Raises
    ------
    ConfigError
        A charge is not a finite number.
    """
    values = np.asarray(charge, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ConfigError("a charge is not a finite number; the vocabulary knows -1, 0 and +1")
    return np.sign(values).astype(np.int64) + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PdgVocabulary:
    """The |PDG| codes that training showed, sorted, with how often each was seen.

    Parameters
    ----------
    codes
        |PDG|, rising.
    counts
        How often each was seen in training.
    coarse
        Whether the codes stand for the five particle-flow classes (`pflow.physics.pdg.CLASS_PDG`); then no code is unknown.

    Notes
    -----
    A code that is not in the vocabulary becomes the most frequent one of its class (of equally frequent ones the
    smallest). If training showed none of that class, the classes of `NEXT_CLASS` are tried in their order.
    """

    codes: tuple[int, ...]
    counts: tuple[int, ...]
    coarse: bool = False

    def __post_init__(self) -> None:
        if not self.codes:
            raise ConfigError("a PDG vocabulary needs at least one code: were there no target particles to fit on?")
        if len(self.counts) != len(self.codes) or any(count < 0 for count in self.counts):
            raise ConfigError("a PDG vocabulary needs a count of at least 0 for each code")
        if list(self.codes) != sorted(set(self.codes)) or self.codes[0] < 0:
            raise ConfigError(
                f"the codes of a PDG vocabulary must be distinct, positive and rising, found {self.codes}"
            )

    @classmethod
    def from_counts(cls, counts: Mapping[int, int], *, coarse: bool = False) -> PdgVocabulary:
        """From how often each |PDG| was seen; with `coarse`, the counts of a class are added up.

        Raises
        ------
        ConfigError
            Nothing was seen and the vocabulary is not coarse.
        """
        seen = {abs(int(code)): 0 for code in counts}
        if coarse:
            seen = dict.fromkeys(CLASS_PDG.values(), 0)
        for code, count in counts.items():
            key = CLASS_PDG[class_of(int(code))] if coarse else abs(int(code))
            seen[key] += int(count)
        codes = tuple(sorted(seen))
        return cls(codes=codes, counts=tuple(seen[code] for code in codes), coarse=coarse)

    def __len__(self) -> int:
        return len(self.codes)

    def encode(self, pdg: npt.ArrayLike) -> tuple[Index, npt.NDArray[np.bool_]]:
        """Index of each code's |PDG|, and whether the code was unknown and went by its class; both of its shape."""
        absolute = np.abs(np.asarray(pdg, dtype=np.int64))
        codes = np.array(self.codes, dtype=np.int64)
        if self.coarse:
            representative = np.array([CLASS_PDG[name] for name in CLASSES])[class_index(absolute)]
            return np.searchsorted(codes, representative), np.zeros(absolute.shape, dtype=np.bool_)
        index = np.minimum(np.searchsorted(codes, absolute), len(codes) - 1)
        unknown = codes[index] != absolute
        if unknown.any():
            stand_in = np.array([self._stand_in(name) for name in CLASSES])
            index = np.where(unknown, stand_in[class_index(absolute)], index)
        return index, unknown

    def decode(self, index: npt.ArrayLike) -> Index:
        """|PDG| of each index, same shape.

        Raises
        ------
        ConfigError
            An index outside the vocabulary.
        """
        indices = np.asarray(index, dtype=np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < len(self)):
            raise ConfigError(f"PDG index {indices.min()} to {indices.max()} outside the vocabulary of {len(self)}")
        return np.array(self.codes, dtype=np.int64)[indices]

    def _stand_in(self, name: str) -> int:
        """Index of the code that stands for a class: the most frequent of it, else of the next class that has one."""
        for candidate in (name, *NEXT_CLASS[name]):
            members = [i for i, code in enumerate(self.codes) if class_of(code) == candidate]
            if members:
                return max(members, key=lambda i: (self.counts[i], -self.codes[i]))
        raise AssertionError("every code belongs to a class")  # pragma: no cover

    def to_dict(self) -> dict[str, Any]:
        """Plain data from which `from_dict` builds an equal vocabulary."""
        return {"codes": list(self.codes), "counts": list(self.counts), "coarse": self.coarse}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> PdgVocabulary:
        """Build from plain data.

        Raises
        ------
        ConfigError
            A field is missing or makes no vocabulary.
        """
        try:
            codes = tuple(int(code) for code in content["codes"])
            counts = tuple(int(count) for count in content["counts"])
            return cls(codes=codes, counts=counts, coarse=bool(content["coarse"]))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"not a PDG vocabulary: {error!r}") from error


def signed_pdg(absolute: npt.ArrayLike, charge: npt.ArrayLike) -> tuple[Index, npt.NDArray[np.float32]]:
    """Signed PDG code and charge in e, from |PDG| and a predicted charge, made consistent.

    The sign of the code is the one whose charge has the predicted sign (so 11 with charge +1 is -11). Where the two
    contradict each other the identity wins: a neutral |PDG| has charge 0 whatever was predicted, and a charged |PDG|
    with a predicted charge of 0 is the particle, not the antiparticle. Neutral codes stay positive: neither a
    calorimeter nor the vocabulary tells an antineutron from a neutron.

    Parameters
    ----------
    absolute, charge
        |PDG| and predicted charge, of one shape.

    Returns
    -------
    pdg : int64
    charge : float32, e
    """
    codes, inverse = np.unique(np.asarray(absolute, dtype=np.int64), return_inverse=True)
    own = np.array([charge_of(int(code)) for code in codes], dtype=np.float64)[inverse]
    opposite = np.sign(own) * np.sign(np.asarray(charge, dtype=np.float64)) < 0
    sign = np.where(opposite, -1, 1)
    return sign * codes[inverse], (sign * own).astype(np.float32)

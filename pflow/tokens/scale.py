"""Normalisation of features: a transform (log10 or none), then mean 0 and standard deviation 1; and its inverse."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, check_choice

__all__ = ["LOG_FLOOR", "TRANSFORMS", "Moments", "Normaliser"]

TRANSFORMS = ("identity", "log10")
"""Names of the transforms."""

LOG_FLOOR = 1e-6
"""Values below it (GeV, or mm) count as it before log10, so that an empty cell gives -6 and not minus infinity."""

Array = npt.NDArray[np.floating[Any]]


def _check_transforms(transforms: Sequence[str]) -> None:
    for transform in transforms:
        check_choice(transform, TRANSFORMS, "transform")


def _transformed(values: npt.ArrayLike, transforms: Sequence[str]) -> npt.NDArray[np.float64]:
    """Each column by its transform, float64 [N, F]."""
    columns = np.array(values, dtype=np.float64)
    if columns.ndim != 2 or columns.shape[1] != len(transforms):
        raise ConfigError(f"expected values of shape [N, {len(transforms)}], found {list(columns.shape)}")
    for i, transform in enumerate(transforms):
        if transform == "log10":
            columns[:, i] = np.log10(np.maximum(columns[:, i], LOG_FLOOR))
    return columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normaliser:
    """x -> (transform(x) - mean) / std, feature by feature.

    Parameters
    ----------
    names
        Names of the features, in the order of the columns.
    transforms
        ``identity`` or ``log10`` for each.
    mean, std
        Of the transformed values in training, in their units; std above 0.
    """

    names: tuple[str, ...]
    transforms: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.transforms) == len(self.mean) == len(self.std):
            raise ConfigError(f"normaliser of {', '.join(self.names)}: its fields differ in length")
        _check_transforms(self.transforms)
        if not all(np.isfinite(m) and np.isfinite(s) and s > 0 for m, s in zip(self.mean, self.std, strict=True)):
            raise ConfigError(f"normaliser of {', '.join(self.names)}: expected finite means and deviations above 0")

    def apply(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Normalise physical values.

        Parameters
        ----------
        values
            [N, F], in the units of the features.

        Returns
        -------
        float32 [N, F]

        Raises
        ------
        ConfigError
            The number of columns is not that of the features.
        """
        return ((_transformed(values, self.transforms) - self.mean) / self.std).astype(np.float32)

    def invert(self, normalised: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Physical values from normalised ones: the inverse of `apply` for values above the floor of log10.

        Parameters
        ----------
        normalised
            [N, F].

        Returns
        -------
        float64 [N, F], in the units of the features

        Raises
        ------
        ConfigError
            The number of columns is not that of the features.
        """
        columns = np.asarray(normalised, dtype=np.float64)
        if columns.ndim != 2 or columns.shape[1] != len(self.names):
            raise ConfigError(f"expected values of shape [N, {len(self.names)}], found {list(columns.shape)}")
        columns = columns * self.std + self.mean
        for i, transform in enumerate(self.transforms):
            if transform == "log10":
                columns[:, i] = 10.0 ** columns[:, i]
        return columns

    def to_dict(self) -> dict[str, Any]:
        """Plain data from which `from_dict` builds an equal normaliser."""
        return {key: list(value) for key, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Normaliser:
        """Build from plain data.

        Raises
        ------
        ConfigError
            A field is missing or of another type.
        """
        try:
            return cls(
                names=tuple(str(name) for name in content["names"]),
                transforms=tuple(str(transform) for transform in content["transforms"]),
                mean=tuple(float(mean) for mean in content["mean"]),
                std=tuple(float(std) for std in content["std"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not a normaliser: {error}") from error


class Moments:
    """Count, mean and sum of squared deviations of transformed features, in one pass and constant memory.

    Chunks are merged by the pairwise update of T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a
    pairwise algorithm for computing sample variances", COMPSTAT 1982, so the result is that of one pass over all
    values up to rounding, whatever the chunks.

    Parameters
    ----------
    names, transforms
        As of `Normaliser`.
    """

    def __init__(self, names: Sequence[str], transforms: Sequence[str]) -> None:
        if len(names) != len(transforms):
            raise ConfigError(f"{len(names)} features need as many transforms, found {len(transforms)}")
        _check_transforms(transforms)
        self.names = tuple(names)
        self.transforms = tuple(transforms)
        self.count = 0
        self.mean = np.zeros(len(self.names))
        self.squares = np.zeros(len(self.names))

    def update(self, values: npt.ArrayLike) -> Moments:
        """Take in physical values [N, F]; return self.

        Raises
        ------
        ConfigError
            The number of columns is not that of the features, or a value is not finite.
        """
        columns = _transformed(values, self.transforms)
        bad = np.flatnonzero(~np.isfinite(columns).all(axis=0))
        if len(bad):
            names = ", ".join(self.names[i] for i in bad)
            raise ConfigError(f"cannot fit the normalisation of {names}: not every value is a finite number")
        if len(columns):
            mean = columns.mean(axis=0)
            self._merge(len(columns), mean, ((columns - mean) ** 2).sum(axis=0))
        return self

    def merge(self, other: Moments) -> Moments:
        """Take in what another one has seen; return self.

        Raises
        ------
        ConfigError
            The other one is of other features.
        """
        if (other.names, other.transforms) != (self.names, self.transforms):
            raise ConfigError(f"cannot merge moments of {', '.join(other.names)} into {', '.join(self.names)}")
        self._merge(other.count, other.mean, other.squares)
        return self

    def _merge(self, count: int, mean: Array, squares: Array) -> None:
        total = self.count + count
        if count == 0:
            return
        delta = mean - self.mean
        self.squares = self.squares + squares + delta**2 * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.count = total

    def result(self) -> Normaliser:
        """The normaliser. A feature that never changed gets a standard deviation of 1, as does one never seen."""
        variance = self.squares / max(self.count, 1)
        std = np.sqrt(variance)
        constant = std <= 1e-7 * np.maximum(np.abs(self.mean), 1.0)
        return Normaliser(
            names=self.names,
            transforms=self.transforms,
            mean=tuple(float(mean) for mean in self.mean),
            std=tuple(float(s) for s in np.where(constant, 1.0, std)),
        )

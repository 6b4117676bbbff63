"""Normalisation of features: a transform (log10 or none), then mean 0 and standard deviation 1; and its inverse."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, check_choice
from pflow.physics.arrays import namespace

TRANSFORMS = ("identity", "log10")
"""Names of the transforms."""

Floats = npt.NDArray[np.float64]

LOG_FLOOR = 1e-6
"""Smaller values (GeV or mm) are raised to it before log10: an empty cell gives -6 and not minus infinity."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normaliser:
    """x -> (transform(x) - mean) / std, feature by feature; transforms are ``identity`` or ``log10``."""

    names: tuple[str, ...]
    transforms: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for transform in self.transforms:
            check_choice(transform, TRANSFORMS, "transform")
        if not all(np.isfinite(m) and np.isfinite(s) and s > 0 for m, s in zip(self.mean, self.std, strict=True)):
            raise ConfigError(f"normaliser of {', '.join(self.names)}: expected finite means and deviations above 0")

    def apply(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Normalise physical values [N, F] to float32 [N, F]; `ConfigError` for another number of columns."""
        return self.apply_to(list(_columns(values, len(self.names)).T))

    def apply_to(self, columns: Sequence[Floats]) -> npt.NDArray[np.float32]:
        """The same of F columns, float64 [N] each."""
        return np.stack(list(self.normalised(columns)), axis=1, dtype=np.float32)

    def normalised(self, columns: Sequence[Any]) -> Iterator[Any]:
        """The same one by one; of arrays of NumPy or tensors."""
        for values, transform, mean, std in zip(columns, self.transforms, self.mean, self.std, strict=True):
            centred = (_log10(values) if transform == "log10" else values) - mean
            centred /= std
            yield centred

    def invert(self, normalised: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Physical values, float64 [N, F], from normalised ones: the inverse of `apply` above the floor of log10."""
        columns = _columns(normalised, len(self.names)) * self.std + self.mean
        for i, transform in enumerate(self.transforms):
            if transform == "log10":
                columns[:, i] = 10.0 ** columns[:, i]
        return columns


class Moments:
    """Count, mean and sum of squared deviations of transformed features, in one pass and constant memory.

    Chunks are joined by the pairwise update of T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a
    pairwise algorithm for computing sample variances", COMPSTAT 1982: the result does not depend on the chunks, up to
    rounding.
    """

    def __init__(self, names: Sequence[str], transforms: Sequence[str]) -> None:
        self.names = tuple(names)
        self.transforms = tuple(transforms)
        self.count = 0
        self.mean = np.zeros(len(self.names))
        self.squares = np.zeros(len(self.names))

    def update(self, values: npt.ArrayLike) -> Moments:
        """Add physical values [N, F]; return self. A value that is not finite is a `ConfigError`."""
        columns = _transform(values, self.transforms)
        not_finite = np.flatnonzero(~np.isfinite(columns).all(axis=0))
        if len(not_finite):
            names = ", ".join(self.names[i] for i in not_finite)
            raise ConfigError(f"cannot fit the normalisation of {names}: not every value is a finite number")
        if len(columns):
            mean = columns.mean(axis=0)
            self._join(len(columns), mean, ((columns - mean) ** 2).sum(axis=0))
        return self

    def join(self, other: Moments) -> None:
        """Add the moments of other values of the same features."""
        if other.count:
            self._join(other.count, other.mean, other.squares)

    def _join(self, count: int, mean: Floats, squares: Floats) -> None:
        delta, total = mean - self.mean, self.count + count
        self.squares = self.squares + squares + delta**2 * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.count = total

    def result(self) -> Normaliser:
        """The normaliser; the standard deviation is 1 for a feature that is constant or was never seen."""
        std = np.sqrt(self.squares / max(self.count, 1))
        constant = std <= 1e-7 * np.maximum(np.abs(self.mean), 1.0)
        return Normaliser(
            names=self.names,
            transforms=self.transforms,
            mean=tuple(self.mean.tolist()),
            std=tuple(np.where(constant, 1.0, std).tolist()),
        )


def _columns(values: npt.ArrayLike, n_features: int) -> npt.NDArray[np.float64]:
    """A copy of the values, float64 [N, F]."""
    columns = np.array(values, dtype=np.float64)
    if columns.ndim != 2 or columns.shape[1] != n_features:
        raise ConfigError(f"expected values of shape [N, {n_features}], found {list(columns.shape)}")
    return columns


def _transform(values: npt.ArrayLike, transforms: Sequence[str]) -> npt.NDArray[np.float64]:
    columns = _columns(values, len(transforms))
    for i, transform in enumerate(transforms):
        if transform == "log10":
            columns[:, i] = _log10(columns[:, i])
    return columns


def _log10(values: Any) -> Any:
    return namespace(values).log10(values.clip(LOG_FLOOR))

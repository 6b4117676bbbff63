"""Tokens to particles: charges and codes of vocabularies; energy, momentum and mass, consistent and calibrated."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, check_choice
from pflow.physics.arrays import Index, Mask, constant, double, namespace
from pflow.physics.kinematics import four_momentum_covariance, unit_vector
from pflow.physics.pdg import CLASS_PDG, CLASSES, charges, class_index, class_of, masses

CHARGES = (-1, 0, 1)  # the charge vocabulary, in e. Index 0 is -1, index 1 is 0, index 2 is +1


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
    smallest); where the vocabulary has no code of the class, of another one, if possible of the same charge (0 or not).
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
        # Of five classes each gets a code, even one that training never shows: no code is then unknown.
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
        # A code above the largest one is behind the end; its index does not matter, as it is unknown.
        index = np.minimum(np.searchsorted(codes, absolute), len(codes) - 1)
        unknown = codes[index] != absolute
        if unknown.any():
            # The dictionary below keeps the last of each class: the most frequent, of equals the smallest code.
            rising = sorted(range(len(self)), key=lambda i: (self.counts[i], -self.codes[i]))
            most_frequent = {class_of(self.codes[i]): i for i in rising}
            stand_in = [
                most_frequent[min(most_frequent, key=lambda of: (of != name, (of in CHARGED) != (name in CHARGED)))]
                for name in CLASSES
            ]
            index = np.where(unknown, np.array(stand_in)[class_index(absolute)], index)
        return index, unknown

    def decode(self, index: npt.ArrayLike) -> Index:
        """|PDG| of each index, same shape."""
        return np.array(self.codes, dtype=np.int64)[np.asarray(index, dtype=np.int64)]


def unknown_pdg_message(unknown: Counter[int]) -> str:
    """A warning of PDG codes that are not in the vocabulary, with their numbers."""
    codes = ", ".join(f"{code} ({count} times)" for code, count in sorted(unknown.items()))
    return f"{unknown.total()} particles have codes that are not in the vocabulary and get one of their class: {codes}"


REST_MOMENTUM = 1e-3  # momentum over mass of a particle whose predicted energy is below its mass; keeps its direction
NULL_DIRECTION = (0.0, 0.0, 1.0)  # direction of a particle that is predicted none


def physical_particles(
    *,
    pdg: Any,
    charge: Any,
    energy: Any,
    direction: Any,
    vocabulary: PdgVocabulary,
    pdg_probability: Any = None,
    energy_sigma: Any = None,
    direction_sigma: Any = None,
    by_track: Any = None,
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """Columns of N particles in physical units, consistent with each other; arrays, or tensors of given tensors.

    Parameters are as of `pflow.tokens.tokens.ParticleTokens`, but `energy` is in GeV, float64. Returned are ``pdg``
    int64, with the sign whose charge has the predicted sign (a neutral one stays positive: 0 is the particle);
    ``charge`` [e]; ``energy``, ``mass`` and ``momentum`` [N, 3], GeV; if the probabilities are given, ``score``, the
    code's, and ``scores`` [N, 5], of each class; if the sigmas are, ``covariance`` of the calibrated ones. With the
    `calibration` photons have calibrated energies, too. E^2 = p^2 + m^2 holds: where the predicted energy is below the
    mass, |p| is `REST_MOMENTUM` times the mass, and the energy follows from it.
    """
    xp, codes = namespace(energy), np.array(vocabulary.codes, dtype=np.int64)

    def of_code(values: npt.NDArray[Any]) -> Any:
        return constant(values, like=energy)[pdg]

    code, of_particle, mass = of_code(codes), of_code(charges(codes)), of_code(masses(codes))
    classes = of_code(class_index(codes))
    if calibration is not None and calibration.photon_response is not None:
        energy = energy * calibration.photon_response.factor(energy, classes == CLASSES.index("photon"))
    is_antiparticle = of_particle * (charge - CHARGES.index(0)) < 0
    momentum = xp.sqrt(xp.maximum(energy**2 - mass**2, (REST_MOMENTUM * mass) ** 2))
    unit = unit_vector(double(direction), null=NULL_DIRECTION)
    columns = {
        "pdg": xp.where(is_antiparticle, -code, code),
        "charge": xp.where(is_antiparticle, -of_particle, of_particle),
        "energy": xp.hypot(momentum, mass),
        "mass": mass,
        "momentum": momentum[:, None] * unit,
    }
    if pdg_probability is not None:
        probability = double(pdg_probability)
        columns["score"] = probability[xp.arange(pdg.shape[0]), pdg]
        columns["scores"] = probability @ constant(np.eye(len(CLASSES))[class_index(codes)], like=energy)
    if energy_sigma is not None and direction_sigma is not None:
        sigmas = double(energy_sigma), double(direction_sigma)
        if calibration is not None:
            sigmas = calibration.apply(*sigmas, classes, by_track, energy)
        columns["covariance"] = four_momentum_covariance(columns["energy"], mass, unit, *sigmas)
    return columns


CHARGED, WITHOUT_TRACK = ("charged_hadron", "electron", "muon"), "_without_track"

CURVES = (*CLASSES, *(name + WITHOUT_TRACK for name in CHARGED))
"""Names of curves: classes, and charged classes of particles whose momentum is not a track's."""


class _Points:
    """Base of records of two lists, points of a curve; ConfigError unless the first increases."""

    def __post_init__(self) -> None:
        (name, x), (_, y) = vars(self).items()
        if len(x) != len(y) or not len(x) or not np.isfinite([x, y]).all() or (np.diff(x) <= 0).any():
            raise ConfigError(f"calibration: expected increasing {name} and as many log_factor, found {x} and {y}")


@dataclasses.dataclass(frozen=True)
class Curve(_Points):
    """Factor on a standard deviation: `log_factor` at each increasing `log_sigma`, linear between, constant outside."""

    log_sigma: tuple[float, ...]
    log_factor: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Response(_Points):
    """Factor by energy: `log_factor` at each increasing `log_energy` (GeV), linear between, constant outside."""

    log_energy: tuple[float, ...]
    log_factor: tuple[float, ...]

    def over(self, earlier: Response) -> Response:
        """This response, and the `earlier` one below and above its energies."""
        low, high = self.log_energy[0], self.log_energy[-1]
        points = {e: f for e, f in zip(earlier.log_energy, earlier.log_factor, strict=True) if not low <= e <= high}
        points = dict(sorted((points | dict(zip(self.log_energy, self.log_factor, strict=True))).items()))
        return Response(tuple(points), tuple(points.values()))

    def factor(self, energy: Any, chosen: Any) -> Any:
        """Factors at energies, GeV, float64 [N], 1 where a particle is not `chosen`, bool [N]; arrays or tensors."""
        return _factors([None, self], energy, namespace(energy).where(chosen, 1, 0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """Curves of uncertainties by name (`CURVES`), and the photons' response; without a curve all stays as predicted.

    Charged particles with a track are measured a hundred times better than those without: in one curve of both, the
    factor would rise so steeply between them that rounding becomes a visible change. Where those without a track have
    no curve, they have the one of their class.

    `energy` is for the standard deviation of ln E, `direction` for each tangent-plane angle. `photon_response` is the
    factor on the energies of photons, and `track_energy` a further one, by the energy, on the standard deviation of
    ln E of charged particles with a track: few of them are hard, so that they hardly count in the curve of their class.
    """

    energy: Mapping[str, Curve] = dataclasses.field(default_factory=dict)
    direction: Mapping[str, Curve] = dataclasses.field(default_factory=dict)
    photon_response: Response | None = None
    track_energy: Response | None = None

    def __post_init__(self) -> None:
        for name in (*self.energy, *self.direction):
            check_choice(name, CURVES, "uncertainty curve")

    def over(self, earlier: Calibration | None) -> Calibration:
        """This calibration, with what only the `earlier` one has."""
        if earlier is None:
            return self

        def joined(ours: Response | None, before: Response | None) -> Response | None:
            return ours.over(before) if ours and before else ours or before

        return Calibration(
            energy={**earlier.energy, **self.energy},
            direction={**earlier.direction, **self.direction},
            photon_response=joined(self.photon_response, earlier.photon_response),
            track_energy=joined(self.track_energy, earlier.track_energy),
        )

    def apply(
        self, energy_sigma: Any, direction_sigma: Any, classes: Any, by_track: Any = None, energy: Any = None
    ) -> tuple[Any, Any]:
        """Calibrated sigmas of ln E and of each angle, rad, float64 [N]; arrays or tensors.

        `classes` int64 [N] are as of `pflow.physics.pdg.class_index`; `by_track` bool [N], None: all are by a track;
        `energy` float64 [N], GeV, None: without `track_energy`.
        """
        index = curve_index(classes, by_track)

        def calibrated(by_name: Mapping[str, Curve], sigma: Any) -> Any:
            curves = [by_name.get(name, by_name.get(name.removesuffix(WITHOUT_TRACK))) for name in CURVES]
            return sigma * _factors(curves, sigma, index)

        of_energy, of_direction = calibrated(self.energy, energy_sigma), calibrated(self.direction, direction_sigma)
        if self.track_energy is not None and energy is not None:
            with_track = constant(np.array([name in CHARGED for name in CURVES]), like=classes)[index]
            of_energy = of_energy * self.track_energy.factor(energy, with_track)
        return of_energy, of_direction


def curve_index(classes: Any, by_track: Any) -> Any:
    """Index into `CURVES`, int64 [N]; parameters as of `Calibration.apply`."""
    if by_track is None:
        return classes
    without = [CURVES.index(name + WITHOUT_TRACK if name in CHARGED else name) for name in CLASSES]
    return namespace(classes).where(by_track, classes, constant(np.array(without), like=classes)[classes])


def _factors(curves: Sequence[Curve | Response | None], values: Any, index: Any) -> Any:
    """Factors at the values float64 [N] of the curves that int64 `index` [N] says; None: 1."""
    xp, points = namespace(values), [((0.0,), (0.0,)) if c is None else (*vars(c).values(),) for c in curves]
    # At least two points: a curve of one is then a piece of length 0, rather than no piece.
    longest = max(2, *(len(x) for x, _ in points))
    # One array for curves of different lengths: a repeated last point is a piece of length 0, which adds nothing.
    x, y = (
        np.stack([np.pad(np.array(p[axis]), (0, longest - len(p[axis])), mode="edge") for p in points])
        for axis in (0, 1)
    )
    length = np.diff(x)
    slopes = np.diff(y) / np.where(length > 0, length, 1.0)
    # Where the pieces of each value's curve begin and end, and their slopes, [N, pieces]; the first value, [N, 1].
    begin, end, slope, first = (constant(part, like=values)[index] for part in (x[:, :-1], x[:, 1:], slopes, y[:, :1]))
    # The logarithm of 0 is minus infinity, which becomes the beginning of the curve.
    with np.errstate(divide="ignore"):
        beyond = xp.maximum(xp.minimum(xp.log(values)[:, None], end), begin) - begin
    return xp.exp(first[:, 0] + (slope * beyond).sum(1))

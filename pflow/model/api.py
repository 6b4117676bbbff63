"""The interface of all models: what they are built from, what training and decoding return, and how a file names them.

A model is a `Reconstructor`: a module that trains on a batch with targets and generates particles for a batch without.
An architecture is a folder ``pflow/model/<name>/`` whose package exports a subclass; configurations and checkpoints
name it by ``class_path`` and give its options by ``init_args``. Means, directions and log weights of hits are here
as well, since several architectures need them.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from pflow.config import from_plain
from pflow.data.batch import Batch
from pflow.errors import ConfigError, check_fields

LOG_WEIGHT = 4.0  # offset w0 of the weights max(0, w0 + ln(E_hit / E_sum)) (Awes et al. 1992, NIM A 311, 130)
MAX_PARTICLES = 2**14  # largest `DecodingConfig.max_particles`: far above any event of an e+e- collider
MAX_SIZE = 2**16  # largest width, and the like, of a network: far above any in use, and small enough to compute with
MAX_LAYERS = 512  # largest number of layers of a stack


def check_range(config: Any, interval: str, *names: str) -> None:
    """Raise ValueError, naming the field, unless it is in an interval, e.g. ``[0, 1)``, whole if an int; or None."""
    low, high = map(float, interval[1:-1].split(", "))
    for name in names:
        value, kind = getattr(config, name), type(config).__dataclass_fields__[name].type
        if value is None and "None" in kind:
            continue
        # By type, since isinstance takes True and False for whole numbers.
        if kind.startswith("int") and type(value) is not int:
            raise ValueError(f"{name}: {value!r} is not a whole number")
        if isinstance(value, bool | str | None):
            raise ValueError(f"{name}: {value!r} is not a number")
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        # Put this way round NaN is refused, too: it compares as False.
        if not (above and below):
            raise ValueError(f"{name}: {value} is not in {interval}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """Sizes and scales of a model that follow from its tokeniser."""

    n_charge: int  # number of charges (-1, 0, +1)
    n_pdg: int  # number of |PDG| codes
    hit_features: int  # features of a token of each type; 0: the type is not read
    track_features: int = 0
    tracker_hit_features: int = 0
    n_subdetectors: int = 1  # calorimeters of the detector
    masses: tuple[float, ...]  # of each |PDG| code, GeV
    charged: tuple[bool, ...]  # whether each |PDG| code is of a charged particle
    energy_mean: float  # mean and standard deviation of log10(E / GeV) of the targets
    energy_std: float
    min_energy: float = 0.0  # smallest energy of a target, GeV


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """How particles are generated; ValueError names a field out of range. An architecture with more options extends it.

    Parameters
    ----------
    max_particles
        Largest number of particles of an event, at most `MAX_PARTICLES`.
    eos_threshold
        Decoding stops when the probability of the end of the sequence reaches this value. None, in a translation: when
        the end is more probable than each other class.
    """

    max_particles: int = 150
    eos_threshold: float | None = 0.5

    def __post_init__(self) -> None:
        check_range(self, f"[1, {MAX_PARTICLES}]", "max_particles")
        check_range(self, "(0, 1]", "eos_threshold")

    def limited(self, max_particles: int) -> Self:
        """A copy that decodes at most `max_particles` particles of any event."""
        return dataclasses.replace(self, max_particles=max_particles)

    def with_candidates(self, threshold: float) -> Self:
        """A copy that also returns candidates of at least this existence; ValueError: the model has no existence."""
        raise ValueError("candidates: this model does not say how probably a particle exists")


D = TypeVar("D", bound=DecodingConfig)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of a model's losses, by name; 1 for those not given."""

    weights: dict[str, float] = dataclasses.field(default_factory=dict)

    def complete(self, names: Iterable[str]) -> dict[str, float]:
        """The weight of each loss in `names`; ValueError: a weight of another loss, negative or not finite."""
        names = tuple(names)
        check_fields(self.weights, names, "loss.weights")
        for name, weight in self.weights.items():
            if not 0.0 <= weight < float("inf"):
                raise ValueError(f"loss.weights: {weight} of '{name}' is not a finite number from 0")
        return {name: float(self.weights.get(name, 1.0)) for name in names}


def with_total(losses: Mapping[str, Tensor], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """The losses, and ``total``, their weighted sum; scalars."""
    total = torch.stack([weights[name] * loss for name, loss in losses.items()]).sum()
    return {**losses, "total": total}


def masked_mean(value: Tensor, mask: Tensor) -> Tensor:
    """Mean of float [...] where the mask is true; 0 where it is nowhere."""
    # No product with the mask: NaN in padding times 0 is NaN.
    return torch.where(mask, value, 0.0).sum() / mask.sum().clamp(min=1)


def normalise(vectors: Tensor) -> Tensor:
    """Vectors [..., 3] divided by their lengths; null vectors stay."""
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / length.clamp(min=1e-12)


def tangent_basis(direction: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors of increasing polar angle and azimuth at unit vectors float [..., 3]; on the z axis phi is y."""
    x, y, z = direction.unbind(-1)
    phi = normalise(torch.stack([-y, x + 1e-12, torch.zeros_like(z)], dim=-1))
    return torch.linalg.cross(phi, direction), phi


@dataclasses.dataclass(frozen=True)
class GeneratedParticles:
    """Decoded particles; T is the largest number of particles of an event."""

    charge: Tensor  # int64 [B, T], index into the vocabulary, from 0
    pdg: Tensor  # int64 [B, T], the same
    energy: Tensor  # float32 [B, T], log10(E / GeV), normalised
    direction: Tensor  # float32 [B, T, 3], unit vector
    score: Tensor  # float32 [B, T], probability of `pdg`
    mask: Tensor  # bool [B, T], True = real particle
    truncated: Tensor  # bool [B], True = the largest number of particles was decoded before the event ended
    pdg_probability: Tensor | None = None  # float32 [B, T, V], of each |PDG| code
    energy_sigma: Tensor | None = None  # float32 [B, T], standard deviation of ln E
    direction_sigma: Tensor | None = None  # float32 [B, T], standard deviation of each tangent-plane angle, rad
    by_track: Tensor | None = None  # bool [B, T], True = charged, with the momentum of a track
    existence: Tensor | None = None  # float32 [B, T], probability to exist; None: unknown
    listed: Tensor | None = None  # bool [B, T], False = a candidate, behind the listed ones; None: all are listed
    hit_fraction: Tensor | None = None  # float32 [B, T, N], fraction of each hit of the readout that the particle has
    track_fraction: Tensor | None = None  # float32 [B, T, K], of each track


class Reconstructor(nn.Module, ABC):
    """A model from batches to particles.

    A subclass takes `inputs` as its first argument and its options as keywords, which are frozen dataclasses; it passes
    all of them on, so that `describe` can tell how to build it. `decoding` is the default of `generate`.
    """

    needs_readout: bool = False  # whether batches must hold physical hits and tracks (`pflow.data.batch.Readout`)
    gives_links: ClassVar[bool] = False  # whether particles have fractions of hits and tracks
    gives_uncertainties: ClassVar[bool] = False  # whether particles have standard deviations of energy and direction
    first_stage_modules: tuple[str, ...] = ()  # frozen where only a second stage is trained; empty: there is one stage

    def __init__(self, inputs: ModelInputs, *, decoding: DecodingConfig, **options: Any) -> None:
        super().__init__()
        self.inputs, self.decoding, self.options = inputs, decoding, options

    @abstractmethod
    def training_step(self, batch: Batch) -> dict[str, Tensor]:
        """Losses of a batch, scalars by name; the optimiser minimises ``total``.

        ValueError: the batch has no target, or lacks a source that the model reads.
        """

    @abstractmethod
    def generate(self, batch: Batch, *, decoding: DecodingConfig | None = None) -> GeneratedParticles:
        """Decode the particles of each event of a batch on the model's device; a particle has its most probable class.

        By default `decoding` is ``self.decoding``; targets are not used. ValueError: the model is in training mode, or
        the batch lacks a source that it reads.
        """

    def decoding_as(self, kind: type[D], decoding: DecodingConfig | None = None) -> D:
        """`decoding`, by default the model's own; ConfigError: it is of another architecture than `kind`."""
        chosen = self.decoding if decoding is None else decoding
        if type(chosen) is not kind:
            known = {field.name for field in dataclasses.fields(kind)}
            others = ", ".join(field.name for field in dataclasses.fields(chosen) if field.name not in known)
            text = f"decoding: expected a {kind.__name__} for this model, found a {type(chosen).__name__}"
            raise ConfigError(text + (f", whose {others} would do nothing" if others else ""))
        return chosen

    def draw_shared(self, random: Random) -> None:
        """Draw what all ranks of a training decide alike in the next step, to keep their work equal.

        `random` gives the same numbers on each rank. Without this call nothing is drawn.
        """


def describe(reconstructor: Reconstructor) -> dict[str, Any]:
    """``class_path`` and ``init_args`` of a reconstructor as plain data, from which `build_reconstructor` builds it."""
    parts = {**reconstructor.options, "decoding": reconstructor.decoding}
    init_args = {part: dataclasses.asdict(value) for part, value in parts.items()}
    return {"class_path": _public(type(reconstructor)), "init_args": init_args}


def _public(kind: type) -> str:
    """Path of a class: that of the package that exports it, if one does."""
    module, name = kind.__module__, kind.__name__
    parent = module.rpartition(".")[0]
    if parent and getattr(importlib.import_module(parent), name, None) is kind:
        module = parent
    return f"{module}.{name}"


def build_reconstructor(spec: Mapping[str, Any], inputs: ModelInputs) -> Reconstructor:
    """Build a reconstructor with random weights, in training mode, from what `describe` returns.

    Options that are not given have their defaults. ValueError: no such class, an option that does not exist (with its
    nearest matches), of another type, or out of range.
    """
    unknown = set(spec) - {"class_path", "init_args"}
    if unknown or "class_path" not in spec:
        raise ValueError(f"model: expected class_path and init_args, found {sorted(spec)}")
    kind = reconstructor_class(spec["class_path"])
    hints = typing.get_type_hints(kind.__init__)
    known = [name for name in inspect.signature(kind).parameters if name != "inputs"]
    given = spec.get("init_args") or {}
    check_fields(given, known, kind.__name__)
    plain = {name: value for name, value in given.items() if not dataclasses.is_dataclass(hints[name])}
    parts = {name: from_plain(hints[name], value, name) for name, value in given.items() if name not in plain}
    return kind(inputs, **plain, **parts)


def reconstructor_class(class_path: str) -> type[Reconstructor]:
    """The class that a configuration or file names, below ``pflow.model`` or an entry point of an installed package.

    Reading a file imports no other module. ValueError: another place, no such class, or not a `Reconstructor`.
    """
    reconstructor: Any = None
    module, _, name = class_path.rpartition(".")
    if module.startswith("pflow.model."):
        try:
            reconstructor = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError as error:
            # If a module is missing that the model's file imports, its own error says more than a wrong class_path.
            if error.name is None or not class_path.startswith(error.name):
                raise
    if reconstructor is None:  # else nothing is looked up in every installed package
        for entry in importlib.metadata.entry_points(group="pflow.reconstructors"):
            # By name and package, before anything is imported: `describe` gives the package that exports the class.
            package, declared = entry.module.partition(".")[0], entry.attr
            if (package, declared) == (module.partition(".")[0], name):
                loaded = entry.load()
                if class_path in (entry.value.replace(":", "."), _public(loaded)):
                    reconstructor = loaded
    if not (isinstance(reconstructor, type) and issubclass(reconstructor, Reconstructor)):
        known = "below pflow.model, and none that an installed package declares (entry point of pflow.reconstructors)"
        raise ValueError(f"class_path: there is no Reconstructor '{class_path}' {known}")
    return reconstructor

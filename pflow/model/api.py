"""Networks by the name of their architecture, as configurations and checkpoints give it, and what goes with each.

``translation``
    The paper's networks: `pflow.model.translation.network.ParticleTransformer`.
``pointing``
    Each written particle points at the hits and tracks it is made of: `pflow.model.pointing`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from pflow.data.batch import Batch, Target
from pflow.model.common.decode import GeneratedParticles, generate
from pflow.model.pointing.generate import generate_pointing
from pflow.model.pointing.loss import PointingLoss
from pflow.model.pointing.network import LN10, PointingTransformer
from pflow.model.pointing.refine_training import teach_again
from pflow.model.pointing.teacher_forcing import teach
from pflow.model.translation.loss import ParticleLoss
from pflow.model.translation.network import ParticleTransformer

__all__ = ["ARCHITECTURES", "DEFAULT", "SIZES", "Architecture", "Network", "Taught", "architecture", "build_network"]

Network = ParticleTransformer | PointingTransformer
"""Type of a network of any architecture."""

DEFAULT = "translation"
"""The architecture where none is named."""

SIZES = (
    "n_charge",
    "n_pdg",
    "hit_features",
    "track_features",
    "tracker_hit_features",
    "n_subdetectors",
    "masses",
    "charged",
    "energy_mean",
    "energy_std",
    "min_energy",
)
"""Arguments of networks that the tokeniser decides."""


class Taught(NamedTuple):
    """What came of a batch with a target.

    Parameters
    ----------
    losses
        By name, and ``total``; scalars.
    prediction
        ``energy`` [B, T], log10(E / GeV) normalised, and ``direction`` [B, T, 3], unit vector, of each true particle.
    target
        The true particles in the order of the prediction.
    """

    losses: dict[str, Tensor]
    prediction: dict[str, Tensor]
    target: Target


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A kind of network.

    Parameters
    ----------
    network, loss
        Their classes.
    teach
        From network, loss and a batch with a target to what came of it.
    generate
        Writes particles; see `pflow.model.common.decode.generate`.
    readout
        Whether batches must have one.
    """

    network: type[nn.Module]
    loss: type[nn.Module]
    teach: Callable[[Any, Any, Batch], Taught]
    generate: Callable[..., GeneratedParticles]
    readout: bool = False


def _teach_translation(network: ParticleTransformer, loss: ParticleLoss, batch: Batch) -> Taught:
    prediction = network(batch)
    losses = loss(prediction, batch)
    assert batch.target is not None  # or the network would not have predicted
    return Taught(losses, {name: prediction[name][:, :-1] for name in ("energy", "direction")}, batch.target)


def _teach_pointing(network: PointingTransformer, loss: PointingLoss, batch: Batch) -> Taught:
    if batch.target is None:
        raise ValueError("target: the batch has none, and teacher forcing needs one")
    taught = (teach if network.revision is None else teach_again)(network, network(batch), batch.target)
    made = taught.particles
    energy = (made.log_energy / LN10 - network.energy_mean) / network.energy_std
    prediction = {"energy": energy, "direction": made.direction}
    return Taught(loss(taught, network), prediction, taught.target)


ARCHITECTURES: dict[str, Architecture] = {
    "translation": Architecture(ParticleTransformer, ParticleLoss, _teach_translation, generate),
    "pointing": Architecture(PointingTransformer, PointingLoss, _teach_pointing, generate_pointing, readout=True),
}
"""Architectures by name."""


def architecture(name: str | Network) -> Architecture:
    """The architecture of a name, or of a network.

    Raises
    ------
    ValueError
        No such architecture.
    """
    if not isinstance(name, str):
        return next(known for known in ARCHITECTURES.values() if isinstance(name, known.network))
    if name not in ARCHITECTURES:
        raise ValueError(f"no architecture '{name}': expected one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def build_network(arguments: Mapping[str, Any], sizes: Mapping[str, Any] | None = None) -> Any:
    """A network with random weights, in training mode.

    Parameters
    ----------
    arguments
        ``architecture``, a name in `ARCHITECTURES` (default: ``translation``), and the arguments of that network.
    sizes
        What the tokeniser decides (`SIZES`); those that a network has no argument for are left out where they are 0 or
        say nothing of the source.

    Raises
    ------
    ValueError
        No such architecture, from the network: an argument that makes no sense, or a source that it cannot read.
    TypeError
        An argument that the network does not have, or lacks.
    """
    rest = dict(arguments)
    kind = architecture(rest.pop("architecture", DEFAULT)).network
    known = inspect.signature(kind).parameters
    taken = {}
    for name, size in (sizes or {}).items():
        if name in known:
            taken[name] = size
        elif name.endswith("_features") and size:
            raise ValueError(f"{name}: {kind.__name__} does not read them")
    return kind(**{**taken, **rest})

"""Networks by the name of their architecture, as configurations and checkpoints give it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pflow.model.network import ParticleTransformer

__all__ = ["ARCHITECTURES", "DEFAULT", "Network", "build_network"]

Network = ParticleTransformer
"""Type of a network of any architecture."""

ARCHITECTURES: dict[str, type[Network]] = {"translation": ParticleTransformer}
"""Networks by the name of their architecture."""

DEFAULT = "translation"
"""The architecture where none is named."""


def build_network(arguments: Mapping[str, Any]) -> Network:
    """A network with random weights, in training mode.

    Parameters
    ----------
    arguments
        ``architecture``, a name in `ARCHITECTURES` (default: ``translation``), and the arguments of that network.

    Raises
    ------
    ValueError
        No such architecture, or from the network: an argument that makes no sense.
    TypeError
        An argument that the network does not have, or lacks.
    """
    rest = dict(arguments)
    name = rest.pop("architecture", DEFAULT)
    if name not in ARCHITECTURES:
        raise ValueError(f"no architecture '{name}': expected one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name](**rest)

"""Written particles: as they are made, as the decoder reads them back, and what is told of them.

Letters: B batch, T particles, M items, V codes or charges, W width.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pflow.model.pointing.proxies import Proxies

__all__ = ["Particles", "Written"]


class Particles(NamedTuple):
    """Particles made of their seeds and shares.

    Parameters
    ----------
    pdg, charge : float [B, T, V], logits
    log_energy : float [B, T], ln(E / GeV)
    direction : float [B, T, 3], unit vector
    energy_log_sigma : float [B, T], logarithm of the standard deviation of ln E
    direction_log_sigma : float [B, T], logarithm of that of each of the two angles in the tangent plane, rad
    pooled : float [B, T, W], energy-weighted mean memory
    proxies
        What they were corrected from.
    by_track : bool [B, T]
        Charged and begun at a track, whose momentum they then have.
    """

    pdg: Tensor
    charge: Tensor
    log_energy: Tensor
    direction: Tensor
    energy_log_sigma: Tensor
    direction_log_sigma: Tensor
    pooled: Tensor
    proxies: Proxies
    by_track: Tensor

    def written(self, seed: Tensor, *, pdg: Tensor | None = None, charge: Tensor | None = None) -> Written:
        """As the decoder reads them back; their numbers are detached.

        Parameters
        ----------
        seed : int64 [B, T]
        pdg, charge : int64 [B, T] or None
            What was chosen; None: the most probable.
        """
        return Written(
            pdg=self.pdg.argmax(-1) if pdg is None else pdg,
            charge=self.charge.argmax(-1) if charge is None else charge,
            log_energy=self.log_energy.detach(),
            direction=self.direction.detach(),
            seed=seed,
            deposit=self.proxies.energy,
            pooled=self.pooled,
        )

    def columns(self, pdg: Tensor, charge: Tensor, taken: Tensor) -> dict[str, Tensor]:
        """What is told of the particles, [B, T, ...], by name.

        Parameters
        ----------
        pdg, charge : int64 [B, T]
            What was chosen.
        taken : float [B, T, M]
            Their shares of the items.
        """
        return {
            "charge": charge,
            "pdg": pdg,
            "log_energy": self.log_energy,
            "direction": self.direction,
            "probability": self.pdg.softmax(-1),
            "energy_sigma": self.energy_log_sigma.exp(),
            "direction_sigma": self.direction_log_sigma.exp(),
            "taken": taken,
        }


class Written(NamedTuple):
    """Particles as the decoder reads them back.

    Parameters
    ----------
    pdg, charge : int64 [B, T]
    log_energy : float [B, T], ln(E / GeV)
    direction : float [B, T, 3]
    seed : int64 [B, T]
    deposit : float [B, T], energy of the hits it took, GeV
    pooled : float [B, T, W]
    """

    pdg: Tensor
    charge: Tensor
    log_energy: Tensor
    direction: Tensor
    seed: Tensor
    deposit: Tensor
    pooled: Tensor

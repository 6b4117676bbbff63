"""Digitisation of simulated calorimeter hits: the cells that a readout with threshold and time window would write.

As DDCaloDigi (iLCSoft/DDMarlinPandora) does with the settings of key4hep/CLDConfig: the contributions within the time
window are summed, cells whose sum is above the threshold are kept, and the sum is scaled to calibrated energy. The time
of a cell is the earliest in the window. Times are relative to a straight flight from the origin,
t - r / (300 mm/ns) + 0.1 ns. DDCaloDigi also counts the first contribution of a cell whatever its time; that is left
out: it adds 0.14% to the energy of the ECAL endcaps of CLD's ZH event, and less than 0.1% elsewhere.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from pflow.io.edm4hep.simulated import Contributions
from pflow.physics.detector import Calorimeter

__all__ = ["PROMPT_TIME", "SPEED_OF_LIGHT", "Digitised", "digitise", "time_after_flight"]

SPEED_OF_LIGHT = 300.0
"""mm/ns, rounded as in DDCaloDigi, whose times are reproduced to a picosecond so."""
PROMPT_TIME = 0.1
"""Time of a hit by a particle that flew straight from the origin at c, ns, by DDCaloDigi's definition."""

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Digitised:
    """One collection after digitisation; the arrays hold all its simulated hits, whether kept or not.

    Parameters
    ----------
    kept
        bool [hit]: above the threshold.
    energy, time
        float64 [hit]: calibrated energy, GeV, and time, ns.
    counted
        bool [contribution]: within the time window; None without contributions.
    """

    kept: npt.NDArray[np.bool_]
    energy: Floats
    time: Floats
    counted: npt.NDArray[np.bool_] | None


def digitise(
    calorimeter: Calorimeter,
    *,
    energy: Floats,
    position: Floats,
    layer: npt.NDArray[np.int32],
    contributions: Contributions | None,
) -> Digitised:
    """Digitise the hits of one simulated collection as the detector describes it.

    Parameters
    ----------
    calorimeter
        Its `sim_threshold`, `sim_time_window`, `sim_scale`, `sim_deep_scale` and `sim_measures_time` are applied.
    energy
        float64 [hit]: visible energy, GeV.
    position
        float64 [hit, 3], mm.
    layer
        int32 [hit], -1 unknown; decides between `sim_scale` and `sim_deep_scale`.
    contributions
        What made the hits. Without them no time window is applied and times are unknown (NaN).
    """
    n_hits = len(energy)
    time = np.full(n_hits, np.nan)
    counted = None
    if contributions is not None:
        times = contributions.time
        counted = np.ones(len(times), dtype=bool)
        if calorimeter.sim_time_window is not None:
            earliest, latest = calorimeter.sim_time_window
            times = time_after_flight(times, position[contributions.hit])
            counted = (times > earliest) & (times < latest)
            inside = np.bincount(contributions.hit[counted], contributions.energy[counted], minlength=n_hits)
            energy = inside.astype(np.float64)
        first = np.full(n_hits, np.inf)
        np.minimum.at(first, contributions.hit[counted], times[counted])
        time = np.where(np.isfinite(first), first, np.nan)
    if not calorimeter.sim_measures_time:
        time = np.zeros(n_hits)
    kept = np.ones(n_hits, dtype=bool) if calorimeter.sim_threshold is None else energy > calorimeter.sim_threshold
    scale = np.full(n_hits, calorimeter.sim_scale)
    if calorimeter.sim_deep_scale is not None:
        first_layer, deep_scale = calorimeter.sim_deep_scale
        scale[layer >= first_layer] = deep_scale
    return Digitised(kept=kept, energy=energy * scale, time=time, counted=counted)


def time_after_flight(time: Floats, position: Floats) -> Floats:
    """Times [N] minus that of a straight flight from the origin to `position` [N, 3] at c, plus `PROMPT_TIME`, ns."""
    return np.asarray(time - np.linalg.norm(position, axis=1) / SPEED_OF_LIGHT + PROMPT_TIME)

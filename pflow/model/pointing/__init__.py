"""The pointing model: each decoded particle points at the hits and tracks that it is made of.

Interface: `reconstructor`, with the options of `config`. The whole way from a batch to its particles: `generate`.

First stage, after the encoder in `network`: `decoder` (where the next particle starts, and whether there is one),
`assignment` (its hits and tracks) and `head` (what it is). `step` joins them to the one decoder step, which decodes,
trains and is exported.

Refinement: `refiner` reassigns the hits of all decoded particles at once; `generate` decides what these then are and
which of them are kept.

Training: `teacher_forcing` of the first stage, `refine_training` of the refinement, `loss`.

Shared: `network` (all modules), `geometry` (tokens, hits and tracks in space), `attention`, `showers`.
"""

from pflow.model.pointing.config import (
    PointingDecodingConfig,
    PointingNetworkConfig,
    PointingTrainingConfig,
)
from pflow.model.pointing.reconstructor import PointingReconstructor

__all__ = [
    "PointingDecodingConfig",
    "PointingNetworkConfig",
    "PointingReconstructor",
    "PointingTrainingConfig",
]

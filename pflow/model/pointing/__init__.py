"""The pointing model: each decoded particle points at the hits and tracks that it is made of.

`generate` is the whole way from a batch to its particles, by the modules of `network`: `encoder`, and in the first
stage `decoder` (where the next particle starts, if there is one), `assignment` (its hits and tracks) and `head` (what
it is, from proxies). The refinement reassigns the hits of all decoded particles at once. `reconstructor` trains both
stages, the first with the same step as decoding, and has the losses.
"""

from pflow.model.pointing.config import PointingDecodingConfig, PointingNetworkConfig, PointingTrainingConfig
from pflow.model.pointing.reconstructor import PointingReconstructor

__all__ = ["PointingDecodingConfig", "PointingNetworkConfig", "PointingReconstructor", "PointingTrainingConfig"]

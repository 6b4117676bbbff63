"""The pointing model: each decoded particle points at the hits and tracks that it is made of."""

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

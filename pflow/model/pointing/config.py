"""Options of the pointing model: what the network is, how it decodes, how it is trained."""

from __future__ import annotations

import dataclasses
from typing import Self

from pflow.model.api import MAX_LAYERS, MAX_PARTICLES, MAX_SIZE, DecodingConfig, check_range


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointingNetworkConfig:
    """Sizes and parts of the network; ValueError names a field out of range.

    Parameters
    ----------
    width, heads, feedforward
        Token width, attention heads and hidden width of the feed-forward networks of encoder, decoder and refiner.
    hidden_width
        Hidden width of the maps from a particle and a token, hit or track to a logit.
    dropout
        Dropout probability in the hidden layers of the feed-forward networks.
    refine_layers
        Layers of the refiner; 0: no refinement. With it, training trains the refiner only, on the output of the trained
        first stage.
    track_prior
        Whether a small network (`pflow.model.pointing.head.TrackIdentity`) decides if a particle seeded by a track is
        charged, from features with the same meaning in every detector. Before any training, it always is.
    parallel_tracks
        Whether the charged particles that tracks start are decoded in one step, and the others after them one by one.
        If not, all are decoded one by one.
    front
        Whether the direction to the front of the shower is one of those that the refinement's direction is a mean of.
    """

    width: int = 128
    heads: int = 8
    feedforward: int = 512
    encoder_layers: int = 3
    decoder_layers: int = 3
    hidden_width: int = 48
    dropout: float = 0.0
    refine_layers: int = 0
    track_prior: bool = False
    parallel_tracks: bool = False
    front: bool = False

    def __post_init__(self) -> None:
        check_range(self, f"[1, {MAX_SIZE}]", "width", "heads", "feedforward", "hidden_width")
        check_range(self, f"[1, {MAX_LAYERS}]", "encoder_layers", "decoder_layers")
        check_range(self, f"[0, {MAX_LAYERS}]", "refine_layers")
        check_range(self, "[0, 1]", "dropout")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointingDecodingConfig(DecodingConfig):
    """Decoding thresholds: when decoding stops, and which decoded particles are listed.

    ValueError names a field out of range. `eos_threshold` and `existence_threshold` are chosen on validation files by
    `pflow calibrate`; the other defaults were chosen on the validation files of ILD and CLD, once for all models.

    Parameters
    ----------
    max_particles
        Largest number of particles of an event; see `hits_per_particle` for large events. With `parallel_tracks`, those
        that tracks start stay beyond it, and decoder steps are as many as are left for the others.
    hits_per_particle
        The limit of an event is its number of tracks plus its number of hits divided by this value, where that is more
        than `max_particles`. 0: it is `max_particles` for all. In events with jets, the mean number of hits of a true
        particle is at least 70.
    start_threshold
        Smallest probability that a track starts a charged particle. Below one half, since most tracks do, and a fake
        can still be left out of the list.
    max_empty_steps
        Decoding stops after this number of steps in a row whose particle is empty, or has less energy than any target.
    min_deposit_fraction
        A particle without a track is empty if its energy in hits is below this fraction of the smallest target energy.
    existence_threshold
        Smallest existence probability of a listed particle after the refinement
        (`pflow.model.pointing.network.Refiner`); 0: all decoded particles are listed. One half: particles that exist
        more probably than not.
    candidate_threshold
        Smallest existence probability of a candidate, i.e. an unlisted decoded particle; 1: no candidates.
    """

    eos_threshold: float = 0.5
    hits_per_particle: int = 10
    start_threshold: float = 0.3
    max_empty_steps: int = 3
    min_deposit_fraction: float = 0.5
    existence_threshold: float = 0.5
    candidate_threshold: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "[0, inf)", "hits_per_particle", "min_deposit_fraction")
        check_range(self, f"[1, {MAX_PARTICLES}]", "max_empty_steps")
        check_range(self, "[0, 1]", "start_threshold")
        check_range(self, "[0, 1)", "existence_threshold")
        check_range(self, "[0, 1]", "candidate_threshold")

    def with_candidates(self, threshold: float) -> Self:
        """As of `DecodingConfig`."""
        return dataclasses.replace(self, candidate_threshold=threshold)

    def limited(self, max_particles: int) -> Self:
        """As of `DecodingConfig`."""
        # With `hits_per_particle` the limit of an event with many hits would be above `max_particles`.
        return dataclasses.replace(self, max_particles=max_particles, hits_per_particle=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointingTrainingConfig:
    """How the network is trained; ValueError names a field out of range.

    Parameters
    ----------
    deferred_target_prob
        Probability that a target is moved behind all others. A network that has only seen ordered sequences ends them
        without the particles that it skipped.
    joint
        Whether a network with a refinement trains both stages together, with the sum of their losses; if not, or if the
        first stage is frozen, the refinement alone has losses.
    """

    deferred_target_prob: float = 0.0
    joint: bool = False

    def __post_init__(self) -> None:
        check_range(self, "[0, 1]", "deferred_target_prob")

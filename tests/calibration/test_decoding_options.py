import math

import pytest

from pflow.calibration.decoding_options import Calibrated, best, decoding_grid
from pflow.errors import ConfigError
from pflow.model.api import DecodingConfig
from pflow.model.pointing import PointingDecodingConfig
from pflow.tokens.particles import Calibration

DECODING = PointingDecodingConfig(max_particles=7, eos_threshold=0.9, existence_threshold=0.3)


def test_the_grid_has_all_pairs_in_increasing_order_and_an_unknown_or_invalid_threshold_is_named():
    grid = decoding_grid(DECODING, eos_threshold=[0.6, 0.5], existence_threshold=[0.1, 0.2])
    pairs = [(decoding.eos_threshold, decoding.existence_threshold) for decoding in grid]
    assert pairs == [(0.5, 0.1), (0.5, 0.2), (0.6, 0.1), (0.6, 0.2)]
    assert all(decoding.max_particles == 7 for decoding in grid)
    with pytest.raises(ConfigError, match="existence_threshold"):
        decoding_grid(DecodingConfig(), existence_threshold=[0.5])
    with pytest.raises(ConfigError, match="existence_threshold"):
        decoding_grid(DECODING, existence_threshold=[1.5])


def trial(efficiency, fakes, number_right=0.5, reference=0.8):
    return Calibrated(
        decoding=DECODING,
        efficiency=efficiency,
        fakes=fakes,
        number_right=number_right,
        reference=reference,
        calibration=Calibration(),
    )


@pytest.mark.parametrize(("by", "chosen"), [("energy", 0), ("number", 2), ("reference", 1)])
def test_the_first_best_configuration_is_chosen(by, chosen):
    trials = [trial(0.79, 0.01), trial(0.81, 0.04), trial(0.9, 0.2, 0.7), trial(0.79, 0.01), trial(0.9, 0.2, 0.7)]
    assert best(trials, by) is trials[chosen]


def test_the_most_efficient_is_chosen_where_none_reaches_the_reference():
    trials = [trial(0.7, 0.01), trial(0.75, 0.1), trial(0.6, 0.0)]
    assert best(trials, "reference") is trials[1]
    with pytest.raises(ConfigError, match="not all files have reconstructed particles of another algorithm"):
        best([trial(0.9, 0.1, reference=math.nan)], "reference")

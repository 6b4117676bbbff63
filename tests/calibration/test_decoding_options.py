import pytest

from pflow.calibration.decoding_options import Calibrated, best, decoding_grid
from pflow.errors import ConfigError
from pflow.model.api import DecodingConfig
from pflow.model.pointing import PointingDecodingConfig
from pflow.tokens.particles import UncertaintyCalibration

DECODING = PointingDecodingConfig(max_particles=7, eos_threshold=0.9, existence_threshold=0.3)


def test_the_grid_has_all_pairs_in_increasing_order():
    grid = decoding_grid(DECODING, eos_threshold=[0.6, 0.5], existence_threshold=[0.1, 0.2])
    pairs = [(decoding.eos_threshold, decoding.existence_threshold) for decoding in grid]
    assert pairs == [(0.5, 0.1), (0.5, 0.2), (0.6, 0.1), (0.6, 0.2)]
    assert all(decoding.max_particles == 7 for decoding in grid)


def test_an_unknown_or_invalid_threshold_is_named():
    with pytest.raises(ConfigError, match="existence_threshold: the model's decoding has no such option"):
        decoding_grid(DecodingConfig(), existence_threshold=[0.5])
    with pytest.raises(ConfigError, match="existence_threshold"):
        decoding_grid(DECODING, existence_threshold=[1.5])


@pytest.mark.parametrize(("by", "chosen"), [("energy", 0), ("angle", 1), ("class", 2)])
def test_the_first_best_configuration_is_chosen(by, chosen):
    # The second one loses too many right classes.
    numbers = [(0.9, 0.2, 0.950, 0.7), (0.8, 0.1, 0.940, 0.9), (0.8, 0.3, 0.9495, 0.8), (0.9, 0.2, 0.950, 0.7)]
    names = ("score", "angle", "class_right", "class_right_mean")
    trials = [
        Calibrated(decoding=DECODING, uncertainty=UncertaintyCalibration(), **dict(zip(names, row, strict=True)))
        for row in numbers
    ]
    assert best(trials, by) is trials[chosen]

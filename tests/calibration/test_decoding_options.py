import pytest

from pflow.calibration.decoding_options import Calibrated, best, decoding_grid
from pflow.errors import ConfigError
from pflow.model.api import DecodingConfig
from pflow.model.pointing import PointingDecodingConfig
from pflow.tokens.uncertainty import UncertaintyCalibration

OWN = PointingDecodingConfig(max_particles=7, eos_threshold=0.9, existence_threshold=0.3)


def test_all_pairs_are_tried_in_increasing_order():
    grid = decoding_grid(OWN, eos_threshold=[0.6, 0.5], existence_threshold=[0.1, 0.2])
    pairs = [(one.eos_threshold, one.existence_threshold) for one in grid]
    assert pairs == [(0.5, 0.1), (0.5, 0.2), (0.6, 0.1), (0.6, 0.2)]
    assert all(one.max_particles == 7 for one in grid)


def test_a_threshold_that_the_model_does_not_have_is_named():
    with pytest.raises(ConfigError, match="existence_threshold: the model's decoding has no such option"):
        decoding_grid(DecodingConfig(), existence_threshold=[0.5])


def test_a_threshold_out_of_range_is_named():
    with pytest.raises(ConfigError, match="existence_threshold"):
        decoding_grid(OWN, existence_threshold=[1.5])


def test_the_best_score_is_chosen_and_the_first_of_equal_ones():
    grid = decoding_grid(OWN, eos_threshold=[0.5, 0.6, 0.7])
    none = UncertaintyCalibration(energy={}, direction={})
    trials = [
        Calibrated(decoding=one, score=score, uncertainty=none)
        for one, score in zip(grid, (0.1, 0.3, 0.3), strict=True)
    ]
    assert best(trials) is trials[1]


@pytest.mark.parametrize(("by", "chosen"), [("energy", 0), ("angle", 1), ("class", 2)])
def test_the_best_is_chosen_by_a_criterion(by, chosen):
    none = UncertaintyCalibration(energy={}, direction={})
    numbers = [(0.9, 0.2, 0.950, 0.7), (0.8, 0.1, 0.940, 0.9), (0.8, 0.3, 0.9495, 0.8)]  # the second gives up too much
    trials = [
        Calibrated(decoding=OWN, score=score, angle=angle, class_right=right, class_right_mean=mean, uncertainty=none)
        for score, angle, right, mean in numbers
    ]
    assert best(trials, by) is trials[chosen]

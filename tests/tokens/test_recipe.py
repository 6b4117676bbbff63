from __future__ import annotations

import pytest

from pflow.errors import ConfigError
from pflow.tokens.recipe import Recipe


def test_lists_as_yaml_gives_them_are_taken():
    assert Recipe(hit_features=["x", "y"]).features("hits") == ("x", "y")


def test_cells_as_yaml_gives_them_are_taken():
    assert Recipe(merge={"ecal_mm": 10, "hcal_mm": 30.0}).merge.ecal_mm == 10.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "stabel"}, "nearest matches: stable"),
        ({"order": "enrgy"}, "nearest matches: energy"),
        ({"hit_features": ("enrgy",)}, "nearest matches: energy"),
        ({"hit_features": ()}, "at least one feature"),
        ({"e_min": -1.0}, "e_min must be"),
        ({"hit_energy_min": float("nan")}, "hit_energy_min must be"),
        ({"merge": {"ecal": 10.0}}, "merge: unknown field 'ecal'"),
    ],
)
def test_options_that_cannot_work_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        Recipe(**options)

import json

import pytest

from pflow.config import from_plain, to_plain
from pflow.errors import ConfigError
from pflow.event.merge_hits import Merge
from pflow.tokens.config import TokenConfig


def test_cells_as_yaml_gives_them_are_taken():
    assert TokenConfig(merge={"ecal_mm": 10, "hcal_mm": 30.0}).merge.ecal_mm == 10.0


def test_a_recipe_that_merges_survives_json():
    merging = TokenConfig(merge=Merge(ecal_mm=20.0, hcal_mm=60.0, layers=3))
    assert from_plain(TokenConfig, json.loads(json.dumps(to_plain(merging))), where="recipe") == merging


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "stabel"}, "nearest matches: stable"),
        ({"order": "enrgy"}, "nearest matches: energy"),
        ({"hit_features": ("enrgy",)}, "nearest matches: energy"),
        ({"hit_features": ()}, "at least one feature"),
        ({"e_min": -1.0}, "e_min must be"),
        ({"hit_energy_min": float("nan")}, "hit_energy_min must be"),
        ({"merge": {"ecal_mm": 10.0}}, "hcal_mm"),
        ({"merge": {"ecal": 10.0}}, "merge: unknown field 'ecal' .*ecal_mm"),
        ({"merge": 10.0}, "merge: expected a mapping"),
        ({"merge": {"ecal_mm": -1, "hcal_mm": 10.0}}, "ecal_mm must be"),
    ],
)
def test_options_that_cannot_work_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        TokenConfig(**options)

import json

from pflow.config import from_plain, to_plain
from pflow.event.merge_hits import Merge
from pflow.tokens.config import TokenConfig


def test_cells_as_yaml_gives_them_are_taken():
    assert TokenConfig(merge={"ecal_mm": 10, "hcal_mm": 30.0}).merge.ecal_mm == 10.0


def test_a_recipe_that_merges_survives_json():
    merging = TokenConfig(merge=Merge(ecal_mm=20.0, hcal_mm=60.0, layers=3))
    assert from_plain(TokenConfig, json.loads(json.dumps(to_plain(merging))), where="recipe") == merging

from __future__ import annotations

import dataclasses
import json

import pytest

from pflow.errors import ConfigError
from pflow.tokens.recipe import Recipe


def test_plain_data_gives_the_same_recipe_back(recipe):
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_lists_as_yaml_gives_them_are_taken():
    assert Recipe(hit_features=["x", "y"]).features("hits") == ("x", "y")


def test_the_readout_goes_through_plain_data(recipe):
    asked = dataclasses.replace(recipe, readout=True)
    assert Recipe.from_dict(json.loads(json.dumps(asked.to_dict()))).readout


def test_plain_data_from_before_the_readout_has_none(recipe):
    content = recipe.to_dict()
    del content["readout"]
    assert Recipe.from_dict(content) == recipe


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "stabel"}, "nearest matches: stable"),
        ({"order": "enrgy"}, "nearest matches: energy"),
        ({"hit_features": ("enrgy",)}, "nearest matches: energy"),
        ({"hit_features": ()}, "at least one feature"),
        ({"e_min": -1.0}, "e_min must be"),
        ({"hit_energy_min": float("nan")}, "hit_energy_min must be"),
        ({"readout": "yes"}, "readout must be"),
    ],
)
def test_options_that_cannot_work_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        Recipe(**options)


def test_an_unknown_field_is_an_error_with_the_nearest_match():
    with pytest.raises(ConfigError, match=r"unknown field .emin. .*e_min"):
        Recipe.from_dict({"emin": 0.1})


def test_a_field_of_the_wrong_type_is_an_error():
    with pytest.raises(ConfigError, match="not a token recipe"):
        Recipe.from_dict({"e_min": "low"})

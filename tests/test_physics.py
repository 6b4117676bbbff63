"""The shipped models keep their physics: on the small samples their numbers stay within statistical error.

The reference is written by `python scripts/results.py physics-reference`. The test fails when a change of reader,
tokens, decoding or metrics changes the numbers; hits of other energies prove that it does.
"""

import dataclasses
import json

import awkward as ak
import pytest

from measurements.physics_reference import SAMPLES, measure
from pflow.checkpoint import load_model

pytestmark = pytest.mark.usefixtures("few_resamples")

SUM_TOLERANCE = 5e-3
"""Largest relative change of the summed energy that other versions of torch, which round differently, may make."""


@pytest.fixture(scope="module")
def reference(sample_dir):
    return json.loads((sample_dir / "physics_reference.json").read_text("utf-8"))


CASES = [(name, sample) for name, samples in SAMPLES.items() for sample in samples]


def off_by(found, wanted):
    """Names of the numbers that lie outside of the reference's 68.3% interval."""
    off = [key for key, (_, low, high) in wanted["figures"].items() if not low <= found["figures"][key][0] <= high]
    if abs(found["energy_sum"] / wanted["energy_sum"] - 1) > SUM_TOLERANCE:
        off.append("energy_sum")
    return off


def test_every_shipped_model_is_held_to_its_numbers(reference):
    assert {name: tuple(entry["samples"]) for name, entry in reference.items()} == SAMPLES
    for name, entry in reference.items():
        assert load_model(name).digest == entry["sha256"], (
            "weights changed: run python scripts/results.py physics-reference"
        )


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_numbers_stay_within_statistical_error(name, sample, reference, sample_dir):
    numbers = measure(load_model(name), sample_dir / sample)
    assert off_by(numbers, reference[name]["samples"][sample]) == []


def test_hits_of_other_energies_are_noticed(reference, sample_dir):
    def louder(events):
        return dataclasses.replace(events, hits=ak.with_field(events.hits, events.hits.energy * 1.05, "energy"))

    sample = "gammasep_test_small.root"
    numbers = measure(load_model("ild-g4-photon"), sample_dir / sample, louder)
    assert off_by(numbers, reference["ild-g4-photon"]["samples"][sample])

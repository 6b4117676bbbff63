"""Comparison of reconstructions that must be the same."""

from __future__ import annotations

import dataclasses

import awkward as ak
import numpy as np
import pytest

import results
from measurements import sameness
from measurements.files import read_json
from measurements.sameness import compare, sameness_table
from pflow.event.particles import Reconstruction
from pflow.inference.events import reconstruct
from pflow.io.open import read_events

MODEL, SAMPLE = "ild-g4-photon", "gammasep_test_small.root"


@pytest.fixture(scope="module")
def wanted(sample_dir) -> Reconstruction:
    return reconstruct(read_events(sample_dir / SAMPLE, entry_stop=3), MODEL, device="cpu")


def with_particles(wanted: Reconstruction, name: str, change) -> Reconstruction:
    """The first particle's value of a field changed."""
    counts = ak.num(wanted.particles)
    values = ak.to_numpy(ak.flatten(wanted.particles[name])).copy()
    values[0] = change(values[0])
    changed = ak.with_field(wanted.particles, ak.unflatten(values, counts), name)
    return dataclasses.replace(wanted, particles=changed)


def test_nothing_differs_from_itself(wanted):
    found = compare(wanted, wanted)
    assert found["identical"]
    assert (found["other_events"], found["other_links"], found["within_1e-05"]) == (0, 0, 1.0)
    assert set(found["largest"].values()) == {0.0}
    assert tuple(found["largest"]) == sameness.LARGEST


@pytest.mark.parametrize(
    ("field", "kind"), [("energy", "energy, momentum"), ("covariance", "covariance"), ("scores", "scores")]
)
def test_numbers_apart_are_counted(wanted, field, kind):
    # of the covariance and the scores, all elements: what is compared is the largest
    covariance = ak.flatten(wanted.particles.covariance)[0]
    size = {
        "energy": wanted.particles.energy[0, 0],
        "covariance": sum(covariance[i] for i in (0, 2, 5, 9)),
        "scores": 1.0,
    }[field]
    found = compare(with_particles(wanted, field, lambda value: value + 3e-5 * size), wanted)
    n = found["n_particles"]
    assert n > 1
    assert not found["identical"]
    assert found["within_0.0001"] == 1.0
    assert found["within_1e-05"] == pytest.approx(1 - 1 / n)
    assert found["largest"][kind] == pytest.approx(3e-5, rel=0.02)


def test_other_particles_are_counted_by_events(wanted):
    found = compare(with_particles(wanted, "pdg", lambda pdg: 11), wanted)
    assert found["other_events"] == 1
    assert not found["identical"]


def test_links_are_compared(wanted):
    fewer = dataclasses.replace(wanted, hit_links=wanted.hit_links[:, 1:])
    assert compare(fewer, wanted)["other_links"] == 3
    weight = wanted.hit_links.weight * np.float32(0.5)
    halved = dataclasses.replace(wanted, hit_links=ak.with_field(wanted.hit_links, weight, "weight"))
    found = compare(halved, wanted)
    assert (found["other_links"], found["identical"]) == (0, False)
    assert found["largest"]["weights of links"] == pytest.approx(ak.max(weight))


@pytest.mark.slow
def test_all_settings_that_change_something_are_compared(sample_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sameness, "FILES", {MODEL: [f"{sample_dir.name}/{SAMPLE}"]})
    options = ["--data-dir", str(sample_dir.parent), "--models", MODEL, "--events", "4", "--results", str(tmp_path)]
    results.main(["sameness", *options])
    found = read_json(tmp_path / "sameness.json")
    settings = [row["setting"] for row in found["rows"]]
    assert settings == [
        "the same again",
        "batches of 1",
        "batches of 7",
        "chunks of 1",
        "2 threads",
        "reversed",
        "from entry 3",
    ]
    assert found["rows"][0]["identical"]
    assert all(row["other_events"] == 0 and row["within_0.0001"] == 1.0 for row in found["rows"])
    assert sameness_table(found) in capsys.readouterr().out

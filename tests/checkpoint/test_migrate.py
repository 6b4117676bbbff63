"""Files of header format 1, and what is reconstructed with them (``tests/data/format1``).

The particles are those of the version that wrote the files; of the pointing models, those found since the hard cuts of
decoding and of the shapes of showers became ramps, which moved some of them. Until then they were the old ones, link by
link.
"""

from __future__ import annotations

import json

import awkward as ak
import numpy as np
import pytest

from pflow.checkpoint.load import load_model, read_checkpoint
from pflow.checkpoint.migrate import migrate_header, without_removed
from pflow.errors import InputError
from pflow.inference.events import reconstruct
from pflow.io.open import read_events

FILES = {
    "translation": ("translation.ckpt", "gamma1_val_small.root"),
    "multi_projection": ("multi_projection.ckpt", "gamma1_val_small.root"),
    "pointing": ("pointing.ckpt", "multi_test_small.root"),
    "refined": ("refined", "multi_test_small.root"),
}


def flat(values):
    return ak.to_numpy(ak.flatten(values))


@pytest.mark.parametrize("name", FILES)
def test_a_model_of_the_first_format_gives_the_same_particles(name, sample_dir):
    model, events = FILES[name]
    expected = np.load(sample_dir / "format1" / f"{name}.npz")
    found = reconstruct(read_events(sample_dir / events), sample_dir / "format1" / model, device="cpu")
    particles = found.particles
    assert ak.num(particles.energy).to_list() == expected["counts"].tolist()
    assert flat(particles.pdg).tolist() == expected["pdg"].tolist()
    np.testing.assert_allclose(flat(particles.energy), expected["energy"], rtol=1e-5)
    for axis in ("px", "py", "pz"):
        np.testing.assert_allclose(flat(particles.momentum[axis]), expected[axis], rtol=1e-4, atol=1e-5)
    if "source" in expected:
        assert ak.num(found.hit_links.source).to_list() == expected["hits"].tolist()
        assert flat(found.hit_links.source).tolist() == expected["source"].tolist()
        assert flat(found.hit_links.particle).tolist() == expected["particle"].tolist()


def old_header(sample_dir) -> dict:
    return json.loads((sample_dir / "format1" / "refined" / "model.json").read_text())


def test_what_the_first_format_says_is_kept(sample_dir):
    old, checkpoint = old_header(sample_dir), read_checkpoint(sample_dir / "format1" / "refined")
    model = checkpoint.header.model
    assert checkpoint.header.format == 1
    assert model["class_path"] == "pflow.model.pointing.PointingReconstructor"
    assert model["init_args"]["decoding"]["max_particles"] == old["max_particles"]
    assert model["init_args"]["decoding"]["eos_threshold"] == old["network"]["end"]
    assert load_model(sample_dir / "format1" / "refined").reconstructor.decoding.eos_threshold == old["network"]["end"]


def test_a_calibration_moves_out_of_the_tokeniser(sample_dir):
    old = old_header(sample_dir)
    curves = {"energy": {"photon": [[0.0], [1.0]]}}
    new = migrate_header({**old, "tokeniser": {**old["tokeniser"], "widths": curves}})
    assert new["calibration"] == {"energy": {"photon": {"log_sigma": [0.0], "log_factor": [1.0]}}}
    assert "widths" not in new["tokeniser"]


@pytest.mark.parametrize("field", ["tokeniser", "network", "max_particles"])
def test_a_field_that_is_missing_is_named(sample_dir, tmp_path, field):
    folder = sample_dir / "format1" / "refined"
    content = old_header(sample_dir)
    del content[field]
    (tmp_path / "model.json").write_text(json.dumps(content))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match=rf"model\.json, '{field}': missing from the header"):
        read_checkpoint(tmp_path)


def test_an_architecture_that_there_is_not_is_an_error(sample_dir):
    old = old_header(sample_dir)
    with pytest.raises(ValueError, match="no architecture 'recurrent'"):
        migrate_header({**old, "network": {"architecture": "recurrent"}})


def test_options_that_are_gone_are_dropped_where_they_had_no_effect_and_refused_elsewhere(header):
    model = dict(header.model)
    gone = {"bias": True, "target_width": None, "head_feedforward": None, "energy_sigma": False}
    init_args = model["init_args"]
    old = {**init_args, "network": {**init_args["network"], **gone}, "loss": {"weights": {}, "energy": "huber"}}
    assert without_removed({**model, "init_args": old}) == model
    assert without_removed({"class_path": "other.Model", "init_args": old})["init_args"] == old
    old["network"]["target_width"] = 24
    with pytest.raises(ValueError, match="'target_width' is no longer an option"):
        without_removed({**model, "init_args": old})


CONSTANTS = {
    "network": {"coverage": True, "cone_angle": 0.3, "pairwise_messages": True, "refine_layers": 1},
    "decoding": {"max_empty_steps": 3, "max_particles": 20},
    "training": {"scheduled_sampling_prob": 0.1},
}


def test_options_that_are_constants_now_may_be_given_with_their_values():
    model = {"class_path": "pflow.model.pointing.PointingReconstructor", "init_args": CONSTANTS}
    found = without_removed(model)["init_args"]
    assert found == {"network": {"refine_layers": 1}, "decoding": {"max_particles": 20}, "training": {}}
    first_stage = {"network": {"pairwise_messages": False, "delta_theta_phi_features": True}}
    assert without_removed({**model, "init_args": first_stage})["init_args"] == {"network": {}}


@pytest.mark.parametrize(
    ("part", "name", "value"), [("network", "coverage", False), ("decoding", "max_empty_steps", 5)]
)
def test_other_values_of_constants_are_refused(part, name, value):
    model = {"class_path": "pflow.model.pointing.PointingReconstructor", "init_args": {part: {name: value}}}
    with pytest.raises(ValueError, match=f"'{name}' is no longer an option: it is .*was made with {value}"):
        without_removed(model)

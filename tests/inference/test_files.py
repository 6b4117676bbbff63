import argparse
import dataclasses
import inspect

import awkward as ak
import numpy as np
import pytest
import uproot

import pflow
from pflow.cli.reconstruct import _report, add_arguments
from pflow.data.files import FileOptions
from pflow.errors import ConfigError, InputError
from pflow.event.events import Flag, ImplausibleWarning
from pflow.inference.events import _counterpart
from pflow.inference.files import readable_models, reconstruct_files, shipped_model
from pflow.io.flat import write_events
from pflow.io.particles_root import read_provenance, read_reco
from pflow.physics.detector import load_detector


@pytest.fixture
def bare(tmp_path, events):
    """A file without truth, with one event that has no hits."""
    path = tmp_path / "bare.root"
    write_events(path, events.emptied(np.arange(len(events)) == 2).without_truth())
    return path


def run(inputs, model, output, **options):
    return reconstruct_files(inputs, checkpoint=model, output=output, device="cpu", **options)


def test_the_model_of_the_detector_is_taken_and_the_file_opened_once(sample_dir, tmp_path, monkeypatch):
    opened, open_file = [], FileOptions.open
    monkeypatch.setattr(FileOptions, "open", lambda own, path: opened.append(path) or open_file(own, path))
    reconstruct_files([sample_dir / "gammasep_test_small.root"], output=tmp_path / "chosen.root", device="cpu")
    assert read_provenance(tmp_path / "chosen.root")["checkpoint"]["path"] == "general"
    assert len(opened) == 1


@pytest.mark.parametrize("name", ["gamma1_test_small", "cld_multi_test_small"])
def test_the_model_of_the_detector_that_reads_tracks_is_chosen(sample_dir, name, monkeypatch):
    """From the headers: no weights are read."""
    monkeypatch.setattr("pflow.checkpoint.load.read_checked", lambda *_, **__: pytest.fail("weights are read"))
    with pflow.open_events(sample_dir / f"{name}.root") as file:
        assert shipped_model(file) == "general"


def test_a_detector_that_is_not_described_is_named(sample_dir):
    """The model for any detector reads a stronger field, and nothing whose layers are not known."""
    stronger = dataclasses.replace(load_detector("ild_g4"), name="stronger", b_field=4.0)
    with pflow.open_events(sample_dir / "gamma1_test_small.root", detector=stronger) as file:
        assert shipped_model(file) == "general"
    bare = tuple(dataclasses.replace(calorimeter, layers=()) for calorimeter in stronger.calorimeters)
    undescribed = dataclasses.replace(stronger, calorimeters=bare)
    with pflow.open_events(sample_dir / "gamma1_test_small.root", detector=undescribed) as file:
        assert "does not say layers of 'ecal_barrel': complete its YAML file" in readable_models(file)["general"]
        with pytest.raises(InputError, match=r"gamma1.* does not say layers of 'ecal_barrel': .*or name a model"):
            shipped_model(file)


def test_files_give_the_particles_of_events_in_memory(bare, model, events, tmp_path):
    summary = run([bare], model, tmp_path / "reco.root", chunk_size=7)
    got = read_reco(tmp_path / "reco.root")
    assert len(got) == len(events) == summary.n_events
    assert got.event.tolist() == events.event.tolist()
    assert len(got.particles[2]) == 0
    assert summary.n_particles == ak.sum(ak.num(got.particles)) > 0
    in_memory = pflow.reconstruct(pflow.read_events(bare), model)
    assert ak.num(got.particles).tolist() == ak.num(in_memory.particles).tolist()
    np.testing.assert_allclose(ak.flatten(got.particles.energy), ak.flatten(in_memory.particles.energy), rtol=1e-4)


def test_the_output_can_be_a_friend_of_its_input_and_says_where_it_comes_from(bare, model, tmp_path):
    run([bare], model, tmp_path / "reco.root")
    ours = uproot.open(tmp_path / "reco.root")["events"]
    theirs = uproot.open(bare)["events"]
    assert ours.num_entries == theirs.num_entries
    assert ours["event"].array().tolist() == theirs["event"].array().tolist()
    assert {"PFlow.PDG", "PFlow.energy", "PFlow.momentum.x", "PFlow.charge", "PFlow.mass"} <= set(ours.keys())
    provenance = read_provenance(tmp_path / "reco.root")
    assert provenance["inputs"][0]["uuid"] == str(uproot.open(bare).file.uuid)
    assert provenance["checkpoint"] == {"path": "made-by-hand.ckpt", "sha256": "0" * 64}
    assert provenance["pflow_version"] == pflow.__version__
    assert provenance["configuration"] == {"seed": 7}


@pytest.mark.filterwarnings("ignore:.* GeV of tracks are in no particle")  # random weights
def test_tracks_from_monte_carlo_particles_are_marked_in_the_output(model, cld_sim_path, tmp_path):
    run([cld_sim_path], model, tmp_path / "out.root", detector="cld", truth_tracks=True)
    assert read_provenance(tmp_path / "out.root")["inputs"][0]["truth_tracks"] is True
    assert ((read_reco(tmp_path / "out.root").flags & Flag.TRUTH_TRACKS) != 0).all()


def test_an_edm4hep_file_has_the_same_particles(bare, model, tmp_path):
    run([bare], model, tmp_path / "one.root", chunk_size=10)
    run([bare], model, tmp_path / "two.root", chunk_size=10, format="edm4hep")
    flat, edm4hep = read_reco(tmp_path / "one.root"), read_reco(tmp_path / "two.root")
    assert edm4hep.particles.to_list() == flat.particles.to_list()
    assert edm4hep.event.tolist() == flat.event.tolist()
    assert read_provenance(tmp_path / "two.root")["options"]["format"] == "edm4hep"
    with pytest.raises(ConfigError, match=r"collections of one input, found 2 inputs: .*--output-dir"):
        run([bare, bare], model, tmp_path / "both.root", format="edm4hep")


@pytest.mark.filterwarnings("ignore:.* GeV of tracks are in no particle")  # random weights
def test_an_edm4hep_file_has_the_collections_of_its_input_and_links_to_its_truth(model, cld_rntuple_path, tmp_path):
    """Truth is read for these alone."""
    run([cld_rntuple_path], model, tmp_path / "links.root", detector="cld", format="edm4hep", mc_links=True)
    of_input = {name.partition(":")[0] for name in uproot.open(cld_rntuple_path)["events"].keys(recursive=False)}
    of_output = set(uproot.open(tmp_path / "links.root")["events"].keys(recursive=False))
    assert of_input | {"PFlowMCParticleLinks"} <= of_output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mc_links": True, "format": "rntuple"}, "mc_links is for the output format edm4hep, not rntuple"),
        ({"format": "hdf5"}, "output format"),
        ({"chunk_size": 0}, "chunk_size"),
    ],
)
def test_options_are_checked(bare, model, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        run([bare], model, tmp_path / "reco.root", **options)


@pytest.mark.parametrize("place", ["output", "output_dir"])
def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_loaded(bare, tmp_path, monkeypatch, place):
    monkeypatch.setattr("pflow.inference.files.load_model", lambda _: pytest.fail("the model is loaded"))
    target = {"output": tmp_path / "no" / "reco.root", "output_dir": bare}[place]
    with pytest.raises(ConfigError, match=r"cannot write"):
        reconstruct_files([bare], **{place: target})


def test_a_bad_entry_that_is_skipped_is_counted_and_flagged(model, events, spoil, tmp_path):
    path = tmp_path / "bad.root"
    write_events(path, spoil(events, 4, "hits.energy", np.nan, of_all=True))
    with pytest.warns(UserWarning, match="1 "):
        summary = run([path], model, tmp_path / "reco.root", on_error="skip")
    got = read_reco(tmp_path / "reco.root")
    assert (summary.flagged["BAD_INPUT"], summary.flagged["NOT_FINITE"]) == (1, 0)
    assert read_provenance(tmp_path / "reco.root")["flagged"]["BAD_INPUT"] == 1
    assert np.flatnonzero(got.flags & Flag.BAD_INPUT).tolist() == [4]
    assert len(got.particles[4]) == 0


def test_files_of_several_detectors_are_told_apart(sample_dir, cld_path, tmp_path):
    """Whose calorimeters have other names, or lie elsewhere; a model for any detector reads both."""
    of_ild, of_cld = (sample_dir / f"{name}_test_small.root" for name in ("gammasep", "cld_multi"))
    message = r"cld_.*, 'detector': is of detector 'cld', and the model .* trained on 'ild_g4'.*different.*: general\)"
    for path in (cld_path, of_cld):
        with pytest.raises(InputError, match=message):
            run([of_ild, path], "ild-g4-photon", tmp_path / "both.root")
    assert not list(tmp_path.iterdir())
    summary = reconstruct_files([of_ild, of_cld], output=tmp_path / "both.root", device="cpu")
    assert (summary.detector, len(read_reco(tmp_path / "both.root"))) == ("any", 50)


def test_models_that_cannot_read_a_file_or_know_no_tracks_are_named_with_the_reason(sample_dir, make_photons, tmp_path):
    write_events(tmp_path / "no_layers.root", make_photons(5))
    with pflow.open_events(tmp_path / "no_layers.root") as file:
        assert "'hits.layer'" in readable_models(file)["ild-g4-photon"]
    with pflow.open_events(sample_dir / "zqq_test_small.root") as file:
        models = readable_models(file)
    assert models["general"] == ""
    assert models["ild-g4-photon"] == "trained on |PDG| 22 alone, and 5 of 5 events have tracks"


def test_a_model_of_one_detector_reads_another_that_is_named(cld_path, tmp_path):
    """It has more calorimeters: each hit goes to the one that is most like its own."""
    with (
        pytest.warns(ImplausibleWarning, match=r"reco\.root: 244\.4 of 244\.4 GeV of tracks are in no particle"),
        pytest.warns(ImplausibleWarning, match=r"curved as in 2 T, and in the training sample of the model 3\.5"),
    ):
        summary = run([cld_path], "ild-g4-photon", tmp_path / "reco.root", detector="cld")
    assert "100.0% of the momentum of tracks in none" in _report(summary, "")
    reco = read_reco(tmp_path / "reco.root")
    assert reco.flags.tolist() == [Flag.LOST_TRACKS] * 5
    assert ak.all(ak.num(reco.particles) > 0)


def test_hits_go_to_the_calorimeter_most_like_their_own():
    ours = load_detector("ild_g4").calorimeters
    counterpart = {part.name: ours[_counterpart(part, ours)].name for part in load_detector("cld").calorimeters}
    same = ("ecal_barrel", "ecal_endcap", "hcal_barrel", "hcal_endcap")
    assert counterpart == {**{name: name for name in same}, "hcal_other": "hcal_endcap", "muon": "hcal_endcap"}


@pytest.mark.filterwarnings("ignore")
def test_an_empty_tree_gives_an_empty_output(model, events, tmp_path):
    write_events(tmp_path / "none.root", events[:0])
    summary = run([tmp_path / "none.root"], model, tmp_path / "reco.root")
    assert summary.n_events == 0
    assert len(read_reco(tmp_path / "reco.root")) == 0


def test_the_command_has_the_same_defaults():
    """They are repeated in `pflow.cli.options`, because importing torch for a help text would take seconds."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = parser.parse_args(["--checkpoint", "model", "-o", "out.root", "in.root"])
    parameters = inspect.signature(reconstruct_files).parameters
    for name in ("batch_size", "max_hits", "chunk_size", "device", "on_error", "cluster"):
        assert getattr(given, name) == parameters[name].default, name


def test_the_checkpoint_is_not_overwritten(bare, model, save_model, tmp_path):
    path = save_model(model, tmp_path / "model.ckpt")
    content = path.read_bytes()
    for force in (False, True):
        with pytest.raises(ConfigError, match=r"it is the input .*model\.ckpt"):
            run([bare], str(path), path, force=force)
    assert path.read_bytes() == content


def test_an_earlier_output_is_replaced_and_another_file_by_force_only(bare, model, tmp_path):
    output = tmp_path / "reco.root"
    for _ in range(2):
        run([bare], model, output)
    output.write_text("precious")
    with pytest.raises(ConfigError, match="not an earlier output"):
        run([bare], model, output)
    assert output.read_text() == "precious"
    run([bare], model, output, force=True)
    assert len(read_reco(output)) > 0


def test_a_pattern_names_files_that_follow_one_another(bare, model, events, tmp_path):
    (tmp_path / "bare2.root").write_bytes(bare.read_bytes())
    run([tmp_path / "bare*.root"], model, tmp_path / "reco.root", chunk_size=10)
    assert read_reco(tmp_path / "reco.root").event.tolist() == 2 * events.event.tolist()

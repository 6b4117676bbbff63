import argparse
import dataclasses
import inspect
import os
import re
import signal
from collections import Counter

import awkward as ak
import numpy as np
import pytest
import uproot

import pflow
from pflow.cli.main import main
from pflow.cli.models import _report, reconstruct_arguments
from pflow.config import config_dir
from pflow.errors import ConfigError, InputError
from pflow.event.events import BadEntriesWarning, Flag, ImplausibleWarning, count_flags
from pflow.inference.events import _counterpart
from pflow.inference.files import Summary, Worker, readable_models, reconstruct_files
from pflow.io.flat import write_events
from pflow.io.particles_root import read_provenance, read_reco
from pflow.physics.detector import Layers, load_detector


@pytest.fixture
def bare(tmp_path, events):
    """A file without truth, with one event that has no hits."""
    path = tmp_path / "bare.root"
    write_events(path, events.emptied(np.arange(len(events)) == 2).without_truth())
    return path


def write(inputs, model, output, **options):
    return reconstruct_files(inputs, checkpoint=model, output=output, device="cpu", **options)


@pytest.mark.filterwarnings("ignore::pflow.event.events.ImplausibleWarning")
def test_each_file_of_a_detector_that_general_does_not_suit_is_refused_unless_it_is_named(events, tmp_path):
    """It reads a stronger field, and nothing whose layers are not known; photons in crystals get twice their energy."""
    known, changed = load_detector("ild_g4"), {"stronger": {"b_field": 4.0}}
    crystals = Layers(count=1, pitch=220.0, radiation_lengths=24.7, interaction_lengths=1.1)
    for name, layers in (("bare", ()), ("crystals", (crystals,))):
        parts = [dataclasses.replace(x, layers=layers) if x.kind == "ecal" else x for x in known.calorimeters]
        changed[name] = {"calorimeters": tuple(parts)}
    for name, changes in changed.items():
        detector = dataclasses.replace(known, name=name, **changes)
        write_events(tmp_path / f"{name}.root", dataclasses.replace(events[:1], detector=detector))
    said = {
        "bare": "does not say layers of ecal_barrel, ecal_endcap",
        "crystals": r"unlike all that 'general' was trained on: radiation lengths of a layer of the ECAL 24\.7 \(tr",
    }
    remedies = "or name a model with --checkpoint", "pflow fit --start-from general.*--checkpoint general"
    options = {"output_dir": tmp_path / "reco", "device": "cpu"}
    with pytest.warns(BadEntriesWarning, match="2 of 3 files"):
        summary = reconstruct_files([tmp_path / f"{name}.root" for name in changed], on_error="skip", **options)
    assert [path.name for path in summary.written] == ["stronger.reco.root"]
    for (name, text), remedy, error in zip(said.items(), remedies, summary.failed, strict=True):
        assert re.search(f"{name}.root, 'detector': .*{text}.*{remedy}", str(error))
        with pflow.open_events(tmp_path / f"{name}.root") as file:
            assert re.search(text, readable_models(file)["general"])
    with pytest.warns(ImplausibleWarning, match=r"24\.7 .*unlike these, and energies will be wrong"):
        reconstruct_files([tmp_path / "crystals.root"], checkpoint="general", **options)
    with pytest.raises(InputError, match="not a folder of weights"):  # an empty name is not none
        reconstruct_files([tmp_path / "stronger.root"], checkpoint="", **options)


def test_the_last_line_names_what_each_flag_is_for():
    flagged = {"BAD_INPUT": 1, "UNUSABLE_HITS": 2, "UNUSABLE_TRACKS": 3, "NOT_FINITE": 4, "MAX_PARTICLES": 5}
    line = _report(Summary(n_events=20, flagged=Counter(flagged)), "reco.root")
    said = "1 skipped, 2 with hits left out, 3 with tracks left out, 4 whose numbers are not finite, 5 cut"
    assert line.startswith(f"reco.root: 20 events, 0 particles, {said}")


def test_an_output_has_the_particles_of_memory_provenance_and_its_inputs_entries(bare, model, events, tmp_path):
    summary = write([bare], model, tmp_path / "reco.root", chunk_size=7)
    got = read_reco(tmp_path / "reco.root")
    assert len(got) == len(events) == summary.n_events
    assert got.event.tolist() == events.event.tolist()
    assert len(got.particles[2]) == 0
    assert summary.n_particles == ak.sum(ak.num(got.particles)) > 0
    in_memory = pflow.reconstruct(pflow.read_events(bare), model)
    assert ak.num(got.particles).tolist() == ak.num(in_memory.particles).tolist()
    np.testing.assert_allclose(ak.flatten(got.particles.energy), ak.flatten(in_memory.particles.energy), rtol=1e-4)
    provenance = read_provenance(tmp_path / "reco.root")
    assert provenance["inputs"][0]["uuid"] == str(uproot.open(bare).file.uuid)
    assert provenance["checkpoint"] == {"path": "made-by-hand.ckpt", "sha256": "0" * 64}
    assert provenance["pflow_version"] == pflow.__version__
    assert provenance["configuration"] == {"seed": 7}


@pytest.mark.filterwarnings("ignore:.* momentum of tracks is in no particle")  # random weights
def test_tracks_from_monte_carlo_particles_are_marked_in_the_output(model, cld_sim_path, tmp_path):
    write([cld_sim_path], model, tmp_path / "out.root", detector="cld", truth_tracks=True)
    assert read_provenance(tmp_path / "out.root")["inputs"][0]["truth_tracks"] is True
    assert ((read_reco(tmp_path / "out.root").flags & Flag.TRUTH_TRACKS) != 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mc_links": True, "format": "rntuple"}, "mc_links is for the output format edm4hep, not rntuple"),
        ({"format": "hdf5"}, "output format"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"inputs": []}, "no files are given"),
        ({"inputs": 2 * ["a.root"], "format": "edm4hep"}, r"collections of one input, found 2 inputs: .*--output-dir"),
    ],
)
def test_options_are_checked(bare, model, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        write(**{"inputs": [bare], "model": model, "output": tmp_path / "reco.root", **options})


@pytest.mark.parametrize("place", ["output", "output_dir"])
def test_an_unwritable_output_is_refused_before_the_model_is_loaded(bare, tmp_path, monkeypatch, place):
    monkeypatch.setattr("pflow.inference.files.load_model", lambda _: pytest.fail("the model is loaded"))
    target = {"output": tmp_path / "no" / "reco.root", "output_dir": bare}[place]
    with pytest.raises(ConfigError, match=r"cannot write"):
        reconstruct_files([bare], **{place: target})


def test_a_bad_entry_that_is_skipped_is_counted_and_flagged(model, events, spoil, tmp_path):
    path = tmp_path / "bad.root"
    write_events(path, spoil(events, 4, "hits.energy", np.nan, of_all=True))
    with pytest.warns(UserWarning, match="1 "):
        summary = write([path], model, tmp_path / "reco.root", on_error="skip")
    got = read_reco(tmp_path / "reco.root")
    assert (summary.flagged["BAD_INPUT"], summary.flagged["NOT_FINITE"]) == (1, 0)
    assert read_provenance(tmp_path / "reco.root")["flagged"]["BAD_INPUT"] == 1
    assert np.flatnonzero(got.flags & Flag.BAD_INPUT).tolist() == [4]
    assert len(got.particles[4]) == 0


def test_files_of_several_detectors_are_told_apart(sample_dir, cld_path, tmp_path):
    of_ild, of_cld = (sample_dir / f"{name}_test_small.root" for name in ("gammasep", "cld_multi"))
    message = r"cld_.*, 'detector': is of detector 'cld', and the model .* trained on 'ild_g4'.*different.*: general\)"
    for path in (cld_path, of_cld):
        with pytest.raises(InputError, match=message):
            write([of_ild, path], "ild-g4-photon", tmp_path / "both.root")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"cld_multi.* of detector 'cld', and .*gammasep.* of 'ild_g4'.*output-dir"):
        reconstruct_files([of_ild, of_cld], output=tmp_path / "both.root", device="cpu")
    assert not list(tmp_path.iterdir())


def test_models_that_cannot_read_a_file_are_named_with_the_reason(sample_dir, make_photons, tmp_path):
    write_events(tmp_path / "no_layers.root", make_photons(5))
    with pflow.open_events(tmp_path / "no_layers.root") as file:
        assert "'hits.layer'" in readable_models(file)["ild-g4-photon"]
    with pflow.open_events(sample_dir / "zqq_test_small.root") as file:
        models = readable_models(file)
    assert models["general"] == ""
    assert models["ild-g4-photon"] == "trained on |PDG| 22 alone, and 5 of 5 events have tracks"


def test_a_model_of_one_detector_reads_another_that_is_named(cld_path, tmp_path):
    with pytest.warns(
        ImplausibleWarning, match=r"curved as in 2 T, and in the training sample of the model 3\.5"
    ) as said:
        write([cld_path], "ild-g4-photon", tmp_path / "reco.root", detector="cld")
    # It reads no tracks, and loses none.
    assert not [warning for warning in said if "tracks are in no" in str(warning.message)]
    reco = read_reco(tmp_path / "reco.root")
    assert reco.flags.tolist() == [Flag.NONE] * 5
    assert ak.all(ak.num(reco.particles) > 0)


def test_hits_go_to_the_calorimeter_most_like_their_own():
    ours = load_detector("ild_g4").calorimeters
    counterpart = {part.name: ours[_counterpart(part, ours)].name for part in load_detector("cld").calorimeters}
    same = ("ecal_barrel", "ecal_endcap", "hcal_barrel", "hcal_endcap")
    assert counterpart == {**{name: name for name in same}, "hcal_other": "hcal_endcap", "muon": "hcal_endcap"}


@pytest.mark.filterwarnings("ignore")
def test_an_empty_tree_gives_an_empty_output(model, events, tmp_path):
    write_events(tmp_path / "none.root", events[:0])
    summary = write([tmp_path / "none.root"], model, tmp_path / "reco.root")
    assert summary.n_events == 0
    assert len(read_reco(tmp_path / "reco.root")) == 0


def test_the_command_has_the_same_defaults():
    """They are repeated in `pflow.cli.main`, because importing torch for a help text would take seconds."""
    parser = argparse.ArgumentParser()
    reconstruct_arguments(parser)
    given = parser.parse_args(["--checkpoint", "model", "-o", "out.root", "in.root"])
    parameters = inspect.signature(reconstruct_files).parameters
    for name in ("batch_size", "max_hits", "chunk_size", "device", "on_error", "cluster"):
        assert getattr(given, name) == parameters[name].default, name


def test_the_checkpoint_is_not_overwritten(bare, model, save_model, tmp_path):
    path = save_model(model, tmp_path / "model.ckpt")
    content = path.read_bytes()
    for force in (False, True):
        with pytest.raises(ConfigError, match=r"it is the input .*model\.ckpt"):
            write([bare], str(path), path, force=force)
    assert path.read_bytes() == content


N_FILES, N_EVENTS = 3, 3


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, events):
    """Three files of three events each, those with the fewest hits."""
    events = events[np.argsort(ak.to_numpy(ak.num(events.hits)), kind="stable")]
    folder = tmp_path_factory.mktemp("inputs")
    paths = [folder / f"run{i}.root" for i in range(N_FILES)]
    for i, path in enumerate(paths):
        write_events(path, events[N_EVENTS * i : N_EVENTS * (i + 1)])
    return paths


@pytest.fixture
def run(model, tmp_path):
    def run(inputs, **options):
        options = {"checkpoint": model, "output_dir": tmp_path / "reco", "device": "cpu", "max_particles": 3, **options}
        return reconstruct_files(inputs, **options)

    return run


@pytest.fixture
def with_a_bad_one(inputs, tmp_path):
    """Four files; the second one is no ROOT file."""
    no_root = tmp_path / "bad.root"
    no_root.write_text("no events")
    return [inputs[0], no_root, *inputs[1:]]


def outputs(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_damaged_output_is_made_again_by_force_only(inputs, run, tmp_path):
    run(inputs[:1])
    path = tmp_path / "reco" / "run0.reco.root"
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    with pytest.raises(ConfigError, match=r"run0\.reco\.root: a file is there"):
        run(inputs[:1])
    assert run(inputs[:1], force=True).written == [path]
    assert len(read_reco(path)) == N_EVENTS


def test_a_run_that_is_killed_goes_on_where_it_was(inputs, run, tmp_path, same_reco):
    run(inputs, chunk_size=1)
    (tmp_path / "reco").rename(tmp_path / "undisturbed")

    def kill_in_second(done, _):
        if done == N_EVENTS + 2:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            run(inputs, chunk_size=1, on_progress=kill_in_second)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert "run0.reco.root" in outputs(tmp_path / "reco")
    assert not {"run1.reco.root", "run2.reco.root"} & set(outputs(tmp_path / "reco"))
    before = (tmp_path / "reco" / "run0.reco.root").stat().st_mtime_ns
    summary = run(inputs, chunk_size=1)
    assert [path.name for path in summary.finished_before] == ["run0.reco.root"]
    assert [path.name for path in summary.written] == ["run1.reco.root", "run2.reco.root"]
    assert summary.n_events == 2 * N_EVENTS
    assert (tmp_path / "reco" / "run0.reco.root").stat().st_mtime_ns == before
    assert outputs(tmp_path / "reco") == outputs(tmp_path / "undisturbed")
    for name in outputs(tmp_path / "undisturbed"):
        assert same_reco(*(read_reco(tmp_path / folder / name) for folder in ("undisturbed", "reco")))


def test_an_output_of_other_settings_or_another_input_is_kept(inputs, run, model, tmp_path, events):
    run(inputs[:1])
    with pytest.raises(
        ConfigError, match=r"run0\.reco\.root was made with other settings: max_particles 3 there and 4 here"
    ):
        run(inputs[:1], max_particles=4)
    run(inputs[:1], max_particles=4, force=True)
    assert read_provenance(tmp_path / "reco" / "run0.reco.root")["options"]["max_particles"] == 4
    calibrated = dataclasses.replace(model, config={**model.config, "calibration": {"photon_response": None}})
    with pytest.raises(ConfigError, match=r"other settings: calibration [0-9a-f]{12} there and"):
        run(inputs[:1], max_particles=4, checkpoint=calibrated)
    write_events(tmp_path / "run0.root", events[:N_EVENTS])
    with pytest.raises(ConfigError, match="input's uuid"):
        run([tmp_path / "run0.root"], max_particles=4)


def test_a_layout_that_was_edited_makes_another_output(inputs, run, tmp_path):
    """Not one that was moved: what it says counts, not its path."""
    built_in = (config_dir() / "layout" / "g4.yaml").read_text()
    (tmp_path / "a.yaml").write_text(
        built_in.replace("  energy: calo_hit.energy", "  energy: {branch: calo_hit.energy}")
    )
    edited = built_in.replace("  energy: calo_hit.energy", "  energy: {branch: calo_hit.energy, scale: 0.8}")
    (tmp_path / "b.yaml").write_text(edited)
    path = tmp_path / "bare.root"
    with uproot.open(inputs[0]) as file, uproot.recreate(path) as bare:  # without pflow's note
        bare.mkrntuple("events", file["events"].arrays())
    run([path], layout=tmp_path / "b.yaml")
    (tmp_path / "b.yaml").rename(tmp_path / "c.yaml")
    assert run([path], layout=tmp_path / "c.yaml").finished_before
    with pytest.raises(ConfigError, match="input's layout"):
        run([path], layout=tmp_path / "a.yaml")


def test_a_bad_file_stops_the_run_or_is_skipped(with_a_bad_one, run, tmp_path):
    with pytest.raises(InputError, match="not a ROOT file"):
        run(with_a_bad_one[1:2], on_error="skip")
    with pytest.raises(InputError, match=r"bad\.root: not a ROOT file"):
        run(with_a_bad_one)
    assert outputs(tmp_path / "reco") == ["run0.reco.root"]
    # `on_error` is no setting that the particles depend on.
    with pytest.warns(BadEntriesWarning, match=r"1 of 4 files were left out:\n  .*bad\.root: not a ROOT file"):
        summary = run(with_a_bad_one, on_error="skip")
    assert outputs(tmp_path / "reco") == ["run0.reco.root", "run1.reco.root", "run2.reco.root"]
    assert (len(summary.finished_before), summary.n_events) == (1, (N_FILES - 1) * N_EVENTS)


def test_a_second_run_says_again_what_was_skipped(inputs, run):
    """Else a batch job that is repeated would end with 0."""
    _, fewer, most = ak.num(pflow.read_events(inputs[0]).hits)
    assert fewer < most
    for _ in range(2):
        with pytest.warns(BadEntriesWarning, match=r"1 of 3 entries cannot be used and were left empty"):
            run(inputs[:1], max_hits=int(fewer), on_error="skip")


def test_a_file_that_breaks_in_the_middle_leaves_nothing_of_its_own(inputs, run, tmp_path, monkeypatch):
    work = Worker.run

    def broken(worker, chunk):
        if "run1" in chunk.path and chunk.start:
            raise InputError("broken", file=chunk.path, entry=chunk.start)
        return work(worker, chunk)

    monkeypatch.setattr(Worker, "run", broken)
    with pytest.warns(BadEntriesWarning, match=r"run1\.root, entry 1: broken"):
        summary = run(inputs, on_error="skip", chunk_size=1, max_particles=1)
    assert outputs(tmp_path / "reco") == ["run0.reco.root", "run2.reco.root"]
    recos = [read_reco(path) for path in summary.written]
    assert summary.n_events == 2 * N_EVENTS
    assert summary.n_particles == sum(ak.count(reco.particles.pdg) for reco in recos)
    assert summary.flagged == sum((Counter(count_flags(reco.flags)) for reco in recos), Counter())
    assert summary.flagged["MAX_PARTICLES"] > 0


@pytest.mark.parametrize(("chunk_size", "done"), [(1, [*range(1, 10)]), (2, [3, 6, 9])])
def test_progress_counts_all_files(inputs, run, chunk_size, done):
    """A chunk takes up to twice as many entries where a basket then ends."""
    seen = []
    run(inputs, chunk_size=chunk_size, on_progress=lambda *numbers: seen.append(numbers))
    assert [number for number, _ in seen] == done
    assert seen[-1] == (9, 9)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files as Linux lists them")
@pytest.mark.parametrize("separate", [True, False])
def test_files_are_closed_as_others_are_opened(inputs, run, tmp_path, separate):
    seen = []
    place = {} if separate else {"output": tmp_path / "all.root", "output_dir": None}
    before = len(os.listdir("/proc/self/fd"))
    run(inputs, on_progress=lambda *_: seen.append(len(os.listdir("/proc/self/fd"))), **place)
    assert len(seen) == N_FILES
    assert seen[-1] <= seen[1]
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_output_has_one_place_and_inputs_different_names(inputs, run, model, tmp_path):
    for places in ({}, {"output": "a.root", "output_dir": "b"}):
        with pytest.raises(ConfigError, match="one place for the output"):
            reconstruct_files(inputs, checkpoint=model, **places)
    with pytest.raises(ConfigError, match=r"would both be .*run0\.reco\.root"):
        run([inputs[0], tmp_path / "run0.root"])


@pytest.mark.filterwarnings("ignore:.* momentum of tracks is in no particle")  # random weights
def test_an_edm4hep_file_has_its_inputs_collections_and_links_and_is_kept(cld_rntuple_path, run, tmp_path):
    options = {"detector": "cld", "format": "edm4hep", "mc_links": True}
    (path,) = run([cld_rntuple_path], **options).written
    assert path == tmp_path / "reco" / "cld_zqq_small_rntuple.reco.edm4hep.root"
    of_input = {name.partition(":")[0] for name in uproot.open(cld_rntuple_path)["events"].keys(recursive=False)}
    of_output = set(uproot.open(path)["events"].keys(recursive=False))
    assert of_input | {"PFlowMCParticleLinks"} <= of_output
    assert run([cld_rntuple_path], **options).finished_before == [path]


def test_the_command_lists_what_was_left_out_and_exits_with_3(with_a_bad_one, random_checkpoint, tmp_path, capsys):
    options = ["--checkpoint", random_checkpoint, "--output-dir", tmp_path / "out", "-q"]
    call = [str(word) for word in ("reconstruct", *with_a_bad_one, *options, "--device", "cpu", "--on-error", "skip")]
    assert main(call) == 3
    out, err = capsys.readouterr()
    assert re.search(r"9 events, \d+ particles, 3 files written, 1 left out", out)
    assert re.search(r"warning: 1 of 4 files were left out:\n  .*bad\.root", err)


def contents(path) -> dict[str, list]:
    """All that a file's events hold, as bytes: unlike numbers, NaN equals itself and -0.0 is not 0.0."""
    with uproot.open(path) as file:
        arrays = file["events"].arrays(library="np")
    return {name: [np.asarray(entry).tobytes() for entry in arrays[name]] for name in arrays}


def test_an_output_is_repeated_bit_for_bit_with_its_provenance(sample_dir, tmp_path):
    source, detector = str(sample_dir / "gammasep_test_small.root"), config_dir() / "detector" / "ild_g4.yaml"
    first, again = str(tmp_path / "first file.root"), str(tmp_path / "again.root")
    words = ["reconstruct", source, "--checkpoint", "ild-g4-photon", "-q", "--device=cpu", f"--detector={detector}"]
    words += ["--max-particles=3", "--batch-size=2", "--chunk-size=5", "--format=rntuple"]
    assert main([*words, "-o", first]) == main([*words, "-o", again]) == 0
    made = read_provenance(first)
    assert contents(first) == contents(again)
    assert read_provenance(again) == made
    assert len(made["checkpoint"]["sha256"]) == 64
    assert made["versions"].keys() == {"python", "torch", "numpy", "awkward", "uproot"}
    assert made["machine"].keys() == {"processor", "instructions", "threads", "gpu"}
    assert made["inputs"][0]["bytes"] == os.path.getsize(source)
    assert made["inputs"][0]["uuid"]
    chosen = {name: made["options"][name] for name in ("max_particles", "batch_size", "chunk_size", "format")}
    assert chosen == {"max_particles": 3, "batch_size": 2, "chunk_size": 5, "format": "rntuple"}
    assert made["options"]["read_as"].endswith("ild_g4.yaml")

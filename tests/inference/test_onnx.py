"""ONNX Runtime finds what torch finds; graphs are made once; what is damaged is refused or made anew."""

import copy
import dataclasses
import json
import os
import shutil

import awkward as ak
import numpy as np
import pytest
import torch

from pflow.checkpoint.load import load_model
from pflow.errors import ConfigError, InputError
from pflow.event.events import Events, Flag
from pflow.event.merge_hits import Merge
from pflow.event.skipped import BadEntriesWarning
from pflow.inference import onnx
from pflow.inference.events import pick_engine, reconstruct
from pflow.inference.files import reconstruct_files
from pflow.inference.onnx import Graphs, OnnxEngine, graphs_of
from pflow.io.open import read_events
from pflow.io.particles_root import read_provenance, read_reco
from pflow.model.api import DecodingConfig
from pflow.model.translation import TranslationNetworkConfig, TranslationReconstructor
from pflow.tokens.config import TokenConfig
from pflow.tokens.tokeniser import Tokeniser


@pytest.fixture(scope="module")
def general():
    return load_model("ild-g4-general")


@pytest.fixture(scope="module")
def three(events) -> Events:
    """Three events without truth."""
    parts = ("truth", "reference", "hit_links", "track_links", "tracker_hit_links")
    return dataclasses.replace(events[:3], **dict.fromkeys(parts))


def check_same(found, expected):
    assert found.flags.tolist() == expected.flags.tolist()
    for name in ("pdg", "charge"):
        assert ak.to_list(found.particles[name]) == ak.to_list(expected.particles[name])
    got, wanted = ak.flatten(found.particles), ak.flatten(expected.particles)
    np.testing.assert_allclose(got.energy, wanted.energy, rtol=1e-4)
    for axis in ("px", "py", "pz"):
        np.testing.assert_allclose(got.momentum[axis], wanted.momentum[axis], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.score, wanted.score, atol=1e-4)
    if "covariance" in wanted.fields:
        np.testing.assert_allclose(got.covariance, wanted.covariance, rtol=2e-3, atol=1e-9)
        np.testing.assert_allclose(got.scores, wanted.scores, atol=1e-4)
    for name in ("hit_links", "track_links"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert ak.to_list(one[["source", "particle"]]) == ak.to_list(other[["source", "particle"]])
            np.testing.assert_allclose(ak.flatten(one.weight), ak.flatten(other.weight), atol=1e-4)


def check_engines(events, model, **options):
    """Both engines find the same particles; those of ONNX Runtime."""
    assert pick_engine(model).name == "onnxruntime"
    found = reconstruct(events, model, **options)
    check_same(found, reconstruct(events, model, engine="torch", batch_size=2, **options))
    return found


@pytest.mark.parametrize("without", [None, "refiner"])
def test_particles_are_those_of_torch(without, general, events):
    if without is not None:
        general = dataclasses.replace(general, reconstructor=copy.deepcopy(general.reconstructor))
        general.reconstructor.network.refiner = None
    found = check_engines(events[:5], general)
    assert ak.count(found.particles.pdg) > 5


@pytest.mark.parametrize(
    ("name", "file", "n"),
    [("ild-g4-general", "zqq_test_small.root", 2), ("ild-g4-photon", "gammasep_test_small.root", 6)],
)
def test_particles_are_the_same_in_any_batch_order_and_number_of_threads(name, file, n, sample_dir):
    model, events = load_model(name), read_events(sample_dir / file, entry_stop=n)
    wanted = reconstruct(events, model, engine="torch")
    check_same(reconstruct(events, model, engine="torch", batch_size=1), wanted)
    for part in (slice(None, n // 2), slice(n // 2, None)):
        order, back = np.arange(n)[part][::-1], np.arange(n // 2)[::-1]
        check_same(reconstruct(events[order], model, engine="torch"), wanted[part][back])
    # Few steps: on a busy machine threads wait for each other in each of them.
    threads, found = torch.get_num_threads(), []
    for number in (threads, 1 if threads > 1 else 2):
        torch.set_num_threads(number)
        found.append(reconstruct(events[:1], model, engine="torch", max_particles=2))
        torch.set_num_threads(threads)
    check_same(*found)


@pytest.mark.parametrize(("hits", "tracks"), [(0, 0), (1, 0), (0, 1), (None, 0), (0, None)])
def test_events_with_few_hits_or_tracks(hits, tracks, general, three):
    found = check_engines(
        dataclasses.replace(three, hits=three.hits[:, :hits], tracks=three.tracks[:, :tracks]), general
    )
    assert len(found) == len(found.hit_links) == len(found.track_links) == 3
    if (hits, tracks) == (0, 0):
        assert ak.count(found.particles.pdg) == 0


def test_an_event_that_is_cut_is_flagged(general, three):
    assert (check_engines(three, general, max_particles=2).flags & Flag.MAX_PARTICLES).any()


TRACKS = ("log_pt", "nx", "ny", "nz", "charge", "calo_x", "calo_y", "calo_z")


CELLS = Merge(ecal_mm=15.0, hcal_mm=60.0)


@pytest.mark.filterwarnings("ignore:.* GeV of tracks are in no particle")  # random weights
@pytest.mark.parametrize(
    ("source", "special", "decoder", "merge"),
    [
        ("hits", "flags", "vanilla", None),
        ("typed", "kind", "vanilla", CELLS),
        ("cross", "kind", "multi_projection", None),
    ],
)
def test_translation_networks_with_any_tokens(source, special, decoder, merge, events, make_model):
    """Of the first random model whose events have different numbers of particles; some reach the largest."""
    more = {"typed": {"tracker_hit_features": ("x", "y", "z")}}.get(source, {})
    recipe = TokenConfig(merge=merge, track_features=() if source == "hits" else TRACKS, **more)
    tokeniser = Tokeniser.fit([events], recipe)
    network = TranslationNetworkConfig(
        **{"width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "feedforward": 32},
        **{"source": source, "special": special, "decoder": decoder},
        n_projections=2 if decoder == "multi_projection" else None,
    )
    for seed in range(100):
        decoding = DecodingConfig(max_particles=6)
        model = make_model(tokeniser, TranslationReconstructor, seed=seed, network=network, decoding=decoding)
        if len(set(ak.num(reconstruct(events[:12], model, engine="torch").particles).tolist())) > 2:
            break
    empty = dataclasses.replace(events[:12], tracks=events.tracks[:12][:, :0])
    for some in (events[:12], empty.emptied(np.arange(12) == 3)):
        check_engines(some, model)


def test_large_events_may_have_more_particles(general, three):
    graphs = graphs_of(general)
    arrays = OnnxEngine(general, graphs).encode(three)[0]
    repeats = 3000 // len(arrays["hit_energy"]) + 1
    large = {name: np.concatenate([x] * repeats) if name.startswith("hit") else x for name, x in arrays.items()}
    counted = np.count_nonzero(large["hit_energy"] > general.tokeniser.config.hit_energy_min)
    assert graphs.run("encoder", arrays)["limit"].tolist() == [150]
    assert graphs.run("encoder", large)["limit"].tolist() == [len(arrays["track_charge"]) + counted // 10]


def test_a_value_that_is_not_known_is_named(general, three):
    calo = three.tracks.calo_momentum
    first = np.arange(ak.count(calo.px)) == 0
    px = ak.unflatten(np.where(first, np.nan, ak.to_numpy(ak.flatten(calo.px))), ak.num(calo.px))
    unknown = dataclasses.replace(
        three, tracks=ak.with_field(three.tracks, ak.with_field(calo, px, "px"), "calo_momentum")
    )
    event = int(np.flatnonzero(ak.num(three.tracks))[0])
    with pytest.raises(InputError, match=r"a finite number here, and 1 of \d+ values are unknown") as caught:
        reconstruct(unknown, general)
    assert (caught.value.entry, caught.value.field) == (event, "tracks.calo_momentum")
    with pytest.warns(BadEntriesWarning, match="1 of 3"):
        found = reconstruct(unknown, general, on_error="skip")
    assert np.flatnonzero(found.flags & Flag.BAD_INPUT).tolist() == [event]
    assert ak.num(found.particles)[event] == 0
    assert ak.num(found.particles)[1 - event] > 0


def test_events_without_tracks_are_refused_where_the_model_reads_them(general, three):
    with pytest.raises(InputError, match=r"reads tracks .*; --truth-tracks makes them"):
        reconstruct(dataclasses.replace(three, tracks=None), general)


def test_what_graphs_cannot_do_is_done_by_torch_or_refused(model, events, make_model):
    decoding = DecodingConfig(max_particles=2)
    assert pick_engine(model, decoding=decoding).name == "torch"
    with pytest.raises(ConfigError, match="choose the engine torch"):
        pick_engine(model, "onnxruntime", decoding=decoding)

    class Other(TranslationReconstructor):
        exporter = None

    other = make_model(model.tokeniser, Other)
    assert pick_engine(other).name == "torch"
    with pytest.raises(ConfigError, match="a Other cannot be exported"):
        pick_engine(other, "onnxruntime")
    with pytest.raises(ConfigError, match="no engine 'tensorflow'"):
        pick_engine(model, "tensorflow")


class TestCache:
    @pytest.fixture
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PFLOW_CACHE", str(tmp_path / "cache"))
        return tmp_path / "cache" / "graphs"

    @pytest.fixture
    def exports(self, monkeypatch):
        """One for each export."""
        made, export_model = [], onnx.export_model
        monkeypatch.setattr(onnx, "export_model", lambda *args: (made.append(1), export_model(*args)))
        return made

    def again(self, model):
        """The same model, loaded again."""
        return dataclasses.replace(model)

    def test_graphs_are_made_once_for_the_same_weights(self, model, events, cache, exports):
        expected = reconstruct(events, self.again(model))
        assert reconstruct(events, self.again(model)).particles.tolist() == expected.particles.tolist()
        assert len(exports) == len(list(cache.iterdir())) == 1

    def test_weights_that_change_make_other_graphs(self, model, events, cache, exports):
        mine = dataclasses.replace(model, reconstructor=copy.deepcopy(model.reconstructor))
        reconstruct(events, mine)
        with torch.no_grad():
            for weight in mine.reconstructor.network.heads.parameters():
                weight.mul_(0.5)
        check_engines(events, mine)
        assert len(exports) == 2

    def test_a_damaged_graph_is_made_anew(self, model, events, cache, exports):
        reconstruct(events, self.again(model))
        (path,) = cache.glob("*/decoder.onnx")
        path.write_bytes(path.read_bytes()[:-1])
        check_engines(events, self.again(model))
        assert len(exports) == 2
        check_engines(events, self.again(model))
        assert len(exports) == 2

    def test_a_folder_that_cannot_be_written_costs_time_alone(self, model, events, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("PFLOW_CACHE", str(tmp_path / "file"))
        check_engines(events, self.again(model))

    def test_another_process_may_be_faster(self, model, events, cache, monkeypatch):
        def slow(source, target):
            shutil.copytree(source, target)
            raise OSError("not empty")

        monkeypatch.setattr(os, "rename", slow)
        check_engines(events, self.again(model))
        assert len(list(cache.iterdir())) == 1

    def test_the_oldest_are_removed(self, model, events, cache, monkeypatch):
        monkeypatch.setattr(onnx, "MAX_KEPT", 2)
        for name in ("a", "b", "c"):
            (cache / name).mkdir(parents=True)
            os.utime(cache / name, (ord(name), ord(name)))
        reconstruct(events, self.again(model))
        names = [path.name for path in cache.iterdir()]
        assert len(names) == 2
        assert "c" in names


def test_an_exported_folder_is_a_model(exported_general, general, sample_dir, events, tmp_path):
    model = load_model(exported_general)
    assert (model.digest, model.decoding) == (general.digest, general.decoding)
    check_same(model.reconstruct(events[:3]), general.reconstruct(events[:3]))
    with pytest.raises(ConfigError, match="torch cannot run it"):
        reconstruct(events, model, engine="torch")
    with pytest.raises(ConfigError, match="is an exported model"):
        onnx.export_model(model, tmp_path / "again")
    output = tmp_path / "reco.root"
    summary = reconstruct_files([sample_dir / "zqq_test_small.root"], checkpoint=exported_general, output=output)
    assert (summary.engine, summary.model, summary.detector) == ("onnxruntime", str(exported_general), "ild_g4")
    made = read_provenance(output)
    assert made["options"]["engine"] == "onnxruntime"
    assert "onnxruntime" in made["versions"]
    reconstruct_files([sample_dir / "zqq_test_small.root"], output=tmp_path / "torch.root", engine="torch")
    check_same(read_reco(output), read_reco(tmp_path / "torch.root"))


class TestDamagedFolders:
    @pytest.fixture
    def folder(self, exported_general, tmp_path):
        return shutil.copytree(exported_general, tmp_path / "exported")

    def test_a_graph_with_another_number(self, folder):
        path = folder / "decoder.onnx"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"decoder\.onnx: damaged, or not what tokens\.json was written"):
            pick_engine(load_model(folder))

    def test_a_graph_that_is_not_there(self, folder):
        (folder / "refinement.onnx").unlink()
        with pytest.raises(InputError, match=r"refinement\.onnx: cannot be read: FileNotFoundError"):
            Graphs(folder)

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("sha256", None, "expected what `pflow export` wrote"),
            ("checkpoint", 3, r"tokens\.json, 'checkpoint\.format': expected a header of format 2"),
            ("format", 2, "expected layout 4, found 2, of another version of pflow: export the model again"),
        ],
    )
    def test_a_description_that_does_not_fit(self, field, value, message, folder):
        text = json.loads((folder / "tokens.json").read_text("utf-8"))
        text[field] = value
        (folder / "tokens.json").write_text(json.dumps(text), "utf-8")
        with pytest.raises(InputError, match=message):
            pick_engine(load_model(folder))

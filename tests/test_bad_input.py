"""What a user can hand to `pflow reconstruct` by mistake: a clear error, or a counted warning; never half an output."""

import os
import signal
from signal import SIGINT, SIGTERM

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.cli.main import main
from pflow.event.events import Events, Flag
from pflow.event.particles import Reconstruction
from pflow.event.schema import make_hits, make_particles
from pflow.io.flat import write_events
from pflow.io.open import read_events
from pflow.io.particles_root import RecoWriter, read_reco
from pflow.model.api import DecodingConfig
from pflow.model.translation import TranslationNetworkConfig, TranslationReconstructor
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig

N_EVENTS = 5
BAD = 3
"""Entry that is spoilt."""


@pytest.fixture(scope="module")
def good(sample_dir) -> Events:
    return read_events(sample_dir / "gamma1_test_small.root", entry_stop=N_EVENTS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, good, make_model, save_model):
    """A checkpoint as `pflow fit` writes it, with random weights."""
    tokeniser = Tokeniser.fit([good], TokenConfig())
    network = TranslationNetworkConfig(width=16, heads=2, encoder_layers=1, decoder_layers=1, feedforward=32)
    decoding = DecodingConfig(max_particles=4)
    model = make_model(tokeniser, TranslationReconstructor, network=network, decoding=decoding)
    return save_model(model, tmp_path_factory.mktemp("checkpoint") / "random.ckpt")


@pytest.fixture
def reconstruct(tmp_path, checkpoint, capsys):
    """Runs the command; gives the exit code, what it said, and the output's path."""

    def run(path, *options):
        output = tmp_path / "out" / "reco.root"
        output.parent.mkdir(exist_ok=True)
        words = ["reconstruct", path, "--checkpoint", checkpoint, "-o", output, "-q", "--device=cpu", *options]
        code = main([str(word) for word in words])
        return code, capsys.readouterr().err, output

    return run


def half_a_file(path, good):
    write_events(path, good)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_the_tree(path, good):
    with uproot.recreate(path) as file:
        file.mktree("Events", {"x": "float32"}).extend({"x": np.zeros(1, dtype=np.float32)})


def output(path, good):
    ones = np.ones((len(good), 1))
    photons = make_particles(pdg=22 * ones, charge=0 * ones, energy=ones, px=ones, py=0 * ones, pz=0 * ones)
    with RecoWriter(path, provenance={}) as writer:
        writer.extend(Reconstruction(particles=photons, event=good.event, flags=good.flags))


def misnamed(path, good):
    record = ak.zip({"energie": good.hits.energy, **{axis: good.hits.position[axis] for axis in "xyz"}})
    with uproot.recreate(path) as file:
        file.mktree(
            "events",
            {"event": "int64", "calo_hit": record.type.content},
            counter_name=lambda counted: f"n_{counted}",
            field_name=lambda outer, inner: f"{outer}.{inner}",
        ).extend({"event": good.event, "calo_hit": record})


def huge(path, good):
    """An event with a hundred thousand hits behind two others."""
    n = 100_000
    rng = np.random.default_rng(5)
    phi, z = rng.uniform(0, 2 * np.pi, n), rng.uniform(-2000, 2000, n)
    columns = {"energy": np.full(n, 0.01), "x": 1850 * np.cos(phi), "y": 1850 * np.sin(phi), "z": z}
    hits = make_hits(**{name: ak.unflatten(values, [n]) for name, values in columns.items()})
    write_events(path, Events(detector=good.detector, hits=ak.concatenate([good.hits[:2], hits])))


FILES = {
    "too many hits": (huge, ["entry 2, 'hits': 100000 hits, expected at most 32768"], [2]),
    "an output of pflow": (output, ["an output of pflow, which holds no hits: give the file that it was made"], None),
    "text": (lambda path, good: path.write_text("energy 1 2 3\n"), [], None),
    "half a file": (half_a_file, [], None),
    "another tree": (without_the_tree, ["Events"], None),
    "another branch": (misnamed, ["calo_hit.energy", "calo_hit.energie"], None),
}
"""Writers of bad files, words of the expected message, and the entries to skip; None: the whole file is unusable."""


@pytest.mark.parametrize("field", ["energy", "position.x"])
def test_a_bad_hit_costs_neither_the_file_nor_its_event(reconstruct, good, spoil, tmp_path, field):
    write_events(tmp_path / "given.root", spoil(good, BAD, f"hits.{field}", np.nan))
    code, said, output = reconstruct(tmp_path / "given.root")
    got = read_reco(output)
    assert code == 0
    assert f"entry {BAD}, 'hits." in said
    assert np.flatnonzero(got.flags & Flag.UNUSABLE_HITS).tolist() == [BAD]
    assert len(got.particles[BAD])


@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file_is_one_error_that_says_where_and_leaves_nothing(reconstruct, good, tmp_path, kind):
    write, expected, skipped = FILES[kind]
    path = tmp_path / "given.root"
    write(path, good)
    for options in ([], ["--on-error=skip"]):
        code, said, output = reconstruct(path, *options)
        if options and skipped:
            got = read_reco(output)
            assert code == 3
            assert f"{len(skipped)} of {len(got)} entries" in said
            assert np.flatnonzero(got.flags & Flag.BAD_INPUT).tolist() == skipped
            assert not ak.num(got.particles)[skipped].tolist()[0]
        else:
            assert code == 1
            assert all(part in said for part in ("given.root", *expected)), said
            assert "Traceback" not in said
            assert not list(output.parent.iterdir())


class TestTraining:
    """What training does with truth that cannot be right."""

    def fit(self, path, sample_dir, tmp_path, capsys):
        data = [f"--data.train={path}", f"--data.val={sample_dir / 'gamma1_val_small.root'}"]
        short = ["--trainer.fast_dev_run=true", "--trainer.accelerator=cpu"]
        code = main(["fit", *data, *short, f"--output={tmp_path / 'run'}"])
        return code, capsys.readouterr().err

    def test_a_link_that_points_outside_is_left_out(self, good, sample_dir, spoil, tmp_path, capsys):
        write_events(tmp_path / "links.root", spoil(good, BAD, "hit_links.particle", 99))
        code, said = self.fit(tmp_path / "links.root", sample_dir, tmp_path, capsys)
        assert code == 0
        assert f"left out; the first: {tmp_path / 'links.root'}, entry {BAD}, 'hit_links.particle'" in said

    def test_no_truth_to_train_on(self, good, sample_dir, tmp_path, capsys):
        write_events(tmp_path / "bare.root", good.without_truth())
        code, said = self.fit(tmp_path / "bare.root", sample_dir, tmp_path, capsys)
        assert code == 1
        assert "bare.root" in said
        assert "truth" in said


class TestSignals:
    """An interrupted run leaves no file behind, and says so."""

    @pytest.fixture(autouse=True)
    def as_in_the_foreground(self):
        """A shell lets its background jobs ignore SIGINT, and so these tests if it runs them there."""
        before = signal.signal(SIGINT, signal.default_int_handler)
        yield
        signal.signal(SIGINT, before)

    @pytest.mark.parametrize(("number", "code", "word"), [(SIGTERM, 143, "terminated"), (SIGINT, 130, "interrupted")])
    def test_reconstruct(self, reconstruct, good, tmp_path, monkeypatch, number, code, word):
        write_events(tmp_path / "good.root", good)
        monkeypatch.setattr("pflow.inference.worker.Worker.run", lambda *_: os.kill(os.getpid(), number))
        before = signal.getsignal(SIGTERM)
        exit_code, said, output = reconstruct(tmp_path / "good.root")
        assert exit_code == code
        assert f"pflow reconstruct: {word}" in said
        assert not list(output.parent.iterdir())
        assert signal.getsignal(SIGTERM) == before


def test_a_run_into_a_file_is_refused(tiny, small, tmp_path, capsys):
    (tmp_path / "file").write_text("precious")
    for output in (tmp_path / "file", tmp_path / "file" / "run"):
        data = [f"--data.train={small['val']}", f"--data.val={small['val']}", f"--output={output}"]
        assert main(["fit", *tiny, *data]) == 1
        assert "is a file" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "precious"


def test_a_run_beside_a_configuration_of_the_same_name_is_refused(tiny, small, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("precious: 1")
    data = [f"--data.train={small['val']}", f"--data.val={small['val']}", f"--output={tmp_path}"]
    assert main(["fit", *tiny, *data]) == 1
    assert "config.yaml" in capsys.readouterr().err
    assert (tmp_path / "config.yaml").read_text() == "precious: 1"


def test_a_reconstruction_with_numbers_that_are_not_finite_is_not_evaluated(reconstruct, good, spoil, tmp_path, capsys):
    write_events(tmp_path / "good.root", good)
    _, _, output = reconstruct(tmp_path / "good.root")
    reco = read_reco(output)
    entry = int(np.flatnonzero(ak.num(reco.particles))[0])
    with RecoWriter(tmp_path / "nan.root", provenance={}) as writer:
        writer.extend(spoil(reco, entry, "particles.energy", np.nan))
    evaluate = ["evaluate", str(tmp_path / "nan.root"), "--truth", str(tmp_path / "good.root"), "-q", "--no-plots"]
    assert main([*evaluate, "-o", str(tmp_path / "evaluation")]) == 1
    assert f"nan.root, entry {entry}, 'PFlow.energy': expected finite numbers" in capsys.readouterr().err

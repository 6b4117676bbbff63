"""What a user can hand to `pflow reconstruct` by mistake: a clear error, or a counted warning; never half an output."""

import os
import signal
from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from pflow.cli.main import main
from pflow.event.events import Events
from pflow.io.flat import write_events
from pflow.io.open import read_events
from pflow.io.particles_root import RecoWriter

N_EVENTS = 5
BAD = 3
"""Entry that is spoilt."""


@pytest.fixture(scope="module")
def good(sample_dir) -> Events:
    return read_events(sample_dir / "gamma1_test_small.root", entry_stop=N_EVENTS)


@pytest.fixture
def reconstruct(tmp_path, random_checkpoint, capsys):
    """Runs the command; gives the exit code, what it said, and the output's path."""

    def run(path, *options):
        output = tmp_path / "out" / "reco.root"
        output.parent.mkdir(exist_ok=True)
        words = ["reconstruct", path, "--checkpoint", random_checkpoint, "-o", output, "-q", "--device=cpu", *options]
        code = main([str(word) for word in words])
        return code, capsys.readouterr().err, output

    return run


@pytest.mark.parametrize("options", [[], ["--on-error=skip"]])
def test_a_file_that_cannot_be_used_is_one_error_and_leaves_nothing(reconstruct, good, make_reco, tmp_path, options):
    write_events(tmp_path / "half.root", good)
    os.truncate(tmp_path / "half.root", os.path.getsize(tmp_path / "half.root") // 2)
    with RecoWriter(tmp_path / "reco.root", provenance={}) as writer:
        writer.extend(make_reco(good.event))
    of_pflow = "an output of pflow, which holds no hits: give the file that it was made from"
    for name, message in (("half.root", "truncated"), ("reco.root", of_pflow)):
        code, said, output = reconstruct(tmp_path / name, *options)
        assert (code, list(output.parent.iterdir())) == (1, [])
        assert all(part in said for part in (name, message)), said
        assert "Traceback" not in said


def test_a_link_that_points_outside_is_left_out_of_a_training(good, tiny, data, spoil, tmp_path, capsys):
    write_events(tmp_path / "links.root", spoil(good, BAD, "hit_links.particle", 99))
    words = [f"--data.train={tmp_path / 'links.root'}", "--trainer.fast_dev_run=true"]
    assert main(["fit", *tiny, *data, *words]) == 0
    said = f"left out; the first: {tmp_path / 'links.root'}, entry {BAD}, 'hit_links.particle'"
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("as_in_the_foreground")
@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(SIGTERM, 143, "terminated"), (SIGHUP, 129, "terminated"), (SIGINT, 130, "interrupted")],
)
def test_an_interrupted_run_leaves_no_file_and_says_so(reconstruct, good, tmp_path, monkeypatch, number, code, word):
    write_events(tmp_path / "good.root", good)
    monkeypatch.setattr("pflow.inference.files.Worker.run", lambda *_: os.kill(os.getpid(), number))
    before = [signal.getsignal(end) for end in (SIGTERM, SIGHUP)]
    exit_code, said, output = reconstruct(tmp_path / "good.root")
    assert exit_code == code
    assert f"pflow reconstruct: {word}" in said
    assert not list(output.parent.iterdir())
    assert [signal.getsignal(end) for end in (SIGTERM, SIGHUP)] == before


@pytest.mark.parametrize(
    ("name", "output", "said"),
    [
        ("file", "file", "is a file"),
        ("file", "file/run", "is a file"),
        ("config.yaml", "", "config.yaml"),
        ("training.png", "", "training.png is not of a training"),
    ],
)
def test_a_run_replaces_nothing_that_is_no_run(tiny, data, tmp_path, capsys, name, output, said):
    (tmp_path / name).write_text("precious: 1")
    assert main(["fit", *tiny, *data, f"--output={tmp_path / output}"]) == 2
    assert said in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "precious: 1"

"""One output for each of many inputs: finished outputs stay, unusable inputs are left out."""

import os
import re
import signal

import awkward as ak
import numpy as np
import pytest

from pflow.cli.main import main
from pflow.errors import ConfigError, InputError
from pflow.event.events import BadEntriesWarning
from pflow.inference.files import reconstruct_files
from pflow.inference.worker import Worker
from pflow.io.flat import write_events
from pflow.io.particles_root import read_provenance, read_reco

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


def test_each_input_has_its_output(inputs, run, tmp_path, same_reco):
    summary = run(inputs, chunk_size=2)
    assert outputs(tmp_path / "reco") == ["run0.reco.root", "run1.reco.root", "run2.reco.root"]
    assert (summary.n_events, len(summary.written)) == (N_FILES * N_EVENTS, N_FILES)
    run([inputs[1]], output=tmp_path / "alone.root", output_dir=None, chunk_size=2)
    alone, together = (read_reco(tmp_path / name) for name in ("alone.root", "reco/run1.reco.root"))
    assert same_reco(together, alone)


def test_a_second_run_leaves_what_is_there_and_makes_the_rest(inputs, run, tmp_path):
    run(inputs[:2])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "reco").iterdir()}
    summary = run(inputs)
    assert [path.name for path in summary.finished_before] == ["run0.reco.root", "run1.reco.root"]
    assert [path.name for path in summary.written] == ["run2.reco.root"]
    assert summary.n_events == N_EVENTS
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_truncated_output_is_made_anew(inputs, run, tmp_path):
    run(inputs[:1])
    path = tmp_path / "reco" / "run0.reco.root"
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    assert run(inputs[:1]).written == [path]
    assert len(read_reco(path)) == N_EVENTS


def test_a_run_that_is_killed_goes_on_where_it_was(inputs, run, tmp_path, same_reco):
    """In the middle of the second file: the first is kept, and in the end all is as without it."""
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
    summary = run(inputs, chunk_size=1)
    assert [path.name for path in summary.finished_before] == ["run0.reco.root"]
    assert outputs(tmp_path / "reco") == outputs(tmp_path / "undisturbed")
    for name in outputs(tmp_path / "undisturbed"):
        assert same_reco(*(read_reco(tmp_path / folder / name) for folder in ("undisturbed", "reco")))


def test_an_output_with_other_settings_is_refused_and_replaced_by_force(inputs, run, tmp_path):
    run(inputs[:1])
    with pytest.raises(ConfigError, match=r"run0\.reco\.root was made otherwise: max_particles 3 there and 4 here"):
        run(inputs[:1], max_particles=4)
    run(inputs[:1], max_particles=4, force=True)
    assert read_provenance(tmp_path / "reco" / "run0.reco.root")["options"]["max_particles"] == 4


def test_an_output_of_another_input_of_the_same_name_is_refused(inputs, run, events, tmp_path):
    run(inputs[:1])
    write_events(tmp_path / "run0.root", events[:N_EVENTS])
    with pytest.raises(ConfigError, match="input's uuid"):
        run([tmp_path / "run0.root"])


def test_a_bad_file_stops_the_run_or_is_skipped_and_leaves_what_was_finished(with_a_bad_one, run, tmp_path):
    with pytest.raises(InputError, match=r"bad\.root: not a ROOT file"):
        run(with_a_bad_one)
    assert outputs(tmp_path / "reco") == ["run0.reco.root"]
    # `on_error` is no setting that the particles depend on.
    with pytest.warns(BadEntriesWarning, match=r"1 of 4 files were left out:\n  .*bad\.root: not a ROOT file"):
        summary = run(with_a_bad_one, on_error="skip")
    assert outputs(tmp_path / "reco") == ["run0.reco.root", "run1.reco.root", "run2.reco.root"]
    assert (len(summary.finished_before), summary.n_events) == (1, (N_FILES - 1) * N_EVENTS)


def test_a_file_that_breaks_in_the_middle_leaves_nothing_of_its_own(inputs, run, tmp_path, monkeypatch):
    work = Worker.run

    def broken(worker, chunk):
        if "run1" in chunk.path and chunk.start:
            raise InputError("broken", file=chunk.path, entry=chunk.start)
        return work(worker, chunk)

    monkeypatch.setattr(Worker, "run", broken)
    with pytest.warns(BadEntriesWarning, match=r"run1\.root, entry 1: broken"):
        summary = run(inputs, on_error="skip", chunk_size=1)
    assert outputs(tmp_path / "reco") == ["run0.reco.root", "run2.reco.root"]
    assert summary.n_events == 2 * N_EVENTS


def test_bad_files_alone_are_an_error(with_a_bad_one, run):
    with pytest.raises(InputError, match="not a ROOT file"):
        run(with_a_bad_one[1:2], on_error="skip")


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


def test_inputs_of_one_name_are_refused(inputs, run, tmp_path):
    with pytest.raises(ConfigError, match=r"would both be .*run0\.reco\.root"):
        run([inputs[0], tmp_path / "run0.root"])


@pytest.mark.parametrize("places", [{}, {"output": "a.root", "output_dir": "b"}])
def test_the_output_has_one_place(inputs, model, places):
    with pytest.raises(ConfigError, match="one place for the output"):
        reconstruct_files(inputs, checkpoint=model, **places)


def test_podio_files_are_kept_too(inputs, run, tmp_path):
    run(inputs[:1], format="edm4hep")
    assert outputs(tmp_path / "reco") == ["run0.reco.edm4hep.root"]
    assert len(run(inputs[:1], format="edm4hep").finished_before) == 1


def test_the_command_lists_what_was_left_out_and_exits_with_3(with_a_bad_one, random_checkpoint, tmp_path, capsys):
    options = ["--checkpoint", random_checkpoint, "--output-dir", tmp_path / "out", "-q"]
    call = [str(word) for word in ("reconstruct", *with_a_bad_one, *options, "--device", "cpu", "--on-error", "skip")]
    assert main(call) == 3
    out, err = capsys.readouterr()
    assert re.search(r"9 events, \d+ particles, 3 files written, 1 left out", out)
    assert re.search(r"warning: 1 of 4 files were left out:\n  .*bad\.root", err)

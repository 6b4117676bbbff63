import os
import signal
from unittest.mock import Mock

import pytest

from pflow.data.dataset import Chunk
from pflow.errors import ConfigError, InputError, PflowError
from pflow.event.events import BadEntriesWarning
from pflow.inference.files import entries_of_a_chunk, executor_for, reconstruct_files
from pflow.inference.scan import scan
from pflow.io.particles_root import read_reco
from pflow.metrics.scan import MODEL

distributed = pytest.importorskip("distributed", reason="dask is not installed (pflow[cluster])")

# dask's own: its closing comm threads and sockets are collected after the cluster is gone.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def threads():
    """Address of the scheduler of a process with four threads: this one."""
    # Any port: two test processes would both want 8787.
    scheduler = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    options = {"n_workers": 1, "threads_per_worker": 4, "dashboard_address": None, "scheduler_kwargs": scheduler}
    with distributed.LocalCluster(processes=False, **options) as cluster:
        yield cluster.scheduler_address


def test_processes_give_what_one_gives_also_if_one_is_killed(random_checkpoint, sample_dir, tmp_path, same_reco):
    from distributed import default_client

    sample, killed = sample_dir / "multi_test_small.root", []
    options = {"checkpoint": random_checkpoint, "chunk_size": 3, "device": "cpu"}

    def kill_one(done, _):
        if not killed:
            killed.append(min(default_client().run(os.getpid).values()))
            os.kill(killed[0], signal.SIGKILL)

    reconstruct_files([sample], output=tmp_path / "one.root", **options)
    reconstruct_files([sample], output=tmp_path / "two.root", cluster="local:2", on_progress=kill_one, **options)
    assert killed
    assert same_reco(read_reco(tmp_path / "one.root"), read_reco(tmp_path / "two.root"))


def test_a_bad_entry_leaves_nothing(random_checkpoint, sample_dir, tmp_path, threads):
    options = {"checkpoint": random_checkpoint, "cluster": threads, "max_hits": 600, "device": "cpu"}
    with pytest.raises(InputError, match="expected at most 600"):
        reconstruct_files([sample_dir / "multi_test_small.root"], output=tmp_path / "reco.root", **options)
    assert not list(tmp_path.iterdir())


def test_a_model_in_memory_cannot_travel(model, sample_dir, tmp_path):
    with pytest.raises(ConfigError, match="path of the checkpoint"):
        reconstruct_files(
            [sample_dir / "multi_test_small.root"], checkpoint=model, output=tmp_path / "x.root", cluster="local:1"
        )


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("local:0", "local:N"),
        ("local:many", "local:N"),
        ("tcp://127.0.0.1:9", "does not answer"),
        ("slurm.yaml", "does not answer, expected local:N or the address of a scheduler"),
    ],
)
def test_a_cluster_that_cannot_be(random_checkpoint, sample_dir, tmp_path, monkeypatch, cluster, message):
    monkeypatch.setattr("pflow.inference.files.TIMEOUT", "1s")
    sample = sample_dir / "multi_test_small.root"
    with pytest.raises(ConfigError, match=message):
        reconstruct_files([sample], checkpoint=random_checkpoint, output=tmp_path / "x.root", cluster=cluster)


@pytest.mark.parametrize(
    ("cluster", "n_entries", "expected"),
    [(None, 367, 256), ("local:1", 367, 256), ("local:2", 2000, 250), ("local:2", 20, 32), ("local:4", 10**5, 256)],
)
def test_small_files_are_divided_among_processes(cluster, n_entries, expected):
    assert entries_of_a_chunk(cluster, n_entries, 256) == expected


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (distributed.KilledWorker("task", None, 3), InputError, r"in\.root, entry 8: entries 8 to 11 ended several"),
        (distributed.CancelledError("gone"), PflowError, "the cluster was lost: CancelledError"),
    ],
)
def test_a_chunk_that_ends_every_process_and_a_lost_scheduler_are_said(monkeypatch, error, raised, message):
    client = Mock(**{"submit.return_value.result.side_effect": error})
    monkeypatch.setattr("dask.distributed.Client", lambda *_, **__: Mock(__enter__=lambda _: client, __exit__=Mock()))
    with executor_for(Mock(), "tcp://scheduler") as executor:
        result = executor.submit(Chunk("in.root", 8, 12))
        with pytest.raises(raised, match=message) as told:
            result()
        assert told.type is raised  # no option is wrong


def test_a_process_that_is_killed_while_it_starts_is_said(tmp_path):
    import dask

    killed = tmp_path / "killed.py"
    killed.write_text("import os\ndef dask_setup(_): os.kill(os.getpid(), 9)\n")
    said = pytest.raises(PflowError, match="a process of cluster 'local:1' ended while it started")
    with dask.config.set({"distributed.worker.preload": [str(killed)]}), said as told:
        executor_for(Mock(), "local:1").__enter__()
    assert told.type is PflowError


def test_threads_read_a_file_that_was_written_anew(random_checkpoint, sample_dir, tmp_path, threads):
    options = {"checkpoint": random_checkpoint, "device": "cpu", "max_particles": 1, "cluster": threads}
    for name, n_events in (("gammasep", 25), ("zqq", 6)):
        (tmp_path / "in.root").unlink(missing_ok=True)
        (tmp_path / "in.root").write_bytes((sample_dir / f"{name}_test_small.root").read_bytes())
        summary = reconstruct_files([tmp_path / "in.root"], output=tmp_path / f"{name}.root", **options)
        assert summary.n_events == n_events


def test_threads_give_what_one_gives_and_warn_of_their_own_chunk(
    random_checkpoint, sample_dir, tmp_path, same_reco, threads
):
    """They shared the open files, and `warnings.catch_warnings` is of the process: they would take each other's."""
    source, said, made = sample_dir / "multi_test_small.root", [], []
    options = {"checkpoint": random_checkpoint, "device": "cpu", "max_particles": 1, "max_hits": 600}
    for name, cluster in (("one", None), ("four", threads)):
        options |= {"output": tmp_path / f"{name}.root", "cluster": cluster, "chunk_size": 2, "on_error": "skip"}
        with pytest.warns(BadEntriesWarning, match="entries cannot be used and were left empty") as warned:
            reconstruct_files([source], **options)
        said.append([str(warning.message) for warning in warned])
        made.append(read_reco(options["output"]))
    assert same_reco(*made)
    assert said[0] == said[1]
    assert len(said[0]) > 1


@pytest.mark.usefixtures("few_resamples")
def test_a_scan_by_threads_gives_what_one_gives(random_checkpoint, sample_dir, threads):
    options = {"vary": {"cells": [2]}, "entries": 5, "oracle": False, "null_test": False, "chunk_size": 3}
    options |= {"files": sample_dir / "multi_test_small.root", "checkpoint": random_checkpoint, "device": "cpu"}
    here, there = (scan(**options, cluster=cluster) for cluster in (None, threads))
    for one, other in zip(here.points, there.points, strict=True):
        numbers, by_threads = (
            {key: number.value for key, number in point.algorithms[MODEL].items()} for point in (one, other)
        )
        assert numbers == pytest.approx(by_threads, rel=1e-5)

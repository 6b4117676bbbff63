import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pflow.data.files import Chunk
from pflow.errors import ConfigError, InputError
from pflow.inference.files import reconstruct_files
from pflow.inference.worker import Job, _outcome, entries_of_a_chunk
from pflow.io.particles_root import read_reco

distributed = pytest.importorskip("distributed", reason="dask is not installed (pflow[cluster])")

# dask's own: its closing comm threads and sockets are collected after the cluster is gone.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


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


def test_a_bad_entry_leaves_nothing(random_checkpoint, sample_dir, tmp_path):
    options = {"checkpoint": random_checkpoint, "cluster": "local:1", "max_hits": 600, "device": "cpu"}
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
        ("slurm.yaml", "name the address of its scheduler"),
    ],
)
def test_a_cluster_that_cannot_be(random_checkpoint, sample_dir, tmp_path, monkeypatch, cluster, message):
    monkeypatch.setattr("pflow.inference.worker.TIMEOUT", "1s")
    sample = sample_dir / "multi_test_small.root"
    with pytest.raises(ConfigError, match=message):
        reconstruct_files([sample], checkpoint=random_checkpoint, output=tmp_path / "x.root", cluster=cluster)


@pytest.mark.parametrize(
    ("cluster", "n_entries", "expected"),
    [(None, 367, 256), ("local:1", 367, 256), ("local:2", 2000, 250), ("local:2", 20, 32), ("local:4", 10**5, 256)],
)
def test_small_files_are_divided_among_processes(cluster, n_entries, expected):
    assert entries_of_a_chunk(cluster, n_entries, 256) == expected


def test_a_chunk_that_ends_every_process_is_the_error_of_its_file_and_a_lost_scheduler_is_said():
    errors = distributed.KilledWorker("task", None, 3), distributed.CancelledError("gone")
    killed, lost = (SimpleNamespace(result=Mock(side_effect=error)) for error in errors)
    job, chunk = Job(Path("out.root"), ["in.root"]), Chunk("in.root", 8, 12)
    *_, error = _outcome(job, chunk, killed)
    assert re.search(r"in\.root, entry 8: entries 8 to 11 ended several processes", str(error))
    with pytest.raises(ConfigError, match="the cluster was lost: CancelledError"):
        _outcome(job, chunk, lost)

import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from pflow.data.files import Chunk
from pflow.errors import ConfigError, InputError
from pflow.inference.cluster import _outcome, _Watch
from pflow.inference.files import Job, reconstruct_files
from pflow.io.particles_root import read_reco

distributed = pytest.importorskip("distributed", reason="dask is not installed (pflow[cluster])")
dask = pytest.importorskip("dask")

# dask's own: its closing comm threads and sockets are collected after the cluster is gone.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, model, save_model):
    """The random model as a checkpoint that other processes can load."""
    return save_model(model, tmp_path_factory.mktemp("cluster") / "random.ckpt")


def test_processes_give_what_one_gives_in_order(checkpoint, sample_dir, tmp_path):
    sample = sample_dir / "multi_test_small.root"
    options = {"checkpoint": checkpoint, "chunk_size": 4, "device": "cpu"}
    reconstruct_files([sample], output=tmp_path / "one.root", **options)
    reconstruct_files([sample], output=tmp_path / "two.root", cluster="local:2", **options)
    one, two = read_reco(tmp_path / "one.root"), read_reco(tmp_path / "two.root")
    assert one.event.tolist() == two.event.tolist()
    assert one.particles.tolist() == two.particles.tolist()


def test_a_bad_entry_leaves_nothing(checkpoint, sample_dir, tmp_path):
    options = {"checkpoint": checkpoint, "cluster": "local:1", "max_hits": 600, "device": "cpu"}
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
    [("local:0", "local:N"), ("local:many", "local:N"), ("tcp://127.0.0.1:9", "does not answer")],
)
def test_a_cluster_that_cannot_be(checkpoint, sample_dir, tmp_path, monkeypatch, cluster, message):
    monkeypatch.setattr("pflow.inference.cluster.TIMEOUT", "1s")
    sample = sample_dir / "multi_test_small.root"
    with pytest.raises(ConfigError, match=message):
        reconstruct_files([sample], checkpoint=checkpoint, output=tmp_path / "x.root", cluster=cluster)


def test_a_process_that_is_killed_costs_its_chunk(checkpoint, sample_dir, tmp_path):
    from distributed import default_client

    sample = sample_dir / "multi_test_small.root"
    options = {"checkpoint": checkpoint, "chunk_size": 3, "device": "cpu", "max_particles": 5}
    reconstruct_files([sample], output=tmp_path / "undisturbed.root", **options)
    killed = []

    def kill_one(done, _):
        if not killed:
            killed.append(min(default_client().run(os.getpid).values()))
            os.kill(killed[0], signal.SIGKILL)

    reconstruct_files(
        [sample], output_dir=tmp_path / "out", cluster="local:1", on_progress=kill_one, on_error="skip", **options
    )
    assert killed
    one, two = (
        read_reco(path) for path in (tmp_path / "undisturbed.root", tmp_path / "out/multi_test_small.reco.root")
    )
    assert one.event.tolist() == two.event.tolist()
    assert one.particles.tolist() == two.particles.tolist()


@pytest.fixture
def watch():
    return _Watch(SimpleNamespace(nthreads=dict), "mine", None)


def test_jobs_that_ended_are_replaced_at_each_look(monkeypatch):
    """A batch system that fails for a while is no error: other jobs go on."""
    monkeypatch.setattr("pflow.inference.cluster.LOOK_EVERY", 0.0)
    looks = []

    def replace_ended():
        looks.append(1)
        if len(looks) == 2:
            raise ConfigError("batch system slurm: a job was refused")

    client = SimpleNamespace(nthreads=lambda: {"tcp://worker": 1})
    watch = _Watch(client, "mine", SimpleNamespace(replace_ended=replace_ended))
    done = SimpleNamespace(done=lambda: True, result=lambda: 7)
    assert watch.result(done) == 7
    with pytest.warns(UserWarning, match="a job was refused; trying again"):
        assert watch.result(done) == 7
    assert watch.result(done) == 7
    assert len(looks) == 3


def test_a_chunk_that_ends_every_process_is_the_error_of_its_file(watch):
    killed = SimpleNamespace(
        done=lambda: True, result=lambda: (_ for _ in ()).throw(distributed.KilledWorker("task", None, 3))
    )
    *_, error = _outcome(Job(Path("out.root"), ["in.root"]), Chunk("in.root", 8, 12), killed, watch)
    assert re.search(r"in\.root, entry 8: entries 8 to 11 ended several processes", str(error))


def test_a_scheduler_that_ends_is_said(watch):
    lost = SimpleNamespace(done=lambda: True, result=lambda: (_ for _ in ()).throw(distributed.CancelledError("gone")))
    with pytest.raises(ConfigError, match="the cluster was lost: CancelledError"):
        _outcome(Job(Path("out.root"), ["in.root"]), Chunk("in.root", 0, 1), lost, watch)

import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pflow.data.files import Chunk
from pflow.errors import ConfigError, InputError
from pflow.inference.cluster import SCHEDULER, SYSTEMS, BatchSystem, _dask_jobqueue, _outcome, _Watch, load_batch_system
from pflow.inference.files import reconstruct_files
from pflow.inference.worker import Job
from pflow.io.particles_root import read_reco

distributed = pytest.importorskip("distributed", reason="dask is not installed (pflow[cluster])")
dask_jobqueue = pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed (pflow[cluster])")

# dask's own: its closing comm threads and sockets are collected after the cluster is gone.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, model, save_model):
    """The random model as a checkpoint that other processes can load."""
    return save_model(model, tmp_path_factory.mktemp("cluster") / "random.ckpt")


def test_processes_give_what_one_gives_in_order_also_if_one_is_killed(checkpoint, sample_dir, tmp_path, same_reco):
    from distributed import default_client

    sample, killed = sample_dir / "multi_test_small.root", []
    options = {"checkpoint": checkpoint, "chunk_size": 3, "device": "cpu"}

    def kill_one(done, _):
        if not killed:
            killed.append(min(default_client().run(os.getpid).values()))
            os.kill(killed[0], signal.SIGKILL)

    reconstruct_files([sample], output=tmp_path / "one.root", **options)
    reconstruct_files([sample], output=tmp_path / "two.root", cluster="local:2", on_progress=kill_one, **options)
    assert killed
    assert same_reco(read_reco(tmp_path / "one.root"), read_reco(tmp_path / "two.root"))


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm", ["#SBATCH -p standard", "#SBATCH -t 04:00:00", "export OMP_NUM_THREADS=1", "--lifetime 230m"]),
        (
            "htcondor",
            ["MY.DaskWorkerMemory = 4294967296", "+MaxRuntime = 14400", "export OMP_NUM_THREADS=1", "--lifetime 230m"],
        ),
    ],
)
def test_the_examples_become_job_scripts(name, expected):
    """Only written: no batch system is at hand."""
    example = load_batch_system(name)
    with getattr(dask_jobqueue, SYSTEMS[name])(scheduler_options=SCHEDULER, **example.options) as cluster:
        script = cluster.job_script()
    for text in expected:
        assert text in script


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Commands in place of Slurm's: a job is a script that runs at once, in a process group of its own."""
    commands = {
        "sbatch": 'cp "$1" "$0.$$"; setsid sh "$0.$$" >/dev/null 2>&1 & echo "Submitted batch job $!"',
        "scancel": 'kill -- "-$1"',
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def slurm_system(jobs: int, processes: int = 1) -> BatchSystem:
    """Of jobs with some processes of one thread each."""
    options = {"cores": processes, "processes": processes, "memory": "1 GiB", "interface": "lo"}
    return BatchSystem(system="slurm", jobs=jobs, options=options)


def test_jobs_are_submitted(slurm):
    with slurm_system(jobs=2).start() as jobs:
        numbers = [job.job_id for job in jobs.cluster.workers.values()]
        assert str(jobs) == f"jobs {', '.join(numbers)} of slurm"
    scripts = [path.read_text() for path in slurm.glob("sbatch.*")]
    assert len(scripts) == 2
    assert all("#SBATCH" in script for script in scripts)


@pytest.mark.slow
def test_a_job_that_ends_is_replaced(slurm):
    """As when its time is over, which for jobs that begin together is at once for all of them."""
    with slurm_system(jobs=1, processes=2).start() as jobs, distributed.Client(jobs.cluster) as client:
        first = client.submit(os.getpgid, 0, pure=False).result(timeout=60)
        jobs.replace_ended()
        (before,) = (job.job_id for job in jobs.cluster.workers.values())
        assert str(first) == before
        os.killpg(first, signal.SIGKILL)
        until = time.monotonic() + 60
        while client.nthreads() and time.monotonic() < until:
            time.sleep(0.1)
        jobs.replace_ended()
        assert str(jobs) == f"jobs {before} of slurm"  # it may be that the processes are only restarted
        jobs.replace_ended()
        (after,) = (job.job_id for job in jobs.cluster.workers.values())
        assert client.submit(os.getpgid, 0, pure=False).result(timeout=60) == int(after) != first
        jobs.replace_ended()
        assert str(jobs) == f"jobs {after} of slurm"


def test_a_job_that_is_refused_is_an_error_of_one_line(slurm):
    (slurm / "sbatch").write_text("#!/bin/sh\nprintf 'sbatch: error: no nope\\nsbatch: error: failed\\n' >&2; exit 1\n")
    with pytest.raises(ConfigError) as caught, slurm_system(jobs=2).start():
        pass
    assert str(caught.value) == "batch system slurm: a job was refused: sbatch: error: no nope; sbatch: error: failed"


def test_a_batch_system_that_is_not_there(slurm, monkeypatch):
    monkeypatch.setenv("PATH", str(slurm / "none"))
    message = "no command 'sbatch', which submits jobs, on this machine"
    with pytest.raises(ConfigError, match=message), slurm_system(jobs=1).start():
        pass


def test_interrupts_are_errors_as_before(monkeypatch):
    """On import dask-jobqueue makes SIGINT leave with code 0, as if all were done."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "dask_jobqueue"]:
        monkeypatch.delitem(sys.modules, name)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _dask_jobqueue()
        assert "dask_jobqueue.runner" in sys.modules
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("system: slurm\njobs: 1\noptions: {cores: 1, memory: 1 GiB, interface: none9}", "batch system slurm: .*none9"),
        ("system: slurmm\njobs: 1", r"no batch system 'slurmm'.*slurm"),
        ("system: slurm\njobs: 0", "jobs must be at least 1"),
        ("system: slurm\njob: 3", "unknown field 'job'"),
        ("system: slurm\njobs: 1\noptions: {cores: 1}", "batch system slurm: .*memory"),
    ],
)
def test_a_file_that_cannot_work_is_refused(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message), load_batch_system(path).start():
        pass

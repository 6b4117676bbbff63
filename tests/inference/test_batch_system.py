import os
import signal
import sys
import time

import pytest

from pflow.errors import ConfigError
from pflow.inference.cluster import (
    SCHEDULER,
    SYSTEMS,
    BatchSystem,
    _dask_jobqueue,
    load_batch_system,
)

dask_jobqueue = pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed (pflow[cluster])")
distributed = pytest.importorskip("distributed")

# dask's own: its sockets are collected after the cluster is gone.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


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
@pytest.mark.parametrize("processes", [1, 2])
def test_a_job_that_ends_is_replaced(slurm, processes):
    """As when its time is over, which for jobs that begin together is at once for all of them."""
    with slurm_system(1, processes).start() as jobs, distributed.Client(jobs.cluster) as client:
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
    with pytest.raises(ConfigError) as caught:
        slurm_system(jobs=2).start()
    assert str(caught.value) == "batch system slurm: a job was refused: sbatch: error: no nope; sbatch: error: failed"


def test_a_batch_system_that_is_not_there(slurm, monkeypatch):
    monkeypatch.setenv("PATH", str(slurm / "none"))
    with pytest.raises(ConfigError, match="no command 'sbatch', which submits jobs, on this machine"):
        slurm_system(jobs=1).start()


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
    with pytest.raises(ConfigError, match=message):
        load_batch_system(path).start()

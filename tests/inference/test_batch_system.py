from __future__ import annotations

import pytest

from pflow.errors import ConfigError
from pflow.inference.batch_system import SYSTEMS, BatchSystem, load_batch_system
from pflow.inference.cluster import run_on_cluster

dask_jobqueue = pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed (pflow[cluster])")

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
    with getattr(dask_jobqueue, SYSTEMS[name])(**example.options) as cluster:
        script = cluster.job_script()
    for text in expected:
        assert text in script


def test_jobs_are_submitted(tmp_path):
    """With a command in place of sbatch that keeps the script and says that it has job 7."""
    submit = tmp_path / "sbatch"
    submit.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/submitted.sh\necho "Submitted batch job 7"\n')
    submit.chmod(0o755)
    system = BatchSystem(system="slurm", jobs=1, options={"cores": 1, "memory": "1 GiB"})

    class Slurm(dask_jobqueue.slurm.SLURMJob):
        submit_command = str(submit)
        cancel_command = "true"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dask_jobqueue.SLURMCluster, "job_cls", Slurm)
        with system.start() as cluster:
            cluster.sync(cluster._correct_state)
    assert "#SBATCH" in (tmp_path / "submitted.sh").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
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


def test_a_file_that_is_not_there():
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        next(run_on_cluster("none.yaml", "model", None, []))

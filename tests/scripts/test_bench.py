from pathlib import Path

import pytest

import bench

CHECKOUT = Path(bench.__file__).resolve().parents[1]
OPTIONS = {
    "io": ["zqq_test_small.root", "--events", "2", "--runs", "1"],
    "reconstruct": ["gammasep_test_small.root", "--events", "2", "--runs", "1"],
    "latency": ["gammasep_test_small.root", "--events", "2", "--runs", "1", "--engines", "torch"],
    "paired": ["multi_test_small.root", "--other", str(CHECKOUT), "--events", "4", "--runs", "1"],
    "gpu": ["multi_test_small.root", "--events", "2", "--device", "cpu", "--runs", "1"],
}


def test_every_benchmark_is_tried():
    assert set(OPTIONS) == {module.__name__.rpartition(".")[2] for module in bench.BENCHMARKS}


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_graphs")
@pytest.mark.parametrize("name", OPTIONS)
def test_runs(name, sample_dir, capfd):
    file, *options = OPTIONS[name]
    bench.main([name, str(sample_dir / file), *options])
    assert capfd.readouterr().out.strip()

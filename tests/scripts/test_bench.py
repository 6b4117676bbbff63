import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bench
from benchmarks import latency
from pflow.checkpoint import load_model
from pflow.io.flat import write_events
from pflow.io.open import read_events

CHECKOUT = Path(bench.__file__).resolve().parents[1]
OPTIONS = {
    "reconstruct": ["gammasep_test_small.root", "--events", "2", "--runs", "1"],
    "latency": ["gammasep_test_small.root", "--events", "2", "--runs", "1", "--engines", "torch"],
}


def test_every_benchmark_is_tried():
    assert {*OPTIONS, "gpu"} == {module.__name__.rpartition(".")[2] for module in bench.BENCHMARKS}


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_graphs")
@pytest.mark.parametrize("name", OPTIONS)
def test_runs(name, sample_dir, capfd):
    file, *options = OPTIONS[name]
    bench.main([name, str(sample_dir / file), *options])
    assert capfd.readouterr().out.strip()


def test_cpp_is_timed_for_the_files_detector_and_says_why_it_fails(sample_dir, monkeypatch, capsys):
    def run_program(*_, **__):
        raise subprocess.CalledProcessError(1, "reconstruct", stderr="error: hits[7].layer: not known\n")

    exported = []
    changed = {"export_model": lambda *_, detector: exported.append(detector.name), "run_program": run_program}
    for name in ("missing_for_cpp", "write_events", "compile_library", "compile_program"):
        changed[name] = lambda *_: ""
    for name, function in changed.items():
        monkeypatch.setattr(latency, name, function)
    bench.main(["latency", str(sample_dir / "cld_multi_test_small.root"), "--events", "1", "--engines", "C++"])
    assert exported == ["cld"]
    assert capsys.readouterr().out == "without C++: error: hits[7].layer: not known\n"


def test_a_machine_without_that_gpu_is_an_error_of_one_line(sample_dir):
    with pytest.raises(SystemExit, match=r"^error: no device 'cuda:99' here: .*$"):
        bench.main(["gpu", str(sample_dir / "multi_test_small.root"), "--device", "cuda:99"])


@pytest.mark.slow
def test_gpu_script_does_the_same_on_a_cpu(sample_dir, tmp_path):
    """Benchmark `gpu`, and a continuation of `general` that goes on in bfloat16 and can be loaded."""
    for name in ("zqq_train", "zqq_val"):
        write_events(tmp_path / f"{name}.root", read_events(sample_dir / "multi_test_small.root", entry_stop=8))
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    script = CHECKOUT / "scripts" / "gpu.sh"
    assert all((CHECKOUT / path).is_file() for path in re.findall(r"\b(?:tests|scripts)/\w\S+\.py", script.read_text()))
    words = ["bash", str(script), str(tmp_path / "out"), str(tmp_path)]
    said = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=540)
    assert said.returncode == 0, said.stderr
    files = {path.name: path for path in (tmp_path / "out").iterdir()}
    assert len(files) <= 8
    assert re.search(r"decoding, 1 events, bfloat16: ms an event [\d.]+", files["times.txt"].read_text())
    assert "val/wrong_energy" in files["losses.csv"].read_text()
    made = load_model(files["last.ckpt"]).config["provenance"]
    assert (made["step"], made["precision"]) == (2, "bf16-mixed")
    assert made["began_with"]["sha256"] == load_model("general").digest

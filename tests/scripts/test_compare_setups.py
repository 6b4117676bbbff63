from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "network.width=8",
    "network.heads=1",
    "network.encoder_layers=1",
    "network.decoder_layers=1",
    "network.feedforward=8",
    "data.hit_energy_min=0.05",
    "model.max_particles=3",
    "trainer.limit_train_batches=2",
    "trainer.accelerator=cpu",
)


@pytest.fixture(scope="module")
def compare(tmp_path_factory, sample_dir):
    """A function that runs the script on small samples; returns its folder and what it printed."""
    folder = tmp_path_factory.mktemp("compare")
    data = folder / "data"
    data.mkdir()
    for split in ("train", "val", "test"):
        (data / f"gamma1_{split}.root").symlink_to(sample_dir / "gamma1_val_small.root")
        (data / f"gammasep_{split}.root").symlink_to(sample_dir / "gammasep_test_small.root")

    def run(*options: str) -> tuple[Path, str]:
        places = ["--out", folder / "out", "--json", folder / "setups.json", "--report", folder / "RESULTS.md"]
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / "compare_setups.py", *places, "--data", data, *options],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return folder, done.stdout

    return run


@pytest.mark.slow
def test_a_set_up_is_measured_once_and_reported(compare):
    options = ("--setups", "paper_v1_kind", "--epochs", "1", "--override", *TINY)
    folder, printed = compare(*options)
    assert "pflow fit" in printed
    results = json.loads((folder / "setups.json").read_text())
    assert results["budget"] == {"epochs": 1, "override": list(TINY)}
    measured = results["setups"]["paper_v1_kind"]
    assert measured["training_events"] == 50 + 25
    assert set(measured["samples"]["gamma1"]["lines"]) == {"model", "always_one", "classical", "limit"}
    report = (folder / "RESULTS.md").read_text()
    assert "No result: `paper_v1_flags`, `paper_v2_kind`, `tracks_cross`, `tracks_typed`." in report
    assert sum(line.startswith("| `paper_v1_kind` |") for line in report.splitlines()) == 2

    _, printed = compare(*options)
    assert "pflow" not in printed.replace("paper_v1_kind: already measured", "")
    (folder / "RESULTS.md").write_text(f"{report}\nanother section\n")
    compare("--only-report")
    assert (folder / "RESULTS.md").read_text() == f"{report}\nanother section\n"

"""A training of a few steps on the small samples that come with the repository, shared by the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from pflow.cli.fit import main

TINY = (
    "--network.width=8",
    "--network.heads=1",
    "--network.encoder_layers=1",
    "--network.decoder_layers=1",
    "--network.feedforward=8",
    "--data.batch_size=8",
    "--data.chunk=32",
    "--data.hit_energy_min=0.05",
    "--model.max_particles=3",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
)
"""A network and data so small that a step takes milliseconds."""


@pytest.fixture(scope="session")
def tiny() -> tuple[str, ...]:
    return TINY


@pytest.fixture(scope="session")
def small(sample_dir: Path) -> dict[str, str]:
    """Paths of the small samples of single photons."""
    return {name: str(sample_dir / f"gamma1_{name}_small.root") for name in ("train", "val", "test")}


@pytest.fixture(scope="session")
def run(tmp_path_factory, small) -> Path:
    """Folder of a finished fit: two epochs of five steps."""
    folder = tmp_path_factory.mktemp("fit") / "run"
    code = main(
        [
            "fit",
            *TINY,
            f"--data.train={small['val']}",
            f"--data.val={small['val']}",
            "--trainer.max_epochs=2",
            f"--output={folder}",
        ]
    )
    assert code == 0
    return folder

"""The wheel works outside the checkout: detectors, layouts and training set-ups travel in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folder with the wheel's content, as pip unpacks it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(REPOSITORY)], check=True
    )
    (wheel,) = folder.glob("pflow-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


def run(installed, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=installed.parent, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_it_is_the_wheel_that_runs(installed):
    assert run(installed, "-c", "import pflow; print(pflow.__file__)").startswith(str(installed))


def test_detectors_travel_in_it(installed):
    code = "from pflow.resources import builtin_names; print(*builtin_names('detector'))"
    assert run(installed, "-c", code).split() == ["cld", "clic", "ild", "ild_g4"]


def test_a_file_is_read_with_the_built_in_layout(installed, sample_dir):
    shown = run(installed, "-m", "pflow", "inspect", "--json", str(sample_dir / "gamma1_val_small.root"))
    assert '"flat"' in shown


def test_training_starts_from_the_built_in_configuration(installed):
    assert "seed_everything: 1" in run(installed, "-m", "pflow", "fit", "--print_config")


def test_typing_information_travels_in_it(installed):
    assert (installed / "pflow" / "py.typed").is_file()

"""The wheel works outside the checkout: detectors, layouts, training set-ups and trained weights travel in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pflow.config import shipped_models

REPOSITORY = Path(__file__).resolve().parent.parent

CONTENT = ("pyproject.toml", "README.md", "LICENSE", "pflow", "configs")
"""What of the checkout a wheel is made from."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout with one more trained model in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in CONTENT:
        source = REPOSITORY / name
        shutil.copytree(source, folder / name) if source.is_dir() else shutil.copy(source, folder / name)
    pretrained = folder / "pflow" / "pretrained"
    shutil.copytree(pretrained / "ild-g4-photon", pretrained / "toy")
    return folder


@pytest.fixture(scope="module")
def installed(checkout, tmp_path_factory):
    """Folder with the wheel's content, as pip unpacks it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(checkout)], check=True
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
    code = "from pflow.config import builtin_names; print(*builtin_names('detector'))"
    assert run(installed, "-c", code).split() == ["cld", "clic", "ild", "ild_g4"]


def test_a_file_is_read_with_the_built_in_layout(installed, sample_dir):
    shown = run(installed, "-m", "pflow", "inspect", "--json", str(sample_dir / "gamma1_val_small.root"))
    assert '"flat"' in shown


def test_training_starts_from_the_built_in_configuration(installed):
    assert "seed_everything: 1" in run(installed, "-m", "pflow", "fit", "--print_config")


def test_typing_information_travels_in_it(installed):
    assert (installed / "pflow" / "py.typed").is_file()


def test_trained_models_travel_in_it_and_are_loaded_by_their_name(installed):
    code = "import pflow; print(*[name for name in pflow.shipped_models() if pflow.load_model(name).path == name])"
    assert run(installed, "-c", code).split() == sorted([*shipped_models(), "toy"])


def test_the_cpp_library_travels_in_it(installed):
    folder = installed / "pflow" / "export" / "cpp"
    assert {"pflow.h", "pflow.cpp", "CMakeLists.txt"} <= {path.name for path in folder.iterdir()}

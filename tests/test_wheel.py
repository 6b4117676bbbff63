"""The wheel works outside the checkout: detectors, layouts, training set-ups and trained weights travel in it."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pflow.config import builtin_names, shipped_models

REPOSITORY = Path(__file__).resolve().parent.parent

CONTENT = ("pyproject.toml", "README.md", "LICENSE", "pflow", "configs")
"""What of the checkout a wheel is made from."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folder with a wheel's content, as pip unpacks it: of a copy of the checkout with one more trained model."""
    folder, checkout = (tmp_path_factory.mktemp(name) for name in ("wheel", "checkout"))
    for name in CONTENT:
        source = REPOSITORY / name
        shutil.copytree(source, checkout / name) if source.is_dir() else shutil.copy(source, checkout / name)
    pretrained = checkout / "pflow" / "pretrained"
    shutil.copytree(pretrained / "ild-g4-photon", pretrained / "toy")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *options, str(checkout)], check=True)
    (wheel,) = folder.glob("pflow-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_it_holds_all_that_the_package_needs(installed, sample_dir):
    code = f"""
import sys, pflow, pflow.config
print(pflow.__file__)
print(*pflow.config.builtin_names("detector"))
print(*[name for name in pflow.shipped_models() if pflow.load_model(name).path == name])
print("torch._dynamo" in sys.modules)
print(len(pflow.read_events({str(sample_dir / "gamma1_val_small.root")!r}, entry_stop=2)))
print(pflow.config.load_yaml(pflow.config.config_dir() / "base.yaml")["seed_everything"])
"""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=installed.parent, env=environment, capture_output=True, text=True, check=True
    )
    file, detectors, models, has_compiler, events, seed = done.stdout.splitlines()
    assert file.startswith(str(installed))
    assert detectors.split() == builtin_names("detector")
    assert models.split() == sorted([*shipped_models(), "toy"])
    assert has_compiler == "False"  # loading does not import the compiler of torch, two seconds of it
    assert (events, seed) == ("2", "1")
    assert (installed / "pflow" / "py.typed").is_file()
    folder = installed / "pflow" / "export" / "cpp"
    assert {"pflow.h", "pflow.cpp", "CMakeLists.txt"} <= {path.name for path in folder.iterdir()}

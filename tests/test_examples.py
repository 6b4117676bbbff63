"""The examples in docstrings run, in a folder with the samples, and every public name has one."""

import doctest
import inspect
import shutil
from importlib import import_module
from pathlib import Path

import awkward as ak
import pytest

import pflow

pytestmark = pytest.mark.usefixtures("few_resamples")

PACKAGE = Path(pflow.__file__).parent
MODULES = sorted(
    ".".join(("pflow", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text("utf-8")
)


@pytest.fixture(scope="module")
def folder(sample_dir, tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("examples")
    for path in sample_dir.glob("*_test_small.root"):
        shutil.copy(path, folder)
    return folder


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    module = import_module(name)
    names = vars(module) | {"pflow": pflow, "ak": ak}
    failed, _ = doctest.testmod(module, globs=names, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert not failed


@pytest.mark.parametrize("name", sorted({*pflow.__all__} - {"__version__"}))
def test_every_public_name_has_an_example(name):
    assert ">>> " in inspect.getdoc(getattr(pflow, name))

"""The notebooks run from top to bottom, and hold no outputs in git."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
TIME_LIMIT = 300
"""Seconds a cell may take: the notebooks need less than 40 in all on an idle core."""


def by_name(path):
    return path.stem


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """The repository for the samples, one thread, and nothing written beside the notebook."""
    monkeypatch.setenv("PFLOW_REPO", str(REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of jupyter's own
@pytest.mark.parametrize("path", NOTEBOOKS, ids=by_name)
def test_runs_from_top_to_bottom(path, environment, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    folder = tmp_path / "notebook"
    folder.mkdir()
    NotebookClient(
        notebook, timeout=TIME_LIMIT, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    printed = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if output.get("name") == "stderr"
    ]
    assert not [output.text for output in printed if "Warning" in output.text]


def test_all_are_there():
    assert [path.stem[:3] for path in NOTEBOOKS] == ["01_", "02_", "03_", "04_", "05_", "06_"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=by_name)
def test_outputs_are_stripped(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=by_name)
def test_is_written_as_git_likes_it(path):
    text = path.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    assert set(json.loads(text)["metadata"]) == {"kernelspec", "language_info"}
    identities = [cell["id"] for cell in json.loads(text)["cells"]]
    assert len(set(identities)) == len(identities)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=by_name)
def test_links_lead_somewhere(path):
    notebook = nbformat.read(path, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert (path.parent / target).exists(), target

"""The notebooks run from top to bottom, and their stored outputs are small and need no kernel."""

import base64
import io
import itertools
import json
import os
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from jupyter_client import KernelManager
from matplotlib import colormaps
from nbclient import NotebookClient
from PIL import Image

import notebooks

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
TIME_LIMIT = 300
"""Seconds a cell may take: the notebooks need less than 40 in all on an idle core."""
SHORT = {
    "max_epochs=3": "max_epochs=1",
    "max-steps=30": "max-steps=3",
    "pflow.scan(sample, vary={": "pflow.scan(sample, entries=3, vary={",
}
"""What makes notebooks 02, 06 and 09 short."""
FEW_FIGURES = """
from pflow.plots import evaluation
def few(result, *, figures=evaluation.figures):
    shown = ("count_difference", "resolution_68_vs_energy", "response", "visible_energy")
    return {name: drawn for name, drawn in figures(result).items() if name in shown}
evaluation.figures = few
"""
"""Figures of an evaluation that no notebook shows are drawn by tests/cli and tests/plots."""


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request) -> Path:
    return request.param


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A kernel for all notebooks, which has imported the libraries once; one thread, and no large samples."""
    folder = tmp_path_factory.mktemp("kernel")
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "few_figures.py").write_text(FEW_FIGURES)
    settings = {"PFLOW_REPO": str(REPOSITORY), "PFLOW_DATA": str(folder), "IPYTHONDIR": str(folder / "ipython")}
    settings["OMP_NUM_THREADS"] = "1"
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=os.environ | settings)
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of jupyter's own
def test_runs_from_top_to_bottom(path, kernel, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    for (long, short), cell in itertools.product(SHORT.items(), notebook.cells):
        cell.source = cell.source.replace(long, short)
    # A new namespace, and nothing written beside the notebook.
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f"%reset -f\nimport os\nos.chdir({str(tmp_path)!r})"))
    client = NotebookClient(notebook, km=kernel, timeout=TIME_LIMIT)
    try:
        client.execute()
    finally:
        client.kc.stop_channels()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [text for output in outputs if output.get("name") == "stderr" and "Warning" in (text := output.text)]


def test_all_are_there():
    assert [path.stem[:3] for path in NOTEBOOKS] == ["01_", "02_", "03_", "04_", "05_", "06_", "07_", "08_", "09_"]
    assert all(any(long in path.read_text("utf-8") for path in NOTEBOOKS) for long in SHORT)


def test_is_written_as_git_likes_it(path):
    text = path.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert len(text.encode()) <= notebooks.MAX_SIZE
    # Stored by scripts/notebooks.py, from top to bottom.
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "execute_result", "display_data"}
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert kinds <= {"text/plain", "text/html", "image/png"}
    assert not re.search(r"/(tmp|home|root|work)/|<iframe|<script", "".join(map(str, outputs)))


def test_stored_outputs_are_small_and_name_no_folder_of_the_machine(tmp_path):
    picture = io.BytesIO()
    Image.effect_noise((300, 200), 50).save(picture, "png")
    png = base64.b64encode(picture.getvalue()).decode()
    drawn = nbformat.v4.new_output("display_data", {"image/png": png, "text/plain": "<Figure>"})
    smaller = notebooks.reduced(drawn, "/tmp/x").data
    assert list(smaller) == ["image/png"]
    assert len(smaller["image/png"]) < 0.8 * len(png)
    assert Image.open(io.BytesIO(base64.b64decode(smaller["image/png"]))).size == (300, 200)
    page = nbformat.v4.new_output("execute_result", {"text/html": "<iframe>", "text/plain": "at /tmp/x/a.root"})
    assert notebooks.reduced(page, "/tmp/x").data == {"text/plain": "at a.root"}
    said = nbformat.v4.new_output("stream", name="stdout", text="wrote /tmp/x/a.root in /tmp/x\n")
    assert notebooks.reduced(said, "/tmp/x").text == "wrote a.root in .\n"
    assert notebooks.reduced(nbformat.v4.new_output("stream", name="stderr", text="12%"), "/tmp/x") is None
    widget = nbformat.v4.new_output("display_data", {"application/vnd.jupyter.widget-view+json": {}})
    assert notebooks.reduced(widget, "/tmp/x") is None


def test_small_things_keep_their_colours_beside_large_ones():
    """A colour bar and markers beside an image of many other colours."""
    colours = np.zeros((200, 300, 3), np.uint8)
    colours[:, 100:] = colormaps["RdBu"](np.random.default_rng(1).random((200, 200)), bytes=True)[..., :3]
    colours[:, :4] = colormaps["viridis"](np.linspace(0, 1, 200), bytes=True)[:, None, :3]
    picture = io.BytesIO()
    Image.fromarray(colours).save(picture, "png")
    drawn = nbformat.v4.new_output("display_data", {"image/png": base64.b64encode(picture.getvalue()).decode()})
    stored = io.BytesIO(base64.b64decode(notebooks.reduced(drawn, "/tmp/x").data["image/png"]))
    assert np.abs(np.asarray(Image.open(stored).convert("RGB"), int) - colours).max() < 32


def test_links_lead_somewhere(path):
    notebook = nbformat.read(path, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert (path.parent / target).exists(), target

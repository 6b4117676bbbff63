"""The notebooks run from top to bottom, and their stored outputs are small and need no kernel."""

import itertools
import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient

import notebooks

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
TIME_LIMIT = 300
"""Seconds a cell may take: the notebooks need less than 40 in all on an idle core."""
SHORT = {
    "max_epochs=3": "max_epochs=1, limit_train_batches=3, limit_val_batches=1",
    "max-steps=30": 'max-steps=2", "--trainer.limit-val-batches=1',
    'vary={"cells": [1, 2, 4], "layers": [1, 2], "hcal_layers": [48, 40, 32]}': 'entries=3, vary={"cells": [4]}',
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
OF_THE_RUN = r"[\d.]+ s\b|[0-9a-f]{8}-[-0-9a-f]{27}|0x[0-9a-f]+"
"""Times, UUIDs and addresses, which differ from run to run."""
NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"


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


def said(cell, folder: Path) -> tuple[list[str], list[float]]:
    """Words and numbers of the outputs of a cell, with paths as they are stored."""
    outputs = [o for o in cell.get("outputs", []) if o.get("name") != "stderr" and "image/png" not in o.get("data", {})]
    text = "".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)
    text = re.sub(OF_THE_RUN, "", text.replace(f"{folder}/", "").replace(str(REPOSITORY), ".."))
    numbers = [float(number.replace(",", "")) for number in re.findall(NUMBER, text)]
    return re.sub(NUMBER, "#", text).split(), numbers


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of jupyter's own
def test_runs_from_top_to_bottom(path, kernel, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    for (long, short), cell in itertools.product(SHORT.items(), notebook.cells):
        cell.source = cell.source.replace(long, short)
    # A new namespace, and nothing written beside the notebook. To collect the libraries' objects takes half a second.
    begin = f"import gc\ngc.freeze()\n%reset -f\nimport os\nos.chdir({str(tmp_path)!r})"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(begin))
    client = NotebookClient(notebook, km=kernel, timeout=TIME_LIMIT)
    try:
        client.execute()
    finally:
        client.kc.stop_channels()
    # What is stored is what the code gives now, up to the first cell that is shortened.
    cells = zip(nbformat.read(path, as_version=4).cells, notebook.cells[1:], strict=True)
    for stored, now in itertools.takewhile(lambda pair: pair[0].source == pair[1].source, cells):
        if not re.search("figures|iterdir", now.source):  # lists of figures, which `FEW_FIGURES` shortens
            (words, numbers), (words_now, numbers_now) = said(stored, tmp_path), said(now, tmp_path)
            assert words == words_now, now.source
            assert numbers == pytest.approx(numbers_now, rel=0.02, abs=0.02), now.source
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [text for output in outputs if output.get("name") == "stderr" and "Warning" in (text := output.text)]


def test_all_are_there():
    assert [path.stem[:3] for path in NOTEBOOKS] == ["01_", "02_", "03_", "04_", "05_", "06_", "07_", "08_", "09_"]
    texts = [path.read_text("utf-8").replace('\\"', '"') for path in NOTEBOOKS]
    assert all(any(long in text for text in texts) for long in SHORT)


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


def test_links_lead_somewhere(path):
    notebook = nbformat.read(path, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert (path.parent / target).exists(), target

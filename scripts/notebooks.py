"""Run the notebooks and store them with their outputs, as people read them on the web.

    python scripts/notebooks.py [NUMBER ...]    # e.g. 08; default: all

Pictures are small PNGs; interactive pages, widgets and messages of progress are left out.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
MAX_SIZE = 250_000  # bytes of a notebook
MAX_HTML = 20_000  # bytes of a table; more is a page of its own
COLOURS = 80  # of a picture


def executed(path: Path) -> str:
    """The text of a notebook with its outputs; ValueError if it is too large."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as scratch:  # like the repository, for the paths that are shown
        for name in ("tests", "configs", "scripts"):
            (Path(scratch) / name).symlink_to(ROOT / name)
        folder = Path(scratch) / "notebooks"
        folder.mkdir()
        settings = {"PFLOW_REPO": "..", "PFLOW_DATA": "none", "OMP_NUM_THREADS": "1", "IPYTHONDIR": scratch}
        where = {"metadata": {"path": str(folder)}}
        client = NotebookClient(notebook, timeout=600, coalesce_streams=True, resources=where)
        client.execute(env={**os.environ, **settings})
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # when it ran
            if cell.cell_type == "code":
                cell.outputs = [small for output in cell.outputs if (small := reduced(output, str(folder))) is not None]
    notebook.metadata["language_info"] = {"name": "python"}
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if len(text.encode()) > MAX_SIZE:
        raise ValueError(f"{path.name} has {len(text.encode()):,} bytes, more than {MAX_SIZE:,}")
    return text


def reduced(output: Any, folder: str) -> Any:
    """An output without widgets and interactive pages; None if nothing is left."""
    if output.output_type == "stream":
        output.text = _without(folder, output.text)
        return None if output.name == "stderr" else output
    data = output.data
    if "image/png" in data:
        picture, stored = Image.open(io.BytesIO(base64.b64decode(data["image/png"]))), io.BytesIO()
        # Colours are chosen by distance: by area, small markers and colour bars would lose theirs.
        few = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
        few.save(stored, "png", optimize=True)
        output.data = {"image/png": base64.b64encode(stored.getvalue()).decode() + "\n"}
        return output
    page = data.get("text/html", "")
    texts = {kind: data[kind] for kind in ("text/plain", "text/html") if kind in data}
    if "<iframe" in page or len(page) > MAX_HTML:
        del texts["text/html"]
    output.data = {kind: _without(folder, text) for kind, text in texts.items()}
    return output if texts else None


def _without(folder: str, text: str) -> str:
    """A text with paths as seen from the folder of the notebooks."""
    return text.replace(f"{folder}/", "").replace(folder, ".").replace(str(Path(folder).parent), "..")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", nargs="*", help="numbers of notebooks, e.g. 08; default: all")
    numbers = parser.parse_args().number
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if not numbers or path.name[:2] in numbers:
            path.write_text(text := executed(path), "utf-8")
            print(f"{path.name}: {len(text.encode()) / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()

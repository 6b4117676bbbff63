"""Build the documentation site: the API, the stored notebooks, README, RESULTS and other documents.

    pip install -e '.[docs]' && python scripts/docs.py    # into build/docs

`scripts/notebooks.py` runs and stores the notebooks. A broken link is an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import pflow

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README", "RESULTS", "CHANGELOG", "CONTRIBUTING", "SECURITY")
MODULES = (
    *("checkpoint", "errors", "event.events", "event.move", "event.schema", "event.truth", "inference.events"),
    *("io.flat", "io.open", "metrics.report", "metrics.scan", "model.api"),
    *("physics.detector", "physics.kinematics", "physics.pdg"),
)
"""What the docstrings of public names refer to, below `pflow`: fields and units of events, targets, flags ..."""
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>pflow: {title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
td, th {{ border-bottom: 1px solid #ccc; padding: .2em .7em; }}
pre {{ background: #f6f6f6; padding: .8em; overflow-x: auto; }} img {{ max-width: 100%; }}</style></head><body>
<p><a href="README.html">README</a> | <a href="RESULTS.html">Results</a> | <a href="api/pflow.html">API</a>
| {notebooks}</p>
{body}</body></html>"""


def main(folder: Path) -> int:
    import pdoc
    from nbconvert.filters.markdown import markdown2html

    shutil.rmtree(folder, ignore_errors=True)
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    convert = ["nbconvert", "--to", "html", "--output-dir", str(folder / "notebooks"), *map(str, notebooks)]
    subprocess.run([sys.executable, "-m", *convert], check=True)
    for name in pflow.__all__:  # pdoc asks no module for names that it imports on first use
        setattr(pflow, name, getattr(pflow, name))
    pdoc.render.configure(docformat="numpy")
    pdoc.pdoc("pflow", *(f"pflow.{name}" for name in MODULES), output_directory=folder / "api")
    links = " | ".join(f'<a href="notebooks/{path.stem}.html">{path.stem[:2]}</a>' for path in notebooks)
    for name in DOCUMENTS:
        body = named_as_on_github(markdown2html((ROOT / f"{name}.md").read_text("utf-8")))
        page = PAGE.format(title=name, body=body, notebooks=f"Notebooks {links}")
        (folder / f"{name}.html").write_text(page, "utf-8")
    names = "|".join([*DOCUMENTS, *(path.stem for path in notebooks)])
    document = re.compile(rf'href="((?:\.\./|notebooks/)?(?:{names}))\.(?:md|ipynb)')
    for page in [*folder.glob("*.html"), *(folder / "notebooks").glob("*.html")]:
        page.write_text(document.sub(r'href="\1.html', page.read_text("utf-8")), "utf-8")
        copy_linked_files(page, folder)
    shutil.copy(folder / "README.html", folder / "index.html")
    broken = broken_links(folder)
    n_pages = len([*folder.rglob("*.html")])
    print(*broken, f"{n_pages} pages in {folder}, {len(broken)} broken links", sep="\n")
    return int(bool(broken))


def broken_links(folder: Path) -> list[str]:
    """Links of the site to files and headings that are not there, and names of docstrings that have no page."""
    pages = sorted(folder.rglob("*.html"))
    linked = [(page, target) for page in pages for target in sorted(targets(page))]
    broken = [f"{page.relative_to(folder)}: {to}" for page, to in linked if not (page.parent / to).exists()]
    for page in [*folder.glob("*.html"), *(folder / "notebooks").glob("*.html")]:
        for to, heading in re.findall(r'href="((?:[\w./]+\.html)?)#([^"]+)"', page.read_text("utf-8")):
            linked_page = page.parent / to if to else page
            if linked_page.exists() and f'id="{heading}"' not in linked_page.read_text("utf-8"):
                broken.append(f"{page.relative_to(folder)}: {to}#{heading}")
    api = (folder / "api" / "pflow.html").read_text("utf-8")
    broken += [f"api/pflow.html: {name} has no page" for name in re.findall(r"<code>(pflow\.[\w.]+)</code>", api)]
    return broken


def named_as_on_github(body: str) -> str:
    """A page whose headings have GitHub's names, which the links of the documents use: `#ild-simplified`."""

    def renamed(found: re.Match[str]) -> str:
        return found[1] + re.sub(r"[^\w-]", "", unescape(found[2]).lower())

    return re.sub(r'(<h\d id="|href="#)([^"]+)', renamed, body)


def copy_linked_files(page: Path, folder: Path) -> None:
    """Copy what a page of the site links to in the repository: pictures, configurations, cards."""
    for target in targets(page):
        path = (page.parent / target).resolve()
        source = ROOT / path.relative_to(folder) if path.is_relative_to(folder) else path
        if not path.exists() and source.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, path)


def targets(page: Path) -> set[str]:
    """Links of a page within the site."""
    links = re.findall(r'(?:href|src)="([^"#?]+)', re.sub(r"(?s)<script.*?</script>", "", page.read_text("utf-8")))
    return {unescape(target) for target in links if not re.match(r"[a-z]+:|//|\{", target)}


if __name__ == "__main__":
    sys.exit(main(ROOT / "build" / "docs"))

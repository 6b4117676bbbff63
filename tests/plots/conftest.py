import json
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import awkward as ak
import numpy as np
import pytest

from pflow.event.events import Events, Reconstruction
from pflow.event.schema import make_hits, make_links, make_particles, make_tracks, make_truth
from pflow.physics.detector import load_detector


@pytest.fixture
def event() -> Events:
    """One event: a 10 GeV photon along x with three hits, a 5 GeV pi+ along y with two, a hit without a particle."""
    return Events(
        detector=load_detector("ild_g4"),
        hits=make_hits(
            energy=[[3.0, 2.0, 1.0, 0.5, 0.25, 0.125]],
            x=[[1810.0, 1820.0, 1830.0, 230.0, 240.0, -1900.0]],
            y=[[0.0, 0.0, 10.0, 1810.0, 2100.0, 0.0]],
            z=[[0.0, 5.0, 0.0, 0.0, 0.0, 0.0]],
            time=[[6.0] * 6],
            subdetector=[[0, 0, 0, 0, 2, 0]],
            layer=[[0, 1, 2, 0, 1, 3]],
        ),
        tracks=make_tracks(b_field=3.5, px=[[0.0]], py=[[5.0]], pz=[[0.0]], charge=[[1.0]]),
        truth=make_truth(
            pdg=[[211, 22]],
            mass=[[0.13957, 0.0]],
            px=[[0.0, 10.0]],
            py=[[5.0, 0.0]],
            pz=[[0.0, 0.0]],
            charge=[[1.0, 0.0]],
            **{key: [[0.0, 0.0]] for key in ("vx", "vy", "vz")},
        ),
        hit_links=make_links(
            source=[[0, 1, 2, 3, 3, 4]], particle=[[1, 1, 1, 0, 1, 0]], weight=[[1.0, 1.0, 1.0, 0.7, 0.3, 1.0]]
        ),
        track_links=make_links(source=[[0]], particle=[[0]], weight=[[1.0]]),
        path="folder/hand.root",
    )


@pytest.fixture
def empty_event() -> Events:
    """One event without hits, in a file without tracks and truth."""
    nothing = ak.values_astype(ak.Array([[0.0]])[:, :0], np.float32)
    return Events(detector=load_detector("cld"), hits=make_hits(energy=nothing, x=nothing, y=nothing, z=nothing))


@pytest.fixture
def reconstruction() -> Reconstruction:
    """Two particles for `event`: a photon along x and a pi+ along y."""
    particles = make_particles(
        pdg=[[22, 211]], charge=[[0.0, 1.0]], energy=[[9.0, 5.1]], px=[[9.0, 0.0]], py=[[0.0, 5.1]], pz=[[0.0, 0.0]]
    )
    return Reconstruction(particles=particles, event=np.array([0]), flags=np.array([0], np.uint32))


PROBE = """<script>
const seen = [];
for (const kind of ["error", "warn"]) {
  console[kind] = (...what) => seen.push("console." + kind + ": " + what.join(" "));
}
window.addEventListener("error", e => seen.push("error: " + e.message));
window.addEventListener("unhandledrejection", e => seen.push("rejection: " + e.reason));
document.addEventListener("securitypolicyviolation", e => seen.push("loads " + e.blockedURI));
window.addEventListener("load", () => setTimeout(() => {
  const texts = selector => [...document.querySelectorAll(selector)].map(e => e.textContent);
  const report = {
    seen,
    text: document.body.innerText,
    canvases: document.querySelectorAll("canvas").length,
    cut: document.documentElement.scrollWidth > window.innerWidth,
    legend: texts(".legendtext"),
    buttons: [...document.querySelectorAll(".modebar-btn")].map(e => e.getAttribute("data-title")),
    resources: performance.getEntriesByType("resource").map(e => e.name).filter(name => !name.startsWith("data:")),
  };
  const out = document.createElement("pre");
  out.id = "report";
  out.textContent = JSON.stringify(report);
  document.body.append(out);
}, 500));
</script>"""
"""First script of a page: collects errors and, in the end, adds a report to the page."""


@pytest.fixture
def open_in_browser(tmp_path) -> Callable[[str], dict[str, Any]]:
    """Open a page in Chromium without network; return the report of `PROBE`."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium: apt-get install chromium")

    def opened(page: str) -> dict[str, Any]:
        path = tmp_path / "page.html"
        path.write_text(page.replace("<body>", f"<body>{PROBE}", 1), encoding="utf-8")
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader"),
            *("--disable-background-networking", "--no-first-run", "--disable-dev-shm-usage", "--window-size=1240,900"),
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={tmp_path / 'profile'}",
            *("--virtual-time-budget=20000", "--dump-dom", path.as_uri()),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        report = re.search(r'<pre id="report">(.*?)</pre>', done.stdout, re.DOTALL)
        assert report, f"the page did not finish: {done.stderr[-2000:]}"
        return json.loads(report[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))

    return opened

"""How fast the interactive page of `pflow display` turns, with and without drawing fewer hits meanwhile.

    python scripts/bench_display.py ../shared/data/g4/zqq_test.root

Joins the first events of the file until they have `--hits` hits, opens the page in a headless Chromium without a
graphics card (everything is drawn by the processor: the worst case) and turns it with the mouse, by turns with and
without the script of `pflow.plots.motion`. Prints, for each, the corners of triangles in one redraw (hits are squares
of some corners each) and the median time from one frame to the next in the second half of the turn. On a busy machine
only the ratio means much.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np

from pflow.event.overlay import overlay
from pflow.io.open import read_events
from pflow.plots.display_html import event_page
from pflow.plots.motion import SCRIPT
from pflow.plots.scene import Scene, make_scene

PROBE = """<script>
window.addEventListener("load", () => setTimeout(async () => {
  const drawing = document.getElementById("event")._fullLayout.scene._scene.glplot, gl = drawing.gl;
  const finish = () => gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, new Uint8Array(4));
  const box = drawing.canvas.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
  const mouse = (type, k, buttons) => drawing.canvas.dispatchEvent(
    new MouseEvent(type, {clientX: x + 3 * k, clientY: y, buttons, bubbles: true}));
  const draw = gl.drawArrays;
  let corners = 0, drawn = 0;
  gl.drawArrays = function (mode, first, count) { corners += count; return draw.call(gl, mode, first, count); };
  mouse("mousedown", 0, 1);
  const times = [];
  let last = performance.now();
  for (let k = 1; k <= TURNS; ++k) {
    mouse("mousemove", k, 1);
    corners = 0;
    await new Promise(requestAnimationFrame);  // plotly draws when the browser asks for a frame
    finish();
    const now = performance.now();
    if (corners && k > TURNS / 2) times.push(now - last);  // by then it knows how much it may draw
    if (corners) drawn = corners;
    last = now;
  }
  mouse("mouseup", TURNS, 0);
  console.log("BENCH" + JSON.stringify({corners: drawn, times}) + "END");
}, 500));
</script>"""
"""Put into the page: turns it, waits for every redraw to be done, and writes what it saw to the console."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--hits", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=20, help="redraws a run (default: 20)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each kind, by turns (default: 2)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a run may take (default: 300)")
    args = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        parser.error("no Chromium: apt-get install chromium")
    scene = joined(args.file, args.hits)
    page = event_page(scene)
    script = SCRIPT.replace("{plot_id}", "event")
    if page.count(script) != 1:
        parser.error("the page does not hold the script of pflow.plots.motion")
    pages = {"all hits": page.replace(script, ""), "strongest hits": page}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in pages}
    for _ in range(args.rounds):
        for name, text in pages.items():
            runs[name].append(turned(browser, text, args.turns, args.limit))
    print(f"{len(scene.position)} hits in {len(scene.groups)} groups, page of {len(page) / 1e6:.1f} MB")
    medians = {name: statistics.median(t for run in many for t in run["times"]) for name, many in runs.items()}
    for name, many in runs.items():
        print(f"{name:>15}: {many[0]['corners']:7d} corners, {medians[name]:8.1f} ms a frame")
    print(f"{'ratio':>15}: {medians['all hits'] / medians['strongest hits']:.2f}")


def joined(path: Path, n_hits: int) -> Scene:
    """The first events of the file as one of at least `n_hits` hits, 60 particles in a colour of their own."""
    events = read_events(path, entry_stop=50)
    total = np.cumsum(ak.to_numpy(ak.num(events.hits, axis=1)))
    if total[-1] < n_hits:
        raise SystemExit(f"{path}: {total[-1]} hits in the first {len(total)} events, expected {n_hits}")
    n_events = int(np.searchsorted(total, n_hits)) + 1
    return make_scene(overlay(events, [list(range(n_events))]), max_particles=60)


def turned(browser: str, page: str, turns: int, limit: float) -> dict[str, Any]:
    """Turn a page in the browser; corners drawn in a redraw, and the time of each, ms."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "page.html"
        path.write_text(page.replace("<body>", f"<body>{PROBE.replace('TURNS', str(turns))}", 1), encoding="utf-8")
        command = [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader"),
            *("--disable-background-networking", "--no-first-run", "--disable-dev-shm-usage"),
            *("--window-size=1280,800", "--enable-logging=stderr", "--remote-debugging-port=0"),
            *(f"--user-data-dir={folder}/profile", path.as_uri()),
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            timer = threading.Timer(limit, process.terminate)
            timer.start()
            try:
                for line in process.stderr:
                    if "BENCH" in line:
                        found: dict[str, Any] = json.loads(line[line.index("BENCH") + 5 : line.index("END")])
                        return found
            finally:
                timer.cancel()
                process.terminate()
    raise SystemExit(f"the page was not turned within {limit:.0f} s; try fewer --turns, or on a quieter machine")


if __name__ == "__main__":
    main()

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from pflow.plots.motion import SCRIPT, hits_in_motion

NODE = shutil.which("node")

STAND_IN = """
const ids = {}, window = new EventTarget(), canvas = {tagName: "CANVAS"}, log = [];
class Points {
  constructor(n, meta) { this.pointCount = n; this.vertexCount = 18 * n; this._trace = {data: {meta}}; }
  draw() { log.push(this.vertexCount / 18); }
  drawPick() { log.push("pick"); }
}
class Line { constructor() { this.vertexCount = 40; } draw() { log.push("line"); } drawPick() { log.push("pick"); } }
const objects = [new Points(100, {moving: 7}), new Points(5, {moving: 5}), new Line()];
const seen = {updates: 0};
const plot = new EventTarget();
plot._fullLayout = {scene: {_scene: {glplot: {objects, pixelRatio: 2, update() { seen.updates += 1; }}}}};
const document = {getElementById: id => id === "event" ? plot : null};
const send = (type, buttons, target = canvas, to = plot) => {
  const event = new Event(type);
  Object.defineProperty(event, "target", {value: target});
  event.buttons = buttons;
  to.dispatchEvent(event);
};
let frames = [];
const requestAnimationFrame = watch => frames.push(watch);
const frame = time => { const now = frames; frames = []; for (const watch of now) watch(time); };
const wait = ms => new Promise(done => setTimeout(done, ms));
const drawn = name => {
  log.length = 0;
  for (const object of objects) { object.draw(); object.drawPick(); }
  seen[name] = [...log];
};
"""
"""As much of a browser and of plotly as the script of the page touches; `drawn` notes what one redraw would draw."""

ALL = [100, "pick", 5, "pick", "line", "pick"]
FEW = [7, 5, "line"]


def page_after(steps):
    """What the stand-in saw while `steps` (JavaScript) went on."""
    if NODE is None:
        pytest.skip("no node to run JavaScript: apt-get install nodejs")
    script = SCRIPT.replace("{plot_id}", "event")
    program = f"(async () => {{{STAND_IN}{script}{steps}; console.log(JSON.stringify(seen)); }})()"
    done = subprocess.run([NODE, "-e", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("sizes", [[5000, 3000, 1500, 400, 99, 1], [10_000], [1] * 1999 + [500], [400] * 40])
def test_at_most_the_limit_and_some_of_every_group(sizes):
    few = hits_in_motion(sizes, 2000)
    assert 0.95 * 2000 <= sum(few) <= 2000
    assert all(1 <= n <= size for n, size in zip(few, sizes, strict=True))


def test_the_same_share_of_every_group():
    assert hits_in_motion([6001, 3001, 1001, 1], 1004) == [601, 301, 101, 1]


def test_a_small_event_is_drawn_whole():
    assert hits_in_motion([1200, 700, 100], 2000) == [1200, 700, 100]
    assert hits_in_motion([]) == []


def test_more_groups_than_the_limit():
    assert hits_in_motion([9, 8, 7], 2) == [1, 1, 0]


@pytest.mark.parametrize(("sizes", "limit"), [([3, 0], 5), ([3], -1)])
def test_sizes_and_limit_are_checked(sizes, limit):
    with pytest.raises(ValueError, match="expected sizes of at least 1"):
        hits_in_motion(sizes, limit)


def test_a_turn_draws_few_hits_and_its_end_draws_all():
    seen = page_after("""
        drawn("before"); send("mousedown", 1); drawn("pressed"); send("mousemove", 1); drawn("turning");
        await wait(300); drawn("held still");
        send("mouseup", 0, canvas, window); drawn("just released"); await wait(300); drawn("after")""")
    assert seen == {
        "before": ALL,
        "pressed": ALL,
        "turning": FEW,
        "held still": FEW,
        "just released": FEW,
        "after": ALL,
        "updates": 1,
    }


def test_a_zoom_draws_few_hits_for_a_while():
    seen = page_after('send("wheel", 0); drawn("zooming"); await wait(300); drawn("after")')
    assert seen == {"zooming": FEW, "after": ALL, "updates": 1}


def test_a_turn_draws_fewer_pixels():
    seen = page_after("""
        const glplot = plot._fullLayout.scene._scene.glplot;
        send("mousemove", 1); send("mousemove", 1); seen.turning = glplot.pixelRatio;
        send("mouseup", 0, canvas, window); await wait(300); seen.after = glplot.pixelRatio""")
    assert seen == {"turning": 1, "after": 2, "updates": 1}


FEWER = [2, 2, "line"]
"""A quarter of what is drawn in motion, rounded up."""


def test_slow_frames_in_a_row_quarter_what_is_drawn_for_good():
    seen = page_after("""
        const glplot = plot._fullLayout.scene._scene.glplot;
        send("mousemove", 1);
        for (const time of [1000, 1060, 1120, 1136, 1200, 1260]) frame(time);
        drawn("twice slow"); seen.ratio = glplot.pixelRatio;
        frame(1320); drawn("slow"); seen.fewer = glplot.pixelRatio;
        send("mouseup", 0, canvas, window); await wait(300); drawn("after"); seen.whole = glplot.pixelRatio;
        send("mousemove", 1); drawn("again"); seen.coarse = glplot.pixelRatio; seen.watched = frames.length""")
    assert (seen["twice slow"], seen["ratio"]) == (FEW, 1)
    assert (seen["slow"], seen["fewer"]) == (FEWER, 0.6)
    assert (seen["after"], seen["whole"]) == (ALL, 2)
    assert (seen["again"], seen["coarse"], seen["watched"]) == (FEWER, 0.6, 0)


def test_fast_frames_change_nothing_and_are_not_watched_at_rest():
    seen = page_after("""
        send("mousemove", 1);
        for (let k = 0; k < 20; ++k) frame(1000 + 16 * k);
        drawn("turning"); seen.watched = frames.length;
        send("mouseup", 0, canvas, window); await wait(300); frame(2000); seen.rest = frames.length""")
    assert seen == {"turning": FEW, "watched": 1, "rest": 0, "updates": 1}


def test_a_release_outside_the_window_is_noticed():
    seen = page_after('send("mousemove", 1); send("mousemove", 0); await wait(300); drawn("after")')
    assert seen == {"after": ALL, "updates": 1}


def test_pointing_and_the_legend_change_nothing():
    seen = page_after('send("mousemove", 0); send("mousemove", 1, {tagName: "rect"}); drawn("after")')
    assert seen == {"after": ALL, "updates": 0}


def test_another_plotly_draws_everything():
    seen = page_after('delete plot._fullLayout.scene; send("mousemove", 1); drawn("turning")')
    assert seen == {"turning": ALL, "updates": 0}

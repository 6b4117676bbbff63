"""How the interactive page stays smooth with many hits: while it turns or zooms, only the strongest are drawn.

Where that is still slow, as without a graphics card, a quarter of them is drawn with fewer pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["MOVING_HITS", "SCRIPT", "hits_in_motion"]

MOVING_HITS = 2000
"""Hits drawn, at most, while the page is turned or zoomed."""


def hits_in_motion(sizes: Sequence[int], limit: int = MOVING_HITS) -> list[int]:
    """How many hits of each group to draw while the picture moves.

    One of each group, and of the others the same share in all groups, so that the event keeps its shape. With more
    groups than `limit`, one of each of the first `limit` groups.

    Parameters
    ----------
    sizes
        Number of hits of each group, at least 1.
    limit
        Their largest sum, at least 0.

    Returns
    -------
    list of int
        One a group, at most its size; all of them where the sum of `sizes` is at most `limit`.

    Raises
    ------
    ValueError
        An empty group, or a `limit` below 0.
    """
    if limit < 0 or any(size < 1 for size in sizes):
        raise ValueError(
            f"groups of {list(sizes)} hits, at most {limit}: expected sizes of at least 1 and a limit >= 0"
        )
    if len(sizes) >= limit:
        return [int(k < limit) for k in range(len(sizes))]
    others, left = sum(sizes) - len(sizes), limit - len(sizes)
    if others <= left:
        return list(sizes)
    return [1 + (size - 1) * left // others for size in sizes]


SCRIPT = """
(() => {
  const plot = document.getElementById("{plot_id}");
  const settled = 200;  // ms without a turn or a zoom until everything is drawn again
  const slow = 45, patience = 3;  // ms from frame to frame, and so many of them in a row are too slow
  let timer, held = false, thinned = [], turned = null, sharp, coarse = false, last, late;

  // plotly's drawing: not part of its interface. Where it is not as expected, everything is drawn all the time.
  const drawing = () => {
    const found = plot._fullLayout && plot._fullLayout.scene && plot._fullLayout.scene._scene;
    const inner = found && found.glplot;
    const known = inner && Array.isArray(inner.objects) && inner.pixelRatio > 0 && typeof inner.update === "function";
    return known ? inner : null;
  };

  // A trace's hits are in order of energy, so that the first ones are the strongest; its meta says how many to draw.
  // Nobody points at anything while it moves: what is drawn a second time for that is left out. plotly draws four times
  // the pixels of the screen, for smooth edges: not while it moves.
  const thin = inner => {
    turned = inner;
    sharp = inner.pixelRatio;
    inner.pixelRatio = Math.min(sharp, coarse ? 0.6 : 1);
    last = late = 0;
    if (!coarse) requestAnimationFrame(watch);
    for (const object of inner.objects) {
      const meta = object._trace && object._trace.data && object._trace.data.meta;
      const corners = object.vertexCount / object.pointCount;
      object.drawPick = () => {};
      if (meta && meta.moving <= object.pointCount && Number.isInteger(corners)) {
        object.draw = function (camera) {
          const all = this.vertexCount;
          this.vertexCount = corners * (coarse ? Math.ceil(meta.moving / 4) : meta.moving);
          try { Object.getPrototypeOf(this).draw.call(this, camera); } finally { this.vertexCount = all; }
        };
      }
      thinned.push(object);
    }
  };
  // What was once too slow is taken to stay so.
  const watch = time => {
    if (!turned) return;
    late = last && time - last > slow ? late + 1 : 0;
    last = time;
    if (late < patience) return requestAnimationFrame(watch);
    coarse = true;
    turned.pixelRatio = Math.min(sharp, 0.6);
  };
  const fill = () => {
    for (const object of thinned) { delete object.draw; delete object.drawPick; }
    thinned = [];
    turned.pixelRatio = sharp;
    turned.update();
    turned = null;
  };
  const moves = () => {
    clearTimeout(timer);
    const inner = drawing();
    if (!inner && !turned) return;
    if (!turned) thin(inner);
    if (!held) timer = setTimeout(fill, settled);
  };
  const release = () => {
    if (!held) return;
    held = false;
    if (turned) moves();
  };
  const turns = event => {
    if (!event.buttons && event.type === "mousemove") return release();
    if (event.target.tagName !== "CANVAS") return;
    held = true;
    moves();
  };
  plot.addEventListener("mousemove", turns, true);
  plot.addEventListener("touchmove", turns, true);
  const zooms = event => { if (event.target.tagName === "CANVAS") moves(); };
  plot.addEventListener("wheel", zooms, {capture: true, passive: true});
  for (const end of ["mouseup", "touchend", "touchcancel", "blur"]) window.addEventListener(end, release, true);
})();
"""
"""For the page, after the plot; ``{plot_id}`` stands for the id of its element."""

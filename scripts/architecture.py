"""Draw the network of the first paper's system: notebooks/images/architecture.svg.

    python scripts/architecture.py

Encoder, decoder and heads, and beside them what takes the place of a decoder layer in version 2.
"""

from __future__ import annotations

from html import unescape
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "notebooks" / "images" / "architecture.svg"
HEADS = {-150: "charge", -50: "|PDG|", 50: "kind", 150: "log E, θ, φ"}
"""Heads by their places beside the middle of the decoder."""
COLOURS = {
    **dict.fromkeys(("embedder", "feed-forward", "linear map to 1/n", "concatenate"), "#dbe9f6"),
    **dict.fromkeys(
        ("self-attention", "masked self-attention", "attention to memory", "layer of version 1"), "#fde3c8"
    ),
    **dict.fromkeys(HEADS.values(), "#d9efd6"),
    "add, norm": "#f6f2b8",
}
STYLE = "font: 13px sans-serif; text-anchor: middle; dominant-baseline: central"


def box(x: float, y: float, text: str, width: float = 170) -> str:
    """A box of one line around the point x, y."""
    frame = f'<rect x="{x - width / 2}" y="{y - 13}" width="{width}" height="26" rx="5" fill="{COLOURS[text]}"/>'
    return f'{frame}<text x="{x}" y="{y}">{text}</text>'


def label(x: float, y: float, text: str) -> str:
    """A text with nothing behind it."""
    width = 7 * len(unescape(text))
    behind = f'<rect x="{x - width / 2}" y="{y - 8}" width="{width}" height="16" fill="#fff" stroke="none"/>'
    return f'{behind}<text x="{x}" y="{y}">{text}</text>'


def line(*points: float) -> str:
    """An arrow along the points x, y, x, y ..."""
    return f'<polyline points="{",".join(map(str, points))}" marker-end="url(#tip)"/>'


def column(x: float, bottom: float, *parts: str) -> list[str]:
    """Boxes from the bottom upwards, 44 apart, with arrows between them."""
    drawn = [box(x, bottom - 44 * i, text) for i, text in enumerate(parts)]
    return drawn + [line(x, bottom - 44 * i - 13, x, bottom - 44 * i - 29) for i in range(len(parts) - 1)]


def residual(x: float, low: float, high: float) -> str:
    """What goes past a sub-layer, from the arrow below it to the norm above it."""
    return line(x, low, x - 98, low, x - 98, high, x - 87, high)


def layer(x: float, low: float, high: float, text: str, width: float = 226) -> str:
    """The frame of a layer that is repeated."""
    frame = f'<rect x="{x - width / 2}" y="{high}" width="{width}" height="{low - high}" rx="9" fill="none"/>'
    return f'<g stroke-dasharray="5 4">{frame}</g>{label(x, high - 12, text)}'


def drawing() -> str:
    """The figure as SVG."""
    hits, particles, version_2 = 130, 425, 790
    norm = "add, norm"
    decoder = ("embedder", "masked self-attention", norm, "attention to memory", norm, "feed-forward", norm)
    parts = [
        label(hits, 585, "hits: log E, x, y, z, marks"),
        line(hits, 573, hits, 557),
        *column(hits, 544, "embedder", "self-attention", norm, "feed-forward", norm),
        layer(hits, 522, 350, "N encoder layers"),
        *(residual(hits, y, y - 66) for y in (522, 434)),
        label(particles, 585, "&lt;bos&gt;, particles: charge, |PDG|, log E, n, marks"),
        line(particles, 573, particles, 557),
        *column(particles, 544, *decoder),
        layer(particles, 522, 262, "N decoder layers (version 1)"),
        *(residual(particles, y, y - 66) for y in (522, 434, 346)),
        line(hits, 355, hits, 320, 270, 320, 270, 412, particles - 87, 412),
        label(198, 308, "memory"),
        *(box(particles + dx, 190, text, 92) for dx, text in HEADS.items()),
        *(line(particles, 267, particles, 225, particles + dx, 225, particles + dx, 204) for dx in HEADS),
        label(particles, 160, "next particle, or the end: by charge (flags) or by kind"),
        label(version_2, 585, "particles, embedded n times as wide as the memory"),
    ]
    for x in (version_2 - 95, version_2 + 95):
        parts += [
            line(version_2, 573, version_2, 564, x, 564, x, 557),
            *column(x, 544, "linear map to 1/n", "layer of version 1"),
            line(x, 487, x, 474, version_2, 474, version_2, 461),
        ]
    parts += [
        *column(version_2, 448, "concatenate", norm, "feed-forward", norm),
        line(version_2, 564, version_2 - 193, 564, version_2 - 193, 404, version_2 - 87, 404),
        residual(version_2, 382, 316),
        layer(version_2, 570, 294, "N decoder layers (version 2: multi-projection), here with n = 2", 400),
    ]
    body = "\n".join(sorted(parts, key=lambda part: "<text" in part))  # lines first
    tip = '<marker id="tip" markerWidth="7" markerHeight="7" refX="6" refY="3.5" orient="auto">'
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 140 1000 460" style="{STYLE}">
<style>text {{ stroke: none; fill: #111 }}</style><defs>{tip}<path d="M0,0 L7,3.5 L0,7 z"/></marker></defs>
<rect y="140" width="1000" height="460" fill="#fff"/><g stroke="#333" fill="none">
{body}
</g></svg>
"""


if __name__ == "__main__":
    FILE.write_text(drawing(), "utf-8")

"""Bit fields of DD4hep cell ids."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

LAYER_NAMES = ("layer", "K-1")  # names of the layer's field in DD4hep and in older ILD encodings
MIN_LAYERS = 4  # fewer layers do not show which bits count them
USUAL_WIDTH = 8  # bits that a layer's field has at least, where those above are free


def bit_field(encoding: str, *names: str) -> tuple[int, int, bool] | None:
    """Offset, width and whether it is signed, of the first of the fields `names` in an encoding; None without them.

    An encoding is a list ``name:offset:width``, or ``name:width`` for a field that begins where the last one ends; a
    negative width stands for a signed field (DD4hep, `BitFieldCoder`). Anything else is a `ValueError`.

    >>> bit_field("system:5,side:-2,layer:6", "layer"), bit_field("x:32:-16", "x"), bit_field("x:8", "layer")
    ((7, 6, False), (32, 16, True), None)
    """
    fields: dict[str, tuple[int, int, bool]] = {}
    offset = 0
    for description in encoding.split(","):
        name, *numbers = description.strip().split(":")
        valid = name and len(numbers) in (1, 2) and all(re.fullmatch(r"-?\d+", number) for number in numbers)
        *begin, width = map(int, numbers) if valid else (0,)
        offset = begin[0] if begin else offset
        if not width or offset < 0 or offset + abs(width) > 64:
            raise ValueError(f"'{description}' in '{encoding}' is not name:offset:width or name:width within 64 bits")
        fields[name] = (offset, abs(width), width < 0)
        offset += abs(width)
    return next((fields[name] for name in names if name in fields), None)


def layer_from_cell_id(cell_id: npt.NDArray[Any], encoding: str | None) -> npt.NDArray[np.int32]:
    """Layer of each cell, int32 of the same shape; -1 where there is no encoding (`bit_field`) or it has no layer."""
    cells = np.asarray(cell_id).astype(np.uint64)
    field = None if encoding is None else bit_field(encoding, *LAYER_NAMES)
    if field is None:
        return np.full(cells.shape, -1, dtype=np.int32)
    offset, width, signed = field
    highest = cells << np.uint64(64 - offset - width)  # the field's bits are the highest ones
    layer = highest.astype(np.int64) >> (64 - width) if signed else highest >> np.uint64(64 - width)
    return layer.astype(np.int32)


def find_layer_bits(cell_id: npt.NDArray[Any], layer: npt.NDArray[Any]) -> tuple[int, int] | None:
    """Offset and width of the bits of cell ids, uint64 [cell], that count the layers, int [cell]; None if no bits do.

    The layers are in order, numbered with or without gaps.

    >>> find_layer_bits(np.array([0x203, 0x213, 0x223, 0x133, 0x143], dtype=np.uint64), np.arange(5))
    (4, 4)
    """
    cells = np.asarray(cell_id).astype(np.uint64)
    first = np.flatnonzero(np.diff(np.sort(layer), prepend=-1) != 0)
    if len(first) < MIN_LAYERS:
        return None
    cells = cells[np.argsort(layer, kind="stable")]
    ones, some = np.bitwise_and.reduceat(cells, first), np.bitwise_or.reduceat(cells, first)
    same = ~np.bitwise_or.reduce(ones ^ some)  # bits that all cells of a layer share, in every layer
    differ = same & (np.bitwise_and.reduce(ones) ^ np.bitwise_or.reduce(some))
    bits = [bit for bit in range(64) if int(differ) >> bit & 1]
    for lowest in bits:
        for highest in (bit for bit in bits if bit >= lowest):
            width = highest - lowest + 1
            value = (ones >> np.uint64(lowest)) & np.uint64((1 << width) - 1)
            if (value[1:] > value[:-1]).all():
                free = int(np.bitwise_or.reduce(some)) >> (highest + 1)
                while width < USUAL_WIDTH and lowest + width < 64 and not free & 1:
                    width, free = width + 1, free >> 1
                return lowest, width
    return None

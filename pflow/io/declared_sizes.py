"""Sizes that a ROOT file declares, compared with what it can hold before memory is taken for them.

A few damaged bytes can declare any size: uproot allocates it, and leaves what the file does not fill as it is.
"""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import uproot

from pflow.errors import InputError

__all__ = ["check_blocks", "check_lists", "check_tree", "watch_decompression", "watch_lists"]

BLOCK_HEADER = 9
"""Bytes before each compressed block: algorithm (3), compressed and uncompressed size (3 each, little endian)."""

MAX_COMPRESSION = 2**15
"""Largest ratio of the sizes of a page: zstd packs 16 MiB of zeros, the largest block, into about 520 bytes."""


def watch_decompression() -> None:
    """Have `check_blocks` called wherever uproot decompresses, by the hook that it has for this."""
    uproot.compression.decompress.hook_before_block = check_blocks


def check_blocks(
    *, chunk: Any, cursor: Any, compressed_bytes: int, uncompressed_bytes: int, num_blocks: int, **_: object
) -> None:
    """Compare the size that a key or a locator declares with the sum of its blocks, before the first is decompressed.

    Parameters
    ----------
    chunk, cursor
        Bytes of the file, and where the blocks begin.
    compressed_bytes, uncompressed_bytes
        Their sizes, as declared.
    num_blocks
        Number of blocks that are done.

    Raises
    ------
    ValueError
        They differ: it becomes an `InputError` where the branch is known.
    """
    if num_blocks:
        return
    place, held = cursor.copy(), 0
    end = place.index + compressed_bytes
    while held < uncompressed_bytes and place.index < end:
        header = bytes(place.bytes(chunk, BLOCK_HEADER, {}))
        held += int.from_bytes(header[6:], "little")
        place.skip(int.from_bytes(header[3:6], "little"))
    if held != uncompressed_bytes:
        raise ValueError(f"{uncompressed_bytes} bytes are declared, the compressed blocks hold {held}")


def watch_lists(branch: Any) -> None:
    """Have the lists of a TTree's branch checked as each basket is decoded, by the hook that uproot has for this.

    It would add up the lengths that a basket declares and allocate their sum.
    """
    interpretation = getattr(branch, "interpretation", None)  # a field of an RNTuple has none
    if isinstance(interpretation, uproot.AsJagged | uproot.AsStrings):
        interpretation.hook_after_basket_array = _check_basket


def _check_basket(*, output: Any, **_: object) -> None:
    """Compare where the lists of a basket, `output`, begin and end with the values that it holds."""
    offsets, n_values = np.asarray(output.offsets), len(output.content)
    if offsets[0] < 0 or offsets[-1] > n_values or (np.diff(offsets) < 0).any():
        raise ValueError(f"the lists of a basket do not lie one after the other within its {n_values} values")


def check_lists(values: ak.Array) -> None:
    """Refuse lists that end before they begin, as a damaged RNTuple can declare them.

    Raises
    ------
    ValueError
        There is one: it becomes an `InputError` where the branch is known.
    """
    layout = values.layout
    while layout.is_list:
        lengths = np.asarray(layout.stops) - np.asarray(layout.starts)
        if (lengths < 0).any():
            raise ValueError(f"a list of {lengths.min()} values is declared")
        layout = layout.content


def check_tree(tree: Any, name: str, path: str) -> None:
    """Compare the numbers of entries and values of a TTree or RNTuple with those of its baskets or pages.

    Raises
    ------
    InputError
        More are declared than there are; names file and branch.
    """
    n_entries = int(tree.num_entries)
    if hasattr(tree, "page_link_list"):
        _check_pages(tree, path)
        return
    held = max((int(branch.entry_offsets[-1]) for branch in tree.branches), default=n_entries)
    if not 0 <= n_entries <= held:
        raise InputError(f"{n_entries} entries are declared, the branches have {held}", file=path, field=name)


def _check_pages(ntuple: Any, path: str) -> None:
    records = ntuple.column_records
    for cluster in ntuple.page_link_list:
        for record, column in zip(records, cluster, strict=False):  # columns may be added later, which have no pages
            for page in column.pages:
                size = page.num_elements * record.nbits / 8
                if not 0 <= size <= MAX_COMPRESSION * page.locator.num_bytes:
                    raise InputError(
                        f"a page of {page.locator.num_bytes} bytes cannot hold the {page.num_elements} values that are "
                        "declared",
                        file=path,
                        field=ntuple.all_fields[record.field_id].path,
                    )

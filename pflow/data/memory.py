"""Memory of the processes that load: freed memory is kept, and the next chunk uses it again."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""

KEPT = 2**30
"""Largest number of freed bytes that are kept."""

LARGEST = 2**25
"""Largest array, bytes, for which kept memory is used; glibc accepts no larger value."""


def keep_freed_memory() -> None:
    """Keep freed memory in this process; without glibc do nothing.

    By default glibc gives the arrays of a chunk back to the kernel, which clears each page before it gives it out
    again, which takes up to a quarter of the time of making tokens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, LARGEST)

"""Memory of the processes that load: what one chunk frees, the next one takes."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""

KEPT = 2**30
"""Most bytes that are free and kept."""

LARGEST = 2**25
"""Largest array, bytes, that is taken from what is kept: the largest value that glibc accepts."""


def keep_freed_memory(_: int = 0) -> None:
    """Keep freed memory in this process, as a `DataLoader`'s ``worker_init_fn``; without glibc do nothing.

    By default glibc gives the arrays of a chunk back to the kernel, which clears each page before it gives it out
    again: up to a quarter of the time that tokens take.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, LARGEST)

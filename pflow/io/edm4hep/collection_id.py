"""Collection ids as podio makes them: a hash of the collection's name, numbers from 1 on in old files."""

from __future__ import annotations

__all__ = ["collection_id"]

_WORD = 0xFFFFFFFF


def collection_id(name: str) -> int:
    """MurmurHash3 (x86, 32 bits, seed 0; A. Appleby) of a collection's name.

    >>> collection_id("MCParticles")
    2714477136
    """
    key = name.encode()
    found = 0
    whole = len(key) // 4 * 4
    for start in range(0, whole, 4):
        found ^= _mixed(int.from_bytes(key[start : start + 4], "little"))
        found = (_rotated(found, 13) * 5 + 0xE6546B64) & _WORD
    found ^= _mixed(int.from_bytes(key[whole:], "little")) ^ len(key)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found = ((found ^ (found >> shift)) * factor) & _WORD
    return found ^ (found >> 16)


def _mixed(word: int) -> int:
    return _rotated((word * 0xCC9E2D51) & _WORD, 15) * 0x1B873593 & _WORD


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _WORD

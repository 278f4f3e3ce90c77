"""Ranges of keys. A key is text; keys are in the order of their code points (and UTF-8 bytes)."""

from __future__ import annotations

from typing import Final

_GREATEST: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)  # code points that no text may hold


def end_of(prefix: str) -> str | None:
    """Return the least text above all that start with ``prefix``, or None if none is.

    So ``prefix <= key < end_of(prefix)`` says that a key starts with the prefix.
    """
    kept = prefix.rstrip(chr(_GREATEST))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)

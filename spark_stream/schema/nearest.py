"""Guess which known name was meant by an unknown one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def meant(name: str, names: Iterable[str]) -> str:
    """Return text to follow the name in a message: the nearest name, ignoring case, or nothing."""
    by_lower = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), by_lower, 1)
    return f" (is {by_lower[near[0]]!r} meant?)" if near else ""

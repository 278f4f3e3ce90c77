"""Which of the names that there are somebody may have meant by one that there is not."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def meant(name: str, names: Iterable[str]) -> str:
    """Return words to follow the name in a message: the nearest name in any case, or nothing."""
    by_lower = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), by_lower, 1)
    return f" (is {by_lower[near[0]]!r} meant?)" if near else ""

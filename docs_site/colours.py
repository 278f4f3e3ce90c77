"""The colours of isolog, which the console, the site and the pictures share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_STATIC: Final = Path(__file__).resolve().parents[1] / "spark_stream" / "console" / "static"
TABLE: Final = _STATIC / "colours.css"
ICON: Final = _STATIC / "icon.svg"

_COLOUR: Final = re.compile(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);")


def colours() -> Mapping[str, tuple[str, str]]:
    """Return each colour by its name, for light and for dark."""
    text = TABLE.read_text(encoding="utf-8")
    return {found[1]: (found[2], found[3]) for found in _COLOUR.finditer(text)}

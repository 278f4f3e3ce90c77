"""Charts of results in the docs. Each contains the digest of its figures.

So a test finds a chart of other figures, and a chart of the same figures is not drawn again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE: Final = {"svg.hashsalt": "isolog", "svg.fonttype": "none", "font.size": 9}
"""With these settings charts of the same figures are equal, byte for byte."""


def digest(measures: Sequence[Any]) -> str:
    """Return the digest of the figures of a chart."""
    return hashlib.sha256(json.dumps(measures, sort_keys=True).encode()).hexdigest()


def shows(path: Path, measures: Sequence[Any]) -> bool:
    """Return whether the file is a chart of these figures."""
    return path.exists() and digest(measures) in path.read_text()


def save(figure: Figure, path: Path, measures: Sequence[Any]) -> None:
    """Write a drawn chart with the digest of its figures."""
    figure.savefig(path, metadata={"Date": None, "Source": digest(measures)})

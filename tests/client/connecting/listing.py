"""The content of a folder, for comparisons."""

from __future__ import annotations

from pathlib import Path


def listing(path: Path) -> dict[str, bytes]:
    """Return all files below a folder with their contents."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}

"""The content of a folder, to compare it with what it was."""

from __future__ import annotations

from pathlib import Path


def listing(path: Path) -> dict[str, bytes]:
    """Every file below with its content."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}

"""Where a process of a test cluster runs: on this machine, or in a network namespace of it."""

from __future__ import annotations

from typing import NamedTuple


class ProcessPlace(NamedTuple):
    """``host``: the address at which it listens. ``prefix``: comes before its command."""

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


HERE = ProcessPlace()

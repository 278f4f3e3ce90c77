"""The fixtures of this folder: see ``tests/support.py``."""

from tests.support import broker, log, shared, topic

__all__ = ["broker", "log", "shared", "topic"]

"""The fixtures of this folder: see ``tests/support.py``."""

from tests.support import broker, flight, log, shared, topic

__all__ = ["broker", "flight", "log", "shared", "topic"]

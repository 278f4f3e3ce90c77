"""The fixtures of this folder: see ``tests/support.py``."""

from tests.support import broker, shared, topic

__all__ = ["broker", "shared", "topic"]

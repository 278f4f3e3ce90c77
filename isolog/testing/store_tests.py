"""The tests that each metadata store passes. They need pytest and hypothesis."""

from __future__ import annotations

from spark_stream.testing.store_tests import StoreTests

__all__ = ["StoreTests"]

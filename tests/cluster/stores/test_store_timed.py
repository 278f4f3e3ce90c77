"""A store that counts its calls, and keeps the error of a change that was not made."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from isolog.errors import MetadataUnavailable
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.cluster.stores.store import TimedStore
from spark_stream.counting import Histogram, NamedCounts


def test_a_change_that_a_full_store_does_not_make_is_a_failure_until_one_is_made(tmp_path: Path):
    store = SqliteStore(tmp_path / "metadata.sqlite")
    errors = NamedCounts()
    timed = TimedStore(store, Histogram(), Histogram(), errors)
    with closing(timed):
        assert timed.put("kept", {}, 0) is not None
        store._writer.execute("pragma max_page_count = 6")
        with pytest.raises(MetadataUnavailable, match="full"):
            timed.put("big", {"text": "x" * 100_000}, 0)
        assert timed.get("kept") is not None
        assert "full" in timed.write_failure.message, "a read is no sign that it takes changes"
        store._writer.execute("pragma max_page_count = 100000")
        assert timed.put("big", {}, 0) is not None
        assert timed.write_failure is None
    assert errors.read() == {"write": 1}

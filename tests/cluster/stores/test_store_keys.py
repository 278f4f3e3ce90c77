"""Ranges of keys by prefix, in the order of UTF-8 bytes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_stream.cluster.stores.store import end_of

LAST = "\U0010ffff"
TEXTS = st.text(st.sampled_from(["\0", "a", "b", "\ud7ff", "\ue000", LAST]), max_size=4)


@given(TEXTS, TEXTS)
@example("\ud7ff", "\ue000")
@example("a" + LAST, "b")
def test_a_range_holds_exactly_what_starts_with_the_prefix(prefix, key):
    end = end_of(prefix)
    start, known = prefix.encode(), key.encode()
    inside = start <= known and (end is None or known < end.encode())
    assert inside is key.startswith(prefix)


@pytest.mark.parametrize("prefix", ["", LAST, LAST * 3])
def test_some_prefixes_have_no_end(prefix):
    assert end_of(prefix) is None

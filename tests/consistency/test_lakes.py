"""Recorded progress of lakes, and the offsets that local retention may rely on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.lakes import LakeDescription, LakeTopic, advanced, tiered

OFFSETS = st.dictionaries(
    st.sampled_from(["t1", "t2"]), st.dictionaries(st.integers(0, 2), st.integers(0, 9))
)


def lake(name: str = "l", *topics: str) -> LakeDescription:
    return LakeDescription(name, name, "/lake", tuple(LakeTopic(each, each) for each in topics))


@given(st.lists(OFFSETS, max_size=5))
def test_recorded_offsets_never_move_back(steps):
    now = lake("l", "t1")
    for at, step in enumerate(steps):
        before, now = now, advanced(now, step, at)
        assert [each.id for each in now.topics] == ["t1"]
        for partition in range(3):
            recorded = now.topics[0].tiered.get(partition, 0)
            offset = step.get("t1", {}).get(partition, 0)
            assert recorded == max(offset, before.topics[0].tiered.get(partition, 0))


def test_local_retention_relies_on_the_slowest_lake_of_a_topic():
    fast = advanced(lake("fast", "t1", "t2"), {"t1": {0: 9, 1: 4}, "t2": {0: 2}}, 1)
    slow = advanced(lake("slow", "t1"), {"t1": {0: 5}}, 1)
    assert [tiered([fast, slow], "t1", each) for each in range(2)] == [5, 0]
    assert tiered([fast, slow], "t2", 0) == 2
    assert tiered([fast, slow], "t3", 0) is None

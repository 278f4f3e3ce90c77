"""The losses in a query's offsets and ranges, computed from the log's answers alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from isolog.errors import DataLoss
from spark_stream.consistency.replication.epochs import Lineage
from spark_stream.datasource.reading.losses import Losses
from spark_stream.datasource.values.offsets import LogState, Range, TopicOffsets
from spark_stream.wire.topic_messages import PartitionOffset, PartitionOffsets

HELD: Lineage = ((0, 100),)


def standing(offset: int, lineage: Lineage = (), topic_id: str = "id") -> dict[str, TopicOffsets]:
    return {"t": TopicOffsets(topic_id, {0: offset}, {0: lineage} if lineage else {})}


def found(
    *,
    start: int = 0,
    end: int = 100,
    bound: int | None = None,
    epoch: int = 0,
    surviving: Mapping[Lineage, int] | None = None,
    topic_id: str = "id",
) -> LogState:
    """The log as it is now: one topic ``t`` of one partition."""
    there = PartitionOffset(
        offset=end if bound is None else bound,
        epoch=epoch,
        log_start_offset=start,
        log_end_offset=end,
        lineage=((epoch, end),),
        surviving=list((surviving or {}).items()),
    )
    latest = PartitionOffsets(topic_id=topic_id, partitions={0: there})
    return LogState({"t": latest}, frozenset())


NOTHING_THERE = LogState({}, frozenset({"t"}))


def kept(losses: Losses, at: Mapping[str, TopicOffsets], now: LogState) -> int:
    return losses.kept(at, now)["t"].offsets[0]


# -- truncation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "says"), [(4, "replaced by an older copy"), (5, "were truncated")]
)
def test_log_in_an_earlier_epoch_than_the_query_is_an_older_copy(
    epoch: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    at, lineage = standing(100, ((5, 100),)), ((5, 100),)
    now = found(end=70, epoch=epoch, surviving={lineage: 60})
    with pytest.raises(DataLoss, match=says) as caught:
        kept(Losses(fail=True), at, now)
    details = {"topic": "t", "partition": 0, "epoch": 5, "leader_epoch": epoch}
    assert caught.value.details == details
    with caplog.at_level(logging.WARNING):
        assert kept(Losses(fail=False), at, now) == 60, "it goes on where the two logs parted"
    assert [each.message for each in caplog.records if says in each.message]


def test_offset_stays_if_its_records_survive_in_any_epoch() -> None:
    for epoch in (4, 5, 6):
        now = found(epoch=epoch, surviving={((5, 100),): 100})
        assert kept(Losses(fail=True), standing(100, ((5, 100),)), now) == 100


def test_lineage_without_an_answer_survives_up_to_the_end_of_the_log() -> None:
    assert kept(Losses(fail=True), standing(100, HELD), found(end=100)) == 100
    assert kept(Losses(fail=False), standing(100, HELD), found(end=99)) == 99


def test_without_a_lineage_only_records_above_the_log_end_are_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert kept(Losses(fail=True), standing(100), found(end=100)) == 100
    with pytest.raises(DataLoss, match="offsets 99 to 99 were truncated"):
        kept(Losses(fail=True), standing(100), found(end=99))
    with caplog.at_level(logging.WARNING):
        assert kept(Losses(fail=False), standing(100), found(end=99)) == 99
    assert len(caplog.records) == 1


def test_partition_without_an_answer_keeps_its_offset() -> None:
    at = {"t": TopicOffsets("id", {0: 10, 1: 20}, {})}
    assert Losses(fail=True).kept(at, found())["t"].offsets == {0: 10, 1: 20}


def test_offsets_are_kept_if_the_topic_was_created_again() -> None:
    at = standing(100, HELD)
    assert Losses(fail=True).kept(at, found(end=3, topic_id="other")) == at
    assert Losses(fail=True).kept(at, NOTHING_THERE) == at


def test_same_loss_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    losses = Losses(fail=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            kept(losses, standing(100), found(end=99))
        kept(losses, standing(100), found(end=98))
    assert len(caplog.records) == 2


# -- how far it reads ------------------------------------------------------------------------------


def test_bound_below_the_query_does_not_move_it_back() -> None:
    """The query had another level before. The offset keeps its lineage."""
    at = standing(80, ((0, 80),))
    ends = Losses(fail=True).ends(at, found(bound=50, epoch=1))
    assert ends["t"] == TopicOffsets("id", {0: 80}, {0: ((0, 80),)})


def test_topic_created_again_is_read_from_its_first_record() -> None:
    at, now = standing(80, ((0, 80),)), found(end=5, topic_id="other")
    with pytest.raises(DataLoss, match="created again"):
        Losses(fail=True).ends(at, now)
    ends = Losses(fail=False).ends(at, now)
    assert ends["t"] == TopicOffsets("other", {0: 5}, {0: ((0, 5),)})


def test_deleted_topic_keeps_its_offsets() -> None:
    at = standing(80, ((0, 80),))
    with pytest.raises(DataLoss, match="'t' was deleted; its records from offset 80 of t/0 on"):
        Losses(fail=True).ends(at, NOTHING_THERE)
    assert Losses(fail=False).ends(at, NOTHING_THERE) == at


# -- what retention removed ------------------------------------------------------------------------


def test_only_a_query_that_continues_after_losses_skips_evicted_records() -> None:
    at, now = standing(10), found(start=30)
    assert Losses(fail=False).passed_over(at, now) == standing(30)
    assert Losses(fail=True).passed_over(at, now) == at
    assert Losses(fail=False).passed_over(standing(40), now) == standing(40)
    assert Losses(fail=False).passed_over(at, found(start=30, topic_id="other")) == at


def test_range_begins_after_the_evicted_records() -> None:
    asked, now = [Range("t", "id", 0, 10, 50, HELD)], found(start=30)
    with pytest.raises(DataLoss, match="offsets 10 to 29 were removed by retention"):
        Losses(fail=True).readable(asked, now)
    assert Losses(fail=False).readable(asked, now) == [Range("t", "id", 0, 30, 50, HELD)]
    assert Losses(fail=False).readable(asked, found(start=50)) == []
    assert Losses(fail=True).readable(asked, found(start=10)) == asked


def test_new_topic_begins_at_its_log_start_without_a_loss() -> None:
    asked = [Range("t", "id", 0, 0, 50)]
    losses = Losses(fail=True)
    assert losses.readable(asked, found(start=30), {"t"}) == [Range("t", "id", 0, 30, 50)]


def test_range_of_a_topic_created_again_is_lost() -> None:
    asked = [Range("t", "id", 0, 10, 50)]
    for now in (NOTHING_THERE, found(topic_id="other")):
        with pytest.raises(DataLoss, match="offsets 10 to 49 are lost: their topic"):
            Losses(fail=True).readable(asked, now)
        assert Losses(fail=False).readable(asked, now) == []

"""Outcomes of batches whose callbacks fail."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from isolog.errors import InternalError
from spark_stream.client.values import Written
from spark_stream.client.writing.buffer import Share
from spark_stream.client.writing.core import AllSettled, ProducerCore, SettleBatch
from spark_stream.client.writing.lanes import Outgoing, Settlement
from spark_stream.client.writing.loop import AppendStream, ProducerLoop, Settings
from spark_stream.client.writing.promises import Failures, SpreadPromise
from spark_stream.client.writing.sender import AppendedPart
from spark_stream.transport.channel import ChannelWaits
from spark_stream.wire.stream_messages import AppendTo
from tests.client.writing.producer_world import topic_of


def _fail(_: Settlement) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("goes_with_others", [True, False])
def test_batches_after_a_failing_callback_are_settled(
    goes_with_others: bool,
) -> None:
    settled: list[Any] = []
    connection, nothing = cast(Any, SimpleNamespace(timeout_s=1.0)), cast(Any, None)
    settings = Settings("replicated", 0.0, 1, 1, 1000)
    shell = ProducerLoop(
        connection,
        nothing,
        settings,
        threading.Lock(),
        lambda: settled.append("all"),
        ChannelWaits(),
    )
    row = pa.record_batch({"n": [1]})
    batches = [Outgoing(row, 0, 1.0, each) for each in (_fail, settled.append)]
    if goes_with_others:
        batches[0].others.append(batches.pop())

    def tell(core: ProducerCore) -> None:
        for each in batches:
            core.outcomes.append(SettleBatch(each, Written("t", 0, 7, each.rows)))
        core.outcomes.append(AllSettled())

    shell.event(tell, shell.core)
    written, end = settled
    assert (written.count, end) == (1, "all")


def test_a_part_that_cannot_be_settled_frees_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, released = SpreadPromise(1, Failures()), list[Share]()
    monkeypatch.setattr(whole.promise, "settle", _fail)
    buffer = cast(Any, SimpleNamespace(release=released.append))
    share = Share(90, 1, parts=1, flushes=0)
    with pytest.raises(RuntimeError):
        AppendedPart(whole, 0, share, buffer).settle(Written("t", 0, 7, 1))
    assert released == [share]


def test_a_batch_of_another_schema_is_refused() -> None:
    """The broker would read the eight bytes of a wider number as two numbers."""
    sent = list[Any]()
    stream = SimpleNamespace(send=lambda *frame: sent.append(frame) or True)
    channel = SimpleNamespace(open_with=lambda begin, *_: begin(stream) and stream)
    shared = cast(Any, SimpleNamespace(channel=channel))
    appends = AppendStream(0, shared, cast(Any, None), cast(Any, None))
    appends.start(topic_of(1), AppendTo(topic="t"))
    appends.send(b"", Outgoing(pa.record_batch({"n": pa.array([1])}), 0, 1.0, _fail))
    wider = pa.record_batch({"n": pa.array([1]), "more": pa.array([1])})
    with pytest.raises(InternalError, match=r"\(n, more\) has another schema"):
        appends.send(b"", Outgoing(wider, 0, 1.0, _fail))
    assert len(sent) == 1

"""Outcomes of batches whose callbacks fail."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from spark_stream.client.values import Written
from spark_stream.client.writing.buffer import Share
from spark_stream.client.writing.core import AllSettled, ProducerCore, SettleBatch
from spark_stream.client.writing.lanes import Outgoing, Settlement
from spark_stream.client.writing.loop import ProducerLoop, Settings
from spark_stream.client.writing.promises import Answers, Failures, SpreadPromise
from spark_stream.client.writing.sender import AppendedPart


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
        connection, nothing, settings, threading.Lock(), lambda: settled.append("all"), Answers()
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

"""What waits for a partition is woken, whatever becomes of the others."""

from __future__ import annotations

from spark_stream.broker.partition.outcomes import wake_all


def test_those_behind_one_that_fails_are_woken() -> None:
    def fail() -> None:
        raise RuntimeError("can't start new thread")

    woken: list[str] = []
    wake_all((fail, lambda: woken.append("the other")))
    assert woken == ["the other"]

"""The invariants of a partition's leader after every event. Each check is one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from spark_stream.consistency.replication.bounds import BoundsState


@dataclass(frozen=True)
class Observed:
    """A leader's state, with the test's own model of the log."""

    state: BoundsState
    first_undecided: int | None


class BoundsAreOrdered:
    """log start <= LSO <= HW <= LEO, in offsets and in entries, which markers move too."""

    @staticmethod
    def check(before: Observed, after: Observed) -> None:
        bounds = after.state.bounds()
        assert (
            0
            <= bounds.log_start_offset
            <= bounds.last_stable_offset
            <= bounds.high_watermark
            <= bounds.log_end_offset
        )
        state = after.state
        assert state.log_start.entry <= state.high_watermark.entry <= state.log_end.entry


class BoundsNeverMoveBack:
    """The log start, the LSO, HW and LEO only rise while a leader leads."""

    @staticmethod
    def check(before: Observed, after: Observed) -> None:
        old, new = before.state.bounds(), after.state.bounds()
        assert new.log_start_offset >= old.log_start_offset
        assert new.last_stable_offset >= old.last_stable_offset
        assert new.high_watermark >= old.high_watermark
        assert new.log_end_offset >= old.log_end_offset
        assert after.state.log_end.entry >= before.state.log_end.entry
        assert after.state.high_watermark.entry >= before.state.high_watermark.entry


class AloneIsReplicated:
    """With no followers HW = LEO: the leader is the only in-sync replica."""

    @staticmethod
    def check(before: Observed, after: Observed) -> None:
        if after.state.followers == 0:
            assert after.state.high_watermark == after.state.log_end


class StableIsFirstUndecided:
    """LSO is the first offset of the earliest undecided transaction, or HW where there is none."""

    @staticmethod
    def check(before: Observed, after: Observed) -> None:
        bounds = after.state.bounds()
        first = after.first_undecided
        expected = bounds.high_watermark if first is None else min(first, bounds.high_watermark)
        assert bounds.last_stable_offset == expected


ALL = (BoundsAreOrdered, BoundsNeverMoveBack, AloneIsReplicated, StableIsFirstUndecided)

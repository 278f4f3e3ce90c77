"""The kept records of a message: whole-batch arithmetic against a walk row by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.consistency.partition.admission import (
    Admission,
    Flaw,
    Reason,
    admit,
    first_too_large,
)
from tests.examples import examples

LIMIT = 100


@dataclass(frozen=True)
class Row:
    size: int
    null: bool
    broken_text: bool


def walked(rows: list[Row]) -> tuple[int, Reason | None]:
    """Records one by one: the first bad one stops the message, those before it are kept."""
    for number, row in enumerate(rows):
        if row.broken_text:
            return number, Reason.INVALID_TEXT
        if row.null:
            return number, Reason.NULL_VALUE
        if row.size > LIMIT:
            return number, Reason.TOO_LARGE
    return len(rows), None


def first(marks: list[bool], reason: Reason) -> Flaw | None:
    return Flaw(marks.index(True), reason, column="c") if any(marks) else None


def judged(rows: list[Row]) -> Admission:
    sizes = np.array([row.size for row in rows], np.int64)
    flaws = [
        first([row.broken_text for row in rows], Reason.INVALID_TEXT),
        first([row.null for row in rows], Reason.NULL_VALUE),
        first_too_large(sizes, LIMIT),
    ]
    return admit(len(rows), [flaw for flaw in flaws if flaw is not None])


rare = st.integers(0, 9).map(lambda number: number == 0)
messages = st.lists(st.builds(Row, size=st.integers(0, LIMIT + 8), null=rare, broken_text=rare))


@pytest.mark.rule(
    "the kept records of a message with an invalid record", "consistency/partition/admission.py"
)
@settings(max_examples=examples(300))
@given(messages)
def test_a_message_with_a_bad_record_in_the_middle_keeps_the_prefix(rows):
    kept, reason = walked(rows)
    verdict = judged(rows)
    assert verdict.kept == kept
    assert (verdict.flaw.reason if verdict.flaw else None) == reason
    if verdict.flaw is not None:
        assert verdict.flaw.row == kept  # the refused record is the first one that is not kept


def test_a_flaw_has_its_row_reason_and_column():
    assert first_too_large(np.array([5, 101, 200]), LIMIT) == Flaw(1, Reason.TOO_LARGE, size=101)


def test_a_record_at_the_limit_is_kept():
    assert first_too_large(np.array([LIMIT]), LIMIT) is None


def test_the_first_record_bad_keeps_nothing():
    assert judged([Row(101, False, False), Row(1, False, False)]).kept == 0


def test_of_two_flaws_in_one_record_the_first_rule_is_reported():
    flaws = [Flaw(3, Reason.INVALID_TEXT), Flaw(3, Reason.TOO_LARGE, size=101)]
    assert admit(10, flaws).flaw == flaws[0]


@pytest.mark.parametrize("row", [-1, 10])
def test_a_flaw_outside_its_batch_is_a_programmers_error(row):
    with pytest.raises(ValueError, match="outside its batch of 10 rows"):
        admit(10, [Flaw(row, Reason.TOO_LARGE)])

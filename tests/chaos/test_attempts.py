"""Attempts of tasks and micro-batches have the same rows in the same order: a short run.

A failure prints its seed. ``make attempts SEED=… MINUTES=…`` runs it for longer.
"""

from __future__ import annotations

import os
import random

import pyarrow as pa
import pytest

from tests.chaos.attempts import difference, run


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([2, 1, 3], "another order from row 0 on"),
        ([1, 2], "2 rows, and the first one 3"),
        ([1, 2, 4], "other rows"),
    ],
)
def test_difference_between_two_attempts_is_described(rows: list[int], text: str) -> None:
    assert difference(pa.table({"n": [1, 2, 3]}), pa.table({"n": rows})) == text


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_all_attempts_have_the_same_rows_in_the_same_order() -> None:
    seed = int(os.environ.get("ISOLOG_CHAOS_SEED", random.randrange(1 << 20)))
    print(f"ISOLOG_CHAOS_SEED={seed}")
    done, problems = run(20.0, seed)
    assert problems == []
    assert done["compared"] > 5, done

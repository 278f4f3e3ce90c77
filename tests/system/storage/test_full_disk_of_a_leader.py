"""A leader with a full disk hands over, and no acknowledged record is lost."""

from __future__ import annotations

import pytest

from tests.brokers import brokers_on
from tests.support import eventually, numbers
from tests.system.storage.test_full_disk import NO_LIMIT, limited, only_segment

# It starts two brokers. tests/broker/node/test_handover_withdrawals.py is quicker.
pytestmark = [pytest.mark.slow, pytest.mark.full]


def test_leader_with_a_full_disk_hands_over_and_rejoins_the_isr(tmp_path):
    with brokers_on(tmp_path, t="ab") as (a, b), b.connect() as log:
        with log.producer() as producer:
            # The log exceeds the files of the store, so the limit below does not affect those.
            for first in range(0, 3_000_000, 1_000_000):
                producer.append("t", numbers(first, 1_000_000), partition=0).result(60)
            limited(a, only_segment(a, "t").stat().st_size + 3)
            retried = producer.append("t", numbers(3_000_000, 10_000), partition=0)
            assert retried.result(60).count == 10_000
            assert log.describe("t").partitions[0].leader != "a"
            eventually(lambda: "writes are refused in t/0" in a.log_text())
        limited(a, NO_LIMIT)
        eventually(lambda: len(log.describe("t").partitions[0].isr) == 2)
        assert log.read("t").num_rows == 3_010_000

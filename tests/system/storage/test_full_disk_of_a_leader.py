"""A leader with a full disk hands over, and nothing that was acknowledged is lost."""

from __future__ import annotations

import pytest

from tests.brokers import brokers_on
from tests.support import eventually, numbers
from tests.system.storage.test_full_disk import NO_LIMIT, limited, only_segment

# It starts two brokers. tests/broker/node/test_handover_withdrawals.py is quicker.
pytestmark = [pytest.mark.slow, pytest.mark.full]


def test_another_leads_after_some_seconds_and_it_is_in_sync_again_once_it_has_room(tmp_path):
    with brokers_on(tmp_path, t="ab") as (a, b), b.connect() as log:
        with log.producer() as producer:
            # More than the files of the store ever have: they are to have room.
            for first in range(0, 3_000_000, 1_000_000):
                producer.append("t", numbers(first, 1_000_000), partition=0).result(60)
            limited(a, only_segment(a, "t").stat().st_size + 3)
            retried = producer.append("t", numbers(3_000_000, 10_000), partition=0)
            assert retried.result(60).count == 10_000
            assert log.describe("t").partitions[0].leader != "a"
            eventually(lambda: "the log refuses writes" in a.log_text())
        limited(a, NO_LIMIT)
        eventually(lambda: len(log.describe("t").partitions[0].isr) == 2)
        assert log.read("t").num_rows == 3_010_000

"""A stream of appends on real threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import isolog
from isolog.errors import TransactionAborted
from spark_stream.wire.transaction_messages import KillTransaction
from tests.broker.stamped import Appender, Owner
from tests.brokers import broker_here
from tests.support import NUMBERS, Channel


def test_batch_has_the_reason_if_its_transaction_is_aborted_just_before_its_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seal happens between the check for a join and the append, so the partition refuses."""
    with broker_here(tmp_path) as broker:
        with isolog.connect(broker.address) as log:
            log.create_topic("t", partitions=1, schema=NUMBERS)
        with Channel(broker.address) as channel:
            owner = Owner(channel).begin()
            stream = Appender(channel, owner=owner.name)
            stream.put(0, 1, owner.producer, 0, epoch=owner.epoch, transaction=owner.number)
            transactions = broker.core.transactions
            appends = broker.core.host.topic("t").partition(0).appends
            take = appends.take

            kill = KillTransaction(transactional_id=owner.name)

            def take_after_the_seal(*asked: Any) -> Any:
                transactions.run(transactions.decisions.kill(kill))
                return take(*asked)

            monkeypatch.setattr(appends, "take", take_after_the_seal)
            error = stream.refused(
                1, 1, owner.producer, 1, epoch=owner.epoch, transaction=owner.number
            )
            assert isinstance(error, TransactionAborted)
            assert "an operator aborted it" in error.message

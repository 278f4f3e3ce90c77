"""How long a query waits for a broker that is gone."""

from __future__ import annotations

import time

import pytest

from spark_stream.errors import BrokerUnavailable
from spark_stream.wire.limits import REQUEST_TIMEOUT_S
from tests.datasource.sources import Query
from tests.support import NUMBERS, numbers


@pytest.mark.rule(
    "how long a query waits for brokers", "datasource/spark/session.py", "datasource/spark/place.py"
)
def test_a_query_waits_for_its_broker_as_long_as_it_may(broker):
    with broker.connect() as log:
        log.create_topic("t", schema=NUMBERS)
        with log.producer() as producer:
            producer.append("t", numbers(0, 3)).result()
    query = Query(broker.address, "t", brokerTimeout="1s")
    assert query.batch() == [0, 1, 2]
    broker.kill()
    begun = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        query.planned()
    assert 0.5 < time.monotonic() - begun < REQUEST_TIMEOUT_S

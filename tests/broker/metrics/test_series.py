"""Series of a broker after given appends, fetches and transactions: the numbers are exact."""

from __future__ import annotations

import pytest

import isolog
from spark_stream.broker.metrics.series import TABLE
from spark_stream.broker.process import Broker
from spark_stream.cluster.consumers import Query, ReaderSession
from spark_stream.consistency.groups import GroupMember
from spark_stream.consistency.isolation import STALLED_S, Isolation
from spark_stream.consistency.transactions.transactions import ReadPosition
from spark_stream.figures import SeriesKind
from spark_stream.scripts import groups
from spark_stream.scripts.readers import record_heartbeat, record_progress
from tests.broker.metrics.scraping import Samples, page, scraped
from tests.flight_calls import CALL, act_by_flight, flight_client, ticket
from tests.support import NUMBERS, eventually, numbers

HOLDER = "isolog_lso_holder_seconds"
"""The only series of the first page with names of topics and transactions: one for each broker."""


@pytest.fixture
def ten(client: isolog.Log) -> str:
    """Ten records in two batches of partition 0, acknowledged. Partition 1 is empty."""
    client.create_topic("t", partitions=2, schema=NUMBERS)
    with client.producer() as producer:
        for start in (0, 5):
            producer.append("t", numbers(start, 5), partition=0)
            producer.flush()
    return "t"


def test_appends_and_fetches_are_counted_in_total_and_by_partition(shown, client, ten):
    assert client.read(ten).num_rows == 10
    found = scraped(shown.metrics_address)
    for what in ("append", "fetch"):
        assert found(f"isolog_{what}_batches_total") == 2
        assert found(f"isolog_{what}_records_total") == 10
        place = {"topic": ten, "partition": "0"}
        assert found(f"isolog_partition_{what}_records_total", **place) == 10
        assert found(f"isolog_partition_{what}_records_total", topic=ten, partition="1") == 0
    log = shown.core.host.topic(ten).partition(0).log
    appended = sum(int(each["length"].sum()) for each in log.tables())
    assert found("isolog_append_bytes_total") == appended > 80
    assert found("isolog_fetch_bytes_total") >= 80
    assert found("isolog_append_seconds_count", isolation="read_uncommitted") == 2
    assert found("isolog_append_seconds_count", isolation="read_committed") == 0
    assert found("isolog_fetch_seconds_count") >= 1
    assert found("isolog_topic_log_bytes", topic=ten) == log.size
    assert found("isolog_force_seconds_count") >= 2


def test_flight_clients_are_counted_too(shown, client, ten):
    flight = flight_client(shown.address)
    flight.do_get(ticket(ten), CALL).read_all()
    found = scraped(shown.metrics_address)
    assert found("isolog_fetch_records_total") == 10
    with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
        act_by_flight(flight, "describe-topic", b'{"topic": "none"}')
    found = scraped(shown.metrics_address)
    assert found("isolog_refused_total", code="UNKNOWN_TOPIC") == 1
    assert found("isolog_action_seconds_count", action="describe-topic") >= 1
    flight.close()


def test_a_total_does_not_fall_when_a_topic_is_deleted(shown, client, ten):
    client.delete_topic(ten)
    found = eventually(lambda: without(shown, ten))
    assert found("isolog_append_records_total") == 10
    client.create_topic(ten, schema=NUMBERS)
    with client.producer() as producer:
        producer.append(ten, numbers(0, 3), partition=0)
    assert scraped(shown.metrics_address)("isolog_append_records_total") == 13


def without(broker: Broker, topic: str) -> Samples | None:
    """A scrape without this topic, or None if it has the topic."""
    found = scraped(broker.metrics_address)
    return None if any(("topic", topic) in labels for _, labels in found.found) else found


def test_an_open_transaction_holds_the_last_stable_offset_back(shown, client, ten):
    with client.producer(transactional_id="loader") as producer:
        producer.begin_transaction()
        producer.append(ten, numbers(10, 4), partition=0)
        producer.flush()
        with client.producer() as other:
            other.append(ten, numbers(14, 2), partition=0)
        found = eventually(lambda: with_open(shown))
        assert found("isolog_transactions_open") == 1
        assert found("isolog_transaction_oldest_seconds") > 0
        assert found("isolog_transaction_open_seconds", transactional_id="loader") > 0
        assert found("isolog_lso_held_back_records") == 6
        assert found("isolog_unreplicated_records") == 0
        place = {"topic": ten, "partition": "0"}
        assert found("isolog_partition_last_stable_offset", **place) == 10
        assert found("isolog_partition_high_watermark", **place) == 16
        assert found("isolog_partition_log_end_offset", **place) == 16
        producer.commit_transaction()
    found = eventually(lambda: None if with_open(shown) else scraped(shown.metrics_address))
    assert found("isolog_lso_held_back_records") == 0
    assert found("isolog_commit_seconds_count") == 1
    assert found("isolog_transaction_oldest_seconds") == 0


def test_a_long_transaction_that_holds_readers_back_is_named(shown, client, ten, monkeypatch):
    transactions = shown.core.transactions
    first = client.producer(transactional_id="first")
    later = client.producer(transactional_id="later")
    for number, producer in enumerate((first, later)):
        producer.begin_transaction()
        producer.append(ten, numbers(10, 4), partition=number)
        producer.append(ten, numbers(10, 4), partition=0)
        producer.flush()
    assert scraped(shown.metrics_address, "/metrics").of(HOLDER) == {}
    now_ms = transactions.now_ms
    monkeypatch.setattr(transactions, "now_ms", lambda: now_ms() + 70_000)
    found = scraped(shown.metrics_address, "/metrics")
    place = {"topic": ten, "partition": "0"}
    assert 70 <= found(HOLDER, transactional_id="first", **place) < 130
    assert len(found.of(HOLDER)) == 1
    first.abort_transaction()
    found = eventually(lambda: with_holder(shown, "later"))
    assert len(found.of(HOLDER)) == 1
    later.abort_transaction()


def with_holder(broker: Broker, name: str) -> Samples | None:
    found = scraped(broker.metrics_address)
    held = [labels for labels in found.of(HOLDER) if ("transactional_id", name) in labels]
    return found if held else None


def with_open(broker: Broker) -> Samples | None:
    found = scraped(broker.metrics_address)
    return found if found("isolog_transactions_open") else None


@pytest.mark.rule("the lag of each isolation level in metrics", "broker/metrics/scrape.py")
def test_lag_counts_the_records_of_the_isolation_level(shown, client, ten):
    """The lag includes the records of an open transaction. Another series has their number."""
    topic_id = shown.core.host.find(ten).id
    with client.consumer(ten, name="reader", partitions=[0]) as consumer:
        consumer.seek({(ten, 0): 4})
        consumer.commit()
    with client.producer(transactional_id="loader") as producer:
        producer.begin_transaction()
        producer.append(ten, numbers(10, 15), partition=0)
        producer.flush()
        for name, isolation, position in (
            ("committed", Isolation.READ_COMMITTED, 4),
            ("waiting", Isolation.READ_COMMITTED, 10),
            ("all", Isolation.READ_UNCOMMITTED, 10),
        ):
            places = (ReadPosition(ten, topic_id, 0, position), ReadPosition(ten, topic_id, 1, 0))
            query = Query("run", f"subscribe {ten}", isolation, positions=places)
            shown.core.driver.run(record_progress(name, query, 0, claim=True))
        found = scraped(shown.metrics_address)
        listed = {each.name: (each.lag, each.held_back) for each in client.consumers()}
        producer.abort_transaction()
    expected = {
        "reader": ("client", "read_uncommitted", 4, 21, 0),
        "committed": ("query", "read_committed", 4, 21, 15),
        "waiting": ("query", "read_committed", 10, 15, 15),
        "all": ("query", "read_uncommitted", 10, 15, 0),
    }
    for name, (kind, isolation, position, lag, held_back) in expected.items():
        who = {"consumer": name, "kind": kind, "isolation": isolation}
        assert found("isolog_consumer_position_records", **who) == position
        assert found("isolog_consumer_lag_records", **who) == lag
        assert found("isolog_consumer_held_back_records", **who) == held_back
        assert listed[name] == (lag, held_back)
    place = {"topic": ten, "partition": "1"}
    who = {"consumer": "all", "kind": "query"}
    assert found("isolog_consumer_partition_lag_records", **who, **place) == 0


def test_the_lag_of_a_table_counts_to_the_last_stable_offset(shown, client, ten):
    lake = client.create_lake("tables", ten, "/nowhere/tables", check=False)
    client._lakes.record_progress("tables", lake.id, {lake.topics[0].id: {0: 4}})
    shown.core.host.refresh()
    ends = client._topics.offsets(ten, isolation="read_committed").offsets
    found = scraped(shown.metrics_address)
    assert found("isolog_lake_lag_records", lake="tables") == sum(ends.values()) - 4
    assert found("isolog_lake_report_age_seconds", lake="tables") < 60
    assert found("isolog_lake_freshness_seconds", lake="tables") == 60
    assert found("isolog_lake_stopped", lake="tables") == 0
    client._lakes.record_progress("tables", lake.id, {}, "it was restored")
    shown.core.host.refresh()
    assert scraped(shown.metrics_address)("isolog_lake_stopped", lake="tables") == 1
    client.drop_lake("tables")


def test_segments_that_wait_for_tables_are_counted(shown, client):
    config = {"segment.bytes": "65536", "local.retention.bytes": "1"}
    topic = client.create_topic("held", schema=NUMBERS, config=config)
    lake = client.create_lake("holds", "held", "/nowhere/held", check=False)
    with client.producer() as producer:
        for at in range(40):
            producer.append("held", numbers(at * 1_000, 1_000), partition=0)
            producer.flush()
    log = shown.core.host.topic("held").partition(0).log
    closed = [each.size for each in log._closed]
    found = scraped(shown.metrics_address)
    assert found("isolog_segments_held") == len(closed) > 3
    assert found("isolog_segments_held_bytes") == sum(closed)
    assert found("isolog_topic_segments_held", topic="held") == len(closed)
    middle = int(log._closed[1].end.offset)
    client._lakes.record_progress("holds", lake.id, {topic.id: {0: middle}})
    shown.core.host.refresh()
    found = scraped(shown.metrics_address)
    assert found("isolog_segments_held") == len(closed) - 2
    assert found("isolog_topic_segments_held_bytes", topic="held") == sum(closed[2:])
    assert found("isolog_lake_lag_records", lake="holds") == 40_000 - middle
    client.drop_lake("holds")
    client.delete_topic("held")


@pytest.mark.rule("the state of a reader in metrics", "broker/metrics/scrape.py")
def test_metrics_show_the_state_that_clients_show(shown, client, ten):
    driver = shown.core.driver
    with client.consumer(ten, name="closed", partitions=[0]) as consumer:
        consumer.commit()
    with pytest.raises(ZeroDivisionError), client.consumer(ten, name="failed") as consumer:
        print(consumer.position(), 1 // 0)
    client.consumer(ten, group="empty").close()
    with client.consumer(ten, name="hangs", isolation="read_committed") as hangs:
        hangs.commit()
        owner = hangs.owner()["hangs"]
        idle = ReaderSession(owner, 45_000, Isolation.READ_COMMITTED, 1_000 * round(STALLED_S))

        def all_states() -> tuple[dict[str, str], dict[str, str]]:
            """Return the state of each consumer in the metrics and in the client.

            The idle session is recorded again before, because heartbeats of ``hangs`` replace it.
            """
            driver.run(record_heartbeat("client", "hangs", idle, claim=True))
            found = scraped(shown.metrics_address).of("isolog_consumer_state")
            in_metrics = {
                dict(labels)["consumer"]: dict(labels)["state"]
                for labels, value in found.items()
                if value == 1
            }
            return in_metrics, {each.name: each.state for each in client.consumers()}

        expected = {"closed": "stopped", "failed": "gone", "empty": "empty", "hangs": "stalled"}
        eventually(lambda: all_states() == (expected, expected))


@pytest.mark.full  # one session: tests/consistency/test_groups.py
def test_members_without_a_heartbeat_in_their_session_are_counted(shown, client, ten):
    with client.consumer(ten, group="billing"):
        client.consumer(ten, group="billing").close()
        assert not scraped(shown.metrics_address).of("isolog_group_lost_members_total")
    member = GroupMember("silent", (ten,), 1_000, Isolation.READ_UNCOMMITTED)
    shown.core.driver.run(groups.join("billing", member))
    eventually(lambda: scraped(shown.metrics_address).of("isolog_group_lost_members_total"))
    found = scraped(shown.metrics_address)
    assert found("isolog_group_lost_members_total", consumer="billing") == 1
    [described] = client.describe_consumer("billing")
    assert described.lost_member == "silent"


def test_a_position_in_a_deleted_topic_has_no_lag_in_a_new_topic_of_the_name(shown, client, ten):
    with client.consumer(ten, name="reader", partitions=[0]) as consumer:
        consumer.seek({(ten, 0): 4})
        consumer.commit()
    client.delete_topic(ten)
    client.create_topic(ten, schema=NUMBERS)
    with client.producer() as producer:
        producer.append(ten, numbers(0, 7), partition=0)
    found = scraped(shown.metrics_address)
    assert found("isolog_partition_log_end_offset", topic=ten, partition="0") == 7
    assert found.of("isolog_consumer_partition_lag_records") == {}
    assert found.of("isolog_consumer_lag_records") == {}


@pytest.mark.rule("the waits of a scrape", "broker/metrics/scrape.py")
def test_a_scrape_waits_for_no_partition(shown, client, ten):
    """An append holds the partition's lock for as long as a slow disk takes."""
    with shown.core.host.topic(ten).partition(0)._state.lock:
        found = scraped(shown.metrics_address)
    assert found("isolog_partition_log_end_offset", topic=ten, partition="0") == 10


@pytest.mark.rule("the series with names of topics", "broker/metrics/endpoint.py")
def test_the_first_page_names_no_topic_and_the_second_has_all(shown, client, ten):
    few, every = (scraped(shown.metrics_address, f"/metrics{path}") for path in ("", "/all"))
    process = {each for each in few.families if each.startswith("process_")}
    named = {each.name.removesuffix("_total") for each in TABLE}
    assert every.families == named | process
    assert few.families == every.families - {
        each.name.removesuffix("_total") for each in TABLE if each.detailed
    }
    private = {"topic", "partition", "principal", "transactional_id"}
    assert not any(private & few.names[name] for name in few.names.keys() - {HOLDER})
    assert page(shown.metrics_address, "/metrics")[0] == 200


def test_names_of_series_are_unique_and_end_with_kind_and_unit():
    assert len({each.name for each in TABLE}) == len(TABLE)
    for each in TABLE:
        assert each.name.startswith("isolog_")
        assert each.name.endswith("_total") == (each.kind is SeriesKind.COUNTER)
        assert each.kind is not SeriesKind.HISTOGRAM or each.name.endswith("_seconds")
        private = {"topic", "partition", "principal", "transactional_id", "action"}
        assert each.detailed or not private & {*each.labels} or each.name == HOLDER

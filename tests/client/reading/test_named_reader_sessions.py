"""Sessions of named consumers and groups, during a run and after its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

import isolog
from spark_stream.client.reading import named_reader
from spark_stream.consistency.isolation import STALLED_S, ReaderEnding, ReaderState
from spark_stream.wire.consumer_messages import ConsumerDescription
from tests.docs.pages import blocks
from tests.support import eventually


@pytest.fixture
def topic(log: isolog.Log, topic: str) -> str:
    """A topic with ten records."""
    log.create_topic(topic, partitions=2)
    with log.producer() as producer:
        for number in range(10):
            producer.send(topic, f"{number}", partition=number % 2)
    return topic


def of(log: isolog.Log, name: str) -> ConsumerDescription:
    (found,) = log.describe_consumer(name)
    return found


def has_session(log: isolog.Log, name: str) -> bool:
    return of(log, name).isolation is not None


def test_a_closed_consumer_with_lag_is_stopped(log, topic):
    with log.consumer(topic, name=f"reader of {topic}", isolation="read_committed") as consumer:
        assert consumer.poll(20)
        consumer.commit()
        eventually(lambda: has_session(log, f"reader of {topic}"))
        assert of(log, f"reader of {topic}").state is ReaderState.CATCHING_UP
        assert of(log, f"reader of {topic}").isolation == "read_committed"
        assert len(list(consumer.records(until="latest"))) == 5
        consumer.commit()
        assert of(log, f"reader of {topic}").state is ReaderState.RUNNING
    with log.producer() as producer:
        producer.send(topic, "more")
    assert of(log, f"reader of {topic}").state is ReaderState.STOPPED
    assert of(log, f"reader of {topic}").lag == 1


def test_a_consumer_that_ends_with_an_error_is_lost(log, topic):
    with (
        pytest.raises(ValueError, match="bad record"),
        log.consumer(topic, name=f"reader of {topic}"),
    ):
        raise ValueError("bad record")
    assert of(log, f"reader of {topic}").state is ReaderState.GONE
    log.consumer(topic, name=f"reader of {topic}").close()
    assert of(log, f"reader of {topic}").state is ReaderState.STOPPED


def test_a_fenced_reader_does_not_end_the_session_of_its_successor(log, topic):
    first = log.consumer(topic, name=f"reader of {topic}")
    eventually(lambda: has_session(log, f"reader of {topic}"))
    with log.consumer(topic, name=f"reader of {topic}", isolation="read_committed"):
        eventually(lambda: of(log, f"reader of {topic}").isolation == "read_committed")
        first.close()
        assert of(log, f"reader of {topic}").ending is ReaderEnding.NONE


def test_a_group_is_empty_after_its_members_were_closed(log, topic):
    with log.consumer(topic, group=f"team of {topic}") as consumer:
        assert consumer.poll(20)
        assert of(log, f"team of {topic}").state is ReaderState.CATCHING_UP
    assert of(log, f"team of {topic}").state is ReaderState.EMPTY
    assert of(log, f"team of {topic}").lag == 5


def test_a_group_whose_last_member_failed_is_lost(log, topic):
    with pytest.raises(ValueError, match="bad"), log.consumer(topic, group=f"team of {topic}"):
        raise ValueError("bad record")
    assert of(log, f"team of {topic}").state is ReaderState.GONE
    log.consumer(topic, group=f"team of {topic}").close()
    assert of(log, f"team of {topic}").state is ReaderState.EMPTY


def test_a_program_without_requests_for_records_is_stalled(log, topic):
    with log.consumer(topic, name=f"reader of {topic}") as consumer:
        assert consumer.poll(20)
        consumer.commit()
        beats = consumer._heartbeats
        beats.active_at -= STALLED_S
        beats._send(ReaderEnding.NONE, 10.0)
        assert of(log, f"reader of {topic}").state is ReaderState.STALLED
        consumer.poll(0)
        beats._send(ReaderEnding.NONE, 10.0)
        assert of(log, f"reader of {topic}").state is ReaderState.CATCHING_UP


def test_an_idle_member_is_stalled_until_its_next_request(log, topic):
    with log.consumer(topic, group=f"team of {topic}") as consumer:
        assert consumer.poll(20)
        member = consumer._member.membership
        member._active_at -= STALLED_S
        member._renewed_at = 0.0
        member._beat()
        assert of(log, f"team of {topic}").state is ReaderState.STALLED
        member.record_activity()
        member._renewed_at = 0.0
        member._beat()
        assert of(log, f"team of {topic}").state is ReaderState.CATCHING_UP


def test_a_heartbeat_after_the_end_is_ignored(log, topic):
    consumer = log.consumer(topic, name=f"reader of {topic}")
    beats = consumer._heartbeats
    consumer.close()
    beats._send(ReaderEnding.NONE, 10.0)
    assert of(log, f"reader of {topic}").state is ReaderState.STOPPED


def test_close_waits_briefly_for_a_hanging_heartbeat(log, topic, monkeypatch):
    monkeypatch.setattr(named_reader, "_END_S", 0.01)
    consumer = log.consumer(topic, name=f"reader of {topic}")
    closing = threading.Thread(target=consumer.close, daemon=True)
    with consumer._heartbeats._lock:  # a heartbeat that a paused broker does not answer
        closing.start()
        closing.join(30)
        assert not closing.is_alive()


SCRIPT = """
import sys
import isolog
log = isolog.connect(sys.argv[1])
consumer = log.consumer(sys.argv[2], name="script of " + sys.argv[2])
print(len(consumer.poll(20)), flush=True)
{then}
"""


MEMBER = """
import time
import isolog
log = isolog.connect(sys.argv[1])
with log.consumer(sys.argv[2], group=sys.argv[3]) as consumer:
    print(len(consumer.poll(20)), flush=True)
    while True:  # a single long wait could begin just after the signal
        time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        ("pass", ReaderEnding.CLEAN),
        ("raise ValueError", ReaderEnding.LOST),
        ("input()", ReaderEnding.NONE),
    ],
)
def test_the_end_of_a_program_ends_the_session_of_a_consumer(log, topic, shared, then, expected):
    command = [sys.executable, "-c", SCRIPT.format(then=then), shared.address, topic]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        if expected is ReaderEnding.NONE:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
    assert of(log, f"script of {topic}").ending is expected


@pytest.mark.parametrize("handles", [True, False])
def test_a_member_with_the_documented_handler_leaves_on_sigterm(log, topic, shared, handles):
    (block,) = (each for each in blocks("how-to/share-a-topic.md") if "signal.SIGTERM" in each.code)
    script = (block.code if handles else "import sys\n") + MEMBER
    group = f"group of {topic}"
    command = [sys.executable, "-c", script, shared.address, topic, group]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.terminate()
        assert process.wait(30) == (0 if handles else -signal.SIGTERM)
    [found] = log.describe_consumer(group)
    assert len(found.group.members) == (0 if handles else 1)
    assert found.state is (ReaderState.EMPTY if handles else ReaderState.CATCHING_UP)


def test_a_collected_consumer_is_stopped(log, topic):
    log.consumer(topic, name=f"reader of {topic}")
    eventually(lambda: of(log, f"reader of {topic}").state is ReaderState.STOPPED)

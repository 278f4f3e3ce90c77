"""Topics whose names differ only in case share a folder on APFS. Their records stay apart.

A link stands for the second name: it leads to the folder of the first one, as APFS does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import BrokerProcess, eventually


@pytest.mark.rule("topics with names that differ only in case", "storage/disk/directory.py")
def test_topics_that_share_a_folder_keep_their_records(tmp_path: Path) -> None:
    topics = tmp_path / "log" / "topics"
    with BrokerProcess(tmp_path / "log") as broker:
        with broker.connect() as log:
            write(log, "Flights", b"one")
            (topics / "flights").symlink_to("Flights")
            write(log, "flights", b"two")
            assert len(list((topics / "Flights").iterdir())) == 2  # the ids of the topics
            assert log.read("Flights")["value"].to_pylist() == [b"one"]
        broker.restart()
        with broker.connect() as log:
            log.delete_topic("Flights")
            eventually(lambda: len(list((topics / "Flights").iterdir())) == 1)
            assert log.read("flights")["value"].to_pylist() == [b"two"]
        broker.restart()
        with broker.connect() as log:
            assert log.read("flights")["value"].to_pylist() == [b"two"]
            write(log, "Flights", b"three")
            assert log.read("Flights")["value"].to_pylist() == [b"three"]


def write(log, topic: str, value: bytes) -> None:
    log.create_topic(topic, partitions=1)
    with log.producer() as producer:
        producer.send(topic, value)

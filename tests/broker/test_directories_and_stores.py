"""Directories and stores that do not belong together: copied, mistaken for others, or lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_stream.errors import DirectoryInUse
from tests.broker.stamped import Appender, Owner, seen
from tests.support import NUMBERS, BrokerProcess, act


def on_store(path: Path) -> str:
    return f'metadata = "{path}"\n'


def make_topic(broker: BrokerProcess, name: str = "t", partitions: int = 1) -> None:
    with broker.connect() as log:
        log.create_topic(name, partitions, schema=NUMBERS)


def put(broker: BrokerProcess, value: int, topic: str = "t", partition: int = 0) -> None:
    """One record of a producer of its own, acknowledged."""
    with broker.flight() as flight:
        stream = Appender(flight, topic)
        producer = act(flight, "new-producer")["producer_id"]
        ack = stream.put(value, 1, producer, 0, partition=partition)
        stream.close()
        assert "error" not in ack, ack
        assert not ack["duplicate"]


def read(broker: BrokerProcess, topic: str = "t") -> list[int]:
    with broker.flight() as flight:
        return seen(flight, topic, "read_committed")


# -- copied ---------------------------------------------------------------------------------------


def test_a_copied_directory_is_refused_while_its_broker_runs(tmp_path: Path):
    """Both would lead the same topics, and acknowledge records at the same offsets."""
    conf = on_store(tmp_path / "metadata.sqlite")
    with BrokerProcess(tmp_path / "a", conf=conf) as first:
        make_topic(first)
        put(first, 1)
        first.terminate()
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        first.restart()
        with pytest.raises(DirectoryInUse, match="copy of the other"):
            BrokerProcess(tmp_path / "copy", conf=conf).start()
        put(first, 2)
        first.kill()
        assert read(first.restart()) == [1, 2]  # a killed broker leaves nothing that is in its way


def test_brokers_that_reach_a_store_by_different_paths_see_each_others_leases(tmp_path: Path):
    """Their leases lie beside the store, wherever a symbolic link to it lies."""
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "store"
    link.symlink_to(tmp_path / "metadata.sqlite")
    with (
        BrokerProcess(tmp_path / "a", conf=on_store(tmp_path / "metadata.sqlite")),
        BrokerProcess(tmp_path / "b", conf=on_store(link)),
    ):
        leases = [each for each in (tmp_path / "leases").iterdir() if not each.suffix]
        assert len(leases) == 2
        assert [each.name for each in (tmp_path / "links").iterdir()] == ["store"]


# -- older than the logs --------------------------------------------------------------------------


def test_a_store_from_an_older_copy_gives_no_number_out_again(tmp_path: Path):
    """A new producer with an earlier one's id would have its record taken for the other's."""
    with BrokerProcess(tmp_path / "log") as broker:
        make_topic(broker)
        broker.terminate()
        shutil.copy(tmp_path / "log" / "metadata.sqlite", tmp_path / "older")
        broker.restart()
        put(broker, 1)
        with broker.flight() as flight:
            owner = Owner(flight, "owner").begin()
            owner.put("t", 2, 1)
            owner.commit()
        broker.terminate()
        shutil.copy(tmp_path / "older", tmp_path / "log" / "metadata.sqlite")
        broker.restart()
        put(broker, 3)
        with broker.flight() as flight:
            again = Owner(flight, "owner").begin()
            assert again.number > owner.number
            assert "error" not in again.put("t", 4, 1)
            again.commit()
        assert read(broker) == [1, 2, 3, 4]
        assert "the metadata store is older than the logs" in broker.said()

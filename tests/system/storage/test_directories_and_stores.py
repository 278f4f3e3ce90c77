"""Directories and stores that do not belong together: copied, mistaken for others, or lost."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from isolog.errors import DamagedSegment, DirectoryInUse, WrongCluster
from spark_stream.broker import process
from spark_stream.cluster.backup import back_up, put_back
from spark_stream.cluster.stores.sqlite import SqliteStore
from tests.broker.stamped import Appender, Owner, refused, seen
from tests.support import NUMBERS, BrokerProcess, act, eventually


def on_store(path: Path) -> str:
    return f'metadata = "{path}"\n'


def make_topic(broker: BrokerProcess, name: str = "t", partitions: int = 1) -> None:
    with broker.connect() as log:
        log.create_topic(name, partitions, schema=NUMBERS)


def put(broker: BrokerProcess, value: int, topic: str = "t", partition: int = 0) -> None:
    """One record of a producer of its own, acknowledged."""
    with broker.channel() as channel:
        stream = Appender(channel, topic)
        producer = act(channel, "new-producer")["producer_id"]
        ack = stream.put(value, 1, producer, 0, partition=partition)
        stream.close()
        assert "error" not in ack, ack
        assert not ack["duplicate"]


def read(broker: BrokerProcess, topic: str = "t") -> list[int]:
    with broker.channel() as channel:
        return seen(channel, topic, "read_committed")


# -- copied ---------------------------------------------------------------------------------------


def test_an_id_that_another_broker_has_leaves_a_new_directory_to_a_better_one(tmp_path: Path):
    conf = on_store(tmp_path / "metadata.sqlite")
    with BrokerProcess(tmp_path / "a", conf=f'{conf}id = "1"\n') as first:
        with pytest.raises(DirectoryInUse, match="both were given the same id"):
            BrokerProcess(tmp_path / "b", conf=f'{conf}id = "1"\n').start()
        with BrokerProcess(tmp_path / "b", conf=f'{conf}id = "2"\n'), first.connect() as log:
            assert [each.id for each in log.cluster().brokers] == ["1", "2"]


@pytest.mark.rule(
    "one process is a broker of a store, whatever was copied", "broker/node/identity.py"
)
def test_a_copied_directory_is_refused_while_its_broker_runs(tmp_path: Path):
    """Both would lead the same topics, and acknowledge records at the same offsets."""
    conf = on_store(tmp_path / "metadata.sqlite")
    with BrokerProcess(tmp_path / "a", conf=conf) as first:
        make_topic(first)
        put(first, 1)
        first.terminate()
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        first.restart()
        with (
            pytest.raises(DirectoryInUse, match="copy of the other"),
            BrokerProcess(tmp_path / "copy", conf=conf),
        ):
            pass
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
        with broker.channel() as channel:
            owner = Owner(channel, "owner").begin()
            owner.put("t", 2, 1)
            owner.commit()
        broker.terminate()
        shutil.copy(tmp_path / "older", tmp_path / "log" / "metadata.sqlite")
        broker.restart()
        put(broker, 3)
        with broker.channel() as channel:
            again = Owner(channel, "owner").begin()
            assert again.number > owner.number
            assert "error" not in again.put("t", 4, 1)
            again.commit()
        assert read(broker) == [1, 2, 3, 4]
        assert "the metadata store is older than the logs" in broker.log_text()


def test_topics_that_an_older_store_does_not_know_are_told_and_left_alone(tmp_path: Path):
    with BrokerProcess(tmp_path / "log") as broker:
        make_topic(broker, "early")
        broker.terminate()
        shutil.copy(tmp_path / "log" / "metadata.sqlite", tmp_path / "older")
        broker.restart()
        make_topic(broker, "late")
        put(broker, 1, "late")
        broker.terminate()
        shutil.copy(tmp_path / "older", tmp_path / "log" / "metadata.sqlite")
        broker.restart()
        (folder,) = (tmp_path / "log" / "topics" / "late").iterdir()
        assert f"no topic in the metadata store has the id of {folder}" in broker.log_text()
        make_topic(broker, "late")
        put(broker, 2, "late")
        assert read(broker, "late") == [2]
        assert list(folder.rglob("*.entries"))


# -- lost -----------------------------------------------------------------------------------------


@pytest.mark.rule(
    "which store a directory is opened with, and what is said when records have no topic",
    "broker/node/identity.py",
)
@pytest.mark.parametrize("lost", ["removed", "another is named"])
def test_a_directory_with_records_is_not_opened_with_an_empty_store(tmp_path: Path, lost: str):
    """All its topics would be gone, and nobody would say so."""
    with BrokerProcess(tmp_path / "log") as broker:
        make_topic(broker)
        put(broker, 1)
        broker.terminate()
    store = tmp_path / "log" / "metadata.sqlite"
    named, conf = store, ""
    if lost == "removed":
        store.rename(tmp_path / "aside")
    else:
        named = tmp_path / "new.sqlite"
        conf = on_store(named)
    for is_there in (False, True):
        if is_there:
            SqliteStore(named).close()
        with (
            pytest.raises(WrongCluster, match=r"has records of topics \(t\)") as refused,
            BrokerProcess(tmp_path / "log", conf=conf),
        ):
            pass
        assert ("is empty" if is_there else "there is no") in refused.value.message
        assert "isolog broker start --metadata STORE" in refused.value.hint
        assert named.exists() == is_there  # a refused start makes no store
    if lost == "removed":
        (tmp_path / "aside").rename(store)
    with BrokerProcess(tmp_path / "log") as broker:
        assert read(broker) == [1]


def test_a_broker_of_a_cluster_is_no_log_of_its_own_though_it_has_no_records(tmp_path: Path):
    """Started by its directory alone it would be another log under the cluster's id."""
    with BrokerProcess(tmp_path / "log", conf=on_store(tmp_path / "shared.sqlite")) as broker:
        broker.terminate()
    with (
        pytest.raises(WrongCluster, match=r"there is no metadata store .*/log/metadata\.sqlite"),
        BrokerProcess(tmp_path / "log"),
    ):
        pass
    assert not (tmp_path / "log" / "metadata.sqlite").exists()
    with BrokerProcess(tmp_path / "log", conf=on_store(tmp_path / "shared.sqlite")):
        pass


def test_a_store_that_is_moved_out_of_the_directory_serves_it_from_there(tmp_path: Path):
    with BrokerProcess(tmp_path / "log") as broker:
        make_topic(broker)
        put(broker, 1)
        broker.terminate()
    (tmp_path / "log" / "metadata.sqlite").rename(tmp_path / "shared.sqlite")
    with BrokerProcess(tmp_path / "log", conf=on_store(tmp_path / "shared.sqlite")) as broker:
        assert read(broker) == [1]


@pytest.mark.rule("a topic whose files are gone says so", "broker/host/hosted.py")
@pytest.mark.parametrize("lost", ["topics", "topics/t"])
def test_a_topic_whose_folder_is_gone_says_so(tmp_path: Path, lost: str):
    """An empty one in its place would take records at offsets that were acknowledged before."""
    with BrokerProcess(tmp_path / "log") as broker:
        make_topic(broker)
        make_topic(broker, "empty")
        put(broker, 1)
        broker.terminate()
        shutil.rmtree(tmp_path / "log" / lost)
        broker.restart()
        assert "is missing, and with it all records of topic 't'" in broker.log_text()
        with broker.channel() as channel:
            assert isinstance(refused(lambda: seen(channel, "t", "read_committed")), DamagedSegment)
            partition = act(channel, "describe-topic", topic="t")["partitions"][0]
            assert partition["error"]["code"] == "DAMAGED_SEGMENT"
            act(channel, "delete-topic", topic="t")
        make_topic(broker)
        put(broker, 2)
        assert read(broker) == [2]
        if lost == "topics/t":
            assert read(broker, "empty") == []
        broker.restart()
        assert read(broker) == [2]


def test_a_partition_that_is_not_as_it_was_left_is_told(tmp_path: Path):
    """Whoever removes a partition's folder to begin it anew knows that; anybody else should."""
    with BrokerProcess(tmp_path / "log") as broker:
        make_topic(broker, partitions=2)
        put(broker, 1)
        put(broker, 2, partition=1)
        broker.restart()
        assert "cannot vouch" not in broker.log_text()
        broker.terminate()
        (folder,) = (tmp_path / "log" / "topics" / "t").iterdir()
        shutil.rmtree(folder / "0")
        broker.restart()
        assert read(broker) == []
        assert "t/0 has lost entries, or its folder" in broker.log_text()


def test_a_broker_whose_lease_was_removed_takes_another(tmp_path: Path):
    """Else it would say so for ever, and other brokers would take it for dead."""
    conf = on_store(tmp_path / "metadata.sqlite")
    leases = tmp_path / "leases"
    with BrokerProcess(tmp_path / "log", conf=conf) as broker:
        (lease,) = (each for each in leases.iterdir() if not each.suffix)
        shutil.rmtree(leases)
        eventually(lambda: lease.exists() and int(lease.read_text().split()[1]) > 0)
        assert broker.log_text().count("lease expired") == 1


@pytest.mark.parametrize("was_open", [False, True])
def test_a_transactional_id_writes_at_once_after_an_older_backup_is_put_back(tmp_path, was_open):
    """The log has later epochs of the producer id that it had by the backup."""
    store, backup = tmp_path / "a" / "metadata.sqlite", tmp_path / "backup"

    def write(broker: BrokerProcess, *values: int) -> None:
        with broker.connect() as log, log.producer(transactional_id="tx") as producer:
            for value in values:
                with producer.transaction():
                    producer.append("t", pa.table({"n": [value]}, schema=NUMBERS))
                    if was_open and value == 2:
                        producer.flush()
                        back_up(store, backup)
                if not was_open and value == 2:
                    back_up(store, backup)

    with BrokerProcess(tmp_path / "a") as broker:
        make_topic(broker)
        write(broker, 1, 2, 3, 4)
        write(broker, 5)
        broker.terminate()
        put_back(backup, store, force=True)
        broker.start()
        write(broker, 6, 7)
        assert read(broker) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("limit", "warns"), [(256, True), (4096, False)])
def test_a_low_limit_of_open_files_is_logged_at_the_start(caplog, monkeypatch, limit, warns):
    monkeypatch.setattr(process.resource, "getrlimit", lambda _: (limit, limit))
    with caplog.at_level(logging.WARNING):
        process._warn_of_few_files(partitions=40)
    assert ("limit of open files is 256, but 40 partitions" in caplog.text) is warns

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
    """Append one record by a new producer, and check the acknowledgement."""
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


def test_new_directory_refused_for_its_id_starts_with_another_id(tmp_path: Path):
    conf = on_store(tmp_path / "metadata.sqlite")
    with BrokerProcess(tmp_path / "a", conf=f'{conf}id = "1"\n') as first:
        with pytest.raises(DirectoryInUse, match="both were given the same id"):
            BrokerProcess(tmp_path / "b", conf=f'{conf}id = "1"\n').start()
        with BrokerProcess(tmp_path / "b", conf=f'{conf}id = "2"\n'), first.connect() as log:
            assert [each.id for each in log.cluster().brokers] == ["1", "2"]


@pytest.mark.rule(
    "only one process is a given broker, also after a copy", "broker/node/identity.py"
)
def test_copied_directory_is_refused_while_its_broker_runs(tmp_path: Path):
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
        assert read(first.restart()) == [1, 2]  # a kill leaves no lock


def test_leases_are_shared_by_all_paths_to_a_store(tmp_path: Path):
    """The leases lie beside the store itself, not beside a symbolic link to it."""
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


def test_older_store_does_not_reuse_producer_ids(tmp_path: Path):
    """Otherwise the records of a new producer would count as duplicates of an earlier one."""
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


def test_topic_folders_missing_in_an_older_store_are_logged_and_kept(tmp_path: Path):
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


@pytest.mark.quick("removed")
@pytest.mark.rule(
    "a directory with records is not opened with an empty store",
    "broker/node/identity.py",
)
@pytest.mark.parametrize("lost", ["removed", "another is named"])
def test_directory_with_records_is_not_opened_with_an_empty_store(tmp_path: Path, lost: str):
    """Otherwise all its topics would disappear without an error."""
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
        assert named.exists() == is_there  # a refused start creates no store
    if lost == "removed":
        (tmp_path / "aside").rename(store)
    with BrokerProcess(tmp_path / "log") as broker:
        assert read(broker) == [1]


def test_empty_directory_of_a_cluster_is_not_opened_as_a_separate_log(tmp_path: Path):
    """Started without the shared store it would be another log with the id of the cluster."""
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


def test_store_may_be_moved_out_of_the_directory(tmp_path: Path):
    with BrokerProcess(tmp_path / "log") as broker:
        make_topic(broker)
        put(broker, 1)
        broker.terminate()
    (tmp_path / "log" / "metadata.sqlite").rename(tmp_path / "shared.sqlite")
    with BrokerProcess(tmp_path / "log", conf=on_store(tmp_path / "shared.sqlite")) as broker:
        assert read(broker) == [1]


@pytest.mark.quick("topics/t")
@pytest.mark.rule("a topic with missing files reports damage", "broker/host/hosted_topic.py")
@pytest.mark.parametrize("lost", ["topics", "topics/t"])
def test_topic_with_a_missing_folder_reports_damage(tmp_path: Path, lost: str):
    """An empty folder in its place would reuse acknowledged offsets."""
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


def test_partition_with_a_missing_folder_is_logged(tmp_path: Path):
    """The removal may be intended, so the partition opens empty, and the loss is logged."""
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


def test_broker_recreates_a_removed_lease(tmp_path: Path):
    """Otherwise it would log the expiry forever, and other brokers would count it as dead."""
    conf = on_store(tmp_path / "metadata.sqlite")
    leases = tmp_path / "leases"
    with BrokerProcess(tmp_path / "log", conf=conf) as broker:
        (lease,) = (each for each in leases.iterdir() if not each.suffix)
        shutil.rmtree(leases)
        eventually(lambda: lease.exists() and int(lease.read_text().split()[1]) > 0)
        assert broker.log_text().count("lease expired") == 1


@pytest.mark.quick("True")
@pytest.mark.parametrize("was_open", [False, True])
def test_transactional_id_continues_after_an_older_backup_is_restored(tmp_path, was_open):
    """The log has later epochs of its producer id than the backup."""
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
def test_low_limit_of_open_files_is_logged_at_the_start(caplog, monkeypatch, limit, warns):
    monkeypatch.setattr(process, "open_files_limit", lambda: limit)
    with caplog.at_level(logging.WARNING):
        process._warn_of_few_files(partitions=40)
    assert ("limit of open files is 256, but 40 partitions" in caplog.text) is warns

"""``isolog log``: dump and verify, beside a running broker and after it has ended."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pytest

from tests.cli.conftest import Call, Served
from tests.storage.logs import flip
from tests.storage.offline.test_files import state_of


@pytest.fixture(scope="module")
def topics(served: Served) -> Served:
    """A topic of text with a committed, an aborted and an open transaction, and a typed one."""
    served.log.create_topic("texts", partitions=2)
    with served.log.producer(transactional_id="loader") as producer:
        with producer.transaction():
            producer.send("texts", "committed", key="k", partition=0)
        producer.begin_transaction()
        producer.send("texts", "aborted", partition=0).result()
        producer.abort_transaction()
    open_one = served.log.producer(transactional_id="late")
    open_one.begin_transaction()
    open_one.send("texts", "open", partition=0).result()
    batch = pa.record_batch({"id": pa.array([1, 2, 3]), "name": pa.array(["a", None, "c"])})
    served.log.create_topic("typed", schema=batch.schema)
    with served.log.producer() as producer:
        producer.append("typed", batch)
    return served


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def folder(served: Served, topic: str) -> str:
    (found,) = (served.directory / "topics" / topic).iterdir()
    return str(found)


def test_dump_shows_segments(call: Call, topics):
    shown = call("log", "dump", str(topics.directory), "--output", "json")
    assert (shown.code, shown.err) == (0, "")
    found = {(each["topic"], each["partition"]): each for each in lines(shown.out)}
    assert set(found) == {("texts", 0), ("typed", 0)}
    assert found["typed", 0]["end_offset"] == 3
    assert found["texts", 0]["entries"] == 5
    assert {each["checksums"] for each in found.values()} == {"ok"}
    table = call("log", "dump", folder(topics, "typed"), "--no-check").out
    assert "typed" in table
    assert "not checked" in table


def test_dump_shows_entries_with_their_transactions(call: Call, topics):
    shown = call("log", "dump", folder(topics, "texts"), "--entries", "--output", "json")
    assert shown.code == 0
    found = [(each["kind"], each["state"], each["count"]) for each in lines(shown.out)]
    assert found == [
        ("data", "committed", 1),
        ("commit", "committed", 0),
        ("data", "aborted", 1),
        ("abort", "aborted", 0),
        ("data", "open", 1),
    ]
    cut = call("log", "dump", folder(topics, "texts"), "--entries", "--from", "2", "-o", "json")
    assert [each["base_offset"] for each in lines(cut.out)] == [2]
    arguments = ("--entries", "--from", "1", "--to", "2", "-o", "json")
    cut = call("log", "dump", folder(topics, "texts"), *arguments)
    assert [each["kind"] for each in lines(cut.out)] == ["data", "abort"]


def test_dump_decodes_records(call: Call, topics):
    texts = call("log", "dump", folder(topics, "texts"), "--records", "-o", "json")
    found = [(each["_offset"], each["_state"], each["value"]) for each in lines(texts.out)]
    assert found == [(0, "committed", "committed"), (1, "aborted", "aborted"), (2, "open", "open")]
    assert lines(texts.out)[0]["key"] == "k"
    arguments = ("--records", "--from", "1", "--to", "2", "--partition", "0", "-o", "json")
    typed = call("log", "dump", folder(topics, "typed"), *arguments)
    assert lines(typed.out) == [
        {"_partition": 0, "_offset": 1, "_state": "", "id": 2, "name": None}
    ]
    assert call("log", "dump", folder(topics, "typed"), "--records", "--partition", "7").out == ""


def test_verify_changes_no_file_and_reports_unchecked_writes(call: Call, topics):
    before = state_of(topics.directory / "topics")
    found = call("log", "verify", str(topics.directory))
    assert found.code == 0
    assert "2 partitions checked, 0 damaged" in found.out
    assert "a broker is running" in found.err
    assert state_of(topics.directory / "topics") == before


def test_unreadable_log_does_not_stop_verification_of_others(call: Call, topics, tmp_path):
    copy = tmp_path / "topics"
    shutil.copytree(topics.directory / "topics", copy)
    (arrow,) = (copy / "texts").rglob("*.arrow")
    arrow.unlink()
    arrow.mkdir()
    found = call("log", "verify", str(copy))
    assert found.code == 1
    assert "1 partition checked, 0 damaged, 1 unreadable" in found.out
    assert "texts" in found.err


def test_damage_in_a_copy_is_reported_with_its_position(call: Call, topics, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder(topics, "typed"), copy)
    (arrow,) = copy.rglob("*.arrow")
    flip(arrow, arrow.stat().st_size - 20, 2)
    before = state_of(copy)
    found = call("log", "verify", str(copy), "--output", "json")
    assert found.code == 1
    (verdict,) = lines(found.out)
    (finding,) = verdict["findings"]
    assert (verdict["topic"], verdict["damaged"]) == ("typed", True)
    assert (finding["file"], finding["entry"], finding["offset"]) == (str(arrow), 0, 0)
    assert finding["remedy"]
    table = call("log", "verify", str(copy))
    assert table.code == 1
    assert "typed/0: DAMAGED" in table.out
    assert f"at byte {finding['position']}, offset 0" in table.out
    dumped = call("log", "dump", str(copy), "--records")
    assert (dumped.code, dumped.out) == (1, "")
    assert "offsets 0 to 2 fail their checksum" in dumped.err
    assert state_of(copy) == before


def test_invalid_usage_is_refused(call: Call, tmp_path):
    assert call("log", "dump", str(tmp_path / "nowhere")).code == 2
    both = call("log", "dump", str(tmp_path), "--entries", "--records")
    assert (both.code, both.out) == (2, "")
    assert both.err.startswith("error: --entries and --records exclude each other")
    empty = call("log", "verify", str(tmp_path))
    assert empty.code == 1
    assert empty.err.startswith(f"error: no partition's log is in {tmp_path}")

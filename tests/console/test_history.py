"""The history of a day survives restarts and damage, and never grows."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from spark_stream.console.history import SLOTS, STEP_MS, History, HistorySample
from spark_stream.errors import InvalidOption

NOW = 1_800_000_000_000
_SLOT_BYTES = 1024


def samples(history: History, now_ms: int = NOW) -> list[int | None]:
    return [each.lag for each in history.samples(now_ms)]


def filled(file: Path, count: int = 3) -> History:
    history = History(file)
    for number in range(count):
        at_ms = NOW - (count - 1 - number) * STEP_MS
        history.add(HistorySample(at_ms, lag=number, problems={"dead 2": NOW - 60_000}))
    return history


def test_history_survives_a_restart(tmp_path: Path) -> None:
    filled(tmp_path / "h").close()
    history = History(tmp_path / "h")
    assert samples(history) == [0, 1, 2]
    assert history.starts(NOW + 60_000) == {"dead 2": NOW - 60_000}
    assert history.starts(NOW + 3_600_000) == {}
    history.close()


def test_file_keeps_its_size_and_the_last_day(tmp_path: Path) -> None:
    file = tmp_path / "h"
    history = History(file)
    size = file.stat().st_size
    for number in range(SLOTS + 10):
        history.add(HistorySample(NOW + number * STEP_MS, lag=number))
    end = NOW + (SLOTS + 9) * STEP_MS
    assert file.stat().st_size == size
    assert samples(history, end) == list(range(10, SLOTS + 10))
    history.close()


def test_torn_write_loses_one_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "h"
    filled(file).close()
    data = bytearray(file.read_bytes())
    slot = (NOW - STEP_MS) // STEP_MS % SLOTS
    at = (1 + slot) * _SLOT_BYTES + 10
    data[at : at + 4] = bytes(4)
    file.write_bytes(data)
    with caplog.at_level(logging.WARNING, "isolog"):
        history = History(file)
    assert samples(history) == [0, 2]
    assert "left out 1 damaged samples" in caplog.text
    history.close()


@pytest.mark.parametrize("kept", [100, 1 << 20])
def test_cut_file_is_replaced(tmp_path: Path, kept: int, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "h"
    filled(file).close()
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:kept])
    with caplog.at_level(logging.WARNING, "isolog"):
        history = History(file)
    assert "damaged or of another release" in caplog.text
    assert samples(history) == []
    assert file.stat().st_size == size
    history.close()


def test_foreign_file_is_refused_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("my notes")
    with pytest.raises(InvalidOption, match="is not a history of a console"):
        History(file)
    assert file.read_text() == "my notes"


def test_second_console_is_refused(tmp_path: Path) -> None:
    history = filled(tmp_path / "h")
    with pytest.raises(InvalidOption, match="another console uses the history"):
        History(tmp_path / "h")
    history.close()
    History(tmp_path / "h").close()


def test_unusable_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="unusable"):
        History(tmp_path / "missing" / "h")


def test_problems_beyond_a_slot_are_left_out(tmp_path: Path) -> None:
    history = History(tmp_path / "h")
    problems = {f"refused {number} " + "x" * number: NOW for number in range(200)}
    history.add(HistorySample(NOW, lag=7, problems=problems))
    assert samples(history) == [7]
    assert 5 < len(history.starts(NOW)) < 200
    history.close()


def test_curves_have_the_worst_of_five_minutes_and_gaps() -> None:
    history = History()
    for at_ms, lag, alive in ((NOW, 1, 3), (NOW + STEP_MS, 9, 2), (NOW - 3_600_000, 4, 3)):
        history.add(HistorySample(at_ms, lag=lag, alive=alive))
    found = history.curves(NOW + STEP_MS)
    assert len(found["figures"]["lag"]) == 288
    assert found["figures"]["lag"][-1] == 9
    assert found["figures"]["alive"][-1] == 2
    assert found["figures"]["lag"][-13] == 4
    assert found["figures"]["lag"][-2] is None
    assert found["figures"]["offline"] == [None] * 288

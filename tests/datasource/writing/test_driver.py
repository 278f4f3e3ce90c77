"""A run is known by its JVM and its checkpoint, a plan by when it was made."""

from __future__ import annotations

import pytest

from spark_stream.datasource.writing import driver
from spark_stream.datasource.writing.driver import plan_of


@pytest.fixture(autouse=True)
def jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_java", lambda: 77)
    driver._run.cache_clear()


def test_a_run_is_its_jvm_and_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    first = plan_of("a")
    assert plan_of("a").run == first.run != ""
    assert plan_of("b").run != first.run
    monkeypatch.setattr(driver, "_java", lambda: 78)
    driver._run.cache_clear()
    assert plan_of("a").run != first.run


def test_a_later_plan_is_later() -> None:
    plans = [plan_of("a").planned for _ in range(3)]
    assert plans == sorted(plans)


def test_without_a_checkpoint_or_a_jvm_nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_of(None).run == ""
    monkeypatch.setattr(driver, "_java", lambda: None)
    assert plan_of("no jvm").run == ""

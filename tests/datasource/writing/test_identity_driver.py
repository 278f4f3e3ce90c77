"""A run is identified by its JVM and its checkpoint, a plan by its time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_stream.datasource.writing import identity
from spark_stream.datasource.writing.identity import plan_of


@pytest.fixture(autouse=True)
def jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "visible_jvm", lambda: SimpleNamespace(pid=77))
    identity._run.cache_clear()


def test_a_run_is_its_jvm_and_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    first = plan_of("a")
    assert plan_of("a").run == first.run != ""
    assert plan_of("b").run != first.run
    monkeypatch.setattr(identity, "visible_jvm", lambda: SimpleNamespace(pid=78))
    identity._run.cache_clear()
    assert plan_of("a").run != first.run


def test_a_later_plan_is_later() -> None:
    plans = [plan_of("a").planned for _ in range(3)]
    assert plans == sorted(plans)


def test_plan_without_a_checkpoint_or_a_jvm_names_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_of(None).run == ""
    monkeypatch.setattr(identity, "visible_jvm", lambda: None)
    assert plan_of("no jvm").run == ""

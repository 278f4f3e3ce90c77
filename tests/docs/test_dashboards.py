"""conf/grafana and conf/prometheus use only what real brokers export."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import isolog
from spark_stream.broker.metrics.series import TABLE
from spark_stream.lake_worker.counts import WorkerFigures
from tests.broker.metrics.scraping import scraped
from tests.broker.metrics.test_series import HOLDER
from tests.brokers import brokers_on
from tests.conftest import ROOT
from tests.support import act, eventually, numbers
from tests.system.transactions.test_sinks import Sink

DASHBOARD = ROOT / "conf" / "grafana" / "isolog.json"
ALERTS = ROOT / "conf" / "prometheus" / "alerts.yml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not on PATH: it is in Debian's package prometheus"
)

TARGETS = {"job", "instance"}
"""The labels that Prometheus adds."""
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(r"(\b[a-z_]\w*)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_MATCHED = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> list[str]:
    """All expressions of both, each on one line."""
    rules = yaml.safe_load(ALERTS.read_text())["groups"]
    alerts = [rule["expr"] for group in rules for rule in group["rules"]]
    shown = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    return [re.sub(r"\s+", " ", each).strip() for each in (*alerts, *shown)]


def used(expression: str) -> tuple[dict[str, set[str]], set[str]]:
    """The names in an expression with their labels, and the labels of its groups."""
    plain = _TEXT.sub('""', expression)
    grouped = {
        label.strip() for labels in _GROUPING.findall(plain) for label in labels.split(",") if label
    }
    names: dict[str, set[str]] = {}
    for name, labels in _SELECTOR.findall(_GROUPING.sub("", plain)):
        if name.startswith(("isolog_", "process_")) or name == "up":
            names.setdefault(name, set()).update(_MATCHED.findall(labels))
    return names, grouped


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """The names and labels that two brokers with followers, readers and sinks export."""
    folder = tmp_path_factory.mktemp("shown")
    with ExitStack() as ended:
        listens = 'metrics_listen = "127.0.0.1:0"\n'
        brokers = ended.enter_context(brokers_on(folder, more=listens, t="ab"))
        channel = ended.enter_context(brokers[0].channel())
        sink = Sink(channel)
        sink.put("t", branch := sink.open(), 0)
        sink.commit(branch)
        with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
            act(channel, "describe-topic", topic="none")
        with isolog.connect(brokers[0].address) as log:
            with log.producer() as producer:
                producer.append("t", numbers(1, 3))
            with log.consumer("t", name="reader") as consumer:
                next(iter(consumer.batches()))
                consumer.commit()
            log.create_lake("l", "t", "/nowhere", check=False)
        address = json.loads((folder / "a" / "broker.json").read_text())["metrics_address"]

        def all_there() -> dict[str, set[str]] | None:
            names = scraped(address).names | {HOLDER: {"transactional_id", "topic", "partition"}}
            seen = {"isolog_follower_lag_entries", "isolog_sink_committed_batch"}
            seen |= {"isolog_lake_stopped"}
            names |= {each.name: set(each.labels) for each in WorkerFigures.series()}
            return names if seen <= names.keys() else None

        yield eventually(all_there)


@pytest.mark.parametrize("expression", expressions())
def test_expressions_use_exported_metrics(expression: str, exported: dict[str, set[str]]) -> None:
    names, grouped = used(expression)
    assert names
    known = {**exported, "up": set[str]()}
    for name, labels in names.items():
        assert name in known
        assert labels <= known[name] | TARGETS
    assert grouped <= set[str]().union(*(known[name] for name in names)) | TARGETS | {"le"}


def test_expression_with_an_unknown_name_or_label_is_found() -> None:
    names, grouped = used('sum by (le, a) (rate(isolog_x_bucket{b=~"c{d=1}"}[5m])) or up == 0')
    assert names == {"isolog_x_bucket": {"b"}, "up": set()}
    assert grouped == {"le", "a"}


def test_panels_do_not_overlap_and_have_descriptions() -> None:
    places: set[tuple[int, int]] = set()
    for panel in panels():
        assert panel["title"]
        at = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not mine & places
        assert at["x"] + at["w"] <= 24
        places |= mine
    assert len({each["id"] for each in panels()}) == len(panels())


def test_alerts_have_severity_and_description() -> None:
    rules = yaml.safe_load(ALERTS.read_text())["groups"]
    alerts = [rule for group in rules for rule in group["rules"]]
    assert len({each["alert"] for each in alerts}) == len(alerts)
    page = (ROOT / "docs" / "reference" / "alerts.md").read_text()
    for each in alerts:
        severity, said = each["labels"]["severity"], each["annotations"]
        assert severity in ("page", "ticket")
        assert said["summary"]
        assert said["runbook"] == f"docs/reference/alerts.md#{each['alert'].lower()}"
        assert f"\n## {each['alert']}\n\n{severity.capitalize()}. " in page
    assert page.count("\n## ") == len(alerts)


def test_details_are_in_no_alert() -> None:
    detailed = {each.name for each in TABLE if each.detailed}
    assert not [each for each in detailed if each in ALERTS.read_text()]
    for panel in panels():
        names = {name for target in panel.get("targets", ()) for name in used(target["expr"])[0]}
        assert bool(names & detailed) == ("/metrics/all" in panel.get("description", ""))


def promtool(*arguments: str, folder: Path) -> None:
    assert PROMTOOL is not None
    command = [PROMTOOL, *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.full
@needs_promtool
def test_promtool_accepts_alerts_and_expressions(tmp_path: Path) -> None:
    promtool("check", "rules", str(ALERTS), folder=tmp_path)
    rules = [
        {"record": f"isolog:{number}", "expr": each.replace("$__rate_interval", "5m")}
        for number, each in enumerate(expressions())
    ]
    (tmp_path / "all.yml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    promtool("check", "rules", "all.yml", folder=tmp_path)


@pytest.mark.full
@needs_promtool
def test_alerts_fire_at_their_thresholds(tmp_path: Path) -> None:
    for file in (ALERTS, Path(__file__).with_name("alerts_test.yml")):
        shutil.copy(file, tmp_path)
    promtool("test", "rules", "alerts_test.yml", folder=tmp_path)

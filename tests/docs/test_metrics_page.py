"""The metrics in the docs for operators. The table of all metrics: test_tables.py."""

from __future__ import annotations

import re

import pytest
import yaml

from spark_stream.broker.metrics.series import TABLE
from spark_stream.figures import SeriesKind
from spark_stream.kafka.counts import GatewayFigures
from spark_stream.lake_worker.counts import WorkerFigures
from tests.conftest import ROOT

DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", ["operations.md", "how-to/monitor.md", "reference/alerts.md"])
def test_pages_for_operators_name_only_exported_metrics(page: str) -> None:
    text = (DOCS / page).read_text()
    assert set(re.findall(r"`(isolog_\w+)", text)) <= {
        each.name for each in (*TABLE, *WorkerFigures.series(), *GatewayFigures.series())
    }


def test_job_for_details_keeps_only_other_series() -> None:
    """If two jobs had the same series, every sum over it would be doubled."""
    example = re.search(
        r"```yaml\n(rule_files.*?)```", (DOCS / "operations.md").read_text(), re.DOTALL
    )
    assert example
    first, details = yaml.safe_load(example[1])["scrape_configs"]
    keep, rename = details["metric_relabel_configs"]
    assert keep["action"] == "keep"
    assert rename == {"target_label": "job", "replacement": first["job_name"]}
    assert "isolog" not in details["job_name"]
    for series in TABLE:
        name = f"{series.name}_bucket" if series.kind is SeriesKind.HISTOGRAM else series.name
        assert bool(re.fullmatch(keep["regex"], name)) == series.detailed, name
    assert not re.fullmatch(keep["regex"], "process_cpu_seconds_total")

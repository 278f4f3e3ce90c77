"""The pages for operators: their commands run unchanged, on one cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import isolog
from spark_stream.broker.config import BrokerConfig
from spark_stream.storage.settings import SETTINGS, LogSettings, shown_settings
from tests.conftest import ROOT
from tests.demo.clusters import three_brokers
from tests.demo.conftest import Shell
from tests.support import eventually

PAGE = (ROOT / "docs" / "operations.md").read_text()
PAGES = ("operations.md", "how-to/upgrade.md", "how-to/back-up.md")
EXAMPLES = [
    found
    for name in PAGES
    for found in re.findall(
        r"<!-- test: (\w+) -->\n```sh\n(.*?)```", (ROOT / "docs" / name).read_text(), re.DOTALL
    )
]


@pytest.mark.full  # make test runs the commands of README: test_readme.py
@pytest.mark.timeout(600)
def test_commands_of_the_page_run(tmp_path: Path, shell: Shell) -> None:
    """Requests between the commands are sent by this process: a start of `isolog` takes longer."""
    commands = dict(EXAMPLES)
    assert list(commands) == ["start", "replace", "move", "upgrade", "backup", "reopen", "restore"]
    with three_brokers(tmp_path, shell) as run:
        said = run(commands["start"])
        assert "brokers 3 of 3 alive" in said
        assert re.search(r"^0 +1 +0 +1, 2, 3 +1, 2, 3\b", said, re.MULTILINE), said
        run(commands["upgrade"])
        said = run(commands["replace"])
        assert re.search(r"^0 +\d +\d+ +1, 2, 4 +(\d(, |\b)){3}", said, re.MULTILINE), said
        run(commands["move"])
        with isolog.connect(run("echo $ISOLOG_BOOTSTRAP").strip()) as log:
            eventually(lambda: placement(log) == ("4", ("4", "1", "2")))
            with log.producer(isolation="read_committed") as producer:
                producer.send("flights", b"before").result()
            eventually(lambda: not log.cluster().problems)
            run(commands["backup"])
            (tmp_path / "isolog-data" / "metadata.sqlite").unlink()
            eventually(lambda: [each.kind for each in log.cluster().problems] == ["metadata_lost"])
            run(commands["reopen"])
            eventually(lambda: not log.cluster().problems)
            run(commands["restore"])
            eventually(lambda: not log.cluster().problems)
            with log.consumer("flights", isolation="read_committed") as consumer:
                assert [each.value for each in consumer.records("latest")] == [b"before"]


def placement(log: isolog.Log) -> tuple[str | None, tuple[str, ...]]:
    """Return the leader and the replicas of the first partition."""
    first = log.describe("flights").partitions[0]
    return first.leader, tuple(first.replicas)


LEASE_S = BrokerConfig(dir=Path()).lease_s  # its default depends on the metadata store


def test_page_has_the_defaults_of_the_settings() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (topic|broker) \| (\S+) \|", PAGE, re.MULTILINE)
    assert len(rows) >= 5
    defaults = shown_settings(LogSettings())
    for name, of, default in rows:
        if of == "topic":
            assert name in SETTINGS
            assert defaults[name] == default
        else:
            assert float(default) == (BrokerConfig.model_fields[name].default or LEASE_S)

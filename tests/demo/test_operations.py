"""The page on running brokers: its commands run as they stand there, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_stream.broker.config import BrokerConfig
from spark_stream.storage.settings import SETTINGS, LogSettings, shown_settings
from tests.conftest import ROOT
from tests.demo.clusters import three_brokers
from tests.demo.conftest import Shell

PAGE = (ROOT / "docs" / "operations.md").read_text()
EXAMPLES = re.findall(r"<!-- test: (\w+) -->\n```sh\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.timeout(300)
def test_its_commands_run(tmp_path: Path, shell: Shell) -> None:
    commands = dict(EXAMPLES)
    assert list(commands) == ["start", "replace", "move", "backup", "reopen", "restore"]
    with three_brokers(tmp_path, shell) as run:
        said = run(commands["start"])
        assert "brokers 3 of 3 alive" in said
        assert re.search(r"^0 +1 +0 +1, 2, 3 +1, 2, 3\b", said, re.MULTILINE), said
        said = run(commands["replace"])
        assert re.search(r"^0 +1 +0 +1, 2, 4 +1, 2, 4\b", said, re.MULTILINE), said
        run(commands["move"])
        leads = 'isolog topic describe flights | grep -E "^0 +4 +[0-9]+ +4, 1, 2 "'
        assert "4, 1, 2" in run(f"until {leads}; do sleep 0.2; done")
        run("seq 100 | isolog produce flights --isolation read_committed")
        healthy = "until isolog cluster status; do sleep 0.2; done"
        run(healthy)
        run(commands["backup"])
        run("rm isolog-data/metadata.sqlite")
        run("until { isolog cluster status || true; } | grep 'was deleted'; do sleep 0.2; done")
        run(commands["reopen"])
        run(healthy)
        run(commands["restore"])
        run(healthy)
        assert "100\n" in run("isolog consume flights --isolation read_committed | wc -l")


def test_it_says_the_defaults_of_the_settings() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (topic|broker) \| (\S+) \|", PAGE, re.MULTILINE)
    assert len(rows) >= 5
    defaults = shown_settings(LogSettings())
    for name, of, default in rows:
        if of == "topic":
            assert name in SETTINGS
            assert defaults[name] == default
        else:
            assert float(default) == BrokerConfig.model_fields[name].default


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target

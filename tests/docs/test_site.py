"""The documentation site: its links are valid, and it needs no network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from docs_site import hooks
from tests.conftest import ROOT


def test_links_to_the_repository_show_the_file() -> None:
    assert hooks.page_of("docs/spark.md") == "spark.md"
    assert hooks.page_of("docs/decisions") == "decisions/README.md"
    assert hooks.page_of("CHANGELOG.md") == "repository/CHANGELOG.md"
    assert hooks.page_of("conf/broker.toml") == "repository/conf/broker.toml.md"
    shown = hooks.shown(ROOT / "conf" / "broker.toml")
    assert (ROOT / "conf" / "broker.toml").read_text() in shown


def test_site_builds_without_warnings_and_loads_no_remote_files(
    tmp_path: Path,
) -> None:
    """A broken link or anchor is a warning. So is a page without a menu entry."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*https?://[^>]*>", page.read_text())
        assert [each for each in loaded if 'rel="canonical"' not in each] == [], page
    assert "url(http" not in "".join(each.read_text() for each in tmp_path.rglob("*.css"))
    index = json.loads((tmp_path / "search" / "search_index.json").read_text())
    assert any("read_atomic" in each["text"] for each in index["docs"])
    last = {each["location"].partition("/")[0] for each in index["docs"] if "boost" in each}
    assert {"decisions", "repository", "format.html"} <= last
    assert not last & {"how-to", "reference", "operations.html"}
    assert (tmp_path / "search" / "search_index.js").exists()  # for a site opened as files
    assert "../decisions/0014-" in (tmp_path / "spark" / "write.html").read_text()
    picture = (tmp_path / "concepts" / "failover.html").read_text()
    assert re.search(r'<svg role="img" aria-label="Three scenes[^"]*"', picture)

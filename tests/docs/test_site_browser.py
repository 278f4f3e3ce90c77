"""The site in a real browser: pages fit a phone and are accessible, and searches find them.

Pictures of some pages are stored in ``build/pages/``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.full,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
]

PHONE, DESK = 390, 1280
PARTS = 8  # of the pages, so that a part also ends in time on a busy machine
PICTURES = ROOT / "build" / "pages"
SHOWN = (
    *("index", "tutorial", "how-to/replay", "kafka-terms", "benchmarks", "operations"),
    *("spark/write", "api/log", "reference/settings", "reference/errors", "vocabulary"),
    *("concepts/failover", "decisions/0199-the-reference-is-generated-and-the-site-is-offline"),
)
TERMS, WORDS, SHARE = "kafka-terms.html", "vocabulary.html", "how-to/share-a-topic.html"
SEARCHES = {
    "acks": TERMS,
    "ACL": TERMS,
    "auto.offset.reset": TERMS,
    "backpressure": TERMS,
    "compaction": TERMS,
    "consumer group": SHARE,
    "consumer lag": TERMS,
    "consumer rebalance": SHARE,
    "coordinator": WORDS,
    "dead letter": "spark/write.html",
    "delete topic": "reference/commands.html",
    "Delta table": "how-to/tables.html",
    "exactly once": "spark/write.html",
    "failOnDataLoss": "spark/failures.html",
    "fencing": TERMS,
    "fsync": TERMS,
    "group.id": TERMS,
    "high watermark": TERMS,
    "how do I make a producer idempotent": TERMS,
    "Iceberg": "how-to/tables.html",
    "idempotent producer": TERMS,
    "increase partitions": TERMS,
    "isolation.level": TERMS,
    "ISR": TERMS,
    "kcat": "how-to/use-kafka-clients.html",
    "lag": TERMS,
    "last stable offset": WORDS,
    "lease": WORDS,
    "log compaction": TERMS,
    "max.poll.interval.ms": TERMS,
    "migrate from Kafka": "how-to/migrate-from-kafka.html",
    "min insync replicas": TERMS,
    "min.insync.replicas": TERMS,
    "offset reset": TERMS,
    "offsets reset": TERMS,
    "partition key": TERMS,
    "partitions": TERMS,
    "producer idempotent": TERMS,
    "quota": "security.html",
    "rack awareness": TERMS,
    "read_committed": "concepts/isolation-levels.html",
    "rebalance": SHARE,
    "replication factor": "how-to/three-brokers.html",
    "retention": TERMS,
    "SASL": "how-to/use-kafka-clients.html",
    "schema registry": "spark/schemas.html",
    "startingOffsets": "reference/options.html",
    "tiered storage": TERMS,
    "throughput": "benchmarks.html",
    "TLS": "security.html",
    "tombstone": TERMS,
    "transactional id": TERMS,
    "transactions": TERMS,
    "unclean leader election": TERMS,
    "upgrade": "how-to/upgrade.html",
    "zombie fencing": TERMS,
}
NEXT_FRAMES = """() => new Promise(done =>
    requestAnimationFrame(() => requestAnimationFrame(done)))"""
"""Ends after the theme has set the heights of its sidebars, which it does in a frame."""
SCROLLED_TABLES = """() => [...document.querySelectorAll(".md-typeset__scrollwrap")]
  .filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => ["table", each.innerText.slice(0, 80)])"""
TOO_WIDE = """() => document.documentElement.scrollWidth > innerWidth
  ? [...document.querySelectorAll("article *")]
      .filter(each => each.getBoundingClientRect().right > innerWidth)
      .slice(0, 3).map(each => each.outerHTML.slice(0, 200))
      .concat(`${document.documentElement.scrollWidth} pixels`)
  : []"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
        timeout=300,
    )
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def page_names(site: Path) -> list[str]:
    found = (each.relative_to(site).with_suffix("").as_posix() for each in site.rglob("*.html"))
    return sorted(found)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (DESK, "light")])
def test_every_page_fits_and_is_accessible(
    site: Path, browser: Any, width: int, scheme: str, part: int
) -> None:
    """No page scrolls sideways, nor a table on a desk, and axe reports no serious violation."""
    size = {"width": width, "height": 900}
    page = browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    PICTURES.mkdir(parents=True, exist_ok=True)
    wrong: dict[str, list[Any]] = {}
    names = page_names(site)
    assert len(names) > 100
    for name in names[part::PARTS]:
        page.goto(f"file://{site}/{name}.html")
        page.evaluate(NEXT_FRAMES)
        faults: list[Any] = page.evaluate(TOO_WIDE)
        if width == DESK:
            faults += page.evaluate(SCROLLED_TABLES)
        faults += serious_violations(page)
        if faults:
            wrong[name] = faults
        if name in SHOWN:
            path = PICTURES / f"{name.replace('/', '-')}-{width}-{scheme}.png"
            page.screenshot(path=path)
    page.close()
    assert wrong == {}


def serious_violations(page: Any) -> list[Any]:
    return [
        (each["id"], [node["html"][:200] for node in each["nodes"]][:3])
        for each in axe.Axe().run(page).response["violations"]
        if each["impact"] in ("serious", "critical")
    ]


def test_contents_and_search_work_on_a_phone(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": PHONE, "height": 900})
    page.goto(f"file://{site}/operations.html")
    page.locator("label[for=__drawer].md-header__button").click()
    page.locator(".md-sidebar--primary label[for=__toc]").first.click()
    page.get_by_role("link", name="When a broker dies").locator("visible=true").first.click()
    page.wait_for_url("**operations.html#when-a-broker-dies")
    page.locator("label[for=__search].md-header__button").click()
    assert "vocabulary.html" in search(page, "last stable offset")[0]
    page.close()


def test_search_finds_the_terms_of_kafka(site: Path, browser: Any) -> None:
    """The page about a term is among the first three results, and no decision is."""
    page = browser.new_page(viewport={"width": DESK, "height": 900})
    page.goto(f"file://{site}/index.html")
    page.locator(".md-search__input").click()
    found = {words: search(page, words)[:3] for words in SEARCHES}
    page.close()
    assert {
        words: found[words] for words, name in SEARCHES.items() if name not in found[words]
    } == {}
    assert [each for first in found.values() for each in first if "decisions/" in each] == []


def search(page: Any, words: str) -> list[str]:
    """Return the names of the found pages, the best one first."""
    line = page.locator(".md-search__input")
    line.fill("")
    line.press("Backspace")
    playwright.expect(page.locator(".md-search-result__item")).to_have_count(0, timeout=60_000)
    line.fill(words[:-1])
    line.press_sequentially(words[-1])
    first = page.locator(".md-search-result__item").first
    playwright.expect(first).to_be_visible(timeout=60_000)
    page.wait_for_timeout(500)
    links = page.locator(".md-search-result__item > a:first-of-type")
    return [
        each.partition("?")[0].partition("#")[0].removeprefix(page.url.rpartition("/")[0] + "/")
        for each in links.evaluate_all("all => all.map(each => each.href)")
    ]

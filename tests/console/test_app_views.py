"""The views in a browser, with parts from the test, without a broker and a console.

Only a browser runs the scripts of the page.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.conftest import ROOT

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
STATIC = ROOT / "spark_stream" / "console" / "static"

pytestmark = [
    pytest.mark.full,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
]

_RENDER = """async ([view, name, parts, params]) => {
  const [{ patch }, module] = [await import("/dom.js"), await import(`/views/${view}.js`)];
  const store = { parts, session: { allows_changes: false } };
  const shown = (name ? module[name] : module).render({ store, params });
  patch(document.body, shown.flat(Infinity).filter((each) => each));
}"""

Render = Callable[..., Any]


class Failed(dict[str, Any]):
    """A part with an earlier value and the error of its last poll."""


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Do not log requests."""


@pytest.fixture(scope="module")
def render() -> Iterator[Render]:
    """Render a view of these parts, and return the page."""
    handler = partial(_Files, directory=str(STATIC))
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        playwright.sync_playwright() as driver,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()

        def rendered(view: str, parts: dict[str, Any], name: str = "", **params: str) -> Any:
            page.goto(f"http://127.0.0.1:{server.server_port}/icon.svg")
            page.goto(f"http://127.0.0.1:{server.server_port}/views/")
            values = {
                part: value if isinstance(value, Failed) else {"value": value}
                for part, value in parts.items()
            }
            page.evaluate(_RENDER, [view, name, values, params])
            return page

        yield rendered
        browser.close()
        server.shutdown()


def transaction(state: str = "open") -> dict[str, Any]:
    now_ms = int(time.time() * 1000)
    return {
        "transactional_id": "loader",
        "number": 7,
        "state": state,
        "began_ms": now_ms - 1000,
        "deadline_ms": now_ms + 60_000,
        "timeout_ms": 60_000,
        "partitions": [{"topic": "orders", "partition": 0}],
        "held_back": 30,
        "principal": "",
        "query": "",
        "query_name": "",
    }


def problems(severity: str | None, key: str = "holds loader 7") -> dict[str, Any]:
    problem = {"key": key, "severity": severity, "message": "m", "hint": "", "href": ""}
    problem |= {"places": [], "since_ms": 0}
    return {"found": [problem] if severity else [], "unjudged": {}}


def topic(open_: list[dict[str, Any]]) -> dict[str, Any]:
    live = {
        "partition": 0,
        "leader": "1",
        "leader_epoch": 1,
        "log_start": 0,
        "log_end": 100,
        "high_watermark": 40,
        "last_stable": 10,
        "size": 1000,
        "followers": {},
        "epochs": [],
        "open": open_,
        "records_per_s": 1.0,
    }
    partition = {
        "partition": 0,
        "leader": "1",
        "leader_epoch": 1,
        "replicas": ["1"],
        "isr": ["1"],
        "adding": [],
        "removing": [],
        "live": live,
    }
    return {"name": "orders", "partitions": [partition]}


@pytest.mark.parametrize(
    ("severity", "tone"), [(None, None), ("warning", "wait-text"), ("bad", "bad-text")]
)
def test_colour_of_held_back_records_is_the_severity_of_their_transaction(render, severity, tone):
    page = render("transactions", {"transactions": [transaction()], "problems": problems(severity)})
    assert tones(page, "30 records") == [tone]
    open_ = [{"transaction": 7, "first_offset": 10, "held_back": 30}]
    parts = {"topic": topic(open_), "transactions": [transaction()], "problems": problems(severity)}
    page = render("partition", parts, topic="orders", partition="0")
    assert tones(page, "holds back 30 records") == [tone]


def test_an_aborted_transaction_is_not_red(render):
    for state in ("aborted", "aborting"):
        page = render(
            "transactions", {"transactions": [transaction(state)], "problems": problems(None)}
        )
        assert page.locator(".badge", has_text=state).count() == 1
        assert page.locator(".bad, .bad-text").count() == 0


def tones(page: Any, text: str) -> list[str | None]:
    """Return the tone of each innermost element that has a text."""
    found = page.evaluate(
        """(text) => [...document.querySelectorAll("*")]
          .filter((each) => each.textContent.trim() === text && !each.children.length)
          .map((each) => [...each.classList].filter((name) => name.endsWith("-text")))""",
        text,
    )
    return [each[0] if each else None for each in found]


def test_client_reader_is_shown_as_a_consumer(render):
    reader = {
        "name": "victim",
        "kind": "client",
        "group": None,
        "state": "running",
        "trend": "none",
    }
    reader |= {"lag": None, "held_back": 0, "isolation": None, "partitions": [], "waits_for": []}
    reader |= {"recorded_ms": 0, "principal": "", "selection": "", "starting": ""}
    reader |= {"started_ms": None}
    page = render("consumers", {"consumers": {"consumers": [reader], "sinks": []}}, "consumers")
    assert page.locator("td[data-label=Kind]").inner_text() == "consumer"
    parts = {"consumers": {"consumers": [reader], "sinks": []}}
    page = render("consumers", parts, "consumer", consumer="victim")
    assert page.locator("h2", has_text="Client consumer").count() == 1


def test_group_that_lost_a_member_is_marked_in_the_list(render):
    reader = {"name": "billing", "kind": "client", "state": "running", "group": {"members": []}}
    reader |= {"lag": None, "held_back": 0, "isolation": None, "partitions": [], "waits_for": []}
    reader |= {"recorded_ms": 0, "principal": "", "trend": "none"}
    parts = {"consumers": {"consumers": [reader], "sinks": []}, "problems": {"found": []}}
    page = render("consumers", parts, "consumers")
    assert "lost a member" not in page.locator("td[data-label=State]").inner_text()
    parts["problems"] = {"found": [{"key": "lost group billing"}]}
    page = render("consumers", parts, "consumers")
    assert "lost a member" in page.locator("td[data-label=State]").inner_text()


def test_empty_transaction_list_is_marked_as_old_if_the_store_fails(render):
    error = {"code": "METADATA_UNAVAILABLE", "message": "the store does not answer"}
    text = render("transactions", {"transactions": Failed(value=[], error=error)}).inner_text(
        "body"
    )
    assert "No transaction was open when the list was last read." in text
    assert "read_committed shows all" not in text
    text = render("transactions", {"transactions": []}).inner_text("body")
    assert "There are no open transactions." in text

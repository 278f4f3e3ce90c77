"""The page in a real browser, over three brokers under load, with a failover and an abort.

Screenshots of every view are stored in ``build/console/``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import isolog
from tests.conftest import ROOT
from tests.console.conftest import started_console
from tests.console.scenario import Scenario
from tests.secure_brokers import PASSWORD, asking_broker, client_of
from tests.support import NUMBERS, BrokerProcess, eventually, numbers
from tests.system.storage.test_full_disk import NO_LIMIT, limited, only_segment

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.full,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
]

PICTURES = ROOT / "build" / "console"
WIDTHS = (1280, 390)
WAIT_MS = 60_000

# For each view its address, and texts that it must show.
VIEWS = {
    "cluster": (
        "/",
        ["rack-b", "controller", "Response time", "Full in", "Query nightly is stalled"],
    ),
    "topics": ("/topics", ["flights", "fares", "greetings"]),
    "topic": (
        "/topics/flights",
        ["array<string>", "partition key", "retention.ms", "no limit", "256 MiB", "3 of 3"],
    ),
    "partition": ("/topics/flights/0", ["loader-1", "up to date", "back", "LSO"]),
    "partition-rolled-back": ("/topics/fares/0", ["since offset 40 (leader epoch 1)"]),
    "records": (
        "/topics/flights/records?partition=0&after=0:395&limit=20",
        ["aborted", "open", "committed", "dep_delay", "spark.read", "isolog.connect"],
    ),
    "records-committed": (
        "/topics/flights/records?isolation=read_committed&filter=dep_delay+%3E+60&limit=20",
        ["committed", "dep_delay &gt; 60"],
    ),
    "records-raw": ("/topics/greetings/records", ["\\xff\\xfe\\x00", "hello", '"lang"']),
    "records-open": (
        "/topics/flights/records?partition=0&order=oldest&limit=20&open=0:1&column=carrier&column=tags",
        ["Columns: 2 of 6", "array<string>", "Copy", "dep_delay"],
    ),
    "records-wrong": ("/topics/flights/records?filter=delay+%3E", ["INVALID_FILTER"]),
    "consumers": (
        "/consumers",
        ["nightly", "stalled", "waiting at the LSO for loader-1", "sink/departures"],
    ),
    "consumer": ("/consumers/nightly", ["stalled", "read_committed", "earliest", "subscribe"]),
    "group": ("/consumers/mailing", ["Consumer group", "Members", "greetings", "45 s"]),
    "transactions": ("/transactions", ["loader-1", "aborted", "records", "flights/2"]),
    "failovers": ("/failovers", ["fares/0", "40 to 56", "not replicated", "New leader"]),
    "lakes": (
        "/lakes",
        [
            "archive",
            "up to date",
            ", last report",
            "worker stopped",
            "/nowhere/broken",
            "1 min",
        ],
    ),
    "lake": ("/lakes/archive", ["In the table up to", "greetings@", "0 records"]),
    "lake-stopped": ("/lakes/broken", ["The worker stopped", "older copy was restored"]),
    "nowhere": ("/nowhere", ["Page not found"]),
}


@pytest.fixture(scope="module")
def scenario() -> Iterator[Scenario]:
    found = Scenario()
    try:
        found.begin()
        yield found
        assert not found.failures
    finally:
        found.close()


@pytest.fixture(scope="module")
def address(scenario: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("console")
    arguments = ("--bootstrap", scenario.cluster.bootstrap)
    with started_console(folder, *arguments) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: playwright.Browser) -> Iterator[playwright.Page]:
    with Opened(browser, 1280) as found:
        yield found


class Opened:
    """A page. Its exit fails after a script error or a violation of the policy."""

    def __init__(self, browser: playwright.Browser, width: int, scheme: str = "light") -> None:
        self._page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        self._page.set_default_timeout(WAIT_MS)
        playwright.expect.set_options(timeout=WAIT_MS)
        self.wrong: list[str] = []
        self._page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self._page.on("console", self._collect_error)

    def _collect_error(self, message: playwright.ConsoleMessage) -> None:
        # Chromium also reports answers such as 400 as errors.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.wrong.append(message.text)

    def __enter__(self) -> playwright.Page:
        return self._page

    def __exit__(self, kind: object, *_: object) -> None:
        self._page.close()
        if kind is None:
            assert self.wrong == []


def settle(page: playwright.Page) -> None:
    """Wait until the view has its data."""
    playwright.expect(page.locator("#title")).to_be_visible()
    playwright.expect(page.locator(".loading")).to_have_count(0)


def check_accessible(page: playwright.Page) -> None:
    found = axe.Axe().run(page).response["violations"]
    serious = [
        (each["id"], each["impact"], [node["html"][:200] for node in each["nodes"]][:3])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("view", VIEWS)
def test_each_view_shows_its_data_and_is_accessible(browser, address, view, width, scheme):
    """axe reports no serious violation, no element is too wide, and no script fails."""
    path, words = VIEWS[view]
    PICTURES.mkdir(parents=True, exist_ok=True)
    with Opened(browser, width, scheme) as page:
        page.goto(address + path)
        settle(page)
        for each in words:
            shown = each.replace("&gt;", ">")
            playwright.expect(page.locator("#app")).to_contain_text(shown)
        playwright.expect(page.locator("body")).not_to_contain_text("[object")
        page.screenshot(path=PICTURES / f"{view}-{width}-{scheme}.png", full_page=True)
        check_accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_bounds_of_a_partition_are_refreshed(page, address):
    page.goto(f"{address}/topics/flights/1")
    leo = page.locator("g.leo text")
    before = leo.text_content()
    playwright.expect(leo).not_to_have_text(before)
    title = page.locator("svg.big").get_attribute("aria-label")
    assert re.search(r"offsets 0 to [\d,]+, last stable offset", title)


def test_views_have_addresses_for_reload_and_back(page, address):
    page.goto(f"{address}/topics")
    page.get_by_role("link", name="flights", exact=True).click()
    page.get_by_role("link", name="Show records").click()
    settle(page)
    page.get_by_text("read_committed", exact=True).click()
    page.wait_for_url("**isolation=read_committed**")
    page.get_by_label("Filter").fill("carrier = 'UA'")
    page.get_by_label("Filter").press("Enter")
    page.wait_for_url("**filter=carrier**")
    playwright.expect(page.get_by_role("button", name="Older").first).to_be_enabled()
    page.get_by_role("button", name="Older").first.click()
    page.wait_for_url("**before=**")
    settle(page)
    offsets = page.locator("tbody th").all_text_contents()
    carriers = set(page.locator("tbody td .value").all_text_contents())
    assert "UA" in carriers
    assert not carriers & {"AA", "DL", "B6"}
    page.reload()
    settle(page)
    playwright.expect(page.locator("tbody th").first).to_have_text(offsets[0])
    page.go_back()
    page.go_back()
    playwright.expect(page.get_by_label("Filter")).to_have_value("")
    page.go_back()
    page.go_back()
    playwright.expect(page.get_by_role("heading", level=1)).to_have_text("flights")


def test_a_row_opens_and_the_address_keeps_it(page, address):
    page.goto(f"{address}/topics/flights/records?partition=0&order=oldest&limit=20")
    page.get_by_role("button", name="Record 2 of partition 0").click()
    fields = page.locator("tr.whole .fields")
    playwright.expect(fields).to_contain_text("array<string>")
    assert "open=0%3A2" in page.url
    page.locator("details.columns summary").click()
    page.get_by_label("origin").uncheck()
    page.wait_for_url("**column=carrier**")
    page.reload()
    settle(page)
    playwright.expect(fields).to_contain_text("origin")
    playwright.expect(page.locator("thead")).not_to_contain_text("origin")
    page.get_by_role("button", name="Record 2 of partition 0").click()
    playwright.expect(fields).to_have_count(0)


def test_search_shows_its_progress_and_can_be_stopped(page, address):
    """The answers of the console are changed to those of a search that takes long."""

    def unfinished(route: playwright.Route) -> None:
        answer = route.fetch()
        found = answer.json()
        for each in found["ranges"].values():
            each["is_whole"] = False
        route.fulfill(response=answer, json=found | {"is_full": False})

    page.route("**/api/records?*", unfinished)
    page.goto(f"{address}/topics/flights/records?filter=flight+%3C+0")
    search = page.get_by_role("group", name="Search")
    playwright.expect(search).to_contain_text("found 0 records")
    search.get_by_role("button", name="Stop").click()
    proceed = search.get_by_role("button", name="Continue")
    playwright.expect(proceed).to_be_visible()
    check_accessible(page)
    proceed.click()
    playwright.expect(search.get_by_role("button", name="Stop")).to_be_visible()
    page.unroute_all(behavior="ignoreErrors")
    playwright.expect(search).to_have_count(0)


def test_parts_of_a_view_stay_folded(page, address):
    page.goto(address)
    page.get_by_role("heading", name="Disks").click()
    playwright.expect(page.get_by_role("region", name="Disks of the brokers")).to_be_hidden()
    page.reload()
    settle(page)
    playwright.expect(page.get_by_role("region", name="Brokers of the cluster")).to_be_visible()
    playwright.expect(page.get_by_role("region", name="Disks of the brokers")).to_be_hidden()


def test_page_is_usable_by_keyboard(page, address):
    page.goto(address)
    settle(page)
    page.keyboard.press("Tab")
    playwright.expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("?")
    playwright.expect(page.get_by_role("dialog")).to_contain_text("go to Transactions")
    check_accessible(page)
    page.keyboard.press("Escape")
    playwright.expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("t")
    playwright.expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    playwright.expect(page.get_by_role("heading", level=1)).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.type("fl?g")  # shortcuts are off in a text field
    playwright.expect(page.get_by_label("Find a topic")).to_have_value("fl?g")
    playwright.expect(page.locator("#app")).to_contain_text("No topic name contains")


def test_theme_is_changed_and_stored(page, address):
    page.goto(address)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark


# For each action its page, its button, what to type into its form, and a text of its plan.
DIALOGS = {
    "create": (
        "/topics",
        "Create a topic",
        {"Name": "fares-2", "Columns": "fare double", "Settings": "retention.ms=3600000"},
        "can be written to and read",
    ),
    "alter": (
        "/topics/flights",
        "Alter flights",
        {"New number of partitions": "4", "Settings": "retention.ms=3600000"},
        "may go to another partition",
    ),
    "alter-nothing": (
        "/topics/flights",
        "Alter flights",
        {"New number of partitions": "3"},
        "stays as it is",
    ),
    "trim": (
        "/topics/flights",
        "Trim flights",
        {"First position to keep": "100"},
        "This deletes 300",
    ),
    "delete": ("/topics/flights", "Delete flights", {}, "This cannot be undone"),
    "elect": ("/", "Elect preferred leaders", {}, "eader"),
    "reset": ("/consumers/importer", "Reset importer", {"New position": "latest"}, "starts at"),
    "reset-refused": (
        "/consumers/mailing",
        "Reset mailing",
        {"New position": "latest"},
        "group with members",
    ),
    "abort": ("/transactions", "Abort loader-1", {}, "never visible to read_committed"),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", DIALOGS)
def test_each_dialog_is_accessible_and_fits(browser, address, name, width, scheme):
    """Its form, and the plan or the error after it. The dialog scrolls in one direction only."""
    path, button, fields, words = DIALOGS[name]
    with Opened(browser, width, scheme) as page:
        page.goto(address + path)
        settle(page)
        page.get_by_role("button", name=button).first.click()
        dialog = page.get_by_role("dialog")
        if fields:
            check_accessible(page)
            for label, text in fields.items():
                dialog.get_by_label(label, exact=True).fill(text)
            page.screenshot(path=PICTURES / f"form-{name}-{width}-{scheme}.png")
            dialog.get_by_role("button", name="Show the effect").click()
        playwright.expect(dialog).to_contain_text(words)
        check_accessible(page)
        page.screenshot(path=PICTURES / f"plan-{name}-{width}-{scheme}.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = "document.querySelector('dialog')"
        assert page.evaluate(f"{found}.scrollWidth <= {found}.clientWidth")


def test_dialog_names_a_wrong_setting_as_it_is_written(page, address):
    page.goto(f"{address}/topics/flights")
    page.get_by_role("button", name="Alter flights").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Settings").fill("retention.ms=forever")
    dialog.get_by_role("button", name="Show the effect").click()
    dialog.get_by_role("button", name="Alter the topic").click()
    alert = dialog.get_by_role("alert")
    playwright.expect(alert).to_contain_text("Nothing was changed")
    assert "Retention.ms" not in alert.text_content()
    assert "retention.ms" in alert.text_content()


def test_plan_without_effect_cannot_be_applied(page, address):
    page.goto(f"{address}/topics/flights")
    page.get_by_role("button", name="Alter flights").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("New number of partitions").fill("3")
    dialog.get_by_role("button", name="Show the effect").click()
    playwright.expect(dialog).to_contain_text("stays as it is")
    names = [each.text_content() for each in dialog.get_by_role("button").all()]
    assert names == ["Back", "Close"]


def test_abort_button_needs_a_confirmation(page, address, scenario):
    page.goto(f"{address}/topics/flights/0")
    button = page.get_by_role("button", name="Abort loader-1")
    button.click()
    dialog = page.get_by_role("dialog")
    playwright.expect(dialog).to_contain_text("never visible to read_committed")
    check_accessible(page)
    page.screenshot(path=PICTURES / "abort-1280-light.png")
    dialog.get_by_role("button", name="Cancel").click()
    assert scenario.log.describe_transaction("loader-1").state == "open"
    button.click()
    dialog.get_by_role("button", name="Abort the transaction").click()
    playwright.expect(page.locator("#announcer")).to_contain_text("Aborted")
    playwright.expect(page.locator("#app")).to_contain_text("There are no open transactions")
    assert scenario.log.describe_transaction("loader-1").state == "aborted"


def test_failover_is_shown(page, address, scenario):
    page.goto(address)
    settle(page)
    playwright.expect(page.locator("#app")).not_to_contain_text("is dead")
    leader = scenario.cluster.leader("flights", 1)
    scenario.cluster.kill(leader)
    playwright.expect(page.locator("#app")).to_contain_text(f"Broker {leader} is dead")
    playwright.expect(page.locator("header nav")).to_contain_text("problem")
    page.screenshot(path=PICTURES / "failover-1280-light.png", full_page=True)
    check_accessible(page)
    page.goto(f"{address}/topics/flights/1")
    replicas = page.locator("#app .stripes").first
    playwright.expect(replicas).to_contain_text(f"Broker {leader} is dead")
    problems = page.locator("#app .notice")
    playwright.expect(problems).to_contain_text(f"Broker {leader} is dead")
    playwright.expect(problems).not_to_contain_text("flights/")
    page.screenshot(path=PICTURES / "failover-partition-1280-light.png", full_page=True)
    scenario.cluster.restart(leader)
    page.goto(address)
    playwright.expect(page.locator("#app")).to_contain_text("is stalled")
    playwright.expect(page.locator("#app")).not_to_contain_text("is dead")


def test_full_disk_is_shown_in_the_affected_views(browser, tmp_path: Path):
    """First there is no problem. Then writes are refused, and later they succeed again.

    A machine whose own disk is nearly full has another problem from the start.
    """
    usage = shutil.disk_usage(tmp_path)
    at_first = "No problems" if usage.free > usage.total / 10 else "% full"
    with (
        BrokerProcess(tmp_path / "log") as broker,
        broker.connect() as log,
        log.producer() as producer,
    ):
        log.create_topic("audit", schema=NUMBERS)
        producer.append("audit", numbers(0, 7_000), partition=0).result(20)
        with started_console(tmp_path, "--bootstrap", broker.address) as address:
            with Opened(browser, 1280) as page:
                page.goto(address)
                playwright.expect(page.locator("#app")).to_contain_text(at_first)
                limited(broker, only_segment(broker, "audit").stat().st_size)
                assert producer.append("audit", numbers(0, 7_000), partition=0).exception(20)
                refused = "is full: 1 replica refuses writes, and it leads audit/0"
                playwright.expect(page.locator("#app")).to_contain_text(refused)
                check_accessible(page)
                page.goto(f"{address}/topics")
                playwright.expect(page.locator("#app")).to_contain_text("problem")
            for width, scheme in ((1280, "dark"), (390, "light")):
                with Opened(browser, width, scheme) as page:
                    page.goto(f"{address}/topics/audit/0")
                    playwright.expect(page.locator("#app")).to_contain_text(refused)
                    settle(page)
                    picture = PICTURES / f"full-disk-{width}-{scheme}.png"
                    page.screenshot(path=picture, full_page=True)
                    assert page.evaluate("document.documentElement.scrollWidth") <= width
            limited(broker, NO_LIMIT)
            with Opened(browser, 1280) as page:
                page.goto(address)
                settle(page)
                playwright.expect(page.locator("#app")).not_to_contain_text("refuses writes")


# -- logins ---------------------------------------------------------------------------------------


def test_users_log_in_see_permitted_topics_and_log_out(browser, tmp_path: Path):
    with asking_broker(tmp_path) as broker:
        with isolog.connect(broker.address, user="root", password=PASSWORD) as root:
            root.create_topic("seen")
            root.create_topic("hidden")
        with client_of(broker) as admin:
            admin.add_user("alice", PASSWORD)
            for operation in ("read", "describe"):
                admin.add_rule("allow", "alice", operation, "topic:seen")
        with (
            started_console(tmp_path, "--bootstrap", broker.address) as address,
            Opened(browser, 390) as page,
        ):
            page.goto(f"{address}/topics")
            page.get_by_label("User").fill("alice")
            page.get_by_label("Password").fill("wrong")
            page.get_by_role("button", name="Log in").click()
            playwright.expect(page.locator("#app")).to_contain_text("rejects this login")
            check_accessible(page)
            page.screenshot(path=PICTURES / "login-390-light.png", full_page=True)
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name="Log in").click()
            playwright.expect(page.get_by_role("link", name="seen", exact=True)).to_be_visible()
            assert page.get_by_role("link", name="hidden", exact=True).count() == 0
            page.goto(address)
            playwright.expect(page.locator("#app")).to_contain_text("PERMISSION_DENIED")
            check_accessible(page)
            page.screenshot(path=PICTURES / "denied-390-light.png", full_page=True)
            page.goto(f"{address}/topics/seen")
            alter = page.get_by_role("button", name="Alter seen")
            playwright.expect(alter).to_have_attribute("aria-disabled", "true")
            check_accessible(page)
            page.screenshot(path=PICTURES / "refused-390-light.png", full_page=True)
            alter.click(force=True)
            playwright.expect(page.locator("#app")).to_contain_text("No permission to alter")
            with client_of(broker) as admin:
                admin.add_rule("allow", "alice", "alter", "topic:seen")
            playwright.expect(alter).not_to_have_attribute("aria-disabled", "true")
            alter.click()
            playwright.expect(page.get_by_role("dialog")).to_contain_text("New number")
            page.get_by_role("button", name="Cancel").click()
            page.goto(address)
            page.get_by_role("button", name="Log out alice").click()
            playwright.expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
            page.get_by_label("User").fill("alice")
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name="Log in").click()
            playwright.expect(page.locator("#app")).to_contain_text("PERMISSION_DENIED")
            with client_of(broker) as admin:
                admin.remove_user("alice")
            playwright.expect(page.locator("#app")).to_contain_text("Your session has expired")
            playwright.expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
            page.go_back()
            playwright.expect(page.get_by_role("heading", level=1)).to_have_text("Log in")


def test_page_shows_a_lost_connection_and_reconnects(browser, tmp_path, scenario):
    with Opened(browser, 1280) as page:
        with started_console(
            tmp_path, "--bootstrap", scenario.cluster.bootstrap, "--read-only"
        ) as address:
            page.goto(f"{address}/transactions")
            settle(page)
            assert page.get_by_role("button", name="Abort").count() == 0  # read-only
            playwright.expect(page.locator(".connection")).to_have_text("live")
        playwright.expect(page.locator(".connection")).to_have_text("connection lost")
    eventually(lambda: not scenario.failures)

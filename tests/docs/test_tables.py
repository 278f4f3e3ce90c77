"""Tables of the docs, which are generated from the code, are current and complete."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from docs_site.pictures import FOLDER, PICTURES
from docs_site.tables import DOCS, TABLES, begin, end, pages, with_tables, write_tables
from spark_stream.broker.config import BrokerConfig
from spark_stream.cli.app import COMMANDS, loaded
from spark_stream.datasource.options.table import OPTIONS
from spark_stream.errors import BY_CODE, IsologError
from spark_stream.storage.settings import SETTINGS

REFERENCE = DOCS / "reference"


@pytest.mark.parametrize("page", list(pages()), ids=lambda path: path.name)
def test_pages_have_the_tables_of_the_code(page: Path) -> None:
    text = page.read_text()
    assert with_tables(text) == text, "run `make docs`"


def test_every_table_is_on_one_page() -> None:
    texts = [page.read_text() for page in pages()]
    assert [sum(begin(name) in text for text in texts) for name in TABLES] == [1] * len(TABLES)


def test_outdated_page_is_updated(tmp_path: Path) -> None:
    name = "errors.md"
    shutil.copy(REFERENCE / name, tmp_path / name)
    now = (tmp_path / name).read_text()
    (tmp_path / name).write_text(now.replace("`DISK_FULL`", "`DISC_FULL`"))
    assert write_tables(tmp_path) == [tmp_path / name]
    assert (tmp_path / name).read_text() == now
    assert write_tables(tmp_path) == []


@pytest.mark.parametrize("mark", [begin("errors"), end("errors")])
def test_page_without_a_mark_is_refused(mark: str) -> None:
    with pytest.raises(ValueError, match="lacks"):
        with_tables((REFERENCE / "errors.md").read_text().replace(mark, ""))


def first_cells(page: str) -> set[str]:
    rows = [line.split(" | ")[0] for line in (REFERENCE / page).read_text().splitlines()]
    return {name for row in rows if row.startswith("| ") for name in re.findall(r"`([^`]+)`", row)}


def test_every_option_setting_and_error_has_a_row() -> None:
    assert {each.name for each in OPTIONS} <= first_cells("options.md")
    topics_own = {"topic"}  # the table [topic] of the file
    assert first_cells("settings.md") == {*SETTINGS, *BrokerConfig.model_fields} - topics_own
    classes = {each.__name__ for each in BY_CODE.values()} | set(BY_CODE)
    assert first_cells("errors.md") == classes - {IsologError.code, IsologError.__name__}


def test_names_of_settings_are_code() -> None:
    """As a text, the star of two patterns such as ``retention.*`` would begin and end italics."""
    tables = "\n".join(TABLES[name]() for name in TABLES if name.startswith("settings"))
    plain = re.sub(r"`[^`]*`", "", tables)
    assert "*" not in plain
    assert [name for name in SETTINGS if "." in name and name in plain] == []


def test_every_command_has_a_section_with_all_its_options() -> None:
    text = (REFERENCE / "commands.md").read_text()
    assert "## `isolog produce`" in text
    for name in COMMANDS:
        group = loaded(name)
        for below, command in getattr(group, "commands", {}).items():
            section = text.partition(f"## `isolog {name} {below}`\n")[2].partition("\n## ")[0]
            options = {each.opts[0] for each in command.params if each.opts[0].startswith("-")}
            assert options <= set(re.findall(r"(?<=[` ])--?[\w-]+", section))


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_match_the_code(name: str) -> None:
    assert (FOLDER / name).read_text() == PICTURES[name](), "run `make docs`"

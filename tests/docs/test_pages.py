"""Tutorial, tasks and concepts: the commands of a page have the described effect.

Pages with Spark run in the session that its tests share: ``tests/spark/test_docs_pages.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.demo.conftest import Shell
from tests.demo.test_operations import EXAMPLES as OF_OPERATIONS
from tests.demo.test_readme import EXAMPLES as OF_README
from tests.docs.pages import DOCS, NOT_RUN, PAGES, Reader, blocks, needs_spark
from tests.spark.test_import_from_kafka import MARKED as OF_MIGRATION
from tests.spark.test_real_time import MARKED as OF_REAL_TIME

OF_OTHERS = (*OF_OPERATIONS, *OF_README, *OF_MIGRATION, *OF_REAL_TIME)
QUICK = "concepts/isolation-levels.md"


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("tools"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == QUICK else pytest.mark.full)
        for name in PAGES
        if not needs_spark(name) and any(each.is_run for each in blocks(name))
    ],
)
def test_blocks_of_a_page_have_their_described_effect(
    name: str, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "page"
    reader = Reader(folder, shell)
    monkeypatch.chdir(folder)
    try:
        assert reader.follow(name)
    finally:
        reader.leave()


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_run_or_has_a_reason(name: str) -> None:
    text = sum(line.startswith("```") for line in (DOCS / name).read_text().splitlines())
    found = list(blocks(name))
    assert 2 * len(found) == text, "a fence that is indented, or has other words behind ```"
    before = None
    for block in found:
        if block.mark is not None:
            assert (block.mark, block.code) in OF_OTHERS
        elif block.title.startswith(NOT_RUN):
            assert len(block.title) > len(NOT_RUN)
        elif block.title == "Output":
            assert before is not None
            assert before.is_run
            assert before.language in ("sh", "python")
        elif block.language not in ("sh", "python", ""):  # without a language: a picture
            assert Path(block.title).suffix, f"{block.title!r} is no name of a file"
        before = block


def test_few_blocks_are_not_run() -> None:
    found = [each.title for name in PAGES for each in blocks(name) if NOT_RUN in each.title]
    assert len(found) <= 8

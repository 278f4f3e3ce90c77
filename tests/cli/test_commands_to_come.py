"""Commands that docs/api.md names and this release does not have say so, whatever follows them."""

from __future__ import annotations

import pytest

from spark_stream.cli.app import TO_COME
from tests.conftest import ROOT


@pytest.mark.parametrize("name", TO_COME)
def test_a_command_to_come_is_refused_by_name(call, name):
    refused = call(name, "list", "--path", "data")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(f"error: the command '{name}' is still to come (")
    assert refused.err.count("\n") == 1


def test_they_are_those_of_the_page():
    note = (ROOT / "docs" / "api.md").read_text()
    assert f"- the commands {', '.join(f'`{name}`' for name in TO_COME)}." in note


def test_they_are_never_suggested(call):
    refused = call("consum")
    assert refused.code == 2
    assert "'consume'" in refused.err
    assert not any(f"'{name}'" in refused.err for name in TO_COME)

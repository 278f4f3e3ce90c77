"""The snippets of a page are valid code, and read exactly the shown range."""

from __future__ import annotations

import ast
import json

import pytest

from spark_stream.consistency.isolation import Isolation
from spark_stream.console.snippets import CUT_REMARK, ShownRange, python_snippet, spark_snippet
from spark_stream.datasource.options.table import OPTIONS

HOSTILE = """a'b"c\\ \n d > 'x' """


def shown(**fields) -> ShownRange:
    given = {
        "bootstrap": "h:1,h:2",
        "topic": "flights",
        "ranges": {1: (5, 9), 0: (0, 3)},
        "isolation": Isolation.READ_COMMITTED,
    }
    return ShownRange(**(given | fields))


def options_of(code: str) -> dict[str, str]:
    """Return the options in a snippet for Spark."""
    found = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "option":
            name, value = map(ast.literal_eval, node.args)
            found[name] = value
    return found


def read_of(code: str) -> tuple[list, dict]:
    """Return the arguments of ``log.read``."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "read":
            values = {each.arg: ast.literal_eval(each.value) for each in node.keywords}
            return [ast.literal_eval(each) for each in node.args], values
    raise AssertionError(code)


@pytest.mark.parametrize("text", ["n > 1", HOSTILE, "ends with '"])
def test_snippets_name_the_range_with_any_filter(text):
    options = options_of(spark_snippet(shown(filter=text)))
    assert options["filter"] == text
    assert json.loads(options["assign"]) == {"flights": [0, 1]}
    assert json.loads(options["startingOffsets"]) == {"flights": {"0": 0, "1": 5}}
    assert json.loads(options["endingOffsets"]) == {"flights": {"0": 3, "1": 9}}
    assert options["isolation"] == "read_committed"
    [topic], values = read_of(python_snippet(shown(filter=text)))
    assert (topic, values["filter"], values["partitions"]) == ("flights", text, [0, 1])
    assert (values["start"], values["end"]) == ({0: 0, 1: 5}, {0: 3, 1: 9})


def test_snippet_uses_existing_options_of_the_source():
    code = spark_snippet(shown(filter="x", connects=(("user", "NAME"), ("tls.ca", "ca.pem"))))
    known = {each.name for each in OPTIONS}
    assert set(options_of(code)) <= known | {"bootstrap", "assign"}
    python = python_snippet(shown(connects=(("user", "NAME"), ("tls.ca", "ca.pem"))))
    assert """connect("h:1,h:2", user="NAME", tls_ca="ca.pem")""" in python


def test_snippet_of_read_atomic_uses_read_committed_with_a_comment():
    code = spark_snippet(shown(isolation=Isolation.READ_ATOMIC))
    assert options_of(code)["isolation"] == "read_committed"
    assert CUT_REMARK in code
    assert CUT_REMARK in python_snippet(shown(isolation=Isolation.READ_ATOMIC))


def test_snippet_requests_metadata_of_typed_topics():
    assert "includeMetadata" not in options_of(spark_snippet(shown(is_typed=False)))
    assert "metadata" not in read_of(python_snippet(shown(is_typed=False)))[1]

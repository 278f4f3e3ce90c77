"""Errors keep their class, code and text across the wire and between processes."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.errors import BY_CODE, IsologError, OffsetEvicted, from_wire

json_values = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


def test_every_error_class_has_a_unique_code():
    classes, todo = set(), [IsologError]
    while todo:
        each = todo.pop()
        classes.add(each)
        todo += each.__subclasses__()
    assert set(BY_CODE.values()) == classes
    assert all(code == kind.code for code, kind in BY_CODE.items())


@pytest.mark.rule("codes, messages and hints of errors", "errors.py")
@pytest.mark.parametrize("kind", BY_CODE.values(), ids=lambda kind: kind.code)
def test_every_error_has_a_code_a_message_and_a_hint(kind):
    error = kind("the thing is wrong")
    assert str(error) == f"[{kind.code}] the thing is wrong ({kind.hint})"
    assert kind.hint.endswith(".")
    assert isinstance(kind.retriable, bool)


@given(
    st.sampled_from(sorted(BY_CODE)),
    st.text(),
    st.none() | st.text(min_size=1),
    st.dictionaries(
        st.text(max_size=5).filter(lambda key: key not in ("hint", "message", "self")), json_values
    ),
)
def test_errors_survive_the_wire_and_pickling(code, message, hint, details):
    error = BY_CODE[code](message, hint=hint, **details)
    assert error.to_wire()["retriable"] is BY_CODE[code].retriable  # for clients without the class
    for other in (
        from_wire(json.loads(json.dumps(error.to_wire()))),
        pickle.loads(pickle.dumps(error)),
    ):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert other.details == details


def test_unknown_error_code_becomes_the_base_class_with_its_text():
    error = from_wire(
        {"code": "FROM_THE_FUTURE", "message": "m", "hint": "h.", "details": {"a": 1}}
    )
    assert type(error) is IsologError
    assert (error.message, error.hint, error.details) == ("m", "h.", {"a": 1})


def test_empty_error_is_decoded():
    assert str(from_wire({})) == f"[ISOLOG]  ({IsologError.hint})"


def test_error_keeps_the_evicted_offset():
    error = OffsetEvicted("m", kept=3, offset=7)
    assert (error.kept, error.offset) == (3, 7)
    assert (IsologError("m").kept, IsologError("m").offset) == (0, None)

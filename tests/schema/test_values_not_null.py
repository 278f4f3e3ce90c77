"""The search for forbidden nulls finds the same ones as a walk over the values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.schema.values import first_null, takes_all_nulls
from tests.examples import examples

KEYS = pa.struct([("k", pa.int8())])


def nests(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    field = st.builds(pa.field, st.just("f"), inner, st.booleans())
    fields = st.lists(field, min_size=1, max_size=2)
    return st.one_of(
        field.map(pa.list_),
        field.map(lambda each: pa.list_(each, 2)),
        field.map(lambda each: pa.map_(KEYS, each)),
        fields.map(
            lambda some: pa.struct([each.with_name(f"f{n}") for n, each in enumerate(some)])
        ),
    )


TYPES = st.recursive(st.just(pa.int8()), nests, max_leaves=4)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pt.is_struct(kind):
        found: Any = st.fixed_dictionaries({each.name: values(each.type) for each in kind})
    elif pt.is_map(kind):
        pair = st.tuples(st.just({"k": 1}), values(kind.item_type))
        found = st.lists(pair, max_size=2)
    elif pt.is_nested(kind):
        size = kind.list_size if pt.is_fixed_size_list(kind) else None
        found = st.lists(values(kind.value_type), min_size=size or 0, max_size=size or 2)
    else:
        return st.sampled_from([1, 2, 3, None])
    return found | st.none()


def loose(kind: pa.DataType) -> pa.DataType:
    """The type with every field nullable, as a careless writer has it."""
    if pt.is_struct(kind):
        return pa.struct([(each.name, loose(each.type)) for each in kind])
    if pt.is_map(kind):
        return pa.map_(kind.key_type, loose(kind.item_type))
    if pt.is_fixed_size_list(kind):
        return pa.list_(loose(kind.value_type), kind.list_size)
    return pa.list_(loose(kind.value_type)) if pt.is_list(kind) else kind


def bad_paths(value: Any, field: pa.Field, path: str) -> set[str]:
    kind = field.type
    if value is None:
        return set() if field.nullable else {path}
    if pt.is_struct(kind):
        inner = [(value[each.name], each, f"{path}.{each.name}") for each in kind]
    elif pt.is_map(kind):
        inner = [(each, kind.item_field, f"{path}.value") for _, each in value]
    elif pt.is_nested(kind):
        inner = [(each, kind.value_field, f"{path}.element") for each in value]
    else:
        return set()
    return set().union(*(bad_paths(*each) for each in inner))


@pytest.mark.rule("nulls within a value that are refused", "schema/values.py")
@settings(max_examples=examples(300), deadline=None)
@given(TYPES, st.booleans(), st.data())
def test_first_null_equals_that_of_a_walk_over_the_values(kind, nullable, data):
    rows = data.draw(st.lists(values(kind), min_size=2, max_size=6))
    array = pa.array(rows, loose(kind)).slice(1)  # with an offset into its buffers
    field = pa.field("c", kind, nullable)
    walked = [(row, bad_paths(value, field, "c")) for row, value in enumerate(rows[1:])]
    expected = next(((row, paths) for row, paths in walked if paths), None)
    found = first_null(array, field, "c")
    assert (found is None) == (expected is None)
    if found is not None:
        assert found[0] == expected[0]
        assert found[1] in expected[1]
    assert found is None or not takes_all_nulls(field)

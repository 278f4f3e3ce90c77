"""Convert whole columns to text at once, in Arrow's own code.

``shown`` is for people and CSV, ``json_texts`` for JSON. Nested values are JSON in both. Binary is
base64, as in Spark; in default-schema topics (``utf8``) it is text. There, bytes that are not UTF-8
are an object in JSON, ``{"base64": "…"}``; for people such a byte is shown as ``\\xff``.

The command line's ``json_lines.JsonBlocks`` reads all JSON of this module back to the same values.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from spark_stream.schema.moments import (
    date_texts,
    duration_texts,
    interval_texts,
    moment_texts,
    time_texts,
)

BASE64: Final = "base64"
"""The only name in the object that stands for bytes which are not text."""

NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
"""Numbers that JSON does not have: written as strings, as Spark does."""

_JSON_SHORT: Final = {"\n": "n", "\r": "r", "\t": "t"}
_CONTROL: Final = r"[\x00-\x1f]"


def shown(array: pa.Array, *, utf8: bool) -> pa.StringArray:
    """Return the text of each value; null stays null."""
    kind = array.type
    if pt.is_dictionary(kind):
        return shown(array.dictionary_decode(), utf8=utf8)
    if pt.is_null(kind):
        return pa.nulls(len(array), pa.string())
    if pt.is_nested(kind):
        texts = json_texts(array, utf8=utf8)
        return pc.if_else(array.is_null(), pa.scalar(None, pa.string()), texts)
    if _is_bytes(kind):
        return _bytes_shown(array, utf8)
    for is_kind, texts_of in _TEXTS:
        if is_kind(kind):
            return texts_of(array)
    return array.cast(pa.string())


def _bytes_shown(array: pa.Array, utf8: bool) -> pa.StringArray:
    if utf8:
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            pass  # some value is no text: look at each
    return pa.array([_text_of(each, utf8) for each in array.to_pylist()], pa.string())


def _text_of(value: bytes | None, utf8: bool) -> str | None:
    if value is None:
        return None
    return value.decode("utf-8", "backslashreplace") if utf8 else base64.b64encode(value).decode()


def _float_texts(array: pa.Array) -> pa.StringArray:
    texts = array.cast(pa.string())
    if not pc.all(pc.is_finite(array)).as_py():
        nan, above, below = NOT_FINITE
        infinite = pc.if_else(pc.greater(array.cast(pa.float64()), 0), above, below)
        texts = pc.if_else(pc.is_nan(array), nan, pc.if_else(pc.is_inf(array), infinite, texts))
    # Without a fraction it would be read as an integer, and integers have no negative zero.
    return pc.if_else(pc.equal(texts, "-0"), "-0.0", texts)


_TEXTS: Final = (
    (pt.is_timestamp, moment_texts),
    (pt.is_date, date_texts),
    (pt.is_time, time_texts),
    (pt.is_duration, duration_texts),
    (pt.is_floating, _float_texts),
)


def json_texts(array: pa.Array, *, utf8: bool, intervals: bool = False) -> pa.StringArray:
    """Return each value as JSON. A null is ``null``.

    ``intervals``: durations have the text of Spark's intervals, which ``from_json`` reads.
    """
    kind = array.type
    if pt.is_dictionary(kind):
        return json_texts(array.dictionary_decode(), utf8=utf8, intervals=intervals)
    if pt.is_map(kind):
        texts = _json_maps(array, utf8, intervals)
    elif pt.is_struct(kind):
        texts = _json_structs(array, utf8, intervals)
    elif pt.is_nested(kind):
        texts = _json_lists(array, utf8, intervals)
    elif pt.is_duration(kind) and intervals:
        texts = _quoted(interval_texts(array))
    elif pt.is_floating(kind):
        texts = _float_texts(array)
        texts = pc.if_else(pc.is_finite(array), texts, _joined('"', texts, '"'))
    elif pt.is_integer(kind) or pt.is_decimal(kind) or pt.is_boolean(kind):
        texts = array.cast(pa.string())
    elif pt.is_null(kind):
        texts = pa.nulls(len(array), pa.string())
    elif utf8 and _is_bytes(kind):
        texts = _json_bytes(array)
    else:
        texts = _quoted(shown(array, utf8=utf8))
    return pc.fill_null(texts, "null")


def json_lines(batch: pa.RecordBatch, *, utf8: bool, intervals: bool = False) -> pa.StringArray:
    """Return each row as a JSON object, with values as in :func:`json_texts`."""
    return _json_objects(batch.schema.names, batch.columns, utf8, intervals)


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    texts = pc.replace_substring(texts, "\\", "\\\\")
    texts = pc.replace_substring(texts, '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, _CONTROL)).as_py():
        for code in range(0x20):
            escaped = _JSON_SHORT.get(chr(code), f"u{code:04x}")
            texts = pc.replace_substring(texts, chr(code), f"\\{escaped}")
    return _joined('"', texts, '"')


def _json_bytes(array: pa.Array) -> pa.StringArray:
    try:
        return _quoted(array.cast(pa.string()))
    except pa.ArrowInvalid:
        pass  # some value is no text: look at each
    values = array.to_pylist()
    texts = [_as_text(each) for each in values]
    raw = [
        None if text is not None or value is None else base64.b64encode(value).decode()
        for text, value in zip(texts, values, strict=True)
    ]
    encoded = _joined(f'{{"{BASE64}":"', pa.array(raw, pa.string()), '"}')
    return pc.coalesce(_quoted(pa.array(texts, pa.string())), encoded)


def _as_text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _json_objects(
    names: list[str], columns: list[pa.Array], utf8: bool, intervals: bool
) -> pa.StringArray:
    parts: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        label = json.dumps(name, ensure_ascii=False)
        texts = json_texts(column, utf8=utf8, intervals=intervals)
        parts += [f"{',' if parts else '{'}{label}:", texts]
    return _joined(*parts, "}")


def _json_structs(array: pa.StructArray, utf8: bool, intervals: bool) -> pa.StringArray:
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    if not names:
        return pc.if_else(array.is_null(), pa.scalar(None, pa.string()), "{}")
    objects = _json_objects(names, array.flatten(), utf8, intervals)
    return pc.if_else(array.is_null(), pa.scalar(None, pa.string()), objects)


def _json_lists(array: pa.Array, utf8: bool, intervals: bool) -> pa.StringArray:
    items = json_texts(array.flatten(), utf8=utf8, intervals=intervals)
    return _joined("[", _items_joined(array, list_ends(array), items), "]")


def _json_maps(array: pa.MapArray, utf8: bool, intervals: bool) -> pa.StringArray:
    """Write maps as Spark does: objects, whose keys are strings whatever their type."""
    rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    maps = array.take(pa.array(rows))  # a copy, whose buffers have only the values of these maps
    ends = np.zeros(len(array) + 1, np.int32)
    ends[rows + 1] = np.diff(maps.offsets.to_numpy())
    labels = _quoted(shown(maps.keys, utf8=utf8))
    items = _joined(labels, ":", json_texts(maps.items, utf8=utf8, intervals=intervals))
    return _joined("{", _items_joined(array, pa.array(np.cumsum(ends, dtype=np.int32)), items), "}")


def _items_joined(array: pa.Array, ends: pa.Array, items: pa.StringArray) -> pa.StringArray:
    """Join the items of each list or map with commas, by offsets as of :func:`list_ends`."""
    return pc.binary_join(pa.ListArray.from_arrays(ends, items, mask=array.is_null()), ",")


def list_ends(lists: pa.Array) -> pa.Array:
    """Return the offsets of lists in their flattened values: 0, and where each list ends."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    lengths = pc.if_else(lists.is_valid(), lengths, pa.scalar(0, lengths.type))
    ends = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=ends[1:])
    # Without a validity bitmap, which Arrow does not accept besides that of the lists.
    return pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(ends)])


def _joined(*parts: Any) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))

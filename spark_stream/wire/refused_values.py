"""What is wrong with a setting or an option that pydantic refuses, in our words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_NUMBER, _WHOLE, _TEXT = "takes a number", "takes a whole number", "takes a text"
_TABLE: Final = "takes a table of names and values"
_WORDS: Final = {
    "bool_parsing": "takes true | false",
    "bool_type": "takes true | false",
    "dataclass_type": _TABLE,
    "dict_type": _TABLE,
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "greater_than": "takes a number above {gt}",
    "greater_than_equal": "takes a number from {ge} on",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "less_than": "takes a number below {lt}",
    "less_than_equal": "takes a number up to {le}",
    "literal_error": "takes {expected}",
    "model_type": _TABLE,
    "path_type": "takes a path",
    "string_type": _TEXT,
    "tuple_type": "takes a list",
    "missing": "is missing",
}


def problem_of(refused: Mapping[str, Any]) -> str:
    """Return what one of the ``errors()`` of a ValidationError says."""
    words = _WORDS.get(refused["type"])
    if words is None:
        return str(refused["msg"]).removeprefix("Value error, ")  # pydantic's own prefix
    if refused["type"] == "missing":
        return words
    return f"{words.format(**refused.get('ctx', {}))}, not {refused['input']!r}"

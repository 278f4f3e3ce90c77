"""Values that pydantic refuses are named in our words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError

from spark_stream.broker.config import problem_of


@dataclass
class Point:
    x: int


def refuse(value: object) -> None:
    raise ValueError(f"takes something else, not {value!r}")


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (int, "x", "takes a whole number, not 'x'"),
        (int, 1.5, "takes a whole number, not 1.5"),
        (float, "x", "takes a number, not 'x'"),
        (bool, "perhaps", "takes true | false, not 'perhaps'"),
        (str, 3, "takes a text, not 3"),
        (dict[str, str], 3, "takes a table of names and values, not 3"),
        (BaseModel, 3, "takes a table of names and values, not 3"),
        (Point, 3, "takes a table of names and values, not 3"),
        (Literal["1.2", "1.3"], "1.1", "takes '1.2' or '1.3', not '1.1'"),
        (Annotated[int, Field(ge=1)], 0, "takes a number from 1 on, not 0"),
        (Annotated[float, Field(gt=0)], 0, "takes a number above 0.0, not 0"),
        (Annotated[int, Field(le=5)], 6, "takes a number up to 5, not 6"),
        (Annotated[Any, AfterValidator(refuse)], 7, "takes something else, not 7"),
    ],
)
def test_an_error_about_a_value_names_the_accepted_ones(kind, value, problem):
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(kind).validate_python(value)
    assert problem_of(refused.value.errors()[0]) == problem

"""Filters that Spark hands to a batch read: Spark need not apply those that the leader can apply.

Spark hands them to a reader only if ``spark.sql.python.filterPushdown.enabled`` is on; if it is
off, Spark refuses a reader that would take them. A reader cannot see that setting. But Spark hands
them over in a Python worker that does nothing else, and all other workers only plan or read.

Spark keeps the filters that a reader took with the DataFrame, for all queries over it. So they are
taken only if the option ``pushFilters`` asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, getcontext
from typing import Any, Final

from pyspark.sql import datasource as spark

from spark_stream.datasource.reading.reader import IsologReader
from spark_stream.datasource.spark.spark_errors import with_spark_errors
from spark_stream.datasource.spark.types import text_rule
from spark_stream.errors import InvalidFilter
from spark_stream.sql.tree import (
    Column,
    Compare,
    Comparison,
    Holds,
    In,
    IsNull,
    Literal,
    Not,
    Predicate,
    TextPart,
    compared_columns,
)
from spark_stream.sql.writing import both, literal_of, sql_of


class PushingReader(IsologReader):
    """A batch source that lets the leader apply Spark's filters."""

    @with_spark_errors
    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Keep the filters that the leader can apply; return the others."""
        texts = [self._text_of(each) for each in filters]
        self.keep_only(both(*texts))
        return [each for each, text in zip(filters, texts, strict=True) if text is None]

    def _text_of(self, pushed: Any) -> str | None:
        """Return the filter as SQL that fits all topics; None if Spark has to apply it."""
        tree = _tree_of(pushed)
        if tree is None or any(
            text_rule(self.schema, column.path) for column in compared_columns(tree)
        ):
            return None
        text = sql_of(tree)
        try:
            self.check_filter(text)
        except InvalidFilter:
            return None
        return text


def _tree_of(pushed: Any) -> Predicate | None:
    """Return the filter as a tree; None if no tree expresses it."""
    if isinstance(pushed, spark.Not):
        part = _tree_of(pushed.child)
        return None if part is None else Not(part)
    if isinstance(pushed, spark.IsNull):
        return IsNull(Column(pushed.attribute))
    if isinstance(pushed, spark.IsNotNull):
        return Not(IsNull(Column(pushed.attribute)))
    if isinstance(pushed, spark.In):
        items = [_literal(value) for value in pushed.value]
        known = tuple(each for each in items if each is not None)
        return In(Column(pushed.attribute), known) if known and len(known) == len(items) else None
    kind = type(pushed)
    if kind not in _OPERATORS or (value := _literal(pushed.value)) is None:
        return None
    operator, column = _OPERATORS[kind], Column(pushed.attribute)
    if isinstance(operator, TextPart):
        return Holds(column, operator, value)
    sides = (value, column) if kind in _MIRRORED else (column, value)
    return Compare(operator, *sides)


def _literal(value: Any) -> Literal | None:
    """Return the value as a literal; None if a filter has no such value, or it may be rounded.

    PySpark multiplies decimals in the context of the process, which rounds to its precision (28).
    A value with that many digits may be rounded, and Spark does not apply a taken filter itself.
    """
    if isinstance(value, Decimal) and len(value.as_tuple().digits) >= getcontext().prec:
        return None
    return literal_of(value)


_OPERATORS: Final[Mapping[type, Comparison | TextPart]] = {
    spark.EqualTo: Comparison.EQUAL,
    spark.EqualNullSafe: Comparison.SAME,
    spark.LessThan: Comparison.LESS,
    spark.LessThanOrEqual: Comparison.LESS_OR_EQUAL,
    spark.GreaterThan: Comparison.LESS,
    spark.GreaterThanOrEqual: Comparison.LESS_OR_EQUAL,
    spark.StringStartsWith: TextPart.START,
    spark.StringEndsWith: TextPart.END,
    spark.StringContains: TextPart.ANYWHERE,
}
_MIRRORED: Final = (spark.GreaterThan, spark.GreaterThanOrEqual)
"""Filters whose column is on the right side of the operator."""

"""Names that a query may not have, each with its remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from spark_stream.datasource.options.kafka import replaced
from spark_stream.datasource.options.table import OPTIONS, Use, options_for
from spark_stream.errors import InvalidOption

TOPIC_SETTING: Final = "topic."
"""Before the name of a setting of a topic that the sink makes."""

_WRITES: Final = "The option topic, or a column topic, says where a sink writes."
_OTHER_SIDES: Final = {
    "topic": "The option subscribe, subscribePattern or assign says what a source reads.",
    "subscribe": _WRITES,
    "subscribePattern": _WRITES,
    "assign": _WRITES,
}
_LEAVE_OUT: Final = "Leave it out; docs/reference/options.md describes each option."


def checked(given: Mapping[str, str], side: Use, what: str) -> dict[str, str]:
    """Return the options' texts by their proper names.

    Raises:
        InvalidOption: an option is not for this side, belongs to Spark's Kafka connector (all of
            these are in one error), or is unknown.
    """
    proper = _lowered(options_for(side))
    others = _lowered(options_for(Use.ALL))
    _refuse_kafkas(key for key in given if key.lower() not in others)
    found = {}
    for key, value in given.items():
        name = key.lower()
        if name in proper:
            found[proper[name]] = value
        elif name in others:
            raise InvalidOption(
                f"option {others[name]!r} is not for a {what}",
                hint=_OTHER_SIDES.get(others[name], _LEAVE_OUT),
                option=others[name],
            )
        else:
            raise InvalidOption(f"unknown option {key!r}; {_guess(name, proper)}", option=key)
    return found


def _refuse_kafkas(names: Iterable[str]) -> None:
    """Raise one InvalidOption for all of these that belong to Spark's Kafka connector."""
    rows = {name: row for name in names if (row := replaced(name)) is not None}
    if not rows:
        return
    first, *others = ((row.shown(name), row.remedy) for name, row in rows.items())
    if others:
        lines = [f"\n  {name!r}: {remedy}" for name, remedy in (first, *others)]
        message = f"{len(lines)} options of Spark's Kafka connector:{''.join(lines)}\n"
    else:
        message = f"option {first[0]!r} is one of Spark's Kafka connector; {first[1]}"
    raise InvalidOption(message, option=first[0])


def check_kind(given: Iterable[str], kind: Use) -> None:
    """Raise InvalidOption if an option is for streams only and the query is a batch, or reverse."""
    known = options_for(kind)
    for name in given:
        if name not in known:
            called = "streaming" if kind & (Use.STREAM_SOURCE | Use.STREAM_SINK) else "batch"
            raise InvalidOption(
                f"{name} is not for a {called} query",
                hint=_LEAVE_OUT,
                option=name,
            )


def topic_settings(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split off the settings of a topic to be made (``topic.retention.ms``)."""
    settings, rest = {}, {}
    for key, value in given.items():
        name = key.lower()
        if name.startswith(TOPIC_SETTING):
            settings[name.removeprefix(TOPIC_SETTING)] = value
        else:
            rest[key] = value
    return settings, rest


def counted_in_table(use: Use) -> set[str]:
    """Return the options of a SQL table that take effect for this use."""
    return {each.name for each in OPTIONS if each.uses_in_table & use}


def _lowered(names: Iterable[str]) -> dict[str, str]:
    """Map names in lower case to proper names; leave out patterns (``topic.<setting>``)."""
    return {name.lower(): name for name in names if "<" not in name}


def _guess(name: str, proper: Mapping[str, str]) -> str:
    """Guess which option was meant by an unknown name."""
    if "." in name and "createtopic" in proper:
        return f"a setting of a topic that createTopic=true makes is given as 'topic.{name}'"
    near = difflib.get_close_matches(name, proper, n=1, cutoff=0.65)
    return f"did you mean {proper[near[0]]!r}?" if near else f"known: {', '.join(proper.values())}"

"""``isolog consume``: filters, and positions in options."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from isolog.errors import InvalidOption
from spark_stream.cli.options import position_of
from tests.support import NUMBERS, numbers


def test_filter_prints_matching_records(served):
    served.log.create_topic("filtered", partitions=2, schema=NUMBERS)
    with served.log.producer() as producer:
        for partition in range(2):
            producer.append("filtered", numbers(0, 1000), partition=partition)
    found = served.run(
        "consume",
        "filtered",
        "--filter",
        "n in (7, 8) and _partition = 1",
        "-o",
        "json",
        "--metadata",
    )
    rows = [json.loads(line) for line in found.out.splitlines()]
    assert [(row["n"], row["_partition"], row["_offset"]) for row in rows] == [(7, 1, 7), (8, 1, 8)]
    assert served.run("consume", "filtered", "--filter", "n > 10", "-n", "3", "-o", "csv").out == (
        '"n"\n11\n12\n13\n'
    )
    nothing = served.run("consume", "filtered", "--filter", "n < 0", "-o", "json")
    assert (nothing.code, nothing.out) == (0, "")


def test_invalid_filter_is_an_error_of_one_line(served):
    served.log.create_topic("refused", schema=NUMBERS)
    found = served.run("consume", "refused", "--filter", "m = 1")
    assert found.code != 0
    assert "there is no column 'm'" in found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("1h", timedelta(hours=1)),
        ("2d", timedelta(days=2)),
        ("0s", timedelta()),
    ],
)
def test_a_position_may_be_an_age(text, ago):
    before = datetime.now(UTC)
    found = position_of("--from", text)
    assert isinstance(found, datetime)
    assert before - ago <= found <= datetime.now(UTC) - ago


@pytest.mark.parametrize("text", ["h", "1w", "-1h", "1.5h", "1 h", "99999999999d"])
def test_invalid_positions_are_refused(text):
    with pytest.raises(InvalidOption, match="--from takes"):
        position_of("--from", text)


@pytest.mark.parametrize("text", ["2024-02-29", "2024-02-29T00:00:00", "2024-02-29T01:00+01:00"])
def test_a_time_without_a_zone_is_in_utc(text):
    assert position_of("--from", text) == datetime(2024, 2, 29, tzinfo=UTC)

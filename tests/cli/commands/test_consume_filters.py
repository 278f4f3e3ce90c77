"""``isolog consume --filter``."""

from __future__ import annotations

import json

from tests.support import NUMBERS, numbers


def test_records_that_match_are_printed(served):
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


def test_a_filter_that_does_not_fit_is_one_line_and_an_exit_code(served):
    served.log.create_topic("refused", schema=NUMBERS)
    found = served.run("consume", "refused", "--filter", "m = 1")
    assert found.code != 0
    assert "there is no column 'm'" in found.err
    assert "Traceback" not in found.err

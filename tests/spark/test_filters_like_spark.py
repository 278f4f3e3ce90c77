"""A filter has Spark's result for every row: true, false or null."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from spark_stream.sql.filters import row_filter
from tests.sql.rows import SPARKS_TYPES

PREDICATES = r"""
i64 = 1
i64 == 5
i64 != 5
i64 <> 5
not i64 <=> 5
i64 <=> null
i64 = null
i64 <= 1.5
i64 > 1.5
i8 < 1000
i8 >= -128.5
i8 = i32
i32 < i64
i64 = 9007199254740993.0D
i64 > 9007199254740992D
i64 = 1e0
i32 = 16777217F
i64 in (1, 5, 7, 8, 9, null)
i64 not in (1, 5)
i64 in (1, 2.5)
i64 in (9007199254740992, 1D)
i64 in (1.5, '9007199254740992')
i64 in ('9007199254740992', 1.5)
i64 in (i32, 1.5)
i64 between 1 and 5
i64 not between 1 and 5
i64 = '5'
i64 > cast('0' as int)
i64 = cast(5.9D as int)
f64 = 'NaN'
f64 = double('NaN')
f64 > 1.5
f64 >= double('NaN')
f64 < double('NaN')
f64 <= double('NaN')
f64 = 0
f64 = 0.1
f64 != 0.1
f32 = 0.1
f32 = 0.1F
f32 = cast(0.1 as float)
f32 = 16777217
f32 <= f64
f32 = f64
f64 < f32
f64 > i64
f64 in (1.5, 0, 7)
f64 <=> double('NaN')
isnan(f64)
isnan(f32) or i64 = 1
f64 = double('Infinity')
dec = 1.5
dec < 1.505
dec > 1e1
dec > i64
dec = '1.5'
dec in (1.50, 5)
dec >= 99999999.99
dec < f64
dec between -2.25 and 1.5
dec = 1.5D
dec > 99999999999
s = 'ab'
s > 'ab'
s < 'b'
s >= ''
s != 'ab'
s <=> null
s is distinct from 'ab'
s is not distinct from 'ab'
s like 'a%'
s like 'a\%b'
s like '_b'
s like '%z'
s like '%a%'
s like '_\nz'
s like 'a!%%' escape '!'
s like ''
s like '%'
s like 'ab'
s like '%b'
s not like 'a%'
s like 'a_b'
startswith(s, 'a')
endswith(s, 'b')
contains(s, '%')
s in ('ab', 'x', 'y', 'z', '10')
s between 'a' and 'b'
s > 'é'
s = "ab"
s = 'it\'s'
s = st.q
raw = 'ab'
raw = X'6162'
raw > X'61'
raw <= X''
raw = s
cast(raw as string) = 'ab'
cast(raw as string) like 'a%b'
startswith(raw, X'61')
day = '2023-11-14'
day = date '2023-11-14'
day < '1970'
day >= '2023-11'
day <= timestamp '1970-01-02 00:00:00'
day = '2023-11-14 23:00:00-05:00'
day = '2023-11-14 and whatever is behind it'
day in ('2023-11-14 12:00:00', timestamp '1970-01-02')
day in ('2023-11-14 12:00:00', date '1970-01-02')
day < ts
day = ntz
ts >= '2023-11-14 22:13:20'
ts > '2023-11-14T22:13:19.9999999'
ts = '2023-11-14 22:13:20Z'
ts = '2023-11-15 00:13:20+02:00'
ts = '2023-11-14 17:13:20 America/New_York'
ts >= date '1970-01-01'
ts = timestamp_ntz '2023-11-14 22:13:20'
ts = ntz
ts < ntz
ts > timestamp '1969-12-31 23:59:59.999998'
ts in (timestamp '1970-01-01', date '1970-01-02')
ntz < '1970'
ntz = '2023-11-14 22:13:20+02:00'
ntz = timestamp_ntz '2023-11-14 22:13:20+02:00'
ntz = timestamp '2023-11-15 00:13:20+02:00'
ntz in (timestamp_ntz '1999-01-01', '2023-11-14 22:13:20+02:00')
ntz in (timestamp '1999-01-01', '2023-11-15 00:13:20+02:00')
ts in (timestamp_ntz '1999-01-01', '2023-11-15 00:13:20+02:00')
day in (timestamp_ntz '1999-01-01', '2023-11-14 00:00:00+02:00')
day in (timestamp_ntz '1999-01-01', timestamp '1999-01-01', '2023-11-14 02:00:00+02:00')
day in (ts, '2023-11-14 12:00:00')
ntz in (day, ts, '2023-11-15 00:13:20+02:00')
ntz between '1970-01-01' and '2023-11-14 22:13:20'
flag
not flag
flag = true
flag = 'true'
flag > false
flag <= false
flag is true
flag is not true
flag is false
flag is null
flag is not null
flag <=> null
flag in (true)
st.p = 1
st.p is null
st is null
st.q > 'a'
ST.P >= 2
`st`.`q` = 'ab'
i64 = 1 and s = 'ab'
i64 = 1 or s = '10'
i64 is null or s is null
not (i64 = 1 or s = 'a%b')
i64 = 1 and null
i64 = 1 or null
null or true
not (null and i64 = 1)
(i64 = 1) is true
(i64 = 1) is not false
1 = 1
1 = 1.0
1 < 1.5D
'1' = 1
null = 1
null <=> null
1 <=> null
'b' > 'a'
date '2024-01-01' < '2024-02-01'
date '2024-01-01' = '2024-01-01 12:00:00'
date '2024-01-01' in ('2024-01-01 12:00:00', timestamp '2023-01-01')
timestamp_ntz '2024-01-01' = '2024-01-01 00:00:00+02:00'
timestamp_ntz '2024-01-01' = timestamp '2024-01-01 02:00:00+02:00'
1 in ('1', 1.0)
double('NaN') > 5
1 is null
isnull(i64)
isnotnull(i64)
true
false
""".strip().split("\n")

MANY = ", ".join(f"'20{year:02}-01-01'" for year in range(60))
PREDICATES += [
    f"ts in ({MANY}, '9999-12-31 23:59:59-10:00')",  # Python has no such moment
    f"ts not in ({MANY}, '0001-01-01 00:00:00+10:00', timestamp '2023-11-14 22:13:20')",
]


@pytest.mark.rule("filter semantics: types, nulls, NaN", "sql/comparisons.py", "sql/predicates.py")
def test_every_predicate_has_the_same_result_as_in_spark(utc_rows: DataFrame) -> None:
    names = [f"p{number}" for number in range(len(PREDICATES))]
    said = utc_rows.selectExpr(
        *[f"({text}) as {name}" for text, name in zip(PREDICATES, names, strict=True)]
    ).toArrow()
    wrong = {}
    for text, name in zip(PREDICATES, names, strict=True):
        mask = row_filter(text, "t", SPARKS_TYPES.schema).bound.mask(SPARKS_TYPES.column)
        count = SPARKS_TYPES.num_rows
        found = [mask.as_py()] * count if isinstance(mask, pa.Scalar) else mask.to_pylist()
        if found != said[name].to_pylist():
            wrong[text] = {"ours": found, "spark": said[name].to_pylist()}
    assert wrong == {}

"""Formats of values, compared with plain Python; values outside the calendar are never written."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DefiniteError, UsageError
from penstock.formats.json.encoder import encode_json
from penstock.sinks.value_formats import ValueFormats, value_texts

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
ZONED = pa.timestamp("us", "UTC")
DECIMAL = pa.decimal128(38, 10)
DECIMALS = st.decimals(places=10, allow_nan=False, allow_infinity=False, min_value=-(10**27), max_value=10**27)
MOMENTS = st.datetimes(timezones=st.just(UTC))


def ticks(moment: datetime, per_second: int) -> int:
    return (moment - EPOCH) // MICROSECOND // (10**6 // per_second)


def iso(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


CASES: dict[str, tuple[ValueFormats, pa.DataType, st.SearchStrategy[Any], pa.DataType, Callable[[Any], Any]]] = {
    "timestamp iso8601": (ValueFormats(timestamp="iso8601"), ZONED, MOMENTS, pa.string(), iso),
    "local timestamp iso8601": (
        ValueFormats(timestamp="iso8601"),
        pa.timestamp("us"),
        st.datetimes(),
        pa.string(),
        lambda moment: moment.isoformat(timespec="microseconds"),
    ),
    **{
        f"timestamp {name}": (
            ValueFormats(timestamp=name),
            ZONED,
            MOMENTS,
            pa.int64(),
            partial(ticks, per_second=rate),
        )
        for name, rate in {"epoch seconds": 1, "epoch millis": 10**3, "epoch micros": 10**6}.items()
    },
    "date iso8601": (ValueFormats(date="iso8601"), pa.date32(), st.dates(), pa.string(), date.isoformat),
    "date epoch days": (
        ValueFormats(date="epoch days"),
        pa.date32(),
        st.dates(),
        pa.int32(),
        lambda day: (day - EPOCH.date()).days,
    ),
    "numeric number": (ValueFormats(numeric="number"), DECIMAL, DECIMALS, DECIMAL, lambda value: value),
    "numeric string": (
        ValueFormats(numeric="string"),
        DECIMAL,
        DECIMALS,
        pa.string(),
        lambda value: f"{value if value else abs(value):.10f}",
    ),
    "numeric double": (
        ValueFormats(numeric="double"),
        DECIMAL,
        DECIMALS,
        pa.float64(),
        lambda value: float(value if value else abs(value)),
    ),
    "bytes base64": (
        ValueFormats(bytes="base64"),
        pa.binary(),
        st.binary(),
        pa.string(),
        lambda value: base64.b64encode(value).decode(),
    ),
    "bytes hex": (ValueFormats(bytes="hex"), pa.binary(), st.binary(), pa.string(), bytes.hex),
}


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
def test_values_are_those_of_the_model(case: str, data: st.DataObject) -> None:
    formats, given_type, values, wanted_type, model = CASES[case]
    rows = data.draw(st.lists(st.none() | values, max_size=12))
    first = data.draw(st.integers(0, len(rows)))
    found = formats.format(pa.array(rows, given_type).slice(first), "c")
    found.validate(full=True)
    assert found.type == wanted_type == formats.type_of(given_type)
    assert found.to_pylist() == [None if value is None else model(value) for value in rows[first:]]


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
@given(rows=st.lists(st.none() | st.lists(st.none() | st.binary(max_size=3), max_size=3)), first=st.integers(0, 5))
def test_lists(kind: Callable[[pa.DataType], pa.DataType], rows: list[list[bytes | None] | None], first: int) -> None:
    found = ValueFormats(bytes="hex").format(pa.array(rows, kind(pa.binary())).slice(first), "c")
    assert found.type == kind(pa.string())
    assert found.to_pylist() == [
        None if row is None else [None if item is None else item.hex() for item in row] for row in rows[first:]
    ]


def test_structs_and_maps() -> None:
    kind = pa.struct([("at", pa.date32()), ("n", pa.int64()), ("by", pa.map_(pa.date32(), pa.date32()))])
    day = date(1970, 1, 3)
    rows = [{"at": day, "n": 1, "by": [(day, day), (day, None)]}, None, {"at": None, "n": None, "by": None}]
    found = ValueFormats(date="epoch days").format(pa.array(rows, kind), "c")
    assert found.to_pylist() == [{"at": 2, "n": 1, "by": [(day, 2), (day, None)]}, None, rows[2]]


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_other_units(unit: str, per_second: int) -> None:
    given_values = pa.array([-3 * per_second, None, 5 * per_second], pa.timestamp(unit))
    assert ValueFormats(timestamp="epoch millis").format(given_values, "c").to_pylist() == [-3000, None, 5000]


@pytest.mark.parametrize(
    ("values", "formats"),
    [
        *(
            (pa.array([0, None, value], pa.int64()).cast(pa.timestamp("us", zone)), ValueFormats(timestamp=name))
            for value in (2**63 - 1, -(2**63), 253_402_300_800_000_000, -62_135_596_800_000_001)
            for zone in (None, "UTC")
            for name in ("iso8601", "epoch seconds", "epoch millis", "epoch micros")
        ),
        *(
            (pa.array([0, None, value], pa.int32()).cast(pa.date32()), ValueFormats(date=name))
            for value in (2**31 - 1, -(2**31), 2_932_897, -719_163)
            for name in ("iso8601", "epoch days")
        ),
    ],
)
def test_value_outside_the_calendar_is_an_error_without_the_value(values: pa.Array, formats: ValueFormats) -> None:
    with pytest.raises(DefiniteError, match=r"^column born has a (date|timestamp) outside the years") as caught:
        formats.format(values, "born")
    assert not any(str(number) in str(caught.value) for number in (2**63, 2**31, 10000, 32103, 28164))
    nested = pa.ListArray.from_arrays([0, 3], values)
    with pytest.raises(DefiniteError):
        formats.format(nested, "born")


def test_decimals_of_other_widths() -> None:
    wide = pa.array([Decimal("-1E-20"), Decimal(10**40), None], pa.decimal256(70, 20))
    zeros = "0" * 19
    assert value_texts(wide, "c").to_pylist() == [f"-0.{zeros}1", f"1{'0' * 40}.{zeros}0", None]
    narrow = pa.array([Decimal("0.00000001")], pa.decimal64(10, 8))
    assert value_texts(narrow, "c").to_pylist() == ["0.00000001"]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array(['say "x"\n', None]), ['say "x"\n', None]),
        (pa.array([True, None]), ["true", None]),
        (pa.array([1.5, float("nan"), float("-inf")]), ["1.5", "NaN", "-Infinity"]),
        (pa.array([["a", None]]), ['["a",null]']),
        (pa.array([b"\xff"]), ["/w=="]),
        (pa.array(["a", "b", None]).dictionary_encode(), ["a", "b", None]),
        (pa.nulls(2), [None, None]),
        (pa.array([0, None], pa.timestamp("s", "UTC")), ["1970-01-01T00:00:00Z", None]),
        (pa.array([-1], pa.timestamp("ns")), ["1969-12-31T23:59:59.999999999"]),
    ],
)
def test_texts(values: pa.Array, texts: list[str | None]) -> None:
    assert value_texts(values, "c").to_pylist() == texts


@given(st.lists(st.none() | MOMENTS))
def test_texts_of_timestamps_are_those_of_json(moments: list[datetime | None]) -> None:
    for kind in (ZONED, pa.timestamp("us")):
        values = pa.array(moments, ZONED).cast(kind)
        texts = [None if text is None else f'"{text}"' for text in value_texts(values, "c").to_pylist()]
        assert [text or "null" for text in texts] == encode_json(values).to_pylist()


@pytest.mark.parametrize(
    ("formats", "hint"),
    [
        (ValueFormats(timestamp="iso8061"), "Did you mean iso8601?"),
        (ValueFormats(date="epoch day"), "Did you mean epoch days?"),
        (ValueFormats(numeric="xyz"), "The formats are: number, string, double."),
        (ValueFormats(bytes="hexx"), "Did you mean hex?"),
    ],
)
def test_unknown_format(formats: ValueFormats, hint: str) -> None:
    with pytest.raises(UsageError, match="unknown format") as caught:
        formats.check()
    assert caught.value.hint == hint

"""date, timestamp, timestamptz."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.sources.postgres.types import BadValueError

Decode = Callable[..., Any]

DATE, TIMESTAMP, TIMESTAMPTZ = 1082, 1114, 1184
EPOCH = datetime(2000, 1, 1)  # noqa: DTZ001
US = timedelta(microseconds=1)

LEAST, MOST = datetime.min, datetime.max  # noqa: DTZ901
datetimes = st.datetimes(LEAST, MOST)


def iso(value: datetime) -> str:
    """As Postgres prints it: no trailing zeros."""
    text = value.isoformat(" ", "microseconds")
    return text.rstrip("0").rstrip(".")


@given(st.lists(st.none() | st.dates()))
@example([date.min, date.max, date(1970, 1, 1), date(2000, 2, 29), date(1900, 2, 28)])
def test_dates(text: Decode, binary: Decode, values: Any) -> None:
    assert text(DATE, [None if v is None else v.isoformat().encode() for v in values]).to_pylist() == values
    wire = [None if v is None else struct.pack(">i", (v - EPOCH.date()).days) for v in values]
    assert binary(DATE, wire).to_pylist() == values


def test_every_day_of_the_calendar(text: Decode) -> None:
    first, days = date.min.toordinal(), date.max.toordinal()
    values = [date.fromordinal(d) for d in range(first, days + 1, 7)]
    assert text(DATE, [v.isoformat().encode() for v in values]).to_pylist() == values


@given(st.lists(st.none() | datetimes))
@example([LEAST, MOST, EPOCH])
def test_timestamps(text: Decode, binary: Decode, values: Any) -> None:
    assert text(TIMESTAMP, [None if v is None else iso(v).encode() for v in values]).to_pylist() == values
    wire = [None if v is None else struct.pack(">q", (v - EPOCH) // US) for v in values]
    assert binary(TIMESTAMP, wire).to_pylist() == values
    zoned = [None if v is None else v.replace(tzinfo=UTC) for v in values]
    assert text(TIMESTAMPTZ, [None if v is None else iso(v).encode() + b"+00" for v in values]).to_pylist() == zoned
    assert binary(TIMESTAMPTZ, wire).to_pylist() == zoned


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), st.integers(-57599, 57599))  # noqa: DTZ001
def test_any_offset_is_subtracted(text: Decode, value: Any, seconds: int) -> None:
    sign, rest = "-" if seconds < 0 else "+", abs(seconds)
    offset = f"{sign}{rest // 3600:02}"
    if rest % 3600:
        offset += f":{rest // 60 % 60:02}"
    if rest % 60:
        offset += f":{rest % 60:02}"
    expected = value.replace(tzinfo=timezone(timedelta(seconds=seconds))).astimezone(UTC)
    assert text(TIMESTAMPTZ, [(iso(value) + offset).encode()]).to_pylist() == [expected]


def test_fractions(text: Decode) -> None:
    for fraction, us in ((b".1", 100000), (b".123456", 123456), (b".000001", 1), (b"", 0)):
        got = text(TIMESTAMP, [b"2026-11-15 05:38:00" + fraction]).to_pylist()
        assert got == [datetime(2026, 11, 15, 5, 38, 0, us)]  # noqa: DTZ001


TAILS = {DATE: b"", TIMESTAMP: b" 00:00:00", TIMESTAMPTZ: b" 00:00:00+00"}


@pytest.mark.parametrize("oid", TAILS)
def test_values_that_spark_cannot_hold(text: Decode, binary: Decode, oid: int) -> None:
    tail = TAILS[oid]
    for value in (b"infinity", b"-infinity"):
        with pytest.raises(BadValueError, match="infinity") as caught:
            text(oid, [b"2000-01-01" + tail, value])
        assert caught.value.row == 1
    for value in (b"0044-03-15" + tail + b" BC", b"10000-01-01" + tail, b"294276-12-31" + tail, b"0000-01-01" + tail):
        with pytest.raises(BadValueError, match="0001 to 9999"):
            text(oid, [value])
    form, unit = (">i", 1) if oid == DATE else (">q", 86_400_000_000)
    bits = 31 if oid == DATE else 63
    for count in (2**bits - 1, -(2**bits)):
        with pytest.raises(BadValueError, match="infinity"):
            binary(oid, [struct.pack(form, count)])
    least, most = -730119 * unit, 2921940 * unit - 1
    assert len(binary(oid, [struct.pack(form, least), struct.pack(form, most)])) == 2
    for count in (least - 1, most + 1, 2**bits - 2, -(2**bits) + 1):
        with pytest.raises(BadValueError, match="0001 to 9999"):
            binary(oid, [struct.pack(form, count)])


def test_offset_may_leave_the_calendar(text: Decode) -> None:
    for value in (b"0001-01-01 00:00:00+01", b"9999-12-31 23:59:59-01"):
        with pytest.raises(BadValueError, match="0001 to 9999"):
            text(TIMESTAMPTZ, [value])


BAD_DATES = (
    b"|2026|2026-1-1|2026-13-01|2026-00-01|2026-01-00|2026-02-29|1900-02-29|2026-04-31|2026/01/01|01-02-2026"
    b"|202a-01-01|2026-01-01x|Infinity|infinitx|today|--------------"
)
BAD_TIMES = (
    b"|2026-01-01|2026-01-01T00:00:00|2026-01-01 24:00:00|2026-01-01 00:60:00|2026-01-01 00:00:60|2026-01-01 00:00:00."
    b"|2026-01-01 00:00:00.1234567|2026-01-01 0:00:00|2026-01-01 00:00:00 |2026-01-01 00-00-00|2026-02-30 00:00:00"
)
BAD_ZONES = b"|+|+0|+000|+00:|+00:0|+00:000|+00:60|+00:00:60|+16|Z| UTC|+00:00:00x|+0a|*00|.5"


@pytest.mark.parametrize("bad", BAD_DATES.split(b"|"))
def test_malformed_dates(text: Decode, bad: bytes) -> None:
    for oid, tail in TAILS.items():
        with pytest.raises(BadValueError, match="malformed") as caught:
            text(oid, [None, bad + tail])
        assert caught.value.row == 1


@pytest.mark.parametrize("bad", BAD_TIMES.split(b"|"))
def test_malformed_times(text: Decode, bad: bytes) -> None:
    for oid, tail in ((TIMESTAMP, b""), (TIMESTAMPTZ, b"+00")):
        with pytest.raises(BadValueError, match="malformed"):
            text(oid, [bad + tail])


@pytest.mark.parametrize("bad", BAD_ZONES.split(b"|"))
def test_malformed_zones(text: Decode, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed"):
        text(TIMESTAMPTZ, [b"2026-01-01 00:00:00" + bad])
    if bad and bad != b".5":
        with pytest.raises(BadValueError, match="malformed"):
            text(TIMESTAMP, [b"2026-01-01 00:00:00" + bad])


@pytest.mark.parametrize("oid", TAILS)
@pytest.mark.parametrize("size", [0, 3, 5, 7, 9])
def test_wrong_width(binary: Decode, oid: int, size: int) -> None:
    with pytest.raises(BadValueError, match="length"):
        binary(oid, [bytes(size)])

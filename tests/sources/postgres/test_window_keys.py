"""Keys as users and Spark pass them, and as Postgres reads them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.sources.database import key_of, printed
from penstock.sources.postgres.snapshot.watermark_windows import KeyColumns


def test_key_is_a_value_a_list_or_an_object() -> None:
    assert key_of(7, ["id"]) == ("7",)
    assert key_of([7], ["id"]) == ("7",)
    assert key_of({"b": 2, "a": "x"}, ["a", "b"]) == ("x", "2")
    assert key_of(["x", 2], ["a", "b"]) == ("x", "2")


@pytest.mark.parametrize("given", [None, [], [1, 2], {"other": 1}, {"id": 1, "b": 2}, [None], [[1]], {"id": {}}])
def test_invalid_key_is_rejected_with_an_example(given: Any) -> None:
    with pytest.raises(UsageError, match="id") as caught:
        key_of(given, ["id"])
    assert "[1, 2]" in caught.value.hint


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "boolean"),
        (b"\x00\xff'", "bytea"),
        (Decimal("1.50"), "numeric"),
        (dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC), "timestamptz"),
        (dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC).replace(tzinfo=None), "timestamp"),
        (dt.date(2026, 1, 2), "date"),
        (1.1, "double precision"),
        ('it\'s {0} %s \\ "quoted" \u00e4', "text"),
        (-(2**63), "bigint"),
    ],
)
def test_postgres_reads_printed_keys_back_exactly(database: Any, value: Any, kind: str) -> None:
    columns = KeyColumns(("k",), (kind,))
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE t (k {kind} PRIMARY KEY)")
        connection.execute("INSERT INTO t VALUES (%s)", (value,))
        literal = columns.literal((printed(value),)).as_string(connection)
        assert connection.execute(f"SELECT count(*) FROM t WHERE (k) = {literal}").fetchone() == (1,)
        among = columns.among([(printed(value),)]).as_string(connection)
        assert connection.execute(f"SELECT count(*) FROM t WHERE {among}").fetchone() == (1,)
        upto = columns.between(None, (printed(value),)).as_string(connection)
        assert connection.execute(f"SELECT count(*) FROM t WHERE {upto}").fetchone() == (1,)
        after = columns.between((printed(value),), None).as_string(connection)
        assert connection.execute(f"SELECT count(*) FROM t WHERE {after}").fetchone() == (0,)

"""The output of `penstock sql`: formats of rows, records, timing, transactions."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pytest

from penstock.cli.sql_output import OutputFormat, SqlOutput

COLUMNS = [{"name": "n", "type": "bigint"}, {"name": "n", "type": "string"}]


def query(*rows: list[Any]) -> list[dict[str, Any]]:
    """The messages of a query with two columns of the same name, one row in each message."""
    head = {"query": "1", "columns": COLUMNS, "positions": {}}
    done = {"done": True, "rows": len(rows), "truncated": False, "seconds": 0.1}
    return [head, *({"rows": [row]} for row in rows), done]


def test_json_has_every_column_and_digit(capsys: pytest.CaptureFixture[str]) -> None:
    nested = {"a": [Decimal("1.50"), None], "é": True}
    SqlOutput(OutputFormat.JSON).print(query([12345678901234567890, 'a"b'], [Decimal("0.10"), nested]))
    assert capsys.readouterr().out.splitlines() == [
        '{"n":12345678901234567890,"n":"a\\"b"}',
        '{"n":0.10,"n":{"a":[1.50,null],"é":true}}',
    ]


def test_csv(capsys: pytest.CaptureFixture[str]) -> None:
    SqlOutput(OutputFormat.CSV).print(query([1, 'a,"b'], [None, [True]]))
    assert capsys.readouterr().out.splitlines() == ["n,n", '1,"a,""b"', ",[true]"]


def test_table_is_as_wide_as_its_values(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    SqlOutput().print(query([1, "x" * 500]))
    lines = capsys.readouterr().out.splitlines()
    assert any("x" * 500 in line for line in lines)
    assert lines[-1] == "1 row"


def test_records(capsys: pytest.CaptureFixture[str]) -> None:
    SqlOutput(expanded=True).print(query([1, "a"], [2, None]))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "RECORD" not in line] == ["n | 1", "n | a", "n | 2", "n | "]
    assert [line.strip("-[] ") for line in lines if "RECORD" in line] == ["RECORD 1", "RECORD 2"]


def test_several_results_and_their_time(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[dict[str, Any]] = [
        {"answer": {"message": "created"}},
        {"answer": {"columns": ["name"], "rows": [["shop"], [None]]}},
    ]
    SqlOutput(OutputFormat.CSV, timing=True).print([*answers, *query([1, "a"])])
    *lines, time = capsys.readouterr().out.splitlines()
    assert lines == ["created", "name", "shop", '""', "n,n", "1,a"]
    assert re.fullmatch(r"Time: [0-9.]+ ms", time)


def test_transactions_of_a_subscription(capsys: pytest.CaptureFixture[str]) -> None:
    change = {
        "op": "insert",
        "ordinal": 0,
        "unchanged": [],
        "before": None,
        "after": {"id": 1, "total": Decimal("1.50")},
    }
    transaction = {"lsn": "0/1", "xid": 7, "committed_at": "2026-01-01T00:00:00Z", "tables": {"public.o": [change]}}
    messages: list[dict[str, Any]] = [{"query": "1", "subscribed": "shop.o"}, {"transaction": transaction}]
    SqlOutput(OutputFormat.JSON).print(messages)
    printed = capsys.readouterr()
    assert json.loads(printed.out, parse_float=Decimal) == transaction
    assert "subscribed to shop.o" in printed.err
    skipped = {"table": "public.o", "position": "0/2", "message": "a column was dropped", "hint": "Retry it."}
    SqlOutput().print([*messages, {"skipped": skipped}])
    printed = capsys.readouterr()
    assert "insert   id: 1, total: 1.50" in printed.out
    assert "skipped: public.o from 0/2: a column was dropped\nhint: Retry it.\n" in printed.err

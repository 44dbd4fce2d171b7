"""`penstock sql`, from the query on: output formats, and errors of invalid queries."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.cli.sql import answer
from penstock.cli.sql_output import OutputFormat
from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.home import Home, open_home

VALUES = "SELECT * FROM VALUES (1, 'a,\"b'), (2, NULL) AS t(n, `[s]`) ORDER BY n"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(tmp_path)


def test_output_formats(spark: SparkSession, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    answer(home, lambda: spark, f"{VALUES};\n", OutputFormat.JSON)
    assert capsys.readouterr().out.splitlines() == ['{"n":1,"[s]":"a,\\"b"}', '{"n":2,"[s]":null}']
    answer(home, lambda: spark, VALUES, OutputFormat.CSV)
    assert capsys.readouterr().out.splitlines() == ["n,[s]", '1,"a,""b"', "2,"]
    answer(home, lambda: spark, VALUES, OutputFormat.TABLE)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["┃", "n", "┃", "[s]", "┃"]
    assert lines[3].split() == ["│", "1", "│", 'a,"b', "│"]
    assert lines[-1] == "2 rows"


@pytest.mark.parametrize(
    ("query", "error_class", "message"),
    [
        ("SELEC 1", UsageError, "PARSE_SYNTAX_ERROR"),
        ("SELECT 'a", UsageError, "unterminated"),
        ("SELECT * FROM shop.orders", UsageError, r"shop.*orders"),
        ("SELECT nothing FROM VALUES (1) AS t(n)", UsageError, "nothing"),
        ("SELECT 1 / (n - 1) FROM VALUES (1) AS t(n)", DefiniteError, "query failed: .*DIVIDE_BY_ZERO"),
        ("SELECT CAST(s AS INT) FROM VALUES ('x') AS t(s)", DefiniteError, "CAST_INVALID_INPUT"),
        ("SELECT id + raise_error('no') FROM range(3)", DefiniteError, "no"),
        (";", UsageError, "contains no statement"),
    ],
)
def test_invalid_queries(
    spark: SparkSession, home: Home, query: str, error_class: type[PenstockError], message: str
) -> None:
    with pytest.raises(error_class, match=f"(?s){message}") as caught:
        answer(home, lambda: spark, query, OutputFormat.JSON)
    assert caught.value.hint
    assert not any(noise in caught.value.message for noise in ("org.apache.spark", "Project", "UnresolvedRelation"))


def test_statements_run_in_order_until_an_error(
    spark: SparkSession, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "SELECT ';' AS a; -- one; more\nSHOW SOURCES; SELECT 2 AS b; SELECT * FROM nowhere; SELECT 3 AS c"
    with pytest.raises(UsageError, match="nowhere"):
        answer(home, lambda: spark, script, OutputFormat.JSON)
    assert capsys.readouterr().out.splitlines() == ['{"a":";"}', '{"b":2}']

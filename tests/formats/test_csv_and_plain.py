"""CSV, text and bytes."""

from __future__ import annotations

from datetime import date

import pytest
from tests.formats.conftest import decoded, problem, rows

from penstock.errors import UsageError
from penstock.formats import BytesFormat, CsvFormat, TextFormat, resolve


def test_fields_quotes_and_line_ends() -> None:
    resolved = resolve(CsvFormat(columns="id BIGINT, s STRING, ok BOOLEAN, x DOUBLE, d DATE"))
    assert rows(
        resolved,
        b"1,a,true,1.5,2020-01-31\r\n",
        b'2,"say ""hi"", you\n",F,,',
        b',"",,,\n',
    ) == [
        {"id": 1, "s": "a", "ok": True, "x": 1.5, "d": date(2020, 1, 31)},
        {"id": 2, "s": 'say "hi", you\n', "ok": False, "x": None, "d": None},
        {"id": None, "s": "", "ok": None, "x": None, "d": None},
    ]


def test_custom_delimiter_and_column_count() -> None:
    resolved = resolve(CsvFormat(columns=2, delimiter=";", quote="'"))
    assert rows(resolved, b"a,b;'c;d'") == [{"column1": "a,b", "column2": "c;d"}]
    assert problem(resolved, b"a") == "CSV: 1 fields, expected 2 (1 byte)"


@pytest.mark.parametrize(("delimiter", "quote"), [("é", '"'), (",,", '"'), ("\n", '"'), ('"', '"'), ("", '"')])
def test_invalid_delimiter_or_quote_is_rejected(delimiter: str, quote: str) -> None:
    with pytest.raises(UsageError, match="two different ASCII characters"):
        CsvFormat(columns=1, delimiter=delimiter, quote=quote)


def test_columns_of_csv_are_flat_and_named() -> None:
    with pytest.raises(UsageError, match="cannot be parsed from text"):
        resolve(CsvFormat(columns="a ARRAY<INT>"))
    with pytest.raises(UsageError, match="must have names"):
        resolve(CsvFormat(columns="BIGINT"))


def test_text_and_bytes() -> None:
    text, raw = resolve(TextFormat()), resolve(BytesFormat())
    assert rows(text, "é".encode(), b"", None) == [{"text": "é"}, {"text": ""}, None]
    assert problem(text, b"a\xff") == "TEXT: value: invalid UTF-8 at byte 1 (2 bytes)"
    assert rows(raw, b"\xff\0", b"", None) == [{"data": b"\xff\0"}, {"data": b""}, None]
    assert decoded(raw).rows.to_pylist() == []

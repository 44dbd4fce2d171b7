"""JSON lines: parsing, and errors of invalid lines."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import DefiniteError
from penstock.sources.files import json_lines
from penstock.sources.files.json_lines import BadLineError, infer, last_line_end, read_lines

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def read(path: Path, start: int = 0, columns: pa.Schema = COLUMNS, *, key: tuple[str, ...] = (), ignore: bool = False):  # type: ignore[no-untyped-def]
    upto = last_line_end(path, start, path.stat().st_size)
    return [row for batch in read_lines(path, start, upto, columns, key, ignore) for row in batch.to_pylist()]


def written(folder: Path, text: bytes) -> Path:
    path = folder / "lines.json"
    path.write_bytes(text)
    return path


def test_complete_lines_are_read_and_an_incomplete_one_waits(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"id": 1, "name": "a"}\n\n{"id": 2}\r\n{"id": 3')
    assert read(path) == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert last_line_end(path, 0, path.stat().st_size) == path.stat().st_size - len(b'{"id": 3')


def test_only_an_incomplete_line(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"id": 3')
    assert last_line_end(path, 0, 8) == 0
    assert read(path) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"id": "x"}', "not JSON, or a value does not match the type of its column"),
        (b'{"id": 99999999999999999999}', "not JSON, or a value does not match"),
        (b'{"id": 1.5}', "not JSON, or a value does not match"),
        (b'{"id": 4, "card": "4242"}', "a field that is not a column"),
        (b'{"id": 4, "id": 5}', "a duplicate field"),
        (b'{"name": "\xff"}', "not valid UTF-8"),
        (b'{"id": 4} {"id": 5}', "is not exactly one JSON object"),
        (b'[{"id": 4}]', "not JSON, or a value does not match"),
        (b"4242", "not JSON, or a value does not match"),
        (b'{"id": 4', "not JSON, or a value does not match"),
        (b'{"name": "4242"}', 'key column "id" is null'),
    ],
)
@pytest.mark.parametrize("index", [0, 1, 417, 998, 999])
def test_invalid_line_is_reported_by_number(tmp_path: Path, line: bytes, why: str, index: int) -> None:
    lines = [b'{"id": %d, "name": "x"}' % number for number in range(1000)]
    lines[index] = line
    with pytest.raises(BadLineError, match=why) as caught:
        read(written(tmp_path, b"\n".join(lines) + b"\n"), key=("id",))
    assert caught.value.line == index + 1
    assert "4242" not in caught.value.why


def test_line_numbers_count_from_the_start_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "_BLOCK", 100)
    path = written(
        tmp_path, b'{"id": 1}\n' * 50 + b'{"id": 1, "name": "%s"}\n' % (b"x" * 300) + b'{"id": 1}\n' * 50 + b"!\n"
    )
    with pytest.raises(BadLineError) as caught:
        read(path)
    assert caught.value.line == 102
    with pytest.raises(BadLineError) as caught:
        read(path, start=len(b'{"id": 1}\n') * 20)
    assert caught.value.line == 102


def test_unknown_fields_may_be_ignored(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"id": 1, "other": {"deep": [1]}}\n')
    assert read(path, ignore=True) == [{"id": 1, "name": None}]


def test_dates_times_and_decimals_are_read_exactly(tmp_path: Path) -> None:
    columns = pa.schema(
        [("d", pa.date32()), ("t", pa.timestamp("us", "UTC")), ("n", pa.decimal128(20, 2)), ("b", pa.bool_())]
    )
    line = b'{"d": "2026-02-03", "t": "2026-02-03T04:05:06.000007+01:00", "n": 123456789012345678.25, "b": true}\n'
    (row,) = read(written(tmp_path, line), columns=columns)
    assert [str(value) for value in row.values()] == [
        *("2026-02-03", "2026-02-03 03:05:06.000007+00:00", "123456789012345678.25", "True"),
    ]
    for bad in (b'{"d": "2026-02-30"}\n', b'{"n": 0.125}\n', b'{"t": "2026-02-03T04:05:06.0000007Z"}\n'):
        with pytest.raises(BadLineError):
            read(written(tmp_path, bad), columns=columns)


def test_columns_are_inferred_from_existing_lines(tmp_path: Path) -> None:
    first = written(tmp_path, b'{"id": 1, "at": "2026-01-01T00:00:00Z", "n": 1}\n')
    second = tmp_path / "second.json"
    second.write_bytes(b'{"id": 2, "n": 1.5, "tags": ["a"], "deep": {"at": "2026-01-01"}}\n{"unfinis')
    assert infer([first, second]) == pa.schema(
        [
            *(("id", pa.int64()), ("at", pa.string()), ("n", pa.float64())),
            *(("tags", pa.list_(pa.string())), ("deep", pa.struct([("at", pa.string())]))),
        ]
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "contain no lines"),
        (b'{"id": 1', "contain no lines"),
        (b'{"id": null}\n', 'field "id": it has no value'),
        (b'{"id": 1}\n{"id": "x"}\n', "the types of a field differ between lines"),
        (b"secret\n", "not one JSON object"),
    ],
)
def test_columns_that_cannot_be_inferred_are_rejected(tmp_path: Path, text: bytes, why: str) -> None:
    with pytest.raises(DefiniteError, match=why) as caught:
        infer([written(tmp_path, text)])
    assert "COLUMNS" in caught.value.hint
    assert "secret" not in str(caught.value)

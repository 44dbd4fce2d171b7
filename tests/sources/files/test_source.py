"""A folder as a source: its options in Python and SQL, and the errors of a folder that cannot be read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.sources.files.options import given_columns
from penstock.sources.files.source import FileConfig, FileSource
from penstock.sources.load_generator.source import LoadSource
from penstock.sql.grammar import parse
from penstock.sql.statements import CreateSource, written_source

KINDS = {kind.NAME: kind for kind in (FileSource, LoadSource)}


@pytest.mark.parametrize(
    ("statement", "source"),
    [
        (
            "CREATE SOURCE e FROM FILE PATH '/data/e' FORMAT JSON KEY (id, \"odd name\")"
            ' COLUMNS (id bigint, "odd name" decimal(10, 2), t timestamp)'
            " WITH (poll interval = '2 s', unknown fields = ignore, pattern = '*.json', retain history = '2 days')",
            FileSource.of(
                "e",
                path="/data/e",
                format="json",
                key=("id", "odd name"),
                columns=("id bigint", "odd name decimal(10, 2)", "t timestamp"),
                poll_interval="2 s",
                unknown_fields="ignore",
                pattern="*.json",
                retain_history="2 days",
            ),
        ),
        ("CREATE SOURCE e FROM FILE PATH '/e' FORMAT PARQUET", FileSource.of("e", path="/e", format="parquet")),
        (
            "CREATE SOURCE b FROM LOAD GENERATOR BANK WITH (rate = 0.5, seed = 7, accounts = 3, transactions = 10)",
            LoadSource.of("b", bank=True, rate=0.5, seed=7, accounts=3, transactions=10),
        ),
        ("CREATE SOURCE a FROM LOAD GENERATOR AUCTION", LoadSource.of("a", auction=True)),
    ],
)
def test_statements_round_trip(statement: str, source: Any) -> None:
    parsed = parse(statement, KINDS)
    assert isinstance(parsed, CreateSource)
    assert type(source).from_options(parsed.name, parsed.sql_options, parsed.with_options) == source
    written = written_source(source.name, source.NAME, source.sql_options(), source.with_options())
    assert parse(written, KINDS) == parsed


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"path": "data"}, "is not absolute"),
        ({"path": "/x", "format": "csv"}, "format"),
        ({"path": "/x", "columns": ("id",)}, "invalid column definition 'id'"),
        ({"path": "/x", "columns": ("id bigints",)}, "invalid column definition 'id bigints'"),
        ({"path": "/x", "columns": ("id decimal(39, 1)",)}, "invalid column definition"),
        ({"path": "/x", "format": "parquet", "columns": ("id bigint",)}, "COLUMNS cannot be combined with FORMAT"),
        ({"path": "/x", "poll_interval": "soon"}, "invalid duration"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        FileSource.of("events", **{"format": "json", **options})


def test_column_definitions() -> None:
    assert given_columns(("id bigint", "a b decimal(5, 0)", "d date")) == pa.schema(
        [("id", pa.int64()), ("a b", pa.decimal128(5, 0)), ("d", pa.date32())]
    )


def test_folder_without_readable_files_is_rejected(tmp_path: Path) -> None:
    source = FileSource.of("events", path=str(tmp_path / "gone"), format="parquet")
    with pytest.raises(TransientError, match="could not read folder"):
        source.create_instances(1)
    assert not source.check().ready
    (tmp_path / "gone").mkdir()
    with pytest.raises(UsageError, match="no complete Parquet file"):
        source.create_instances(1)
    assert [finding.hint for finding in source.check().findings] == ["Add a file first."]
    (tmp_path / "gone" / "1").write_bytes(b"PAR1....PAR1")
    with pytest.raises(DefiniteError, match="as Parquet"):
        source.create_instances(1)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "gone" / "0")
    assert source.check().ready


def test_file_name_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff.json", os.O_CREAT))
    (tmp_path / "a.json").write_text('{"id": 1}\n')
    with pytest.raises(DefiniteError, match="whose name is not valid UTF-8"):
        FileSource.of("events", path=str(tmp_path), format="json").create_instances(1)
    assert FileSource.of("events", path=str(tmp_path), format="json", pattern="[a-z]*").create_instances(1)


def test_check_of_an_existing_source_needs_only_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"id": 1}\n')
    source = FileSource.of("events", path=str(tmp_path), format="json")
    (config,) = source.create_instances(4)
    (tmp_path / "a.json").unlink()
    assert not source.check().ready
    assert source.check(config).ready
    assert FileConfig.model_validate_json(config.model_dump_json()) == config
    slower = FileSource.of("events", path=str(tmp_path), format="json", poll_interval="1 min", retain_history="2 h")
    assert (config.altered(slower).poll_interval, config.altered(slower).retain_history) == ("1 min", "2 h")

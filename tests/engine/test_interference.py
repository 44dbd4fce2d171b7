"""Foreign writes to the watermark table: the source stops, earlier changes are captured, and it can be resumed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.conftest import Database

from penstock.catalog.store import Catalog
from penstock.errors import DefiniteError
from penstock.home import Home, open_home
from penstock.layout import catalog_path
from penstock.model import TableName
from penstock.sql.show_statements import Answer
from penstock.testing.waiting import PATIENCE, until


@pytest.fixture
def home(database: Database, tmp_path: Path) -> Home:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    home = open_home(tmp_path / "home")
    home.create(database.url, "shop", watermarks="table")
    return home


def captured_ids(home: Home) -> list[int]:
    with closing(Catalog(catalog_path(home.path)).log("shop").reader()) as log:
        frontiers = log.frontiers()
        extent = log.extent(TableName("public", "orders"), frontiers.valid, frontiers.durable)
        return [image["row"]["id"] for batch in log.read(extent) for image in batch.to_pylist()]


def start_capture(home: Home) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock.engine.capture_process", str(home.path), "shop"]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


@pytest.mark.parametrize(
    "interference",
    [
        "UPDATE dblog_meta.watermarks SET token = 'foreign'",
        "DELETE FROM dblog_meta.watermarks",
        'UPDATE dblog_meta.watermarks SET token = \'{"v":1,"source":"abcdef0123456789","window":"ab",\'',
    ],
)
def test_interference_stops_the_source_and_can_be_accepted(home: Home, database: Database, interference: str) -> None:
    database.execute("INSERT INTO orders VALUES (1)")
    with start_capture(home) as capture:
        try:
            until(lambda: captured_ids(home) == [1], "the change before the interference")
            database.execute("INSERT INTO orders VALUES (2)")
            database.execute(f"{interference}; INSERT INTO orders VALUES (3)")
            assert capture.wait(PATIENCE) == DefiniteError.exit_code
        finally:
            capture.kill()
    assert captured_ids(home) == [1, 2]
    (source,) = home.status().sources
    assert source.state == "failed"
    assert source.error is not None
    assert "dblog_meta.watermarks" in source.error
    assert source.hint is not None
    assert "ALTER SOURCES shop ACCEPT INTERFERENCE" in source.hint
    answer = home.sql("ALTER SOURCES shop ACCEPT INTERFERENCE")
    assert isinstance(answer, Answer)
    with start_capture(home) as capture:
        try:
            until(lambda: captured_ids(home) == [1, 2, 3], "the changes after the interference")
        finally:
            capture.kill()
    assert home.status().sources[0].state == "ready"

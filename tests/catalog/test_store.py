"""The catalog: durable, shared by processes, and strict about which files it opens."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.catalog.bases import BaseVersion
from penstock.catalog.progress import CopyProgress
from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.errors import DefiniteError, TableError, TransientError
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn

ORDERS, ITEMS = TableName("public", "orders"), TableName("public", "items")
SCHEMA = TableSchema(ORDERS, pa.schema([("id", pa.int64())]), ("id",))


def source(name: str = "shop") -> SourceRecord:
    return SourceRecord(name, "POSTGRES", "{}", "{}", SourceState.CREATING)


def table(upstream: TableName, name: str = "shop") -> TableRecord:
    return TableRecord(name, upstream, upstream.name, TableState.PENDING)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "home" / "penstock.db")


@pytest.fixture
def shop(catalog: Catalog) -> Catalog:
    catalog.add_sources([(source(), [table(ORDERS), table(ITEMS)])])
    return catalog


def test_state_transitions_of_a_source(shop: Catalog, tmp_path: Path) -> None:
    reopened = Catalog(tmp_path / "home" / "penstock.db")
    assert reopened.source("shop") == source()
    shop.set_source("shop", SourceState.READY, instance='{"a": 1}')
    shop.set_source("shop", SourceState.FAILED, error="broken", hint="fix it")
    record = reopened.source("shop")
    assert record == SourceRecord("shop", "POSTGRES", "{}", '{"a": 1}', SourceState.FAILED, "broken", "fix it")
    shop.set_source("shop", SourceState.READY)
    record = reopened.source("shop")
    assert record is not None
    assert (record.state, record.error, record.hint) == (SourceState.READY, None, None)
    assert reopened.source("other") is None


def test_tables_have_their_own_states(shop: Catalog) -> None:
    shop.set_table("shop", ORDERS, TableState.LIVE)
    shop.set_table("shop", ITEMS, TableState.FAILED, error="broken", hint="fix it")
    items, orders = shop.tables("shop")
    assert (orders.state, orders.error) == (TableState.LIVE, None)
    assert (items.state, items.error, items.hint) == (TableState.FAILED, "broken", "fix it")
    assert shop.tables() == shop.tables("shop")
    assert shop.tables("other") == []


def test_removing_a_source_removes_its_tables_and_bases(shop: Catalog) -> None:
    shop.bases.note("shop", "orders", BaseVersion(0, Lsn(10), SCHEMA))
    shop.add_sources([(source("other"), [table(ORDERS, "other")])])
    shop.remove_source("shop")
    assert [record.name for record in shop.sources()] == ["other"]
    assert [record.source for record in shop.tables()] == ["other"]
    shop.add_sources([(source(), [table(ORDERS)])])
    assert shop.bases.newest("shop", "orders", Lsn(99)) is None


def test_source_is_added_completely_or_not_at_all(catalog: Catalog) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        catalog.add_sources([(source(), [table(ORDERS), table(ORDERS)])])
    assert catalog.sources() == []
    catalog.add_sources([(source(), [])])
    with pytest.raises(sqlite3.IntegrityError):
        catalog.add_sources([(source(), [table(ORDERS)])])
    assert catalog.tables() == []


def test_newest_base_at_or_before_a_position(shop: Catalog) -> None:
    for version, position in ((0, 10), (1, 20), (3, 20), (5, 40)):
        shop.bases.note("shop", "orders", BaseVersion(version, Lsn(position), SCHEMA))
    shop.bases.note("shop", "orders", BaseVersion(5, Lsn(40), SCHEMA))
    bases = {upto: shop.bases.newest("shop", "orders", Lsn(upto)) for upto in (9, 10, 19, 20, 39, 40, 99)}
    assert {upto: base and base.version for upto, base in bases.items()} == {
        9: None,
        10: 0,
        19: 0,
        20: 3,
        39: 3,
        40: 5,
        99: 5,
    }


WRITER = """
import sys
from pathlib import Path
import pyarrow as pa

from penstock.catalog.bases import BaseVersion
from penstock.catalog.store import Catalog
from penstock.model import TableName, TableSchema
from penstock.catalog.states import SourceState
from penstock.positions import Lsn
catalog = Catalog(Path(sys.argv[1]))
SCHEMA = TableSchema(TableName("public", "orders"), pa.schema([("id", pa.int64())]), ("id",))
first = int(sys.argv[2])
for n in range(100):
    catalog.bases.note("shop", "orders", BaseVersion(first + 2 * n, Lsn(first + 2 * n), SCHEMA))
    catalog.set_source("shop", SourceState.READY, error=str(first))
"""


def test_concurrent_writes_of_two_processes(shop: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "home" / "penstock.db"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(first)]) for first in (0, 1)]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert [shop.bases.newest("shop", "orders", Lsn(upto)) for upto in range(200)] == [
        BaseVersion(n, Lsn(n), SCHEMA) for n in range(200)
    ]


def test_concurrent_creation_by_three_processes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "penstock.db"
    program = (
        f"from penstock.catalog.store import Catalog; from pathlib import Path; Catalog(Path({str(path)!r})).sources()"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [maker.wait() for maker in processes] == [0, 0, 0]


def test_newer_version_is_rejected(tmp_path: Path, catalog: Catalog) -> None:
    path = tmp_path / "home" / "penstock.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(DefiniteError, match="newer Penstock") as caught:
        Catalog(path)
    assert "Upgrade" in caught.value.hint


def test_foreign_file_is_rejected_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "penstock.db"
    path.write_bytes(b"this is somebody's novel" * 100)
    with pytest.raises(DefiniteError, match="not a Penstock catalog") as caught:
        Catalog(path)
    assert "--home" in caught.value.hint
    assert path.read_bytes() == b"this is somebody's novel" * 100


def test_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    with pytest.raises(DefiniteError, match="home") as caught:
        Catalog(tmp_path / "home" / "penstock.db")
    assert "--home" in caught.value.hint


def test_catalog_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "penstock.db").mkdir()
    with pytest.raises(DefiniteError, match="cannot be") as caught:
        Catalog(tmp_path / "penstock.db")
    assert caught.value.hint


def test_full_disk(shop: Catalog, tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from penstock.catalog.store import Catalog
from penstock.catalog.states import SourceState
from penstock.errors import DefiniteError, TransientError
catalog = Catalog(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    catalog.set_source("shop", SourceState.READY, instance="x" * 1_000_000)
except DefiniteError as error:
    print(error)
"""
    path = tmp_path / "home" / "penstock.db"
    output = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert "full or failing" in output
    assert shop.source("shop") == source()


def test_late_report_does_not_change_a_source_that_is_being_dropped(shop: Catalog) -> None:
    """A capture process may outlive its parent briefly, and still report a state."""
    shop.set_source("shop", SourceState.READY)
    record = shop.source("shop")
    assert record is not None
    assert record.state is SourceState.CREATING  # only create sets the source to ready, together with the instance
    shop.set_source("shop", SourceState.READY, instance="{}")
    shop.set_source("shop", SourceState.DROPPING)
    for state in (SourceState.READY, SourceState.FAILED, SourceState.CREATING):
        shop.set_source("shop", state, error="late")
        shop.set_source("shop", state, error="late", instance="{}")
    record = shop.source("shop")
    assert record is not None
    assert (record.state, record.error) == (SourceState.DROPPING, None)


def test_debts(shop: Catalog) -> None:
    shop.remove_source("shop", ("POSTGRES", '{"slot": "s"}', Lsn(7)))
    (debt,) = shop.debts()
    assert (debt.source, debt.kind, debt.durable, debt.error) == ("shop", "POSTGRES", Lsn(7), None)
    assert debt.instance == '{"slot": "s"}'
    shop.defer(debt, "no answer")
    assert shop.debts()[0].error == "no answer"
    shop.settle(debt)
    assert (shop.debts(), shop.sources()) == ([], [])


def test_concurrent_change_of_a_spec_is_rejected(shop: Catalog) -> None:
    shop.set_source("shop", SourceState.READY, instance="{}")
    shop.alter({"shop": ("{}", '{"a": 1}')})
    with pytest.raises(TransientError, match="changed concurrently"):
        shop.alter({"shop": ("{}", '{"a": 2}')})
    record = shop.source("shop")
    assert record is not None
    assert record.spec == '{"a": 1}'
    shop.begin_drop(["shop"])
    with pytest.raises(TransientError, match="changed concurrently"):
        shop.alter({"shop": ('{"a": 1}', '{"a": 2}')})


def test_several_sources_are_altered_together_or_not_at_all(shop: Catalog) -> None:
    shop.add_sources([(source("other"), [])])
    shop.mark_created({"shop": "{}", "other": "{}"})
    with pytest.raises(TransientError):
        shop.alter({"other": ("{}", '{"a": 1}'), "shop": ("never its spec", '{"a": 1}')})
    assert [record.spec for record in shop.sources()] == ["{}", "{}"]


def test_drop_that_keeps_tables_keeps_them_when_it_is_retried(shop: Catalog) -> None:
    shop.begin_drop(["shop"], keep_tables=True)
    shop.begin_drop(["shop"])
    record = shop.source("shop")
    assert record is not None
    assert (record.state, record.keep_tables) == (SourceState.DROPPING, True)
    shop.set_source("shop", SourceState.READY, instance="{}")
    assert shop.source("shop") == record


def test_catalog_of_the_first_version_is_migrated(shop: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "home" / "penstock.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            "DROP TABLE debt; DROP TABLE copy_progress; DROP TABLE repair; DROP TABLE error_ahead; DROP TABLE sink;"
            "ALTER TABLE source DROP COLUMN log; ALTER TABLE source DROP COLUMN part_of;"
            "ALTER TABLE source DROP COLUMN shard; ALTER TABLE source DROP COLUMN keep_tables;"
            "ALTER TABLE source DROP COLUMN durable; ALTER TABLE base_version DROP COLUMN memory;"
            "ALTER TABLE source RENAME COLUMN hint TO remedy; ALTER TABLE source_table RENAME COLUMN hint TO remedy;"
            "DROP TABLE kept_base; DROP TABLE row_count; ALTER TABLE source_table DROP COLUMN code;"
            "ALTER TABLE source_table DROP COLUMN reason;"
            "PRAGMA user_version = 1"
        )
    reopened = Catalog(path)
    assert (reopened.debts(), reopened.source("shop")) == ([], source())


def test_error_found_by_a_view_is_kept_until_it_is_cleared_or_the_table_is_retried(shop: Catalog) -> None:
    [table] = [record for record in shop.tables("shop") if record.local == "orders"]
    assert shop.errors_ahead("shop") == {}
    for lsn in (8, 7):
        shop.note_error_ahead(table, TableError("public.orders", Lsn(lsn), f"broken at {lsn}", "Fix it."))
    assert shop.errors_ahead("shop") == {"orders": (Lsn(7), "broken at 7", "Fix it.")}
    shop.note_error_ahead(table, None)
    assert shop.errors_ahead("shop") == {}
    shop.note_error_ahead(table, TableError("public.orders", Lsn(7), "broken", "Fix it."))
    shop.complete_request(table, TableState.PENDING)
    assert shop.errors_ahead("shop") == {}
    shop.note_error_ahead(table, TableError("public.orders", Lsn(7), "broken", "Fix it."))
    shop.remove_source("shop")
    assert shop.errors_ahead("shop") == {}
    shop.note_error_ahead(table, TableError("public.orders", Lsn(7), "broken", "Fix it."))
    assert shop.errors_ahead("shop") == {}


def test_progress_never_decreases_and_totals_are_at_least_the_progress(shop: Catalog) -> None:
    assert shop.progress("shop") == {}
    shop.note_progress("shop", "orders", CopyProgress(waiting="waiting for pid 7"))
    assert shop.progress("shop") == {"orders": CopyProgress(0, 0, 0, 0, "waiting for pid 7")}
    shop.note_progress("shop", "orders", CopyProgress(10, 100, 50, 400))
    shop.note_progress("shop", "orders", CopyProgress(5, 50, 50, 400))
    shop.note_progress("shop", "items", CopyProgress(3, 30, 1, 10))
    assert shop.progress("shop") == {"orders": CopyProgress(10, 100, 50, 400), "items": CopyProgress(3, 30, 3, 30)}
    shop.note_progress("shop", "orders", CopyProgress(60, 500, 50, 400))
    assert shop.progress("shop")["orders"] == CopyProgress(60, 500, 60, 500)
    shop.forget_progress("shop", "orders")
    assert list(shop.progress("shop")) == ["items"]
    shop.forget_progress("shop")
    assert shop.progress("shop") == {}


def test_progress_of_a_dropped_source_is_not_recorded(shop: Catalog) -> None:
    shop.note_progress("shop", "orders", CopyProgress(1, 1, 1, 1))
    shop.remove_source("shop")
    shop.note_progress("shop", "orders", CopyProgress(1, 1, 1, 1))
    assert shop.progress("shop") == {}

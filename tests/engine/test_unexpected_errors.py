"""Unexpected exceptions: shown at their table or source, never with row values; other tables and sources continue."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import shops
from tests.engine.shop import Shop

from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog
from penstock.engine import runner as running_module
from penstock.engine import source_runner
from penstock.engine.source_runner import CaptureSupervisor
from penstock.engine.status_document import SourceStatus, TableStatus
from penstock.engine.table_loops import TableLoops
from penstock.errors import LogCorruptError, TransientError
from penstock.home import Home
from penstock.layout import capture_log_path, catalog_path, defects_path
from penstock.sources.postgres.pgoutput import chunk_builder, decoder
from penstock.sources.postgres.pgoutput.decoder import Decoder
from penstock.sql.show_statements import Answer
from penstock.testing.faults import Faults, FaultyTables
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until

SETUP = "CREATE TABLE good (id int PRIMARY KEY); CREATE TABLE bad (id int PRIMARY KEY, body text)"
SECRET = "the value of a row"


def unexpected_error() -> RuntimeError:
    return RuntimeError(f"unexpected {SECRET}")


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def start_faulty_shop(database: Any, tmp_path: Path, faults: Faults, in_process: None) -> Iterator[Callable[..., Shop]]:
    with shops(tmp_path / "home", database, FaultyTables(MemoryTables(), faults)) as start:
        yield start


def source_of(home: Home, name: str = "shop") -> SourceStatus:
    return next(source for source in home.status().sources if source.name == name)


def table_of(home: Home, name: str) -> TableStatus:
    return next(table for table in source_of(home).tables if table.upstream == f"public.{name}")


def is_shown(error: str | None, kind: str = "RuntimeError at penstock.") -> bool:
    """Whether an error of a kind is shown, without row values."""
    assert SECRET not in (error or "")
    return kind in (error or "")


def test_error_in_apply_of_one_table(start_faulty_shop: Callable[..., Shop], faults: Faults) -> None:
    shop = start_faulty_shop(SETUP)
    with faults.failing("merge.before", unexpected_error, "bad"):
        shop.database.execute("INSERT INTO bad VALUES (1, 'a'); INSERT INTO good VALUES (1)")
        until(lambda: is_shown(table_of(shop.home, "bad").error), "the error in the status")
        bad = table_of(shop.home, "bad")
        assert (bad.state, bad.behind) == ("live", 1), "the applied rows stay readable"
        assert "defect in Penstock" in (bad.hint or "")
        assert faults.reached["merge.before"] >= 5
        shown = shop.home.sql("SHOW ERRORS")
        assert isinstance(shown, Answer)
        assert [row[0] for row in shown.rows] == ["shop.bad"]
        shop.database.execute("INSERT INTO good VALUES (2)")
        until(lambda: table_of(shop.home, "good").behind == 0, "the other table to continue")
        assert shop.equal()
    until(lambda: table_of(shop.home, "bad").behind == 0, "apply to resume without the fault")
    until(lambda: table_of(shop.home, "bad").error is None, "the error to be cleared")
    assert shop.equal()
    written = defects_path(shop.home.path, "shop").read_text()
    assert "applying public.bad" in written and "penstock.engine.table_loops" in written
    assert SECRET not in written
    shop.running.check()


def test_upstream_error_is_shown_although_apply_fails(start_faulty_shop: Callable[..., Shop], faults: Faults) -> None:
    """The error of the table is shown, although earlier changes cannot be merged."""
    shop = start_faulty_shop(SETUP)
    with faults.failing("merge.before", unexpected_error, "bad"):
        shop.database.execute("INSERT INTO bad VALUES (1, 'a')")
        shop.database.execute("ALTER TABLE bad DROP COLUMN body, ADD COLUMN b text; INSERT INTO bad VALUES (2)")
        until(lambda: table_of(shop.home, "bad").state == "failed", "the table to fail")
        assert "its columns changed" in (table_of(shop.home, "bad").error or "")


def test_retry_recovers_a_table(start_faulty_shop: Callable[..., Shop], faults: Faults) -> None:
    shop = start_faulty_shop(SETUP)
    with faults.failing("merge.before", unexpected_error, "bad"):
        shop.database.execute("INSERT INTO bad VALUES (1, 'a')")
        until(lambda: is_shown(table_of(shop.home, "bad").error), "the error in the status")
        shop.home.sql("ALTER SOURCES shop RETRY TABLE public.bad")
        until(lambda: shop.state("bad") == "live" and table_of(shop.home, "bad").error is None, "the new snapshot")
        until(lambda: shop.equal(), "the table to equal upstream")


def test_error_in_the_snapshot_of_one_table(database: Any, tmp_path: Path, faults: Faults, in_process: None) -> None:
    database.execute(f"{SETUP}; INSERT INTO bad VALUES (1, 'a'); INSERT INTO good VALUES (1)")
    home, reported = Home(tmp_path / "home"), list[str]()
    store = FaultyTables(MemoryTables(), faults)
    home.create(database.url, "shop")
    with faults.failing("create.before", unexpected_error, "bad"), home.run(store, reported.append) as running:
        running.wait_live(PATIENCE)  # returns once the error is shown
        bad = table_of(home, "bad")
        assert bad.state == "pending" and is_shown(bad.error)
        assert table_of(home, "good").state == "live"
        assert any("copying public.bad hit an unexpected RuntimeError" in line for line in reported)
    with home.run(store, reported.append) as running:  # without the fault
        until(lambda: table_of(home, "bad").state == "live", "the snapshot")
        assert table_of(home, "bad").error is None
        assert all(verdict.equal for verdict in home.verify(store, "shop"))


def test_error_in_decoding_of_one_table(start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    shop, real = start_shop(SETUP), chunk_builder.build_chunk

    def breaking(changes: Any, shape: Any) -> Any:
        if shape.name.name == "bad":
            raise unexpected_error()
        return real(changes, shape)

    monkeypatch.setattr(decoder, "build_chunk", breaking)
    shop.database.execute("INSERT INTO bad VALUES (1, 'a'); INSERT INTO good VALUES (1)")
    until(lambda: shop.rows("good") == [{"id": 1}], "the other table to continue")
    until(lambda: shop.state("bad") == "failed", "the table to fail")
    assert is_shown(table_of(shop.home, "bad").error)
    monkeypatch.undo()
    shop.home.sql("ALTER SOURCES shop RETRY TABLE public.bad")
    until(lambda: shop.state("bad") == "live" and shop.rows("bad") == [{"id": 1, "body": "a"}], "the table to recover")


def test_error_in_capture_of_a_source(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "decode", lambda *_, **__: _raise(unexpected_error()))
        shop.database.execute("INSERT INTO good VALUES (1)")
        until(lambda: is_shown(source_of(shop.home).error), "the error in the status")
        until(lambda: source_of(shop.home).state == "failed", "the source to fail")
        shown = source_of(shop.home)
        assert is_shown(shown.error) and "times without progress" in (shown.error or "")
        assert "retried automatically" in (shown.hint or "")
        shop.running.check()  # capture is retried, and the tables are readable
    until(lambda: shop.rows("good") == [{"id": 1}], "capture to resume without the fault")
    until(lambda: source_of(shop.home).error is None, "the error to be cleared")
    assert source_of(shop.home).state == "ready"


def _raise(error: BaseException) -> Any:
    raise error


def test_error_in_the_apply_loop_of_a_source(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableLoops, "_is_behind", lambda *_: _raise(unexpected_error()))
        shop.database.execute("INSERT INTO good VALUES (1)")
        until(lambda: is_shown(source_of(shop.home).error), "the error in the status")
        assert "apply of source shop" in (source_of(shop.home).error or "")
    until(lambda: table_of(shop.home, "good").behind == 0, "apply to resume without the fault")
    until(lambda: source_of(shop.home).error is None, "the error to be cleared")


def test_source_with_a_permanent_error_is_shown_while_another_runs(
    database: Any, tmp_path: Path, faults: Faults, in_process: None
) -> None:
    database.execute(SETUP)
    home, store = Home(tmp_path / "home"), FaultyTables(MemoryTables(), faults)
    for name, table in (("shop", "bad"), ("other", "good")):
        home.create(database.url, name, tables=(f"public.{table}",))
    damaged = LogCorruptError("the change log is damaged", "Restore it.")
    with home.run(store) as running, faults.failing("merge.before", lambda: damaged, "bad"):
        running.wait_live(PATIENCE)
        database.execute("INSERT INTO bad VALUES (1, 'a'); INSERT INTO good VALUES (1)")
        until(lambda: source_of(home).state == "failed", "the source to fail")
        assert (source_of(home).error, source_of(home).hint) == (damaged.message, damaged.hint)
        running.check()
        assert source_of(home, "other").error is None
        # Capture reconnects and sets the source to ready.
        Catalog(catalog_path(home.path)).set_source("shop", SourceState.READY)
        until(lambda: source_of(home).error == damaged.message, "the error to be shown again")


def test_loss_of_the_jvm_ends_all_sources(start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when no source has changes."""
    shop = start_shop(SETUP)
    monkeypatch.setattr(running_module, "is_alive", lambda: False)
    with pytest.raises(TransientError, match="JVM has ended"):
        shop.running.check()


def test_error_in_reconcile(start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    shop = start_shop(SETUP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_module, "release_history", lambda *_: _raise(unexpected_error()))
        until(lambda: is_shown(source_of(shop.home).error), "the error in the status")
        shop.database.execute("INSERT INTO good VALUES (1)")
        until(lambda: table_of(shop.home, "good").behind == 0, "apply to continue")
        shop.running.check()
    until(lambda: source_of(shop.home).error is None, "the error to be cleared")


# -- the capture process -----------------------------------------------------------------------------------------------

FAILING_PROGRAM = f"""#!/bin/sh
echo started >> "$0.starts"
test -e "$0.fixed" && exec {sys.executable} "$@"
cat >&2 <<'END'
Traceback (most recent call last):
  File "/some/where/site-packages/penstock/sources/postgres/pgoutput/chunk_builder.py", line 65, in build_chunk
    row = f(x)
pyarrow.lib.ArrowInvalid: {SECRET}
END
exit CODE
"""


@contextmanager
def failing_capture(folder: Path, code: int) -> Iterator[Path]:
    """Replace the capture process by a program that fails until it is fixed."""
    program = folder / "python"
    program.write_text(FAILING_PROGRAM.replace("CODE", str(code)))
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        patch.setattr(source_runner, "_FIRST_PAUSE", 0.01)
        yield program


def test_capture_process_that_fails_repeatedly(database: Any, tmp_path: Path) -> None:
    database.execute(SETUP)
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    with failing_capture(tmp_path, 7) as program:
        capture = CaptureSupervisor(home.path, "shop")
        try:
            until(lambda: source_of(home).state == "failed", "the source to fail")
            shown = source_of(home)
            assert is_shown(
                shown.error, "exit code 7, ArrowInvalid at penstock.sources.postgres.pgoutput.chunk_builder:65"
            )
            assert str(capture_log_path(home.path, "shop")) in (shown.hint or "")
            assert not capture.ended
            Path(f"{program}.fixed").touch()
            database.execute("INSERT INTO good VALUES (1)")
            until(lambda: source_of(home).error is None, "capture to resume and the error to be cleared")
            assert source_of(home).state == "ready"
        finally:
            capture.stop()
    home.drop("shop")


def test_capture_process_that_exits_unasked_is_restarted(database: Any, tmp_path: Path) -> None:
    """For example by SIGTERM, with exit code 0: without a restart, capture would stop silently."""
    database.execute(SETUP)
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    with failing_capture(tmp_path, 0) as program:
        starts = Path(f"{program}.starts")
        starts.touch()
        capture = CaptureSupervisor(home.path, "shop")
        try:
            until(lambda: starts.read_text().count("started") > 2, "a restart")
        finally:
            capture.stop()
    home.drop("shop")


@pytest.mark.parametrize(
    ("code", "printed", "expected"),
    [
        (1, "", "exit code 1"),
        (-9, "", "killed by SIGKILL"),
        (-99, "", "killed by signal 99"),
        (
            1,
            'File "/x/src/penstock/a/b.py", line 3, in f\n  g()\nValueError: 42',
            "exit code 1, ValueError at penstock.a.b:3",
        ),
        (1, 'File "<stdin>", line 1\nno kind', "exit code 1"),
    ],
)
def test_description_of_an_exit(code: int, printed: str, expected: str) -> None:
    assert source_runner.how_it_ended(code, printed) == expected

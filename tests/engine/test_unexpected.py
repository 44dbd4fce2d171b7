"""Exceptions that nobody expected: shown with the table or source they came in, never with values; others go on."""

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
from penstock.engine import supervisor
from penstock.engine.status import SourceStatus, TableStatus
from penstock.engine.supervisor import CaptureSupervisor
from penstock.engine.table_loops import Follower
from penstock.errors import LogCorruptError, TransientError
from penstock.home import Home
from penstock.layout import capture_log_path, catalog_path, defects_path
from penstock.sources.postgres import build, decoder
from penstock.sources.postgres.decoder import Decoder
from penstock.sql.answer import Answer
from penstock.testing.faults import Faults, FaultyTables
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until

TWO = "CREATE TABLE good (id int PRIMARY KEY); CREATE TABLE bad (id int PRIMARY KEY, body text)"
SECRET = "the value of a row"


def surprise() -> RuntimeError:
    return RuntimeError(f"nobody expected {SECRET}")


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def faulty(database: Any, tmp_path: Path, faults: Faults, in_process: None) -> Iterator[Callable[..., Shop]]:
    with shops(tmp_path / "home", database, FaultyTables(MemoryTables(), faults)) as start:
        yield start


def source_of(home: Home, name: str = "shop") -> SourceStatus:
    return next(source for source in home.status().sources if source.name == name)


def table_of(home: Home, name: str) -> TableStatus:
    return next(table for table in source_of(home).tables if table.upstream == f"public.{name}")


def told(error: str | None, kind: str = "RuntimeError at penstock.") -> bool:
    """Whether an error is shown, as what it is, and without values."""
    assert SECRET not in (error or "")
    return kind in (error or "")


def test_apply_of_one_table(faulty: Callable[..., Shop], faults: Faults) -> None:
    made = faulty(TWO)
    with faults.failing("merge.before", surprise, "bad"):
        made.database.execute("INSERT INTO bad VALUES (1, 'a'); INSERT INTO good VALUES (1)")
        until(lambda: told(table_of(made.home, "bad").error), "the error is shown")
        bad = table_of(made.home, "bad")
        assert (bad.state, bad.behind) == ("live", 1), "what is there stays readable"
        assert "defect in Penstock" in (bad.hint or "")
        assert faults.reached["merge.before"] >= 5
        shown = made.home.sql("SHOW ERRORS")
        assert isinstance(shown, Answer)
        assert [row[0] for row in shown.rows] == ["shop.bad"]
        made.database.execute("INSERT INTO good VALUES (2)")
        until(lambda: table_of(made.home, "good").behind == 0, "the other table goes on")
        assert made.equal()
    until(lambda: table_of(made.home, "bad").behind == 0, "it goes on when the cause is gone")
    until(lambda: table_of(made.home, "bad").error is None, "nothing is shown any more")
    assert made.equal()
    written = defects_path(made.home.path, "shop").read_text()
    assert "applying public.bad" in written and "penstock.engine.table_loops" in written
    assert SECRET not in written
    made.running.check()


def test_apply_of_a_table_that_was_dropped_upstream(faulty: Callable[..., Shop], faults: Faults) -> None:
    """Its own error is shown, although what came before cannot be merged."""
    made = faulty(TWO)
    with faults.failing("merge.before", surprise, "bad"):
        made.database.execute("INSERT INTO bad VALUES (1, 'a')")
        made.database.execute("ALTER TABLE bad DROP COLUMN body; INSERT INTO bad VALUES (2)")
        until(lambda: table_of(made.home, "bad").state == "failed", "the table has failed")
        assert "its columns changed" in (table_of(made.home, "bad").error or "")


def test_a_retry_brings_a_table_back(faulty: Callable[..., Shop], faults: Faults) -> None:
    made = faulty(TWO)
    with faults.failing("merge.before", surprise, "bad"):
        made.database.execute("INSERT INTO bad VALUES (1, 'a')")
        until(lambda: told(table_of(made.home, "bad").error), "the error is shown")
        made.home.sql("ALTER SOURCES shop RETRY TABLE public.bad")
        until(lambda: made.state("bad") == "live" and table_of(made.home, "bad").error is None, "it was copied afresh")
        until(lambda: made.equal(), "it is as it is upstream")


def test_copy_of_one_table(database: Any, tmp_path: Path, faults: Faults, in_process: None) -> None:
    database.execute(f"{TWO}; INSERT INTO bad VALUES (1, 'a'); INSERT INTO good VALUES (1)")
    home, said = Home(tmp_path / "home"), list[str]()
    store = FaultyTables(MemoryTables(), faults)
    home.create(database.url, "shop")
    with faults.failing("create.before", surprise, "bad"), home.run(store, said.append) as running:
        running.wait_live(PATIENCE)  # no longer than until the error is shown
        bad = table_of(home, "bad")
        assert bad.state == "pending" and told(bad.error)
        assert table_of(home, "good").state == "live"
        assert any("copying public.bad hit an unexpected RuntimeError" in line for line in said)
    with home.run(store, said.append) as running:  # the cause is gone
        until(lambda: table_of(home, "bad").state == "live", "it is copied")
        assert table_of(home, "bad").error is None
        assert all(verdict.equal for verdict in home.verify(store, "shop"))


def test_decoding_of_one_table(shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = shop(TWO), build.build

    def breaking(changes: Any, shape: Any) -> Any:
        if shape.name.name == "bad":
            raise surprise()
        return real(changes, shape)

    monkeypatch.setattr(decoder, "build", breaking)
    made.database.execute("INSERT INTO bad VALUES (1, 'a'); INSERT INTO good VALUES (1)")
    until(lambda: made.rows("good") == [{"id": 1}], "the other table goes on")
    until(lambda: made.state("bad") == "failed", "the table has failed")
    assert told(table_of(made.home, "bad").error)
    monkeypatch.undo()
    made.home.sql("ALTER SOURCES shop RETRY TABLE public.bad")
    until(lambda: made.state("bad") == "live" and made.rows("bad") == [{"id": 1, "body": "a"}], "it is back")


def test_capture_of_a_source(shop: Callable[..., Shop]) -> None:
    made = shop(TWO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "decode", lambda *_, **__: _raise(surprise()))
        made.database.execute("INSERT INTO good VALUES (1)")
        until(lambda: told(source_of(made.home).error), "the error is shown")
        until(lambda: source_of(made.home).state == "failed", "the source has failed")
        shown = source_of(made.home)
        assert told(shown.error) and "times without getting on" in (shown.error or "")
        assert "tried again by itself" in (shown.hint or "")
        made.running.check()  # it is tried again, and what is there can be read
    until(lambda: made.rows("good") == [{"id": 1}], "capture goes on when the cause is gone")
    until(lambda: source_of(made.home).error is None, "nothing is shown any more")
    assert source_of(made.home).state == "ready"


def _raise(error: BaseException) -> Any:
    raise error


def test_the_loop_of_a_source(shop: Callable[..., Shop]) -> None:
    made = shop(TWO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Follower, "_is_behind", lambda *_: _raise(surprise()))
        made.database.execute("INSERT INTO good VALUES (1)")
        until(lambda: told(source_of(made.home).error), "the error is shown")
        assert "apply of source shop" in (source_of(made.home).error or "")
    until(lambda: table_of(made.home, "good").behind == 0, "apply goes on when the cause is gone")
    until(lambda: source_of(made.home).error is None, "nothing is shown any more")


def test_a_source_that_stops_says_so_while_another_runs(
    database: Any, tmp_path: Path, faults: Faults, in_process: None
) -> None:
    database.execute(TWO)
    home, store = Home(tmp_path / "home"), FaultyTables(MemoryTables(), faults)
    for name, table in (("shop", "bad"), ("other", "good")):
        home.create(database.url, name, tables=(f"public.{table}",))
    damaged = LogCorruptError("the change log is damaged", "Restore it.")
    with home.run(store) as running, faults.failing("merge.before", lambda: damaged, "bad"):
        running.wait_live(PATIENCE)
        database.execute("INSERT INTO bad VALUES (1, 'a'); INSERT INTO good VALUES (1)")
        until(lambda: source_of(home).state == "failed", "the source has failed")
        assert (source_of(home).error, source_of(home).hint) == (damaged.message, damaged.hint)
        running.check()
        assert source_of(home, "other").error is None
        # Capture connects again, and takes the source for ready.
        Catalog(catalog_path(home.path)).set_source("shop", SourceState.READY)
        until(lambda: source_of(home).error == damaged.message, "it is shown again")


def test_spark_that_is_gone_ends_all_sources(shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when nothing happens in any of them."""
    made = shop(TWO)
    monkeypatch.setattr(running_module, "is_alive", lambda: False)
    with pytest.raises(TransientError, match="JVM has ended"):
        made.running.check()


def test_what_breaks_while_wishes_are_carried_out(shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    made = shop(TWO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_module, "release_history", lambda *_: _raise(surprise()))
        until(lambda: told(source_of(made.home).error), "the error is shown")
        made.database.execute("INSERT INTO good VALUES (1)")
        until(lambda: table_of(made.home, "good").behind == 0, "apply goes on")
        made.running.check()
    until(lambda: source_of(made.home).error is None, "nothing is shown any more")


# -- the process of capture --------------------------------------------------------------------------------------------

DYING = f"""#!/bin/sh
echo started >> "$0.starts"
test -e "$0.mended" && exec {sys.executable} "$@"
cat >&2 <<'END'
Traceback (most recent call last):
  File "/some/where/site-packages/penstock/sources/postgres/build.py", line 65, in build
    row = f(x)
pyarrow.lib.ArrowInvalid: {SECRET}
END
exit CODE
"""


@contextmanager
def dying(folder: Path, code: int) -> Iterator[Path]:
    """Let capture be a process that dies until it is mended."""
    program = folder / "python"
    program.write_text(DYING.replace("CODE", str(code)))
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        patch.setattr(supervisor, "_FIRST_PAUSE", 0.01)
        yield program


def test_a_capture_that_dies_again_and_again(database: Any, tmp_path: Path) -> None:
    database.execute(TWO)
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    with dying(tmp_path, 7) as program:
        capture = CaptureSupervisor(home.path, "shop")
        try:
            until(lambda: source_of(home).state == "failed", "the source has failed")
            shown = source_of(home)
            assert told(shown.error, "exit code 7, ArrowInvalid at penstock.sources.postgres.build:65")
            assert str(capture_log_path(home.path, "shop")) in (shown.hint or "")
            assert not capture.ended
            Path(f"{program}.mended").touch()
            database.execute("INSERT INTO good VALUES (1)")
            until(lambda: source_of(home).error is None, "it goes on, and nothing is shown any more")
            assert source_of(home).state == "ready"
        finally:
            capture.stop()
    home.drop("shop")


def test_a_capture_that_ends_unasked_is_started_again(database: Any, tmp_path: Path) -> None:
    """SIGTERM, for one, ends it well: nobody would capture any more, and nobody would say so."""
    database.execute(TWO)
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    with dying(tmp_path, 0) as program:
        starts = Path(f"{program}.starts")
        starts.touch()
        capture = CaptureSupervisor(home.path, "shop")
        try:
            until(lambda: starts.read_text().count("started") > 2, "it is started again")
        finally:
            capture.stop()
    home.drop("shop")


@pytest.mark.parametrize(
    ("code", "printed", "said"),
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
def test_how_a_process_ended(code: int, printed: str, said: str) -> None:
    assert supervisor.how_it_ended(code, printed) == said

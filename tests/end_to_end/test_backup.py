"""Backup and restore: a restored home resumes, or stops with the reason. No change is lost silently."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from penstock.demo.load import Load
from penstock.errors import DefiniteError
from penstock.home import Home, open_home
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE, until
from tests.cli.commands import penstock
from tests.conftest import Database
from tests.end_to_end.conftest import Penstock

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1500)]

LOST = "the changes in between are lost"


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute("CREATE TABLE public.orders (id bigint PRIMARY KEY, total int NOT NULL)")
    database.execute("INSERT INTO public.orders SELECT id, 0 FROM generate_series(1, 100) AS id")
    return database


def change(database: Database) -> None:
    """Change every row, add one and remove one."""
    database.execute("UPDATE public.orders SET total = total + 1")
    database.execute("INSERT INTO public.orders SELECT max(id) + 1, 0 FROM public.orders")
    database.execute("DELETE FROM public.orders WHERE id = (SELECT min(id) FROM public.orders)")


def run_until_captured(home: Home, spark: SparkSession, database: Database, source: str = "shop") -> None:
    """Run the home until its log has all changes, compare all rows with Postgres, and stop."""
    with home.run(spark) as running:
        running.wait_live(PATIENCE)
        end = Lsn.parse(database.execute("SELECT pg_current_wal_lsn()::text")[0][0])

        def captured() -> bool:
            running.check()
            return home.frontiers(source).durable >= end

        until(captured, f"the log to reach {end}")
        verdicts = home.verify(spark, source)
        assert verdicts
        assert all(verdict.equal for verdict in verdicts), verdicts
        running.stop()


def copied(home: Path, copy: Path) -> Path:
    """Copy a home; the socket of its server belongs to the process, not to the backup."""
    shutil.copytree(home, copy, symlinks=True, ignore=shutil.ignore_patterns("server.sock"))
    return copy


def test_a_stopped_home_resumes_elsewhere(shop: Database, spark: SparkSession, tmp_path: Path) -> None:
    """Nothing ran after the backup, so the slot still has all changes after it."""
    original = open_home(tmp_path / "original")
    original.create(shop.url, "shop")
    run_until_captured(original, spark, shop)
    backup = copied(original.path, tmp_path / "backup")
    shutil.rmtree(original.path)
    change(shop)
    restored = open_home(backup)
    assert restored.check("shop").ready
    run_until_captured(restored, spark, shop)
    restored.drop("shop")


def test_a_backup_older_than_the_slot_stops(shop: Database, spark: SparkSession, tmp_path: Path) -> None:
    """Changes after the backup were confirmed, so the server does not send them again."""
    home = open_home(tmp_path / "home")
    home.create(shop.url, "shop")
    run_until_captured(home, spark, shop)
    backup = copied(home.path, tmp_path / "backup")
    change(shop)
    run_until_captured(home, spark, shop)
    shutil.rmtree(home.path)
    backup.rename(home.path)

    restored = open_home(home.path)
    checked = penstock("check", "shop", "--home", home.path)
    assert (checked.code, LOST in checked.out) == (1, True), checked.out + checked.err
    with pytest.raises(DefiniteError, match=LOST) as caught, restored.run(spark) as running:
        until(running.check, "the source to stop")
    assert "--force" in caught.value.hint
    (source,) = restored.status().sources
    assert (source.state, LOST in str(source.error)) == ("failed", True)
    rows = restored.live(spark).table("shop.orders")
    assert (rows.count(), rows.filter("total = 0").count()) == (100, 100), "the tables of the backup"

    penstock("drop", "shop", "--home", home.path).assert_error(3)
    forced = penstock("drop", "shop", "--force", "--home", home.path)
    assert forced.code == 0, forced.err
    statements = re.findall(r"^-- ((?:SELECT|DROP) .*;)$", forced.out, re.MULTILINE)
    assert len(statements) == 2, forced.out
    for statement in statements:
        shop.execute(statement)
    again = open_home(home.path)
    again.create(shop.url, "shop")
    run_until_captured(again, spark, shop)
    again.drop("shop")


def test_an_atomic_copy_of_a_running_home_resumes(
    shop_and_bank: Database, penstock_run: Penstock, spark: SparkSession, tmp_path: Path
) -> None:
    """A snapshot of the volume, and then the machine is lost: all processes stand still during the copy, and end."""
    penstock_run.options = ("--table=bank.accounts", "--table=bank.transfers")
    penstock_run.start()
    home = open_home(penstock_run.home)

    def live() -> bool:
        penstock_run.require_running()
        sources = home.status().sources
        return bool(sources and sources[0].tables) and all(table.state == "live" for table in sources[0].tables)

    until(live, f"live tables: see {penstock_run.output}")
    with Load(shop_and_bank.url, rate=30):
        before = home.frontiers("demo").durable
        until(lambda: home.frontiers("demo").durable > before, "changes")
        assert penstock_run.process is not None
        whole = psutil.Process(penstock_run.process.pid)
        processes = [whole, *whole.children(recursive=True)]
        for process in processes:
            process.suspend()
        try:
            copy = copied(penstock_run.home, tmp_path / "copy")
        finally:
            for process in processes:
                process.kill()
        penstock_run.process.wait()
    until(lambda: penstock_run.capture_pid() is None, "the capture process to end")
    run_until_captured(open_home(copy), spark, shop_and_bank, "demo")

"""A database under capture, for tests of what happens to it while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from penstock.catalog.store import Catalog
from penstock.control.home import Home
from penstock.control.running import Running
from penstock.layout import base_path, catalog_path
from penstock.positions import Lsn

PATIENCE = 240.0


@contextmanager
def running_shop(path: Path, database: Any, spark: SparkSession, made: str, **options: Any) -> Iterator[Shop]:
    """Make tables, capture them as the source `shop`, and run that."""
    database.execute(made)
    home, said = Home(path), list[str]()
    home.create(database.url, "shop", **options)
    with home.run(spark, said.append) as running:
        running.wait_live(PATIENCE)
        yield Shop(home, database, spark, running, said)


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.1)


class Shop:
    """A home with the source `shop`, which runs."""

    def __init__(self, home: Home, database: Any, spark: SparkSession, running: Running, said: list[str]) -> None:
        self.home, self.database, self.spark, self.running, self.said = home, database, spark, running, said
        self.catalog = Catalog(catalog_path(home.path))

    def state(self, table: str) -> str | None:
        """What the status says of a table; None where it does not know it."""
        (source,) = self.home.status().sources
        return next((str(found.state) for found in source.tables if found.upstream == f"public.{table}"), None)

    def equal(self) -> bool:
        """Whether every table that can be compared is as it is upstream, at one position, in Spark."""
        verdicts = [verdict for verdict in self.home.verify(self.spark, "shop") if verdict.error is None]
        assert verdicts
        return all(verdict.equal for verdict in verdicts)

    def columns(self, table: str) -> list[str]:
        """The columns of a live table."""
        return self.home.live(self.spark).table(f"shop.{table}").columns

    def base_columns(self, table: str) -> list[str]:
        """The columns of a base table."""
        return self.spark.read.format("delta").load(str(self.home.path / "lake" / "shop" / table)).columns

    def published(self) -> set[str]:
        """The tables in the publication."""
        return {name for (name,) in self.database.execute("SELECT tablename FROM pg_publication_tables")}

    def plant(self, table: str, change: Callable[[DeltaTable], object]) -> None:
        """Change a base table behind everybody's back, so that live views show it."""
        path = str(base_path(self.home.path, "shop", table).absolute())
        before = self.catalog.bases.newest("shop", table, Lsn((1 << 63) - 1))
        assert before is not None
        delta = DeltaTable.forPath(self.spark, path)
        change(delta)
        version = delta.history(1).select("version").collect()[0][0]
        assert version > before.version
        self.catalog.bases.note("shop", table, type(before)(version, before.position, before.schema))

    @contextmanager
    def writing(self, *statements: str) -> Iterator[None]:
        """Run statements (with one parameter, a number that grows) again and again meanwhile."""
        over = threading.Event()

        def write() -> None:
            with self.database.connect() as connection:
                number = 1_000_000
                while not over.is_set():
                    number += 1
                    for statement in statements:
                        connection.execute(statement, [number])
                    time.sleep(0.01)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

"""How tables begin: capture has to know them before anything is copied; and some need no copy at all.

A source whose instances bring every row by themselves (see `InstanceConfig.copies`) has nothing to copy. Its base
tables are made empty, at the position at which the log begins to tell of them, and apply does the rest.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from contextlib import closing

from pyspark.sql import SparkSession

from penstock.changelog.interface import ChangeLog, LoggedTable
from penstock.control.breaking_off import spark_breaking_off
from penstock.control.followed import FollowedTable
from penstock.control.key_ranges import frame
from penstock.sources.family import ProducedTable

__all__ = ["begin", "wait_until_captured"]

_LOOK_SECONDS = 0.05


def begin(spark: SparkSession, log: ChangeLog, tables: Sequence[FollowedTable], stop: threading.Event) -> None:
    """Make the base tables of a source that needs no copy: empty, where their history begins."""
    if not wait_until_captured(log, tables, stop):
        return
    with closing(log.reader()) as reader:
        logged = reader.tables()
    for table in tables:
        with table.writing, spark_breaking_off(f"the beginning of {table.record.upstream}"):
            if not table.gone and not stop.is_set():
                _create(spark, table, logged[table.record.upstream])
                table.look_up()


def _create(spark: SparkSession, table: FollowedTable, logged: LoggedTable) -> None:
    captured = table.captured
    shutil.rmtree(table.quarantine, ignore_errors=True)
    table.base.schema = captured.table_schema()
    table.base.create(
        frame(spark, table.base.schema.columns.empty_table()),
        logged.valid,
        {"penstock.source": table.record.source},
        captured.comment or "",
        captured.comments(),
        captured.generation,
    )


def wait_until_captured(log: ChangeLog, tables: Sequence[FollowedTable], stop: threading.Event) -> bool:
    """Wait until capture has begun these tables: a copy made before could miss what comes between."""
    with closing(log.reader()) as reader:
        while not stop.is_set():
            logged = reader.tables()
            if all(table.gone or _has_begun(table.captured, logged.get(table.captured.name)) for table in tables):
                return True
            stop.wait(_LOOK_SECONDS)
    return False


def _has_begun(table: ProducedTable, logged: LoggedTable | None) -> bool:
    return logged is not None and logged.generation >= table.generation

"""The names of live tables in Spark sessions: ``spark.table("shop.orders")``, ``SELECT … FROM shop.orders``.

::

    database shop, view orders:   SELECT * FROM penstock_table('shop.orders')      in Spark's catalog, for all sessions
                                                     │
    function penstock_table:      which view (`Live`) does this query read?        in each session
                                  Live.register()   the registered one, until another is registered
                                  penstock run      one per query, as of the time at which its analysis begins, or
                                                    as of the session's setting `penstock.as_of`
                                                     │
                                                     ▼
                                  the plan of Live.table("shop.orders"), as in `Live.sql`

Temporary views cannot have names of two parts, and permanent views cannot read DataFrames; a table function returns any
plan. Spark evaluates it at each analysis of a query, so nothing has to be moved when time goes on, and no query can see
names that were moved in part.

The views exist for `SHOW TABLES`, `DESCRIBE` and all tools that list tables. Their columns follow those of the live
tables (`WITH SCHEMA EVOLUTION`). Writing to a view is an error. Databases and views are in Spark's in-memory catalog:
they end with the Spark application.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.errors import UsageError
from penstock.positions import Lsn
from penstock.spark.query_identity import ByQuery
from penstock.spark.table_function import TableFunction

__all__ = ["AS_OF", "FUNCTION", "LiveNames", "NamedTables", "register_names"]

FUNCTION = "penstock_table"
"""The table function; it also reads tables whose names Spark's catalog does not accept."""
AS_OF = "penstock.as_of"
"""The setting of a session for the time or position at which its queries read live tables."""

_DECLARING = "penstock.declaring"
_ACCEPTED = re.compile(r"[A-Za-z0-9_]+")
"""The names of databases and views that Spark's catalog accepts."""
_SHARED_SECONDS = 10.0
"""Queries that begin within this time share a view, if no transaction was captured between them."""


class NamedTables(Protocol):
    """A view of tables with names: `penstock.live.Live`."""

    @property
    def positions(self) -> Mapping[str, Lsn]:
        """The position of each source."""

    def tables(self) -> list[str]:
        """Return the names of all tables."""

    def columns(self, name: str) -> StructType | None:
        """Return the columns of a table; None if it is not readable yet."""

    def table(self, name: str) -> DataFrame:
        """Return the rows of a table."""


_OpenView = Callable[[str | None], NamedTables]
_LiveOf = Callable[[str], NamedTables]
"""The view that one query reads, by the name of a table."""


def register_names(spark: SparkSession, live: NamedTables) -> None:
    """Let the names of a view's tables resolve to this view in one session, until another view is registered in it."""
    if spark.conf.get("spark.sql.catalogImplementation", None) == "hive":
        message = "live tables cannot be registered in a session with a Hive metastore"
        raise UsageError(message, "Use live.sql(…) and live.table(…), or a session without enableHiveSupport().")
    names = _NAMES.setdefault(spark.sparkContext, _Names())
    names.register(spark, live)
    names.declare(spark, live)


class LiveNames:
    """The names of a home's live tables in all sessions of a Spark application, each query as of its own time.

    Sessions that exist before, other than the given one, do not have them.
    """

    def __init__(self, spark: SparkSession, open_view: _OpenView) -> None:
        """Define the names; `open_view` returns a view as of now, or as of a time or position."""
        self._spark = spark
        self._open_view = open_view
        self._shared: dict[str, tuple[NamedTables, float]] = {}
        self._names = _NAMES.setdefault(spark.sparkContext, _Names())
        self._views = ByQuery(spark, self._view_of_new_query)
        function = self._names.function(spark, self._views)
        function.add_to(spark)
        function.add_to_new_sessions(spark)

    def declare(self, tables: NamedTables) -> None:
        """Bring the views in Spark's catalog in line with the tables of the home; call it again when these change."""
        self._names.declare(self._spark, tables)
        self._names.retire(self._spark, tables.tables())

    def release_ended(self) -> None:
        """Release the views of queries that have ended, and the history that they hold; call it from time to time."""
        self._views.forget_ended()
        self._forget_shared(time.monotonic())

    def _forget_shared(self, now: float) -> None:
        self._shared = {as_of: kept for as_of, kept in self._shared.items() if now < kept[1] + _SHARED_SECONDS}

    def _view_of_new_query(self) -> _LiveOf:
        """Return the view for a query of the session that is active in Spark's thread."""
        jvm: Any = self._spark._jvm
        text = jvm.org.apache.spark.sql.classic.SparkSession.active().conf().get(AS_OF, "")
        live, now = self._open_view(text or None), time.monotonic()
        recent, opened = self._shared.get(text, (live, now))
        if recent.positions != live.positions or now > opened + _SHARED_SECONDS:
            recent, opened = live, now
        self._forget_shared(now)
        self._shared[text] = recent, opened
        return lambda _: recent


class _Names:
    """The databases and views of one Spark application, and the views (`Live`) that are registered in its sessions."""

    def __init__(self) -> None:
        self._columns: dict[str, StructType] = {}
        self._sessions: dict[str, _Registered] = {}
        self._lock = threading.RLock()

    def register(self, spark: SparkSession, live: NamedTables) -> None:
        """Define the function in a session, for one view; tables of other homes keep their names."""
        session = spark._jsparkSession.sessionUUID()
        with self._lock:
            registered = self._sessions.setdefault(session, _Registered())
            registered.add(live)
            self.function(spark, ByQuery(spark, registered.current)).add_to(spark)

    def function(self, spark: SparkSession, lives: ByQuery[_LiveOf]) -> TableFunction:
        """Return the function, which reads a table from the view of the query in which it occurs."""

        def prepare(arguments: Sequence[str]) -> Callable[[], DataFrame]:
            if len(arguments) != 1:
                message = f"{FUNCTION} requires one argument: the name of a table"
                raise UsageError(message, f"For example: SELECT * FROM {FUNCTION}('shop.orders')")
            (name,) = arguments
            if spark.sparkContext.getLocalProperty(_DECLARING) == name:
                return partial(spark.createDataFrame, [], self._columns[name])
            return partial(lives.current()(name).table, name)

        return TableFunction(spark, FUNCTION, prepare)

    def declare(self, spark: SparkSession, live: NamedTables) -> None:
        """Create missing views in Spark's catalog, one for each table, and replace those whose columns changed."""
        with self._lock:
            tables = [name for name in live.tables() if _is_accepted(name)]
            present = _present(spark, {name.split(".", 1)[0] for name in tables})
            for name in tables:
                columns = live.columns(name)
                is_known = name in self._columns and name.lower() in present
                if columns is not None and not (is_known and self._columns[name] == columns):
                    self._columns[name] = columns
                    self._create(spark, name, replace=is_known)

    def retire(self, spark: SparkSession, tables: Sequence[str]) -> None:
        """Drop the views of tables that no longer exist."""
        with self._lock:
            for name in self._columns.keys() - set(tables):
                spark.sql(f"DROP VIEW IF EXISTS {_quoted(name)}")
                del self._columns[name]

    def _create(self, spark: SparkSession, name: str, *, replace: bool) -> None:
        create = "CREATE OR REPLACE VIEW" if replace else "CREATE VIEW"
        spark.sql(f"CREATE DATABASE IF NOT EXISTS `{name.split('.', 1)[0]}`")
        spark.sparkContext.setLocalProperty(_DECLARING, name)
        try:
            spark.sql(f"{create} {_quoted(name)} WITH SCHEMA EVOLUTION AS SELECT * FROM {FUNCTION}('{name}')")
        except AnalysisException as error:
            del self._columns[name]
            if "ALREADY_EXISTS" not in (error.getCondition() or ""):
                raise
            message = f"this Spark application already has another table or view {name}"
            raise UsageError(message, f"Drop it, or read the live table with {FUNCTION}('{name}').") from None
        finally:
            spark.sparkContext.setLocalProperty(_DECLARING, "")


_NAMES: WeakKeyDictionary[SparkContext, _Names] = WeakKeyDictionary()


class _Registered:
    """The views that are registered in one session."""

    def __init__(self) -> None:
        self._lives: dict[str, NamedTables] = {}

    def add(self, live: NamedTables) -> None:
        """Read the tables of a view from it in queries that begin from now on."""
        self._lives = {**self._lives, **dict.fromkeys(map(str.lower, live.tables()), live), "": live}

    def current(self) -> _LiveOf:
        """Return the views for a new query: this does not change when another view is added."""
        lives = self._lives
        return lambda name: lives.get(name.lower(), lives[""])


def _present(spark: SparkSession, databases: Iterable[str]) -> set[str]:
    """Return the tables and views of these databases in Spark's catalog."""
    catalog = spark._jsparkSession.sharedState().externalCatalog()
    found = set()
    for database in (name.lower() for name in databases):
        if catalog.databaseExists(database):
            found |= {f"{database}.{table}" for table in catalog.listTables(database).mkString(",").split(",")}
    return found


def _is_accepted(name: str) -> bool:
    database, _, table = name.partition(".")
    return bool(_ACCEPTED.fullmatch(database) and _ACCEPTED.fullmatch(table))


def _quoted(name: str) -> str:
    database, _, table = name.partition(".")
    return f"`{database}`.`{table}`"

"""The public API of a home: the folder that holds the catalog, the change logs and the base tables of all sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock.engine.as_of import AsOf
from penstock.engine.check import CheckReport, check_database, is_database_url
from penstock.errors import UsageError
from penstock.home_operations import HomeOperations, start_session
from penstock.layout import catalog_path
from penstock.sources.interface import Source
from penstock.sql.show_statements import Answer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.executor import Query, Subscription
    from penstock.tables.interface import TableStore

__all__ = ["Home", "check_target", "open_existing", "open_home", "open_to_run"]


def open_home(path: str | Path = ".penstock") -> Home:
    """Open the home at `path`; create it if it does not exist."""
    return Home(Path(path))


def open_existing(path: Path) -> Home:
    """Open an existing home; raise `UsageError` if there is none, rather than create one by mistake."""
    if not catalog_path(path).exists():
        message = f"there is no home at {path}"
        raise UsageError(message, "Name the home with --home, or create one: penstock run postgresql://…")
    return Home(path)


def open_to_run(path: Path, text: str | None) -> Home:
    """Open the home in which statements run; create it only if one of them is CREATE SOURCES."""
    from penstock.executor import creates

    return Home(path) if text is not None and creates(text) else open_existing(path)


def check_target(path: Path, target: str, **options: Any) -> CheckReport:
    """Check a database, given by its URL, before it is captured, or a source of the home at `path`, given by name."""
    if is_database_url(target):
        return check_database(target, **options)
    if options:
        message = f"options are not allowed with the name of a source: {target}"
        raise UsageError(message, "Omit the options, or give the URL of a database: postgresql://user@host/database")
    if "@" in target or "=" in target:  # a password may be in it
        message = "the target is neither the URL of a database nor the name of a source"
        raise UsageError(message, "Write the URL of a database as postgresql://user@host:5432/database.")
    return open_existing(path).check(target)


class Home(HomeOperations):
    """The sources of one home, with their change logs and tables.

    As a context manager, it releases the history of its live views at the end of the block.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the history that live views of this home retain; do not read them any more."""
        self._views.release()

    def create_missing(self, script: str) -> list[tuple[str, str]]:
        """Create the sources and sinks that the statements describe and this home lacks.

        Return the new ones: ``("source", name)`` or ``("sink", name)``.
        """
        from penstock.executor import create_missing

        return create_missing(self, script)

    def sql(self, text: str, spark: SparkSession | None = None) -> Answer | DataFrame:
        """Execute statements, separated by semicolons; return the result of the last: an answer, or the query's rows.

        A statement is one of Penstock's, or a Spark SQL query over live tables. Spark is started if a statement needs
        it and `spark` is None.
        """
        from penstock.executor import Subscription

        *_, last = self.script(text, lambda: spark or start_session(print))
        if isinstance(last, Answer):
            return last
        if isinstance(last, Subscription):
            message = "SUBSCRIBE has no result in Python"
            raise UsageError(message, f"Use home.tail({last.source!r}), which returns transactions.")
        return last.rows

    def script(
        self,
        text: str,
        spark: Callable[[], SparkSession | TableStore],
        as_of: AsOf | None = None,
        *,
        read_only: bool = False,
    ) -> Iterator[Answer | Query | Subscription]:
        """Execute statements lazily, one for each result that is consumed; `spark` returns the session when needed.

        Each query reads the live tables as of the time at which it runs, or as of `as_of`. With `read_only`, only
        queries and SHOW statements are executed.
        """
        from penstock.executor import execute_all

        return execute_all(self, text, spark, as_of, read_only=read_only)

    def completions(self, text: str) -> list[str]:
        """Return the completions of the last word of a partial statement."""
        from penstock.executor import completions

        return completions(self, text)

    def statement(self, source: str) -> str:
        """Return the CREATE SOURCES statement that recreates a source."""
        from penstock.executor import statement_of

        return statement_of(self.spec(source))

    def sink_statement(self, sink: str) -> str:
        """Return the CREATE SINK statement that recreates a sink."""
        from penstock.executor import sink_statement

        return sink_statement(self.sink_spec(sink))

    def explain(self, source: Source) -> Answer:
        """Return the objects that creating a source would create, upstream and in this home, without creating them."""
        from penstock.executor import explain

        return explain(self.path, [source])

"""What Postgres says while a source is made, changed or removed, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from penstock.errors import AlreadyExistsError, DefiniteError
from penstock.sources.postgres.connection import connection_error

__all__ = ["asking", "preparing"]


@contextmanager
def asking(conninfo: str) -> Iterator[None]:
    """Tell in our words what Postgres says while it is asked."""
    try:
        yield
    except psycopg.Error as error:
        raise connection_error(error, conninfo) from error


@contextmanager
def preparing(source: str, conninfo: str) -> Iterator[None]:
    """Tell in our words what Postgres says while something is made or changed there for a source."""
    try:
        yield
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        if error.sqlstate is None or error.sqlstate.startswith(("08", "57")):
            raise connection_error(error, conninfo) from error
        message = f"Postgres refused to prepare source {source}: {said}"
        refused = AlreadyExistsError if isinstance(error, psycopg.errors.DuplicateObject) else DefiniteError
        raise refused(message, "Mend that upstream, then try again.") from error

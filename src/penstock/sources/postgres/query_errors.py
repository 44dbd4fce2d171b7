"""Translate errors of Postgres, while a source is created, altered or removed, into Penstock's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from penstock.errors import AlreadyExistsError, DefiniteError
from penstock.sources.postgres.connection import connection_error

__all__ = ["translate_errors", "translate_prepare_errors"]


@contextmanager
def translate_errors(conninfo: str) -> Iterator[None]:
    """Translate errors of queries."""
    try:
        yield
    except psycopg.Error as error:
        raise connection_error(error, conninfo) from error


@contextmanager
def translate_prepare_errors(source: str, conninfo: str) -> Iterator[None]:
    """Translate errors of statements that create or alter objects for a source."""
    try:
        yield
    except psycopg.Error as error:
        text = " ".join(str(error).split())
        if error.sqlstate is None or error.sqlstate.startswith(("08", "57")):
            raise connection_error(error, conninfo) from error
        message = f"cannot prepare source {source} in Postgres: {text}"
        error_class = AlreadyExistsError if isinstance(error, psycopg.errors.DuplicateObject) else DefiniteError
        raise error_class(message, "Fix the error on the server, then retry.") from error

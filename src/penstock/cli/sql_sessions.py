"""Where ``penstock sql`` executes statements: in the process that runs the home, or in a Spark of its own.

Both return the same messages (`penstock.result_messages`). The running process is reached over its Unix socket; that
needs neither Spark nor the modules of a home in this process, so a query takes a fraction of the time that they need to
start.
"""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from penstock import errors
from penstock.cli.socket_connection import SocketConnection
from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.as_of import AsOf
    from penstock.home import Home
    from penstock.server.address import Address

__all__ = ["LocalSession", "Message", "RemoteSession", "SqlSession"]

Message = dict[str, Any]
"""A line of a result; numbers with a decimal point or an exponent are `Decimal`, so that no digit is lost."""


class SqlSession(Protocol):
    """Executes statements."""

    def execute(self, text: str) -> Iterator[Message]:
        """Execute statements in order and yield their messages; raise the first error."""
        ...

    def complete(self, text: str) -> list[str]:
        """Return the completions of the last word."""
        ...

    def description(self) -> str:
        """Say where statements are executed."""
        ...


def _parsed(line: str | bytes) -> Message:
    message: Message = json.loads(line, parse_float=Decimal)
    return message


# -- in the running process --------------------------------------------------------------------------------------------


class RemoteSession:
    """The process that runs the home; it keeps a Spark session for this command."""

    def __init__(self, address: Address, as_of: str | None = None) -> None:
        self._address = address
        self._fields = {"session": uuid.uuid4().hex, "as_of": as_of}

    def execute(self, text: str) -> Generator[Message, None, None]:
        """Execute statements; a caller that stops reading cancels them, because that closes the connection."""
        with self._response("/api/sql", {"sql": text, **self._fields}) as response:
            for line in response:
                message = _parsed(line)
                if "error" in message:
                    raise _known_error(message["error"])
                yield message

    def complete(self, text: str) -> list[str]:
        """Return the completions of the last word."""
        with self._response("/api/sql/completions", {"text": text}) as response:
            found: list[str] = json.loads(response.read())["completions"]
            return found

    def description(self) -> str:
        """Name the process."""
        return f"Statements are executed by the running Penstock (pid {self._address.pid})."

    @contextmanager
    def _response(self, path: str, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
        connection = SocketConnection(self._address.socket)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise _known_error(json.loads(response.read())["error"])
            yield response
        except (OSError, http.client.HTTPException) as error:
            message = f"the connection to the running Penstock (pid {self._address.pid}) was lost"
            raise TransientError(message, "Run `penstock status` to see whether it is still running.") from error
        finally:
            connection.close()


def _known_error(document: dict[str, str]) -> PenstockError:
    """Return the error that a message describes, as one of the three classes with an exit code."""
    found = getattr(errors, document["code"], DefiniteError)
    family = next((kind for kind in (UsageError, TransientError) if issubclass(found, kind)), DefiniteError)
    return family(document["message"], document["hint"])


# -- in this process ---------------------------------------------------------------------------------------------------


class LocalSession:
    """A Spark of this process, which is started when a statement needs it."""

    def __init__(self, home: Home, spark: Callable[[], SparkSession], as_of: AsOf | None = None) -> None:
        self._home = home
        self._spark = spark
        self._as_of = as_of

    def execute(self, text: str) -> Iterator[Message]:
        """Execute statements in order and yield their messages."""
        from penstock.result_messages import query_error, result_messages

        try:
            results = self._home.script(text, self._spark, self._as_of)
            yield from map(_parsed, result_messages(results, "local"))
        except Exception as error:
            known = query_error(error)
            if known is None or known is error:
                raise
            raise known from error

    def complete(self, text: str) -> list[str]:
        """Return the completions of the last word."""
        return self._home.completions(text)

    def description(self) -> str:
        """Say that no process runs the home."""
        return "Statements are executed by this process: no process runs the home."

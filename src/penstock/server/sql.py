"""``/api/sql``: statements and queries, executed in the running process with its Spark.

::

    POST /api/sql  ─▶ worker thread: execute, encode ─▶ queue of a few messages ─▶ response, as the client reads it
    DELETE /api/sql/ID, closed connection, time limit ─▶ the query's Spark jobs are cancelled

A request with `Access.READ` executes read-only queries and SHOW statements, with limits of rows and time, in sessions
that cannot be changed (`penstock.spark.read_only`). With `Access.FULL`, it executes any statement, in a session of its
own, or in the one that its field ``session`` names, so that a prompt keeps its settings and temporary views. Each kind
of access has worker threads of its own: queries of a page cannot keep the command line out.

`penstock.result_messages` describes the messages. ``POST /api/sql/completions`` completes a statement.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.fields import with_fields
from penstock.positions import parse_as_of
from penstock.query_sessions import QueryJobs, QuerySessions
from penstock.server.access import Access, access_of
from penstock.server.context import ServerContext
from penstock.server.error_response import error_response, penstock_error
from penstock.sql.cursor import leading_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SqlRequest", "sql_routes"]

_SUBSCRIBERS = "subscribers"
_WORKERS = {Access.READ.name: 2, Access.FULL.name: 4, _SUBSCRIBERS: 8}
"""The number of threads for requests of each access, and for subscriptions, which last long."""
_WAITING = 8
"""The number of requests that may wait for a worker."""
_READ_ROWS = 10_000
_READ_SECONDS = 60.0
_MESSAGES = 8
"""The number of messages that may wait for the client; then the query waits."""
_POLL_SECONDS = 0.2
"""How soon a closed connection or the end of the time limit is noticed."""
_MEDIA_TYPES = {"json": "application/x-ndjson", "arrow": "application/vnd.apache.arrow.stream"}


class SqlRequest(BaseModel):
    """The body of ``POST /api/sql``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sql: str
    """Statements, separated by semicolons; with the format ``arrow``, only one."""
    read_only: bool = False
    limit: int | None = Field(None, ge=1)
    """The maximum number of rows of each query."""
    seconds: float | None = Field(None, gt=0)
    """The time limit for all statements."""
    format: Literal["json", "arrow"] = "json"
    as_of: str | None = None
    """A position or a time, for all tables without a position of their own."""
    session: str | None = Field(None, max_length=64)
    """The name of a Spark session for later requests, too."""


class _Completion(BaseModel):
    """The body of ``POST /api/sql/completions``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str


def sql_routes(context: ServerContext) -> list[BaseRoute]:
    """Return the routes of SQL."""
    queries = _Queries(context)

    async def execute(request: Request) -> Response:
        """Execute statements and stream their results."""
        wanted = await _body(request, SqlRequest)
        access = access_of(request)
        if access < Access.READ:
            return error_response(401, "a token is required")
        try:
            return await queries.respond(request, wanted, access)
        except PenstockError as error:
            status = 503 if isinstance(error, TransientError) else 400
            return Response(_error_line(error), status, media_type="application/json")

    async def cancel(request: Request) -> Response:
        """Cancel a running query."""
        if not queries.cancel(request.path_params["id"]):
            return error_response(404, "there is no running query with this id")
        return Response(status_code=204)

    async def complete(request: Request) -> Response:
        """Complete the last word of a statement."""
        wanted = await _body(request, _Completion)
        return JSONResponse({"completions": await asyncio.to_thread(context.home.completions, wanted.text)})

    return [
        Route("/api/sql", execute, methods=["POST"]),
        Route("/api/sql/completions", complete, methods=["POST"]),
        Route("/api/sql/{id}", cancel, methods=["DELETE"]),
    ]


_Body = TypeVar("_Body", bound=BaseModel)


async def _body(request: Request, kind: type[_Body]) -> _Body:
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        message = f"invalid request: {where}: {first['msg']}"
        raise UsageError(message, 'Send, for example: {"sql": "SHOW SOURCES", "read_only": true}') from None


def _limited(wanted: SqlRequest, access: Access) -> SqlRequest:
    """Return a request with the limits of its access."""
    if access >= Access.FULL:
        return wanted
    rows, seconds = min(wanted.limit or _READ_ROWS, _READ_ROWS), min(wanted.seconds or _READ_SECONDS, _READ_SECONDS)
    limits = {"limit": rows, "seconds": wanted.seconds if _subscribes(wanted) else seconds}
    return with_fields(wanted, read_only=True, session=None, **limits)


def _subscribes(wanted: SqlRequest) -> bool:
    """Return whether a request is a subscription, which has no time limit."""
    return leading_words(wanted.sql, 1) == ("SUBSCRIBE",)


class _Queries:
    """The running queries, their worker threads and their Spark sessions."""

    def __init__(self, context: ServerContext) -> None:
        self._home = context.home
        self._sessions = QuerySessions(context.spark)
        self._running: dict[str, _Running] = {}
        self._workers = {name: ThreadPoolExecutor(count, f"penstock-sql-{name}") for name, count in _WORKERS.items()}

    def cancel(self, identifier: str) -> bool:
        """Cancel a query; return whether it is running."""
        found = self._running.get(identifier)
        if found is not None:
            found.cancel("the query was cancelled")
        return found is not None

    async def respond(self, request: Request, wanted: SqlRequest, access: Access) -> Response:
        """Start a query; return the response that streams its results, or the error if there are none."""
        running = _Running(_limited(wanted, access), access)
        same = sum(each.pool == running.pool for each in self._running.values())
        if same >= _WORKERS[running.pool] + (0 if running.pool == _SUBSCRIBERS else _WAITING):
            message = "too many queries are running"
            raise TransientError(message, "Try again later.")
        self._running[running.identifier] = running
        try:
            self._workers[running.pool].submit(self._work, running)
            parts = running.parts(request)
            first = await anext(parts, None)
        except BaseException:
            self._end(running)
            raise
        return StreamingResponse(self._stream(running, first, parts), media_type=_MEDIA_TYPES[wanted.format])

    async def _stream(
        self, running: _Running, first: bytes | None, parts: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """Yield the response; an error ends it."""
        try:
            if first is not None:
                yield first
            async for part in parts:
                yield part
        except PenstockError as error:
            if running.wanted.format == "arrow":
                raise  # the response is cut short, so that its reader notices
            yield _error_line(error)
        finally:
            self._end(running)

    def _end(self, running: _Running) -> None:
        """Forget a query, and cancel it if it has not ended."""
        running.cancel("the connection was closed")
        self._running.pop(running.identifier, None)

    def _work(self, running: _Running) -> None:
        """Execute a query in a worker thread."""
        from penstock.result_messages import query_error

        try:
            with ExitStack() as stack:
                for part in self._parts(running, stack):
                    running.send(part)
            running.send(None)
        except _CancelledError:
            return
        except Exception as error:
            running.fail(query_error(error) or penstock_error(error))

    def _parts(self, running: _Running, stack: ExitStack) -> Iterator[bytes]:
        """Yield the parts of a response."""
        from penstock.result_messages import arrow_stream, result_messages

        wanted = running.wanted

        def session() -> SparkSession:
            found = self._sessions.read_only() if wanted.read_only else self._sessions.changeable(wanted.session)
            if running.jobs is None:
                running.jobs = QueryJobs(found, running.identifier)
                stack.enter_context(running.jobs.tagged())
            running.check()
            return found

        as_of = None if wanted.as_of is None else parse_as_of(wanted.as_of)
        results = self._home.script(
            wanted.sql, lambda: self._sessions.tables(session()), as_of, read_only=wanted.read_only
        )
        if wanted.format == "arrow":
            yield from arrow_stream(results, running.identifier, wanted.limit)
        else:
            messages = result_messages(results, running.identifier, wanted.limit, running.is_cancelled)
            yield from (f"{message}\n".encode() for message in messages)


def _error_line(error: PenstockError) -> bytes:
    from penstock.result_messages import error_message

    return f"{error_message(error)}\n".encode()


class _CancelledError(Exception):
    """Ends the worker of a query that was cancelled."""


class _Running:
    """One request: a worker thread sends the parts of the response, the event loop reads them."""

    def __init__(self, wanted: SqlRequest, access: Access) -> None:
        self.identifier = uuid.uuid4().hex
        self.wanted = wanted
        self.pool = _SUBSCRIBERS if _subscribes(wanted) else access.name
        self.jobs: QueryJobs | None = None
        self._loop = asyncio.get_running_loop()
        self._deadline = None if wanted.seconds is None else self._loop.time() + wanted.seconds
        self._queue: asyncio.Queue[bytes | PenstockError | None] = asyncio.Queue(_MESSAGES)
        self._cancelled = threading.Event()
        self._reason = ""

    def cancel(self, reason: str) -> None:
        """Cancel the Spark jobs; the worker ends at its next message."""
        if not self._cancelled.is_set():
            self._reason = reason
            self._cancelled.set()
            if self.jobs is not None:
                self._loop.run_in_executor(None, self.jobs.cancel)  # the JVM may be busy

    def is_cancelled(self) -> bool:
        """Return whether the query was cancelled."""
        return self._cancelled.is_set()

    def check(self) -> None:
        """End the worker if the query was cancelled."""
        if self._cancelled.is_set():
            raise _CancelledError

    def send(self, part: bytes | PenstockError | None) -> None:
        """Send a part from the worker; wait while the client is slow. None is the end."""
        self.check()
        sent = asyncio.run_coroutine_threadsafe(self._queue.put(part), self._loop)
        while True:
            try:
                return sent.result(_POLL_SECONDS)
            except TimeoutError:
                if self._cancelled.is_set():
                    sent.cancel()
                    raise _CancelledError from None

    def fail(self, error: PenstockError) -> None:
        """Send the error that ended the query; that of a cancelled one is of no interest."""
        try:
            self.send(error)
        except _CancelledError:
            return

    async def parts(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the parts of the response; raise the error that ends it."""
        while True:
            try:
                part = await asyncio.wait_for(self._queue.get(), _POLL_SECONDS)
            except TimeoutError:
                await self._check_limits(request)
                continue
            if part is None:
                return
            if isinstance(part, PenstockError):
                raise part
            yield part

    async def _check_limits(self, request: Request) -> None:
        if self._deadline is not None and self._loop.time() > self._deadline:
            self.cancel(f"the query exceeded the time limit of {self.wanted.seconds:g} seconds")
        elif await request.is_disconnected():
            self.cancel("the connection was closed")
        if self._cancelled.is_set():
            raise DefiniteError(self._reason, "Make the query smaller, for example with a filter.")

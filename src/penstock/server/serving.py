"""Serving: uvicorn in a thread of ``penstock run``, from before Spark is started until after it has been stopped.

The sockets are opened first, in the calling thread, so that a port in use is an error of the command. The thread then
imports Starlette and uvicorn while Spark starts. One event loop serves both sockets, each with limits of its own: TCP
clients cannot keep the local command line out.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.engine.locks import hold_server
from penstock.home import Home
from penstock.server.address import Address, Listener, listening
from penstock.server.token import Token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from starlette.types import ASGIApp
    from uvicorn import Config

    from penstock.server.protocol import LimitedProtocol

__all__ = ["Serving", "over_socket", "serve"]

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 3
"""The time that requests in progress have when the server is stopped; event streams end at once."""
_STOP_SECONDS = 20.0


@contextmanager
def serve(
    home: Home, spark: Callable[[], SparkSession], listen: str | None = None, token: Token | None = None
) -> Iterator[Serving]:
    """Serve a home over HTTP while the ``with`` block lasts.

    `spark` returns the session; it raises `TransientError` while there is none. `listen` is ``HOST:PORT``; by default,
    the server listens on the loopback interface, on port 7878 or the next free one. TCP clients must send the `token`.
    """
    with hold_server(home.path), listening(home.path, listen, has_token=token is not None) as listener:
        serving = Serving(home, spark, listener, token)
        serving.start()
        try:
            yield serving
        finally:
            serving.stop()


class Serving:
    """A running server."""

    def __init__(self, home: Home, spark: Callable[[], SparkSession], listener: Listener, token: Token | None) -> None:
        self._home = home
        self._spark = spark
        self._listener = listener
        self._token = token
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-http", daemon=True)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._listener.address

    def start(self) -> None:
        """Start serving; requests that arrive earlier wait."""
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the server, if any."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop serving: end event streams at once, and other requests after a few seconds."""
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error

    async def _serve(self) -> None:
        from uvicorn import Server

        from penstock.server.app import make_app
        from penstock.server.context import ServerContext
        from penstock.server.protocol import LimitedProtocol, LocalProtocol

        context = ServerContext(self._home, self._spark, self._token, self._listener.hosts)
        app = make_app(context)
        servers = [Server(_config(app, LimitedProtocol)), Server(_config(over_socket(app), LocalProtocol))]
        async with app.router.lifespan_context(app):
            sockets = (self._listener.tcp, self._listener.unix)
            tasks = [asyncio.create_task(server.serve([sock])) for server, sock in zip(servers, sockets, strict=True)]
            while not self._stopping.is_set() and not any(task.done() for task in tasks):
                await asyncio.sleep(_POLL_SECONDS)
            context.sampler.stop()
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*tasks)


def over_socket(app: ASGIApp) -> ASGIApp:
    """Return an application that marks all requests as sent over the Unix socket."""
    from penstock.server.access import OVER_SOCKET

    return lambda scope, receive, send: app({**scope, OVER_SOCKET: True}, receive, send)


def _config(app: ASGIApp, protocol: type[LimitedProtocol]) -> Config:
    from uvicorn import Config

    from penstock.server.protocol import CONNECTIONS, HEADER_BYTES, KEEP_ALIVE_SECONDS

    return Config(
        app,
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",  # the middleware logs errors, without their texts; uvicorn would print stacks
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )

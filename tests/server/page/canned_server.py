"""The real server over a home with a canned status, on a free port of the loopback interface."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from starlette.routing import BaseRoute
from tests.server.page.homes import CannedHome
from uvicorn import Config, Server

from penstock.engine.status_document import HomeStatus
from penstock.errors import TransientError
from penstock.home import Home
from penstock.server.app import make_app
from penstock.server.context import ServerContext
from penstock.server.sampler import Sampler
from penstock.testing.waiting import PATIENCE, until

__all__ = ["CannedServer", "canned_server"]

SAMPLE_SECONDS = 0.25


@dataclass
class CannedServer:
    """A running server; set `home.make` to change the status, and `spark_error` while Spark is not up."""

    url: str
    home: CannedHome
    context: ServerContext
    spark_error: str | None = None
    failure: str | None = None


@contextmanager
def canned_server(
    make: Callable[[float], HomeStatus],
    *,
    history_step: int = 0,
    routes: Sequence[BaseRoute] = (),
    port: int = 0,
    seconds: float = SAMPLE_SECONDS,
) -> Iterator[CannedServer]:
    """Serve a home with a canned status while the ``with`` block lasts."""
    home = CannedHome(make)
    home.step = seconds
    held: list[CannedServer] = []

    def spark() -> Any:
        if held[0].spark_error:
            raise TransientError(held[0].spark_error, "Wait a moment.")

    def read() -> HomeStatus:
        if held[0].failure:
            raise TransientError(held[0].failure, "Free some space.")
        return home.status()

    context = ServerContext(cast(Home, home), spark)
    object.__setattr__(context, "sampler", Sampler(read, seconds))
    if history_step:
        fill_history(context.sampler, make, history_step, seconds)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        held.append(CannedServer(url, home, context))
        with _serving(context, listener, routes):
            yield held[0]


def fill_history(sampler: Sampler, make: Callable[[float], HomeStatus], step: int, seconds: float) -> None:
    """Put one hour of samples into the history, one for each `step` seconds; the next one follows after `seconds`."""
    documents = [(second, make(float(second)).as_json()) for second in range(0, 3601, step)]
    end = datetime.now(UTC).timestamp() - seconds
    for second, document in documents:
        sampler.history.add(end - 3600 + second, document)


@contextmanager
def _serving(context: ServerContext, listener: socket.socket, routes: Sequence[BaseRoute]) -> Iterator[None]:
    app = make_app(context)
    app.router.routes[:0] = routes
    config = Config(app, log_config=None, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    server = Server(config)
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve([listener])
        for connection in list(server.server_state.connections):  # a browser keeps its connections open
            connection.transport.abort()
        await asyncio.sleep(0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    until(lambda: server.started, "the server to start")
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(context.sampler.stop)
        server.should_exit = True
        thread.join(PATIENCE)

"""Spark clients of a running home: Spark Connect, and the names of live tables in the sessions of its clients.

::

    Spark was started, or restarted ─▶ define the names, then listen
    every few seconds               ─▶ bring databases and views in line with the tables of the home

The names come before the server, so that no session exists without them. A client loses its session with Spark's JVM,
and connects again; the address and the token stay the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from penstock.engine.error_policy import is_lost
from penstock.errors import PenstockError, TransientError
from penstock.layout import connect_token_path
from penstock.live_names import LiveNames
from penstock.spark.connect_server import ConnectAddress, connect_token, start_connect, stop_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.home_operations import HomeOperations

__all__ = ["serve_spark_clients"]

_POLL_SECONDS = 2.0
_REST = 10
"""Pause this many times as long as the names took, so that a home with many tables does not spend its time on them."""
_AS_OF_SECONDS = 10.0
"""How long a query waits for a source to reach the time of `penstock.as_of`."""


@contextmanager
def serve_spark_clients(
    home: HomeOperations,
    spark: Callable[[], SparkSession],
    address: str,
    report: Callable[[str], None],
) -> Iterator[None]:
    """Serve Spark Connect at an address, ``HOST:PORT``, while the ``with`` block lasts.

    `spark` returns the current session, or raises `TransientError` while Spark is being started or restarted.
    """
    listen = ConnectAddress.parse(address)
    listen.check()
    clients = _SparkClients(home, spark, listen, report)
    thread = threading.Thread(target=clients.serve, name="penstock-connect", daemon=True)
    thread.start()
    try:
        yield
    finally:
        clients.closing.set()
        thread.join()


class _SparkClients:
    """The server and the names, in the current Spark."""

    def __init__(
        self,
        home: HomeOperations,
        spark: Callable[[], SparkSession],
        address: ConnectAddress,
        report: Callable[[str], None],
    ) -> None:
        self.closing = threading.Event()
        self._home, self._spark, self._address, self._report = home, spark, address, report
        self._token_path = connect_token_path(home.path)
        self._token = connect_token(self._token_path)
        self._names: LiveNames | None = None
        self._named: SparkSession | None = None
        self._serving: SparkSession | None = None
        self._reported = ""

    def serve(self) -> None:
        """Serve the current Spark until closed."""
        pause = 0.0
        while not self.closing.wait(pause):
            begun = time.monotonic()
            with suppress(TransientError):  # Spark is being restarted
                self._try()
            pause = max(_POLL_SECONDS, _REST * (time.monotonic() - begun))
        if self._serving is not None:
            with suppress(Py4JError, OSError):  # the JVM may have ended
                stop_connect(self._serving)

    def _try(self) -> None:
        try:
            self._update(self._spark())
            self._reported = ""
        except TransientError:
            raise
        except Exception as error:
            if is_lost(error):
                return
            found = error.message if isinstance(error, PenstockError) else f"unexpected {type(error).__name__}"
            if found != self._reported:
                self._report(f"Spark Connect: {found}")
            self._reported = found

    def _update(self, spark: SparkSession) -> None:
        if self._names is None or spark is not self._named:
            self._names = LiveNames(spark, lambda as_of: self._home.live(spark, as_of, _AS_OF_SECONDS))
            self._named = spark
        if spark is not self._serving:
            start_connect(spark, self._address, self._token)
            self._serving = spark
            self._report(f"Spark Connect: {self._address.url}, token in {self._token_path}")
        self._names.declare(self._home.undated(spark))
        self._names.release_ended()

"""What the routes of the server need: the home, Spark, the token, and the current status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from penstock.engine.upstream_watches import UpstreamWatches
from penstock.home import Home
from penstock.server.sampler import Sampler
from penstock.server.token import Token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ServerContext"]


@dataclass(frozen=True)
class ServerContext:
    """What the routes of the server need.

    `spark` returns the Spark session; it raises `TransientError` while Spark is starting or restarting. `token` is
    None if TCP clients need none, which requires that the server listens on the loopback interface only; `hosts` are
    the names by which such clients may address it. `sampler` has the current status and its history.
    """

    home: Home
    spark: Callable[[], SparkSession]
    token: Token | None = None
    hosts: frozenset[str] = frozenset({"127.0.0.1", "localhost", "::1"})
    sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        """Create the sampler; the app starts it."""
        watches = UpstreamWatches()
        sampler = Sampler(partial(self.home.status, watches), close=watches.close)
        object.__setattr__(self, "sampler", sampler)

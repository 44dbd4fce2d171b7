"""Spark Connect inside the driver: other processes send queries, which run in sessions of this Spark application.

A client of Spark Connect can do whatever the owner of this process can: it sends Python functions, and reads and writes
files. Therefore every client has to send a token, on this machine too: each user of a machine can connect to its
loopback addresses.

Spark has no TLS here. Its clients send a token without TLS only to ``localhost``; so another address is of use behind
a proxy that speaks TLS.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pyspark.sql import SparkSession

from penstock.errors import DefiniteError, UsageError
from penstock.private_file import replace_file

__all__ = ["ConnectAddress", "connect_token", "start_connect", "stop_connect"]

_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""The environment variable from which Spark's clients, too, read the token."""
_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]\s/]+)):([0-9]{1,5})")


@dataclass(frozen=True)
class ConnectAddress:
    """The address at which Spark Connect listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``HOST:PORT``."""
        found = _ADDRESS.fullmatch(text)
        if found is None or not 0 < int(found[3]) < 65536:
            message = f"invalid address for Spark Connect: {text}"
            raise UsageError(message, "Write HOST:PORT, such as --connect-address 127.0.0.1:15002.")
        return cls(found[1] or found[2], int(found[3]))

    @property
    def url(self) -> str:
        """The URL for clients on this machine; other host names than ``localhost`` require TLS."""
        return f"sc://localhost:{self.port}"

    def check(self) -> None:
        """Raise an error if nothing can listen there."""
        try:
            family, kind, _, _, where = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
        except OSError as error:
            message = f"Spark Connect cannot listen on {self.host}:{self.port}: {error.strerror}"
            raise DefiniteError(message, "Choose another address: --connect-address HOST:PORT") from error


def connect_token(path: Path) -> str:
    """Return the token that clients have to send: of the environment, or of a file, which is created if missing."""
    if given := os.environ.get(_VARIABLE):
        return given
    if not path.exists():
        replace_file(path, secrets.token_urlsafe(32) + "\n")
    return path.read_text(encoding="ascii").strip()


def start_connect(spark: SparkSession, address: ConnectAddress, token: str) -> None:
    """Start the server in the JVM of a session; clients get sessions of their own."""
    address.check()
    jvm: Any = spark._jvm
    context = spark.sparkContext._jsc.sc()
    settings = {
        "spark.connect.grpc.binding.address": address.host,
        "spark.connect.grpc.binding.port": str(address.port),
        "spark.connect.authenticate.token": token,
        # A cached plan would keep the time at which it was analyzed.
        "spark.connect.session.planCache.enabled": "false",
    }
    for key, value in settings.items():
        context.conf().set(key, value)
    jvm.org.apache.spark.sql.connect.service.SparkConnectService.start(context)


def stop_connect(spark: SparkSession) -> None:
    """Stop the server; queries of clients end with an error."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.connect.service.SparkConnectService.stop(
        jvm.scala.Option.empty(), jvm.scala.Option.empty()
    )

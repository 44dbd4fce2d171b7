"""http.md, from the routes of the server, their docstrings and the limits in the code."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from docs.generate.markdown import code, table
from starlette.routing import BaseRoute, Mount, Route

from penstock.home import Home
from penstock.server.app import ROUTES
from penstock.server.context import ServerContext
from penstock.server.history import History
from penstock.server.protocol import CONNECTIONS, HEADER_BYTES, KEEP_ALIVE_SECONDS, LimitedProtocol
from penstock.server.security import BODY_BYTES, BODY_SECONDS, HEADERS, PUBLIC_PATHS

__all__ = ["page"]

_METRICS = {
    "source:NAME": {
        "rate": "changes captured per second",
        "lag_ms": "milliseconds from the commit of the last transaction until it was readable",
        "lag_bytes": "WAL that is not in the log yet",
        "retained_bytes": "WAL that the slot retains",
    },
    "table:SOURCE.TABLE": {
        "rate": "changes captured per second",
        "behind": "changes in the log that are not applied to the base table",
    },
    "sink:NAME": {
        "rate": "messages written per second",
        "lag_ms": "milliseconds from the commit of the last written transaction until it was written",
        "behind": "changes in the log that are not written",
    },
}
_EXAMPLE: dict[str, Any] = {
    "sources": [
        {"name": "NAME", "latency_ms": 1, "lag_bytes": 2, "tables": [{"name": "SOURCE.TABLE", "behind": 0}]},
    ],
    "sinks": [{"name": "NAME", "messages": 1, "lag_ms": 2, "behind": 3}],
}
_STATUSES = {
    "400": "malformed request, or invalid statement",
    "401": "a token is required, and was not sent or is wrong",
    "403": "sent by a page of another site (`Origin` or `Sec-Fetch-Site`), or not allowed without a token",
    "404, 405": "unknown path, or a method that it does not accept",
    "408, 413": "the body did not arrive in time, or is too long",
    "415": "a state-changing request that is not JSON",
    "421": "the `Host` header is not a name of this server (only where no token is required)",
    "500": "permanent error; the code is the class of the [error](errors.md)",
    "503": "transient error, such as while Spark is starting, or too many clients",
}


def page() -> str:
    return "\n\n".join(
        [
            "# HTTP API",
            "`penstock run` serves this API on a TCP port and on a Unix socket in the home. "
            "[Watch a running home](../how-to/watch-a-running-home.md) shows how to use it.",
            "## Paths",
            table(["path", "methods", "token", "result"], _paths()),
            "A token is required on TCP if `penstock run` was started with `--token-file`. The Unix socket never "
            "requires one: only the owner of the home can connect. Programs send `Authorization: Bearer TOKEN`; "
            "browsers log in once at `/login` and send a cookie. Where no token is required, TCP clients have read "
            "access; statements that change something need the Unix socket or a token.",
            "## Errors",
            "An error is a JSON document with a message, a hint that says what to do, and a code:",
            '```json\n{"error": {"message": "Spark is starting", "hint": "Try again in a few seconds.", '
            '"code": "TransientError"}}\n```',
            table(["status", "meaning"], list(_STATUSES.items())),
            "## Events",
            "`/api/events` sends [server-sent events](https://html.spec.whatwg.org/multipage/server-sent-events.html): "
            "one event `history`, then an event `status` about once a second. Comments keep idle connections open.",
            "```text\nevent: history\n"
            'data: {"at": [1795000000.1, …], "series": {"table:shop.orders": {"rate": [12.0, …], "behind": [0, …]}, …}}'
            "\n\n"
            "event: status\n"
            'data: {"status": {…}, "history": {"at": 1795000060.1, "series": {"table:shop.orders": {"rate": 11.0, '
            '"behind": 0}, …}}}\n```',
            "`status` is the document of [`penstock status --json`](status.md). Times are seconds since the epoch. The "
            "history covers the last hour in at most 720 points: one per second for the last minutes, averages before "
            "that. Unknown values are null.",
            table(["series", "metric", "meaning"], _series()),
            "## Limits",
            table(["limit", "value"], _limits()),
            "## Headers",
            "Every response of a path has these headers; a page may have a stricter policy, and static files may be "
            "cached. There is no `Access-Control-…` and no `Server` header. Malformed requests (400) and too many "
            "connections (503) are answered with a line of text.",
            table(["header", "value"], [(code(name), code(value)) for name, value in HEADERS.items()]),
        ]
    )


def _paths() -> list[tuple[str, str, str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        context = ServerContext(Home(Path(folder)), _no_spark)
        return [line for part in ROUTES for route in part(context) for line in _described(route)]


def _described(route: BaseRoute) -> list[tuple[str, str, str, str]]:
    if isinstance(route, Mount):
        return [(code(f"{route.path}/…"), code("GET"), "required", "Files of the status page.")]
    if not isinstance(route, Route) or not inspect.getdoc(route.endpoint):
        raise KeyError(route)
    methods = ", ".join(code(method) for method in sorted(route.methods or ()) if method != "HEAD")
    text = " ".join((inspect.getdoc(route.endpoint) or "").split())
    return [(code(route.path), methods, "not required" if route.path in PUBLIC_PATHS else "required", text)]


def _series() -> list[tuple[str, str, str]]:
    point = History().add(0.0, _EXAMPLE)
    if {name: list(metrics) for name, metrics in point.items()} != {name: list(m) for name, m in _METRICS.items()}:
        raise KeyError(point)
    return [(code(name), code(metric), text) for name, metrics in _METRICS.items() for metric, text in metrics.items()]


def _limits() -> list[tuple[str, str]]:
    return [
        ("body of a request", f"{BODY_BYTES >> 20} MB, within {BODY_SECONDS:.0f} s"),
        ("headers of a request", f"{HEADER_BYTES >> 10} KB, within {LimitedProtocol.HEADER_SECONDS:.0f} s"),
        ("client that does not read a response", f"{LimitedProtocol.STALLED_SECONDS:.0f} s"),
        ("idle connection", f"{KEEP_ALIVE_SECONDS} s"),
        ("connections", f"{CONNECTIONS} on TCP, and {CONNECTIONS} on the Unix socket"),
    ]


def _no_spark() -> NoReturn:
    raise NotImplementedError

"""``/api/sql`` with canned answers, as strict about requests as the contract, for tests without Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

__all__ = ["SLOW", "CannedSql"]

SLOW = "SELECT slow"
"""A query that ends only when it is cancelled."""
POSITIONS = {"shop": "4A/B7109A11", "bank": "4A/B7109A40"}


class CannedSql:
    """Answers queries, refuses statements that change something, and records requests."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.closed: list[str] = []

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/api/sql", self.execute, methods=["POST"]),
            Route("/api/sql/{id}", self.cancel, methods=["DELETE"]),
        ]

    async def execute(self, request: Request) -> Response:
        """Answer one request."""
        assert request.headers["content-type"] == "application/json"
        wanted = json.loads(await request.body())
        assert set(wanted) == {"sql", "read_only", "limit", "format"}
        assert wanted["read_only"] is True
        assert wanted["format"] == "json"
        self.requests.append(wanted)
        sql = wanted["sql"]
        if not sql.startswith(("SELECT", "SHOW")):
            error = {
                "message": "only queries are allowed here",
                "hint": "Run it with: penstock sql",
                "code": "UsageError",
            }
            return JSONResponse({"error": error}, 400)
        return StreamingResponse(self._lines(sql, wanted["limit"]), media_type="application/x-ndjson")

    async def _lines(self, sql: str, limit: int) -> AsyncIterator[str]:
        if sql.startswith("SHOW"):
            yield _line({"answer": {"columns": ["name", "state"], "rows": [["shop", "ready"], ["bank", "ready"]]}})
            return
        columns = [{"name": "id", "type": "bigint"}, {"name": "<b>note</b>", "type": "string"}]
        yield _line({"query": "q1", "columns": columns, "positions": POSITIONS})
        if sql == SLOW:
            try:
                while "q1" not in self.cancelled:
                    await asyncio.sleep(0.01)
            finally:
                self.closed.append("q1")
            return
        if sql == "SELECT broken":
            yield _line({"rows": [[1, "x"]]})
            yield _line({"error": {"message": "query failed: division by zero", "hint": "Fix the query.", "code": "E"}})
            return
        if sql == "SELECT cut short":
            return
        rows = [[1, "<script>alert(1)</script>"], [2, None], [3, "a\nb"], [4, {"a": 1}], [12345678901234567890, "x"]]
        for row in rows[:limit]:
            yield _line({"rows": [row]})
        yield _line({"done": True, "rows": len(rows), "truncated": True, "seconds": 0.312})

    async def cancel(self, request: Request) -> Response:
        """Cancel a query."""
        self.cancelled.append(request.path_params["id"])
        return Response(status_code=204)


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value) + "\n"

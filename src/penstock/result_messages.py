"""The results of statements as messages: what ``/api/sql`` sends, and what ``penstock sql`` prints.

A message is one line of JSON. Both ways of executing statements, in the running process and in a Spark of the command's
own, produce the same lines. The results of a script follow each other, and an error ends them::

    query       {"query": id, "columns": [{"name": …, "type": …}, …], "positions": {source: position, …}}
                {"rows": [[value, …], …]}                       any number of times
                {"done": true, "rows": n, "truncated": false, "seconds": s}
    SUBSCRIBE   {"query": id, "subscribed": name}
                {"transaction": {…}}                            for each transaction, until the request is cancelled
                {"skipped": {"table": …, "position": …, "message": …, "hint": …}}    a table of the source has failed
    statement   {"answer": {"message": …}}  or  {"answer": {"columns": […], "rows": [[…], …]}}
    error       {"error": {"message": …, "hint": …, "code": …}}     code: its class in `penstock.errors`

Values are those of `penstock.changelog.json_rows`. The rows of a single query can also be sent as an Arrow IPC stream,
whose schema has the positions as metadata.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from penstock import errors
from penstock.changelog.json_rows import json_lists
from penstock.errors import DefiniteError, PenstockError, TableError, UsageError
from penstock.executor import Query, Subscription
from penstock.positions import Lsn
from penstock.spark.arrow_results import arrow_batches, arrow_schema, portable
from penstock.sql.show_statements import Answer

__all__ = ["arrow_stream", "error_message", "query_error", "result_messages"]

_ROWS = 1000
"""The maximum number of rows in a message."""
_PLAN = re.compile(r"(SQLSTATE: \w+(?:; line \d+ pos \d+)?);\n.*", re.DOTALL)
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*)$", re.MULTILINE)


_Result = Answer | Query | Subscription


def result_messages(
    results: Iterator[_Result], identifier: str, limit: int | None = None, stop: Callable[[], bool] = lambda: False
) -> Iterator[str]:
    """Yield the messages of results; a query is computed as its rows are consumed, up to `limit` rows.

    A subscription ends when `stop` returns True.
    """
    while True:
        began = time.monotonic()
        result = next(results, None)
        if result is None:
            return
        if isinstance(result, Answer):
            yield _text({"answer": _answer(result)})
        elif isinstance(result, Subscription):
            name = ".".join(filter(None, [result.source, result.table]))
            transactions = result.transactions(stop)  # before the message: who has it may commit
            yield _text({"query": identifier, "subscribed": name})
            yield from map(_subscription_message, transactions)
        else:
            with closing(result):
                yield from _query_messages(result, identifier, limit, began)


def _subscription_message(found: str | TableError) -> str:
    if isinstance(found, str):
        return f'{{"transaction":{found}}}'
    skipped = {"table": found.table, "position": str(Lsn(found.lsn)), "message": found.message, "hint": found.hint}
    return _text({"skipped": skipped})


def _query_messages(query: Query, identifier: str, limit: int | None, began: float) -> Iterator[str]:
    rows = portable(query.rows)
    columns = [
        {"name": field.name, "type": original.dataType.simpleString()}
        for field, original in zip(rows.schema, query.rows.schema, strict=True)
    ]
    yield _text({"query": identifier, "columns": columns, "positions": _positions(query)})
    count, truncated = 0, False
    for batch in arrow_batches(rows):
        if limit is not None and count + len(batch) > limit:
            batch, truncated = batch.slice(0, limit - count), True
        for first in range(0, len(batch), _ROWS):
            yield f'{{"rows":[{",".join(json_lists(batch.slice(first, _ROWS)).to_pylist())}]}}'
        count += len(batch)
        if truncated:
            break
    seconds = round(time.monotonic() - began, 3)
    yield _text({"done": True, "rows": count, "truncated": truncated, "seconds": seconds})


def arrow_stream(results: Iterator[_Result], identifier: str, limit: int | None = None) -> Iterator[bytes]:
    """Yield the parts of an Arrow IPC stream with the rows of the first statement."""
    result = next(results)
    if isinstance(result, Subscription):
        message = "SUBSCRIBE has no rows for an Arrow stream"
        raise UsageError(message, 'Request it with "format": "json".')
    with ExitStack() as closed:
        if isinstance(result, Answer):
            table = _answer_table(result)
            schema, batches = table.schema, iter(table.to_batches())
            described = {"query": identifier}
        else:
            closed.enter_context(closing(result))
            rows = portable(result.rows)
            schema, batches = arrow_schema(rows), arrow_batches(rows)
            described = {"query": identifier, "positions": _text(_positions(result))}
        metadata = {f"penstock.{key}": value for key, value in described.items()}
        yield from _stream(schema.with_metadata(metadata), batches, limit)


def _stream(schema: pa.Schema, batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[bytes]:
    sink, left = io.BytesIO(), limit
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            taken = batch if left is None else batch.slice(0, left)
            writer.write_batch(taken)
            yield _written(sink)
            left = None if left is None else left - len(taken)
            if left == 0:
                break
    yield _written(sink)


def _written(sink: io.BytesIO) -> bytes:
    """Return what was written since the last call."""
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data


def error_message(error: PenstockError) -> str:
    """Return the message of an error."""
    code = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return _text({"error": {"message": error.message, "hint": error.hint, "code": code}})


def query_error(error: Exception) -> PenstockError | None:
    """Return an error of Spark in a query as one for its author; None for any other exception."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, AnalysisException | ParseException):
        return UsageError(_message(error), "Tables are named source.table. List them with SHOW TABLES;")
    if isinstance(error, PySparkException | Py4JJavaError):  # the latter is raised while rows are fetched
        return DefiniteError(f"query failed: {_message(error)}", "Fix the query.")
    return None


def _message(error: Exception) -> str:
    """Return Spark's message without the query plan and the JVM's stack trace."""
    causes = _CAUSE.findall(str(error)) if isinstance(error, Py4JJavaError) else []
    return causes[-1] if causes else _PLAN.sub(r"\1", str(error).split("JVM stacktrace")[0].strip())


def _answer(answer: Answer) -> dict[str, Any]:
    if answer.message:
        return {"message": answer.message}
    return {"columns": list(answer.columns), "rows": [list(row) for row in answer.rows]}


def _answer_table(answer: Answer) -> pa.Table:
    if answer.message:
        return pa.table({"message": [answer.message]})
    columns = zip(*answer.rows, strict=True) if answer.rows else [()] * len(answer.columns)
    texts = [pa.array([None if value is None else str(value) for value in column], pa.string()) for column in columns]
    return pa.Table.from_arrays(texts, names=list(answer.columns))


def _positions(query: Query) -> dict[str, str]:
    return {source: str(position) for source, position in query.view.positions.items()}


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

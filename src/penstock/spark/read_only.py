"""Read-only queries: what a client that may only read is allowed to run in a Spark session that the whole home shares.

Spark has no permissions of its own, so everything else is made unreachable:

- **Commands** (``SET``, ``CREATE``, ``INSERT``, ``ADD JAR``, SQL scripts, …): the text must be a query by Spark's own
  grammar. It may be the query of an ``EXPLAIN``, and a live table may be described.
- **Files by path** (``delta.`/path```, ``text.`/etc/passwd```): the session does not resolve them.
- **Programs** (``TRANSFORM … USING 'program'``): found in the parsed query.
- **Functions** that call Java methods or read files: the session does not have them. It has no ``range`` either, whose
  tasks cannot be cancelled, and rejects joins without a condition.

Clients cannot change the session, so they can share it.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from penstock.errors import UsageError

__all__ = ["read_only_session", "require_query"]

_FUNCTIONS = {"reflect", "java_method", "try_reflect", "from_protobuf", "to_protobuf"}
_TABLE_FUNCTIONS = {"table_changes", "table_changes_by_path", "python_worker_logs", "range"}
_EXPLAIN = re.compile(
    r"\s*(?:EXPLAIN(?:\s+(?:EXTENDED|CODEGEN|COST|FORMATTED))?|DESC(?:RIBE)?\s+QUERY)\b", re.IGNORECASE
)
_DESCRIBE = re.compile(
    r"\s*(?:DESC(?:RIBE)?(?:\s+TABLE)?(?:\s+(?:EXTENDED|FORMATTED))?|SHOW\s+COLUMNS\s+(?:FROM|IN))\s+(\w+)\s*",
    re.IGNORECASE,
)
_PROGRAM = "ScriptTransformation"
"""The node of a parsed query that runs a program."""
_HINT = "Use a query over live tables, such as SELECT … FROM source.table."


def read_only_session(spark: SparkSession) -> SparkSession:
    """Return a new session for read-only queries."""
    session = spark.newSession()
    session.conf.set("spark.sql.runSQLOnFiles", "false")
    session.conf.set("spark.sql.crossJoin.enabled", "false")
    state: Any = session._jsparkSession.sessionState()
    _remove(state.functionRegistry(), _FUNCTIONS)
    _remove(state.tableFunctionRegistry(), _TABLE_FUNCTIONS)
    return session


def _remove(registry: Any, names: set[str]) -> None:
    known = registry.listFunction()
    for place in range(known.size()):
        if known.apply(place).funcName() in names:
            registry.dropFunction(known.apply(place))


def require_query(session: SparkSession, text: str, views: set[str]) -> None:
    """Raise `UsageError` unless a text is a query, or describes one or one of the `views`; or its syntax error."""
    described = _DESCRIBE.fullmatch(text)
    if described is not None and described[1] in views:
        return
    query = _EXPLAIN.sub("", text, count=1)
    state: Any = session._jsparkSession.sessionState()
    try:
        plan = str(state.sqlParser().parseQuery(query).toString())
    except ParseException:
        state.sqlParser().parsePlan(text)  # raises the syntax error, if it is one
        message = "only queries are allowed here: this is a command"
        raise UsageError(message, _HINT) from None
    if _PROGRAM in plan:
        message = "queries that run a program (TRANSFORM … USING) are not allowed here"
        raise UsageError(message, _HINT)

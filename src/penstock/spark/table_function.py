"""A table function of Spark SQL that is written in Python and returns a DataFrame.

::

    SELECT … FROM penstock_table('shop.orders')
                       │ Spark analyzes the query, in the driver
                       ▼
    scala.Function1 (a Py4J proxy) ──▶ Python ──▶ the analyzed plan of a DataFrame, which becomes part of the query

Spark calls the function once for each occurrence in a query, in the thread that analyzes the query; Py4J runs the
Python code with that JVM thread, so `query_identity` sees what Spark stored there. The DataFrame itself is made in
another thread: its own analysis must neither see nor change the state of the query's.

A function belongs to one session, or to every session that Spark creates from now on (those of Spark Connect and of a
Thrift server are such sessions). In both cases it counts as built in, so permanent views may use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import PenstockError
from penstock.spark.callback_connections import CallbackConnections

__all__ = ["TableFunction"]

_THREADS = 4
_Plan = Callable[[], DataFrame]


class TableFunction:
    """A table function whose arguments are string constants.

    `prepare` is called with them in the thread of the query, and returns the function that makes the DataFrame.
    """

    class Java:
        """The Java interface that Py4J implements with this class."""

        implements = ("scala.Function1",)

    def __init__(self, spark: SparkSession, name: str, prepare: Callable[[Sequence[str]], _Plan]) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._gateway = gateway
        self._name = name
        self._prepare = prepare
        self._pool = ThreadPoolExecutor(_THREADS, f"penstock-{name}")
        # Errors of the function reach the client as they are, and not as the text of a Python stack.
        self._gateway.python_parameters.propagate_java_exceptions = True
        start: Any = ensure_callback_server_started
        start(gateway)
        self._connections = CallbackConnections(gateway)

    def add_to(self, spark: SparkSession) -> None:
        """Define the function in one session; it replaces one of the same name."""
        extensions = self._gateway.jvm.org.apache.spark.sql.SparkSessionExtensions()
        extensions.injectTableFunction(self._description())
        extensions.registerTableFunctions(spark._jsparkSession.sessionState().tableFunctionRegistry())

    def add_to_new_sessions(self, spark: SparkSession) -> None:
        """Define the function in every session that is created later in the application of a session."""
        spark._jsparkSession.extensions().injectTableFunction(self._description())

    def _description(self) -> Any:
        jvm = self._gateway.jvm
        catalyst = jvm.org.apache.spark.sql.catalyst
        info = catalyst.expressions.ExpressionInfo("penstock", self._name)
        return jvm.scala.Tuple3(catalyst.FunctionIdentifier(self._name), info, self)

    def apply(self, arguments: Any) -> Any:
        """Return the plan for one occurrence of the function; Spark calls this."""
        self._connections.add()
        try:
            given = [arguments.apply(at).toString() for at in range(arguments.size())]
            make = self._prepare(given)
            return self._pool.submit(make).result()._jdf.logicalPlan()
        except Py4JJavaError:
            raise
        except PenstockError as error:
            raise self._java_error(str(error)) from None
        except Exception as error:
            message = f"unexpected {type(error).__name__} in {self._name}"
            raise self._java_error(message) from None

    def _java_error(self, message: str) -> Py4JJavaError:
        """Return the error that Spark raises in the session of the client."""
        jvm = self._gateway.jvm
        error = jvm.org.apache.spark.SparkRuntimeException(
            "USER_RAISED_EXCEPTION",
            jvm.PythonUtils.toScalaMap({"errorMessage": message}),
            None,
            self._gateway.new_array(jvm.org.apache.spark.QueryContext, 0),
            "",
        )
        return Py4JJavaError("", error)

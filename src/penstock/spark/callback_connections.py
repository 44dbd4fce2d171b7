"""The connections over which threads of the JVM call Python.

::

    thread of the JVM ──▶ its connection ──▶ its thread in Python          for as long as both processes live, in Py4J

Py4J gives each thread of the JVM that calls Python a connection, and each connection a thread in Python; it never
closes them. Spark Connect executes each operation in a new thread, so connections and threads would pile up. `add`
records the connection of the calling thread, and closes those of threads that have ended.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakSet

from py4j.java_gateway import JavaObject

__all__ = ["CallbackConnections"]


class CallbackConnections:
    """The connections of the threads that called some function in Python."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._lock = threading.Lock()
        self._callers: WeakSet[threading.Thread] = WeakSet()
        self._open: list[tuple[Any, Any]] = []
        """A thread of the JVM and its connection, both as objects of the JVM."""

    def add(self) -> None:
        """Record the connection of the calling thread; only for code that the JVM called."""
        with self._lock:
            if threading.current_thread() in self._callers:
                return
            self._close_ended()
            self._callers.add(threading.current_thread())
            caller = self._gateway.jvm.java.lang.Thread.currentThread()
            self._open.append((caller, self._client().getPerThreadConnection()))

    def _client(self) -> Any:
        return JavaObject("GATEWAY_SERVER", self._gateway._gateway_client).getCallbackClient()

    def _close_ended(self) -> None:
        ended = [connection for caller, connection in self._open if not caller.isAlive()]
        if not ended:
            return
        self._open = [(caller, connection) for caller, connection in self._open if caller.isAlive()]
        idle = self._idle()
        for connection in ended:
            idle.remove(connection)
            connection.shutdown()  # the thread in Python ends, too

    def _idle(self) -> Any:
        """Return the queue in which Py4J keeps its connections; there is no method that removes one from it."""
        field = self._gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("connections")
        field.setAccessible(True)
        return field.get(self._client())

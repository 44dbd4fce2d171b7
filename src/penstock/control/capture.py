"""The capture process: ``python -m penstock.control.capture HOME SOURCE``.

It lives as long as its standard input: whoever started it closes that to stop it, and dies with it open. Transient
errors are retried here, with backoff; a definite error is written into the catalog and ends the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog
from penstock.control.recorded import instance_of
from penstock.errors import DefiniteError, InUse, PenstockError, TransientError
from penstock.layout import catalog_path, state_path
from penstock.sources.family import Instance
from penstock.sources.kinds import kind

__all__ = ["main"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 15.0
_IN_USE_SECONDS = 15.0
_STOP_SECONDS = 15.0


def main(arguments: list[str]) -> int:
    """Capture one source until standard input ends."""
    home, name = Path(arguments[0]), arguments[1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the process that started us
    stop = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=(stop,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    catalog = Catalog(catalog_path(home))
    record = catalog.source(name)
    if record is None:
        return DefiniteError.exit_code
    try:
        factory = kind(record.kind).factory()
        instance = factory.instantiate(instance_of(record), catalog.log(name), state_path(home, name))
        _run_until_stopped(instance, catalog, name, stop)
    except PenstockError as error:
        catalog.set_source(name, SourceState.FAILED, error=error.message, remedy=error.remedy)
        return error.exit_code
    return 0


def _wait_for_end_of_input(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):  # without a buffer: its lock would abort an interpreter that ends first
        pass
    stop.set()
    time.sleep(_STOP_SECONDS)  # a broker that is gone may hold the log up: what is not durable was not confirmed
    os._exit(TransientError.exit_code)


def _run_until_stopped(instance: Instance, catalog: Catalog, name: str, stop: threading.Event) -> None:
    pause, failing_since = _FIRST_PAUSE, 0.0
    while not stop.is_set():
        before = instance.durable_frontier()
        try:
            instance.run(stop, partial(_connected, instance, catalog, name))
        except TransientError as error:
            moved = instance.durable_frontier() != before
            pause = _FIRST_PAUSE if moved else min(pause * 2, _LONGEST_PAUSE)
            failing_since = time.monotonic() if moved or not failing_since else failing_since
            if isinstance(error, InUse) and time.monotonic() - failing_since > _IN_USE_SECONDS:
                raise
            catalog.set_source(name, SourceState.READY, error=error.message, remedy=error.remedy)
            stop.wait(min(pause, 1.0) if isinstance(error, InUse) else pause)


def _connected(instance: Instance, catalog: Catalog, name: str) -> None:
    """Store what capture goes on with, before it does: after a failover the config has another timeline."""
    catalog.set_source(name, SourceState.READY, instance=instance.config().model_dump_json())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

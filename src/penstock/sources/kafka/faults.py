"""Faults: messages that stop a table. Of all faults, the error reports the one that became visible first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import TableError
from penstock.positions import Lsn
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.ticks import tick_of
from penstock.sources.kafka.topic_start import restart_hint
from penstock.sources.kafka.topic_table import TopicTable

__all__ = ["Fault", "fault_error", "quarantine_hint", "quarantine_limit_hint"]


class Fault(NamedTuple):
    """A message that stops a table."""

    partition: int
    offset: int
    problem: str


def fault_error(table: TopicTable, bounds: pa.Table, faults: Sequence[Fault], hint: str) -> TableError:
    """Return the error of a table that stops at the first of some faults, in the ticks of `bounds`."""
    places = (
        np.array([fault.partition for fault in faults], np.int32),
        np.array([fault.offset for fault in faults], np.int64),
    )
    ticks = tick_of(bounds, *places).to_numpy()
    which = min(range(len(faults)), key=lambda each: (ticks[each], faults[each].partition))
    first = faults[which]
    place = f"offset {first.offset} of partition {first.partition} of topic {table.topic.name}"
    return TableError(str(table.name), Lsn(int(ticks[which])), f"the message at {place}: {first.problem}", hint)


def quarantine_limit_hint(source: str, local: str) -> str:
    """Return the hint for a table whose quarantine limit is reached; `local` is its local name."""
    return (
        f"The quarantine limit is reached: SELECT * FROM {source}.{local}_quarantine. To continue, raise it: "
        f"ALTER SOURCES {source} SET (quarantine limit = …)."
    )


def quarantine_hint(source: str, what: KafkaSqlOptions) -> str:
    """Return the hint for a message that stops a table."""
    return (
        f"To quarantine such messages and continue: ALTER SOURCES {source} SET (on error = 'quarantine'). "
        f"{restart_hint(source, what)}"
    )

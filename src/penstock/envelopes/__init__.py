"""Envelopes: what decoded messages say of the rows of a table. Frames in, frames out; nothing is read or written here.

::

    messages ──▶ append            NONE              each is a row of its own
             ──▶ upsert            UPSERT            the newest row of its key
             ──▶ debezium_upsert   DEBEZIUM UPSERT   the same, of Debezium's records
             ──▶ debezium          DEBEZIUM          changes, each once; with a state of fixed size ──▶ broken
                     │
                     ▼
             images and refused (`penstock.envelopes.messages` has the columns)

A message that breaks a rule is refused, alone, with the reason and the way out. Whoever calls decides what that
means: a definite error of the source from there on, or quarantine.
"""

from penstock.envelopes.debezium import DebeziumState, Deduplicated, Progress, debezium
from penstock.envelopes.debezium_records import debezium_shape, debezium_shape_of
from penstock.envelopes.included import included_type, with_included
from penstock.envelopes.messages import Enveloped
from penstock.envelopes.retractions import broken
from penstock.envelopes.shape import Shape, keyed_shape, value_shape
from penstock.envelopes.upsert import append, debezium_upsert, upsert
from penstock.envelopes.upstream import refuse_compacted
from penstock.model import IncludedColumn

__all__ = [
    "DebeziumState",
    "Deduplicated",
    "Enveloped",
    "IncludedColumn",
    "Progress",
    "Shape",
    "append",
    "broken",
    "debezium",
    "debezium_shape",
    "debezium_shape_of",
    "debezium_upsert",
    "included_type",
    "keyed_shape",
    "refuse_compacted",
    "upsert",
    "value_shape",
    "with_included",
]

"""Envelopes: turn decoded messages into changes of a table. DataFrames in, DataFrames out; no I/O.

::

    messages ──▶ append            NONE              each message is a new row
             ──▶ upsert            UPSERT            each message is the latest row of its key
             ──▶ debezium_upsert   DEBEZIUM UPSERT   the same, from Debezium records
             ──▶ debezium          DEBEZIUM          changes, each exactly once; state of fixed size ──▶ contradictions
                     │
                     ▼
             images and rejected messages (`penstock.envelopes.messages` defines the columns)

A message that violates a rule is rejected on its own, with the reason and a fix. The caller decides whether a rejected
message is a permanent error of the table or goes to quarantine.
"""

from penstock.envelopes.debezium import DebeziumState, Deduplicated, Progress, debezium
from penstock.envelopes.debezium_records import debezium_shape, debezium_shape_of
from penstock.envelopes.include_columns import included_type, with_included
from penstock.envelopes.messages import Enveloped
from penstock.envelopes.retractions import contradictions
from penstock.envelopes.shape import Shape, keyed_shape, value_shape
from penstock.envelopes.upsert import append, debezium_upsert, upsert
from penstock.envelopes.upstream_positions import reject_compacted
from penstock.model import IncludedColumn

__all__ = [
    "DebeziumState",
    "Deduplicated",
    "Enveloped",
    "IncludedColumn",
    "Progress",
    "Shape",
    "append",
    "contradictions",
    "debezium",
    "debezium_shape",
    "debezium_shape_of",
    "debezium_upsert",
    "included_type",
    "keyed_shape",
    "reject_compacted",
    "upsert",
    "value_shape",
    "with_included",
]

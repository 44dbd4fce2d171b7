"""Messages that bring their schema, and whose schema has become another one since the columns were settled.

A field that is new is passed over, as in all JSON. But a field that *means* something else now has other values for the
same thing: a time in milliseconds that comes in microseconds would be off by a thousand, and nothing would say so. Such
a message is a problem.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefiniteError
from penstock.formats.json.connect_schema import meanings_of

__all__ = ["checked_schemas"]

_PROBLEM = (
    "JSON: its schema says another meaning of {} than the one that the columns were made by: read the topic anew, or "
    "let the column be written as before"
)


def checked_schemas(rows: pa.StructArray, problems: pa.Array, known: str) -> tuple[pa.StructArray, pa.Array]:
    """Return rows and problems of messages that bring a ``schema``; `known` is the one that columns are made by."""
    texts = rows.field("schema")
    told = {text: changed for text in pc.unique(texts).to_pylist() if text and (changed := _changed(text, known))}
    if not told:
        return rows, problems
    foreign = pc.index_in(texts, pa.array(list(told), pa.string()))
    said = pa.array([_PROBLEM.format(changed) for changed in told.values()])
    problems = pc.coalesce(problems, said.take(foreign))
    fields = [rows.field(i) for i in range(rows.type.num_fields)]
    gone = pc.or_(pc.is_null(rows), pc.is_valid(foreign))
    return pa.StructArray.from_arrays(fields, fields=list(rows.type), mask=gone), problems


@lru_cache(maxsize=256)
def _changed(text: str, known: str) -> str | None:
    """Return a field that means another thing in one schema than in the other; None where there is none."""
    if text == known:
        return None
    now, before = _meanings(text), _meanings(known)
    return next((".".join(path) for path in before if path in now and now[path] != before[path]), None)


def _meanings(text: str) -> Mapping[tuple[str, ...], str | None]:
    try:
        return meanings_of(json.loads(text))
    except (ValueError, RecursionError, DefiniteError):
        return {}

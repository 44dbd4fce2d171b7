"""New keys of JSON messages: which become columns, and of which type."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.formats import JsonFormat, ResolvedFormat, decode_batch, resolve
from penstock.formats.json.new_keys import NewKeys, Place

RECORD: tuple[Place, ...] = (("before",), ("after",))


def keys_of(*sample: Any, places: tuple[Place, ...] = ((),)) -> NewKeys:
    resolved = resolve(JsonFormat(), sample=[json.dumps(message).encode() for message in sample])
    return NewKeys(resolved, places, lambda name: name != "taken")


def batch(*messages: Any) -> pa.Array:
    return pa.array([each if isinstance(each, bytes) else json.dumps(each).encode() for each in messages], pa.binary())


def row(resolved: ResolvedFormat, message: Any) -> Any:
    [found] = decode_batch(batch(message), resolved).rows.to_pylist()
    return found


def test_columns_of_new_keys() -> None:
    keys = keys_of({"n": 1, "o": {"k": 1}})
    assert not keys.adopt(batch({"n": 2, "o": {"k": 2, "deeper": 1}, "taken": 1}, {"n": 3, "x": None}, b"null"))
    assert keys.adopt(batch({"n": 4, "x": 1, "y": [{"z": True}]}, {"n": 5, "x": 1.5, "any": "a"}, {"n": 6, "any": 7}))
    assert not keys.adopt(batch({"n": 4, "x": 1, "y": [{"z": True}]}))
    message = {"n": 7, "o": {"k": 8}, "x": 0.5, "y": [{"z": False}], "any": {"a": [1]}}
    assert row(keys.resolved, message) == {**message, "any": '{"a": [1]}'}
    assert keys.resolved.raw == ("any",)


def test_messages_that_are_rejected_add_nothing() -> None:
    keys = keys_of({"n": 1})
    assert not keys.adopt(batch({"n": "text", "x": 1}, b'{"n": 1, "x": 1', b'{"n": 1, "x": 1, "x": 2}', b"[1]"))
    assert keys.adopt(batch({"n": 2, "x": 1}))


def test_names_that_differ_in_case_only() -> None:
    keys = keys_of({"n": 1})
    assert keys.adopt(batch({"n": 1, "X": 1, "x": "two"}))
    assert row(keys.resolved, {"n": 1, "X": 3, "x": "two"}) == {"n": 1, "X": 3}
    assert not keys.adopt(batch({"n": 1, "x": "two"}))


@pytest.mark.parametrize("place", ["before", "after"])
def test_rows_of_records(place: str) -> None:
    around = {"before": None, "after": None, "source": {"lsn": 1}, "op": "u"}
    keys = keys_of({**around, "after": {"id": 1}}, places=RECORD)
    assert not keys.adopt(
        batch({**around, "ts_ns": 5, "after": {"id": 2}}, {**around, "ts_ns": 6, "before": {"id": 3}})
    )
    assert keys.adopt(batch({**around, place: {"id": 4, "x": "new"}}))
    for each in ("before", "after"):
        assert row(keys.resolved, {**around, each: {"id": 5, "x": "y"}})[each] == {"id": 5, "x": "y"}

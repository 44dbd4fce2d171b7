"""Column buffers grow while a batch is decoded; a corrupt message leaves nothing in them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.formats.conftest import avro, decoded, encoded, record
from tests.formats.protos import in_base64

from penstock.formats import JsonFormat, ProtobufFormat, ResolvedFormat, resolve

AVRO = record(("id", "int"), ("items", {"type": "array", "items": {"type": "array", "items": "string"}}))
PROTO = """
syntax = "proto3";
message M { int32 id = 1; repeated string items = 2; repeated N more = 3; }
message N { int32 a = 1; }
"""
Encoder = Callable[[list[list[list[str]]]], tuple[ResolvedFormat, list[bytes]]]


def nested(sizes: list[int]) -> list[list[list[str]]]:
    """Return lists of the given sizes, whose items are lists of one or two strings."""
    return [[["x" * (n % 50)] * (1 + n % 2) for n in range(size)] for size in sizes]


def in_avro(lists: list[list[list[str]]]) -> tuple[ResolvedFormat, list[bytes]]:
    return avro(AVRO), [encoded(AVRO, {"id": len(one), "items": one}) for one in lists]


def in_json(lists: list[list[list[str]]]) -> tuple[ResolvedFormat, list[bytes]]:
    columns = "id INT, items ARRAY<ARRAY<STRING>>"
    return resolve(JsonFormat(columns=columns)), [json.dumps({"id": len(one), "items": one}).encode() for one in lists]


@pytest.mark.parametrize("encoder", [in_avro, in_json])
@pytest.mark.parametrize("sizes", [[0, 1, 5000, 2, 0, 9000], [40_000], [3] * 400, [0, 0]])
def test_all_items_are_decoded(encoder: Encoder, sizes: list[int]) -> None:
    lists = nested(sizes)
    resolved, messages = encoder(lists)
    found = decoded(resolved, *messages).rows
    assert found.field("id").to_pylist() == sizes
    assert found.field("items").to_pylist() == lists


@pytest.mark.parametrize("encoder", [in_avro, in_json])
def test_corrupt_message_with_many_items_leaves_none(encoder: Encoder) -> None:
    lists = nested([2, 9000, 3])
    resolved, [first, large, last] = encoder(lists)
    result = decoded(resolved, first, large[:-3], last, large[:-3] + b"\xff", large)
    assert result.rows.is_valid().to_pylist() == [True, False, True, False, True]
    assert result.rows.field("items").to_pylist()[::2] == [lists[0], lists[2], lists[1]]
    assert len(result.rows.field("items").values) == 2 + 3 + 9000


def test_repeated_fields_and_messages_of_protobuf_grow() -> None:
    resolved = resolve(ProtobufFormat(descriptor_set=in_base64(PROTO), message="M"))
    large = b"\x08\x07" + b"".join(b"\x12\x01%c\x1a\x02\x08%c" % (48 + n % 10, n % 100) for n in range(5000))
    result = decoded(resolved, b"\x12\x01a", large + b"\x12", large, b"")
    assert result.rows.is_valid().to_pylist() == [True, False, True, True]
    assert result.rows.field("items").to_pylist()[::2] == [["a"], [str(n % 10) for n in range(5000)]]
    assert result.rows.field("more").to_pylist()[2] == [{"a": n % 100} for n in range(5000)]

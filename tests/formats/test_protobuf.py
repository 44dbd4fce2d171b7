"""Protobuf: messages of Google's implementation, with descriptors from protoc and from a registry."""

from __future__ import annotations

import base64
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from tests.formats.conftest import decoded, framed, problem, rows
from tests.formats.protos import OLD, ORDER, descriptor_set, in_base64, message_class
from tests.servers import SharedRegistry, unique

from penstock.errors import DefiniteError, UsageError
from penstock.formats import Nanoseconds, ProtobufFormat, Registry, RegistryAddress, resolve
from penstock.formats.protobuf.descriptor import Pool, parse_descriptor_set
from penstock.formats.protobuf.proto_parser import parse_proto
from penstock.formats.protobuf.types import protobuf_columns, well_known_types

NAME = "shop.v1.Order"
GIVEN = resolve(ProtobufFormat(descriptor_set=in_base64(ORDER), message=NAME))
EMPTY: dict[str, Any] = {
    "id": 0, "note": None, "big": Decimal(0), "numbers": [], "items": {}, "status": "UNKNOWN", "card": None,
    "voucher": None, "none": None, "at": None, "count": None, "list": [], "zigzag": 0, "price": 0.0, "history": [],
    "f32": 0, "f64": Decimal(0), "s32": 0, "s64": 0, "ratio": 0.0, "raw": b"", "u32": 0, "zigzag64": 0, "prices": [],
    "names": {}, "times": [], "paid": False,
}  # fmt: skip


def order(**fields: Any) -> Any:
    return message_class(ORDER, NAME)(**fields)


def full() -> tuple[Any, dict[str, Any]]:
    """Return a message with all fields set, and the expected row."""
    message = order(
        id=-3, note="", big=2**64 - 1, numbers=[1, -2, 3], status=1, count={"value": 0}, zigzag=-4, price=1.5,
        history=[1, -5, 99], f32=2**32 - 1, f64=2**63, s32=-(2**31), s64=-(2**63), ratio=0.5, raw=b"\xff",
        u32=2**32 - 1, zigzag64=-(2**63), prices=[1.0, 2.0], names={-1: "m", 7: "s"}, paid=True,
    )  # fmt: skip
    message.items["a"].sku = "x"
    message.items["b"].n = 4
    message.voucher.tags.append("é")
    message.at.FromDatetime(datetime(1969, 12, 31, 23, 59, 59, 5, tzinfo=UTC))
    message.list.add(sku="q")
    message.list.add()
    message.times.add(seconds=1)
    expected = EMPTY | {
        "id": -3, "note": "", "big": Decimal(2**64 - 1), "numbers": [1, -2, 3], "status": "PAID", "count": 0,
        "items": {"a": {"sku": "x", "n": 0, "tags": []}, "b": {"sku": "", "n": 4, "tags": []}},
        "voucher": {"sku": "", "n": 0, "tags": ["é"]}, "at": datetime(1969, 12, 31, 23, 59, 59, 5, tzinfo=UTC),
        "list": [{"sku": "q", "n": 0, "tags": []}, {"sku": "", "n": 0, "tags": []}], "zigzag": -4, "price": 1.5,
        "history": ["PAID", "REFUNDED", "99"], "f32": 2**32 - 1, "f64": Decimal(2**63), "s32": -(2**31),
        "s64": -(2**63), "ratio": 0.5, "raw": b"\xff", "u32": 2**32 - 1, "zigzag64": -(2**63), "prices": [1.0, 2.0],
        "names": {-1: "m", 7: "s"}, "times": [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)], "paid": True,
    }  # fmt: skip
    return message, expected


def test_every_kind_of_field_presence_and_well_known_types() -> None:
    message, expected = full()
    with_empty = order()
    with_empty.none.SetInParent()
    found = rows(GIVEN, message.SerializeToString(), b"", with_empty.SerializeToString(), None)
    assert found == [expected, EMPTY, EMPTY | {"none": True}, None]


def test_concatenated_messages_are_merged() -> None:
    """Repeated fields are appended, the last single value wins, single messages merge, as the encoding specifies."""
    one, other = (
        order(id=1, numbers=[1], voucher={"sku": "a", "tags": ["x"]}),
        order(id=2, numbers=[2], voucher={"n": 5, "tags": ["y"]}),
    )
    both = one.SerializeToString() + other.SerializeToString()
    [row] = rows(GIVEN, both)
    assert (row["id"], row["numbers"], row["voucher"]) == (2, [1, 2], {"sku": "a", "n": 5, "tags": ["x", "y"]})
    assert message_class(ORDER, NAME).FromString(both).voucher.n == 5


@pytest.mark.parametrize("first", [{"card": "x"}, {"voucher": {"sku": "a", "tags": ["x"]}}, {"none": {}}])
@pytest.mark.parametrize("last", [{"card": "y"}, {"voucher": {"n": 5}}, {"none": {}}])
def test_last_member_of_a_oneof_wins(first: dict[str, Any], last: dict[str, Any]) -> None:
    whole = order(**first).SerializeToString() + order(**last).SerializeToString()
    expected = message_class(ORDER, NAME).FromString(whole)
    [row] = rows(GIVEN, whole)
    assert {name for name in ("card", "voucher", "none") if row[name] is not None} == {expected.WhichOneof("payment")}
    if row["voucher"] is not None:
        assert (row["voucher"]["sku"], row["voucher"]["n"]) == (expected.voucher.sku, expected.voucher.n)


def test_unknown_fields_and_groups_are_skipped() -> None:
    assert rows(GIVEN, b"\x08\x05\xd2\x3e\x01x\xdb\x3e\x08\x01\xdc\x3e\x98\x3f\x01") == [EMPTY | {"id": 5}]


def test_nanoseconds_are_rejected_unless_truncation_is_allowed() -> None:
    message = order(at={"seconds": 1, "nanos": 1500}).SerializeToString()
    assert 'field "at": timestamp has nanoseconds' in problem(GIVEN, message)
    truncating = ProtobufFormat(descriptor_set=in_base64(ORDER), message=NAME, nanoseconds=Nanoseconds.TRUNCATE)
    [row] = rows(resolve(truncating), message)
    assert row["at"] == datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)


def test_proto2_presence_and_required_fields() -> None:
    resolved = resolve(ProtobufFormat(descriptor_set=in_base64(OLD), message="Old"))
    assert rows(resolved, b"\x08\x05") == [{"id": 5, "maybe": None}]
    assert problem(resolved, b"\x10\x05") == 'PROTOBUF: field "id": required field is missing (2 bytes)'


@pytest.mark.parametrize(("text", "name"), [(ORDER, NAME), (OLD, "Old")])
def test_parsed_proto_file_matches_protoc(text: str, name: str) -> None:
    ours = Pool([*well_known_types(), parse_proto(text)])
    theirs = Pool(parse_descriptor_set(descriptor_set(text)))
    assert protobuf_columns(ours, ours.message(name)) == protobuf_columns(theirs, theirs.message(name))
    fields = [(one.name, one.number, one.repeated) for one in ours.message(name).fields]
    assert fields == [(one.name, one.number, one.repeated) for one in theirs.message(name).fields]
    for enum, found in theirs.enums.items():
        assert ours.enums[enum].names == found.names


def test_statements_that_do_not_define_columns_are_skipped() -> None:
    """The brackets of an option may contain braces."""
    file = parse_proto("message M { extensions 100 to max [declaration = { number: 100 }]; optional int32 a = 1; }")
    assert [one.name for one in file.messages[0].fields] == ["a"]


def test_descriptor_without_field_types() -> None:
    """The type of a field may be left out if its name denotes a message or an enum."""
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    file.enum_type.add(name="E").value.add(name="ZERO", number=0)
    file.message_type.add(name="M").field.add(name="e", number=1, label=1, type_name=".E")
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    given = ProtobufFormat(descriptor_set=base64.b64encode(data).decode(), message="M")
    assert rows(resolve(given), b"\x08\x00", b"") == [{"e": "ZERO"}, {"e": "ZERO"}]


@pytest.mark.parametrize("data", [b"\x0a\x05", b"\x0a\x03\x12\x01\xff", b"\x07"])
def test_invalid_descriptor_set_is_rejected(data: bytes) -> None:
    with pytest.raises(DefiniteError, match="invalid Protobuf descriptor set"):
        parse_descriptor_set(data)


@pytest.mark.parametrize("text", ["message M {", "message M { int32 a = x; }", "edition = '2023';", "%", "foo"])
def test_invalid_proto_file_is_rejected(text: str) -> None:
    with pytest.raises(DefiniteError, match="invalid Protobuf schema"):
        parse_proto(text)


def test_recursive_messages_and_missing_names_are_rejected() -> None:
    recursive = 'syntax = "proto3"; message Node { Node next = 1; int32 a = 2; }'
    with pytest.raises(DefiniteError, match="Node is recursive"):
        resolve(ProtobufFormat(descriptor_set=in_base64(recursive), message="Node"))
    with pytest.raises(DefiniteError, match="Protobuf message 'Nope' does not exist") as caught:
        resolve(ProtobufFormat(descriptor_set=in_base64(ORDER), message="Nope"))
    assert NAME in caught.value.hint
    with pytest.raises(UsageError, match="requires a schema registry, or a descriptor set"):
        ProtobufFormat(message=NAME)
    with pytest.raises(DefiniteError, match="invalid Protobuf descriptor set"):
        resolve(ProtobufFormat(descriptor_set="CgU=", message=NAME))


# -- a registry ----------------------------------------------------------------------------------------------------


def test_messages_of_a_registry(registry: SharedRegistry, address: RegistryAddress) -> None:
    client = Registry(address)
    subject = unique("proto")
    identity = registry.register(subject, ORDER, "PROTOBUF")
    resolved = resolve(ProtobufFormat(registry=address), subject=subject, registry=client)
    message, expected = full()
    first, nested = framed(identity, b"\0"), framed(identity, b"\x04\x00\x00")
    assert rows(resolved, first + message.SerializeToString(), registry=client) == [expected]
    assert rows(resolved, framed(identity, b"\x02\x00") + message.SerializeToString(), registry=client) == [expected]
    tail = f"(schema id {identity}, 8 bytes)"
    assert problem(resolved, nested, client) == f"PROTOBUF: message shop.v1.Order.Item, expected {NAME} {tail}"
    assert "message shop.v1.Other, expected" in problem(resolved, framed(identity, b"\x02\x02"), client)
    assert "does not refer to a message" in problem(resolved, framed(identity, b"\x02\x0e"), client)
    assert "message index after the schema id" in problem(resolved, framed(identity, b"\x02"), client)
    item = resolve(ProtobufFormat(registry=address, message="shop.v1.Order.Item"), subject=subject)
    assert rows(item, nested + b"\x0a\x01s") == [{"sku": "s", "n": 0, "tags": []}]


def test_writers_of_other_versions_and_other_types(registry: SharedRegistry, address: RegistryAddress) -> None:
    client = Registry(address)
    head = 'syntax = "proto3"; '
    texts = [
        head + "enum E { A = 0; B = 1; } message M { int32 a = 1; E e = 2; }",
        head + "enum E { A = 0; B = 1; C = 2; } message M { int32 a = 1; E e = 2; string new = 3; }",
        head + "enum E { A = 0; } message M { string a = 1; }",
    ]
    subject = unique("versions")
    old, newer, other = (registry.register(f"{subject}-{n}", text, "PROTOBUF") for n, text in enumerate(texts))
    resolved = resolve(ProtobufFormat(registry=address, subject=f"{subject}-0"), registry=client)
    assert rows(
        resolved,
        framed(old, b"\0\x08\x05\x10\x01"),
        framed(newer, b"\0\x10\x02\x1a\x01n"),
        registry=client,
    ) == [{"a": 5, "e": "B"}, {"a": 0, "e": "C"}]
    assert 'field "a": type in the message differs' in problem(resolved, framed(other, b"\0\x0a\x01x"), client)


def test_references_are_resolved_with_the_schema(registry: SharedRegistry, address: RegistryAddress) -> None:
    common, bill = unique("common"), unique("bill")
    registry.register(common, 'syntax = "proto3"; package c; message Money { int64 units = 1; }', "PROTOBUF")
    text = 'syntax = "proto3"; import "common.proto"; message Bill { c.Money total = 1; }'
    needed = [{"name": "common.proto", "subject": common, "version": 1}]
    identity = registry.register(bill, text, "PROTOBUF", needed)
    resolved = resolve(ProtobufFormat(registry=address), subject=bill)
    assert rows(resolved, framed(identity, b"\0\x0a\x02\x08\x05")) == [{"total": {"units": 5}}]


def test_mutants_decode_as_in_google_protobuf_or_are_problems() -> None:
    rng = random.Random(3)
    original = full()[0].SerializeToString()
    mutants = []
    for _ in range(2500):
        at = rng.randrange(len(original))
        flipped = original[:at] + bytes([original[at] ^ 1 << rng.randrange(8)]) + original[at + 1 :]
        mutants.append(flipped if rng.random() < 0.7 else original[:at])
    result = decoded(GIVEN, *mutants)
    rejected = 0
    for mutant, row, text in zip(mutants, result.rows.to_pylist(), result.problems.to_pylist(), strict=True):
        try:
            other = message_class(ORDER, NAME).FromString(mutant)
        except Exception:
            rejected += 1
            assert text is not None
            continue
        if text is None:
            assert (row["id"], row["numbers"], row["raw"]) == (other.id, list(other.numbers), other.raw)
            assert repr(row["price"]) == repr(other.price)
        else:
            stricter = ("wire type", "32 bits", "nanoseconds", "out of range", "UTF-8", "group", "64 bits")
            assert any(words in text for words in stricter), text
    assert rejected > 300

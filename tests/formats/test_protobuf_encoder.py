"""Protobuf of Arrow columns: random rows are encoded to messages that Google's implementation reads."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.formats.conftest import decoded
from tests.formats.protos import ORDER, in_base64, message_class
from tests.formats.random_messages import SCHEMAS
from tests.formats.test_random_protobuf import message_format, put

from penstock.errors import DefiniteError
from penstock.formats import ProtobufFormat, ResolvedFormat, resolve
from penstock.formats.protobuf.descriptor import Pool, load_files
from penstock.formats.protobuf.encoder import encode_protobuf


def written(resolved: ResolvedFormat, rows: pa.Array, header: bytes = b"") -> list[bytes]:
    pool = Pool(load_files(resolved.reader))
    return list(encode_protobuf(pool, pool.message(resolved.message), rows, header).to_pylist())


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_rows_of_random_descriptors(seed: int) -> None:
    rng = random.Random(seed)
    message_type, resolved = message_format(rng)
    messages = [message_type() for _ in range(30)]
    for message in messages:
        put(rng, message)
    rows = decoded(resolved, *[message.SerializeToString(deterministic=True) for message in messages]).rows
    encoded = written(resolved, rows, b"\0")
    assert [message_type.FromString(one[1:]) for one in encoded] == messages
    assert decoded(resolved, *[one[1:] for one in encoded]).rows == rows
    assert written(resolved, rows.slice(7, 11), b"\0") == encoded[7:18]


def order(row: dict[str, object]) -> tuple[ResolvedFormat, pa.Array]:
    resolved = resolve(ProtobufFormat(descriptor_set=in_base64(ORDER), message="shop.v1.Order"))
    missing: dict[str, object] = {field.name: [] for field in resolved.physical_type if pa.types.is_nested(field.type)}
    return resolved, pa.array([{**missing, **row}], resolved.physical_type)


def test_well_known_types_and_members_of_a_oneof() -> None:
    moment = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    given = {"at": moment, "count": 0, "none": True, "paid": True, "ratio": -0.0, "status": "REFUNDED", "voucher": None}
    resolved, rows = order({**given, "times": [moment], "note": ""})
    [message] = written(resolved, rows)
    found = message_class(ORDER, "shop.v1.Order").FromString(message)
    assert found.at.ToDatetime(UTC) == moment == found.times[0].ToDatetime(UTC)
    assert (found.HasField("count"), found.count.value, found.HasField("note")) == (True, 0, True)
    assert (found.WhichOneof("payment"), found.status, str(found.ratio)) == ("none", -5, "-0.0")
    assert message == found.SerializeToString()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"numbers": [1, None]}, "column 'numbers' has a list with null, which Protobuf cannot represent"),
        ({"u32": 2**32}, "a value of column 'u32' is outside the range of 32 bits without a sign"),
        ({"f64": -1}, "a value of column 'f64' is outside the range of 64 bits without a sign"),
        ({"status": "LOST"}, "a value is not a name of Protobuf enum shop.v1.Order.Status"),
    ],
)
def test_values_that_the_message_does_not_allow(row: dict[str, object], message: str) -> None:
    resolved, rows = order(row)
    with pytest.raises(DefiniteError, match=message):
        written(resolved, rows)

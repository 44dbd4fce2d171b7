"""Redaction: what replaces values is that of a model in plain Python, and no error contains a value."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.model import with_missing
from penstock.sinks.redaction import Redaction, RedactionKind

KEY = b"a secret key"
CANARY = "canary-4711"


def model(redaction: str, value: Any) -> Any:
    text = value if isinstance(value, str) else str(value)
    if value is None or redaction == "null":
        return None
    if redaction == "hash":
        return hmac.digest(KEY, text.encode(), hashlib.sha256).hex()
    if redaction == "last four":
        return "*" * len(text) if len(text) <= 4 else "*" * (len(text) - 4) + text[-4:]
    return redaction.removeprefix("fixed:")


@pytest.mark.parametrize("redaction", ["null", "hash", "last four", "fixed:", "fixed:gone 'é'", "fixed:null"])
@given(data=st.data())
def test_redacted_values_are_those_of_the_model(redaction: str, data: st.DataObject) -> None:
    kind, values = data.draw(
        st.sampled_from([(pa.string(), st.text(max_size=8)), (pa.int64(), st.integers(-(2**63), 2**63 - 1))])
    )
    rows = data.draw(st.lists(st.none() | values, max_size=12))
    first = data.draw(st.integers(0, len(rows)))
    parsed = Redaction.parse(redaction, "c")
    found = parsed.redact(pa.array(rows, kind).slice(first), "c", KEY)
    found.validate(full=True)
    assert found.type == parsed.field(pa.field("c", kind)).type
    assert found.type == (kind if redaction == "null" else pa.string())
    assert found.to_pylist() == [model(redaction, value) for value in rows[first:]]


def test_hash_depends_on_the_key() -> None:
    values, parsed = pa.array(["a", "b", "a"]), Redaction.parse("hash", "c")
    [one, other, same] = parsed.redact(values, "c", KEY).to_pylist()
    assert one == same != other
    assert parsed.redact(values, "c", b"another").to_pylist()[0] != one


def test_structured_values() -> None:
    values = pa.array([[1, 2], None, []], pa.list_(pa.int64()))
    found = Redaction.parse("hash", "c").redact(values, "c", KEY).to_pylist()
    assert found == [model("hash", "[1,2]"), None, model("hash", "[]")]
    with pytest.raises(UsageError, match="cannot be used for column c of type list") as caught:
        Redaction.parse("last four", "c").field(pa.field("c", values.type))
    assert caught.value.hint == "Use hash, null or fixed:TEXT."


@pytest.mark.parametrize("redaction", ["null", "hash", "last four", "fixed:x"])
def test_field_has_no_metadata_that_may_contain_values(redaction: str) -> None:
    given_field = pa.field("card", pa.string(), metadata={"postgres.type": "uuid", "connect.default": CANARY})
    given_field = with_missing(given_field, pa.array([CANARY]))
    found = Redaction.parse(redaction, "card").field(given_field)
    assert found.metadata == ({b"postgres.type": b"uuid"} if redaction == "null" else None)
    required = Redaction.parse(redaction, "card").field(pa.field("card", pa.string(), nullable=False))
    assert required.nullable == (redaction == "null")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("hahs", "Did you mean hash?"),
        ("last 4", "Did you mean last four?"),
        ("xyz", "Use one of: null, hash, last four, fixed:TEXT."),
        ("fixed", "Use one of: null, hash, last four, fixed:TEXT."),
    ],
)
def test_unknown_redaction(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match="unknown redaction") as caught:
        Redaction.parse(text, "card")
    assert caught.value.hint == hint


def test_only_hash_keeps_values_distinct() -> None:
    kinds = [Redaction(kind) for kind in RedactionKind]
    assert [one.kind for one in kinds if one.keeps_distinct] == [RedactionKind.HASH]


@pytest.mark.parametrize("redaction", ["hash", "last four"])
def test_error_has_no_value(redaction: str) -> None:
    number = 253_402_300_800_004_711
    values = pa.array([number], pa.int64()).cast(pa.timestamp("us"))
    with pytest.raises(DefiniteError) as caught:
        Redaction.parse(redaction, "c").redact(values, "c", KEY)
    error: BaseException | None = caught.value
    assert isinstance(error, PenstockError)
    while error is not None:
        assert "4711" not in str(error)
        assert "10000" not in str(error)
        error = error.__cause__ or error.__context__

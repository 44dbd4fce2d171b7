"""Corrupt messages: each has a problem without message contents, and none affects the messages around it."""

from __future__ import annotations

import json

import pytest
from tests.formats.conftest import batch
from tests.formats.corpus import CORRUPT, GOOD, SNAPSHOT, WRITERS, formats, problems_by_name

from penstock.formats.batch import decoder_for


def test_problems_of_corrupt_messages_match_the_snapshot() -> None:
    found = problems_by_name()
    assert len(found) >= 40
    assert found == json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    assert None not in found.values()


def test_no_problem_contains_message_contents() -> None:
    assert sum(b"secret" in message for _, message in CORRUPT.values()) >= 8
    assert [text for text in problems_by_name().values() if "secret" in str(text)] == []


@pytest.mark.parametrize("group", GOOD)
def test_valid_messages_among_corrupt_ones_are_decoded(group: str) -> None:
    bad = [message for of, message in CORRUPT.values() if of == group]
    mixed: list[bytes | None] = [None]
    for message in bad:
        mixed += [GOOD[group], message]
    resolved = formats()[group]
    decoder = decoder_for(resolved, WRITERS if resolved.is_framed else {})
    [alone] = decoder.decode(batch([GOOD[group]])).rows.to_pylist()
    result = decoder.decode(batch(mixed))
    result.rows.validate(full=True)
    assert result.rows.to_pylist() == [None, *[alone, None] * len(bad)]
    assert [text is None for text in result.problems.to_pylist()] == [True, *[True, False] * len(bad)]
    assert alone is not None

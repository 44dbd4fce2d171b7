"""The guard accepts every marker sequence that Penstock can write, also after a crash, and rejects all others."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.postgres.test_watermark import tokens

from penstock.positions import Lsn
from penstock.sources.postgres.replication.heartbeat import Beat
from penstock.sources.postgres.replication.interference import InterferenceGuard, Marker, MarkerKind
from penstock.sources.postgres.replication.watermark import MalformedTokenError, Mark, Watermark

US, OTHERS = "a1" * 16, "c3" * 16
COPY, REPAIR = "b2" * 16, "d4" * 16


def low(number: int, window: str = COPY, identity: str = US) -> Watermark:
    return Watermark(identity, window, number, Mark.LOW)


def high(number: int, window: str = COPY, identity: str = US) -> Watermark:
    return Watermark(identity, window, number, Mark.HIGH)


def marker(token: Watermark | Beat, *, in_table: bool = True) -> Marker:
    return Marker(MarkerKind.HEARTBEAT if isinstance(token, Beat) else MarkerKind.WATERMARK, in_table, token.token())


def verdicts(guard: InterferenceGuard, *markers: Marker, start: int = 100) -> list[str | None]:
    """The verdict on each marker, each in a transaction of its own."""
    found = [guard.check(marker, Lsn(start + at), at) for at, marker in enumerate(markers)]
    return [None if error is None else error.message for error in found]


ALLOWED = {
    "one after the other": [low(1), high(1), low(2), high(2)],
    "killed in a window": [low(1), high(1), low(2), low(2), high(2)],
    "killed in a window that is then skipped": [low(1), low(2), high(2)],
    "killed before it was stored": [low(1), high(1), low(1), high(1)],
    "two at once": [low(1), low(7, REPAIR), high(1), low(2), high(7, REPAIR), high(2)],
    "heartbeats": [Beat(US, 1), Beat(US, 2), Beat(US, 5), Beat(US, 1), Beat(US, 2)],
}
REJECTED = {
    "HIGH of another window": [low(1), high(2)],
    "HIGH twice": [low(1), high(1), high(1)],
    "HIGH of the one before": [low(1), high(1), low(2), high(1)],
    "LOW goes back": [low(3), high(3), low(2)],
    "heartbeat again": [Beat(US, 1), Beat(US, 2), Beat(US, 2)],
}


@pytest.mark.parametrize("in_table", [True, False])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("tokens", ALLOWED.values(), ids=ALLOWED)
def test_valid_sequences_are_accepted(tokens: list[Watermark | Beat], whole: bool, in_table: bool) -> None:
    markers = [marker(token, in_table=in_table) for token in tokens]
    assert verdicts(InterferenceGuard("shop", US, whole=whole), *markers) == [None] * len(markers)


@pytest.mark.parametrize("in_table", [True, False])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("tokens", REJECTED.values(), ids=REJECTED)
def test_invalid_sequences_are_rejected(tokens: list[Watermark | Beat], whole: bool, in_table: bool) -> None:
    *before, last = verdicts(
        InterferenceGuard("shop", US, whole=whole), *(marker(token, in_table=in_table) for token in tokens)
    )
    assert before == [None] * (len(tokens) - 1)
    assert last


def test_capture_that_started_between_low_and_high() -> None:
    assert verdicts(InterferenceGuard("shop", US), marker(high(4)), marker(low(5)), marker(high(5))) == [None] * 3
    assert verdicts(InterferenceGuard("shop", US), marker(high(4)), marker(high(4)))[1]
    assert "without its LOW" in str(verdicts(InterferenceGuard("shop", US, whole=True), marker(high(4)))[0])


def test_another_source_may_write_messages_but_not_rows() -> None:
    """The contents of its messages are not checked."""
    tokens: list[Watermark | Beat] = [
        high(5, identity=OTHERS),
        low(1, identity=OTHERS),
        Beat(OTHERS, 3),
        Beat(OTHERS, 3),
        low(1),
        high(1),
    ]
    messages = [marker(token, in_table=False) for token in tokens]
    assert verdicts(InterferenceGuard("shop", US, whole=True), *messages) == [None] * len(tokens)
    assert all(verdicts(InterferenceGuard("shop", US), marker(token))[0] for token in tokens[:4])


@pytest.mark.parametrize("in_table", [True, False])
@pytest.mark.parametrize("subject", list(MarkerKind))
def test_error_names_object_position_and_transaction(subject: MarkerKind, in_table: bool) -> None:
    secret = "the secret of another session"
    error = InterferenceGuard("shop", US).check(Marker(subject, in_table, secret), Lsn(0x1000000A0), 4711)
    assert error is not None
    assert (str(subject.table) if in_table else subject.prefix) in error.message
    assert "no token" in error.message
    assert "transaction 4711" in error.message
    assert "1/A0" in error.message
    assert "shop" in error.hint
    assert secret not in str(error)


def test_accepted_interference_is_skipped_and_later_interference_is_not() -> None:
    guard = InterferenceGuard("shop", US, accepted=Lsn(101), whole=True)
    deleted = Marker(MarkerKind.WATERMARK, in_table=True, violation="a row was deleted")
    assert [bool(verdict) for verdict in verdicts(guard, marker(low(1)), deleted, deleted)] == [False, False, True]
    again = InterferenceGuard("shop", US, accepted=Lsn(101), whole=True)
    assert verdicts(again, marker(low(1)), deleted, marker(high(1))) == [None] * 3, "its LOW was not checked"


@given(st.text(), st.sampled_from(MarkerKind), st.booleans())
def test_garbage_is_always_rejected(text: str, subject: MarkerKind, in_table: bool) -> None:
    assert InterferenceGuard("shop", US).check(Marker(subject, in_table, text), Lsn(1), 1) is not None


@given(tokens, st.sampled_from(MarkerKind), st.booleans())
def test_markers_of_other_sources_are_accepted_only_as_messages(
    token: Watermark | Beat, subject: MarkerKind, in_table: bool
) -> None:
    fits = isinstance(token, Watermark) == (subject is MarkerKind.WATERMARK)
    passes = InterferenceGuard("shop", US).check(Marker(subject, in_table, token.token()), Lsn(1), 1) is None
    assert passes == (fits and (token.identity == US or not in_table))


@given(st.data())
def test_any_crash_of_any_snapshot_is_accepted(data: st.DataObject) -> None:
    """Concurrent snapshots and repairs, each killed at any point; capture is killed at any point, too."""
    guard, at = InterferenceGuard("shop", US, whole=True), itertools.count(1)
    windows = dict.fromkeys((COPY, REPAIR), (1, False))
    for _ in range(data.draw(st.integers(1, 60))):
        window = data.draw(st.sampled_from(sorted(windows)))
        number, opened = windows[window]
        match data.draw(st.sampled_from(["continue", "continue", "continue", "killed", "capture killed"])):
            case "continue":
                token = high(number, window) if opened else low(number, window)
                assert guard.check(marker(token), Lsn(next(at)), 1) is None
                stored = opened and data.draw(st.booleans())
                windows[window] = (number + stored, not opened)
            case "killed":
                windows[window] = (number, False)
            case "capture killed":
                guard = InterferenceGuard("shop", US)


def test_own_tokens_are_validated_on_creation() -> None:
    for bad in ({"number": 0}, {"identity": ""}, {"window": "XYZ"}):
        with pytest.raises(MalformedTokenError):
            Watermark(**{"identity": US, "window": COPY, "number": 1, "mark": Mark.LOW, **bad})  # type: ignore[arg-type]

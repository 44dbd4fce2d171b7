"""The guard: what a Penstock can write passes, also one that was killed; what it cannot write does not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.postgres.test_watermark import tokens

from penstock.positions import Lsn
from penstock.sources.postgres.heartbeat import Beat
from penstock.sources.postgres.signals import Guard, Sign, Subject
from penstock.sources.postgres.watermark import MalformedTokenError, Mark, Watermark

US, OTHERS = "a1" * 16, "c3" * 16
COPY, REPAIR = "b2" * 16, "d4" * 16


def low(number: int, window: str = COPY, identity: str = US) -> Watermark:
    return Watermark(identity, window, number, Mark.LOW)


def high(number: int, window: str = COPY, identity: str = US) -> Watermark:
    return Watermark(identity, window, number, Mark.HIGH)


def sign(token: Watermark | Beat, *, in_table: bool = True) -> Sign:
    return Sign(Subject.HEARTBEAT if isinstance(token, Beat) else Subject.WATERMARK, in_table, token.token())


def verdicts(guard: Guard, *signs: Sign, start: int = 100) -> list[str | None]:
    """What is said of each sign, in transactions of their own."""
    found = [guard.judge(sign, Lsn(start + at), at) for at, sign in enumerate(signs)]
    return [None if error is None else error.message for error in found]


ALLOWED = {
    "one after the other": [low(1), high(1), low(2), high(2)],
    "killed in a window": [low(1), high(1), low(2), low(2), high(2)],
    "killed in a window that is then passed": [low(1), low(2), high(2)],
    "killed before it was kept": [low(1), high(1), low(1), high(1)],
    "two at once": [low(1), low(7, REPAIR), high(1), low(2), high(7, REPAIR), high(2)],
    "heartbeats": [Beat(US, 1), Beat(US, 2), Beat(US, 5), Beat(US, 1), Beat(US, 2)],
}
REFUSED = {
    "HIGH of another window": [low(1), high(2)],
    "HIGH twice": [low(1), high(1), high(1)],
    "HIGH of the one before": [low(1), high(1), low(2), high(1)],
    "LOW goes back": [low(3), high(3), low(2)],
    "heartbeat again": [Beat(US, 1), Beat(US, 2), Beat(US, 2)],
}


@pytest.mark.parametrize("in_table", [True, False])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("tokens", ALLOWED.values(), ids=ALLOWED)
def test_what_a_penstock_can_write(tokens: list[Watermark | Beat], whole: bool, in_table: bool) -> None:
    signs = [sign(token, in_table=in_table) for token in tokens]
    assert verdicts(Guard("shop", US, whole=whole), *signs) == [None] * len(signs)


@pytest.mark.parametrize("in_table", [True, False])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("tokens", REFUSED.values(), ids=REFUSED)
def test_what_it_cannot(tokens: list[Watermark | Beat], whole: bool, in_table: bool) -> None:
    *before, last = verdicts(Guard("shop", US, whole=whole), *(sign(token, in_table=in_table) for token in tokens))
    assert before == [None] * (len(tokens) - 1)
    assert last


def test_a_capture_that_began_between_low_and_high() -> None:
    assert verdicts(Guard("shop", US), sign(high(4)), sign(low(5)), sign(high(5))) == [None] * 3
    assert verdicts(Guard("shop", US), sign(high(4)), sign(high(4)))[1]
    assert "without its LOW" in str(verdicts(Guard("shop", US, whole=True), sign(high(4)))[0])


def test_another_source_may_write_messages_and_no_rows() -> None:
    """Whatever it writes: its protocol is its own affair."""
    tokens: list[Watermark | Beat] = [
        high(5, identity=OTHERS),
        low(1, identity=OTHERS),
        Beat(OTHERS, 3),
        Beat(OTHERS, 3),
        low(1),
        high(1),
    ]
    messages = [sign(token, in_table=False) for token in tokens]
    assert verdicts(Guard("shop", US, whole=True), *messages) == [None] * len(tokens)
    assert all(verdicts(Guard("shop", US), sign(token))[0] for token in tokens[:4])


@pytest.mark.parametrize("in_table", [True, False])
@pytest.mark.parametrize("subject", list(Subject))
def test_the_error_says_what_where_and_by_whom(subject: Subject, in_table: bool) -> None:
    secret = "somebody's secret"
    error = Guard("shop", US).judge(Sign(subject, in_table, secret), Lsn(0x1000000A0), 4711)
    assert error is not None
    assert (str(subject.table) if in_table else subject.prefix) in error.message
    assert "no token" in error.message
    assert "transaction 4711" in error.message
    assert "1/A0" in error.message
    assert "shop" in error.hint
    assert secret not in str(error)


def test_what_was_accepted_is_passed_over_and_nothing_after_it() -> None:
    guard = Guard("shop", US, accepted=Lsn(101), whole=True)
    deleted = Sign(Subject.WATERMARK, in_table=True, wrong="a row was deleted")
    assert [bool(said) for said in verdicts(guard, sign(low(1)), deleted, deleted)] == [False, False, True]
    again = Guard("shop", US, accepted=Lsn(101), whole=True)
    assert verdicts(again, sign(low(1)), deleted, sign(high(1))) == [None] * 3, "its LOW was not looked at"


@given(st.text(), st.sampled_from(Subject), st.booleans())
def test_garbage_never_passes(text: str, subject: Subject, in_table: bool) -> None:
    assert Guard("shop", US).judge(Sign(subject, in_table, text), Lsn(1), 1) is not None


@given(tokens, st.sampled_from(Subject), st.booleans())
def test_only_messages_of_others_pass(token: Watermark | Beat, subject: Subject, in_table: bool) -> None:
    fits = isinstance(token, Watermark) == (subject is Subject.WATERMARK)
    passes = Guard("shop", US).judge(Sign(subject, in_table, token.token()), Lsn(1), 1) is None
    assert passes == (fits and (token.identity == US or not in_table))


@given(st.data())
def test_any_crashes_of_any_copies_pass(data: st.DataObject) -> None:
    """Copies and repairs at once, each killed anywhere; and capture killed anywhere, too."""
    guard, at = Guard("shop", US, whole=True), itertools.count(1)
    places = dict.fromkeys((COPY, REPAIR), (1, False))
    for _ in range(data.draw(st.integers(1, 60))):
        window = data.draw(st.sampled_from(sorted(places)))
        number, opened = places[window]
        match data.draw(st.sampled_from(["go on", "go on", "go on", "killed", "capture killed"])):
            case "go on":
                token = high(number, window) if opened else low(number, window)
                assert guard.judge(sign(token), Lsn(next(at)), 1) is None
                kept = opened and data.draw(st.booleans())
                places[window] = (number + kept, not opened)
            case "killed":
                places[window] = (number, False)
            case "capture killed":
                guard = Guard("shop", US)


def test_tokens_of_ours_are_checked_when_they_are_made() -> None:
    for bad in ({"number": 0}, {"identity": ""}, {"window": "XYZ"}):
        with pytest.raises(MalformedTokenError):
            Watermark(**{"identity": US, "window": COPY, "number": 1, "mark": Mark.LOW, **bad})  # type: ignore[arg-type]

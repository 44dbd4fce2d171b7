"""How long apply pauses between rounds."""

from __future__ import annotations

import pytest

from penstock.engine import table_loops
from penstock.engine.table_loops import apply_rest, pause_after
from penstock.errors import UsageError


def test_pause_is_proportional_to_the_round_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_loops, "_SHORTEST_PAUSE", 2.0)  # tests have a shorter one
    assert [pause_after(seconds, 3.0) for seconds in (0.1, 1.0, 10.0, 100.0)] == [2.0, 3.0, 30.0, 60.0]
    assert pause_after(100.0, 0.0) == 2.0


def test_factor_is_configurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_APPLY_REST", raising=False)
    assert apply_rest() == 3.0
    monkeypatch.setenv("PENSTOCK_APPLY_REST", "0.25")
    assert apply_rest() == 0.25
    for wrong in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv("PENSTOCK_APPLY_REST", wrong)
        with pytest.raises(UsageError, match=f"invalid value '{wrong}' of PENSTOCK_APPLY_REST"):
            apply_rest()

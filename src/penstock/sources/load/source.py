"""A load generator as a source. Its state depends only on its position in the log, so it stores no notes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, model_validator

from penstock.changelog.interface import ChangeLog
from penstock.errors import UsageError
from penstock.positions import Lsn
from penstock.sources.interface import Source
from penstock.sources.load.auction import Auction
from penstock.sources.load.bank import Bank
from penstock.sources.load.options import LoadSqlOptions, LoadWithOptions
from penstock.sources.load.scenario import Scenario
from penstock.sources.polling import PollingConfig, PollingInstance
from penstock.sources.polling_steps import Step

__all__ = ["LoadConfig", "LoadInstance", "LoadSource"]

_TICK_SECONDS = 0.02
_AT_ONCE = 20_000


class LoadConfig(PollingConfig):
    """The config of a load generator."""

    bank: bool
    rate: float
    seed: int
    transactions: int | None
    size: int
    """The number of accounts or users."""

    def place(self) -> str:
        """Describe the generated load."""
        return f"a generated {'bank' if self.bank else 'auction'}, seed {self.seed}"


def _scenario(source: str, seed: int, size: int, *, bank: bool) -> Scenario:
    """Return a load at its initial position."""
    return Bank(source, seed, size) if bank else Auction(source, seed, size)


class LoadSource(Source, LoadSqlOptions, LoadWithOptions):
    """A source with a generated load."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    NAME: ClassVar[str] = "LOAD GENERATOR"
    SqlOptions: ClassVar[type[LoadSqlOptions]] = LoadSqlOptions
    WithOptions: ClassVar[type[LoadWithOptions]] = LoadWithOptions
    ALTERABLE: ClassVar[frozenset[str]] = frozenset({"retain_history", "rate"})

    @model_validator(mode="after")
    def _options_of_the_other(self) -> Self:
        wrong = "users" if self.bank else "accounts"
        if getattr(self, wrong) != type(self).model_fields[wrong].default:
            message = f"option {wrong} cannot be combined with {'BANK' if self.bank else 'AUCTION'}"
            raise UsageError(message, f"Remove the option {wrong}.")
        return self

    def create_instances(self, workers: int) -> Sequence[LoadConfig]:
        """Return the only instance."""
        size = self.accounts if self.bank else self.users
        return [
            LoadConfig(
                source=self.name,
                retain_history=self.retain_history,
                tables=tuple(_scenario(self.name, self.seed, size, bank=self.bank).tables()),
                bank=self.bank,
                rate=self.rate,
                seed=self.seed,
                transactions=self.transactions,
                size=size,
            )
        ]

    def place(self) -> str:
        """Describe the generated load."""
        return self.create_instances(1)[0].place()


class LoadInstance(PollingInstance[LoadConfig]):
    """Generates transactions at the given rate; after a pause or a crash it resumes, and does not catch up."""

    def __init__(self, config: LoadConfig, log: ChangeLog, state: Path) -> None:
        super().__init__(config, log, state)
        self._load = _scenario(config.source, config.seed, config.size, bank=config.bank)
        self._began = (0.0, 0)

    def resume(self, at: Lsn, noted: Mapping[str, Any]) -> None:
        """Set the load to the log's position."""
        self._load.go_to(int(at))
        self._began = (time.monotonic(), int(at))

    def next_step(self, at: Lsn, noted: Mapping[str, Any]) -> Step | None:
        """Return the transactions that are due."""
        since, first = self._began
        due = first + 1 + int((time.monotonic() - since) * self._config.rate)
        most = due if self._config.transactions is None else min(due, self._config.transactions)
        count = min(most - int(at), _AT_ONCE)
        if count <= 0:
            return None
        return Step(self._load.next(count), transactions=count)

    def pause(self) -> float:
        """Return a short interval, after which transactions may be due."""
        return _TICK_SECONDS

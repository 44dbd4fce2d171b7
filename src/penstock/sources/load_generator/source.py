"""The kind ``LOAD GENERATOR``: a source that generates a load, its options and its instance.

The state of an instance depends only on its position in the log, so it stores no notes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from penstock.changelog.interface import ChangeLog
from penstock.errors import UsageError
from penstock.positions import Lsn
from penstock.sources.interface import Kind, Source, SourceOptions
from penstock.sources.load_generator.scenarios import Auction, Bank, Scenario
from penstock.sources.polling import PollingConfig, PollingFactory, PollingInstance
from penstock.sources.polling_steps import Step
from penstock.sql.syntax.options import Keyword

__all__ = ["KIND", "LoadConfig", "LoadInstance", "LoadSource", "LoadSqlOptions", "LoadWithOptions"]


class LoadSqlOptions(BaseModel):
    """The scenario: exactly one of these."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    bank: Annotated[bool, Keyword("BANK", one_of="load")] = Field(
        default=False,
        description="a bank with accounts and transfers between them; the sum of all balances is constant",
    )
    auction: Annotated[bool, Keyword("AUCTION", one_of="load")] = Field(
        default=False, description="an auction house with organizations, users, auctions and bids"
    )

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.bank == self.auction:
            message = "a LOAD GENERATOR source requires exactly one of BANK and AUCTION"
            raise UsageError(message, "Write FROM LOAD GENERATOR BANK; or FROM LOAD GENERATOR AUCTION;")
        return self


class LoadWithOptions(SourceOptions):
    """Rate and size of the load."""

    rate: float = Field(default=10, gt=0, le=1e6, description="maximum number of transactions per second")
    seed: int = Field(default=1, ge=0, lt=2**63, description="the same seed gives the same transactions")
    transactions: int | None = Field(default=None, ge=1, description="total number of transactions; default: no limit")
    accounts: int = Field(default=1000, ge=2, le=1_000_000, description="number of accounts (BANK only)")
    users: int = Field(default=1000, ge=1, le=1_000_000, description="number of users (AUCTION only)")


# -- source ------------------------------------------------------------------------------------------------------------


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


# -- instance ----------------------------------------------------------------------------------------------------------

_TICK_SECONDS = 0.02
_AT_ONCE = 20_000


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


KIND = Kind(LoadSource, LoadConfig, lambda: PollingFactory(LoadInstance))

"""The options of a load generator."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from penstock.errors import UsageError
from penstock.sources.interface import SourceOptions
from penstock.sources.option_syntax import Keyword

__all__ = ["LoadSqlOptions", "LoadWithOptions"]


class LoadSqlOptions(BaseModel):
    """Which load: one of these."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    bank: Annotated[bool, Keyword("BANK", one_of="load")] = Field(
        default=False, description="accounts, and transfers between them: their balances always have the same sum"
    )
    auction: Annotated[bool, Keyword("AUCTION", one_of="load")] = Field(
        default=False, description="organizations, their users, and the auctions and bids of these"
    )

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.bank == self.auction:
            message = "it is not said which load is to be generated, or said twice"
            raise UsageError(message, "Write: FROM LOAD GENERATOR BANK; or: FROM LOAD GENERATOR AUCTION;")
        return self


class LoadWithOptions(SourceOptions):
    """How much of it."""

    rate: float = Field(default=10, gt=0, le=1e6, description="transactions in a second, or as many as there can be")
    seed: int = Field(default=1, ge=0, lt=2**63, description="the same seed gives the same transactions")
    transactions: int | None = Field(default=None, ge=1, description="how many there are in all; without, no end")
    accounts: int = Field(default=1000, ge=2, le=1_000_000, description="of a bank: how many accounts it has")
    users: int = Field(default=1000, ge=1, le=1_000_000, description="of auctions: how many users there are")

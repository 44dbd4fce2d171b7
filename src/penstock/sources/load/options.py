"""The options of a load generator."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from penstock.errors import UsageError
from penstock.sources.interface import SourceOptions
from penstock.sources.option_syntax import Keyword

__all__ = ["LoadSqlOptions", "LoadWithOptions"]


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

"""Decimals from the bytes that Java's BigInteger has: the unscaled value, most significant byte first, with a sign.

Spark has no function for that, so the bytes become two halves of 64 bits, by their hexadecimal digits, and these one
number. That holds up to 38 digits (16 bytes); for more the result is null.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

__all__ = ["decimal_of", "plain_text", "unscaled"]


def unscaled(data: Column) -> Column:
    """Return the whole number that bytes stand for, as DECIMAL(38,0); null where it has more digits."""
    digits = F.hex(data)
    negative = F.substring(digits, 1, 1).isin(*"89ABCDEF")
    padded = F.when(negative, F.lpad(digits, 32, "F")).otherwise(F.lpad(digits, 32, "0"))
    high, low = (_unsigned(F.substring(padded, start, 16)) for start in (1, 17))
    shift = F.lit(str(2**64)).cast("decimal(20,0)")
    signed = F.when(negative, high - shift).otherwise(high).cast("decimal(20,0)")
    number = F.try_add(F.try_multiply(signed, shift), low).cast("decimal(38,0)")
    return F.when(F.length(data).between(1, 16), number)


def decimal_of(number: Column, digits: int, scale: int) -> Column:
    """Return an unscaled number as DECIMAL(digits, scale); null where it has more digits."""
    return F.concat(number.cast("string"), F.lit(f"E-{scale}")).try_cast(f"decimal({digits},{scale})")


def plain_text(number: Column, scale: Column) -> Column:
    """Return an unscaled number with its point, and all its digits, as Postgres prints a numeric."""
    digits = F.abs(number).cast("string")
    sign = F.when(number < 0, F.lit("-")).otherwise(F.lit(""))
    long = F.lpad(digits, F.greatest(F.length(digits), scale + 1), F.lit("0"))
    whole, rest = F.substring(long, F.lit(1), F.length(long) - scale), F.right(long, scale)
    zeros = F.when(number == 0, F.lit("")).otherwise(F.repeat(F.lit("0"), -scale))
    text = F.when(scale > 0, F.concat(whole, F.lit("."), rest)).otherwise(F.concat(digits, zeros))
    return F.concat(sign, text)


def _unsigned(digits: Column) -> Column:
    return F.conv(digits, 16, 10).cast("decimal(20,0)")

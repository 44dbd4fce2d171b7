"""Decimals from the bytes that Java's BigInteger has: the unscaled value, most significant byte first, with a sign.

Spark has no function for that, so the bytes become two halves of 64 bits, by their hexadecimal digits, and these one
number. That holds up to 38 digits (16 bytes); for more the result is null.

Neither a sign is turned nor an absolute value taken of a DECIMAL here: Spark rounds both to 34 digits.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

__all__ = ["decimal_of", "plain_text", "unscaled"]

_HEX = "0123456789ABCDEF"
_MOST = divmod(10**38 - 1, 2**64)


def unscaled(data: Column) -> Column:
    """Return the whole number that bytes stand for, as DECIMAL(38,0); null where it has more digits."""
    digits = F.hex(data)
    negative = F.substring(digits, 1, 1).isin(*"89ABCDEF")
    # Of a negative number all bits are turned, which gives one less than its size: no step leaves the 38 digits.
    turned = F.when(negative, F.translate(digits, _HEX, _HEX[::-1])).otherwise(digits)
    padded = F.lpad(turned, 32, "0")
    high, low = (_unsigned(F.substring(padded, start, 16)) for start in (1, 17))
    most_high, most_low = map(_whole, _MOST)
    fits = (high < most_high) | ((high == most_high) & (low <= most_low - negative.cast("int")))
    held = F.when(F.length(data).between(1, 16) & fits, high)
    size = (held.cast("decimal(38,0)") * _whole(2**64) + low).cast("decimal(38,0)")
    return F.when(negative, _whole(-1) - size).otherwise(size).cast("decimal(38,0)")


def decimal_of(number: Column, digits: int, scale: int) -> Column:
    """Return an unscaled number as DECIMAL(digits, scale); null where it has more digits."""
    return F.concat(number.cast("string"), F.lit(f"E-{scale}")).try_cast(f"decimal({digits},{scale})")


def plain_text(number: Column, scale: Column) -> Column:
    """Return an unscaled number with its point, and all its digits, as Postgres prints a numeric."""
    digits = F.translate(number.cast("string"), "-", "")
    sign = F.when(number < 0, F.lit("-")).otherwise(F.lit(""))
    long = F.lpad(digits, F.greatest(F.length(digits), scale + 1), F.lit("0"))
    whole, rest = F.substring(long, F.lit(1), F.length(long) - scale), F.right(long, scale)
    zeros = F.when(number == 0, F.lit("")).otherwise(F.repeat(F.lit("0"), -scale))
    text = F.when(scale > 0, F.concat(whole, F.lit("."), rest)).otherwise(F.concat(digits, zeros))
    return F.concat(sign, text)


def _unsigned(digits: Column) -> Column:
    return F.conv(digits, 16, 10).cast("decimal(20,0)")


def _whole(number: int) -> Column:
    return F.lit(str(number)).cast("decimal(20,0)")

"""inet, cidr, macaddr, macaddr8 → string, as Postgres prints them.

The binary form of inet and cidr is family (2 for IPv4, 3 for IPv6), bits of the mask, whether it is a cidr, size of the
address, address. inet omits the mask of a single host, cidr never does. The longest run of two or more zero words of an
IPv6 address becomes `::`; an address that embeds an IPv4 address ends in its dotted form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types as nb

from penstock.sources.postgres.types.codec import Bytes, Ints
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, inlined, kernel, read16, start
from penstock.sources.postgres.types.text_output import DIGIT, fixed_room, put_hex, put_number, text_output_codec

__all__ = ["INET", "MACADDR", "MACADDR8"]

_REASONS = ("malformed network address",)
_WIDEST = 48
_V4, _V6 = 2, 3


@inlined
def _put_dotted(data: Bytes, end: Any, buf: Bytes, at: int) -> Any:
    for k in range(4):
        if k:
            data[end] = 46
            end += 1
        end = put_number(data, end, np.uint64(buf[at + k]))
    return end


@inlined
def _put_word(data: Bytes, end: Any, word: int) -> Any:
    shift = 12
    while shift and word >> shift == 0:
        shift -= 4
    while shift >= 0:
        data[end] = DIGIT[(word >> shift) & 15]
        end += 1
        shift -= 4
    return end


@inlined
def _longest_zeros(buf: Bytes, at: int) -> tuple[int, int]:
    """Return start and length of the first longest run of two or more zero words; (-1, 0) if there is none."""
    best, most, run = -1, 1, 0
    for word in range(8):
        run = run + 1 if read16(buf, at + 2 * word) == 0 else 0
        if run > most:
            best, most = word + 1 - run, run
    return (best, most) if best >= 0 else (-1, 0)


@inlined
def _put_colons(data: Bytes, end: Any, buf: Bytes, at: int) -> Any:
    base, size = _longest_zeros(buf, at)
    embeds = base == 0 and (size == 6 or (size == 5 and read16(buf, at + 10) == 0xFFFF))
    for word in range(8):
        if base <= word < base + size:
            if word == base:
                data[end] = 58
                end += 1
            continue
        if word:
            data[end] = 58
            end += 1
        if word == 6 and embeds:
            return _put_dotted(data, end, buf, at + 12)
        end = _put_word(data, end, read16(buf, at + 2 * word))
    if base >= 0 and base + size == 8:
        data[end] = 58
        end += 1
    return end


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_inet(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        at = start(off, r)
        if length[r] < 4:
            return blame(r, 0)
        family, bits, cidr, size = buf[at], buf[at + 1], buf[at + 2], buf[at + 3]
        expected = 4 if family == _V4 else 16
        if (family != _V4 and family != _V6) or size != expected or length[r] != 4 + expected:
            return blame(r, 0)
        if bits > 8 * expected or cidr > 1:
            return blame(r, 0)
        end = _put_dotted(data, end, buf, at + 4) if family == _V4 else _put_colons(data, end, buf, at + 4)
        if cidr or bits != 8 * expected:
            data[end] = 47
            end = put_number(data, end + 1, np.uint64(bits))
    offsets[length.size] = end
    return FINE


@inlined
def _print_mac(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes, width: int) -> int:
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        if length[r] != width:
            return blame(r, 0)
        at = start(off, r)
        for k in range(width):
            if k:
                data[end] = 58
                end += 1
            end = put_hex(data, end, buf[at + k])
    offsets[length.size] = end
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_mac6(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    return _print_mac(buf, off, length, offsets, data, 6)


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_mac8(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    return _print_mac(buf, off, length, offsets, data, 8)


INET = text_output_codec(_print_inet, fixed_room(_WIDEST), _REASONS)
MACADDR = text_output_codec(_print_mac6, fixed_room(17), _REASONS)
MACADDR8 = text_output_codec(_print_mac8, fixed_room(23), _REASONS)

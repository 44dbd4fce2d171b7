"""Kernels stay inside their buffers: every buffer ends at a page that cannot be accessed.

numba compiles without bounds checks: a kernel that trusts a length in its input would read or write the memory after a
buffer. Here the last byte of every input is the last byte before a page without access, and so is the last byte of
every array that a decoder allocates. One access too far is a segmentation fault.

Inputs are valid samples, every truncation of them, and samples with changed bytes. Each group of kernels runs in a
separate process (``python -m tests.test_kernel_bounds GROUP SEED``), which prints each input before it decodes it: if
it dies, the last line is the input that caused it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import mmap
import os
import random
import re
import signal
import struct
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import llvmlite.binding
import numba
import numpy as np
import numpy.ma  # it copies `numpy.empty`, and numba would load it after `guard_allocations`
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import kernel_cache
from penstock.errors import PenstockError
from tests.seeds import seed

ROOT = Path(__file__).parent.parent
SRC = Path(kernel_cache.__file__).parent
KERNEL = re.compile(r"^@(?:compiled|kernel\(.*|cached_njit\(.*)\ndef (\w+)", re.M)
"""The functions that Python calls; those that they call are compiled into them."""

CHANGES = int(os.environ.get("PENSTOCK_KERNEL_CHANGES", "40"))
"""The number of copies with changed bytes of each sample of a value or message."""
FEW = 8
"""The same in the fast tier, which truncates every sample at every byte as the deep tier does."""
SPECIAL = b'"\\{}()[]<>,;:=/ \n\r09TNue.-+\0\1\x7f\x80\xff'
NUMBERS = (0, 1, 127, 128, 2**15 - 1, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)

# -- memory ------------------------------------------------------------------------------------------------------------

_mprotect = ctypes.CDLL(None).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NO_ACCESS = 0


def guarded(shape: int | Sequence[int], dtype: Any = float, *, fill: int = 0xA5, at_start: bool = False) -> Any:
    """Allocate an array whose last byte is right before a page without access; `at_start`: its first byte after one."""
    kind, page = np.dtype(dtype), mmap.PAGESIZE
    size = kind.itemsize * (math.prod(shape) if isinstance(shape, Sequence) else int(shape))
    whole = -(-size // page) * page
    memory = np.frombuffer(mmap.mmap(-1, whole + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    first, guard = (page, 0) if at_start else (whole - size, whole)
    assert _mprotect(memory.ctypes.data + guard, page, _NO_ACCESS) == 0
    own = memory[first : first + size]
    if fill:
        own.fill(fill)
    return own.view(kind).reshape(shape)


def guarded_zeros(shape: int | Sequence[int], dtype: Any = float) -> Any:
    return guarded(shape, dtype, fill=0)


def guarded_copy(values: Any, dtype: Any = np.uint8, *, at_start: bool = False) -> Any:
    copy = guarded(len(values), dtype, at_start=at_start)
    copy[:] = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else values
    return copy


def guard_allocations() -> None:
    """Let decoders allocate guarded arrays; kernels must be compiled before, because numba knows `numpy.empty`."""
    sys.modules["dateutil"] = None  # type: ignore[assignment] # pyarrow looks for it in each conversion: most of the time
    mock.patch.multiple(np, empty=guarded, zeros=guarded_zeros).start()
    mock.patch.object(pa, "allocate_buffer", lambda size: pa.py_buffer(guarded(size, np.uint8))).start()


# -- inputs ------------------------------------------------------------------------------------------------------------


def variants(rng: random.Random, sample: bytes, changes: int = CHANGES) -> Iterator[bytes]:
    """Yield a sample, every truncation of it, and copies with changed bytes."""
    yield from (sample[:end] for end in range(len(sample), -1, -1))
    yield from (changed(rng, sample) for _ in range(changes))


def changed(rng: random.Random, sample: bytes) -> bytes:
    """Change a sample in one to three places: set bytes or numbers, remove bytes, repeat bytes."""
    data = bytearray(sample)
    for _ in range(rng.randint(1, 3)):
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8))
        number = rng.choice((*NUMBERS, rng.randrange(2 * len(data) + 4))) % 256**size
        data[at : at + rng.choice((0, size))] = rng.choice(
            (
                bytes([rng.choice(SPECIAL)]),
                number.to_bytes(size, rng.choice(("big", "little"))),
                b"",
                bytes(data[at : at + 2 * size]),
            )
        )
    return bytes(data)


def announce(name: str, data: bytes) -> None:
    os.write(1, f"{name}: {data.hex()}\n".encode())


# -- values of Postgres ------------------------------------------------------------------------------------------------


def sized(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def array(oid: int, *items: bytes | None, bound: int = 1) -> bytes:
    return struct.pack(">iiIii", 1, 0, oid, len(items), bound) + b"".join(sized(item) for item in items)


def composite(*fields: tuple[int, bytes | None]) -> bytes:
    return struct.pack(">i", len(fields)) + b"".join(struct.pack(">I", oid) + sized(value) for oid, value in fields)


def int4(value: int) -> bytes:
    return struct.pack(">i", value)


def int4range(lower: int, upper: int) -> bytes:
    return b"\2" + sized(int4(lower)) + sized(int4(upper))


LONGEST = -2.2250738585072014e-308
"""A double whose text is as long as that of a double can be: 24 characters."""
MONTHS = b"P1Y-2M3DT-4H5M-6.5S"
DAYS = struct.pack(">qii", -14_106_500_000, 3, 10)
SCALARS: list[tuple[int, bytes, bytes | None]] = [
    (16, b"t", b"\1"),
    (17, b"\\x00ff10", b"\x00\xff\x10"),
    (18, b"\\351", b"\xe9"),
    (20, b"-9223372036854775808", struct.pack(">q", -(2**63))),
    (21, b"-123", struct.pack(">h", -123)),
    (22, b"1 -2 30", array(21, *(struct.pack(">h", v) for v in (1, -2, 30)), bound=0)),
    (23, b"2147483647", int4(2**31 - 1)),
    (25, "naïve".encode(), "naïve".encode()),
    (26, b"4294967295", b"\xff" * 4),
    (27, b"(4294967295,65535)", b"\xff" * 6),
    (600, f"({LONGEST},{LONGEST})".encode(), struct.pack(">2d", LONGEST, LONGEST)),
    (601, b"[(0,0),(1,1.5)]", struct.pack(">4d", 0, 0, 1, 1.5)),
    (602, b"((0,0),(1,2))", b"\1" + struct.pack(">i4d", 2, 0, 0, 1, 2)),
    (602, b"[(0,0)]", b"\0" + struct.pack(">i2d", 1, 0, 0)),
    (603, b"(1,1),(0,-0)", struct.pack(">4d", 1, 1, 0, -0.0)),
    (604, f"(({LONGEST},0),(1e+20,0.0001))".encode(), struct.pack(">i4d", 2, LONGEST, 0, 1e20, 1e-4)),
    (628, b"{1,NaN,-Infinity}", struct.pack(">3d", 1, math.nan, -math.inf)),
    (700, b"1.5e-05", struct.pack(">f", 1.5e-5)),
    (701, str(LONGEST).encode(), struct.pack(">d", LONGEST)),
    (701, b"123456789012345678901234567890", struct.pack(">d", 123456789012345678901234567890.0)),
    (718, b"<(1,2),3>", struct.pack(">3d", 1, 2, 3)),
    (774, b"08:00:2b:01:02:03:04:05", bytes.fromhex("08002b0102030405")),
    (790, b"$1.00", None),
    (829, b"08:00:2b:01:02:03", bytes.fromhex("08002b010203")),
    (869, b"10.0.0.1/8", b"\2\x08\0\4\x0a\0\0\1"),
    (869, ":".join(["ffff"] * 8).encode() + b"/127", b"\3\x7f\0\x10" + b"\xff" * 16),
    (869, b"::ffff:1.2.3.4", b"\3\x80\0\x10" + bytes(10) + b"\xff\xff\1\2\3\4"),
    (1082, b"2000-02-29", int4(59)),
    (1083, b"23:59:59.999999", struct.pack(">q", 86_399_999_999)),
    (1114, b"2000-01-02 00:00:00.5", struct.pack(">q", 86_400_500_000)),
    (1184, b"2000-01-02 05:30:00.5+05:30", struct.pack(">q", 86_400_500_000)),
    (1186, MONTHS, DAYS),
    (1266, b"23:59:59.999999-15:59:59", struct.pack(">qi", 86_399_999_999, 57_599)),
    (1560, b"10100000011", struct.pack(">i", 11) + b"\xa0\x60"),
    (1700, b"-12345.678", struct.pack(">hhHh3h", 3, 1, 0x4000, 3, 1, 2345, 6780)),
    (2950, b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", bytes.fromhex("a0eebc999c0b4ef8bb6d6bb9bd380a11")),
    (2970, b"10:18446744073709551615:10,14", struct.pack(">i4Q", 2, 10, 2**64 - 1, 10, 14)),
    (3220, b"FFFFFFFF/B374D848", struct.pack(">II", 2**32 - 1, 0xB374D848)),
    (3802, b'{"a": 1}', b'\1{"a": 1}'),
    (5069, b"18446744073709551615", b"\xff" * 8),
    (1007, b"{1,NULL,3}", array(23, int4(1), None, int4(3))),
    (1007, b"{1,1,1,1,1,1,1,1}", array(23, *[int4(1)] * 8)),
    (1009, b'{a,"b \\"c\\"",NULL,""}', array(25, b"a", b'b "c"', None, b"")),
    (1020, b"{(1,1),(0,0);(2,2),(1,1)}", array(603, struct.pack(">4d", 1, 1, 0, 0), struct.pack(">4d", 2, 2, 1, 1))),
    (3904, b"[1,10)", int4range(1, 10)),
    (3904, b"empty", b"\1"),
    (4451, b"{[1,3),[5,7)}", struct.pack(">i", 2) + sized(int4range(1, 3)) + sized(int4range(5, 7))),
    (4451, b"{(,),(,),(,),(,)}", struct.pack(">i", 4) + 4 * sized(b"\x18")),
]
"""OID, text and binary form; None if the binary form is always rejected."""


def postgres_values() -> Iterator[tuple[Any, bytes, bytes | None]]:
    """Yield types, with the text and the binary form of a value; every kernel decodes some of them."""
    from penstock.sources.postgres.types import PostgresType, TypeKind

    def of(kind: TypeKind, part: PostgresType, oid: int) -> PostgresType:
        return PostgresType(oid, -1, "", kind, part)

    yield from ((PostgresType(oid), text, binary) for oid, text, binary in SCALARS)
    yield from ((PostgresType(oid, (20 << 16 | 5) + 4), text, binary) for oid, text, binary in SCALARS if oid == 1700)
    hstore = struct.pack(">i", 2) + sized(b"a") + sized(b"1") + sized(b'b"c') + sized(None)
    yield PostgresType(30000, -1, "hstore"), b'"a"=>"1", "b\\"c"=>NULL', hstore
    yield PostgresType(30000, -1, "hstore"), b", ".join([b'""=>""'] * 6), struct.pack(">i", 6) + 12 * sized(b"")
    near = struct.pack(">hhfff", 3, 0, 1, -2.5, 3e-8)
    yield PostgresType(30001, -1, "vector"), b"[1,-2.5,3e-08]", near
    integer, word = PostgresType(23), PostgresType(25)
    yield of(TypeKind.RANGE, word, 20000), b'["a,b",)', b"\x12" + sized(b"a,b")
    pair = PostgresType(20001, -1, "pair", TypeKind.COMPOSITE, fields=(("a", integer), ("b", word)))
    value, pairs = composite((23, int4(1)), (25, b'x "y"')), of(TypeKind.ARRAY, pair, 20002)
    yield pair, b'(1,"x ""y""")', value
    yield pair, b"(,\\,)", composite((23, None), (25, b","))
    parts = (("pairs", pairs), ("spans", PostgresType(4451)), ("length", PostgresType(1186)))
    spans = struct.pack(">i", 1) + sized(int4range(1, 3))
    nested = composite((20002, array(20001, value)), (4451, spans), (1186, DAYS))
    text = b'("{""(1,\\\\""x \\\\""\\\\""y\\\\""\\\\""\\\\"")""}","{[1,3)}",' + MONTHS + b")"
    yield PostgresType(20003, -1, "tree", TypeKind.COMPOSITE, fields=parts), text, nested


def unrepresentable_values() -> Iterator[tuple[Any, bytes, bytes]]:
    """Yield types, with the text and the binary form of a value that their Arrow types cannot hold."""
    from penstock.sources.postgres.types import builtin

    square = (
        struct.pack(">iiI", 2, 0, 23) + struct.pack(">4i", 2, -1, 2, 1) + b"".join(sized(int4(n)) for n in range(4))
    )
    for oid, typmod, text, binary in [
        (1082, -1, b"infinity", int4(2**31 - 1)),
        (1114, -1, b"-infinity", struct.pack(">q", -(2**63))),
        (1186, -1, b"infinity", struct.pack(">qii", 2**63 - 1, 2**31 - 1, 2**31 - 1)),
        (1700, (20 << 16 | 5) + 4, b"NaN", struct.pack(">hhHh", 0, 0, 0xC000, 0)),
        (1007, -1, b"[-1:0][1:2]={{0,1},{2,3}}", square),
        (1182, -1, b"{NULL,-infinity}", array(1082, None, int4(-(2**31)))),
        (3912, -1, b"[2000-01-01,infinity)", b"\2" + sized(int4(0)) + sized(int4(2**31 - 1))),
    ]:
        kind = builtin(oid, typmod)
        assert kind is not None
        yield kind, text, binary


def types(rng: random.Random) -> None:
    """Decode values of every type, from both forms; print the binary form."""
    from penstock.sources.postgres.types import BadValueError, codec_for, kernel, text_codec_for
    from penstock.sources.postgres.types.text_printers import printer_for

    def decode(decoder: Callable[..., pa.Array], values: Sequence[bytes | None]) -> pa.Array:
        length = [-1 if value is None else len(value) for value in values]
        off = np.concatenate([[0], np.cumsum(np.maximum(length, 0))])[: len(values)]
        wire = guarded_copy(b"".join(value or b"" for value in values))
        return decoder(wire, guarded_copy(off, np.int32), guarded_copy(length, np.int32))

    samples: list[tuple[str, Any, Callable[..., pa.Array], bytes]] = []
    for kind, text, binary in postgres_values():
        announce(f"both forms of type {kind.oid}", text)
        codec = codec_for(kind)
        array = decode(codec.text, [text])
        assert binary is None or decode(codec.binary, [binary]) == array or "nan" in str(array)
        samples.append(("text", kind, codec.text, text))
        if binary is not None:
            samples.append(("binary", kind, codec.binary, binary))
        stored = text_codec_for(kind)
        if binary is not None and stored is not codec and not stored.wants_text:
            decode(stored.binary, [binary])
            samples.append(("binary, stored as text,", kind, stored.binary, binary))
        print_all = printer_for(kind)
        if binary is not None and print_all is not None:
            decode(print_all, [binary])
            samples.append(("binary, printed,", kind, print_all, binary))
    for kind, text, binary in unrepresentable_values():
        announce(f"value of type {kind.oid} that cannot be represented", text)
        find, print_all = codec_for(kind).unrepresentable, printer_for(kind)
        assert find is not None
        assert print_all is not None
        finders = [
            lambda *given, find=find, is_text=is_text: pa.array(find(*given, is_text)) for is_text in (True, False)
        ]
        assert decode(finders[0], [text, None]) == decode(finders[1], [binary, None]) == pa.array([True, False])
        assert decode(print_all, [binary]).to_pylist() == [text.decode()]
        samples.append(("text, searched,", kind, finders[0], text))
        samples.append(("binary, searched,", kind, finders[1], binary))
        samples.append(("binary, printed,", kind, print_all, binary))
    unused = [one._function.__qualname__ for one in kernel._all if one._compiled == one._first_call]
    assert not unused, f"no sample is decoded by {unused}"
    guard_allocations()
    for form, kind, decoder, sample in samples:
        for value in variants(rng, sample):
            announce(f"{form} of type {kind.oid}", value)
            for values in ([value], [value, None, value, value]):
                with suppress(BadValueError):
                    decode(decoder, values).validate()


# -- the stream, COPY and the pump -------------------------------------------------------------------------------------


def pump() -> None:
    """Drain messages of a libpq that allocates each of them before a page without access."""
    waiting: list[bytes] = []
    held: dict[int, Any] = {}

    def get(_connection: int, target: int, _wait: int) -> int:
        if not waiting:
            return 0
        message = guarded_copy(waiting.pop(0))
        held[message.ctypes.data] = message
        ctypes.c_void_p.from_address(target).value = message.ctypes.data
        return len(message)

    functions = {
        "penstock_PQgetCopyData": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(get),
        "penstock_PQconsumeInput": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 1),
        "penstock_PQfreemem": ctypes.CFUNCTYPE(None, ctypes.c_void_p)(held.__delitem__),
    }
    bind = llvmlite.binding.add_symbol

    def bind_own(name: str, address: int) -> None:
        bind(name, ctypes.cast(functions[name], ctypes.c_void_p).value if name in functions else address)

    with mock.patch.object(llvmlite.binding, "add_symbol", bind_own):
        from penstock.sources.postgres.replication.pump import Drained, Pump
    for size in range(1, 40):
        for room in range(size + 4):
            announce(f"message of {size} bytes into", bytes(room))
            waiting[:] = [bytes([119]) * size] * 2
            made, buffer = Pump(SimpleNamespace(pgconn_ptr=1)), guarded(size + 4 + room, np.uint8)  # type: ignore[arg-type]
            assert made.drain(buffer, 0) == (size + 4, Drained.FULL)
            buffer = guarded(size + 4, np.uint8)
            assert made.drain(buffer, 0) == (size + 4, Drained.IDLE)
            assert bytes(buffer[4:]) == bytes([119]) * size
            assert not held


def streams() -> list[list[bytes]]:
    """Return sequences of replication messages, which contain every kind of message."""
    from tests.sources.postgres import messages as m
    from tests.sources.postgres.decoding import ITEMS, ORDERS

    described = [m.relation(ORDERS, "orders"), m.relation(ITEMS, "items")]
    changes = [
        m.insert(ORDERS, 1, "a"),
        m.update(ORDERS, [1, "b"]),
        m.update(ORDERS, [2, m.UNCHANGED], [1, None]),
        m.update(ITEMS, [2, m.UNCHANGED], [1, "old"], b"O"),
        m.delete(ORDERS, [1, None]),
        m.truncate(ORDERS, ITEMS),
        m.message("prefix", "content"),
        m.wal(b"Y" + struct.pack(">I", 20000) + b"public\0mood\0"),
    ]
    marker, origin = m.message("penstock.heartbeat", "{}", lsn=5), m.wal(b"O" + bytes(8) + b"origin\0")
    blocked = [m.within(7, change) for change in described + changes]
    return [
        [*described, m.begin(5), origin, *changes, m.commit(10), m.keepalive(11), marker],
        [m.wal(b"S" + struct.pack(">IB", 7, 1)), *blocked, m.wal(b"E"), m.abort(7, 8), m.block_commit(7, 20)],
        [m.begin_prepare(9), *described, changes[0], m.prepare(9, 30), m.commit_prepared(9, 40)],
        [m.begin_prepare(9), m.prepare(9, 30), m.rollback_prepared(9, 40)],
    ]


def cut_and_changed(rng: random.Random, messages: list[bytes], changes: int) -> Iterator[bytes]:
    """Yield messages up to one whose content is cut off or changed, and messages of which the last one is cut off."""
    for at, message in enumerate(messages):
        for content in variants(rng, message[4:], changes):
            yield b"".join(messages[:at]) + struct.pack("<I", len(content)) + content
    whole = b"".join(messages)
    yield from (whole[:-cut] for cut in range(1, len(messages[-1]) + 4))


def wire(rng: random.Random) -> None:
    """Receive messages, decode streams, split rows of COPY."""
    pump()
    stream(rng)
    copy(rng)


def stream(rng: random.Random) -> None:
    """Decode replication streams; a scan has room for few changes, and stops when it is used up."""
    from penstock.positions import Lsn
    from penstock.sources.postgres.pgoutput import decoder
    from penstock.sources.postgres.pgoutput.relations import UnknownColumnsError
    from tests.sources.postgres.decoding import TABLES

    def decode(data: bytes) -> int:
        made, rest, consumed = decoder.Decoder(TABLES, Lsn(0)), data, 1
        while consumed and rest:
            consumed = made.decode(guarded_copy(rest), len(rest), force=True).consumed
            rest = rest[consumed:]
        return len(rest)

    for messages in streams():
        announce("stream", b"".join(messages))
        assert decode(b"".join(messages)) == 0
    guard_allocations()
    mock.patch.object(decoder, "_MOST_CHANGES", 4).start()
    for messages in streams():
        for data in cut_and_changed(rng, messages, CHANGES // 4):
            announce("stream", data)
            with suppress(PenstockError, UnknownColumnsError):
                decode(data)


def copy(rng: random.Random) -> None:
    """Split the rows of COPY; the values that it finds are inside the buffer."""
    from penstock.sources.postgres.snapshot.copy_format import split_rows

    def split(data: bytes, most: int) -> int:
        buf, at, rows = guarded_copy(data), 0, 0
        while at < len(data):
            off, length = guarded((3, most), np.int32), guarded((3, most), np.int32)
            count, at = split_rows(buf, at, len(data), off, length)
            if count < 0:
                return -1
            assert (off[:, :count] >= 0).all()
            assert (off[:, :count] + np.maximum(length[:, :count], 0) <= len(data)).all()
            rows += count
        return rows

    rows = [b"\0\3" + sized(b"abc") + sized(None) + sized(bytes(size)) for size in range(4)]
    contents = [b"PGCOPY\n\xff\r\n\0" + bytes(8) + rows[0], *rows[1:], b"\xff\xff"]
    messages = [struct.pack("<I", len(content)) + content for content in contents]
    assert split(b"".join(messages), 1) == split(b"".join(messages), 9) == len(rows)
    for data in cut_and_changed(rng, messages, CHANGES):
        announce("COPY", data)
        split(data, 1)
        split(data, 9)


# -- formats -----------------------------------------------------------------------------------------------------------


def format_samples() -> Iterator[tuple[str, Callable[[pa.Array], Any], list[bytes], list[bytes]]]:
    """Yield formats: name, decoder, valid messages, and corrupt ones."""
    from penstock.formats import (
        BytesFormat,
        CsvFormat,
        JsonFormat,
        ProtobufFormat,
        RegisteredSchema,
        ResolvedFormat,
        TextFormat,
        decode_batch,
        resolve,
    )
    from tests.formats import corpus
    from tests.formats.protos import ORDER, in_base64

    def decoder(resolved: ResolvedFormat) -> Callable[[pa.Array], Any]:
        writers = {**corpus.WRITERS, 5: RegisteredSchema(kind="PROTOBUF", text=ORDER)}
        registry: Any = SimpleNamespace(schemas=lambda ids: {one: writers.get(one) for one in ids})
        return lambda messages: decode_batch(messages, resolved, registry)

    for group, resolved in corpus.formats().items():
        corrupt = [message for of, message in corpus.CORRUPT.values() if of == group]
        yield group, decoder(resolved), [corpus.GOOD[group]], corrupt
    item = {"sku": "s", "n": -1, "tags": ["t", ""]}
    order = corpus._order(
        id=-7, note="né", big=2**64 - 1, numbers=[1, -1, 300], items={"k": item}, status=1, voucher=item,
        at={"seconds": 1}, count={"value": 3}, list=[item, {}], zigzag=-3, price=1.5, history=[0, 1, -5, 9],
        f32=1, f64=2, s32=-1, s64=-2, ratio=0.5, raw=b"\0\xff", u32=2**32 - 1, zigzag64=-5, prices=[1.5, 2.5],
        names={1: "one"}, times=[{"nanos": 1000}], paid=True,
    )  # fmt: skip
    unframed = resolve(ProtobufFormat(descriptor_set=in_base64(ORDER), message="shop.v1.Order"))
    spec = ProtobufFormat.model_validate({"registry": corpus.UNREACHABLE})
    unknown = b"\xdb\x3e\x08\x01\x12\x01x\xdc\x3e"  # a group
    orders = [b"\0\0\0\0\5\0" + order + unknown, b"\0\0\0\0\5\2\0\x08\7"]
    yield "PROTOBUF, framed", decoder(unframed.model_copy(update={"format": spec})), orders, []
    columns = (
        "id BIGINT, small SMALLINT, s STRING, x DOUBLE, f FLOAT, d DECIMAL(38,10), day DATE, at TIMESTAMP, "
        "local TIMESTAMP_NTZ, ok BOOLEAN, tags ARRAY<STRING>, counts MAP<STRING, INT>, "
        "more STRUCT<a: INT, b: ARRAY<STRUCT<c: STRING>>>"
    )
    text = (
        '{"id": -9223372036854775808, "small": 32767, "s": "\\ud83d\\ude00 \\n\\u00e9 é, of more than eight bytes",'
        ' "x": -1.5e-300, "f": 0.25, "d": 1234567890123456789012345678.0123456789, "day": "2024-02-29",'
        ' "at": "2024-02-29T23:59:59.123456+05:30", "local": "2024-02-29 23:59:59", "ok": false, "other": [null, {}],'
        ' "tags": ["a", null], "counts": {"k": 1}, "more": {"a": 1, "b": [{"c": "x"}, {}]}}'
    )
    yield "JSON, nested", decoder(resolve(JsonFormat(columns=columns))), [text.encode()], []
    columns = "id BIGINT, s STRING, ok BOOLEAN, x DOUBLE, d DECIMAL(20,5), day DATE, at TIMESTAMP"
    line = '7,"a ""b"", é",FALSE,-1.5e3,123.45000,2024-02-29,2024-02-29 23:59:59Z\r\n'
    yield "CSV, quoted", decoder(resolve(CsvFormat(columns=columns))), [line.encode()], []
    yield "TEXT, wide", decoder(resolve(TextFormat())), [text.encode() for text in ("aé", "a€", "a😀")], []
    yield "BYTES", decoder(resolve(BytesFormat())), [b"\0\xff"], []


def encode(rng: random.Random) -> None:
    """Encode random rows; the encoders of binary formats share their kernels."""
    from penstock.formats.avro.encoder import encode_avro
    from penstock.formats.avro.schema import parse_avro
    from penstock.formats.json.encoder import encode_json, encode_json_messages

    texts = [rng.randbytes(rng.choice((0, 1, 5, 200))) for _ in range(rng.randrange(4))]
    numbers = [rng.choice(NUMBERS) % 2**63 for _ in texts]
    announce("rows", repr((texts, numbers)).encode())
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)])
    buffers = guarded_copy(offsets, np.int64), guarded_copy(b"".join(texts))
    column = pa.Array.from_buffers(pa.large_binary(), len(texts), [None, *map(pa.py_buffer, buffers)])
    fields = '[{"name": "b", "type": "bytes"}, {"name": "n", "type": "long"}]'
    rows = pa.StructArray.from_arrays([column, pa.array(numbers, pa.int64())], ["b", "n"])
    messages = encode_avro(parse_avro(f'{{"type": "record", "name": "r", "fields": {fields}}}'), rows)
    messages.validate(full=True)
    assert all(text in message for text, message in zip(texts, messages.to_pylist(), strict=True))
    characters = np.frombuffer(b"".join(texts), np.uint8) % 128
    buffers = guarded_copy(offsets, np.int64), guarded_copy(characters.tobytes())
    strings = pa.Array.from_buffers(pa.large_string(), len(texts), [None, *map(pa.py_buffer, buffers)])
    found = encode_json(strings)
    found.validate(full=True)
    assert [json.loads(text) for text in found.to_pylist()] == strings.to_pylist()
    shared = pa.array(["x"]).dictionary_encode().take(pa.array([0] * len(texts), pa.int64()))
    columns = [column, pa.array(numbers, pa.int64()), pa.array(map(float, numbers), pa.float64()), strings, shared]
    columns += [pc.if_else(pa.array([n % 2 == 0 for n in range(len(texts))], pa.bool_()), one, None) for one in columns]
    rows = pa.StructArray.from_arrays(columns, [str(place) for place in range(len(columns))])
    encoded = encode_json_messages(rows, b"<", b">")
    encoded.validate(full=True)
    assert [json.loads(text[1:-1])["0"] for text in encoded.to_pylist()] == [b64encode(text).decode() for text in texts]


def formats(rng: random.Random) -> None:
    """Decode messages of every format, right before and right after a page without access."""

    def decode(decoder: Callable[[pa.Array], Any], messages: Sequence[bytes], *, at_start: bool = False) -> Any:
        offsets = np.concatenate([[0], np.cumsum([len(message) for message in messages])])
        buffers = guarded_copy(offsets, np.int32), guarded_copy(b"".join(messages), at_start=at_start)
        decoded = decoder(pa.Array.from_buffers(pa.binary(), len(messages), [None, *map(pa.py_buffer, buffers)]))
        decoded.rows.validate(full=True)
        return decoded

    samples = list(format_samples())
    for name, decoder, valid, _ in samples:
        announce(name, b"".join(valid))
        problems = decode(decoder, valid).problems
        assert problems.null_count == len(valid), (name, problems)
    encode(rng)
    for file, kernel in kernels("formats/"):
        module = importlib.import_module("penstock." + file.removesuffix(".py").replace("/", "."))
        assert getattr(module, kernel).signatures, f"no sample is decoded or encoded by {kernel} of {file}"
    guard_allocations()
    for _ in range(CHANGES):
        encode(rng)
    for name, decoder, valid, corrupt in samples:
        for message in [*corrupt, *(one for sample in valid for one in variants(rng, sample))]:
            announce(name, message)
            decode(decoder, [message])
            if rng.random() < 0.3:
                decode(decoder, [message, message], at_start=True)


# -- sinks -------------------------------------------------------------------------------------------------------------


def sinks(rng: random.Random) -> None:
    """Convert numerics that the log holds as text to unscaled numbers."""
    from penstock.errors import DefiniteError
    from penstock.sinks.debezium_types import _unscaled

    def convert(texts: Sequence[bytes]) -> None:
        offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
        buffers = guarded_copy(offsets, np.int32), guarded_copy(b"".join(texts))
        array = pa.Array.from_buffers(pa.string(), len(texts), [None, *map(pa.py_buffer, buffers)])
        for stripped in (True, False):
            with suppress(DefiniteError):
                _unscaled(array, stripped)[1].validate(full=True)

    convert([b"1.50"])
    guard_allocations()
    digits = [b"9" * size for size in (1, 2, 8, 9, 10, 18, 19, 38, 400)]
    for sample in [b"-12.3400", b"0.00", b"NaN", *digits, *(b"-" + each for each in digits), b"-128", b"-0.5"]:
        for text in variants(rng, sample, CHANGES // 4):
            announce("numeric", text)
            convert([text])
            convert([text, sample])


# -- tests of the tests ------------------------------------------------------------------------------------------------


def read_past_the_end(_: random.Random) -> None:
    byte_at = numba.njit("uint8(uint8[::1], int64)")(lambda buf, at: buf[at])
    data = guarded_copy(b"abc")
    announce("inside", b"")
    assert byte_at(data, 2) == ord("c")
    announce("outside", b"")
    byte_at(data, 3)


def write_past_the_end(_: random.Random) -> None:
    @numba.njit("void(int32[:, ::1], int64)")
    def set_item(out: Any, at: int) -> None:
        out[1, at] = 7

    guard_allocations()
    data = np.empty((2, 3), np.int32)
    announce("inside", b"")
    set_item(data, 2)
    assert data[1, 2] == 7
    announce("outside", b"")
    set_item(data, 3)


def read_before_the_start(_: random.Random) -> None:
    from penstock.formats.memory import address, byte

    byte_at = numba.njit("int64(int64)")(lambda at: byte(at))
    data = guarded_copy(b"abc", at_start=True)
    announce("inside", b"")
    assert byte_at(address(data)) == ord("a")
    announce("outside", b"")
    byte_at(address(data) - 1)


# -- tests -------------------------------------------------------------------------------------------------------------

GROUPS: tuple[Callable[[random.Random], None], ...] = (types, wire, formats, sinks)
OVERRUNS: tuple[Callable[[random.Random], None], ...] = (read_past_the_end, write_past_the_end, read_before_the_start)
FILES = {
    "sources/postgres/types/",
    "sources/postgres/pgoutput/scan.py",
    "sources/postgres/snapshot/copy_format.py",
    "sources/postgres/replication/pump.py",
    "sinks/debezium_types.py",
}
"""Where the kernels of the groups are, apart from formats."""


def kernels(prefix: str = "") -> list[tuple[str, str]]:
    """Return file and name of every kernel."""
    files = {str(path.relative_to(SRC)): path.read_text() for path in sorted(SRC.rglob("*.py"))}
    return [(file, name) for file, text in files.items() if file.startswith(prefix) for name in KERNEL.findall(text)]


def run(group: Callable[[random.Random], None], number: int = 0, changes: int = FEW) -> tuple[int, str, str]:
    """Run a group in a separate process; return its exit code, the last input, and its errors."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.test_kernel_bounds", group.__name__, str(number)]
    environment = {**os.environ, "PENSTOCK_KERNEL_CHANGES": str(changes)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.rstrip("\n").rpartition("\n")[2], done.stderr


@pytest.mark.parametrize("changes", [FEW, pytest.param(CHANGES, marks=pytest.mark.deep)], ids=["few", "many"])
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_kernels_access_only_their_buffers(group: Callable[[random.Random], None], changes: int) -> None:
    number = seed()
    code, last, errors = run(group, number, changes)
    assert code == 0, f"exit code {code}, seed {number}, last input\n{last}\n{errors}"


@pytest.mark.parametrize("overrun", OVERRUNS, ids=lambda overrun: overrun.__name__)
def test_one_access_outside_of_a_buffer_is_a_crash(overrun: Callable[[random.Random], None]) -> None:
    code, last, errors = run(overrun)
    assert (code, last) == (-signal.SIGSEGV, "outside: "), errors
    assert overrun.__name__ in errors, "the trace shows the caller of the kernel"


def test_every_kernel_belongs_to_a_group() -> None:
    found = kernels()
    assert ("sources/postgres/pgoutput/scan.py", "scan") in found
    others = [pair for pair in found if not pair[0].startswith(("formats/", *FILES))]
    assert not others, "add a group for these kernels"


if __name__ == "__main__":
    {group.__name__: group for group in (*GROUPS, *OVERRUNS)}[sys.argv[1]](random.Random(int(sys.argv[2])))

"""Pass columns of messages to a producer, without a Python object for each message.

::

    keys, values: Arrow ─▶ a C structure for each message, with addresses in the columns ─▶ rd_kafka_produce_batch

The Python client accepts a dictionary for each message, which takes longer than what librdkafka does with it. Its
module is linked with librdkafka, so the functions of the library are found there, for the same producer.

The address of the C producer is not part of the client's interface: it is the first field of the Python object in the
versions that are listed here. The library confirms it, because the client registered the object with the producer. With
another version, messages are passed as dictionaries.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import confluent_kafka
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer, cimpl

from penstock.formats.binary_encoder import bytes_and_offsets

__all__ = ["produce_columns"]

_VERSIONS = ("2.16.1",)
"""The versions of the client whose objects begin with the address of the producer."""
_ANY_PARTITION, _COPY = -1, 2
_MESSAGE = np.dtype(
    [
        ("err", np.int32),
        ("rkt", np.uintp),
        ("partition", np.int32),
        ("payload", np.uintp),
        ("len", np.uintp),
        ("key", np.uintp),
        ("key_len", np.uintp),
        ("offset", np.int64),
        ("_private", np.uintp),
    ],
    align=True,
)
"""``rd_kafka_message_t`` of ``rdkafka.h``."""


def produce_columns(
    producer: Producer, topic: str, keys: pa.LargeBinaryArray | None, values: pa.LargeBinaryArray
) -> None:
    """Pass messages to the queue of a producer, in order; raise `KafkaException` if it does not accept all of them.

    The partition of a message follows from its key. Null is a tombstone, or a message without a key.
    """
    address = _address(producer)
    if address is None:
        _produce_dictionaries(producer, topic, keys, values)
        return
    messages = np.zeros(len(values), _MESSAGE)
    messages["payload"], messages["len"] = _addresses(values)
    if keys is not None:
        messages["key"], messages["key_len"] = _addresses(keys)
    library = _library()
    handle = library.rd_kafka_topic_new(address, topic.encode(), None)
    if not handle:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, f"invalid topic {topic}"))
    try:
        count = library.rd_kafka_produce_batch(handle, _ANY_PARTITION, _COPY, messages.ctypes.data, len(messages))
    finally:
        library.rd_kafka_topic_destroy(handle)
    if count < len(messages):
        errors = messages["err"]
        raise KafkaException(KafkaError(int(errors[np.flatnonzero(errors)[0]])))


def _produce_dictionaries(
    producer: Producer, topic: str, keys: pa.LargeBinaryArray | None, values: pa.LargeBinaryArray
) -> None:
    given = [None] * len(values) if keys is None else keys.to_pylist()
    batch = [{"key": key, "value": value} for key, value in zip(given, values.to_pylist(), strict=True)]
    if producer.produce_batch(topic, batch) < len(batch):
        raise KafkaException(next(one["_error"] for one in batch if "_error" in one))


def _addresses(values: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.uintp], npt.NDArray[np.uintp]]:
    """Return address and size of each value; the address of null is 0, that of an empty value is not."""
    data, offsets = bytes_and_offsets(values)
    base = data.ctypes.data if len(data) else offsets.ctypes.data
    starts, sizes = (offsets[:-1] + base).astype(np.uintp), np.diff(offsets).astype(np.uintp)
    if values.null_count:
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        starts[is_null] = sizes[is_null] = 0
    return starts, sizes


def _address(producer: Producer) -> int | None:
    """Return the address of the producer in librdkafka; None if it is unknown, or the producer is closed."""
    if str(confluent_kafka.version()) not in _VERSIONS:  # its type says that it is a tuple
        return None
    address = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__).value
    is_own = address is not None and _library().rd_kafka_opaque(address) == id(producer)
    return address if is_own else None


@cache
def _library() -> Any:
    """Return the library that the client uses."""
    library = ctypes.CDLL(cimpl.__file__)
    pointer = ctypes.c_void_p
    for name, result, arguments in (
        ("rd_kafka_opaque", pointer, [pointer]),
        ("rd_kafka_topic_new", pointer, [pointer, ctypes.c_char_p, pointer]),
        ("rd_kafka_topic_destroy", None, [pointer]),
        ("rd_kafka_produce_batch", ctypes.c_int, [pointer, ctypes.c_int32, ctypes.c_int, pointer, ctypes.c_int]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library

"""Messages per second decoded from Avro, JSON, Protobuf and CSV to Arrow, compared with decoding record by record.

A message is an order with ten columns; a Debezium message has five, four of them with logical types of Kafka Connect.
The subject is `decode_batch` with 10,000 messages per call, as in Spark.
References, each with the same messages in the same run:

- *records*: the fastest function per message, with fastavro, `json`, Google's Protobuf and `csv`, all of them compiled:
  a tuple of Python values per message, without Arrow;
- *records to Arrow*: the same, converted to Arrow arrays;
- for JSON and CSV also *pyarrow.json* and *pyarrow.csv*, which are written in C++ and read messages as lines of one
  text: they check less, and cannot report the error of a single message.

All times are CPU time. The figure is the lowest ratio of a format to its *records*. Goals: 3; Avro 1,000,000, JSON
300,000, Protobuf 500,000 messages per second on an idle core.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bench.rounds import Sample, Spread, alternate, median_ratio, print_table, size, timed
from penstock.formats import AvroFormat, CsvFormat, JsonFormat, ProtobufFormat, ResolvedFormat, decode_batch, resolve

__all__ = ["run"]

_BATCH = 10_000
_NAMES = ("id", "customer", "status", "note", "quantity", "amount", "weight", "paid", "at", "day")
_AVRO = ("long", "long", "string", ["null", "string"], "int", "double", "float", "boolean", "long", "int")
_LOGICAL = {"at": {"type": "long", "logicalType": "timestamp-micros"}, "day": {"type": "int", "logicalType": "date"}}
_COLUMNS = (
    "id BIGINT, customer BIGINT, status STRING, note STRING, quantity INT, amount DECIMAL(12,2), weight DOUBLE, "
    "paid BOOLEAN, at TIMESTAMP, day DATE"
)
_KINDS = (3, 3, 9, 9, 5, 1, 2, 8, 3, 5)  # FieldDescriptorProto.Type
_EPOCH = datetime.fromisoformat("1970-01-01")
_STATUS = ("new", "paid", "shipped", "returned")


@dataclass
class _Case:
    """One format: its messages in batches, and its decoders."""

    resolved: ResolvedFormat
    batches: list[pa.Array]
    records: Callable[[bytes], tuple[Any, ...]]
    by_whole: tuple[str, Callable[[pa.Array], object]] | None = None
    """The decoder that reads all messages as one text, and its name."""

    def decoders(self) -> dict[str, Callable[[pa.Array], object]]:
        """Return the decoders by name; the first is Penstock."""
        found: dict[str, Callable[[pa.Array], object]] = {"penstock": partial(decode_batch, resolved=self.resolved)}
        found["records"] = lambda batch: [self.records(message) for message in batch.to_pylist()]
        found["records to Arrow"] = self._to_arrow
        if self.by_whole:
            found[self.by_whole[0]] = self.by_whole[1]
        return found

    def _to_arrow(self, batch: pa.Array) -> object:
        columns = zip(*[self.records(message) for message in batch.to_pylist()], strict=True)
        return [pa.array(column) for column in columns]


def run(quick: bool) -> float:
    """Measure, print, and return the lowest ratio to decoding record by record."""
    count, rounds = size(20_000 if quick else 200_000, 3 if quick else 7)
    ratios, shown = [], []
    cases = {"Avro": _avro, "JSON": _json, "Debezium JSON": _connect, "Protobuf": _protobuf, "CSV": _csv}
    for name, create in cases.items():
        case = create(count)
        samples = _measured(case, rounds)
        ratios.append(median_ratio(samples["records"], samples["penstock"]).median)
        for decoder, taken in samples.items():
            speed = Spread.of([count / sample.cpu_seconds for sample in taken]).show(",.0f")
            ratio = "" if decoder == "penstock" else median_ratio(taken, samples["penstock"]).show(".1f")
            shown.append([name, decoder, speed, ratio])
    header = ("format", "decoded by", "messages per CPU second", "penstock is faster by")
    print_table(f"{count:,} messages, {rounds} rounds: min / median / max", header, shown)
    return min(ratios)


def _measured(case: _Case, rounds: int) -> dict[str, list[Sample]]:
    decoders = case.decoders()
    for decode in decoders.values():
        decode(case.batches[0])
    return alternate({name: partial(_sample, decode, case.batches) for name, decode in decoders.items()}, rounds)


def _sample(decode: Callable[[pa.Array], object], batches: Sequence[pa.Array], _: int) -> Sample:
    taken = timed(lambda: [decode(batch) for batch in batches])
    return Sample(taken.cpu_seconds, taken.cpu_seconds)  # decoders never wait, so CPU time is compared


def _orders(count: int) -> Iterator[tuple[Any, ...]]:
    for n in range(count):
        note = None if n % 10 == 0 else f"a note of order {n}, left at the door"
        at = 1_700_000_000_000_000 + n * 1000
        yield (
            n,
            n * 7919 % 100_003,
            _STATUS[n % 4],
            note,
            n % 50,
            n % 99_991 / 4,
            n / 8,
            n % 2 == 0,
            at,
            19_000 + n % 900,
        )


def _batches(messages: Sequence[bytes]) -> list[pa.Array]:
    return [pa.array(messages[at : at + _BATCH], pa.binary()) for at in range(0, len(messages), _BATCH)]


def _avro(count: int) -> _Case:
    fields = [{"name": n, "type": _LOGICAL.get(n, kind)} for n, kind in zip(_NAMES, _AVRO, strict=True)]
    schema = {"type": "record", "name": "Order", "fields": fields}
    # The reference returns numbers instead of timestamps and dates, which would cost fastavro more.
    plain = [{"name": n, "type": kind} for n, kind in zip(_NAMES, _AVRO, strict=True)]
    parsed = fastavro.parse_schema({"type": "record", "name": "Order", "fields": plain})

    def written(order: tuple[Any, ...]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, dict(zip(_NAMES, order, strict=True)))
        return out.getvalue()

    def record(message: bytes) -> tuple[Any, ...]:
        found: Any = fastavro.schemaless_reader(io.BytesIO(message), parsed, None)
        return tuple(found.values())

    resolved = resolve(AvroFormat(reader_schema=json.dumps(schema)))
    return _Case(resolved, _batches([written(order) for order in _orders(count)]), record)


def _connect(count: int) -> _Case:
    """Return Debezium JSON: decimals are bytes in base64, times are numbers, and each message has its schema."""
    digits = {"scale": "3", "connect.decimal.precision": "12"}
    decimal = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": digits}
    parts = [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}]
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "amount", **decimal},
        {"field": "rate", "type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": parts},
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
    ]
    schema = {"type": "struct", "fields": fields}

    def written(order: tuple[Any, ...]) -> bytes:
        amount, rate = (base64.b64encode((order[1] * by - 50_000).to_bytes(8, "big", signed=True)) for by in (7, 11))
        held = {"scale": order[0] % 4, "value": rate.decode()}
        payload = {"id": order[0], "amount": amount.decode(), "rate": held, "at": order[8], "day": order[9]}
        return json.dumps({"schema": schema, "payload": payload}).encode()

    def record(message: bytes) -> tuple[Any, ...]:
        found = json.loads(message)["payload"]
        amount = Decimal(int.from_bytes(base64.b64decode(found["amount"]), "big", signed=True)).scaleb(-3)
        rate = Decimal(int.from_bytes(base64.b64decode(found["rate"]["value"]), "big", signed=True))
        at, day = timedelta(microseconds=found["at"]), timedelta(days=found["day"])
        return found["id"], amount, str(rate.scaleb(-found["rate"]["scale"])), _EPOCH + at, _EPOCH.date() + day

    messages = [written(order) for order in _orders(count)]
    return _Case(resolve(JsonFormat(), sample=messages[:1]), _batches(messages), record)


def _time(micros: int) -> str:
    return f"2023-11-14T22:{micros // 60_000_000 % 60:02}:{micros // 1_000_000 % 60:02}.{micros % 1_000_000:06}Z"


def _json(count: int) -> _Case:
    def written(order: tuple[Any, ...]) -> bytes:
        day = f"2023-{order[9] % 12 + 1:02}-{order[9] % 28 + 1:02}"
        amount = float(Decimal(order[5]).quantize(Decimal("0.01")))
        values = (*order[:5], amount, *order[6:8], _time(order[8]), day)
        return json.dumps(dict(zip(_NAMES, values, strict=True))).encode()

    def record(message: bytes) -> tuple[Any, ...]:
        return tuple(json.loads(message).values())

    def whole(batch: pa.Array) -> object:
        return pyarrow.json.read_json(io.BytesIO(b"\n".join(batch.to_pylist())))

    resolved = resolve(JsonFormat(columns=_COLUMNS))
    return _Case(resolved, _batches([written(order) for order in _orders(count)]), record, ("pyarrow.json", whole))


def _csv(count: int) -> _Case:
    def written(order: tuple[Any, ...]) -> bytes:
        out = io.StringIO()
        paid, at = str(order[7]).lower(), _time(order[8])
        csv.writer(out).writerow((*order[:5], f"{order[5]:.2f}", order[6], paid, at, "2023-02-28"))
        return out.getvalue().removesuffix("\r\n").encode()

    def record(message: bytes) -> tuple[Any, ...]:
        return tuple(next(csv.reader((message.decode(),))))

    resolved = resolve(CsvFormat(columns=_COLUMNS))
    names = pyarrow.csv.ReadOptions(column_names=_NAMES, use_threads=False)
    lines = pyarrow.csv.ParseOptions(newlines_in_values=True)
    types = pyarrow.csv.ConvertOptions(column_types=pa.schema(resolved.physical_type), strings_can_be_null=True)

    def whole(batch: pa.Array) -> object:
        joined = pc.binary_join_element_wise(batch, pa.scalar(b"\n", pa.binary()), pa.scalar(b"", pa.binary()))
        return pyarrow.csv.read_csv(pa.BufferReader(joined.buffers()[2]), names, lines, types)

    return _Case(resolved, _batches([written(order) for order in _orders(count)]), record, ("pyarrow.csv", whole))


def _protobuf(count: int) -> _Case:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(zip(_NAMES, _KINDS, strict=True), start=1):
        message.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order_class = message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))

    def written(order: tuple[Any, ...]) -> bytes:
        return bytes(order_class(**dict(zip(_NAMES, order, strict=True))).SerializeToString())

    def record(data: bytes) -> tuple[Any, ...]:
        one = order_class.FromString(data)
        return (
            one.id,
            one.customer,
            one.status,
            one.note,
            one.quantity,
            one.amount,
            one.weight,
            one.paid,
            one.at,
            one.day,
        )

    files = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    described = ProtobufFormat(descriptor_set=base64.b64encode(files).decode(), message="Order")
    return _Case(resolve(described), _batches([written(order) for order in _orders(count)]), record)

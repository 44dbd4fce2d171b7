"""Protobuf messages of Google's implementation, from schemas compiled by protoc."""

from __future__ import annotations

import base64
from functools import lru_cache
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

ORDER = """
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/empty.proto";

/* An order, with a field of every kind. */
message Order {
  option deprecated = false;
  reserved 40 to 50, 60;
  reserved "old";
  int64 id = 1;                              // without presence
  optional string note = 2 [deprecated = true];
  uint64 big = 3;
  repeated int32 numbers = 4;
  map<string, Item> items = 5;
  Status status = 6;
  oneof payment { string card = 7; Item voucher = 8; google.protobuf.Empty none = 9; }
  google.protobuf.Timestamp at = 10;
  google.protobuf.Int64Value count = 11;
  repeated Item list = 12;
  sint32 zigzag = 13;
  double price = 14;
  repeated Status history = 15;
  fixed32 f32 = 16;
  fixed64 f64 = 17;
  sfixed32 s32 = 18;
  sfixed64 s64 = 19;
  float ratio = 20;
  bytes raw = 21;
  uint32 u32 = 22;
  sint64 zigzag64 = 23;
  repeated double prices = 24 [packed = false];
  map<int32, string> names = 25;
  repeated google.protobuf.Timestamp times = 26;
  bool paid = 27;
  message Item { string sku = 1; int32 n = 2; repeated string tags = 3; }
  enum Status { option allow_alias = true; UNKNOWN = 0; PAID = 1; SETTLED = 1; REFUNDED = -5; }
}
message Other { string a = 1; }
service Shop { rpc Get (Order) returns (Other) { option deprecated = true; } }
"""

OLD = """
syntax = "proto2";
message Old {
  required int32 id = 1;
  optional int32 maybe = 2 [default = 7];
  extensions 100 to 199;
}
"""


@lru_cache
def descriptor_set(text: str) -> bytes:
    """Compile with protoc."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "order.proto").write_text(text)
        own = str(resources.files("grpc_tools") / "_proto")
        out = Path(folder) / "out"
        code = protoc.main(
            ["protoc", f"-I{folder}", f"-I{own}", "--include_imports", f"--descriptor_set_out={out}", "order.proto"]
        )
        assert code == 0
        return out.read_bytes()


def in_base64(text: str) -> str:
    return base64.b64encode(descriptor_set(text)).decode()


@lru_cache
def message_class(text: str, name: str) -> Any:
    """Return Google's class of a message."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set(text)).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))

-- A compacted topic for each table, without personal data. Equal addresses have equal hashes, so consumers can count them.

CREATE SOURCE shop FROM POSTGRES CONNECTION 'postgresql://penstock@db.example.com/shop';

CREATE SINK redacted FROM shop INTO KAFKA
  BROKER 'k1:9092' TOPIC PREFIX 'public-data.'
  FORMAT JSON
  ENVELOPE UPSERT
  WITH (
    redact = (card = 'last four', email = 'hash', phone = 'null', name = 'fixed:withheld'),
    redact key = 'env:REDACT_KEY',
    exclude columns = (notes),
    format timestamp = 'epoch millis',
    partitions = 1
  );

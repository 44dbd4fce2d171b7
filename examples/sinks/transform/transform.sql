-- The rows of a table pass through the function `mask` in masking.py. Phone numbers are redacted before they reach it.

CREATE SOURCE shop FROM POSTGRES CONNECTION 'postgresql://penstock@db.example.com/shop';

CREATE SINK masked FROM shop.users INTO KAFKA
  BROKER 'k1:9092' TOPIC 'shop.masked-users'
  FORMAT AVRO USING SCHEMA REGISTRY 'http://registry:8081'
  ENVELOPE UPSERT
  WITH (
    redact = (phone = 'last four'),
    transform = 'masking:mask',
    partitions = 1
  );

-- The sources of the compose example. The password is a reference: the first line of a file.
CREATE SOURCE shop FROM POSTGRES
  CONNECTION 'postgresql://penstock@postgres:5432/shop'
  PASSWORD 'file:/run/secrets/penstock_password';

-- The sources of the home. The password is a reference: the first line of a file that the Secret provides.
CREATE SOURCE shop FROM POSTGRES
  CONNECTION 'postgresql://penstock@postgres.database.svc:5432/shop'
  PASSWORD 'file:/run/secrets/penstock/password';

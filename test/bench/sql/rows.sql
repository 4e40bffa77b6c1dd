-- Large results with postgres_fdw.
CREATE FOREIGN TABLE rows_mixed (a int, b text, c timestamptz, d numeric) SERVER f
  OPTIONS (schema_name 'public', table_name 'mixed', fetch_size '10000');
CREATE FOREIGN TABLE rows_numbers (a int, b int, c bigint, d bigint, e float8, f float8, g int, h int)
  SERVER f OPTIONS (schema_name 'public', table_name 'numbers', fetch_size '10000');

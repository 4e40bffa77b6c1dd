-- Request a row from a remote server that is down until it arrives.
CREATE UNLOGGED TABLE recoveries (way text, at timestamptz, attempts int);

CREATE FUNCTION recover(way text, query text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v text;
  n int := 0;
BEGIN
  LOOP
    n := n + 1;
    BEGIN
      EXECUTE query INTO v;
      EXIT;
    EXCEPTION WHEN OTHERS THEN
      PERFORM pg_sleep(0.02);
    END;
  END LOOP;
  INSERT INTO recoveries VALUES (way, clock_timestamp(), n);
END $$;

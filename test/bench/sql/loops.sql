CREATE FUNCTION us_since(start timestamptz, n int) RETURNS numeric
LANGUAGE sql AS
$$ SELECT round(extract(epoch FROM clock_timestamp() - start) * 1e6 / n, 3) $$;


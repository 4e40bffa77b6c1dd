-- The pools of this server on one screen, five lines of 80 columns, every two seconds:
--
--     psql -d postgres < doc/top.sql
--
-- or in any other database with the extension.  Ctrl-C ends it.
\pset footer off
\pset null '-'
SELECT what, left(regexp_replace(now, '[[:cntrl:]]+', ' ', 'g'), 62) AS now
FROM (
    SELECT 1 AS line, 'Connections' AS what, format('%s of %s open, %s leased, %s free; %s of %s workers run',
        coalesce(sum(total), 0), current_setting('pgpool_ext.max_connections'), coalesce(sum(leased), 0),
        coalesce(sum(idle + reset_pending), 0), (SELECT count(*) FROM pgpool.workers WHERE state = 'running'),
        current_setting('pgpool_ext.workers')) AS now
    FROM pgpool.pools
    UNION ALL
    SELECT 2, 'Waiting', (
        SELECT format('%s; %s s for %s (%s), process %s %s', count(*) OVER (),
            round(extract(epoch FROM clock_timestamp() - waiting_since), 1), left(server, 20), reason, pid,
            application_name)
        FROM pgpool.waiters ORDER BY waiting_since LIMIT 1)
    UNION ALL
    SELECT 3, 'Fullest pool', (
        SELECT format('%s (%s): %s of %s leased, %s wait, %s', left(server, 20), left(local_user, 12), leased, pool_size,
            waiters, state)
        FROM pgpool.pools ORDER BY waiters DESC, leased::float8 / pool_size DESC, pool_id LIMIT 1)
    UNION ALL
    SELECT 4, 'Oldest lease', (
        SELECT format('%s s of %s, %s, process %s %s: %s', round(extract(epoch FROM clock_timestamp() - leased_at), 1),
            left(server, 20), state, pid, left(application_name, 12), why)
        FROM pgpool.leases ORDER BY leased_at LIMIT 1)
    UNION ALL
    SELECT 5, 'Last error', (
        SELECT format('%s s ago, %s: %s', round(extract(epoch FROM clock_timestamp() - last_error_at)), left(server, 20),
            last_error)
        FROM pgpool.pools WHERE last_error IS NOT NULL ORDER BY last_error_at DESC LIMIT 1)
) AS lines
ORDER BY line
\watch 2

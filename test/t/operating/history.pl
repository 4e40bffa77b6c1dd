# The view history: its rows add up to the counters of view stats, also after a restart of a worker,
# a reset of counters and the removal of a pool. The rows of a pool do not overlap, and leave out no activity.
use strict;
use warnings;

use PgpxClock;
use PgpxTest;
use Test::More;

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
plan skip_all => 'the history does not depend on TLS' if over_tls();

# room for 66 short and 24 long samples
my $remote = remote_node('remote');
my $local = local_node('local', start => 0, conf => [
	'pgpool_ext.workers = 2', 'pgpool_ext.max_pools = 3', 'pgpool_ext.history_size = 24kB', 'restart_after_crash = on' ]);
with_clock($local, sub { $local->start });
make_pool($local, $remote, server => 'a', options => { pool_size => 2 });
make_pool($local, $remote, server => 'b', options => { pool_size => 1 });
my @sessions = map { PgpxSession->new($local) } 1 .. 2;

sub history
{
	my ($columns, $condition) = @_;

	return $local->safe_psql('postgres', "SELECT $columns FROM pgpool.history WHERE $condition");
}

# The value of columns of view stats.
sub stats
{
	my ($server, $columns) = @_;

	return $local->safe_psql('postgres', "SELECT $columns FROM pgpool.stats WHERE server = '$server'");
}

# Let time pass, so that samples end.
sub sample { let_time_pass($local, 20); return; }

# Assert that each counter of the history, summed up, is that of view stats.
sub adds_up
{
	my ($name) = @_;
	my $counters = join ', ', qw(hits waited timeouts cancelled failed refused unavailable deadlocks statements errors connects connects_failed);
	my $times = join ', ', map { "round($_\::numeric, 2)" } qw(wait_time lease_time answer_time);

	sample();
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(wait_until($local, <<"EOT", ''), $name);
SELECT to_jsonb(s) || to_jsonb(h)
FROM pgpool.stats s LEFT JOIN LATERAL (SELECT @{[ $counters =~ s/\w+/sum($&) AS $&/gr ]},
		sum(leases) AS leases, sum(wait_time) AS wait_time, sum(lease_time) AS lease_time, sum(answer_time) AS answer_time,
		sum(mean_leased * span) AS leased_time,
		(SELECT array_agg(n ORDER BY i) FROM (SELECT i, sum(w)::int8 AS n FROM pgpool.history AS h, unnest(wait_histogram) WITH ORDINALITY AS w(w, i)
			WHERE h.pool_id = s.pool_id GROUP BY i) AS w) AS wait_histogram
	FROM pgpool.history AS h WHERE h.pool_id = s.pool_id) AS h ON true
WHERE (@{[ $counters =~ s/\w+/s.$&/gr ]}, s.wait_histogram) IS DISTINCT FROM (@{[ $counters =~ s/\w+/h.$&/gr ]}, h.wait_histogram)
	OR (@{[ $times =~ s/\b(\w+_time)/s.$1/gr ]}) IS DISTINCT FROM (@{[ $times =~ s/\b(\w+_time)/h.$1/gr ]})
	OR h.leases <> s.checkins + s.reclaimed + s.terminated + s.lease_timeouts + s.retried
	OR round(h.leased_time::numeric, 2) <> round(s.lease_time::numeric, 2)
EOT
}

# ---------- what a sample has
{
	$sessions[0]->run(q{SELECT pgpool.exec('a', 'select 1') FROM generate_series(1, 5)});
	$sessions[0]->fails(q{SELECT pgpool.exec('a', 'select 1/0')}, '22012', qr/division by zero/, 'remote error');
	lease($_, 'a') foreach @sessions;
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;

	# a lease and a wait that last for 100 seconds
	my $lease = lease($sessions[0], 'b');
	$sessions[1]->fails(q{SELECT pgpool.checkout('b', '10 ms')}, '55P03', qr/no free connection|timeout/, 'wait times out');
	$sessions[1]->start(q{SELECT pgpool.checkout('b', '1 h')});
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1');
	let_time_pass($local, 100);
	ok(wait_until($local, q{SELECT sum(mean_leased * span) >= 100000 AND sum(mean_waiting * span) >= 100000 FROM pgpool.history WHERE server = 'b'}),
		'lease and wait that have not ended count');

	# a wait can begin before its pool exists, and thus last longer than the samples
	is(history('sum(mean_leased * span) < 1.5 * sum(span) AND sum(mean_waiting * span) < 1.5 * sum(span) AND sum(leases) = 0', q{server = 'b'}), 't', 'one lease and one waiter count once');
	$sessions[0]->run("SELECT pgpool.checkin($lease)");
	$sessions[1]->finish;
	$sessions[1]->run('SELECT pgpool.checkin_all()');
	adds_up('rows add up to the counters');

	# a wait that has ended, of a session that does not count it yet
	my $waiting = history('sum(mean_waiting * span)', q{server = 'b'});
	$lease = lease($sessions[0], 'b');
	$sessions[1]->start(q{SELECT pgpool.checkout('b', '1 h')});
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1');
	let_time_pass($local, 100);
	ok(wait_until($local, "SELECT sum(mean_waiting * span) >= $waiting + 100000 FROM pgpool.history WHERE server = 'b'"), 'second wait counts');
	kill 'STOP', $sessions[1]->pid;
	$sessions[0]->run("SELECT pgpool.checkin($lease)");
	my $granted = $local->safe_psql('postgres', 'SELECT clock_timestamp()');
	sample();
	ok(wait_until($local, "SELECT max(sampled_at) > '$granted' FROM pgpool.history WHERE server = 'b'"), 'sample ends before the session claims its connection');
	kill 'CONT', $sessions[1]->pid;
	$sessions[1]->finish;
	$sessions[1]->run('SELECT pgpool.checkin_all()');
	adds_up('wait is counted once');
	is(history('abs(sum(mean_waiting * span) - sum(wait_time)) < 1000', q{server = 'b'}), 't', 'so are its parts in the mean number of waiters');

	is(history('sum(arrivals), sum(hits) + sum(waited), max(peak_leased), max(peak_waiting), max(peak_callers), max(pool_size), max(max_total), max(total)', q{server = 'b'}),
		join('|', (stats('b', 'hits + waited')) x 2, 1, 1, 2, 1, 1, 1), 'arrivals, peaks and sizes');
	is(history('max(peak_leased), sum(errors), max(pool_size)', q{server = 'a'}), '2|1|2', 'another pool has others');
	is($local->safe_psql('postgres', <<'EOT'), 't', 'percentiles are interpolated within an element of the histogram');
SELECT bool_and(abs(wait_p50 - 1.5 * 2 ^ (n - 2) / 1000) < 0.001 AND abs(wait_p99 - 1.99 * 2 ^ (n - 2) / 1000) < 0.001)
FROM pgpool.history, unnest(wait_histogram) WITH ORDINALITY AS w(w, n) WHERE waited = 1 AND w = 1 AND n > 1
EOT
	is(history('count(*)', 'waited = 0 AND (wait_p50 IS NOT NULL OR wait_p99 IS NOT NULL)'), '0', 'sample without waits has no percentiles');
	is($local->safe_psql('postgres', 'SELECT count(DISTINCT worker) FROM pgpool.pools'), '2', 'pools have two workers');

	my $app = PgpxSession->new($local, user => 'app');
	is($app->run('SELECT sum(hits) FROM pgpool.history'), history('sum(hits)', 'true'), 'every role can read the history');
	$app->quit;
}

# ---------- the time for which sessions wait for the remote
{
	my ($session) = @sessions;
	my $pid = $session->pid;

	$session->start(q{SELECT pgpool.exec('a', 'select pg_sleep(1000)')});
	wait_until($local, "SELECT a.wait_event_type FROM pg_stat_activity AS a JOIN pgpool.leases AS l USING (pid) WHERE pid = $pid AND l.state = 'active'", 'Extension');
	wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'}, '1');
	let_time_pass($local, 200);
	$remote->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query ~ 'pg_sleep' AND pid <> pg_backend_pid()});
	$session->finish;
	$session->failed('57014', qr/canceling statement/, 'remote statement is cancelled');
	my $lease = lease($session, 'a');
	$session->run("SELECT pgpool.exec($lease, 'select 1')");
	let_time_pass($local, 300);
	$session->run("SELECT pgpool.checkin($lease)");
	is(stats('a', 'answer_time >= 200000, lease_time - answer_time >= 300000'), 't|t', 'time of answers is measured, without that of an idle lease');
	adds_up('they add up with the time of answers');
}

# ---------- restart of a worker
{
	lease($sessions[0], 'a');
	terminate($local, $local->safe_psql('postgres', q{SELECT w.pid FROM pgpool.workers AS w JOIN pgpool.pools AS p USING (worker) WHERE server = 'a'}));
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.workers WHERE state = 'running'}, '2'), 'worker runs again');
	$sessions[0]->run('SELECT pgpool.checkin_all()');
	is($sessions[0]->run(q{SELECT pgpool.exec('a', 'select 1')}), '1', 'pool works');
	is(stats('a', 'reclaimed'), '1', 'lease has ended with the worker');
	adds_up('they add up after the restart of a worker');
}

# ---------- long samples
# A gap between rows, or two rows of the same time, would change these sums.
{
	my @servers = qw(a b);

	lease($sessions[$_], $servers[$_]) foreach 0, 1;
	my $start = $local->safe_psql('postgres', 'SELECT clock_timestamp()');
	# so many samples that a whole long one is older than the oldest short one
	foreach (1 .. 50)
	{
		my $before = $local->safe_psql('postgres', 'SELECT clock_timestamp()');

		let_time_pass($local, 100);
		wait_until($local, "SELECT count(*) FROM (SELECT max(sampled_at) AS last FROM pgpool.history WHERE server IN ('a', 'b') GROUP BY server) AS h WHERE last > '$before'::timestamptz + interval '50 s'", '2');
	}
	is(history('bool_or(span > 500000), bool_or(span < 500000), count(DISTINCT server)', "sampled_at > '$start'"), 't|t|2', 'older rows have long spans');
	is($local->safe_psql('postgres', <<"EOT"), '', 'there is no gap, and no time has two rows');
SELECT pool_id, previous, since FROM (SELECT pool_id, sampled_at - span * interval '1 ms' AS since,
	lag(sampled_at) OVER (PARTITION BY pool_id ORDER BY sampled_at) AS previous FROM pgpool.history) AS h
WHERE previous > '$start' AND abs(extract(epoch FROM since - previous)) > 0.00001
EOT
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	adds_up('long and short rows add up');
}

# ---------- reset of the counters
{
	my $sums = 'sum(hits), sum(statements), sum(leases), round(sum(lease_time)::numeric, 2), round(sum(mean_leased * span)::numeric, 2)';
	my $counters = 'hits, statements, checkins + reclaimed + retried AS leases, lease_time, lease_time AS leased_time';

	lease($sessions[0], 'a');
	$sessions[1]->run(q{SELECT pgpool.exec('a', 'select 1') FROM generate_series(1, 3)});
	$local->safe_psql('postgres', "CREATE TABLE kept AS SELECT $counters FROM pgpool.stats WHERE server = 'a'; SELECT pgpool.reset_stats('a')");
	$sessions[1]->run(q{SELECT pgpool.exec('a', 'select 1') FROM generate_series(1, 4)});
	sample();
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	$local->safe_psql('postgres', "INSERT INTO kept SELECT $counters FROM pgpool.stats WHERE server = 'a'");
	sample();
	my $kept = $local->safe_psql('postgres', 'SELECT sum(hits), sum(statements), sum(leases), round(sum(lease_time)::numeric, 2), round(sum(leased_time)::numeric, 2) FROM kept');
	is(stats('a', 'statements'), '4', 'counters were reset');
	ok(wait_until($local, "SELECT $sums FROM pgpool.history WHERE server = 'a'", $kept), 'reset of the counters changes no row');
}

# ---------- removal of a pool, and reuse of its slot
{
	make_pool($local, $remote, server => 'old');
	$sessions[0]->run(q{SELECT pgpool.exec('old', 'select 1') FROM generate_series(1, 7)});
	sample();
	ok(wait_until($local, q{SELECT sum(hits) + sum(waited) >= 7 FROM pgpool.history WHERE server = 'old'}), 'pool has rows');
	$local->safe_psql('postgres', 'DROP SERVER old CASCADE');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE server = 'old'}, '0'), 'pool is removed');
	is(history('count(*)', q{server = 'old'}), '0', 'rows are removed with the pool');
	make_pool($local, $remote, server => 'new');
	$sessions[0]->run(q{SELECT pgpool.exec('new', 'select 1')});
	sample();
	ok(wait_until($local, q{SELECT sum(statements) FROM pgpool.history WHERE server = 'new'}, '1'), 'next pool of the slot has only rows of its own');
}

# ---------- a sleeping worker
# A sample does not begin ahead of a time in which the worker slept because no connection was open.
{
	ok(wait_until($local, sub { let_time_pass($local, 700); $local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.connections') }, '0'), 'all connections are closed');

	# a worker that has applied a setting to its pools has also written their last samples
	$local->safe_psql('postgres', 'ALTER SYSTEM SET pgpool_ext.default_pool_size = 7');
	let_time_pass($local, 700);
	ok(wait_until($local, q{SELECT pool_size FROM pgpool.pools WHERE server = 'new'}, '7'), 'no activity is pending');
	my @workers = split /\n/, $local->safe_psql('postgres', 'SELECT pid FROM pgpool.workers WHERE pid IS NOT NULL');

	# stopped, so that they wake up only when a session waits
	kill 'STOP', @workers;
	let_time_pass($local, 5000, asleep => 1);
	my $start = $local->safe_psql('postgres', 'SELECT clock_timestamp()');
	$sessions[0]->start(q{SELECT pgpool.exec('new', 'select 1')});
	ok(wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'new'}, '1'), 'session waits');
	kill 'CONT', @workers;
	is($sessions[0]->finish, '1', 'pool is used again');
	sample();
	ok(wait_until($local, "SELECT sum(statements), max(span) < 1000000 FROM pgpool.history WHERE server = 'new' AND sampled_at > '$start'", '1|t'),
		'sample begins when the worker wakes up');
}

# ---------- crash and settings
{
	stats_add_up($local);
	check_invariants($local);
	kill 'KILL', $sessions[1]->pid;
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.history', '0'), 'history is empty after a crash');
	$_->quit foreach @sessions;
	my $session = PgpxSession->new($local);
	is($session->run(q{SELECT pgpool.exec('a', 'select 1')}), '1', 'pool works after the crash');
	sample();
	ok(wait_until($local, 'SELECT sum(statements) FROM pgpool.history', '1'), 'history begins again');
	$session->quit;
	$local->append_conf('postgresql.conf', 'pgpool_ext.history_size = 0');
	with_clock($local, sub { $local->restart });
	$session = PgpxSession->new($local);
	is($session->run(q{SELECT pgpool.exec('a', 'select 1')}), '1', 'pool works without a history');
	sample();
	is($session->run('SELECT count(*) FROM pgpool.history') . $session->error, '0', 'there is no history if its size is 0');
	is($session->run(q{SELECT boot_val, unit FROM pg_settings WHERE name = 'pgpool_ext.history_size'}), '1024|kB', 'default size is 1 MB');
	$session->quit;
}
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

# The reset of a connection: when it is needed, behind a statement, and in front of the next one.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

# ---------- changes of options
# A connection without a reset, as the pool's options permitted, is leased under options
# that require one: the new options apply. No session finds traces of
# another one, nor, with reset 'always', its own.
{
	my $TRACES = "concat(current_setting('own.trace', true), (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()))";
	my $LEAVE = "select set_config('own.trace', 'left', false), pg_advisory_lock(7)";

	# In a pool of one connection a holder leaves traces, and a stopped waiter is granted
	# the connection. Then the option reset changes from $before to $after, and the waiter
	# continues. Returns the traces that it finds.
	sub found
	{
		my ($before, $after) = @_;
		my $server = "p_$before";
		my ($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;

		make_pool($local, $remote, server => $server, options => { pool_size => 1, reset => $before });
		$waiter->run("SELECT pgpool.exec('$server', 'select 1')") foreach 1 .. 3;
		my $lease = lease($holder, $server);
		$holder->run("SELECT pgpool.exec($lease, \$\$$LEAVE\$\$)");
		$waiter->start("SELECT pgpool.checkout('$server', '60 s')");
		wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = '$server'", '1') or die 'no waiter';
		kill 'STOP', $waiter->pid;
		$holder->run("SELECT pgpool.checkin($lease)");
		is($local->safe_psql('postgres', "SELECT pid = @{[$waiter->pid]} FROM pgpool.leases WHERE server = '$server'"),
			't', "$before: waiter is granted the connection");
		$local->safe_psql('postgres', "ALTER SERVER $server OPTIONS (SET reset '$after')");
		kill 'CONT', $waiter->pid;
		my $own = $waiter->finish;
		my $seen = $waiter->run("SELECT a FROM pgpool.query($own, \$\$select $TRACES\$\$) AS t(a text)");

		$waiter->run("SELECT pgpool.checkin($own)");
		$_->quit foreach $holder, $waiter;
		return $seen;
	}

	is(found('on_transfer', 'always'), '0', 'change from on_transfer to always: session is clean');
	is(found('never', 'always'), '0', 'change from never to always: session is clean');

	# --- on_transfer: a session finds its own traces, other sessions find none
	sub traces
	{
		my ($session, $server) = @_;

		return $session->run("SELECT a FROM pgpool.query('$server', \$\$select $TRACES\$\$) AS t(a text)");
	}

	my $server = 'mine';
	my ($first, $second) = map { PgpxSession->new($local) } 1 .. 2;

	make_pool($local, $remote, server => $server, options => { pool_size => 1, reset => 'on_transfer' });
	$first->run("SELECT pgpool.exec('$server', 'select 1')") foreach 1 .. 3;
	$first->run("SELECT pgpool.exec('$server', \$\$$LEAVE\$\$)");
	is(traces($first, $server), 'left1', "$server: on_transfer: session finds its own traces");
	is(traces($second, $server), '0', "$server: on_transfer: another session finds no traces");
	is(traces($first, $server), '0', "$server: on_transfer: traces are removed by another session");
	$first->run("SELECT pgpool.exec('$server', \$\$$LEAVE\$\$)");
	$first->run('DISCARD ALL');
	is(traces($first, $server), '0', "$server: on_transfer: traces are removed by a local DISCARD ALL");

	$first->run("SELECT pgpool.exec('$server', \$\$$LEAVE\$\$)");
	$first->run('DISCARD PLANS');
	is(traces($first, $server), 'left1', "$server: on_transfer: traces stay after a local DISCARD PLANS");

	# a session that was granted the connection and left before it had the socket is not
	# recorded as its last user
	$first->run("SELECT pgpool.exec('$server', \$\$$LEAVE\$\$)");
	my $third = PgpxSession->new($local);
	my $worker = worker_pid($local);
	kill 'STOP', $worker;
	$third->start("SELECT pgpool.exec('$server', 'select 1')");
	ok(wait_until($local, "SELECT pid = @{[$third->pid]} FROM pgpool.leases WHERE server = '$server'", 't'), "$server: on_transfer: another session is granted the connection");
	$local->safe_psql('postgres', "SELECT pg_cancel_backend(@{[$third->pid]})");
	$third->finish;
	$third->failed('57014', qr/canceling statement/, "$server: on_transfer: other session is cancelled before it has the socket");
	kill 'CONT', $worker;
	is(traces($third, $server), '0', "$server: on_transfer: other session does not find the traces");
	$third->quit;

	$first->run("SELECT pgpool.exec('$server', \$\$$LEAVE\$\$)");
	$local->safe_psql('postgres', "ALTER SERVER $server OPTIONS (SET reset 'always')");
	is(traces($first, $server), '0', "$server: always: session does not find its own traces");
	$local->safe_psql('postgres', "ALTER SERVER $server OPTIONS (SET reset 'on_transfer')");
	is(traces($first, $server), '0', "$server: session does not find its own traces after the change back to on_transfer");
	$_->quit foreach $first, $second;

	check_invariants($local);
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- the reset follows the statement
# A call on a pool sends the reset behind its statement, so that the remote session is
# reset while the local session processes the rows. With other options or texts the reset
# is sent at the end of the call, or not at all.
#
# The values are converted to a domain whose check waits for an advisory lock. Meanwhile
# the remote server shows the last command of its session.
{
	$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE TABLE t (a int);
INSERT INTO t VALUES (1);
CREATE FUNCTION leave_state() RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	CREATE TEMP TABLE own ();
	PERFORM set_config('work_mem', '99kB', false), pg_advisory_lock(7);
	RETURN pg_backend_pid();
END $$;
EOT
	my %servers = (
		s => {},
		on_transfer => { reset => 'on_transfer' },
		never => { reset => 'never' },
		other_reset => { reset_command => 'RESET ALL' },
		starts => { start_commands => 'SET work_mem = 100' },
	);
	make_pool($local, $remote, server => $_, options => { pool_size => 1, %{ $servers{$_} } }) foreach sort keys %servers;
	$local->safe_psql('postgres', <<'EOT');
CREATE FUNCTION accepts(int) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1);
	RETURN $1 > 0;
END $$;
CREATE DOMAIN slow AS int CHECK (accepts(VALUE));
EOT

	my $session = PgpxSession->new($local);
	my $blocker = PgpxSession->new($local);

	sub query
	{
		my ($server, $sql, $type) = @_;

		return "SELECT * FROM pgpool.query('$server', '$sql') AS t(a $type)";
	}

	# Make a call, and return the process ID of its remote session.
	sub remote_pid
	{
		my ($server) = @_;

		return $session->run(query($server, 'select pg_backend_pid()', 'int')) . $session->error;
	}

	# Start a call that returns its remote session, and stop it while it converts this value.
	# Returns the last command of that session. A session that waits for the client has
	# executed all commands that it has received.
	sub command_during
	{
		my ($server, $sql) = @_;
		my $pid = remote_pid($server);
		my $command = "SELECT query FROM pg_stat_activity WHERE pid = $pid AND state = 'idle' AND wait_event = 'ClientRead'";

		$blocker->run('SELECT pg_advisory_lock(1)');
		$session->start(query($server, $sql, 'slow'));
		ok(wait_until($local, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}, 1), "$server: value is being converted");
		ok(wait_until($remote, sub { $remote->safe_psql('postgres', $command) ne '' ? 1 : 0 }, 1), "$server: remote session is idle");
		return $remote->safe_psql('postgres', $command);
	}

	sub continue_call
	{
		$blocker->run('SELECT pg_advisory_unlock(1)');
		return $session->finish . $session->error;
	}

	sub resets { return $local->safe_psql('postgres', q{SELECT resets FROM pgpool.stats WHERE server = 's'}); }

	my $pid = remote_pid('s');

	is(command_during('s', 'select leave_state()'), 'DISCARD ALL', 'reset is sent with the statement');
	is(continue_call(), $pid, 'call returns its row');
	is($session->run(<<'EOT') . $session->error, "$pid|t|f|0", 'next call uses the same session, which was reset');
SELECT * FROM pgpool.query('s', $$
	SELECT pg_backend_pid(), to_regclass('pg_temp.own') IS NULL, current_setting('work_mem') = '99kB',
		(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')
	$$) AS t(pid int, gone bool, changed bool, locks int)
EOT
	is($session->run("SELECT sum(pgpool.exec('s', 'insert into t values (2)')) FROM generate_series(1, 100)") . $session->error, '100', '100 writes in a row succeed');

	# --- no reset is sent with the statement
	foreach my $server (grep { $_ ne 's' } sort keys %servers)
	{
		is(command_during($server, 'select pg_backend_pid()'), 'select pg_backend_pid()', "$server: no reset is sent with the statement");
		like(continue_call(), qr/^\d+$/, "$server: call returns its row");
	}
	my $long = 'select pg_backend_pid() -- ' . 'x' x 9000;
	my $set = "select pg_backend_pid() from (select set_config(\$\$work_mem\$\$, \$\$99kB\$\$, false)) AS settings";

	is(substr(command_during('s', $long), 0, 24), 'select pg_backend_pid() ', 'no reset is sent with a long statement');
	is(continue_call(), $pid, 'long statement returns its row');
	is(command_during('s', $set), 'DISCARD ALL', 'reset is sent with a statement that may change a setting');
	is(continue_call(), $pid, 'statement that changes a setting returns its row');
	$session->run("SELECT pgpool.exec('s', 'select 1; begin')");
	like($session->error, qr/WARNING.*open remote transaction/, 'several statements may leave a transaction open');
	is(remote_pid('s'), $pid, 'open transaction is rolled back, and the connection is kept');

	# --- errors keep the connection
	$session->fails("SELECT pgpool.exec('s', 'select 1/0')", '22012', qr/division by zero/, 'remote error is reported');
	is(remote_pid('s'), $pid, 'remote error keeps the connection');
	$session->fails(query('s', 'select -1', 'slow'), '23514', qr/violates check constraint/, 'error of a conversion is reported');
	is(remote_pid('s'), $pid, 'error of a conversion keeps the connection');

	# --- the end of the call or of the session, while the reset is in flight or was answered
	my $resets = resets();
	is(command_during('s', 'select pg_backend_pid()'), 'DISCARD ALL', 'reset is sent with the statement of a call that will be cancelled');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	like($session->finish . $session->error, qr/57014/, 'call is cancelled');
	is(resets() - $resets, 2, 'reset of the cancelled call is counted, as that of the call before');
	$blocker->run('SELECT pg_advisory_unlock(1)');
	isnt(remote_pid('s'), $pid, 'connection of a cancelled call is replaced');
	is(command_during('s', 'select pg_backend_pid()'), 'DISCARD ALL', 'reset is sent with the statement');
	$local->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $session->pid . ')');
	$session->finish;
	$blocker->run('SELECT pg_advisory_unlock(1)');
	$session = PgpxSession->new($local);
	like(remote_pid('s'), qr/^\d+$/, 'next session is served');
	is($local->safe_psql('postgres', "SELECT resets_failed, closed_reset FROM pgpool.stats WHERE server = 's'"), '0|0', 'no reset has failed');

	$_->quit foreach $session, $blocker;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- a statement follows the reset
# The first statement of a foreign table does not wait for the reset of the session's
# last lease. If the reset fails, the statement has no effect and is cancelled.
#
# A lock on a temporary table of the remote session stops DISCARD ALL.
{
	$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE TABLE t (a int);
INSERT INTO t VALUES (1);
CREATE VIEW slow AS SELECT a FROM t, pg_sleep(600);
EOT
	make_pool($local, $remote, server => 's', options => { pool_size => 1, checkout_timeout => '20s', operation_timeout => '20s' });
	make_pool($local, $remote, server => 'other_reset', options => { pool_size => 1, checkout_timeout => '20s', reset_command => 'DISCARD TEMP' });
	foreach my $server ('s', 'other_reset')
	{
		$local->safe_psql('postgres', <<"EOT");
CREATE SCHEMA $server;
CREATE FOREIGN TABLE $server.t (a int) SERVER $server OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE $server.slow (a int) SERVER $server OPTIONS (schema_name 'public');
EOT
	}
	$local->safe_psql('postgres', <<'EOT');
CREATE FUNCTION fails() RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN 1 / 0; END $$;
EOT

	my $session = PgpxSession->new($local);
	my $blocker = PgpxSession->new($remote, dbname => 'remote_db');
	my $other = PgpxSession->new($local);

	my $worker = worker_pid($local);

	# Let the session return a lease whose reset the blocker stops, and begin a statement at
	# once. $before is called before. The worker is stopped until resume_worker, unless it
	# relays TLS, because on a slow machine it would read the answer to the reset. Returns the
	# PID of the remote session.
	sub begin_behind_reset
	{
		my ($server, $sql, $before) = @_;
		my $lease = lease($session, $server);

		$session->run("SELECT pgpool.exec($lease, 'CREATE TEMP TABLE own ()')");
		my ($pid, $schema) = split /\|/, $session->run("SELECT * FROM pgpool.query($lease, 'SELECT pg_backend_pid(), pg_my_temp_schema()::regnamespace') AS t(pid int, schema text)");
		$blocker->run('BEGIN');
		$blocker->run("LOCK TABLE $schema.own IN ACCESS SHARE MODE");
		$before->() if $before;
		kill 'STOP', $worker unless over_tls();
		$session->start("DO \$\$ BEGIN PERFORM pgpool.checkin($lease); $sql; END \$\$");
		ok( wait_until($remote, "SELECT query, wait_event_type FROM pg_stat_activity WHERE pid = $pid", ($server eq 'other_reset' ? 'DISCARD TEMP' : 'DISCARD ALL') . '|Lock', 30),
			"$server: reset waits for the lock");
		return $pid;
	}

	sub resume_worker
	{
		kill 'CONT', $worker;
		return;
	}

	my $statements = q{SELECT scope, state FROM pgpool.leases};

	# --- the statement is sent, and waits for the reset on the remote server
	my $pid = begin_behind_reset('s', 'PERFORM * FROM s.t');
	ok(wait_until($local, $statements, 'fdw|active', 30), 'statement of a foreign table is sent before the reset is answered');
	resume_worker();
	$blocker->run('COMMIT');
	$session->finish(30);
	is($session->sqlstate, '', 'statement succeeds when the reset has ended');
	is($session->run('SELECT count(*) FROM s.t'), '1', 'next statement succeeds, too');
	is($local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 's'}), $pid, 'connection remains open');

	# --- the reset fails
	$pid = begin_behind_reset('s', 'INSERT INTO s.t SELECT count(*) + 1 FROM s.t');
	ok(wait_until($local, $statements, 'fdw|active', 30), 'statement that writes is sent before the reset is answered');
	resume_worker();
	my $reset = $local->safe_psql('postgres', q{SELECT closed_reset FROM pgpool.stats WHERE server = 's'});
	$remote->safe_psql('remote_db', "SELECT pg_cancel_backend($pid)");
	$session->finish(30);
	is($session->sqlstate, '08006', 'failed reset fails the statement that follows it');
	like($session->error, qr/reset of the last lease has failed/, 'error names the reset');
	$blocker->run('COMMIT');
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM t'), '1', 'statement has no effect');
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0', 30), 'connection is closed');
	ok(wait_until($local, q{SELECT closed_reset FROM pgpool.stats WHERE server = 's'}, $reset + 1, 30), 'failed reset is counted');
	is($session->run('SELECT count(*) FROM s.t'), '1', 'session uses another connection');

	# --- the reset fails, and the statement behind it runs for long
	$pid = begin_behind_reset('s', 'PERFORM * FROM s.slow');
	ok(wait_until($local, $statements, 'fdw|active', 30), 'long statement is sent before the reset is answered');
	resume_worker();
	$remote->safe_psql('remote_db', "SELECT pg_cancel_backend($pid)");
	$session->finish(30);
	is($session->sqlstate, '08006', 'failed reset fails the long statement');
	$blocker->run('COMMIT');
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0', 30), 'long statement is cancelled');

	# --- no statement follows, because of a local error
	foreach my $case ([ 'DELETE FROM s.t WHERE a = (SELECT fails())', '22012', 'abort' ],
		[ 'BEGIN DELETE FROM s.t WHERE a = (SELECT fails()); EXCEPTION WHEN division_by_zero THEN NULL; END', '', 'commit' ])
	{
		my ($sql, $sqlstate, $name) = @$case;

		$other->run('SELECT pg_advisory_lock(1)');
		$pid = begin_behind_reset('s', $sql);
		ok(wait_until($local, 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $session->pid, 'advisory', 30), "$name: session has a lease and waits");
		is($local->safe_psql('postgres', 'SELECT scope FROM pgpool.leases'), 'fdw', "$name: lease is of a foreign table");
		resume_worker();
		$blocker->run('COMMIT');
		ok(wait_until($remote, "SELECT state FROM pg_stat_activity WHERE pid = $pid", 'idle', 30), "$name: reset ends");
		$other->run('SELECT pg_advisory_unlock(1)');
		$session->finish(30);
		is($session->sqlstate, $sqlstate, "$name: statement fails with the local error");
		is($local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 's'}), $pid, "$name: connection remains open");
		is($session->run('SELECT count(*) FROM s.t'), '1', "$name: session uses it again");
	}

	# --- a statement of another session, which has cached the socket, waits
	is($other->run('SELECT count(*) FROM s.t'), '1', 'another session uses the connection');
	begin_behind_reset('s', 'NULL');
	$session->finish(30);
	$other->start('DELETE FROM s.t WHERE a = 3');
	ok(wait_until($local, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $other->pid, 'Extension', 30), 'another session waits for the reset');
	is($local->safe_psql('postgres', q{SELECT count(*) FROM pgpool.leases WHERE state = 'active'}), '0', 'another session has sent nothing');
	resume_worker();
	$blocker->run('COMMIT');
	$other->finish(30);
	is($other->sqlstate, '', 'statement of another session succeeds');

	# --- a statement of another user waits
	my $port = $remote->port;
	$local->safe_psql('postgres', <<"EOT");
CREATE ROLE one;
CREATE ROLE two;
CREATE SERVER public_mapping FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', pool_size '1');
CREATE USER MAPPING FOR PUBLIC SERVER public_mapping OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
CREATE FOREIGN TABLE t_public (a int) SERVER public_mapping OPTIONS (schema_name 'public', table_name 't');
CREATE VIEW t_of_two AS SELECT * FROM t_public;
ALTER VIEW t_of_two OWNER TO two;
GRANT USAGE ON FOREIGN SERVER public_mapping TO one, two;
GRANT SELECT ON t_public TO two;
GRANT SELECT ON t_of_two TO one;
EOT
	$session->run('SET ROLE one');
	begin_behind_reset('public_mapping', 'PERFORM * FROM t_of_two');
	ok(wait_until($local, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $session->pid, 'Extension', 30), 'session waits for the reset');
	is($local->safe_psql('postgres', q{SELECT user_name, state FROM pgpool.leases}), 'two|idle', 'another user has sent nothing');
	resume_worker();
	$blocker->run('COMMIT');
	$session->finish(30);
	is($session->sqlstate, '', 'statement of another user succeeds');
	$session->run('RESET ROLE');

	# --- a cancel while both are running
	$pid = begin_behind_reset('s', 'PERFORM * FROM s.t');
	ok(wait_until($local, $statements, 'fdw|active', 30), 'statement is sent before the reset is answered, again');
	resume_worker();
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish(30);
	is($session->sqlstate, '57014', 'session can be cancelled');
	$blocker->run('COMMIT');
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0', 30), 'connection is closed after the cancel');
	is($session->run('SELECT count(*) FROM s.t'), '1', 'session uses another connection after the cancel');

	# --- nothing is sent before the answer
	foreach my $case ([ other_reset => 'PERFORM * FROM other_reset.t', 'a reset that can fail by itself' ],
		[ s => q{PERFORM pgpool.exec('s', 'INSERT INTO t VALUES (2)')}, 'a statement that is committed at once' ],
		[ s => q{PERFORM pg_advisory_xact_lock(1); PERFORM * FROM s.t}, 'a reset that takes long' ])
	{
		my ($server, $sql, $name) = @$case;

		# in the last case the worker takes over the reset before the session continues
		my $waits = $sql =~ /advisory/;

		$other->run('SELECT pg_advisory_lock(1)') if $waits;
		begin_behind_reset($server, $sql);
		if ($waits)
		{
			resume_worker();
			ok(wait_until($local, q{SELECT state FROM pgpool.connections WHERE server = 's'}, 'resetting'), "$name: worker waits for the reset");
			$other->run('SELECT pg_advisory_unlock(1)');
		}
		ok(wait_until($local, 'SELECT (SELECT count(*) FROM pgpool.leases) + (SELECT count(*) FROM pgpool.waiters)', 1, 30), "$name: session has a lease or waits for one");
		ok(wait_until($local, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $session->pid, 'Extension', 30), "$name: session waits for the reset");
		is($local->safe_psql('postgres', q{SELECT count(*) FROM pgpool.leases WHERE state = 'active'}), '0', "$name: nothing is sent");
		resume_worker();
		$blocker->run('COMMIT');
		$session->finish(30);
		is($session->sqlstate, '', "$name: statement succeeds");
	}

	$session->quit;
	$other->quit;
	$blocker->quit;
	check_invariants($local);
}

# --- the error of a reset that no session reads
{
	my $since = -s $local->logfile;

	make_pool($local, $remote, server => 'failing', options => { pool_size => 1, reset_command => 'SELECT 1/0' });
	is($local->safe_psql('postgres', q{SELECT pgpool.exec('failing', 'select 1')}), '1', 'failing: call succeeds');
	is_logged($local, $since, qr/closes connection \d+ to server "failing" of database "postgres" because its reset failed\n.*DETAIL:  division by zero/, 'failing: error of the reset is logged');
}

leak_check($local, $remote);
done_testing();

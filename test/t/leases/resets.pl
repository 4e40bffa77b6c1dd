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

	is(found('never', 'always'), '0', 'change from never to always: session is clean');


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
	is($local->safe_psql('postgres', "SELECT closed_reset FROM pgpool.stats WHERE server = 's'"), '0', 'no reset has failed');

	# --- a reset that fails after the call has returned is logged, and the session's next
	# statement uses another connection. A lock on a temporary table stops DISCARD ALL.
	$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION fails_later() RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	CREATE TEMP TABLE own ();
	RETURN pg_backend_pid();
END $$;
EOT
	my $lease = lease($session, 's');
	$pid = $session->run("SELECT a FROM pgpool.query($lease, 'select fails_later()') AS t(a int)");
	my $table = $remote->safe_psql('remote_db', q{SELECT oid::regclass FROM pg_class WHERE relname = 'own'});
	my $holder = PgpxSession->new($remote, dbname => 'remote_db');
	$holder->run("BEGIN; LOCK TABLE $table IN ACCESS SHARE MODE");
	$session->run("SELECT pgpool.checkin($lease)");
	ok(wait_until($remote, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid", 'Lock'), 'reset waits for a lock');
	$session->start(query('s', 'select pg_backend_pid()', 'int'));
	$remote->safe_psql('remote_db', "SELECT pg_cancel_backend($pid)");
	isnt($session->finish . $session->error, $pid, 'statement after a failed reset uses another connection');
	is($session->error, '', 'statement after a failed reset succeeds');
	ok(wait_until($local, sub { PostgreSQL::Test::Utils::slurp_file($local->logfile) =~ /to server "s" of database "postgres" because its reset failed\n.*DETAIL:  .*canceling statement/ ? 1 : 0 }, 1), 'log has the error of the reset');
	is($local->safe_psql('postgres', "SELECT closed_reset FROM pgpool.stats WHERE server = 's'"), '1', 'failed reset is counted');
	$holder->quit;

	$_->quit foreach $session, $blocker;
	stats_add_up($local);
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

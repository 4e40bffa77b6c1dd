# The first statement of a foreign table does not wait for the reset of the session's
# last lease. If the reset fails, the statement has no effect and is cancelled.
#
# A lock on a temporary table of the remote session stops DISCARD ALL.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

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
leak_check($local, $remote);
done_testing();

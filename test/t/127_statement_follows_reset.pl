# The first statement of a foreign table does not wait for the reset of the session's
# last lease. If the reset fails, the statement has no effect.
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
EOT
make_pool($local, $remote, server => 's', options => { pool_size => 1, checkout_timeout => '20s', operation_timeout => '20s' });
make_pool($local, $remote, server => 'other_reset', options => { pool_size => 1, checkout_timeout => '20s', reset_command => 'DISCARD TEMP' });
foreach my $server ('s', 'other_reset')
{
	$local->safe_psql('postgres', <<"EOT");
CREATE SCHEMA $server;
CREATE FOREIGN TABLE $server.t (a int) SERVER $server OPTIONS (schema_name 'public');
EOT
}

my $session = PgpxSession->new($local);
my $blocker = PgpxSession->new($remote, dbname => 'remote_db');

# Let the session return a lease whose reset the blocker stops, and begin a statement at
# once. Returns the PID of the remote session.
sub begin_behind_reset
{
	my ($server, $sql) = @_;
	my $lease = lease($session, $server);

	$session->run("SELECT pgpool.exec($lease, 'CREATE TEMP TABLE own ()')");
	my ($pid, $schema) = split /\|/, $session->run("SELECT * FROM pgpool.query($lease, 'SELECT pg_backend_pid(), pg_my_temp_schema()::regnamespace') AS t(pid int, schema text)");
	$blocker->run('BEGIN');
	$blocker->run("LOCK TABLE $schema.own IN ACCESS SHARE MODE");
	$session->start("DO \$\$ BEGIN PERFORM pgpool.checkin($lease); $sql; END \$\$");
	ok( wait_until($remote, "SELECT query, wait_event_type FROM pg_stat_activity WHERE pid = $pid", ($server eq 's' ? 'DISCARD ALL' : 'DISCARD TEMP') . '|Lock', 30),
		"$server: reset waits for the lock");
	return $pid;
}

my $statements = q{SELECT scope, state FROM pgpool.leases};

# --- the statement is sent, and waits for the reset on the remote server
my $pid = begin_behind_reset('s', 'PERFORM * FROM s.t');
ok(wait_until($local, $statements, 'fdw|active', 30), 'statement of a foreign table is sent before the reset is answered');
$blocker->run('COMMIT');
$session->finish(30);
is($session->sqlstate, '', 'statement succeeds when the reset has ended');
is($session->run('SELECT count(*) FROM s.t'), '1', 'the next statement, too');
is($local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 's'}), $pid, 'connection remains open');

# --- the reset fails
$pid = begin_behind_reset('s', 'INSERT INTO s.t SELECT count(*) + 1 FROM s.t');
ok(wait_until($local, $statements, 'fdw|active', 30), 'statement that writes is sent before the reset is answered');
my $reset = $local->safe_psql('postgres', q{SELECT closed_reset FROM pgpool.stats WHERE server = 's'});
$remote->safe_psql('remote_db', "SELECT pg_cancel_backend($pid)");
$session->finish(30);
is($session->sqlstate, '08006', 'failed reset fails the statement that follows it');
like($session->error, qr/lost|reset/, 'error names the reset');
$blocker->run('COMMIT');
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM t'), '1', 'statement has no effect');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0', 30), 'connection is closed');
is($session->run('SELECT count(*) FROM s.t'), '1', 'session uses another connection');

# --- a cancel while both are running
$pid = begin_behind_reset('s', 'PERFORM * FROM s.t');
ok(wait_until($local, $statements, 'fdw|active', 30), 'statement is sent before the reset is answered, again');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
$session->finish(30);
is($session->sqlstate, '57014', 'session can be cancelled');
$blocker->run('COMMIT');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0', 30), 'connection is closed after the cancel');
is($session->run('SELECT count(*) FROM s.t'), '1', 'session uses another connection after the cancel');

# --- a statement waits
foreach my $case ([ other_reset => 'PERFORM * FROM other_reset.t', 'a reset that can fail by itself' ],
	[ s => q{PERFORM pgpool.exec('s', 'INSERT INTO t VALUES (2)')}, 'a statement that is committed at once' ],
	[ s => q{PERFORM pg_sleep(1); PERFORM * FROM s.t}, 'a reset that takes long' ])
{
	my ($server, $sql, $name) = @$case;

	begin_behind_reset($server, $sql);
	ok(wait_until($local, 'SELECT (SELECT count(*) FROM pgpool.leases) + (SELECT count(*) FROM pgpool.waiters)', 1, 30), "$name: session wants a connection");
	is($local->safe_psql('postgres', q{SELECT count(*) FROM pgpool.leases WHERE state = 'active'}), '0', "$name: nothing is sent");
	$blocker->run('COMMIT');
	$session->finish(30);
	is($session->sqlstate, '', "$name: statement succeeds");
}

$session->quit;
$blocker->quit;
leak_check($local, $remote);
done_testing();

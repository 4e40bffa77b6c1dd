# A call on a pool sends the reset behind its statement, so that the remote session is
# reset while the local session processes the rows. With other options or texts the reset
# is sent at the end of the call, or not at all.
#
# The values are converted to a domain whose check waits for an advisory lock. Meanwhile
# the remote server shows the last command of its session.
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
leak_check($local, $remote);
done_testing();

# A backend that is terminated releases its leased connection: at once if the lease was
# idle, after a cancel if a query ran. Nothing keeps running on the remote server.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'shard1', options => { pool_size => 1 });
$remote->safe_psql('remote_db',
	'CREATE TABLE t AS SELECT 1 AS a; ALTER TABLE t OWNER TO remote_app');

my $row = 'AS t(a int)';
my $next = PgpxSession->new($local);

# Terminate a holder, whose connection must be free then. (How soon: see timing/slots.)
sub check_terminated_holder
{
	my ($holder, $what) = @_;
	my $lease;

	$next->run('SELECT pg_terminate_backend(' . $holder->pid . ')');
	$lease = $next->run("SELECT pgpool.checkout('shard1', '1 h')");
	like($lease, qr/^\d+$/, "$what: connection becomes free");
	is($next->run("SELECT * FROM pgpool.query($lease, 'select 5') $row"), '5', "$what: connection works");
	$next->run("SELECT pgpool.checkin($lease)");
	ok( wait_until($remote,
			"SELECT count(*) FROM pg_stat_activity WHERE query ~ 'sleep|generate_series|from t'"
			  . " AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'",
			'0'),
		"$what: no statement of the holder runs on the remote server");
	is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '0', "$what: no lease is left");
	check_invariants($local, "$what: invariants hold");
	return;
}

# Wait until the holder's statement runs on the remote server.
sub runs_at_remote
{
	my ($pattern) = @_;

	return ok( wait_until($remote,
			"SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() AND query ~ '$pattern'",
			'1'),
		"remote server executes $pattern");
}

my $holder = PgpxSession->new($local);
lease($holder, 'shard1');
check_terminated_holder($holder, 'unused lease');

$holder = PgpxSession->new($local);
my $lease = lease($holder, 'shard1');
is($holder->run("SELECT * FROM pgpool.query($lease, 'select 1') $row"), '1', 'lease is used');
check_terminated_holder($holder, 'idle lease');

$holder = PgpxSession->new($local);
$lease = lease($holder, 'shard1');
$holder->run("SELECT pgpool.exec($lease, 'begin'); SELECT pgpool.exec($lease, 'update t set a = 2')");
check_terminated_holder($holder, 'open transaction');
is($remote->safe_psql('remote_db', 'SELECT a FROM t FOR UPDATE NOWAIT'), '1',
	'open transaction is rolled back, and its locks are released');

$holder = PgpxSession->new($local);
$lease = lease($holder, 'shard1');
$holder->start("SELECT * FROM pgpool.query($lease, 'select 1 from pg_sleep(300)') $row");
runs_at_remote('pg_sleep');
check_terminated_holder($holder, 'lease with a running query');

$holder = PgpxSession->new($local);
$holder->start("SELECT * FROM pgpool.query('shard1', 'select 1 from pg_sleep(300)') $row");
runs_at_remote('pg_sleep');
check_terminated_holder($holder, 'call with a running query');

$holder = PgpxSession->new($local);
$holder->start("SELECT count(*) FROM pgpool.query('shard1', 'select generate_series(1, 1000000000)') $row");
ok( wait_until($remote,
		"SELECT count(*) FROM pg_stat_activity WHERE query ~ 'generate_series' AND pid <> pg_backend_pid()",
		'1'),
	'remote server sends a large result');
check_terminated_holder($holder, 'call in the middle of a result');

$holder = PgpxSession->new($local);
$holder->start("BEGIN; SELECT pgpool.checkout_xact('shard1') AS lease \\gset\nSELECT pgpool.exec(:lease, 'select pg_sleep(300)')");
runs_at_remote('pg_sleep');
check_terminated_holder($holder, 'transaction lease with a running query');

# the same for a client that disconnects
$holder = PgpxSession->new($local);
lease($holder, 'shard1');
$holder->quit;
is($next->run("SELECT * FROM pgpool.query('shard1', 'select 6') $row"), '6', 'disconnected client leaves no lease');

stats_add_up($local);
leak_check($local, $remote);
done_testing();

# DROP DATABASE waits for every process of the server to answer a barrier: the
# worker does while it is idle, and sessions do while they wait for a connection
# or for a remote.  Nor is the worker in any database.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
# autovacuum changes pg_database, and the worker would look again
my $local = local_node('local', conf => [ 'pgpool_ext.workers = 2', 'autovacuum = off' ]);
make_pool($local, $remote, server => 'shard1', options => { pool_size => 2 });

my @sessions = map { PgpxSession->new($local) } 1 .. 3;
my $admin = PgpxSession->new($local);

sub drops
{
	my ($what, $database) = @_;
	my $name = $database // 'elsewhere';

	$admin->run("CREATE DATABASE $name STRATEGY file_copy") unless $database;
	my $took = seconds { $admin->run("DROP DATABASE $name", 20) };
	is($admin->error, '', "$what: a database can be dropped");
	cmp_ok($took, '<', 10, "$what: without delay");
	return;
}

drops('no pool was ever used');
my @leases = map { lease($_, 'shard1') } @sessions[ 0, 1 ];
$sessions[0]->run("SELECT pgpool.exec($leases[0], 'select 1')");
drops('leases are out and the worker is idle');

$sessions[1]->start("SELECT pgpool.exec($leases[1], 'select pg_sleep(300)')");
ok( wait_until($remote,
		"SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(300)' AND state = 'active'",
		'1'),
	'one is in a remote query');
$sessions[2]->start("SELECT pgpool.checkout('shard1', '5 min')");
ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'and one waits');
drops('a session is in a remote query, and one waits');
is($sessions[$_]->done, 0, 'which does not disturb them') foreach 1, 2;
$sessions[1]->quit if terminate($local, $sessions[1]->pid);
like($sessions[2]->finish(10), qr/^\d+$/, 'nor later');

# a database with pools of its own
$admin->run('CREATE DATABASE tenant');
make_pool($local, $remote, server => 'shard1', dbname => 'tenant');
is($local->safe_psql('tenant', "SELECT pgpool.exec('shard1', 'select 1')"), '1', 'a database has a pool');
drops('a database with an open connection of its pool', 'tenant');

# somebody has locked pg_database when the worker is to look which databases are left;
# whoever connects then waits, so these are here already
{
	my ($holder, $locker, $user) = map { PgpxSession->new($local) } 1 .. 3;
	my $left = q{SELECT count(*) FROM pgpool.connections WHERE database = 'tenant'};
	my $locks = q{SELECT count(*) FROM pg_locks WHERE relation = 'pg_database'::regclass AND};

	make_pool($local, $remote, server => $_) foreach qw(fresh1 fresh2);    # one of each worker
	$admin->run('CREATE DATABASE tenant');
	make_pool($local, $remote, server => 'shard1', dbname => 'tenant');
	is($local->safe_psql('tenant', "SELECT pgpool.exec('shard1', 'select 1')"), '1', 'a database has a pool again');
	$holder->run(q{BEGIN; COMMENT ON DATABASE tenant IS 'not yet'});
	$admin->start('DROP DATABASE tenant');
	ok(wait_until($local, "$locks granted AND mode = 'RowExclusiveLock' AND pid = " . $admin->pid, '1'), 'its end waits for somebody');
	$locker->start('BEGIN; LOCK TABLE pg_database IN ACCESS EXCLUSIVE MODE');
	ok(wait_until($local, sub { $user->run("$locks NOT granted AND pid = " . $locker->pid) }, '1'), 'and a lock on pg_database for its end');
	$holder->run('COMMIT');
	$_->finish(60) foreach $admin, $locker;
	is($admin->error . $locker->error, '', 'the database is dropped, and pg_database locked at once');
	foreach my $server (qw(fresh1 fresh2))
	{
		is($user->run("SELECT pgpool.exec('$server', 'select 1')", 60) . $user->error, '1', "$server: a connection is opened meanwhile");
	}
	is($user->run($left), '1', 'whether the database is there could not be seen');
	$locker->run('ROLLBACK');    # which tells the worker nothing
	ok(wait_until($local, $left, '0', 30), 'it is looked at again');
	$_->quit foreach $holder, $locker, $user;
}

$_->run('SELECT pgpool.checkin_all()') foreach @sessions[ 0, 2 ];
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

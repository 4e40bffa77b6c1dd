# DROP DATABASE waits until every process has answered a barrier. The worker does while
# it is idle, and sessions do while they wait for a connection or for a remote server.
# The worker is not connected to any database.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
# autovacuum changes pg_database, which would make the worker check its databases again
my $local = local_node('local', conf => [ 'pgpool_ext.workers = 2', 'autovacuum = off' ]);
make_pool($local, $remote, server => 'shard1', options => { pool_size => 2 });

my @sessions = map { PgpxSession->new($local) } 1 .. 3;
my $admin = PgpxSession->new($local);

sub drops
{
	my ($what, $database) = @_;
	my $name = $database // 'elsewhere';

	$admin->run("CREATE DATABASE $name STRATEGY file_copy") unless $database;
	$admin->run("DROP DATABASE $name");
	is($admin->error, '', "$what: DROP DATABASE succeeds");
	return;
}

drops('no pool was ever used');
my @leases = map { lease($_, 'shard1') } @sessions[ 0, 1 ];
$sessions[0]->run("SELECT pgpool.exec($leases[0], 'select 1')");
drops('leases are held and the worker is idle');

$sessions[1]->start("SELECT pgpool.exec($leases[1], 'select pg_sleep(300)')");
ok( wait_until($remote,
		"SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(300)' AND state = 'active'",
		'1'),
	'one session executes a remote query');
$sessions[2]->start("SELECT pgpool.checkout('shard1', '5 min')");
ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'another session waits');
drops('a session executes a remote query, and one waits');
is($sessions[$_]->done, 0, "session $_ is not disturbed") foreach 1, 2;
$sessions[1]->quit if terminate($local, $sessions[1]->pid);
like($sessions[2]->finish(10), qr/^\d+$/, 'waiter is granted the connection of a terminated session');

# a database with pools of its own
$admin->run('CREATE DATABASE tenant');
make_pool($local, $remote, server => 'shard1', dbname => 'tenant');
is($local->safe_psql('tenant', "SELECT pgpool.exec('shard1', 'select 1')"), '1', 'database has a pool');
drops('a database with an open connection of its pool', 'tenant');

# pg_database is locked when the worker checks which databases still exist. New sessions
# would wait for that lock, so these are connected before.
{
	my ($holder, $locker, $user) = map { PgpxSession->new($local) } 1 .. 3;
	my $left = q{SELECT count(*) FROM pgpool.connections WHERE database = 'tenant'};
	my $locks = q{SELECT count(*) FROM pg_locks WHERE relation = 'pg_database'::regclass AND};

	make_pool($local, $remote, server => $_) foreach qw(fresh1 fresh2);    # one of each worker
	$admin->run('CREATE DATABASE tenant');
	make_pool($local, $remote, server => 'shard1', dbname => 'tenant');
	is($local->safe_psql('tenant', "SELECT pgpool.exec('shard1', 'select 1')"), '1', 'database has a pool again');
	foreach my $name (qw(client tenant))
	{
		my $former = $name eq 'client' ? 'tenant' : 'client';

		ok(wait_until($local, sub { $admin->run("ALTER DATABASE $former RENAME TO $name"); $admin->error }, ''), "$former: database is renamed");
		ok(wait_until($local, q{SELECT database FROM pgpool.pools WHERE server = 'shard1' AND database <> 'postgres'}, $name), "$name: pool has the new name");
	}
	$holder->run(q{BEGIN; COMMENT ON DATABASE tenant IS 'not yet'});
	$admin->start('DROP DATABASE tenant');
	ok(wait_until($local, "$locks granted AND mode = 'RowExclusiveLock' AND pid = " . $admin->pid, '1'), 'DROP DATABASE waits for another transaction');
	$locker->start('BEGIN; LOCK TABLE pg_database IN ACCESS EXCLUSIVE MODE');
	ok(wait_until($local, sub { $user->run("$locks NOT granted AND pid = " . $locker->pid) }, '1'), 'LOCK TABLE pg_database waits for DROP DATABASE');
	$holder->run('COMMIT');
	$_->finish(60) foreach $admin, $locker;
	is($admin->error . $locker->error, '', 'database is dropped, and pg_database is locked right after it');
	foreach my $server (qw(fresh1 fresh2))
	{
		is($user->run("SELECT pgpool.exec('$server', 'select 1')", 60) . $user->error, '1', "$server: connection is opened while pg_database is locked");
	}
	is($user->run($left), '1', 'pool of the dropped database is kept while the worker cannot read pg_database');
	$locker->run('ROLLBACK');    # the worker is not notified of this
	ok(wait_until($local, $left, '0'), 'worker checks again and forgets the pool');
	$_->quit foreach $holder, $locker, $user;
}

$_->run('SELECT pgpool.checkin_all()') foreach @sessions[ 0, 2 ];
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

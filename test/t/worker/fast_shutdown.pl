# A fast or immediate shutdown with holders and many waiters is not delayed by them, and
# leaves no session on the remote server.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote', conf => ['log_min_messages = debug1']);    # logs a connection that ends without Terminate
my $local = local_node('local', conf => ['max_connections = 90']);
make_pool($local, $remote, server => 'shard1', options => { pool_size => 4 });
make_pool($local, $remote, server => 'spare', options => { pool_size => 2 });

# Stop the server. PostgreSQL::Test::Cluster fails the test if something blocks the shutdown.
sub stops
{
	my ($how, $name) = @_;

	$local->stop($how);
	return pass($name);
}

my @holders = map { PgpxSession->new($local) } 1 .. 4;
my @leases = map { lease($_, 'shard1') } @holders;
$holders[1]->run("SELECT pgpool.exec($leases[1], 'select 1')");
$holders[2]->run("SELECT pgpool.exec($leases[2], 'begin')");

my @waiters = map { PgpxSession->new($local) } 1 .. 40;
$_->start("SELECT pgpool.checkout('shard1', '10 min')") foreach @waiters;
ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '40'), '40 sessions wait');
is(remote_sessions($remote), 4, 'remote server has four sessions');
is($local->safe_psql('postgres', q{SELECT pgpool.exec('spare', 'select 1')}), '1', 'another pool is used');
ok(wait_until($local, q{SELECT state FROM pgpool.connections WHERE server = 'spare'}, 'idle'), 'connection of the other pool is idle');
check_invariants($local);

my $log = -s $remote->logfile;
stops('fast', 'fast shutdown ends');
ok(wait_until($remote, sub { remote_sessions($remote) }, '0'), 'no session is left on the remote server');
unlike(substr(PostgreSQL::Test::Utils::slurp_file($remote->logfile), $log), qr{pgpool_ext/spare .*(?:EOF|could not|unexpected)}, 'idle connections end with Terminate');
$_->finish(10) foreach @waiters;
is(scalar(grep { !$_->is_gone } @waiters), 0, 'all sessions have ended');

unlike(PostgreSQL::Test::Utils::slurp_file($local->logfile), qr/PANIC|TRAP|terminated by signal|was terminated by/,
	'no process crashed');

# immediate shutdown
$local->start;
$_->quit foreach @holders, @waiters;
@holders = map { PgpxSession->new($local) } 1 .. 4;
lease($_, 'shard1') foreach @holders;
@waiters = map { PgpxSession->new($local) } 1 .. 40;
$_->start("SELECT pgpool.checkout('shard1', '10 min')") foreach @waiters;
ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '40'), '40 sessions wait again');
stops('immediate', 'immediate shutdown ends');
ok(wait_until($remote, sub { remote_sessions($remote) }, '0'), 'no session is left on the remote server after an immediate shutdown');
$_->finish(10) foreach @waiters;
is(scalar(grep { !$_->is_gone } @waiters), 0, 'all sessions have ended after an immediate shutdown');
$_->quit foreach @holders, @waiters;

# fast shutdown while sessions execute remote queries and the worker is busy
$local->start;
my @busy = map { PgpxSession->new($local) } 1 .. 20;
$_->start("SELECT pgpool.exec('shard1', 'select pg_sleep(0.01)') FROM generate_series(1, 100000)") foreach @busy;
ok(wait_until($local, 'SELECT sum(checkouts) > 50 FROM pgpool.stats', 't'), 'sessions are busy');
stops('fast', 'fast shutdown of a busy server ends');
ok(wait_until($remote, sub { remote_sessions($remote) }, '0'), 'busy sessions leave no session on the remote server');

# a smart shutdown waits for the sessions, not for the pool
$local->start;
is($local->safe_psql('postgres', "SELECT pgpool.exec('shard1', 'select 1')"), '1', 'connection is open');
ok(wait_until($local, "SELECT state FROM pgpool.connections WHERE server = 'shard1'", 'idle'), 'connection is idle');
$log = -s $remote->logfile;
stops('smart', 'smart shutdown does not wait for idle connections');
ok(wait_until($remote, sub { remote_sessions($remote) }, '0'), 'no session is left on the remote server after a smart shutdown');
unlike(substr(PostgreSQL::Test::Utils::slurp_file($remote->logfile), $log), qr/EOF|could not|unexpected/, 'idle connection ends with Terminate');

$local->start;
check_invariants($local);
leak_check($local, $remote);
done_testing();

# A new worker asks those who wait how to connect.  One that cannot answer, since it
# is stopped, is asked once: the worker does not try again and again.
use strict;
use warnings;

use PgpxTest;
use Test::More;
use Time::HiRes qw(usleep);

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'one', options => { pool_size => 1 });

my ($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;
lease($holder, 'one');
$waiter->start("SELECT pgpool.checkout('one', '60 s')");
wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';

kill 'STOP', $waiter->pid;
my $worker = worker_pid($local);
$local->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
ok( wait_until($local,
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker' AND pid <> $worker", '1'),
	'there is a new worker');
ok(wait_until($local, 'SELECT grown > 1 FROM pgpool.stats'), 'which is asked for a connection, and does not know how');
usleep(500_000);
cmp_ok($local->safe_psql('postgres', 'SELECT grown FROM pgpool.stats'), '<', 10, 'it is not asked again and again');

kill 'CONT', $waiter->pid;
like($waiter->finish, qr/^\d+$/, 'told, it serves the waiter');
$waiter->run('SELECT pgpool.checkin_all()');
is($local->safe_psql('postgres', "SELECT a FROM pgpool.query('one', 'select 1') AS t(a int)"), '1', 'the pool works');
$_->quit foreach $holder, $waiter;

check_invariants($local);
stats_add_up($local);
leak_check($local, $remote);
done_testing();

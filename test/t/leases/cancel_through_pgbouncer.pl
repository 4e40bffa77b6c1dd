# Cancel requests through a real PgBouncer. PgBouncer 1.18 exits if the client closes a
# cancel connection while the request is being forwarded.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'PgBouncer has no TLS here' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local');
my ($bouncer, $port, $log) = start_pgbouncer('remote_app', $REMOTE_APP_PASSWORD, 'remote_db = host=127.0.0.1 port=' . $remote->port)
  or plan skip_all => 'PgBouncer is missing (Debian: pgbouncer)';

make_pool($local, $remote, server => 'bounced', options => { port => $port, pool_size => 2 });

my $session = PgpxSession->new($local);
my $lease_session = PgpxSession->new($local);
my $query = 'select 1 from pg_sleep(0.2)';
my $closed = "SELECT count(*) FILTER (WHERE cancelling + closing > 0) FROM pgpool.pools WHERE server = 'bounced'";

is($session->run("SELECT pgpool.exec('bounced', 'select 1')") . $session->error, '1', 'pool works through PgBouncer');
foreach my $round (1 .. 20)
{
	$session->run("BEGIN; SET LOCAL statement_timeout = '30ms';\nSELECT * FROM pgpool.query('bounced', '$query') AS t(a int);\nROLLBACK;");
	last unless $bouncer->pumpable;
}
ok($bouncer->pumpable, 'PgBouncer survives cancelled calls');

# the same on a lease, whose connection stays open
my $lease = lease($lease_session, 'bounced');
foreach my $round (1 .. 20)
{
	$lease_session->run("BEGIN; SET LOCAL statement_timeout = '30ms';\nSELECT pgpool.exec($lease, 'select pg_sleep(0.2)');\nROLLBACK;");
	last unless $bouncer->pumpable;
}
ok($bouncer->pumpable, 'PgBouncer survives cancelled statements of a lease');

# .. and if the lease is terminated in the middle of a statement, which goes on at the
# remote server because PgBouncer forgets a client that has disconnected
foreach my $round (1 .. 3)
{
	my $held = lease($session, 'bounced');
	my $running = "SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(5), $round' AND state = 'active'";

	$session->start("SELECT pgpool.exec($held, 'select pg_sleep(5), $round')");
	ok(wait_until($remote, $running, '1'), 'statement runs');
	$local->safe_psql('postgres', "SELECT pgpool.terminate($held)");
	$session->finish(30);
	ok(wait_until($local, $closed, '0'), 'connection has closed');
}
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'select pg_sleep(5)%' AND state = 'active'", '0'), 'statements have ended');
ok($bouncer->pumpable, 'PgBouncer survives terminated leases');
unlike(slurp_file($log), qr/FATAL|bad client state/, 'PgBouncer logs no fatal error');
is($session->run("SELECT pgpool.exec('bounced', 'select 1')") . $session->error, '1', 'pool works');

$_->quit foreach $session, $lease_session;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
$bouncer->kill_kill;
done_testing();

# Faults while servers agree on their shares of cluster_connections: a pool is evicted while
# a statement is in flight.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', conf => ['pgpool_ext.max_pools = 3']);
my %super = (user => 'remote_super', password => $REMOTE_SUPER_PASSWORD);
my $holder = PgpxSession->new($local);
my $su = $local->safe_psql('postgres', 'SELECT current_user');
my $blocker = PgpxSession->new($remote, dbname => 'remote_db');

make_pool($local, $remote, server => 'plain', %super);
make_pool($local, $remote, server => 'other');
make_pool($local, $remote, server => 'shared', options => { cluster_connections => 8, retry_max => '200ms' });
$local->safe_psql('postgres', q{SELECT pgpool.lock_setup('plain')});

$remote->safe_psql('remote_db', 'GRANT USAGE ON SCHEMA pgpool_lock TO remote_app; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgpool_lock TO remote_app');

sub share { return $local->safe_psql('postgres', "SELECT $_[0] FROM pgpool.cluster_shares WHERE server = 'shared'"); }

# Wait until the worker's statement waits for the row of share_turn, which a session locks.
sub block_statement
{
	my ($name) = @_;

	$blocker->run('BEGIN; LOCK TABLE pgpool_lock.share_turn IN EXCLUSIVE MODE');
	return ok(
		wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock' AND wait_event_type = 'Lock'}, 1, 30),
		"$name: statement is in flight");
}

# --- the pool whose pinger has sent a statement is evicted
my $app = PgpxSession->new($local, user => 'app');
is($holder->run(q{SELECT pgpool.exec('shared', 'SELECT 1')}) . $holder->error, '1', 'first pool of the server is used');
$holder->run(q{SELECT pgpool.drain('shared', '10 s'); SELECT pgpool.resume('shared')});
lease($app, 'shared');
lease($holder, 'plain');
block_statement('evicted pool');
is($holder->run(q{SELECT pgpool.exec('other', 'SELECT 1')}) . $holder->error, '1', 'evicted pool: another pool takes its slot');
is($holder->run(q{SELECT string_agg(server || ' ' || local_user, ', ' ORDER BY server) FROM pgpool.pools}), "other $su, plain $su, shared app", '.. that of the first pool');
$blocker->run('COMMIT');
like($app->run(q{SELECT pgpool.checkout('shared', '20 s')}) . $app->error, qr/^\d+$/, 'evicted pool: server agrees by another pool, and opens a connection');
$_->run('SELECT pgpool.checkin_all()') foreach $app, $holder;

$_->quit foreach $app, $holder, $blocker;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

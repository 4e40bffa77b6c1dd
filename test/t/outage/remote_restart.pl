# Restart of the remote server. While it is down a checkout fails with 08001 and the
# reason. Afterwards checkouts succeed, and the remote server never has more sessions
# than pool_size.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'shard1', options => { pool_size => 3, retry_max => '200ms' });

my $row = 'AS t(a int)';
my $query = "SELECT * FROM pgpool.query('shard1', 'select 1') $row";

foreach my $mode (qw(fast immediate))
{
	my @sessions = map { PgpxSession->new($local) } 1 .. 6;
	my @leases = map { lease($_, 'shard1') } @sessions[ 0 .. 2 ];
	$sessions[$_]->run("SELECT pgpool.exec($leases[$_], 'select 1')") foreach 0 .. 2;
	$sessions[0]->run("SELECT pgpool.checkin($leases[0])");
	$sessions[2]->start("SELECT pgpool.exec($leases[2], 'select pg_sleep(300)')");
	ok( wait_until($remote,
			"SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(300)' AND state = 'active'",
			'1'),
		"$mode: one connection executes a query");

	$remote->stop($mode);
	$sessions[2]->finish(10);
	$sessions[2]->failed('08006', qr/connection to server "shard1" was lost/, "$mode: query fails");
	$sessions[1]->fails("SELECT * FROM pgpool.query($leases[1], 'select 1') $row",
		'08006', qr/connection to server "shard1" was lost/, "$mode: idle lease fails at its next use");

	# over TLS a session notices the end only after the worker has
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE state IN ('idle', 'reset_pending')}, 0), "$mode: worker has noticed the end of the idle connection")
	  if over_tls();
	$sessions[0]->fails("SELECT pgpool.checkout('shard1', '1 h')", '08001', qr/DETAIL:.*(?:refused|shutting down)/, "$mode: checkout reports the reason");
	$sessions[$_]->run("SELECT pgpool.checkin($leases[$_])"), is($sessions[$_]->error, '', "$mode: lost lease can be returned")
	  foreach 1, 2;

	# concurrent calls: each reports the reason, whether it waited or failed at once
	$_->start($query) foreach @sessions;
	$_->finish(30), $_->failed('08001', qr/DETAIL:.*refused/, "$mode: every session reports the reason") foreach @sessions;
	check_invariants($local, "$mode: invariants hold while the remote server is down");
	is($local->safe_psql('postgres', 'SELECT unavailable_since IS NOT NULL FROM pgpool.pools'),
		't', "$mode: pgpool.pools shows since when the remote server is unavailable");

	$remote->start;
	ok(wait_until($local, $query, '1'), "$mode: checkout succeeds after the restart");
	$_->start($query) foreach @sessions;
	is($_->finish(30), '1', "$mode: query of every session succeeds") foreach @sessions;
	cmp_ok(remote_sessions($remote), '<=', 3, "$mode: remote server has no more sessions than pool_size");
	is($local->safe_psql('postgres', 'SELECT unavailable_since IS NULL FROM pgpool.pools'),
		't', "$mode: pgpool.pools shows the remote server as available");
	$_->quit foreach @sessions;
}

# The same for a remote server that was down from the start.
$remote->stop;
my $early = PgpxSession->new($local);
make_pool($local, $remote, server => 'shard2');
$early->fails("SELECT pgpool.checkout('shard2')", '08001', qr/DETAIL:.*refused/, 'first checkout of a pool reports the reason');
$remote->start;
ok(wait_until($local, "SELECT * FROM pgpool.query('shard2', 'select 2') $row", '2'), 'pool works when the remote server has started');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

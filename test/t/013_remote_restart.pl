# The remote server stops and starts: while it is down a checkout fails with
# 08001 and the reason, afterwards it works again, and the remote never has more
# sessions than the pool is large.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'shard1', options => { pool_size => 3 });

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
		"$mode: one connection is in a query");

	$remote->stop($mode);
	$sessions[2]->finish(10);
	$sessions[2]->failed('08006', qr/connection to server "shard1" was lost/, "$mode: the query fails");
	$sessions[1]->fails("SELECT * FROM pgpool.query($leases[1], 'select 1') $row",
		'08006', qr/connection to server "shard1" was lost/, "$mode: an idle lease fails at its next use");
	my $delay = delay_begin();
	my $took = seconds {
		$sessions[0]->fails("SELECT pgpool.checkout('shard1', '8 s')", '08001',
			qr/DETAIL:.*(?:refused|shutting down)/, "$mode: a checkout tells the reason");
	};
	cmp_ok($took, '<', 1 + delay_end($delay), "$mode: at once, without waiting for leases that are lost");
	$sessions[$_]->run("SELECT pgpool.checkin($leases[$_])"), is($sessions[$_]->error, '', "$mode: a lost lease can be returned")
	  foreach 1, 2;

	# all at once: each gets the reason, whether it had to wait or came too soon
	$_->start($query) foreach @sessions;
	$_->finish(30), $_->failed('08001', qr/DETAIL:.*refused/, "$mode: everyone gets the reason") foreach @sessions;
	check_invariants($local, "$mode: the invariants hold while the remote is down");
	is($local->safe_psql('postgres', 'SELECT unavailable_since IS NOT NULL FROM pgpool.pools'),
		't', "$mode: the view shows it");

	$remote->start;
	ok(wait_until($local, $query, '1', 30), "$mode: afterwards it works again");
	$_->start($query) foreach @sessions;
	is($_->finish(30), '1', "$mode: for everyone") foreach @sessions;
	cmp_ok(remote_sessions($remote), '<=', 3, "$mode: with no session too many");
	is($local->safe_psql('postgres', 'SELECT unavailable_since IS NULL FROM pgpool.pools'),
		't', "$mode: the view shows that, too");
	$_->quit foreach @sessions;
}

# A remote that is down from the start is no different.
$remote->stop;
my $early = PgpxSession->new($local);
make_pool($local, $remote, server => 'shard2');
$early->fails("SELECT pgpool.checkout('shard2')", '08001', qr/DETAIL:.*refused/, 'the first checkout of all tells the reason');
$remote->start;
ok(wait_until($local, "SELECT * FROM pgpool.query('shard2', 'select 2') $row", '2', 30), 'and works later');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

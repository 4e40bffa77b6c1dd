# A broken lease, that is, one whose remote session has ended: the views show it,
# another connection takes its slot in the pool, and its holder receives the remote
# server's last message.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', conf => ['pgpool_ext.max_connections = 20']);
my ($holder, $other, $third) = map { PgpxSession->new($local) } 1 .. 3;

# the only lease of a server, used once, whose remote session is terminated
sub broken_lease
{
	my ($session, $server) = @_;
	my $lease = lease($session, $server);
	my $pid = $session->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)");

	$remote->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	ok(wait_until($local, "SELECT state FROM pgpool.leases WHERE lease = $lease", 'broken'), "$server: lease is shown as broken");
	return $lease;
}

sub sessions
{
	return $remote->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND application_name = 'pgpool_ext/$_[0]'");
}

sub ends
{
	my ($session, $lease, $server) = @_;

	$session->fails("SELECT pgpool.exec($lease, 'select 1')", '08006', qr/terminating connection due to administrator command/, "$server: holder receives the last message of the remote server");
	is($session->run("SELECT pgpool.checkin($lease)") . $session->error, '', "$server: broken lease can be returned");
	return;
}

# --- a new session, a waiter, and the holder itself are granted the slot
make_pool($local, $remote, server => 'one', options => { pool_size => 1, checkout_timeout => '60s' });
my $lease = broken_lease($holder, 'one');
my $new = lease($other, 'one');
is($other->run("SELECT pgpool.exec($new, 'select 1')"), '1', 'one: another session is granted a new connection');
is(sessions('one'), 1, 'one: remote server has no more sessions than pool_size');
check_invariants($local, 'one: invariants hold with a broken lease and another one');
$third->fails("SELECT pgpool.checkout('one', '200 ms')", '55P03', qr/1 of 1 connections are leased/, 'one: pool is full');
ends($holder, $lease, 'one');
$other->run("SELECT pgpool.checkin($new)");
ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'one'", 1), 'one: broken connection closes');
is($local->safe_psql('postgres', "SELECT total, connects FROM pgpool.pools JOIN pgpool.stats USING (pool_id) WHERE pools.server = 'one'"), '1|2', 'one: new connection stays open');

my $pid = $holder->run('SELECT a FROM pgpool.query(' . ($lease = lease($holder, 'one')) . ", 'select pg_backend_pid()') AS t(a int)");
$other->start(q{SELECT pgpool.checkout('one', '60 s') > 0});
ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'one'}, 1), 'one: session waits');
$remote->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
is($other->finish(30) . $other->error, 't', q{one: waiter is granted a connection when the holder's remote session ends});
is(sessions('one'), 1, 'one: there is one remote session');
$other->run('SELECT pgpool.checkin_all()');
is($holder->run(q{SELECT pgpool.exec('one', 'select 1')}) . $holder->error, '1', 'one: holder of a broken lease can check out again');
ends($holder, $lease, 'one');

# --- the cap of the server
make_pool($local, $remote, server => 'capped', options => { pool_size => 2, max_server_connections => 1 });
$lease = broken_lease($holder, 'capped');
$new = lease($other, 'capped');
is(sessions('capped'), 1, 'capped: there is one remote session');
$third->fails("SELECT pgpool.checkout('capped', '200 ms')", '55P03', qr/became available within/, 'capped: cap applies');
check_invariants($local, 'capped: invariants hold');
ends($holder, $lease, 'capped');
check_invariants($local, 'capped: invariants hold after checkin');
$other->run('SELECT pgpool.checkin_all()');

# --- other ends of a broken lease
$lease = broken_lease($holder, 'one');
is($local->safe_psql('postgres', "SELECT pgpool.terminate($lease)"), 't', 'one: broken lease is terminated');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.leases}, 0), 'one: no lease is left');
$holder->fails("SELECT pgpool.exec($lease, 'select 1')", 'PX001', qr/was terminated/, 'one: holder receives the error');
$lease = broken_lease($third, 'one');
$third->quit;
ok(wait_until($local, q{SELECT count(*) FROM pgpool.leases}, 0), 'one: broken lease ends with its holder');
is($other->run(q{SELECT pgpool.exec('one', 'select 1')}) . $other->error, '1', 'one: pool works');
$lease = broken_lease($holder, 'one');
ok(terminate($local, worker_pid($local)), 'one: worker exits while a lease is broken');
is($other->run(q{SELECT pgpool.exec('one', 'select 1')}) . $other->error, '1', 'one: pool works with the next worker');
$holder->fails("SELECT pgpool.exec($lease, 'select 1')", '08006', qr/./, 'one: holder receives the error after the restart');
check_invariants($local, 'one: invariants hold after the restart');

# --- all leases of a full pool, repeatedly
make_pool($local, $remote, server => 'many', options => { pool_size => 4, checkout_timeout => '60s' });
my @sessions = map { PgpxSession->new($local) } 1 .. 8;
my $most = 0;
foreach my $round (1 .. 5)
{
	foreach my $half ([ @sessions[ 0 .. 3 ] ], [ @sessions[ 4 .. 7 ] ])
	{
		lease($_, 'many') foreach @$half;
		my $n = sessions('many');
		$most = $n if $n > $most;
		$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/many'});
		wait_until($local, q{SELECT count(*) FROM pgpool.leases WHERE server = 'many' AND state <> 'broken'}, 0);
	}
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
}
is($most, 4, 'many: remote sessions never exceed pool_size');
ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'many'}, 0), 'many: no connection is left');

# --- pgpool_ext.max_connections: broken leases fill all slots
make_pool($local, $remote, server => 'global', options => { pool_size => 20, checkout_timeout => '60s' });
my @leases = split /,/, $holder->run(q{SELECT string_agg(pgpool.checkout('global')::text, ',') FROM generate_series(1, 20)});
is(scalar @leases, 20, 'global: one session leases all connections') or diag($holder->error);
is($local->safe_psql('postgres', 'SELECT connections_used FROM pgpool.workers'), 20, 'global: they are counted');
$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/global'});
ok(wait_until($local, q{SELECT count(*) FROM pgpool.leases WHERE state = 'broken'}, 20), 'global: leases are broken');
is($local->safe_psql('postgres', 'SELECT connections_used FROM pgpool.workers'), 0, 'global: they are not counted any more');
is($other->run(q{SELECT pgpool.exec('one', 'select 1')}) . $other->error, '1', 'global: another pool works');
is($holder->run(q{SELECT pgpool.exec('many', 'select 1')}) . $holder->error, '1', 'global: session with the broken leases is granted another one');
my %left = map { $_ => 1 } split /\n/, $local->safe_psql('postgres', 'SELECT lease FROM pgpool.leases');
my @ended = grep { !$left{$_} } @leases;
is(scalar @ended, 2, 'global: two of the leases have ended');
$holder->fails("SELECT pgpool.exec($ended[0], 'select 1')", '08006', qr/its slot was needed for another connection/, 'global: holder receives the reason');
check_invariants($local, 'global: invariants hold');
is($holder->run('SELECT pgpool.checkin_all() > 0') . $holder->error, 't', 'global: leases can be returned');

stats_add_up($local);
check_invariants($local);
$_->quit foreach $holder, $other, @sessions;
leak_check($local, $remote);
done_testing();

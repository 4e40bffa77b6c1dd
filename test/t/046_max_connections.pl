# pgpool_ext.max_connections caps the pools of all servers together: when it is
# reached, the connection that was idle longest, of whatever pool, gives way.
use strict;
use warnings;

use PgpxFakeServer;
use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', conf => ['pgpool_ext.max_connections = 3']);
make_pool($local, $remote, server => $_, options => { pool_size => 3, reset => 'never' }) foreach qw(a b c);
my $fake = PgpxFakeServer->new(silent => sub { $_[0]->receive; sleep 3600 }, login => { login => sub { sleep 3600 } });
my @sessions = map { PgpxSession->new($local) } 1 .. 4;

sub pids
{
	my ($server) = @_;

	return $local->safe_psql('postgres',
		"SELECT string_agg(remote_pid::text, ',' ORDER BY last_used) FROM pgpool.connections WHERE server = '$server'");
}

# a has two idle ones, and b one that was used after them
my @leases = map { lease($sessions[$_], 'a') } 0, 1;
$sessions[$_]->run('SELECT pgpool.checkin_all()') foreach 0, 1;
is($sessions[2]->run("SELECT pgpool.exec('b', 'select 1')"), '1', 'the third connection is of another server');
my ($oldest, $other) = split /,/, pids('a');
my $b = pids('b');

is($sessions[3]->run("SELECT pgpool.exec('c', 'select 1')"), '1', 'a fourth is asked for, by a third server');
is(pids('a'), $other, 'the one that was idle longest gives way');
is(pids('b'), $b, 'and no other');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $oldest", '0'), 'it has ended over there');
is($local->safe_psql('postgres', "SELECT string_agg(server || ' ' || closed_evicted, ', ' ORDER BY server) FROM pgpool.stats"),
	'a 1, b 0, c 0', 'the view tells the reason');
is($local->safe_psql('postgres', 'SELECT connections_used, connections_max FROM pgpool.workers'), '3|3', 'there are no more than the cap');

# nothing is idle: the newcomer waits, and is told why; who comes in gives way
@leases = (lease($sessions[0], 'a'), lease($sessions[1], 'b'), lease($sessions[2], 'c'));
$sessions[3]->start("SELECT pgpool.exec(pgpool.checkout('c', '60 s'), 'select 1')");
ok(wait_until($local, 'SELECT server, reason FROM pgpool.waiters', 'c|global_cap'), 'all are leased: the reason is shown');
$sessions[1]->run('SELECT pgpool.checkin_all()');
is($sessions[3]->finish(30), '1', 'a checkin into another pool makes room');
is($local->safe_psql('postgres', "SELECT string_agg(server || ' ' || closed_evicted, ', ' ORDER BY server) FROM pgpool.stats"),
	'a 1, b 1, c 0', 'by giving its connection up');
$_->run('SELECT pgpool.checkin_all()') foreach @sessions;

# min_size and prewarm make room as well, but not below the min_size of another pool
sub open_in
{
	return $local->safe_psql('postgres', q{SELECT string_agg(server || ' ' || total, ', ' ORDER BY server) FROM pgpool.pools WHERE server IN ('f', 'g')});
}

lease($sessions[$_], 'a') foreach 0 .. 2;
$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
is($local->safe_psql('postgres', q{SELECT total FROM pgpool.pools WHERE server = 'a'}), '3', 'one pool has all connections, and does not use them');
make_pool($local, $remote, server => 'f', options => { pool_size => 3, min_size => 2, reset => 'never' });
make_pool($local, $remote, server => 'g', options => { pool_size => 3, reset => 'never' });
is($sessions[3]->run("SELECT pgpool.exec('f', 'select 1')"), '1', 'a checkout has made room for itself');
ok(wait_until($local, q{SELECT total, idle FROM pgpool.pools WHERE server = 'f'}, '2|2'), 'min_size makes room for its second connection');
is($sessions[3]->run(q{SELECT pgpool.prewarm('g', 3, '30 s')}), '1', 'prewarm makes room, but not for more than one');
is(open_in(), 'f 2, g 1', 'which leaves another pool its min_size');
is($sessions[3]->run("SELECT pgpool.exec('a', 'select 1')"), '1', 'a checkout, too');
is($local->safe_psql('postgres', q{SELECT total, closed_evicted FROM pgpool.pools JOIN pgpool.stats USING (pool_id) WHERE pools.server = 'f'}), '2|0', '.. while there is a connection above that of another pool');
lease($sessions[$_], 'a') foreach 0 .. 2;
is($local->safe_psql('postgres', q{SELECT total, closed_evicted FROM pgpool.pools JOIN pgpool.stats USING (pool_id) WHERE pools.server = 'f'}), '0|2', 'checkouts take all where there is none');
$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
ok(wait_until($local, q{SELECT total, idle FROM pgpool.pools WHERE server = 'f'}, '2|2'), 'min_size makes room again when the others do not use theirs, though nobody calls');
$local->safe_psql('postgres', "DROP SERVER $_ CASCADE") foreach qw(f g);
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server IN ('f', 'g')}, '0'), 'they are gone');

# two are given up in mid-statement, one is being opened for who has left, and their remote never
# answers and never goes: its owner's timeouts are not for others
make_pool($local, $fake, server => 'd', remote_dbname => 'silent', options => { pool_size => 3, operation_timeout => '3650d', sslmode => 'disable' });
make_pool($local, $fake, server => 'e', remote_dbname => 'login', options => { pool_size => 3, connect_timeout => '3650d', sslmode => 'disable' });
$sessions[0]->run(q{SELECT pgpool.send(pgpool.checkout('d', '60 s'), 'select 1')}) foreach 1 .. 2;
$sessions[2]->fails(q{SELECT pgpool.checkout('e', '100 ms')}, '55P03', qr/timeout/, 'nobody waits for a login that is not answered');
$sessions[0]->quit;
ok(wait_until($local, q{SELECT string_agg(server || ' ' || state, ', ' ORDER BY server) FROM pgpool.connections WHERE server IN ('d', 'e')}, 'd cancelling, d cancelling, e connecting'),
	'all places are those of a remote that does not answer');
is($sessions[1]->run(q{SELECT pgpool.exec(pgpool.checkout('a', '60 s'), 'select 1') FROM generate_series(1, 3)}, 90) . $sessions[1]->error, "1\n1\n1", 'another pool gets them all the same');
like($local->safe_psql('postgres', q{SELECT last_error FROM pgpool.pools WHERE server = 'e'}), qr/did not end within the time for which its place is kept from others \(10 s\)/, 'and it is said why');
$sessions[1]->run('SELECT pgpool.checkin_all()');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

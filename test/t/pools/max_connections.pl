# pgpool_ext.max_connections limits the pools of all servers together. At the limit, the
# connection that has been idle longest, of any pool, is evicted.
use strict;
use warnings;

use PgpxFakeServer;
use PgpxTest;
use Test::More;

plan skip_all => 'limits over several pools do not depend on TLS' if over_tls();

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

# a has two idle connections, and b one that was used after them
my @leases = map { lease($sessions[$_], 'a') } 0, 1;
$sessions[$_]->run('SELECT pgpool.checkin_all()') foreach 0, 1;
is($sessions[2]->run("SELECT pgpool.exec('b', 'select 1')"), '1', 'third connection belongs to another server');
my ($oldest, $other) = split /,/, pids('a');
my $b = pids('b');

is($sessions[3]->run("SELECT pgpool.exec('c', 'select 1')"), '1', 'third server opens a connection at the limit');
is(pids('a'), $other, 'connection that was idle longest is evicted');
is(pids('b'), $b, 'no other connection is evicted');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $oldest", '0'), 'remote session of the evicted connection has ended');
is($local->safe_psql('postgres', "SELECT string_agg(server || ' ' || closed_evicted, ', ' ORDER BY server) FROM pgpool.stats"),
	'a 1, b 0, c 0', 'evictions are counted');
is($local->safe_psql('postgres', 'SELECT connections_used, connections_max FROM pgpool.workers'), '3|3', 'number of connections equals the limit');

# no connection is idle: the session waits with the reason shown, and a checkin evicts
@leases = (lease($sessions[0], 'a'), lease($sessions[1], 'b'), lease($sessions[2], 'c'));
$sessions[3]->start("SELECT pgpool.exec(pgpool.checkout('c', '60 s'), 'select 1')");
ok(wait_until($local, 'SELECT server, reason FROM pgpool.waiters', 'c|global_cap'), 'pgpool.waiters shows the limit as the reason of the wait');
{
	my $late = PgpxSession->new($local);

	$late->fails("SELECT pgpool.checkout('c', '100 ms')", '55P03', qr/HINT:  Raise the setting "pgpool_ext\.max_connections"/, 'error of a timeout names the limit');
	$late->quit;
}
$sessions[1]->run('SELECT pgpool.checkin_all()');
is($sessions[3]->finish(30), '1', 'checkin into another pool frees a slot');
is($local->safe_psql('postgres', "SELECT string_agg(server || ' ' || closed_evicted, ', ' ORDER BY server) FROM pgpool.stats"),
	'a 1, b 1, c 0', 'returned connection was evicted');
$_->run('SELECT pgpool.checkin_all()') foreach @sessions;

# Checkins close as many connections as the waiters of other pools can use, and no more.
# The worker is stopped, so that the closing connections keep their slots meanwhile.
my $worker = worker_pid($local);
foreach my $waiters (1, 2)
{
	my @waiting = ($sessions[3], PgpxSession->new($local))[ 0 .. $waiters - 1 ];

	lease($sessions[$_], 'a') foreach 0 .. 2;
	my $before = $local->safe_psql('postgres', "SELECT closed_evicted FROM pgpool.stats WHERE server = 'a'");
	foreach my $n (1 .. $waiters)
	{
		$waiting[ $n - 1 ]->start("SELECT pgpool.checkout('c', '60 s')");
		ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'c' AND reason = 'global_cap'}, $n), "session $n of $waiters waits for a slot");
	}
	kill 'STOP', $worker;
	$sessions[$_]->run('SELECT pgpool.checkin_all()') foreach 0 .. 2;
	is($local->safe_psql('postgres', q{SELECT closing, idle FROM pgpool.pools WHERE server = 'a'}), join('|', $waiters, 3 - $waiters), "three checkins close a connection for each of $waiters waiters");
	kill 'CONT', $worker;
	like($_->finish(30), qr/^\d+$/, 'waiter is granted a connection') foreach @waiting;
	is($local->safe_psql('postgres', "SELECT closed_evicted - $before FROM pgpool.stats WHERE server = 'a'"), $waiters, "connections closed for $waiters waiters are counted");
	$_->run('SELECT pgpool.checkin_all()') foreach @waiting;
	$waiting[1]->quit if $waiters > 1;
}

# min_size and prewarm evict as well, but not below the min_size of another pool
sub open_in
{
	return $local->safe_psql('postgres', q{SELECT string_agg(server || ' ' || total, ', ' ORDER BY server) FROM pgpool.pools WHERE server IN ('f', 'g')});
}

lease($sessions[$_], 'a') foreach 0 .. 2;
$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
is($local->safe_psql('postgres', q{SELECT total FROM pgpool.pools WHERE server = 'a'}), '3', 'one pool has all connections, idle');
make_pool($local, $remote, server => 'f', options => { pool_size => 3, min_size => 2, reset => 'never' });
make_pool($local, $remote, server => 'g', options => { pool_size => 3, reset => 'never' });
is($sessions[3]->run("SELECT pgpool.exec('f', 'select 1')"), '1', 'checkout evicts a connection');
ok(wait_until($local, q{SELECT total, idle FROM pgpool.pools WHERE server = 'f'}, '2|2'), 'min_size evicts for the second connection');
is($sessions[3]->run(q{SELECT pgpool.prewarm('g', 3, '30 s')}), '1', 'prewarm evicts one connection only');
is(open_in(), 'f 2, g 1', 'prewarm keeps the min_size of another pool');
is($sessions[3]->run("SELECT pgpool.exec('a', 'select 1')"), '1', 'checkout evicts a connection again');
is($local->safe_psql('postgres', q{SELECT total, closed_evicted FROM pgpool.pools JOIN pgpool.stats USING (pool_id) WHERE pools.server = 'f'}), '2|0', 'checkout keeps the min_size of another pool while there are other connections');
lease($sessions[$_], 'a') foreach 0 .. 2;
is($local->safe_psql('postgres', q{SELECT total, closed_evicted FROM pgpool.pools JOIN pgpool.stats USING (pool_id) WHERE pools.server = 'f'}), '0|2', 'checkouts evict below min_size if there are no other connections');
$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
ok(wait_until($local, q{SELECT total, idle FROM pgpool.pools WHERE server = 'f'}, '2|2'), 'min_size evicts again when connections of other pools are idle, without a call');
$local->safe_psql('postgres', q{ALTER SERVER f OPTIONS (DROP min_size, ADD min_idle '2')});
is($sessions[3]->run(q{SELECT pgpool.prewarm('g', 3, '30 s')}), '1', 'prewarm evicts one connection only, again');
is(open_in(), 'f 2, g 1', 'prewarm keeps the min_idle of another pool');
my $spare = lease($sessions[0], 'f');
ok(wait_until($local, q{SELECT leased, idle FROM pgpool.pools WHERE server = 'f'}, '1|2'), 'min_idle evicts a connection of another pool when a free one is leased');
$sessions[0]->run("SELECT pgpool.checkin($spare)");
$local->safe_psql('postgres', "DROP SERVER $_ CASCADE") foreach qw(f g);
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server IN ('f', 'g')}, '0'), 'connections of dropped servers have closed');

# min_size is reached as soon as another pool frees slots
make_pool($local, $remote, server => 'h', options => { pool_size => 3, min_size => 2, reset => 'never' });
make_pool($local, $remote, server => 'i', options => { pool_size => 3, reset => 'never', max_lifetime => '1h' });
is($sessions[0]->run(q{SELECT pgpool.exec('h', 'select 1')}), '1', 'pool with min_size is used');
ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'h'}, '2'), 'min_size is reached');
is($sessions[0]->run(q{SELECT pgpool.drain('h', '30 s')}), 't', 'pool with min_size is drained');
lease($_, 'i') foreach @sessions[ 0 .. 2 ];
$local->safe_psql('postgres', q{SELECT pgpool.resume('h')});
is($local->safe_psql('postgres', q{SELECT total FROM pgpool.pools WHERE server = 'h'}), '0', 'min_size opens no connection while other pools lease all');
$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'h'}, '2', 60), 'min_size is reached when other pools free slots');

$local->safe_psql('postgres', 'DROP SERVER h CASCADE; DROP SERVER i CASCADE');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server IN ('h', 'i')}, '0'), 'connections of the other dropped servers have closed');

# Two connections are abandoned with a running statement, and one is being opened for a
# session that does not wait any more. Their remote server never answers. The timeouts
# of their servers do not delay other pools.
make_pool($local, $fake, server => 'd', remote_dbname => 'silent', options => { pool_size => 3, operation_timeout => '3650d', sslmode => 'disable' });
make_pool($local, $fake, server => 'e', remote_dbname => 'login', options => { pool_size => 3, connect_timeout => '3650d', sslmode => 'disable' });
$sessions[0]->run(q{SELECT pgpool.send(pgpool.checkout('d', '60 s'), 'select 1')}) foreach 1 .. 2;
$sessions[2]->fails(q{SELECT pgpool.checkout('e', '100 ms')}, '55P03', qr/timeout/, 'session does not wait for the unanswered login');
$sessions[0]->quit;
ok(wait_until($local, q{SELECT string_agg(server || ' ' || state, ', ' ORDER BY server) FROM pgpool.connections WHERE server IN ('d', 'e')}, 'd cancelling, d cancelling, e connecting'),
	'all slots are occupied by the unresponsive remote server');
is($sessions[1]->run(q{SELECT pgpool.exec(pgpool.checkout('a', '60 s'), 'select 1') FROM generate_series(1, 3)}, 90) . $sessions[1]->error, "1\n1\n1", 'another pool is granted all slots');
like($local->safe_psql('postgres', q{SELECT last_error FROM pgpool.pools WHERE server = 'e'}), qr/did not end within the time limit for an attempt while another pool waits for its slot \(10 s\)/, 'pgpool.pools shows why the attempt was ended');
$sessions[1]->run('SELECT pgpool.checkin_all()');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

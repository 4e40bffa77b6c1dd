# max_server_connections limits the pools of all users of a server together. The remote
# server never has more sessions, the connection that was idle longest is evicted, and
# slots are granted by the age of waiters, so that no user starves.
use strict;
use warnings;

use IPC::Run;
use PgpxFakeServer;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'limits over several pools do not depend on TLS' if over_tls();
use Time::HiRes qw(usleep);

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'other');
$local->safe_psql('postgres', join ';', map { "CREATE ROLE u$_ LOGIN" } 1 .. 3);

# A server with a user mapping, and so a pool, for each role.
sub make_capped
{
	my ($name, $options, $fake, $dbname) = @_;
	my $port = ($fake // $remote)->port;

	$dbname //= 'remote_db';

	$local->safe_psql('postgres', <<"EOS");
CREATE SERVER $name FOREIGN DATA WRAPPER pgpool_fdw
	OPTIONS (host '127.0.0.1', port '$port', dbname '$dbname', $options);
${\ join '', map { "CREATE USER MAPPING FOR u$_ SERVER $name OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');\n" } 1 .. 3}GRANT USAGE ON FOREIGN SERVER $name TO PUBLIC;
EOS
	return;
}

sub pools
{
	my ($server, $columns) = @_;

	return $local->safe_psql('postgres',
		"SELECT $columns FROM pgpool.pools JOIN pgpool.stats USING (pool_id, server, local_user) WHERE server = '$server' AND total + checkouts > 0 ORDER BY local_user");
}

sub waits
{
	my ($session, $server, $reason, $name) = @_;
	my $pid = $session->pid;

	$session->start("SELECT pgpool.checkout('$server', '60 s')");
	ok(wait_until($local, "SELECT reason FROM pgpool.waiters WHERE pid = $pid", $reason, 30), $name)
	  or die "session does not wait\n";
	return;
}

sub connections
{
	my ($server, $user) = @_;

	return $local->safe_psql('postgres',
		"SELECT string_agg(state || '|' || n, ' ' ORDER BY state) FROM (SELECT state, count(*) AS n FROM pgpool.connections WHERE server = '$server' AND local_user = '$user' GROUP BY state) c");
}

sub idle_pids
{
	return $local->safe_psql('postgres',
		"SELECT string_agg(remote_pid::text, ' ' ORDER BY last_used) FROM pgpool.connections WHERE server = 'capped' AND state IN ('idle', 'reset_pending')");
}

make_capped('capped', "pool_size '3', max_server_connections '3'");
my @u1 = map { PgpxSession->new($local, user => 'u1') } 1 .. 4;
my @u2 = map { PgpxSession->new($local, user => 'u2') } 1 .. 2;
my $u3 = PgpxSession->new($local, user => 'u3');

# --- one user has all connections
my @leases = map { lease($_, 'capped') } @u1[ 0 .. 2 ];
waits($u2[0], 'capped', 'server_cap', q{another user waits because of the server's cap});
waits($u1[3], 'capped', 'full', 'another session of the first user waits behind it');
is($u2[1]->run("SELECT pgpool.try_checkout('capped')") . $u2[1]->error, '', 'try_checkout returns NULL');
$u1[0]->run("SELECT pgpool.checkin($leases[0])");
like($u2[0]->finish(30), qr/^\d+$/, 'returned connection is evicted for the pool with the oldest waiter');
is($u1[3]->done, 0, 'younger waiter of the same pool still waits');
is(pools('capped', 'local_user, leased, total, waiters'), "u1|2|2|1\nu2|1|1|0", 'cap is kept');
$u2[0]->run('SELECT pgpool.checkin_all()');
like($u1[3]->finish(30), qr/^\d+$/, 'younger waiter is granted a connection next');
is(remote_sessions($remote), '3', 'remote server has as many sessions as the cap allows');
is($local->safe_psql('postgres', "SELECT sum(closed_evicted), sum(timeouts) FROM pgpool.stats WHERE server = 'capped'"),
	'2|0', 'two connections were evicted, and no waiter timed out');
$_->run('SELECT pgpool.checkin_all()') foreach @u1;

# --- slots are granted by the age of each pool's first waiter
@leases = map { lease($_, 'capped') } @u1[ 0 .. 2 ];
waits($u3, 'capped', 'server_cap', 'third user waits');
waits($u2[0], 'capped', 'server_cap', 'second user waits behind the third');
waits($u1[3], 'capped', 'full', 'first user waits behind the second');
$u2[1]->fails("SELECT pgpool.checkout('capped', '100 ms')", '55P03', qr/HINT:  Raise "max_server_connections" or the timeout/, 'error of a timeout names the limit');
foreach my $case ([ $u1[0], $u3, 'third' ], [ $u1[1], $u2[0], 'second' ], [ $u3, $u1[3], 'first' ])
{
	my ($returns, $next, $name) = @$case;

	$returns->run('SELECT pgpool.checkin_all()');
	like($next->finish(30), qr/^\d+$/, "free slot is granted to the $name user");
}
$_->run('SELECT pgpool.checkin_all()') foreach @u1, $u2[0], $u3;

# --- a refused pool is recorded as next in line at once, not by the worker later
@leases = map { lease($_, 'capped') } @u1[ 0 .. 2 ];
my $worker = worker_pid($local);
kill 'STOP', $worker;
waits($u2[0], 'capped', 'server_cap', 'another user waits while the worker is stopped');
$u1[0]->run("SELECT pgpool.checkin($leases[0])");
is(connections('capped', 'u1'), 'closing|1 leased|2', 'returned connection closes for the other user');
is($u1[3]->run("SELECT pgpool.try_checkout('capped')") . $u1[3]->error, '', 'younger session cannot use the slot');
kill 'CONT', $worker;
like($u2[0]->finish(30), qr/^\d+$/, 'waiter is granted a connection when the worker continues');
$_->run('SELECT pgpool.checkin_all()') foreach @u1, $u2[0];

# --- the connection that was idle longest is evicted, but none of another server
is($local->safe_psql('postgres', "SELECT pgpool.exec('other', 'select 1')"), '1', 'connection of another server is idle for longest');
lease($_, 'capped') foreach @u1[ 0, 1 ];
$u1[1]->run('SELECT pgpool.checkin_all()');
is($u2[0]->run("SELECT pgpool.exec('capped', 'select 1')"), '1', 'second user opens a connection');
$u1[0]->run('SELECT pgpool.checkin_all()');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'capped' AND state = 'idle'}, '3'), 'all connections are reset');
my @before = split / /, idle_pids();
is(scalar @before, 3, 'three connections of two users are idle');
like(lease($u3, 'capped'), qr/^\d+$/, 'third user is granted a connection');
is(idle_pids(), join(' ', @before[ 1, 2 ]), 'connection that was idle longest is evicted');
is($local->safe_psql('postgres', "SELECT sum(closed_evicted), sum(total) FROM pgpool.stats JOIN pgpool.pools USING (pool_id) WHERE pools.server = 'other'"), '0|1', 'connection of another server is not evicted');
is(remote_sessions($remote), '4', 'remote server has no additional session');
$local->safe_psql('postgres', "SELECT pgpool.reconnect('other')");

# --- a session that would wait for itself
foreach my $session (@u2)
{
	$session->run("SELECT pgpool.checkin_all()");
}
$u3->run("SELECT pgpool.checkout('capped', '30 s'), pgpool.checkout('capped', '30 s')");
is($u3->error, '', 'session leases all connections of the server');
$local->safe_psql('postgres', "ALTER SERVER capped OPTIONS (SET pool_size '9')");
$u3->run('SELECT pgpool.checkin_all()');
$u3->run("SELECT pgpool.checkout('capped', '30 s')") foreach 1 .. 3;
$u3->fails("SELECT pgpool.checkout('capped', '1 h')", '40P01', qr/wait for this session itself/,
	'further checkout would wait for its own session and fails at once');
$u3->run('SELECT pgpool.checkin_all()');

# --- the cap takes precedence over min_size
make_capped('small', "pool_size '5', min_size '5', max_server_connections '2'");
is($_->run("SELECT pgpool.exec('small', 'select 1')"), '1', 'pool whose min_size exceeds the cap works')
  foreach $u1[0], $u2[0], $u3, $u1[0];
ok( wait_until($local, "SELECT sum(total), sum(connecting + closing) FROM pgpool.pools WHERE server = 'small'", '2|0'),
	'cap takes precedence over min_size');

# --- A slot is occupied before the connection attempt begins, and free when the
# connection has really closed. The fake server writes events to a file, and delays its
# close.
my $seen = PostgreSQL::Test::Utils::tempdir . '/seen';
my $fake = PgpxFakeServer->new(
	dark => { login => sub { append_to_file($seen, "dark\n"); sleep 3600 } },
	lingers => sub {
		my ($self) = @_;

		append_to_file($seen, "comes\n");
		$self->{stays} = 1;
		$self->send($self->answer('1')) while defined $self->receive;
		select undef, undef, undef, 0.2;
		append_to_file($seen, "goes\n");
	});
append_to_file($seen, '');
make_capped('dark', "pool_size '1', max_server_connections '1', connect_timeout '1s', retry_min '1h', retry_max '1h', sslmode 'disable'", $fake, 'dark');
$u1[0]->start("SELECT pgpool.checkout('dark', '60 s')");
ok(wait_until($local, sub { slurp_file($seen) }, "dark\n"), 'connection attempt is in progress');
waits($u2[0], 'dark', 'server_cap', 'attempt occupies the slot, so another user waits');
$u1[0]->finish(30);
$u1[0]->failed('08001', qr/within connect_timeout/, 'attempt times out');
ok(wait_until($local, sub { slurp_file($seen) }, "dark\ndark\n"), 'next attempt begins after the timeout');
$u2[0]->finish(30);
unlink $seen;
append_to_file($seen, '');
make_capped('lingers', "pool_size '1', max_server_connections '1', reset 'never', sslmode 'disable'", $fake, 'lingers');
$local->safe_psql('postgres', "ALTER USER MAPPING FOR u$_ SERVER lingers OPTIONS (ADD password_required 'false')") foreach 1 .. 3;
foreach my $session ($u1[0], $u2[0], $u1[0])
{
	is($session->run("SELECT pgpool.exec('lingers', 'select 1')", 60) . $session->error, '1', 'users are granted the only slot in turn');
}
is(slurp_file($seen), "comes\ngoes\n" x 2 . "comes\n", 'connection is opened only after the previous one has closed');

# --- a waiter whose pool is dropped while it waits for a cap does not block others
foreach my $round (1 .. 5)
{
	make_capped('gone', "pool_size '2', max_server_connections '1'");
	lease($u1[0], 'gone');
	$u2[0]->start("SELECT pgpool.checkout('gone', '60 s')");
	ok(wait_until($local, "SELECT reason FROM pgpool.waiters WHERE server = 'gone'", 'server_cap', 30), "round $round: session waits because of the cap") or last;
	$local->safe_psql('postgres', 'SET client_min_messages = error; DROP SERVER gone CASCADE');
	$u2[0]->finish(30);
	$u1[0]->run('SELECT pgpool.checkin_all()');
	make_capped('gone', "pool_size '2', max_server_connections '1'");
	$u3->run("SELECT pgpool.checkin(pgpool.checkout('gone', '1 min'))");
	$local->safe_psql('postgres', 'SET client_min_messages = error; DROP SERVER gone CASCADE');
	last if $u3->error ne '';
}
is($u3->error, '', 'waiter of a dropped pool does not block the cap');

# --- load: the cap is never exceeded, and no user starves
make_capped('busy', "pool_size '3', max_server_connections '3', checkout_timeout '10min', connect_timeout '10min'");
my $script = PostgreSQL::Test::Utils::tempdir . '/query.sql';
append_to_file($script, "SELECT a FROM pgpool.query('busy', 'select 1, pg_sleep(0.002)') AS t(a int, b text);\n");
$remote->safe_psql('postgres', "ALTER ROLE remote_app CONNECTION LIMIT 3");
$local->safe_psql('postgres', "SELECT pgpool.drain(s, '30 s') FROM unnest('{capped,small}'::text[]) s");
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'", '0'), 'other servers are drained');
my %clients = (u1 => 12, u2 => 1, u3 => 3);
my $watch = PgpxSession->new($remote);
my $most = 0;

# each client has its number of calls, so none may starve
my (@bench, @out, @err);
foreach my $user (sort keys %clients)
{
	push @out, '';
	push @err, '';
	push @bench,
	  IPC::Run::start([ 'pgbench', '-n', '-c', $clients{$user}, '-t', 20, '-f', $script, $local->connstr('postgres') . " user=$user" ],
		'>', \$out[-1], '2>', \$err[-1]);
}
while (grep { $_->pumpable } @bench)
{
	my $now = $watch->run("SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'");

	$most = $now if $now > $most;
	$_->pump_nb foreach grep { $_->pumpable } @bench;
	usleep(10_000);
}
foreach my $user (sort keys %clients)
{
	my $bench = shift @bench;
	my ($out, $err) = (\shift @out, \shift @err);

	$bench->finish;
	is($bench->result(0), 0, "$user: pgbench succeeds") or diag($$err);
	like($$out, qr/transactions actually processed: @{[ 20 * $clients{$user} ]}\b/, "$user: all calls were made");
}
cmp_ok($most, '<=', 3, "remote server had $most sessions at most");
is($local->safe_psql('postgres', "SELECT sum(connects_failed) FROM pgpool.stats WHERE server = 'busy'"),
	'0', 'no connection attempt was refused');
$local->safe_psql('postgres', 'SELECT pgpool.resume()');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

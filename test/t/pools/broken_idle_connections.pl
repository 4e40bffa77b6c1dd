# A broken connection is never leased. A connection that ends while it is idle closes
# within a second, notices do not close it, and test_period has it tested before a lease,
# with a short deadline of its own.
use strict;
use warnings;

use PgpxClock;
use PgpxFakeServer;
use PgpxTest qw(:DEFAULT becomes pool);
use PostgreSQL::Test::Utils;
use Socket;
use Test::More;

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();

my $remote = remote_node('remote', conf => ['restart_after_crash = on']);
my $local = local_node('local', start => 0, conf => ['pgpool_ext.log_connections = on']);
with_clock($local, sub { $local->start });
my $flag = PostgreSQL::Test::Utils::tempdir . '/go';

# Behaviour: send bytes while the connection is idle, when the flag file exists.
sub send_on_flag
{
	my ($bytes) = @_;

	return sub {
		my ($fake) = @_;

		$fake->serve(2);
		select undef, undef, undef, 0.05 until -e $flag;
		$fake->send(ref $bytes ? $bytes->($fake) : $bytes);
		sleep 3600;
	};
}
my %ends = (
	eof => sub { close $_[0]->{socket}; '' },
	rst => sub { setsockopt $_[0]->{socket}, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0; close $_[0]->{socket}; '' });
my %harmless = (
	notice => PgpxFakeServer::message('N', "SNOTICE\0C00000\0Mhello\0\0"),
	parameter => PgpxFakeServer::message('S', "TimeZone\0UTC\0"),
	notification => PgpxFakeServer::message('A', pack 'NZ*Z*', 1, 'channel', 'payload'));
# The first connection sends something harmless or nothing, and closes. So does the second
# one, in the same slot.
my %turns = map { $_ => [ "$flag.$_.1", "$flag.$_.2" ] } qw(turns turns_leased);
sub by_turns
{
	my ($name, $fake) = @_;
	my $second = -e $turns{$name}[0];

	# wait, so that libpq does not read the message as part of the login
	select(undef, undef, undef, 0.2), $fake->send($harmless{notice}) if $name eq 'turns' && !$second;
	select undef, undef, undef, 0.05 until -e $turns{$name}[$second ? 1 : 0];
	close $fake->{socket};
	sleep 3600;
	return;
}
my $fake = PgpxFakeServer->new((map { my $name = $_; $name => sub { by_turns($name, @_) } } keys %turns), map { $_ => send_on_flag($ends{$_} // $harmless{$_}) } keys %ends, keys %harmless);
my $session = PgpxSession->new($local);    # after the fake server, whose processes would otherwise inherit the session's pipes

# Do something, and assert that the worker closes the expected number of connections of each
# server. No call is made meanwhile that could cause the close.
sub closed
{
	my ($what, $name, %wanted) = @_;

	$what->();
	foreach my $server (sort keys %wanted)
	{
		ok(wait_until($local, sub { scalar(() = slurp_file($local->logfile) =~ /pgpool_ext closed connection \d+ to server "$server"/g) }, $wanted{$server}), "$server: $name");
	}
	return;
}

sub query { return "SELECT pid FROM pgpool.query('$_[0]', 'select pg_backend_pid()') AS t(pid int)"; }

# --- the remote server ends sessions
make_pool($local, $remote, server => 'ended', options => { pool_size => 4, test_period => -1 });
$session->run("SELECT pgpool.prewarm('ended', 4, '30 s')");
my $pids = $local->safe_psql('postgres', 'SELECT string_agg(remote_pid::text, $$,$$) FROM pgpool.connections');
my ($first, @rest) = split /,/, $pids;
closed(sub { $remote->safe_psql('postgres', "SELECT pg_terminate_backend($first)") },
	'connection that ended is closed without a call', ended => 1);
ok(wait_until($local, q{SELECT string_agg(remote_pid::text, ',' ORDER BY remote_pid) FROM pgpool.connections}, join(',', sort { $a <=> $b } @rest)),
	'ended: no other connection is closed');
# the remote server restarts, which ends all its sessions
closed(sub { kill 'KILL', $rest[0] }, 'all connections are closed when the remote server crashes', ended => 4);
becomes('ended', 'total, closed_broken, retried', '0|4|0', 'each close is counted, and no lost connection was leased');
ok(wait_until($local, "SELECT * FROM pgpool.query('ended', 'select 1') AS t(a int)", '1', 60), 'ended: next call succeeds');

# --- ends of streams, and harmless messages
make_pool($local, $fake, server => "s_$_", remote_dbname => $_,
	options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode(), test_period => -1 })
  foreach keys %ends, keys %harmless;
foreach my $what (sort keys %ends, keys %harmless)
{
	is($session->run("SELECT * FROM pgpool.query('s_$what', 'select 1') AS t(a text)") . $session->error, '1', "$what: connection is used");
}
my $all = keys(%ends) + keys(%harmless);
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server ~ '^s_' AND state = 'idle'}, $all), 'all connections are idle');
is($local->safe_psql('postgres', "SELECT DISTINCT transport FROM pgpool.connections WHERE server ~ '^s_'"),
	over_tls() ? 'relay' : 'direct', 'transport is the relay over TLS, and direct otherwise');
closed(sub { append_to_file($flag, '') }, 'end of the stream closes the connection', map { ("s_$_" => 1) } keys %ends);
becomes("s_$_", 'total, closed_broken', '0|1', 'close is counted as broken') foreach sort keys %ends;
foreach my $what (sort keys %harmless)
{
	is(pool("s_$what", 'total, idle, closed_broken'), '1|1|0', "s_$what: notice does not close the connection");
	is($session->run("SELECT pgpool.checkin(pgpool.checkout('s_$what'))") . $session->error, '', "s_$what: connection can be leased");
	is(pool("s_$what", 'connects, retried'), '1|0', "s_$what: connection is the same one");
}

# --- a slot is used again after its connection has ended while watched, or while leased
foreach my $name (sort keys %turns)
{
	my @places;

	make_pool($local, $fake, server => $name, remote_dbname => $name,
		options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode(), test_period => -1 });
	foreach my $turn (1 .. 2)
	{
		is($session->run("SELECT pgpool.prewarm('$name', 1, '30 s')") . $session->error, '1', "$name: connection $turn is opened");
		ok(wait_until($local, "SELECT now() - last_used > '1200 ms' FROM pgpool.connections WHERE server = '$name'", 't'), "$name: connection $turn has been idle for a while");
		push @places, $local->safe_psql('postgres', qq{SELECT connection FROM pgpool.connections WHERE server = '$name'});
		if ($turn == 1 && $name eq 'turns_leased')
		{
			my $lease = lease($session, $name);

			append_to_file($turns{$name}[0], '');
			$session->fails("SELECT pgpool.exec($lease, 'select 1')", '08006', qr/was lost/, "$name: lease fails when the connection has ended");
			$session->run('SELECT pgpool.checkin_all()');
			ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = '$name'", '0'), "$name: connection is closed");
			next;
		}
		closed(sub { append_to_file($turns{$name}[ $turn - 1 ], '') },
			"connection $turn is closed", $name => $turn);
	}
	is($places[1], $places[0], "$name: both connections had the same slot");
}

# --- test_period
make_pool($local, $remote, server => 'always', options => { pool_size => 1, test_period => 0 });
make_pool($local, $remote, server => 'never', options => { pool_size => 1, test_period => -1 });
make_pool($local, $remote, server => 'later', options => { pool_size => 1, test_period => '1min' });
$session->run(query($_)) foreach qw(always never later) x 5;
ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server IN ('always', 'never', 'later') AND state = 'idle'", '3'), 'three connections are idle');
is(pool('later', 'checks'), 0, 'later: connection in use is not tested');
let_time_pass($local, 61);
my $checks = pool('later', 'checks');
my $always = pool('always', 'checks');
foreach my $server (qw(always never later))
{
	like($session->run(query($server)) . $session->error, qr/^\d+$/, "$server: call succeeds");
}
is(pool('later', 'checks'), $checks + 1, 'later: connection is tested after test_period');
is(pool('never', 'checks'), '0', 'never: no test is made');
is(pool('always', 'checks'), $always + 1, 'always: idle connection is tested');
foreach my $round (1 .. 3)
{
	ok(wait_until($local, "SELECT state FROM pgpool.connections WHERE server = 'always'", 'idle'), 'always: connection is idle');
	$session->run(query('always'));
	is(pool('always', 'checks, closed_broken, connects'), ($always + 1 + $round) . '|0|1', 'always: connection is tested before the lease');
}

# --- one connection is tested for each waiter, all at the same time
make_pool($local, $remote, server => 'several', options => { pool_size => 3, test_period => '1min' });
is($session->run("SELECT pgpool.prewarm('several', 3, timeout => '30 s')"), '3', 'several: three connections are open');
let_time_pass($local, 61);
my @callers = map { PgpxSession->new($local) } 1 .. 3;
my $tester = worker_pid($local);
kill 'STOP', $tester;
foreach my $n (1 .. 3)
{
	$callers[ $n - 1 ]->start(query('several'));
	ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = 'several'", $n), "several: $n sessions wait");
	is(pool('several', 'checking'), $n, "several: $n connections are tested");
	check_invariants($local, "several: invariants hold with $n waiters");
}
kill 'CONT', $tester;
like($_->finish(60) . $_->error, qr/^\d+$/, 'several: waiter is granted a connection') foreach @callers;
becomes('several', 'checks, closed_broken, connects', '3|0|3', 'waiters are granted the tested connections');
$_->quit foreach @callers;

# --- an unresponsive remote server
make_pool($local, $remote, server => 'hole',
	options => { pool_size => 2, test_period => '1min', operation_timeout => '1h', checkout_timeout => '1h' });
$session->run("SELECT pgpool.prewarm('hole', 2, '30 s')");
my @pids = split /,/, $local->safe_psql('postgres', q{SELECT string_agg(remote_pid::text, ',' ORDER BY last_used) FROM pgpool.connections WHERE server = 'hole'});
let_time_pass($local, 61);
kill 'STOP', @pids;
my $got = $session->run(query('hole'));
like($got . $session->error, qr/^\d+$/, 'hole: checkout succeeds');
is(scalar(grep { $_ eq $got } @pids), 0, 'hole: checkout leases another connection');
cmp_ok(pool('hole', 'closed_broken'), '>=', 1, 'hole: test has failed');
kill 'CONT', @pids;
is(pool('never', 'checks'), '0', 'never: still no test is made');

# --- After a test has timed out, no session waits for one timeout after another: the
# other idle connections are tested at the same time, and another one is opened. If the
# pool is full, this takes the place of the one that did not answer.
make_pool($local, $remote, server => 'full_holes',
	options => { pool_size => 3, test_period => '1min', operation_timeout => '1h', checkout_timeout => '1h' });
$session->run("SELECT pgpool.prewarm('full_holes', 3, '30 s')");
let_time_pass($local, 61);
my @stopped = split /,/, $local->safe_psql('postgres', q{SELECT string_agg(remote_pid::text, ',') FROM pgpool.connections WHERE server = 'full_holes'});
kill 'STOP', @stopped;
is($session->run("SELECT a FROM pgpool.query('full_holes', 'select 1') AS t(a int)") . $session->error, 1, 'full_holes: checkout succeeds');
kill 'CONT', @stopped;
make_pool($local, $remote, server => 'holes',
	options => { pool_size => 6, test_period => '1min', operation_timeout => '1h', checkout_timeout => '1h' });
$session->run("SELECT pgpool.prewarm('holes', 4, '30 s')");
let_time_pass($local, 61);
@pids = split /,/, $local->safe_psql('postgres', q{SELECT string_agg(remote_pid::text, ',') FROM pgpool.connections WHERE server = 'holes'});
kill 'STOP', @pids;
$session->start(query('holes'));
ok(wait_until($local, q{SELECT closed_broken > 0 FROM pgpool.stats WHERE server = 'holes'}, 't', 60), 'holes: test of one connection times out');
kill 'CONT', @pids;
like($session->finish(60) . $session->error, qr/^\d+$/, 'holes: checkout succeeds');
becomes('holes', 'checks, checking, connects', '4|0|5', 'all idle connections are tested, and another one is opened');

$session->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

# Nobody borrows a sick connection: one that ends while it is idle disappears by
# itself within a second, stray bytes end it, and test_period has it tested before
# it is leased, within a deadline of its own.
use strict;
use warnings;

use PgpxFakeServer;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Socket;
use Test::More;
use Time::HiRes qw(time usleep);

my $remote = remote_node('remote', conf => ['restart_after_crash = on']);
my $local = local_node('local', conf => ['pgpool_ext.log_connections = on']);
my $flag = PostgreSQL::Test::Utils::tempdir . '/go';

# Each says something while its connection is idle, when it is told to.
sub when_told
{
	my ($what) = @_;

	return sub {
		my ($fake) = @_;

		$fake->serve(2);
		select undef, undef, undef, 0.05 until -e $flag;
		$fake->send(ref $what ? $what->($fake) : $what);
		sleep 3600;
	};
}
my %stray = (
	row => PgpxFakeServer::row('666'),
	answer => sub { $_[0]->answer('666') },
	ready => PgpxFakeServer::ready(),
	error => PgpxFakeServer::failure(S => 'ERROR', C => '57P01', M => 'bye'),
	fatal => PgpxFakeServer::failure(S => 'FATAL', C => '57P01', M => 'bye'),
	garbage => 'rubbish',
	eof => sub { close $_[0]->{socket}; '' },
	rst => sub { setsockopt $_[0]->{socket}, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0; close $_[0]->{socket}; '' });
my %harmless = (
	notice => PgpxFakeServer::message('N', "SNOTICE\0C00000\0Mhello\0\0"),
	parameter => PgpxFakeServer::message('S', "TimeZone\0UTC\0"),
	notification => PgpxFakeServer::message('A', pack 'NZ*Z*', 1, 'channel', 'payload'));
# The first says something harmless or nothing, and goes, and the second, in the same
# place, says something.
my %turns = map { $_ => [ "$flag.$_.1", "$flag.$_.2" ] } qw(turns turns_leased);
sub by_turns
{
	my ($name, $fake) = @_;
	my $second = -e $turns{$name}[0];

	# not so soon that libpq takes it for a part of the login
	select(undef, undef, undef, 0.5), $fake->send($harmless{notice}) if $name eq 'turns' && !$second;
	select undef, undef, undef, 0.05 until -e $turns{$name}[$second ? 1 : 0];
	$fake->send('rubbish') if $second;
	close $fake->{socket} unless $second;
	sleep 3600;
	return;
}
my $fake = PgpxFakeServer->new((map { my $name = $_; $name => sub { by_turns($name, @_) } } keys %turns), map { $_ => when_told($stray{$_} // $harmless{$_}) } keys %stray, keys %harmless);
my $session = PgpxSession->new($local);    # after it: what forks holds our pipes

sub pool
{
	my ($server, $columns) = @_;

	return $local->safe_psql('postgres',
		"SELECT $columns FROM pgpool.pools JOIN pgpool.stats USING (pool_id, server, local_user) WHERE server = '$server'");
}

sub becomes
{
	my ($server, $columns, $expected, $name) = @_;

	return ok(
		wait_until($local,
			"SELECT $columns FROM pgpool.pools JOIN pgpool.stats USING (pool_id, server, local_user) WHERE server = '$server'", $expected, 60),
		"$server: $name");
}

# Something is done, and within a second (and what this machine is late) the worker has
# closed so many connections of each server, by its log: nothing is called, so it has
# found them by itself.
sub closed
{
	my ($what, $name, %wanted) = @_;
	my $delay = delay_begin();
	my $start = log_clock($local);
	my $end = time() + 30;
	my %at;

	$what->();
	do
	{
		usleep(10_000);
		%at = map { $_ => [ log_times($local, "pgpool_ext closed connection \\d+ to server \"$_\"") ] } keys %wanted;
	} until !(grep { @{ $at{$_} } < $wanted{$_} } keys %wanted) || time() > $end;
	$delay = delay_end($delay);
	foreach my $server (sort keys %wanted)
	{
		is(scalar @{ $at{$server} }, $wanted{$server}, "$server: $name");
		cmp_ok(($at{$server}[-1] // 'inf') - $start, '<', 1 + $delay, "$server: within a second");
	}
	return;
}

sub ticks
{
	my ($pid) = @_;
	my @stat = split / /, (slurp_file("/proc/$pid/stat") =~ /\) (.*)/)[0];

	return $stat[11] + $stat[12];
}

sub query { return "SELECT pid FROM pgpool.query('$_[0]', 'select pg_backend_pid()') AS t(pid int)"; }

# --- the remote ends a session
make_pool($local, $remote, server => 'ended', options => { pool_size => 4, test_period => -1 });
$session->run("SELECT pgpool.prewarm('ended', 4, '30 s')");
my $pids = $local->safe_psql('postgres', 'SELECT string_agg(remote_pid::text, $$,$$) FROM pgpool.connections');
my ($first, @rest) = split /,/, $pids;
closed(sub { $remote->safe_psql('postgres', "SELECT pg_terminate_backend($first)") },
	'a connection that ended disappears without anybody looking', ended => 1);
is($local->safe_psql('postgres', q{SELECT string_agg(remote_pid::text, ',') FROM pgpool.connections}), join(',', @rest),
	'ended: and no other');
# the remote restarts, and all of its sessions end
closed(sub { kill 'KILL', $rest[0] }, 'all of them when the remote crashes', ended => 4);
becomes('ended', 'total, closed_broken, retried', '0|4|0', 'each is counted, and none was borrowed');
ok(wait_until($local, "SELECT * FROM pgpool.query('ended', 'select 1') AS t(a int)", '1', 60), 'ended: the next works');

# --- stray bytes
make_pool($local, $fake, server => "s_$_", remote_dbname => $_,
	options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode(), test_period => -1 })
  foreach keys %stray, keys %harmless;
foreach my $what (sort keys %stray, keys %harmless)
{
	is($session->run("SELECT * FROM pgpool.query('s_$what', 'select 1') AS t(a text)") . $session->error, '1', "$what: a connection is used");
}
my $all = keys(%stray) + keys(%harmless);
ok( wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server ~ '^s_' AND state = 'idle' AND now() - last_used > '2 s'", $all, 60),
	'all are idle, for a while');
is($local->safe_psql('postgres', "SELECT DISTINCT transport FROM pgpool.connections WHERE server ~ '^s_'"),
	over_tls() ? 'relay' : 'direct', 'in the way that is tested');
closed(sub { append_to_file($flag, '') }, 'what nobody asked for ends the connection', map { ("s_$_" => 1) } keys %stray);
becomes("s_$_", 'total, closed_broken', '0|1', 'as a broken one') foreach sort keys %stray;
my $worker = worker_pid($local);
my $before = ticks($worker);
$local->safe_psql('postgres', 'SELECT pg_sleep(1)');
cmp_ok(ticks($worker) - $before, '<', 20, 'what waits on idle connections does not keep the worker busy');
foreach my $what (sort keys %harmless)
{
	is(pool("s_$what", 'total, idle, closed_broken'), '1|1|0', "s_$what: is no reason to end it");
	is($session->run("SELECT pgpool.checkin(pgpool.checkout('s_$what'))") . $session->error, '', "s_$what: nor to refuse it");
	is(pool("s_$what", 'connects, retried'), '1|0', "s_$what: it is the same one");
}

# --- a place whose connection was watched when it ended, or was leased
foreach my $name (sort keys %turns)
{
	my @places;

	make_pool($local, $fake, server => $name, remote_dbname => $name,
		options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode(), test_period => -1 });
	foreach my $turn (1 .. 2)
	{
		is($session->run("SELECT pgpool.prewarm('$name', 1, '30 s')") . $session->error, '1', "$name: connection $turn");
		ok(wait_until($local, "SELECT now() - last_used > '2 s' FROM pgpool.connections WHERE server = '$name'", 't'), "$name: is idle, for a while");
		push @places, $local->safe_psql('postgres', qq{SELECT connection FROM pgpool.connections WHERE server = '$name'});
		if ($turn == 1 && $name eq 'turns_leased')
		{
			my $lease = lease($session, $name);

			append_to_file($turns{$name}[0], '');
			$session->fails("SELECT pgpool.exec($lease, 'select 1')", '08006', qr/was lost/, "$name: it ends");
			$session->run('SELECT pgpool.checkin_all()');
			ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = '$name'", '0'), "$name: and is closed");
			next;
		}
		closed(sub { append_to_file($turns{$name}[ $turn - 1 ], '') },
			$turn == 1 ? 'it ends' : 'what the next one in its place says ends that one', $name => $turn);
	}
	is($places[1], $places[0], "$name: both had the same place");
}

# --- test_period
make_pool($local, $remote, server => 'always', options => { pool_size => 1, test_period => 0 });
make_pool($local, $remote, server => 'never', options => { pool_size => 1, test_period => -1 });
make_pool($local, $remote, server => 'later', options => { pool_size => 1, test_period => '500ms' });
$session->run(query($_)) foreach qw(always never later) x 5;
ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server IN ('always', 'never', 'later') AND state = 'idle' AND now() - last_used > '1 s'", '3'),
	'three connections are idle for longer than test_period');
cmp_ok(pool('later', 'checks'), '<=', 4, 'later: no test for a connection that is in use');
my $checks = pool('later', 'checks');
my $always = pool('always', 'checks');
foreach my $server (qw(always never later))
{
	like($session->run(query($server)) . $session->error, qr/^\d+$/, "$server: serves");
}
is(pool('later', 'checks'), $checks + 1, 'later: a test after test_period');
is(pool('never', 'checks'), '0', 'never: none at all');
is(pool('always', 'checks'), $always + 1, 'always: each time, once it is idle');
foreach my $round (1 .. 3)
{
	ok(wait_until($local, "SELECT state FROM pgpool.connections WHERE server = 'always'", 'idle'), 'always: idle');
	$session->run(query('always'));
	is(pool('always', 'checks, checks_failed, connects'), ($always + 1 + $round) . '|0|1', 'always: and tested');
}
ok(wait_until($local, "SELECT state FROM pgpool.connections WHERE server = 'always'", 'idle'), 'always: idle');
like($session->run("SELECT pgpool.try_checkout('always')"), qr/^\d+$/, 'always: a try is worth the test');
$session->run('SELECT pgpool.checkin_all()');

# --- for each who waits one is tested, at the same time
make_pool($local, $remote, server => 'several', options => { pool_size => 3, test_period => '300ms' });
is($session->run("SELECT pgpool.prewarm('several', 3, timeout => '30 s')"), '3', 'several: three connections');
ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'several' AND now() - last_used > '1 s'", '3'), 'several: they are idle');
my @callers = map { PgpxSession->new($local) } 1 .. 3;
my $tester = worker_pid($local);
kill 'STOP', $tester;
foreach my $n (1 .. 3)
{
	$callers[ $n - 1 ]->start(query('several'));
	ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = 'several'", $n), "several: $n wait");
	is(pool('several', 'checking'), $n, "several: $n are tested");
	check_invariants($local, "several: $n wait, the invariants hold");
}
kill 'CONT', $tester;
like($_->finish(60) . $_->error, qr/^\d+$/, 'several: who has waited is served') foreach @callers;
is(pool('several', 'checks, checks_failed, connects'), '3|0|3', 'several: by what was there');
$_->quit foreach @callers;

# --- a black hole
make_pool($local, $remote, server => 'hole',
	options => { pool_size => 2, test_period => '300ms', operation_timeout => '60s', checkout_timeout => '60s' });
$session->run("SELECT pgpool.prewarm('hole', 2, '30 s')");
my @pids = split /,/, $local->safe_psql('postgres', q{SELECT string_agg(remote_pid::text, ',' ORDER BY last_used) FROM pgpool.connections WHERE server = 'hole'});
ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'hole' AND now() - last_used > '1 s'", '2'), 'hole: two connections are idle');
kill 'STOP', @pids;
my $took = seconds { $session->start(query('hole')); $session->finish(60) };
my $got = $session->{text};
like($got . $session->error, qr/^\d+$/, 'hole: a checkout is served all the same');
is(scalar(grep { $_ eq $got } @pids), 0, 'hole: with another connection');
cmp_ok($took, '<', 30, 'hole: the test has a short deadline of its own, not operation_timeout');
cmp_ok(pool('hole', 'checks_failed'), '>=', 1, 'hole: the test found it');
kill 'CONT', @pids;
is(pool('never', 'checks'), '0', 'never: still none');

$session->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

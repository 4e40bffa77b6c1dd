# A remote that accepts and never answers, and one that does not even accept:
# a checkout fails at the pool's own deadline, and meanwhile other pools work.
use strict;
use warnings;

use IO::Socket::INET;
use PgpxFakeServer qw(failure);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Socket qw(IPPROTO_TCP SOL_SOCKET SO_RCVBUF TCP_MAXSEG);
use Test::More;
use Time::HiRes qw(usleep);

my $remote = remote_node('remote');
my $local = local_node('local');

# The kernel accepts on behalf of a listener, who then never says a word.
my $silent = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1')
  or die "no listener: $!";

# A full backlog: the packets of the next connect are dropped.
my $full = IO::Socket::INET->new(Listen => 0, LocalAddr => '127.0.0.1')
  or die "no listener: $!";
my @filling = map {
	IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $full->sockport, Blocking => 0)
} 1 .. 8;

make_pool($local, $remote, server => 'good', options => { pool_size => 2 });
make_pool($local, $remote, server => 'silent',
	options => { port => $silent->sockport, connect_timeout => '4s', pool_size => 3 });
make_pool($local, $remote, server => 'no_backlog',
	options => { port => $full->sockport, connect_timeout => '4s' });

my $row = 'AS t(a int)';
my $session = PgpxSession->new($local);
my %stuck = map { $_ => PgpxSession->new($local) } qw(silent no_backlog);
my @more = map { PgpxSession->new($local) } 1 .. 2;

my $took = seconds {
	$stuck{$_}->start("SELECT pgpool.checkout('$_', '60 s')") foreach keys %stuck;
	$_->start("SELECT pgpool.checkout('silent', '60 s')") foreach @more;
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '4'), 'four sessions wait for a black hole');

	# the first of these opens a connection, which is the worker's work too
	is($session->run("SELECT * FROM pgpool.query('good', 'select $_') $row") . $session->error,
		$_, 'another pool answers') foreach 1 .. 20;
	is($stuck{$_}->done, 0, "while $_ does not") foreach sort keys %stuck;

	# who has had enough can leave
	my $pid = $more[1]->pid;
	$local->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	$more[1]->finish(30);
	$more[1]->failed('57014', qr/canceling statement/, 'a cancel ends the wait');

	foreach my $pool (sort keys %stuck)
	{
		$stuck{$pool}->finish(30);
		$stuck{$pool}->failed('08001', qr/DETAIL:.*within connect_timeout \(4 s\)/,
			"$pool: the deadline is the pool's own");
	}
	$more[0]->finish(30);
	$more[0]->failed('08001', qr/connect_timeout/, 'the others of the pool get the reason, too');
};
cmp_ok($took, '>', 3.9, 'not before the deadline');
cmp_ok($took, '<', 15, 'and not much later');

is($session->run("SELECT * FROM pgpool.query('good', 'select 7') $row"), '7', 'the other pool works');
ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE state = 'connecting'", '0', 30), 'the attempts end');
is($local->safe_psql('postgres', 'SELECT descriptors FROM pgpool.workers'),
	$local->safe_psql('postgres', 'SELECT ' . descriptors_wanted()),
	'no descriptor is left of the attempts');

# a timeout of the call that is shorter goes first
my $delay = delay_begin();
$took = seconds {
	$session->run("SELECT pgpool.checkout('silent', '500 ms')");
};
$delay = delay_end($delay, 1);
like($session->sqlstate, qr/^(?:55P03|08001)$/, 'a shorter timeout of the call goes first');
cmp_ok($took, '<', 3.5 + $delay, 'in time');

# --- one that takes nothing of a long login: libpq waits until it does, in a thread, which
# ends with the attempt
{
	my $shut = IO::Socket::INET->new(LocalAddr => '127.0.0.1', ReuseAddr => 1, Proto => 'tcp') or die "no socket: $!";

	setsockopt($shut, SOL_SOCKET, SO_RCVBUF, 1) or die "no small buffer: $!";
	setsockopt($shut, IPPROTO_TCP, TCP_MAXSEG, 88) or die "no small segments: $!";
	listen($shut, 64) or die "no listener: $!";
	make_pool($local, $remote, server => 'shut',
		options => { port => $shut->sockport, sslmode => 'disable', connect_timeout => '2s', pool_size => 1, tcp_user_timeout => 0, application_name => 'x' x 60_000 });
	$session->fails(q{SELECT pgpool.checkout('shut', '60 s')}, '08001', qr/within connect_timeout \(2 s\): what the remote server asks for takes longer/, 'a login that the remote does not take: a thread waits');
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '0 0', 30), 'and ends when nobody waits for it');
	ok(wait_until($local, 'SELECT sum(descriptors) - ' . descriptors_wanted() . ' FROM pgpool.workers', '0', 30), 'with its socket');
}

# --- one host of several: the others are tried
my %two = (host => '127.0.0.1,127.0.0.1', pool_size => 3, sslmode => over_tls() ? 'require' : 'disable');
make_pool($local, $remote, server => 'no_backlog_first', options => { %two, port => $full->sockport . ',' . $remote->port });
make_pool($local, $remote, server => 'no_standby', options => { %two, target_session_attrs => 'prefer-standby', port => $remote->port . ',' . $full->sockport });
make_pool($local, $remote, server => 'names', options => { %two, host => 'localhost,localhost', port => $full->sockport . ',' . $remote->port });
make_pool($local, $remote, server => 'no_backlog_both', options => { %two, port => $full->sockport . ',' . $full->sockport, connect_timeout => '500ms' });
make_pool($local, $remote, server => 'silent_first', options => { %two, port => $silent->sockport . ',' . $remote->port, connect_timeout => '1s' });
sub accepted
{
	my $n = 0;

	$silent->blocking(0);
	$n++ while $silent->accept;
	return $n;
}
sub connects { return $local->safe_psql('postgres', "SELECT connects, connects_failed FROM pgpool.stats WHERE server = '$_[0]'"); }

foreach my $server (qw(no_backlog_first names no_standby))
{
	like($session->run("SELECT pgpool.checkout('$server', '60 s')"), qr/^\d+$/, "$server: a host that drops packets has its share of connect_timeout, and the next one is tried")
	  or diag($session->error);
	is(connects($server), '1|0', "$server: in the same attempt");
}

# who is logged in has all the time that is left for the start commands, not a host's share
make_pool($local, $remote, server => 'slow_start', options => { %two, port => $remote->port . ',' . $full->sockport, start_commands => 'select pg_sleep(2)', connect_timeout => '3s' });
like($session->run(q{SELECT pgpool.checkout('slow_start', '60 s')}), qr/^\d+$/, 'start commands take longer than a host may') or diag($session->error);

$session->fails(q{SELECT pgpool.checkout('no_backlog_both', '60 s')}, '08001', qr/within connect_timeout \(0\.5 s\)/, 'all hosts drop packets: connect_timeout is for all of them');

accepted();
$session->fails(q{SELECT pgpool.checkout('silent_first', '60 s')}, '08001', qr/within connect_timeout \(1 s\)/, 'a host that accepts and says nothing has all of connect_timeout');
is(accepted(), 1, 'it was asked');
ok(wait_until($local, sub { $session->run(q{SELECT pgpool.checkout('silent_first', '60 s')}) =~ /^\d+$/ ? 1 : 0 }, 1), 'and the next attempt begins at the next host');
is(connects('silent_first'), '1|1', 'at once');
like($session->run(q{SELECT pgpool.checkout('silent_first', '60 s')}), qr/^\d+$/, 'the following one, too');
is(accepted(), 0, 'nobody has asked the first one again');
$session->run(q{SELECT pgpool.checkin_all(); ALTER SERVER silent_first OPTIONS (SET connect_timeout '900ms', ADD application_name 'changed')});
$session->fails(q{SELECT pgpool.checkout('silent_first', '60 s')}, '08001', qr/within connect_timeout \(0\.9 s\)/, 'with other options the first host is the first again');
is(accepted(), 1, 'and is asked');

# the first host says after most of its share that it is not ready: libpq goes on to the second
# one by itself, which drops one packet, and has a share of its own, not what is left of that
{
	my ($starting, $dropping) = map { IO::Socket::INET->new(Listen => $_, LocalAddr => '127.0.0.1') or die "no listener: $!" } 5, 0;
	my ($first_port, $second_port) = map { $_->sockport } $starting, $dropping;
	my $hangs = sprintf ':%04X 02 ', $second_port;

	# (of those that have gone again one stays in the backlog)
	$_->close foreach map { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $second_port, Blocking => 0) } 1 .. 8;
	$_->blocking(0) foreach $starting, $dropping;
	make_pool($local, $remote, server => 'starting_first', options => { %two, sslmode => 'disable', port => "$first_port,$second_port", connect_timeout => '12s' });
	$session->start(q{SELECT pgpool.checkout('starting_first', '60 s')});
	my $asked;
	ok(wait_until($local, sub { ($asked = $starting->accept) ? 1 : 0 }, 1, 20), 'a host that is not ready is asked');
	usleep(5_500_000);
	$asked->syswrite(failure(S => 'FATAL', V => 'FATAL', C => '57P03', M => 'the database system is starting up'));
	ok(wait_until($local, sub { slurp_file('/proc/net/tcp') =~ /$hangs/ ? 1 : 0 }, 1, 30), 'it says so: the next one is asked, and drops a packet');
	1 while $dropping->accept;
	my $second;
	ok(wait_until($local, sub { ($second = $dropping->accept) ? 1 : 0 }, 1, 20), 'the packet that follows is in time');
	close $_ foreach grep { defined } $second, $dropping;
	ok(!$starting->accept, 'and nobody has asked the first one again');
	close $starting;
	$session->finish(60);
	$session->failed('08001', qr/port $first_port failed: .*starting up.*port $second_port failed: /s, 'who waits has the reasons of both');
}

$local->safe_psql('postgres', q{SELECT pgpool.lock_setup('no_backlog_first')});
my $token = $session->run(q{SELECT pgpool.lock('no_backlog_first', 'a', ttl => '1 min')});
ok(wait_until($local, q{SELECT count(*) FROM pgpool.locks WHERE last_ping > '-infinity'}, '1'), 'a lock is pinged where the pool has found its remote');

# after a ping that fails the next one begins at the first host, which drops packets
my $failed = qr/cannot ping the locks of server "no_backlog_first"/;
my $again = qr/pings the locks of server "no_backlog_first" of database "postgres" again/;
my $log = -s $local->logfile;
$remote->safe_psql('remote_db', 'ALTER TABLE pgpool_lock.locks RENAME expires TO elapses');
ok(wait_until($local, sub { slurp_file($local->logfile, $log) =~ $failed ? 1 : 0 }, 1), 'a ping fails');
$remote->safe_psql('remote_db', 'ALTER TABLE pgpool_lock.locks RENAME elapses TO expires');
ok(wait_until($local, sub { slurp_file($local->logfile, $log) =~ $again ? 1 : 0 }, 1), 'and comes back from a host that drops packets to one that answers');
is($session->run("SELECT pgpool.lock_valid('no_backlog_first', 'a', $token)"), 't', 'before the lock has run out');
is($session->run("SELECT pgpool.unlock('no_backlog_first', 'a', $token)") . $session->error, 't', 'and is released');
$session->run('SELECT pgpool.checkin_all()');

# --- attempts of options that have been changed hold up nobody, and hold no place
my %long = (port => $silent->sockport, connect_timeout => '3650d', pool_size => 3);
make_pool($local, $remote, server => 'mended', options => { %long, pool_size => 1 });
make_pool($local, $remote, server => 'awaited', options => \%long);
make_pool($local, $remote, server => 'starting', options => { pool_size => 1, connect_timeout => '3650d', start_commands => 'select pg_sleep(600)' });
make_pool($local, $remote, server => 'dropped', options => \%long);
sub connecting { return "SELECT count(*) FROM pgpool.connections WHERE server = '$_[0]' AND state = 'connecting'"; }

$session->fails("SELECT pgpool.checkout('$_', '100 ms')", '55P03', qr/timeout/, "$_: an attempt without an end") foreach qw(mended starting);
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(600)'}, '1'), 'starting: its start commands run');
$session->run(q{ALTER SERVER mended OPTIONS (SET port '} . $remote->port . q{'); ALTER SERVER starting OPTIONS (SET start_commands '')});
foreach my $server (qw(mended starting))
{
	like($session->run("SELECT pgpool.checkout('$server', '30 s')"), qr/^\d+$/, "$server: another one begins when the options are others") or diag($session->error);
	is(connects($server), '1|0', "$server: and is the only one");
}
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(600)'}, '0'), 'starting: they run no more');

$stuck{silent}->start(q{SELECT pgpool.checkout('awaited', '60 s')});
ok(wait_until($local, connecting('awaited'), '1'), 'awaited: one waits for an attempt');
$session->run(q{ALTER SERVER awaited OPTIONS (SET port '} . $remote->port . q{')});
like($session->run(q{SELECT pgpool.checkout('awaited', '30 s')}), qr/^\d+$/, 'awaited: others come with other options') or diag($session->error);
like($stuck{silent}->finish(30), qr/^\d+$/, 'awaited: who was there has his, too') or diag($stuck{silent}->error);
is($local->safe_psql('postgres', q{SELECT connects, connects_failed, closed_stale FROM pgpool.stats WHERE server = 'awaited'}), '2|0|0', 'awaited: none is opened in vain');

$_->start(q{SELECT pgpool.checkout('dropped', '60 s')}) foreach @more, $stuck{no_backlog};
wait_until($local, connecting('dropped'), '3');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $_->pid . ')') foreach @more, $stuck{no_backlog};
$_->finish(30) foreach @more, $stuck{no_backlog};
is($local->safe_psql('postgres', connecting('dropped')), '3', 'dropped: three attempts without an end');
$session->run('DROP SERVER dropped CASCADE');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'dropped'}, '0', 30), 'dropped: they end with their server');
$_->run('SELECT pgpool.checkin_all()') foreach $session, $stuck{silent};

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

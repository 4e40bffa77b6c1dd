# A backend that has not quite begun a statement, or is between two messages,
# forgets a cancel request.  So it is sent again, until the statement ends: a lease
# is usable after a local cancel, even if the remote did not hear the first request,
# and a connection that was given up keeps its place until the remote is at rest.
use strict;
use warnings;

use PgpxFakeServer qw(ready done failure columns row);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Socket qw(SOL_SOCKET SO_LINGER);
use Test::More;

my $requests = PostgreSQL::Test::Utils::tempdir . '/requests';

# Ends a statement at the second request only.
my $fake = PgpxFakeServer->new(
	forgetful => sub {
		my ($self) = @_;
		my $cancelled = 0;

		local $SIG{USR1} = sub { $cancelled = 1 };
		while (1)
		{
			my $sql = $self->receive;

			if ($sql =~ /sleep/)
			{
				select undef, undef, undef, 0.05 until $cancelled;
				$cancelled = 0;
				$self->send(failure(S => 'ERROR', V => 'ERROR', C => '57014', M => 'canceled'),
					ready);
			}
			else
			{
				$self->send($sql =~ /^select/ ? $self->answer('1')
					: (done('DISCARD ALL'), ready));
			}
		}
	},
	cancel => sub {
		my ($pid) = @_;

		append_to_file($requests, 'x');
		kill 'USR1', $pid if -s $requests > 1;
	});

# Servers for connections that are given up.  Each writes down what happens to it.
# A statement of the stubborn one ends at the third request, that of the deaf one
# when the client says that nothing more will come, that of the endless one never,
# and the chatty one talks until the fifth request, and is not listened to all that time.  The polite one ends it at the
# first, and waits for the client's goodbye.  The streaming one sends a row every 20 ms
# until the third request.
my $journal = PostgreSQL::Test::Utils::tempdir . '/journal';

sub note_down { append_to_file($journal, "$_[0]\n"); return; }
sub noted { my ($what) = @_; return -e $journal ? scalar(grep { $_ eq $what } split /\n/, slurp_file($journal)) : 0; }

sub stubborn
{
	my ($while_it_runs, $requests) = @_;

	return sub {
		my ($self) = @_;
		my $cancelled = 0;

		local $SIG{USR1} = sub { $cancelled++; note_down('request') };
		note_down('login');
		while (1)
		{
			my $sql = $self->receive;

			if ($sql !~ /sleep/)
			{
				$self->send($sql =~ /^select/ ? $self->answer('1') : (done('DISCARD ALL'), ready));
				next;
			}
			note_down('begin');
			$while_it_runs->($self) until $cancelled >= $requests;
			note_down('end');
			$cancelled = 0;
			$self->send(failure(S => 'ERROR', V => 'ERROR', C => '57014', M => 'canceled'), ready);
		}
	};
}

my $spoken = PostgreSQL::Test::Utils::tempdir . '/spoken';
my $wait = sub { select undef, undef, undef, 0.02 };
my $streams = 0;
my $given_up = PgpxFakeServer->new(
	stubborn => stubborn($wait, 3),
	endless => stubborn($wait, 1_000_000),
	streaming => stubborn(sub { my ($self) = @_; $self->send($streams++ ? () : columns(1), row('x')); $wait->() }, 3),
	chatty => stubborn(sub { $_[0]->send(columns(1), (row('x' x 8000)) x 100); append_to_file($spoken, 'x') if noted('request') }, 5),
	polite => sub {
		my ($self) = @_;
		my $cancelled = 0;

		local $SIG{USR1} = sub { $cancelled = 1 };
		$self->send(done('DISCARD ALL'), ready) while $self->receive !~ /sleep/;
		$wait->() until $cancelled;
		$self->send(failure(S => 'ERROR', V => 'ERROR', C => '57014', M => 'canceled'), ready);
		note_down('goodbye') if $self->read_bytes(5) eq "X\0\0\0\4";
	},
	deaf => sub {
		my ($self) = @_;

		local $SIG{USR1} = 'IGNORE';
		note_down('login');
		while (1)
		{
			my $sql = $self->receive;

			if ($sql =~ /sleep/)
			{
				note_down('begin');
				$self->read_to_end;
				note_down('end');
				return;
			}
			$self->send($self->answer('1'));
		}
	},
	cancel => sub { kill 'USR1', $_[0] });

# Does what a cancel request asks for, and resets its connection instead of closing it.
my $abrupt = PgpxFakeServer->new(
	abrupt => stubborn($wait, 1),
	cancel => sub {
		my ($pid, $socket) = @_;

		setsockopt $socket, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0;
		kill 'USR1', $pid;
	});

my $local = local_node('local');
make_pool($local, $fake, server => 'one', remote_dbname => 'forgetful', options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode() });

my $session = PgpxSession->new($local);
my $lease = lease($session, 'one');
my $row = 'AS t(a int)';
$session->fails("SET statement_timeout = '200ms'; SELECT * FROM pgpool.query($lease, 'select pg_sleep(300)') $row",
	'57014', qr/statement timeout/, 'statement_timeout ends the local statement');
is(-s $requests, 1, 'the remote has got a request') if wait_until($local, sub { -s $requests ? 1 : 0 }, 1);
my $took = seconds {
	is($session->run("RESET statement_timeout; SELECT * FROM pgpool.query($lease, 'select 1') $row") . $session->error,
		'1', 'the lease works on, although the remote has not heard it');
};
cmp_ok($took, '<', 9, 'before operation_timeout');
cmp_ok(-s $requests, '>', 1, 'since it was sent again');

$session->run("SELECT pgpool.checkin($lease)");

# one whose connection is reset was delivered: the lease is as good as before
make_pool($local, $abrupt, server => 'abrupt', remote_dbname => 'abrupt', options => { pool_size => 1, sslmode => 'disable' });
$lease = lease($session, 'abrupt');
$session->fails("SET statement_timeout = '200ms'; SELECT * FROM pgpool.query($lease, 'select pg_sleep(300)') $row",
	'57014', qr/statement timeout/, 'abrupt: statement_timeout ends the local statement');
is($session->run("RESET statement_timeout; SELECT * FROM pgpool.query($lease, 'select 1') $row") . $session->error,
	'1', 'abrupt: a request whose connection is reset is not lost');
$session->run("SELECT pgpool.checkin($lease)");

# a statement whose rows keep coming: no pause in them is as long as that between two requests
unlink $journal;
make_pool($local, $given_up, server => 'streaming', remote_dbname => 'streaming', options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode() });
$lease = lease($session, 'streaming');
$session->run("SET statement_timeout = '60s'; SELECT pgpool.send($lease, 'select sleep')");
ok(wait_until($local, sub { noted('begin') }, '1', 30), 'streaming: the statement runs');
is($session->run("SELECT pgpool.cancel($lease)") . $session->error, 't', 'streaming: it is cancelled');
$session->fails("SELECT count(*) FROM pgpool.result($lease) AS t(a text)", '57014', qr/canceled/,
	'streaming: the request is sent again while rows come');
is(noted('request'), 3, 'streaming: until the statement ends');
$session->run("RESET statement_timeout; SELECT pgpool.checkin($lease)");

# --- given up: a call, a lease discarded in mid-statement, start commands --------

my $other = PgpxSession->new($local);

sub scenario
{
	my ($kind, %options) = @_;

	unlink $journal;
	$local->safe_psql('postgres', "DROP SERVER IF EXISTS $kind CASCADE");
	make_pool($local, $given_up, server => $kind, remote_dbname => $kind,
		options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode(), operation_timeout => '60s', %options });
	return;
}

# Its place is taken until the statement has ended: who comes next waits, and is
# served as soon as it has.
sub next_one_waits_for_the_end
{
	my ($kind, $what) = @_;
	my $took = seconds {
		is($other->run("SELECT * FROM pgpool.query('$kind', 'select 1') $row", 40) . $other->error,
			'1', "$what: the next one is served");
	};
	is(join(' ', grep { /login|begin|end/ } split /\n/, slurp_file($journal)),
		'login begin end login', "$what: on a new connection, and not before the statement has ended");
	cmp_ok($took, '<', 30, "$what: then at once");
	check_invariants($local, "$what: the invariants hold");
	return;
}

foreach my $kind ('stubborn', 'chatty', 'deaf')
{
	scenario($kind);
	$session->run("SELECT pgpool.prewarm('$kind', 1)");
	$session->fails("SET statement_timeout = '1s'; SELECT pgpool.exec('$kind', 'select pg_sleep(300)')",
		'57014', qr/statement timeout/, "$kind: statement_timeout ends a call");
	$session->run('RESET statement_timeout');
	next_one_waits_for_the_end($kind, $kind);
	cmp_ok(noted('request'), '>=', 3, "$kind: the cancel was sent again") unless $kind eq 'deaf';
}
# 16 MB for each request, and what the network holds; it is 0.8 MB each time
cmp_ok(0.8 * -s $spoken, '<', 250, 'chatty: what it says meanwhile is taken in within bounds');
cmp_ok($local->safe_psql('postgres', "SELECT cancels FROM pgpool.stats WHERE server = 'stubborn'"), '>=', 3,
	'each request is counted');

# one that has said that it is ready hears a goodbye; one try will do, since it may
# take so long to say so that the socket is shut down before
scenario('polite');
foreach my $round (1 .. 10)
{
	# the login first: it may take longer than that
	$other->run("SELECT pgpool.prewarm('polite', 1)");
	$other->run("SET statement_timeout = '50ms'; SELECT pgpool.exec('polite', 'select pg_sleep(300)')");
	is($other->sqlstate, '57014', "polite: round $round");
	$other->calm;

	# it stays if nothing was sent in that time
	wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'polite' AND state NOT IN ('idle', 'reset_pending')", '0');
	last if noted('goodbye');
}
is(noted('goodbye'), 1, 'polite: the remote is told goodbye');

# one that does not end at all: the place is free after operation_timeout, and
# the requests become rare
scenario('endless', operation_timeout => '5s');
$session->run("SELECT pgpool.prewarm('endless', 1)");
$session->fails("SET statement_timeout = '1s'; SELECT * FROM pgpool.query('endless', 'select pg_sleep(300)') $row",
	'57014', qr/statement timeout/, 'endless: statement_timeout ends a call');
$session->run('RESET statement_timeout');
is($local->safe_psql('postgres', "SELECT cancelling, total, state FROM pgpool.pools WHERE server = 'endless'"),
	'1|1|full', 'endless: the place is taken');
$other->start("SELECT * FROM pgpool.query('endless', 'select 1') $row");
is($session->run("SELECT * FROM pgpool.query('stubborn', 'select 1') $row") . $session->error, '1',
	'endless: the worker serves other pools meanwhile');
is($other->finish(30) . $other->error, '1', 'endless: the next one is served after operation_timeout');
cmp_ok(noted('request'), '>=', 3, 'endless: the cancel was sent again');
cmp_ok(noted('request'), '<=', 9, 'endless: after longer and longer pauses');

# a reset that is late goes the same way
scenario('stubborn', reset_command => 'select sleep', operation_timeout => '5s');
is($session->run("SELECT * FROM pgpool.query('stubborn', 'select 1') $row") . $session->error, '1', 'a reset hangs');
ok(wait_until($local, sub { noted('end') }, '1', 30), 'it is cancelled, until it has ended');
cmp_ok(noted('request'), '>=', 3, 'again and again');
check_invariants($local);

# start commands
scenario('stubborn', start_commands => 'select sleep', connect_timeout => '2s', retry_min => '1ms', retry_max => '1ms');
$session->fails("SELECT pgpool.checkout('stubborn', '30s')", '08001', qr/start commands did not end/,
	'start commands hang');
ok(wait_until($local, sub { noted('end') }, '1', 30), 'they are cancelled, until they have ended');
is(noted('login'), 1, 'before another connection is opened');

scenario('endless', start_commands => 'select sleep', connect_timeout => '2s', retry_min => '60s', retry_max => '60s');
my $error_after = seconds {
	$session->fails("SELECT pgpool.checkout('endless', '50s')", '08001', qr/start commands did not end/,
		'start commands hang for ever');
};
cmp_ok($error_after, '<', 30, 'who waits has the error long before operation_timeout');
is($local->safe_psql('postgres', "SELECT cancelling, total, state FROM pgpool.pools WHERE server = 'endless'"),
	'1|1|unavailable', 'while the place is taken, and the pool is known to be of no use');
$session->fails("SELECT pgpool.checkout('endless', '50s')", '08001', qr/start commands did not end/,
	'who comes next has the error, too');
check_invariants($local, 'start commands: the invariants hold');

$_->quit foreach $session, $other;
stats_add_up($local);
check_invariants($local);
leak_check($local, undef);
done_testing();

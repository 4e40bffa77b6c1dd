# A backend that is about to begin a statement, or is between two messages, ignores a
# cancel request. The request is therefore repeated until the statement ends. A lease is
# usable after a local cancel even if the remote server ignored the first request. An
# abandoned connection occupies its slot until its statement has ended.
use strict;
use warnings;

use PgpxFakeServer qw(ready done failure columns row);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $requests = PostgreSQL::Test::Utils::tempdir . '/requests';

# ends a statement at the second request only
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

# Behaviours for abandoned connections. Each writes events to the journal.
#   obedient: its statement ends at the first request
#   stubborn: its statement ends at the third request
#   endless: its statement never ends
#   chatty: sends data until the fifth request
#   streaming: sends a row every 20 ms until the third request
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
	obedient => stubborn($wait, 1),
	stubborn => stubborn($wait, 3),
	endless => stubborn($wait, 1_000_000),
	streaming => stubborn(sub { my ($self) = @_; $self->send($streams++ ? () : columns(1), row('x')); $wait->() }, 3),
	chatty => stubborn(sub { $_[0]->send(columns(1), (row('x' x 8000)) x 100); append_to_file($spoken, 'x') if noted('request') }, 5),
	cancel => sub { kill 'USR1', $_[0] });

my $local = local_node('local');
make_pool($local, $fake, server => 'one', remote_dbname => 'forgetful', options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode() });

my $session = PgpxSession->new($local);
my $lease = lease($session, 'one');
my $row = 'AS t(a int)';
cancel_running($local, $session, "SELECT * FROM pgpool.query($lease, 'select pg_sleep(300)') $row", 'cancel ends the local statement');
ok(wait_until($local, sub { -s $requests ? 1 : 0 }, 1), 'remote server has received a request');
$session->reset_statement_timeout;
is($session->run("SELECT * FROM pgpool.query($lease, 'select 1') $row") . $session->error,
	'1', 'lease stays usable although the first request was ignored');
cmp_ok(-s $requests, '>', 1, 'request was repeated');

# a wait for a statement in flight repeats the request, too
unlink $requests;
$session->run("SELECT pgpool.send($lease, 'select sleep'); SELECT pgpool.cancel($lease)");
is($session->run("SELECT pgpool.wait($lease, '20 s')") . $session->error, 't', 'wait ends although the first request was ignored');
$session->fails("SELECT * FROM pgpool.result($lease) $row", '57014', qr/canceled/, 'statement in flight was cancelled');
unlink $requests;
$session->run("SELECT pgpool.send($lease, 'select sleep'); SELECT pgpool.cancel($lease)");
ok(wait_until($local, sub { $session->run("SELECT pgpool.wait($lease, '50 ms')") }, 't', 20), 'short waits repeat the request, too');
$session->fails("SELECT * FROM pgpool.result($lease) $row", '57014', qr/canceled/, 'statement in flight was cancelled after short waits');
unlink $requests;
$session->run("SELECT pgpool.send($lease, 'select sleep'); SELECT pgpool.cancel($lease)");
is($session->run("SELECT pgpool.wait_any(ARRAY[$lease], '20 s')") . $session->error, $lease, 'wait_any ends, too');
$session->fails("SELECT * FROM pgpool.result($lease) $row", '57014', qr/canceled/, 'second statement in flight was cancelled');

$session->run("SELECT pgpool.checkin($lease)");

# a statement that sends rows all the time, without a pause as long as that between two
# requests
unlink $journal;
make_pool($local, $given_up, server => 'streaming', remote_dbname => 'streaming', options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode() });
$lease = lease($session, 'streaming');
$session->run("SET statement_timeout = '60s'; SELECT pgpool.send($lease, 'select sleep')");
ok(wait_until($local, sub { noted('begin') }, '1', 30), 'streaming: statement runs');
is($session->run("SELECT pgpool.cancel($lease)") . $session->error, 't', 'streaming: statement is cancelled');
$session->fails("SELECT count(*) FROM pgpool.result($lease) AS t(a text)", '57014', qr/canceled/,
	'streaming: request is repeated while rows arrive');

# a request may be under way when the statement ends
like(slurp_file($journal), qr/^login\nbegin\n(request\n){3,}end\n(request\n)?$/, 'streaming: request is repeated until the statement ends');
$session->run("RESET statement_timeout; SELECT pgpool.checkin($lease)");

# --- abandoned: a call, a discarded lease with a running statement, start commands

my $other = PgpxSession->new($local);

sub scenario
{
	my ($kind, %options) = @_;

	unlink $journal;
	$local->safe_psql('postgres', "DROP SERVER IF EXISTS $kind CASCADE");
	make_pool($local, $given_up, server => $kind, remote_dbname => $kind,
		options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode(), operation_timeout => '10min', %options });
	return;
}

# Assert that the slot stays occupied until the statement has ended, and that the next
# session is granted a connection then.
sub next_one_waits_for_the_end
{
	my ($kind, $what) = @_;
	is($other->run("SELECT * FROM pgpool.query('$kind', 'select 1') $row") . $other->error, '1', "$what: next session is granted a connection");
	is(join(' ', grep { /login|begin|end/ } split /\n/, slurp_file($journal)),
		'login begin end login', "$what: new connection is opened only after the end of the statement");
	check_invariants($local, "$what: invariants hold");
	return;
}

foreach my $kind ('stubborn', 'chatty')
{
	scenario($kind);
	$session->run("SELECT pgpool.prewarm('$kind', 1)");
	cancel_running($local, $session, "SELECT pgpool.exec('$kind', 'select pg_sleep(300)')", "$kind: cancel ends a call");
	next_one_waits_for_the_end($kind, $kind);
	cmp_ok(noted('request'), '>=', 3, "$kind: cancel request was repeated");
}
# 16 MB for each request, plus socket buffers; the server counts chunks of 0.8 MB
cmp_ok(0.8 * -s $spoken, '<', 250, 'chatty: amount of data read meanwhile is bounded');
cmp_ok($local->safe_psql('postgres', "SELECT cancels FROM pgpool.stats WHERE server = 'stubborn'"), '>=', 3,
	'each request is counted');

# a statement that never ends: the slot is free after operation_timeout
scenario('endless', operation_timeout => '2s');
$session->run("SELECT pgpool.prewarm('endless', 1)");
cancel_running($local, $session, "SELECT * FROM pgpool.query('endless', 'select pg_sleep(300)') $row", 'endless: cancel ends a call');
$other->start("SELECT * FROM pgpool.query('endless', 'select 1') $row");
is($session->run("SELECT * FROM pgpool.query('stubborn', 'select 1') $row") . $session->error, '1',
	'endless: worker serves other pools meanwhile');
is($other->finish(30) . $other->error, '1', 'endless: next session is granted a connection after operation_timeout');

# a reset that does not end in time
scenario('obedient', reset_command => 'select sleep', operation_timeout => '1500ms');
is($session->run("SELECT * FROM pgpool.query('obedient', 'select 1') $row") . $session->error, '1', 'query succeeds before a reset that does not end');
ok(wait_until($local, sub { noted('end') }, '1'), 'reset is cancelled, and ends');
check_invariants($local);

# start commands
sub start_commands_time_out
{
	my ($kind, %options) = @_;

	scenario($kind, start_commands => 'select sleep', connect_timeout => '10min', %options);
	$session->start("SELECT pgpool.checkout('$kind', '1h')");
	ok(wait_until($local, sub { noted('begin') }, '1'), "$kind: start commands run");
	$local->safe_psql('postgres', "ALTER SERVER $kind OPTIONS (SET connect_timeout '100ms')");
	$session->finish;
	$session->failed('08001', qr/start commands did not end/, "$kind: checkout fails because the start commands do not end");
	return;
}
start_commands_time_out('stubborn', retry_min => '1ms', retry_max => '1ms');
ok(wait_until($local, sub { noted('end') }, '1'), 'start commands are cancelled until they have ended');
is(noted('login'), 1, 'no other connection is opened before the start commands have ended');

start_commands_time_out('endless', retry_min => '1h', retry_max => '1h');
is($local->safe_psql('postgres', "SELECT cancelling, total, state FROM pgpool.pools WHERE server = 'endless'"),
	'1|1|unavailable', 'slot is occupied and the pool is shown as unavailable');
$session->fails("SELECT pgpool.checkout('endless', '50s')", '08001', qr/start commands did not end/,
	'next session receives the error, too');
check_invariants($local, 'start commands: invariants hold');

$_->quit foreach $session, $other;
stats_add_up($local);
check_invariants($local);
leak_check($local);
done_testing();

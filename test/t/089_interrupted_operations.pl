# What is in the middle of something when it is interrupted, or when the other end goes:
# a statement that is being sent, a reset, a rollback, an answer of which a part is
# here, a socket that is waited for.  An error with the reason, nothing runs that was
# not sent whole, and the pool works.
use strict;
use warnings;

use PgpxFakeServer qw(message ready done columns row failure);
use PgpxProxy;
use PgpxTest;
use Test::More;

# What a fake server is told by files.
my ($ended, $whole) = map { PostgreSQL::Test::Utils::tempdir . $_ } '/ended', '/whole';

# And what it says by one.
my $halved = PostgreSQL::Test::Utils::tempdir . '/halved';
my $late = message('N', "SNOTICE\0VNOTICE\0C00000\0Mlate\0\0");

sub said
{
	select undef, undef, undef, 0.01 until -e $_[0];
	return;
}

my $fake = PgpxFakeServer->new(
	# the beginning of a notice behind the answer, and no more
	half => sub {
		my ($fake) = @_;

		$fake->receive;
		$fake->send($fake->answer('1'));
		select undef, undef, undef, 0.1;
		$fake->send("N\0\0\0\x40SNOT");
		PostgreSQL::Test::Utils::append_to_file($halved, 'x');
		sleep;
	},
	# .. in one piece with it
	behind => sub { $_[0]->receive; $_[0]->send($_[0]->answer('1') . "N\0\0\0\x40SNOT"); sleep },
	# .. behind one that was cancelled, late; the rest of it comes later still
	late => sub {
		my ($fake) = @_;

		$fake->receive;
		$fake->send($fake->described, row('1'));
		said($ended);
		$fake->send(failure(S => 'ERROR', V => 'ERROR', C => '57014', M => 'canceled'), ready(), substr($late, 0, 5));
		said($whole);
		$fake->send(substr $late, 5);
		$fake->serve;
	},
	fatal => sub { $_[0]->receive; $_[0]->send($_[0]->described, failure(S => 'FATAL', V => 'FATAL', C => '57P01', M => 'so long'), ready()); sleep });
my $remote = remote_node('remote');
my $proxy = PgpxProxy->new($remote->port);
my $local = local_node('local');
my %options = (pool_size => 2, operation_timeout => '1 s', retry_min => '10 ms', retry_max => '50 ms');
make_pool($local, $proxy, server => 'far', options => {%options});
make_pool($local, $proxy, server => 'single', options => { %options, pool_size => 1, operation_timeout => '20 s' });
make_pool($local, $proxy, server => 'transfer', options => { %options, pool_size => 1, reset => 'on_transfer', reset_command => 'select pg_sleep(603)' });
make_pool($local, $fake, server => $_, remote_dbname => $_, options => { %options, sslmode => PgpxFakeServer::sslmode() }) foreach qw(half behind fatal);
make_pool($local, $fake, server => "patient_$_", remote_dbname => $_, options => { %options, operation_timeout => '20 s', sslmode => PgpxFakeServer::sslmode() }) foreach qw(behind late);
my ($session, $other) = map { PgpxSession->new($local) } 1 .. 2;

sub works
{
	my ($server, $name) = @_;

	return ok(wait_until($local, sub { $other->run("SELECT a FROM pgpool.query('$server', 'select 42') AS t(a int)") }, '42', 30), "$name: the pool works")
	  || diag($other->error);
}

# The session waits, and for nothing but to send.
sub sending
{
	wait_until($local, 'SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = $$Extension$$ AND state = $$active$$ AND pid = ' . $session->pid, 1) or die 'it does not wait';
	return;
}

# --- a statement too large for the network, which stands still: interrupted, lost
my $big = q{'insert into sent values (1, $b$' || repeat('x', 40000000) || '$b$)'};
$remote->safe_psql('remote_db', 'CREATE TABLE sent (n int, t text); GRANT ALL ON sent TO remote_app');
foreach my $call ("pgpool.exec(:lease, $big)", "pgpool.send(:lease, $big)")
{
	my ($name) = $call =~ /pgpool\.(\w+)/;

	$session->run(q{SELECT pgpool.checkout('far') AS lease \gset});
	$session->run(q{SELECT pgpool.exec(:lease, 'select 1')});
	$proxy->tell('freeze');
	$session->start("SELECT $call");
	sending();
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish(60);
	$session->failed('57014', qr/user request/, "$name: a statement is interrupted while it is being sent");
	$proxy->tell('pass');
	$session->fails(q{SELECT pgpool.exec(:lease, 'select 1')}, '08006', qr/connection to server "far" was lost.*interrupted while it was being sent/s, "$name: the lease knows that") foreach 1 .. 2;
	is($session->run('SELECT pgpool.checkin_all()'), '1', "$name: it can be returned");
	works('far', $name);
}
# .. and when the network moves on, it is sent, and the connection as good as before
$session->run(q{SELECT pgpool.checkout('far') AS lease \gset});
$proxy->tell('freeze');
$session->start(q{SELECT pgpool.send(:lease, 'select length($b$' || repeat('x', 40000000) || '$b$)')});
sending();
$proxy->tell('pass');
$session->finish(60);
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'select length(%' AND state = 'idle'}, 1), 'a statement has waited for the network');
is($session->run('SELECT pgpool.checkin(:lease); SELECT pgpool.checkout($$far$$) > 0') =~ s/\s//gr, 't', 'its lease is returned, and there is another one');
is($session->run('SELECT pgpool.checkin_all()'), '1', 'which is, too');

foreach my $how (qw(reset half))
{
	$session->run(q{SELECT pgpool.checkout('far') AS lease \gset});
	my $pid = $session->run(q{SELECT a FROM pgpool.query(:lease, 'select pg_backend_pid()') AS t(a int)});
	$proxy->tell('freeze');
	$session->start("SELECT pgpool.exec(:lease, $big)");
	sending();
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 20000)");
	$proxy->tell("$how 0");
	$session->finish(60);
	$session->failed('08006', qr/connection to server "far" was lost/, "$how: the other end goes while it is being sent");
	$proxy->tell('pass');
	$session->run('SELECT pgpool.checkin_all()');
	works('far', $how);
}
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM sent'), '0', 'none of them was carried out');

# --- a rollback that cannot be sent any more
{
	$session->run(q{SELECT pgpool.checkout('far') AS lease \gset});
	$session->run(q{SELECT pgpool.exec(:lease, 'begin')});
	my $connected = q{SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND application_name ~ 'pgpool_ext'};
	is($remote->safe_psql('postgres', $connected), '1', 'a transaction is open');
	$proxy->tell('reset 0');
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE state = 'idle in transaction'");
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'far' AND state = 'leased'}, '1'), 'its connection ends');
	$proxy->tell('pass');
	is($session->run('SELECT pgpool.checkin_all()'), '1', 'it is returned');
	like($session->error, qr/WARNING:.*was returned with an open remote transaction/, 'with a warning');
	works('far', 'rollback');
}

# --- .. and one that is not answered: the session does not wait for it
$session->run(q{SELECT pgpool.checkout('far') AS lease \gset});
$session->run(q{SELECT pgpool.exec(:lease, 'begin')});
$proxy->tell('freeze');
is($session->run(q{SET statement_timeout = '20 s'; SELECT pgpool.checkin(:lease); RESET statement_timeout}) . $session->sqlstate, '',
	'a lease is returned whose rollback is not answered');
like($session->error, qr/WARNING:.*was returned with an open remote transaction/, 'with a warning');
$proxy->tell('pass');
is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '0', 'the lease is gone');
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE state ~ 'in transaction' AND application_name ~ 'pgpool_ext'}, 0), 'no transaction is left');
works('far', 'rollback without an answer');

# --- a notification in an answer that nobody takes
$session->run(q{SELECT pgpool.checkout('far') AS lease \gset});
$session->run(q{SELECT pgpool.exec(:lease, 'listen x'); SELECT pgpool.send(:lease, 'select pg_notify($$x$$, $$y$$)')});
ok(wait_until($local, sub { $session->run('SELECT pgpool.wait(:lease)') }, 't'), 'an answer with a notification is here');
is($session->run('SELECT pgpool.checkin_all()') . $session->error, '1', 'it is dropped, and the connection kept');

# --- the reset before a lease of another session gets no answer: another connection
{
	$session->run(q{SELECT pgpool.exec('transfer', 'set geqo = off')});
	my $running = q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.603' AND state = 'active' AND pid <> pg_backend_pid()};

	$other->start(q{SELECT a FROM pgpool.query('transfer', 'show geqo') AS t(a text)});
	ok(wait_until($remote, $running, 1), 'a reset takes long');
	is($other->finish(60), 'on', 'another connection serves') or diag($other->error);
	is($local->safe_psql('postgres', q{SELECT closed_reset FROM pgpool.stats WHERE server = 'transfer'}), '1', 'the reset is why the first one was closed');
	ok(wait_until($remote, $running, 0, 20), 'and it runs no longer');
}

# --- who waits for the socket of a lease on which his statement runs already: the worker
# stands still meanwhile
foreach my $how (qw(pg_cancel_backend pg_terminate_backend))
{
	my $waiter = PgpxSession->new($local);
	my $running = q{SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(601)' AND state = 'active'};
	my $worker = worker_pid($local);
	my $lease = lease($session, 'single');

	$session->run("SELECT pgpool.exec($lease, 'select 1')");
	$waiter->start(q{SELECT pgpool.exec('single', 'SELECT pg_sleep(601)')});
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';
	kill 'STOP', $worker;
	$session->run("SELECT pgpool.checkin($lease)");
	SKIP:
	{
		skip 'over TLS a stopped worker passes nothing on', 1 if over_tls();
		ok(wait_until($remote, $running, 1), "$how: the statement runs, its owner has not got its connection");
	}
	$local->safe_psql('postgres', "SELECT $how(" . $waiter->pid . ')');
	$waiter->finish(60);
	like($waiter->error, qr/57014|57P01/, "$how: he is told");
	kill 'CONT', $worker;
	ok(wait_until($remote, $running, 0, 30), "$how: and it ends");
	$waiter->quit;
	works('single', $how);
}

# --- a cancel request that the worker has not sent when the statement has ended
{
	my $lease = lease($session, 'far');
	my $worker = worker_pid($local);

	$session->run("SELECT pgpool.exec($lease, 'select 1')");
	kill 'STOP', $worker unless over_tls();
	$session->run("SET statement_timeout = '200 ms'; SELECT pgpool.exec($lease, 'select pg_sleep(1)'); RESET statement_timeout");
	is($session->sqlstate, '57014', 'a statement is interrupted');
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.1' AND state = 'active' AND pid <> pg_backend_pid()}, 0), 'and ends by itself');
	$session->run("SELECT pgpool.exec($lease, 'select 1')");
	is($session->sqlstate, over_tls() ? '' : '08006', 'the next one must not be hit by the cancel that is to come') or diag($session->error);
	kill 'CONT', $worker;
	$session->run('SELECT pgpool.checkin_all()');
	works('far', 'cancel');
}

# --- of an answer, or what comes by itself, only a part
$session->run(q{SELECT pgpool.checkout('half') AS lease \gset});
is($session->run(q{SELECT a FROM pgpool.query(:lease, 'select 1') AS t(a int)}), '1', 'an answer');
wait_until($local, sub { -e $halved ? 1 : 0 }, 1) or die 'no half notice';

# over TLS two processes have to pass it on
$session->run('SELECT pg_sleep(0.3)') if over_tls();
$session->fails(q{SELECT pgpool.exec(:lease, 'select 1')}, '08006', qr/a message did not end within operation_timeout/i, 'half a notice before a statement: it is waited for, within a bound');
$session->run('SELECT pgpool.checkin_all()');
$session->run(q{SELECT pgpool.checkout('behind') AS lease \gset});
$session->run(q{SELECT pgpool.send(:lease, 'select 1'); SELECT pgpool.wait(:lease)});
is($session->run('SELECT pgpool.checkin(:lease)'), '', 'half a notice behind an answer that nobody takes');
is($local->safe_psql('postgres', q{SELECT count(*) FROM pgpool.connections WHERE server = 'behind' AND state IN ('idle', 'reset_pending')}), '0', 'its connection is not kept');

# .. and behind one that somebody takes: the wait for the rest can be left, and nothing is cancelled
$session->run(q{SELECT pgpool.checkout('patient_behind') AS lease \gset});
is($session->run(q{SELECT a FROM pgpool.query(:lease, 'select 1') AS t(a int)}), '1', 'half a notice behind an answer');
$session->fails(q{SET statement_timeout = '300 ms'; SELECT pgpool.exec(:lease, 'select 1')}, '57014', qr/statement timeout/, 'who waits for the rest can leave');
is($local->safe_psql('postgres', q{SELECT state FROM pgpool.leases WHERE server = 'patient_behind'}), 'idle', 'nothing runs that would have to be cancelled');
$session->run('RESET statement_timeout; SELECT pgpool.checkin_all()');
ok(wait_until($local, q{SELECT concat_ws(' ', closed_broken, closed_holder_died, cancels) FROM pgpool.stats WHERE server = 'patient_behind'}, '1 0 0'), '.. nor is anything, when the connection comes back');

# behind the end of a statement that was cancelled: it is waited for, which can be left
$session->run(q{SELECT pgpool.checkout('patient_late') AS lease \gset});
$session->run(q{SET statement_timeout = '300 ms'});
$session->fails(q{SELECT a FROM pgpool.query(:lease, 'select 1') AS t(a int)}, '57014', qr/statement timeout/, 'a statement does not end');
PostgreSQL::Test::Utils::append_to_file($ended, 'x');
$session->fails(q{SELECT pgpool.exec(:lease, 'select 1')}, '57014', qr/statement timeout/, 'it has, and half a notice is behind it') foreach 1 .. 2;
PostgreSQL::Test::Utils::append_to_file($whole, 'x');
is($session->run(q{RESET statement_timeout; SELECT a FROM pgpool.query(:lease, 'select 1') AS t(a int)}), '1', 'the notice is whole, and the lease works on')
  or diag($session->error);
like($session->error, qr/NOTICE:.*late/, 'it is passed on, if late');
$session->run('SELECT pgpool.checkin_all()');
is($local->safe_psql('postgres', q{SELECT closed_broken + closed_reset + closed_holder_died FROM pgpool.stats WHERE server = 'patient_late'}), '0', 'its connection is kept');
$session->run(q{SELECT pgpool.checkout('fatal') AS lease \gset});
$session->fails(q{SELECT a FROM pgpool.query(:lease, 'select 1') AS t(a int)}, '08006', qr/The remote server said: so long/, 'a FATAL error with a boundary behind it is an end all the same');
$session->run('SELECT pgpool.checkin_all()');

$_->quit foreach $session, $other;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

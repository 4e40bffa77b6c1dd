# The worker's answer to the question for a socket: late, refused, or none since
# the connection was taken away meanwhile.  Who asks is not misled by it.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
my $first = PgpxSession->new($local);
my $waits = q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND state = 'active' AND pid = };

make_pool($local, $remote, server => 'one', options => { pool_size => 1, operation_timeout => '10 min' });
my $worker = worker_pid($local);

# A connection is idle, its socket is not kept by this session, and the worker stands
# still: the session's question is not answered.
sub asks
{
	my ($session, $call, $name) = @_;

	is($first->run(q{SELECT a FROM pgpool.query('one', 'select 1') AS t(a int)}) . $first->error, '1', "$name: a connection is there");
	kill 'STOP', $worker;
	$session->start($call);
	ok(wait_until($local, $waits . $session->pid, 1), "$name: the worker is asked, and says nothing");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.leases', 1), "$name: its lease is there");
	return;
}

sub serves
{
	my ($session, $name) = @_;

	is($session->run(q{SELECT a FROM pgpool.query('one', 'select 42') AS t(a int)}, 60) . $session->error, '42', "$name: the same session is served");
	return $session->quit;
}

# --- an answer that comes too late is not taken for that to the next question
my $session = PgpxSession->new($local);
asks($session, q{SELECT pgpool.checkout('one', '60 s')}, 'late');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
$session->finish(30);
$session->failed('57014', qr/user request/, 'late: who asked is cancelled');
kill 'CONT', $worker;
serves($session, 'late');

# --- woken for something else while it waits for the answer
$session = PgpxSession->new($local);
asks($session, q{SELECT pgpool.checkout('one', '60 s')}, 'woken');
my $log = -s $local->logfile;
$local->safe_psql('postgres', 'SELECT pg_log_backend_memory_contexts(' . $session->pid . ')');
ok(wait_until($local, sub { slurp_file($local->logfile, $log) =~ /logging memory contexts of PID/ ? 1 : 0 }, 1), 'woken: for something else');
kill 'CONT', $worker;
like($session->finish(60), qr/^\d+$/, 'woken: it waits on, and is answered') or diag($session->error);
$session->run('SELECT pgpool.checkin_all()');
serves($session, 'woken');

# --- the connection is taken away before the worker has answered: another one serves
foreach my $how ('unanswered', 'refused')
{
	my $closed = $local->safe_psql('postgres', 'SELECT closed_terminated FROM pgpool.stats');

	$session = PgpxSession->new($local);
	asks($session, q{SELECT pgpool.checkout('one', '60 s')}, $how);
	kill 'STOP', $session->pid if $how eq 'refused';
	is($local->safe_psql('postgres', 'SELECT pgpool.terminate(lease) FROM pgpool.leases'), 't', "$how: its lease is taken away");

	# without an answer it sees so itself; or the worker has answered before it looks
	ok(wait_until($local, 'SELECT waiters FROM pgpool.pools', 1, 30), "$how: it waits for another one") if $how eq 'unanswered';
	kill 'CONT', $worker;
	ok(wait_until($local, 'SELECT closed_terminated FROM pgpool.stats', $closed + 1), "$how: the connection is closed");
	kill 'CONT', $session->pid;
	like($session->finish(60), qr/^\d+$/, "$how: it has another one") or diag($session->error);
	is($session->run('SELECT pgpool.checkin_all()'), '1', "$how: and no other lease");
	serves($session, $how);
}

# --- who returns a connection has sent the statement of who is next, and that one cannot
# have the socket: the statement is not sent again, and nobody says that it has not run
make_pool($local, $remote, server => 'sent', options => { pool_size => 1, operation_timeout => '2 s' });
{
	my ($holder, $next) = map { PgpxSession->new($local) } 1 .. 2;
	my $lease = lease($holder, 'sent');

	is($holder->run("SELECT pgpool.exec($lease, 'select 1')"), 1, 'sent: a lease is used');
	$next->start(q{SELECT pgpool.exec('sent', 'select 2')});
	ok(wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'sent'}, 1), 'sent: another waits');
	kill 'STOP', $worker;
	is($holder->run("SELECT pgpool.checkin($lease)") . $holder->error, '', 'sent: it is returned');
	$next->finish(60);
	$next->failed('08006', qr/connection to server "sent" was lost\n.*DETAIL:  The statement was sent, and its answer cannot be had: it may have run\./, 'sent: the other is told what may be');
	kill 'CONT', $worker;
	is($next->run(q{SELECT a FROM pgpool.query('sent', 'select 42') AS t(a int)}, 60) . $next->error, '42', 'sent: the same session is served');
	$_->quit foreach $holder, $next;
}

# --- the answer to a reset does not come in time: not a byte of it was read, so that the
# connection is as good as before
make_pool($local, $remote, server => 'owed', options => { pool_size => 1, operation_timeout => '10 min' });
{
	my $own = PgpxSession->new($local);
	my $lease = lease($own, 'owed');
	my $pid = $own->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)");

	kill 'STOP', $worker, $pid;
	is($own->run("SELECT pgpool.checkin($lease)") . $own->error, '', 'owed: a reset is sent');
	$own->fails(q{SELECT pgpool.checkout('owed', '500 ms')}, '55P03', qr/no connection to server "owed" came free/, 'owed: its answer does not come in time');
	is($local->safe_psql('postgres', q{SELECT state FROM pgpool.connections WHERE server = 'owed'}), 'reset_pending', 'owed: the connection is kept');
	kill 'CONT', $worker, $pid;
	is($own->run(q{SELECT a FROM pgpool.query('owed', 'select pg_backend_pid()') AS t(a int)}) . $own->error, $pid, 'owed: and serves the next one');
	$own->quit;
}

# --- the only connection is being tested, and its remote says nothing: who only tries has
# waited for a moment, and has none
make_pool($local, $remote, server => 'tested', options => { pool_size => 1, test_period => '1ms' });
{
	my $own = PgpxSession->new($local);
	my $pid = $own->run(q{SELECT a FROM pgpool.query('tested', 'select pg_backend_pid()') AS t(a int)});

	ok(wait_until($local, q{SELECT state FROM pgpool.connections WHERE server = 'tested'}, 'idle'), 'tested: a connection is idle');
	kill 'STOP', $pid;

	# in one go: the test is given up after 2 s
	my ($tried, $state, $waiting) = split /\n/, $own->run(q{SELECT pgpool.try_checkout('tested');
		SELECT state FROM pgpool.connections WHERE server = 'tested'; SELECT count(*) FROM pgpool.waiters});
	is($tried . $own->error, '', 'tested: a try comes to nothing');
	is($state, 'checking', 'tested: it is being tested');
	is($waiting, 0, 'tested: nobody waits for it');
	kill 'CONT', $pid;
	is($own->run(q{SELECT a FROM pgpool.query('tested', 'select pg_backend_pid()') AS t(a int)}) . $own->error, $pid, 'tested: then it serves');
	$own->quit;
}

is(worker_pid($local), $worker, 'it is still the same worker');
$first->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

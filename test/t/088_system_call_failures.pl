# The system, libc and libpq refuse what they hardly ever do: a thread, a socket, a
# pipe, memory.  Whoever asked for it is told, nobody else is disturbed, nothing is
# left behind, and the next attempt succeeds.
use strict;
use warnings;

use Errno qw(ENOSPC EAGAIN ECONNREFUSED EINTR EMFILE ENOMEM EPIPE ETIMEDOUT ETOOMANYREFS);
use IO::Select;
use IO::Socket::INET;
use IPC::Run;
use PgpxFailing;
use PgpxFakeServer qw(greeting backend_key ready done);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

PgpxFailing::skip_all_without();

# logs in when it is said so, and writes down what it hears (it would keep the pipes of
# sessions that are there before it)
my $journal = PostgreSQL::Test::Utils::tempdir . '/journal';
my $said = "$journal.said";
my $fake = PgpxFakeServer->new(silent => sub { $_[0]->receive; sleep 3600 }, overtaken => { login => sub {
	my ($self) = @_;

	append_to_file($journal, "$$ login\n");
	select undef, undef, undef, 0.01 until -e $said;
	$self->send(greeting(), backend_key(), ready());
	while (my $sql = $self->receive)
	{
		append_to_file($journal, "$$ $sql\n");
		$self->send($sql =~ /^select/ ? $self->answer('1') : (done('DISCARD ALL'), ready()));
	}
} });
my $remote = remote_node('remote');
my $local = local_node('local', start => 0);

# its workers would wake the postmaster
$local->append_conf('postgresql.conf', 'autovacuum = off');

# --- while the server starts
fail_next($local, 'socketpair', who => 'all', errno => EMFILE);
is(failing($local, sub { $local->start(fail_ok => 1) }), 0, 'no control socket: the server does not start');
like(slurp_file($local->logfile), qr/FATAL: .*could not create control socket of pgpool_ext: Too many open files/, 'and says why');
failing($local, sub { $local->start });

my %quick = (pool_size => 2, retry_min => '10 ms', retry_max => '50 ms');
make_pool($local, $remote, server => 'one', options => {%quick});
make_pool($local, $remote, server => 'named', options => { %quick, host => 'localhost' });
make_pool($local, $remote, server => 'started', options => { %quick, start_commands => 'SET geqo = on' });
my ($session, $other) = map { PgpxSession->new($local) } 1 .. 2;

sub works
{
	my ($server, $name) = @_;

	return ok(wait_until($local, sub { $other->run("SELECT a FROM pgpool.query('$server', 'select 42') AS t(a int)") }, '42', 30), "$name: works again")
	  || diag($other->error);
}

sub logs
{
	my ($since, $pattern, $name) = @_;

	return ok(wait_until($local, sub { slurp_file($local->logfile, $since) =~ $pattern ? 1 : 0 }, 1, 30), $name)
	  || diag(slurp_file($local->logfile, $since));
}

works('one', 'all is well');

# --- the worker cannot set itself up, or watch a socket: it ends, and the next one can
foreach my $case (
	[ 'epoll_create1', qr/FATAL: .*pgpool_ext could not set its worker up: Too many open files/ ],
	[ 'pipe2', qr/FATAL: .*pgpool_ext could not set its worker up: Too many open files/ ],
	[ 'epoll_ctl', qr/ERROR: .*pgpool_ext could not watch a socket: Too many open files/ ])
{
	my ($function, $said) = @$case;
	my $log = -s $local->logfile;

	# none is left whose end would call it, too
	is($session->run(q{SELECT pgpool.drain('one', '10 s')}), 't', "$function: the pool is empty");
	fail_next($local, $function, errno => EMFILE);
	terminate($local, worker_pid($local)) unless $function eq 'epoll_ctl';
	$session->run(q{SELECT pgpool.resume('one'); SELECT pgpool.try_checkout('one')});
	logs($log, $said, "$function: the worker says what is missing");

	# a postmaster of 15 that is told of a death just before it goes to sleep sleeps on, up to a
	# minute, until somebody connects
	ok(wait_until($local, sub { worker_pid($local) ne '' ? 1 : 0 }, 1, 30), "$function: another one comes");
	works('one', $function);
}
$session->run('SELECT pgpool.checkin_all()');

# --- the postmaster oversleeps the worker's end: who waits for a connection reminds it
SKIP:
{
	skip 'from 16 on a postmaster does not', 1 if $local->safe_psql('postgres', 'SHOW server_version_num') >= 160000;
	my ($postmaster) = slurp_file($local->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	my $worker = worker_pid($local);
	my @leases = map { lease($session, 'one') } 1 .. 2;
	my ($answer, $error);

	# its only statement: before a second one the server sets timers, which wake it
	my $waiter = IPC::Run::start([ 'psql', '-XAtq', '-d', $local->connstr('postgres'), '-c', q{SELECT pgpool.checkout('one', '25 s')} ], '>', \$answer, '2>', \$error);
	ok(wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'one'}, 1), 'a session waits');
	doze($local, $postmaster);
	kill 'HUP', $postmaster;	# it may be there already, and accept nobody
	ok(wait_until($local, sub { dozes($local, $postmaster) }, 1), 'the postmaster is about to sleep for a minute');
	$session->run("SELECT pg_terminate_backend($worker)");
	ok(wait_until($local, sub { -e "/proc/$worker" ? 0 : 1 }, 1), 'the worker ends, and the postmaster has seen it');
	doze($local);
	$waiter->finish;
	like($answer . $error, qr/^\d+$/, 'there is another one, which serves who has waited');
	$session->run('SELECT pgpool.checkin_all()');
	works('one', 'after the postmaster has overslept');
}

# --- a look-up, a login, its start commands cannot be begun
foreach my $case (
	[ named => 'pthread_create', { errno => EAGAIN }, '53000', qr/too many host names are being looked up/ ],
	[ named => 'calloc', {}, '53000', qr/too many host names are being looked up/ ],
	[ named => 'strdup', {}, '53000', qr/too many host names are being looked up/ ],
	[ named => 'strdup', { skip => 1 }, '53000', qr/too many host names are being looked up/ ],
	[ named => 'getnameinfo', { times => 4 }, '08001', qr/no address found/ ],
	[ named => 'PQconnectStartParams', {}, '53200', qr/out of memory/ ],
	[ named => 'pthread_create', { errno => EAGAIN, skip => 1 }, '53000', qr/DETAIL:  The pool worker could not start a thread for the login\.$/m ],
	[ one => 'pthread_create', { errno => EAGAIN }, '53000', qr/DETAIL:  The pool worker could not start a thread for the login\.$/m ],
	[ one => 'pthread_create', { errno => EAGAIN, skip => 2 }, '53000', qr/DETAIL:  The pool worker could not start a thread for the login\.$/m ],
	[ one => 'calloc', {}, '53200', qr/out of memory/ ],
	[ one => 'PQgssEncInUse', {}, '0A000', qr/connection to server "one" is encrypted in a way that is not supported\n.*GSS encryption/ ],
	[ started => 'PQsendQuery', {}, '08001', qr/could not connect to server "started"/ ])
{
	my ($server, $function, $how, $sqlstate, $said) = @$case;
	my $name = join ' ', $function, %$how;

	# none is left that others could use
	is($session->run("SELECT pgpool.drain('$server', '10 s')"), 't', "$name: the pool is empty");
	fail_next($local, $function, %$how);
	$session->run("SELECT pgpool.resume('$server'); SELECT pgpool.checkout('$server', '10 s')");
	ok($session->sqlstate eq $sqlstate && $session->error =~ $said, "$name: who waits is told") or diag($session->error);
	unlink PgpxFailing::order($local);
	$session->run('SELECT pgpool.checkin_all()');
	works($server, $name);
}
check_invariants($local);

{
	my $fresh = PgpxSession->new($local);

	fail_next($local, 'PQconninfoParse', who => 'session');
	$fresh->fails(q{CREATE SERVER two FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host 'x')}, 'HV001', qr/out of memory/, 'no list of options: an error');
	$fresh->run(q{CREATE SERVER two FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host 'x')});
	is($fresh->error, '', 'with it there is none');
	$fresh->quit;
}

# --- a session cannot have a socket pair, or not send its question; the worker not its answer
{
	my $fresh = PgpxSession->new($local);

	fail_next($local, 'socketpair', who => 'session', errno => EMFILE);
	$fresh->fails(q{SELECT pgpool.checkout('one', '10 s')}, '53000', qr/could not create a socket pair: Too many open files/, 'no socket pair for a session: an error');
	is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '0', 'it has no lease then');
	fail_next($local, 'sendmsg', who => 'session', errno => ETOOMANYREFS);
	like($fresh->run(q{SELECT pgpool.checkout('one', '10 s')}), qr/^\d+$/, 'too many descriptors on the way: it waits') or diag($fresh->error);
	ok(has_failed($local), 'and has sent its question once more');
	$fresh->run('SELECT pgpool.checkin_all()');
	$fresh->quit;

	# nothing to wait for sockets with, or a socket cannot be waited for
	$fresh = PgpxSession->new($local);
	fail_next($local, 'epoll_create1', who => 'session', errno => EMFILE);
	$fresh->fails(q{SELECT pgpool.checkout('one', '10 s')}, '53000', qr/could not wait for pooled connections: Too many open files/, 'no epoll set for a session: an error');
	is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '0', 'it has no lease then');
	fail_next($local, 'epoll_ctl', who => 'session', errno => ENOSPC);
	$fresh->fails(q{SELECT a FROM pgpool.query('one', 'select pg_sleep(0.3)::text') AS t(a text)}, '53000', qr/could not wait for a pooled connection: No space left on device/, 'a socket that cannot be waited for: an error');
	$local->safe_psql('postgres', q{SELECT pgpool.reconnect('one')});
	$fresh->run(q{SELECT pgpool.checkin(pgpool.checkout('one', '10 s'))});
	fail_next($local, 'epoll_ctl', who => 'session', errno => ENOSPC);
	is($fresh->run(q{SELECT pgpool.checkin(pgpool.checkout('one', '10 s'))}) . $fresh->error, '', 'a socket that cannot be watched: it is looked at another way');
	ok(has_failed($local), 'and it could not');
	$fresh->quit;

	# the next connection is tried, unseen
	$fresh = PgpxSession->new($local);
	fail_next($local, 'sendmsg', who => 'session', errno => EPIPE);
	is($fresh->run(q{SELECT a FROM pgpool.query('one', 'select 7') AS t(a int)}) . $fresh->error, '7', 'a question that cannot be sent: another connection serves');
	$fresh->quit;

	# nor can the answer be taken in: the same, and the next question brings a new socket pair
	$fresh = PgpxSession->new($local);
	fail_next($local, 'recvmsg', who => 'session', errno => EPIPE);
	is($fresh->run(q{SELECT a FROM pgpool.query('one', 'select 8') AS t(a int)}) . $fresh->error, '8', 'an answer that cannot be taken in: another connection serves');
	ok(has_failed($local), 'and there was one');
	$fresh->quit;

	# no answer: until the time of the checkout is up, or that of an operation
	$fresh = PgpxSession->new($local);
	fail_next($local, 'sendmsg', who => 'worker', errno => EPIPE);
	$fresh->fails(q{SELECT pgpool.checkout('one', '500 ms')}, '55P03', qr/no connection to server "one" came free within 500 ms/, 'an answer that is lost: the time of a checkout ends it');
	like($fresh->run(q{SELECT pgpool.checkout('one', '500 ms')}), qr/^\d+$/, 'the next one is answered') or diag($fresh->error);
	$fresh->quit;
	$local->safe_psql('postgres', q{ALTER SERVER one OPTIONS (ADD operation_timeout '300 ms')});
	$fresh = PgpxSession->new($local);
	fail_next($local, 'sendmsg', who => 'worker', errno => EPIPE);
	is($fresh->run(q{SELECT a FROM pgpool.query('one', 'select 8') AS t(a int)}) . $fresh->error, '8', '.. or operation_timeout, and another connection serves');
	ok(has_failed($local), 'an answer was lost');
	$fresh->quit;
}
works('one', 'questions and answers');

# --- a login that succeeded and is not wanted: its remote takes no goodbye
{
	my $app = PgpxSession->new($local, user => 'app');

	make_pool($local, $remote, server => 'unasked', options => { %quick, host => $remote->host });
	fail_next($local, 'PQfinish');
	$app->fails(q{SELECT pgpool.checkout('unasked', '10 s')}, '2F003', qr/must be authenticated by a password/, 'a login without a password is refused, and the goodbye waits for nothing');
	ok(has_failed($local), 'and could not be sent');
	$app->quit;
}
works('one', 'a goodbye that nobody takes');

# --- signals that come in the middle of a call
foreach my $function (qw(send recv))
{
	fail_next($local, $function, who => 'session', errno => EINTR);
	is($session->run(q{SELECT a FROM pgpool.query('one', 'select 9') AS t(a int)}) . $session->error, '9', "$function: a signal is no end");
	ok(has_failed($local), "$function: it has come");
}

# --- a remote that never pauses: neither are its bytes read for ever, nor for all time
{
	make_pool($local, $fake, server => 'endless', remote_dbname => 'silent',
		options => { %quick, operation_timeout => '1 s', notices => 'ignore', sslmode => PgpxFakeServer::sslmode() });
	my $lease = lease($session, 'endless');

	$session->start("SET statement_timeout = '500 ms'; SELECT pgpool.exec($lease, 'select 1')");
	ok(wait_until($local, q{SELECT state FROM pgpool.leases WHERE server = 'endless'}, 'active'), 'a statement runs');
	never_pause($local, $session->pid);
	$session->finish(30);
	$session->failed('57014', qr/statement timeout/, 'who talks without a pause: is left');
	$session->run("RESET statement_timeout; SELECT pgpool.exec($lease, 'select 1')", 30);
	$session->failed('08006', qr/a cancelled statement did not end within operation_timeout/i, '.. and given up in time');
	never_pause($local);
	$session->run("SELECT pgpool.checkin($lease)");

	$lease = lease($session, 'endless');
	$session->run("SELECT pgpool.send($lease, 'select 1')");
	never_pause($local, $session->pid);
	$session->run("SELECT pgpool.checkin($lease)", 30);
	like($session->error, qr/WARNING: .*lease $lease was returned with a statement in flight, which is cancelled/, '.. and in flight: is left');
	never_pause($local);
}

# --- a socket that takes nothing: what was not begun to be sent was never written
{
	my $fresh = PgpxSession->new($local);
	my $lease = lease($fresh, 'one');
	my $pid = $fresh->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)");

	$remote->safe_psql('remote_db', 'CREATE TABLE taken (a int); GRANT ALL ON taken TO remote_app');
	foreach my $sql ("'insert into taken values (1)'", "'insert into taken values (\$1)', 1")
	{
		fail_next($local, 'send', who => 'session', errno => EAGAIN, times => 1_000_000_000);
		$fresh->run(q{SET statement_timeout = '300 ms'});
		$fresh->fails("SELECT pgpool.exec($lease, $sql)", '57014', qr/statement timeout/, "$sql: nothing of it can be sent");
		unlink PgpxFailing::order($local);
		is($fresh->run("RESET statement_timeout; SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)") . $fresh->error, $pid, "$sql: the lease is as good as before");
	}
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM taken'), '0', 'and nothing has run');

	# nor does anybody wait for the end of a reset of which something is missing
	fail_next($local, 'send', who => 'session', errno => EAGAIN, times => 1_000_000_000);
	$fresh->run("SELECT pgpool.checkin($lease)");
	unlink PgpxFailing::order($local);
	is($fresh->error . $local->safe_psql('postgres', "SELECT count(*) FROM pgpool.connections WHERE remote_pid = $pid AND state <> 'closing'"), '0', 'a reset that cannot be sent: the connection closes');

	# .. or goes on in a session that was to be reset in front of his statement
	my $waiter = PgpxSession->new($local);
	make_pool($local, $remote, server => 'single', options => { %quick, pool_size => 1 });
	$lease = lease($fresh, 'single');
	$fresh->run("SELECT pgpool.exec($lease, 'set work_mem = ''7MB''')");
	$waiter->start(q{SELECT a FROM pgpool.query('single', 'show work_mem') AS t(a text)});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'single'}, '1'), 'a statement is to be sent behind a reset');
	fail_next($local, 'sendmsg', who => 'session', errno => EAGAIN);
	$fresh->run("SELECT pgpool.checkin($lease)");
	is($waiter->finish(60) . $waiter->error, '4MB', 'which cannot be done: it runs in a clean session');
	ok(has_failed($local), 'for it was refused');

	# nor does the next one find that session, if he is cancelled before he has seen it
	$lease = lease($fresh, 'single');
	$fresh->run("SELECT pgpool.exec($lease, 'set work_mem = ''7MB''')");
	$waiter->start(q{SELECT a FROM pgpool.query('single', 'show work_mem') AS t(a text)});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'single'}, '1'), 'once more one waits');
	kill 'STOP', $waiter->pid;
	fail_next($local, 'sendmsg', who => 'session', errno => EAGAIN);
	$fresh->run("SELECT pgpool.checkin($lease)");
	ok(has_failed($local), 'and nothing can be sent');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
	kill 'CONT', $waiter->pid;
	$waiter->finish(60);
	$waiter->failed('57014', qr/canceling statement/, 'he is cancelled');
	is($fresh->run(q{SELECT a FROM pgpool.query('single', 'show work_mem') AS t(a text)}) . $fresh->error, '4MB', 'the next one has a clean session');
	$local->safe_psql('postgres', 'DROP SERVER single CASCADE');
	$waiter->quit;
	$fresh->quit;
}

# --- cancel requests that cannot be made: the connection is closed after operation_timeout
SKIP:
{
	skip 'libpq makes cancel requests itself', 1 if libpq_cancels();
	foreach my $case ([ socket => EMFILE ], [ connect => ECONNREFUSED ], [ PQgetCancel => ENOMEM ], [ send => EINTR ], [ recv => EINTR ], [ send => EPIPE ], [ recv => ETIMEDOUT ])
	{
		my ($function, $errno) = @$case;

		# it would be the relay's over TLS
		next if $errno == ETIMEDOUT && over_tls();

		$session->run(q{SELECT pgpool.reconnect('one')});
		if ($function eq 'PQgetCancel')
		{
			fail_next($local, $function, errno => $errno);
			ok(wait_until($local, sub { $session->run(q{SELECT pgpool.exec('one', 'select 1')}) }, '1'), 'a connection whose key nobody knows');
		}
		my $lease = lease($session, 'one');
		my $sent = $local->safe_psql('postgres', q{SELECT sum(cancels) FROM pgpool.stats});
		my $pid = $session->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)");
		$session->run("SET statement_timeout = '200 ms'");
		fail_next($local, $function, errno => $errno) unless $function eq 'PQgetCancel';
		$session->run("SELECT pgpool.exec($lease, 'select pg_sleep(20)')", 30);
		is($session->sqlstate, '57014', "$function: a statement is cancelled here");
		$session->calm;
		$session->run('SELECT pgpool.checkin_all()', 30);
		ok(has_failed($local), "$function: it was refused");
		ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.20' AND state = 'active' AND pid <> pg_backend_pid()}, 0, 30), "$function: it ends at the remote");
		is($local->safe_psql('postgres', q{SELECT sum(cancels) FROM pgpool.stats}), $sent, "$function: what could not be sent is not counted")
		  if $function eq 'PQgetCancel';

		# it may come at any time, and hit whoever has the connection by then
		ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE remote_pid = $pid", 0, 30), 'one that may have been lost on its way: the connection is not used any more')
		  if $errno == ETIMEDOUT;
		works('one', $function);
	}

	# a Unix socket whose backlog is full: nothing has begun, so there is nothing to wait for
	make_pool($local, $remote, server => 'near', options => { %quick, host => $remote->host, operation_timeout => '20 s' });
	my $lease = lease($session, 'near');
	$session->run("SELECT pgpool.exec($lease, 'select 1'); SET statement_timeout = '200 ms'");
	fail_next($local, 'connect', errno => EAGAIN);
	my $took = seconds
	{
		$session->run("SELECT pgpool.exec($lease, 'select pg_sleep(60)')", 60);
		$session->calm;
		$session->run('SELECT pgpool.checkin_all()', 30);
		ok(has_failed($local), 'a backlog is full: connect says so');
		ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.60' AND state = 'active' AND pid <> pg_backend_pid()}, 0, 60), 'the statement ends at the remote');
	};
	cmp_ok($took, '<', 10, 'by a second attempt, long before operation_timeout');
	works('near', 'a full backlog');
}
check_invariants($local);
stats_add_up($local);

# --- the worker ends, and cannot cancel what runs at once: but a moment later
SKIP:
{
	my $running = q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.604' AND state = 'active' AND pid <> pg_backend_pid()};

	skip 'libpq makes cancel requests itself', 1 if libpq_cancels();
	$session->start(q{SELECT pgpool.exec('one', 'select pg_sleep(604)')});
	ok(wait_until($remote, $running, 1), 'a statement runs');
	fail_next($local, 'socket', errno => EMFILE);
	terminate($local, worker_pid($local));
	$session->finish(30);
	$session->failed('08006', qr/worker was restarted/, 'the worker ends: its lessee is told');
	ok(wait_until($remote, $running, 0, 30), 'and the statement is cancelled');
	ok(has_failed($local), 'by the second attempt');
	works('one', 'end of the worker');
}

# --- cancel requests that are libpq's compute, too, with TLS: in threads, of which a pool
# has four; nobody else waits for them, nor does the worker when it ends
SKIP:
{
	skip 'cancel requests are our own', 1 unless libpq_cancels();
	my $worker = worker_pid($local);
	my $threads = sub { return threads_of($worker) };
	my @callers = map { PgpxSession->new($local) } 1 .. 5;

	make_pool($local, $remote, server => 'cancelled', options => { %quick, pool_size => 5, operation_timeout => '2s' });
	hold_logins($local, 'PQcancelPoll');
	$_->start(q{SELECT pgpool.exec('cancelled', 'select pg_sleep(605)')}) foreach @callers;
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.605' AND state = 'active' AND pid <> pg_backend_pid()}, 5), 'five statements run');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $_->pid . ')') foreach @callers;
	$_->finish(30) foreach @callers;
	$_->failed('57014', qr/canceling statement/, 'they are cancelled here') foreach @callers;
	ok(wait_until($local, $threads, '0 4'), 'and their cancel requests given up, four of them in a thread');
	$session->run(q{SELECT pgpool.reconnect('one')});
	works('one', 'another pool connects meanwhile');
	ok(wait_until($local, $threads, '0 4'), 'all that time they have not ended');
	hold_logins($local);
	ok(wait_until($local, $threads, '0 0'), 'then they end');
	ok(wait_until($local, 'SELECT sum(descriptors) - ' . descriptors_wanted() . ' FROM pgpool.workers', '0', 30), 'with their sockets');
	$_->quit foreach @callers;
	works('cancelled', 'the pool has others');

	$session->start(q{SELECT pgpool.exec('one', 'select pg_sleep(606)')});
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.606' AND state = 'active' AND pid <> pg_backend_pid()}, 1), 'a statement runs');
	hold_logins($local, 'PQcancelPoll');
	terminate($local, $worker);
	ok(wait_until($local, sub { my $pid = worker_pid($local); $pid ne '' && $pid ne $worker ? 1 : 0 }, 1, 30), 'a worker that ends does not wait for its cancel request');
	hold_logins($local);
	$session->finish(30);
	$session->failed('08006', qr/worker was restarted/, 'its lessee is told');
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE query ~ 'pg_sleep.60[56]' AND pid <> pg_backend_pid()});
	works('one', 'and the next worker works');
	check_invariants($local);
}

# --- locks: the worker cannot make its own connection, or ask on it; the lock has time
$session->run(q{SELECT pgpool.lock_setup('started')});
my $token = $session->run(q{SELECT pgpool.lock('started', 'a', ttl => '10 min')});
ok(wait_until($local, 'SELECT last_ping IS NOT NULL FROM pgpool.locks', 't'), 'a lock is held and pinged');
foreach my $case (
	[ PQconnectStartParams => qr/out of memory/ ],
	[ calloc => qr/out of memory/ ],
	[ pthread_create => qr/could not start a thread for the login/ ],
	[ PQsendQuery => qr// ],
	[ PQsendQueryParams => qr// ])
{
	my ($function, $said) = @$case;
	my $log = -s $local->logfile;

	fail_next($local, $function);
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'});
	logs($log, qr/cannot ping the locks of server "started".*\n.*$said/, "$function: the log has it, with the reason");
	logs($log, qr/pings the locks of server "started" .* again/, "$function: and that it pings again");
}
# (one that computes, or waits for others that do, has been accepted: its host is not silent,
# and nobody goes to the next one of the list for it)
{
	my $log = -s $local->logfile;
	my $next = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die "no socket: $!";
	my $gone_on = sub { return scalar grep { $next->accept } 1 .. 5 };
	$next->blocking(0);
	my %list = (host => '127.0.0.1,127.0.0.1', port => $remote->port . ',' . $next->sockport, sslmode => over_tls() ? 'require' : 'disable');

	make_pool($local, $remote, server => 'listed', options => { %quick, %list });
	my $listed = $session->run(q{SELECT pgpool.lock('listed', 'b', ttl => '10 min')});
	ok(wait_until($local, q{SELECT last_ping IS NOT NULL FROM pgpool.locks WHERE name = 'b'}, 't'), 'a lock of a list of hosts is held and pinged');
	hold_logins($local, 'remote_db');
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'});
	logs($log, qr/cannot ping the locks of server "$_".*\n.*The connection attempt did not end in time: what the remote server asks for takes longer to compute/, "$_: a login that computes for long: the log says so")
	  foreach qw(started listed);
	hold_logins($local);
	logs($log, qr/pings the locks of server "$_" .* again/, "$_: and that it pings again") foreach qw(started listed);
	is($session->run(q{SELECT pgpool.prewarm('listed', 2)}) . $session->error, '2', 'listed: its pool opens a connection');
	is($gone_on->(), 0, 'listed: none of them has gone to the next host');
	is($session->run("SELECT pgpool.unlock('listed', 'b', $listed)"), 't', 'listed: the lock is released');

	# five logins: one is in line, and stays there when its share of connect_timeout is over
	make_pool($local, $remote, server => 'in_line', options => { %list, pool_size => 5, connect_timeout => '4s' });
	hold_logins($local, 'remote_db');
	$session->start(q{SELECT pgpool.prewarm('in_line', 5, timeout => '1 s')});
	ok(wait_until($local, q{SELECT connecting FROM pgpool.pools WHERE server = 'in_line'}, 5), 'five log in');
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '4 0'), 'one of them is in line');
	is($session->finish(60) . $session->error, '0', 'nobody waits for them any more');
	ok(wait_until($local, q{SELECT connects_failed FROM pgpool.stats WHERE server = 'in_line'}, 5), 'they are too late');
	is($gone_on->(), 0, 'and none has gone to the next host');
	hold_logins($local);
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '0 0'), 'their threads end');
}
{
	my $app = PgpxSession->new($local, user => 'app');
	my $hba = $remote->data_dir . '/pg_hba.conf';
	my $before = slurp_file($hba);
	my $log;

	# one that is not asked for a password any more; its remote takes no goodbye
	like($app->run(q{SELECT pgpool.lock('started', 'b', ttl => '10 min')}), qr/^\d+$/, 'a user has a lock') or diag($app->error);
	ok(wait_until($local, q{SELECT bool_and(last_ping IS NOT NULL) FROM pgpool.locks}, 't'), 'which is pinged');
	PgpxFailing::put($hba, "host all all 127.0.0.1/32 trust\n$before");
	$remote->reload;
	ok(wait_until($remote, q{SELECT count(*) > 0 FROM pg_hba_file_rules WHERE auth_method = 'trust' AND address IS NOT NULL}, 't'), 'the remote asks for none');
	hold_logins($local, 'remote_db');
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'});
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '2 0'), 'two log in to ping');
	$log = -s $local->logfile;
	fail_next($local, 'PQfinish');
	hold_logins($local);
	logs($log, qr/cannot ping the locks of server "started".*\n.*must be authenticated by a password/, 'it is refused, and the goodbye waits for nothing');
	ok(has_failed($local), 'and could not be sent');
	PgpxFailing::put($hba, $before);
	$remote->reload;
	logs($log, qr/pings the locks of server "started" .* again/, 'with one it pings again');
	$app->quit;
}
is($session->run("SELECT pgpool.lock_valid('started', 'a', $token)"), 't', 'the lock is still held');
fail_next($local, 'clock_gettime', who => 'session', times => 3);
is($session->run("SELECT pgpool.lock_valid('started', 'a', $token)"), 't', 'a system whose steady clock stands while it sleeps: the other one is taken');
is($session->run("SELECT pgpool.unlock('started', 'a', $token)"), 't', 'it is released');

# --- a look-up that ends when its attempt has long been given up
{
	$session->run(q{SELECT pgpool.drain('named'); SELECT pgpool.resume('named'); ALTER SERVER named OPTIONS (ADD connect_timeout '300ms')});
	hold_logins($local, 'localhost');
	$session->fails(q{SELECT pgpool.checkout('named', '10 s')}, '08001', qr/The look-up of the host name did not end within connect_timeout \(0\.3 s\)/, 'a look-up takes too long');
	hold_logins($local);
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '0 0'), 'then it ends');
	works('named', 'a look-up that came too late');

	# what has a colon and is no address is looked up, too
	make_pool($local, $remote, server => 'colon', options => { %quick, host => 'x:y.invalid', connect_timeout => '300ms' });
	hold_logins($local, 'x:y.invalid');
	$session->fails(q{SELECT pgpool.checkout('colon', '10 s')}, '08001', qr/The look-up of the host name did not end within connect_timeout/, 'a name with a colon is looked up beside the loop');
	hold_logins($local);
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '0 0'), 'and that ends');
	$session->run(q{ALTER SERVER colon OPTIONS (SET connect_timeout '30s')});
	$session->fails(q{SELECT pgpool.checkout('colon', '10 s')}, '08001', qr/could not translate host name "x:y\.invalid"/, 'which has no address');
	$session->run(q{ALTER SERVER colon OPTIONS (SET host 'fe80::1%lo')});
	$session->fails(q{SELECT pgpool.checkout('colon', '10 s')}, '08001', qr/connection to server at "fe80::1%lo"/, 'an address with a scope has none to be looked up');
}

# --- other options come while the host of the old ones is looked up: nobody goes there
# with them, neither for the pool nor for its locks
{
	my $old = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die "no socket: $!";
	my $pinged = q{SELECT count(*) FROM pgpool.locks WHERE server = 'moved' AND last_ping > '%s'};

	make_pool($local, $remote, server => 'moved', options => { %quick, pool_size => 4, host => 'localhost', connect_timeout => '1min' });
	$session->run(q{SELECT pgpool.lock_setup('moved')});
	my $moved = $session->run(q{SELECT pgpool.lock('moved', 'a', ttl => '1 min')});
	ok(wait_until($local, sprintf($pinged, '-infinity'), 1), 'a lock is pinged');
	$session->run('SELECT pgpool.checkin_all()');
	hold_logins($local, 'localhost');
	$session->run(q{ALTER SERVER moved OPTIONS (SET port '} . $old->sockport . q{')});
	$other->start(q{SELECT pgpool.checkout('moved', '1 min')});
	ok(wait_until($local, sub { threads_of(worker_pid($local)) =~ /^2 / ? 1 : 0 }, 1, 60), 'the host is looked up for both');
	$session->run(q{ALTER SERVER moved OPTIONS (SET host '127.0.0.1', SET port '} . $remote->port . q{')});
	$session->start(q{SELECT a FROM pgpool.query('moved', 'select 1') AS t(a int)});
	like($other->finish(60), qr/^\d+$/, 'with other options a connection opens meanwhile') or diag($other->error);
	my $now = $local->safe_psql('postgres', 'SELECT now()');
	hold_logins($local);
	is($session->finish(60) . $session->error, '1', 'and then all do');
	ok(wait_until($local, sprintf($pinged, $now), 1, 60), 'the lock is pinged again');
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '0 0'), 'the look-ups have ended');
	ok(!IO::Select->new($old)->can_read(0.5), 'and nobody has gone where they led to');
	is($session->run("SELECT pgpool.unlock('moved', 'a', $moved)"), 't', 'the lock is released');
	$other->run('SELECT pgpool.checkin_all()');
}

# --- what a pool connects with is changed, and nobody can tell the worker: it does not go
# where it was told before for those who wait
{
	make_pool($local, $remote, server => 'untold', options => { %quick, pool_size => 1 });
	my $lease = lease($session, 'untold');
	$session->run("SELECT pgpool.exec($lease, 'select 1')");
	$other->start(q{SELECT a FROM pgpool.query('untold', 'select current_database()') AS t(a text)});
	ok(wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'untold'}, 1), 'untold: one waits');
	fail_next($local, 'sendmsg', who => 'session', errno => EAGAIN, times => 1_000_000_000);
	$local->safe_psql('postgres', q{ALTER SERVER untold OPTIONS (SET dbname 'postgres')});
	is($session->run("SELECT pgpool.checkin($lease)") . $session->error, '', 'untold: the connection of the old options comes in');
	ok(wait_until($local, q{SELECT total, waiters FROM pgpool.pools WHERE server = 'untold'}, '0|1'), 'untold: and closes');
	unlink PgpxFailing::order($local);
	is($other->finish(60) . $other->error, 'postgres', 'untold: who waits is served as the new ones say');
	is($local->safe_psql('postgres', q{SELECT connects FROM pgpool.stats WHERE server = 'untold'}), '2', 'untold: and none was opened in vain');
}

# --- they come in the same instant: the worker hears of them and of the end of a look-up, or
# of a login, at once
{
	my $old = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die "no socket: $!";
	my $worker = worker_pid($local);
	my $busy = PgpxSession->new($local);

	# what is done while the worker stands still, in a recv for another pool, it sees all at once
	my $at_once = sub {
		my ($server, $name, $change) = @_;

		ok(wait_until($local, sub { threads_of($worker) }, '1 0'), "$name: is under way");
		stand_still($local, $worker);
		$busy->start(q{SELECT pgpool.exec('one', 'select 1')});
		ok(wait_until($local, sub { stands($local, $worker) }, 1), "$name: the worker has something else to do");
		$session->run("ALTER SERVER $server OPTIONS ($change)");
		$session->start("SELECT a FROM pgpool.query('$server', 'select 1') AS t(a int)");
		ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = '$server'", 2), "$name: it is told other options");
		hold_logins($local);
		ok(wait_until($local, sub { threads_of($worker) }, '0 0'), "$name: and that has ended");
		stand_still($local);
		is($session->finish(60) . $session->error, '1', "$name: who has told is served");
		like($other->finish(60), qr/^\d+$/, "$name: and who was there") or diag($other->error);
		is($busy->finish(60), '1', "$name: and the other pool's statement has its answer");
		$_->run('SELECT pgpool.checkin_all()') foreach $session, $other;
	};

	make_pool($local, $remote, server => 'at_once', options => { %quick, host => 'localhost', port => $old->sockport });
	hold_logins($local, 'localhost');
	$other->start(q{SELECT pgpool.checkout('at_once', '1 min')});
	$at_once->('at_once', 'a look-up', q{SET host '127.0.0.1', SET port '} . $remote->port . q{'});
	ok(!IO::Select->new($old)->can_read(0.5), 'nobody has gone where it led to');

	make_pool($local, $fake, server => 'overtaken', remote_dbname => 'overtaken', options => { %quick, sslmode => PgpxFakeServer::sslmode() });
	$other->start(q{SELECT pgpool.checkout('overtaken', '1 min')});
	ok(wait_until($local, sub { -e $journal ? 1 : 0 }, 1), 'a login begins');
	hold_logins($local, 'overtaken');
	append_to_file($said, '');
	$at_once->('overtaken', 'the end of a login', q{ADD start_commands 'set geqo = on'});
	my ($first, $rest) = slurp_file($journal) =~ /^(\d+) login\n(.*)/s;
	unlike($rest, qr/^$first set geqo/m, 'the new start commands are not for it');
	like($rest, qr/ set geqo/, 'but for the next one');
	$busy->quit;
}

# --- look-ups that nobody waits for any more: of one user there are sixteen at most, and
# they look for no further names
{
	my $worker = worker_pid($local);
	my $dead = q{SELECT pgpool.checkout('dead', '10 s')};
	my $refused = qr/too many host names are being looked up for attempts of this user that have ended/;

	make_pool($local, $remote, server => 'dead', options => { %quick, connect_timeout => '50ms', host => 'localhost,held.example' });
	make_pool($local, $remote, server => 'alive', options => { %quick, host => 'LOCALHOST' });
	hold_logins($local, 'localhost', 'held.example');
	ok(wait_until($local, sub { $session->run($dead); $session->error =~ $refused ? 1 : 0 }, 1, 60), 'attempts end before their look-ups, until there are too many')
	  or diag($session->error);
	is($session->sqlstate, '53000', 'which is an error');
	ok(wait_until($local, sub { threads_of($worker) }, '16 0'), 'they are sixteen');
	is($local->safe_psql('postgres', q{SELECT a FROM pgpool.query('alive', 'select 1') AS t(a int)}, extra_params => [ '-U', 'app' ]), '1', 'names of another user are looked up');
	hold_logins($local, 'held.example');
	ok(wait_until($local, sub { threads_of($worker) }, '0 0'), 'who was given up looks no further');
	hold_logins($local);
	works('alive', 'names are looked up');
}

# --- logins that compute and compute, and were given up: of one user at one address there
# are eight at most, and of those who have some about 32 in the worker, whatever a pool is
# told, and whatever user mapping is made for it
{
	my %hasty = (pool_size => 8, connect_timeout => '300ms', retry_min => '10 ms', retry_max => '10 ms');
	my @held = map { "held$_" } 0 .. 4;
	my $worker = worker_pid($local);
	my $threads = sub { return threads_of($worker) };
	my $before_it = qr/did not end within connect_timeout \(0\.3 s\): logins before it still compute what the remote server has asked for/;

	# with a little load some need another attempt to come so far
	my $leave_behind = sub {
		my ($wanted, @servers) = @_;
		my %callers = map { $_ => PgpxSession->new($local, $_ eq 'held4' ? (user => 'app') : ()) } @servers;
		my %begun;

		ok(wait_until($local, sub {
			foreach my $server (@servers)
			{
				$callers{$server}->start("SELECT pgpool.prewarm('$server', 4, timeout => '1 min')")
				  if !$begun{$server}++ || $callers{$server}->done;
			}
			return $threads->();
		}, "0 $wanted"), "$wanted threads are left behind");
		$session->run('SELECT pg_terminate_backend(' . $_->pid . ')') foreach values %callers;
		return;
	};
	# nor do all come so far at once as to have to wait
	my $is_told = sub {
		my ($server, $why, $name) = @_;

		ok(wait_until($local, sub {
			$session->run("SELECT pgpool.checkout('$server', '10 s')");
			return $session->sqlstate eq '08001' && $session->error =~ $why ? 1 : 0;
		}, 1), $name) or diag($session->error);
		return;
	};
	my $tell_anew = sub {
		$session->run("ALTER USER MAPPING FOR CURRENT_USER SERVER $_ OPTIONS (SET password '$REMOTE_APP_PASSWORD')") foreach @_;
		return;
	};

	# in a pool that is in use, and so the same one under other options, what is told now is
	# not in line behind what was told before
	make_pool($local, $remote, server => 'in_use', options => \%hasty);
	my $lease = lease($session, 'in_use');
	hold_logins($local, 'remote_db');
	$leave_behind->(4, 'in_use');
	$session->run(q{ALTER SERVER in_use OPTIONS (SET dbname 'postgres', SET connect_timeout '1min')});
	is($other->run(q{SELECT a FROM pgpool.query('in_use', 'select 1') AS t(a int)}) . $other->error, '1', 'with other options it connects at once');
	ok(wait_until($local, $threads, '0 4'), 'while the others still compute');
	hold_logins($local);
	ok(wait_until($local, $threads, '0 0'), 'they end');
	$session->run("SELECT pgpool.checkin($lease)");

	make_pool($local, $remote, server => $_, options => \%hasty, $_ eq 'held4' ? (remote_dbname => 'template1') : ()) foreach @held;
	$session->run('ALTER SERVER held4 OWNER TO app; GRANT EXECUTE ON FUNCTION pgpool.prewarm TO app');
	make_pool($local, $remote, server => 'newcomer', remote_dbname => 'postgres', options => \%quick);
	hold_logins($local, 'remote_db', 'template1');
	$leave_behind->(20, @held);
	$tell_anew->('held1');
	$leave_behind->(24, 'held1');
	$tell_anew->('held1');
	$is_told->('held1', $before_it, 'whatever the pool is told: one more has to wait');
	$session->run("DROP USER MAPPING FOR CURRENT_USER SERVER held1; CREATE USER MAPPING FOR CURRENT_USER SERVER held1 OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')");
	$is_told->('held1', $before_it, 'with a new user mapping, too');
	ok(wait_until($local, $threads, '0 24'), 'nobody has got another thread');
	$tell_anew->(@held[ 0, 2, 3 ]);
	$leave_behind->(32, @held[ 2, 3 ]);
	$is_told->('held0', qr/did not end within connect_timeout \(0\.3 s\): too many logins of the pool worker still compute what remote servers have asked for/, 'the worker is full of them');
	ok(wait_until($local, $threads, '0 32'), 'nobody has got another thread');
	works('newcomer', 'who has left none behind');
	check_invariants($local);

	# who may make servers has no bound on them, but one of his own
	$remote->safe_psql('postgres', 'CREATE DATABASE more_db OWNER remote_app');
	make_pool($local, $remote, server => $_, remote_dbname => 'more_db', options => \%hasty) foreach map { "more$_" } 0 .. 9;
	make_pool($local, $remote, server => 'of_others', remote_dbname => 'postgres', options => \%quick);
	hold_logins($local, 'remote_db', 'template1', 'more_db');
	$leave_behind->(68, map { "more$_" } 0 .. 8);
	$is_told->('more9', qr/did not end within connect_timeout \(0\.3 s\): too many logins of the pool worker still compute/, 'a server more, and the same user: it has to wait');
	ok(wait_until($local, $threads, '0 68'), 'nobody has got another thread');
	is($local->safe_psql('postgres', q{SELECT a FROM pgpool.query('of_others', 'select 1') AS t(a int)}, extra_params => [ '-U', 'app' ]), '1', 'another user can');
	check_invariants($local);
	hold_logins($local, 'remote_db', 'template1');
	ok(wait_until($local, $threads, '0 32'), 'those end');

	$session->run("ALTER SERVER $_ OPTIONS (SET connect_timeout '1min')") foreach @held;
	$session->start(q{SELECT pgpool.checkout('held1', '1 min')});
	$other->start(q{SELECT pgpool.checkout('held0', '1 min')});
	ok(wait_until($local, q{SELECT sum(connecting) FROM pgpool.pools}, 2), 'two are in line');
	ok(wait_until($local, $threads, '0 32'), 'and not more than in line');
	hold_logins($local, 'remote_db');
	ok(wait_until($local, $threads, '1 28'), 'threads of another user end: the worker has room');
	hold_logins($local);
	like($_->finish(60), qr/^\d+$/, 'and when their own have ended all log in') or diag($_->error) foreach $session, $other;
	ok(wait_until($local, $threads, '0 0'), 'nothing is left of them');
	$_->quit foreach $session, $other;

	# nor of more than a worker has descriptors for: a third of them, at most, for what is
	# not the server's own, and over TLS a login takes two
	$local->append_conf('postgresql.conf', 'max_files_per_process = ' . (over_tls() ? 250 : 130));
	failing($local, sub { $local->restart });
	$worker = worker_pid($local);
	($session, $other) = map { PgpxSession->new($local) } 1 .. 2;
	$session->run("ALTER SERVER $_ OPTIONS (SET connect_timeout '300ms')") foreach @held;
	foreach (1 .. 3)
	{
		hold_logins($local, 'remote_db', 'template1');
		$leave_behind->(20, @held);
		hold_logins($local);
		ok(wait_until($local, $threads, '0 0'), 'they end');
	}
	works('one', 'what they have had open');
}

# --- never do more processes look for answers (pgpool_ext.busy_poll) than half of the
# processors: while so many stand in a look, the next one goes to sleep at once
SKIP:
{
	my $half = int((grep { /^processor\s*:/ } split /\n/, slurp_file('/proc/cpuinfo')) / 2);

	skip 'with a single processor nobody looks', 4 if $half < 1;
	skip 'over TLS sessions leave it to the worker', 4 if over_tls() && $half < 2;
	skip "too many processors to occupy half of them", 4 if $half > 8;
	make_pool($local, $remote, server => 'looked', options => { %quick, pool_size => $half });
	my @lookers = map { PgpxSession->new($local) } 1 .. $half;
	my @leases = map { lease($_, 'looked') } @lookers;
	my $lease = lease($session, 'one');
	my $asleep = "SELECT wait_event IS NOT NULL FROM pg_stat_activity WHERE state = 'active' AND pid = " . $session->pid;

	$_->run('SET pgpool_ext.busy_poll = 1000') foreach @lookers, $session;
	stand_still($local, map { $_->pid } @lookers, $session);
	$lookers[$_]->start("SELECT pgpool.exec($leases[$_], 'select pg_sleep(0.1)')") foreach 0 .. $#lookers;
	ok(wait_until($local, sub { join '', map { stands($local, $_->pid) } @lookers }, '1' x $half), 'half of the processors are looking');
	$session->start("SELECT pgpool.exec($lease, 'select pg_sleep(600)')");
	ok(wait_until($local, $asleep), 'then the next one sleeps');
	is(stands($local, $session->pid), 0, 'and has not looked');
	stand_still($local);
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$_->finish, $_->run('SELECT pgpool.checkin_all()') foreach @lookers, $session;

	$lease = lease($session, 'looked');
	stand_still($local, $session->pid);
	$session->start("SELECT pgpool.exec($lease, 'select pg_sleep(600)')");
	ok(wait_until($local, sub { stands($local, $session->pid) }, 1), 'once they have ended it looks');
	stand_still($local);
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish;
	$session->run('SELECT pgpool.checkin_all()');
	$_->quit foreach @lookers;
}

# --- TLS: the relay's socket pair
{
	my $secret = remote_node('secret', tls => 1);

	make_pool($local, $secret, server => 'tls', options => { %quick, sslmode => 'require' });
	fail_next($local, 'socketpair', errno => EMFILE);
	$session->fails(q{SELECT pgpool.checkout('tls', '10 s')}, '53000', qr/the pool worker could not create a socket pair/, 'no socket pair for the relay: who waits is told');
	works('tls', 'the relay');

	# again and again: what it would have taken is not counted
	fail_next($local, 'socketpair', errno => EMFILE, times => over_tls() ? 60 : 30);
	is($session->run(q{SELECT pgpool.drain('tls', '10 s')}), 't', 'the pool is empty');
	$session->run(q{SELECT pgpool.resume('tls')});
	ok(wait_until($local, sub { $session->run(q{SELECT pgpool.checkout('tls', '10 s')}); return -e PgpxFailing::order($local) ? 1 : 0 }, 0), 'no socket pair, many times')
	  or diag($session->error);
	$session->run('SELECT pgpool.checkin_all()');
	works('tls', 'the relay, then');
	ok(wait_until($secret, q{SELECT count(*) FROM pg_stat_activity WHERE application_name ~ 'pgpool_ext'}, 1), 'one connection is there');
}

$_->quit foreach $session, $other;
ok(wait_until($local, 'SELECT sum(descriptors) - ' . descriptors_wanted() . ' FROM pgpool.workers', '0', 20), 'the worker has no descriptor too many');
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

# Failures of system calls, libc and libpq functions that hardly ever fail: threads,
# sockets, pipes, memory. The affected session receives an error, other sessions are
# not affected, nothing is left behind, and the next attempt succeeds.
use strict;
use warnings;

use Errno qw(ENOSPC EAGAIN ECONNREFUSED EINTR EMFILE ENOMEM EPIPE ETIMEDOUT ETOOMANYREFS);
use IO::Socket::INET;
use IPC::Run;
use PgpxClock;
use PgpxFailing;
use PgpxFakeServer;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
PgpxFailing::skip_all_without();

# (The server is made first, because its processes inherit the pipes of existing sessions.)
my $fake = PgpxFakeServer->new(silent => sub { $_[0]->receive; sleep 3600 });
my $remote = remote_node('remote', conf => ['log_min_messages = debug2']);    # logs cancel requests
my $local = local_node('local', start => 0);

# autovacuum would wake the postmaster
$local->append_conf('postgresql.conf', 'autovacuum = off');

# --- at server start
fail_next($local, 'socketpair', process => 'all', errno => EMFILE);
is(failing($local, sub { $local->start(fail_ok => 1) }), 0, 'no control socket: server does not start');
like(slurp_file($local->logfile), qr/FATAL: .*could not create control socket of pgpool_ext: Too many open files/, 'no control socket: log has the reason');
failing($local, sub { with_clock($local, sub { $local->start }) });

my %quick = (pool_size => 2, retry_min => '10 ms', retry_max => '50 ms');
make_pool($local, $remote, server => 'one', options => {%quick});
make_pool($local, $remote, server => 'named', options => { %quick, host => 'localhost' });
make_pool($local, $remote, server => 'started', options => { %quick, start_commands => 'SET geqo = on' });
my ($session, $other) = map { PgpxSession->new($local) } 1 .. 2;

sub works
{
	my ($server, $name) = @_;

	return ok(wait_until($local, sub { $other->run("SELECT a FROM pgpool.query('$server', 'select 42') AS t(a int)") }, '42', 30), "$name: pool works again")
	  || diag($other->error);
}

sub logs
{
	my ($since, $pattern, $name) = @_;

	return ok(wait_until($local, sub { slurp_file($local->logfile, $since) =~ $pattern ? 1 : 0 }, 1, 30), $name)
	  || diag(slurp_file($local->logfile, $since));
}

works('one', 'without failures');

# --- the worker cannot set itself up, or cannot watch a socket: it exits, and the next
# one succeeds
foreach my $case (
	[ 'epoll_create1', qr/FATAL: .*pgpool_ext could not initialize its worker: Too many open files/ ],
	[ 'epoll_ctl', qr/ERROR: .*pgpool_ext could not add a socket to its event loop: Too many open files/ ])
{
	my ($function, $said) = @$case;
	my $log = -s $local->logfile;

	# close all connections, whose end would call the function, too
	is($session->run(q{SELECT pgpool.drain('one', '10 s')}), 't', "$function: pool is empty");
	fail_next($local, $function, errno => EMFILE);
	terminate($local, worker_pid($local)) unless $function eq 'epoll_ctl';
	$session->run(q{SELECT pgpool.resume('one'); SELECT pgpool.try_checkout('one')});
	logs($log, $said, "$function: worker logs the reason");

	# a postmaster of version 15 can miss the exit of a process just before it sleeps,
	# and then sleeps up to a minute, or until a client connects
	ok(wait_until($local, sub { worker_pid($local) ne '' ? 1 : 0 }, 1, 30), "$function: new worker runs");
	works('one', $function);
}
$session->run('SELECT pgpool.checkin_all()');

# --- the postmaster misses the exit of the worker: a waiter wakes it
SKIP:
{
	skip 'postmasters from version 16 on do not miss it', 1 if $local->safe_psql('postgres', 'SHOW server_version_num') >= 160000;
	my ($postmaster) = slurp_file($local->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	my $worker = worker_pid($local);
	my @leases = map { lease($session, 'one') } 1 .. 2;
	my ($answer, $error);

	# the only statement of its session: before a second one the server sets timers,
	# which would wake it
	my $waiter = IPC::Run::start([ 'psql', '-XAtq', '-d', $local->connstr('postgres'), '-c', q{SELECT pgpool.checkout('one', '25 s')} ], '>', \$answer, '2>', \$error);
	ok(wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'one'}, 1), 'session waits');
	stop_before_sleep($local, $postmaster);
	kill 'HUP', $postmaster;	# the postmaster may already be asleep
	ok(wait_until($local, sub { is_stopped_before_sleep($local, $postmaster) }, 1), 'postmaster is about to sleep for a minute');
	$session->run("SELECT pg_terminate_backend($worker)");
	ok(wait_until($local, sub { -e "/proc/$worker" ? 0 : 1 }, 1), 'worker has exited, and the postmaster has missed it');
	stop_before_sleep($local);
	$waiter->finish;
	like($answer . $error, qr/^\d+$/, 'new worker runs, and the waiter is granted a connection');
	$session->run('SELECT pgpool.checkin_all()');
	works('one', 'after the postmaster has missed an exit');
}

# --- a host name lookup, a login, or its start commands cannot begin
foreach my $case (
	[ named => 'pthread_create', { errno => EAGAIN }, '53000', qr/DETAIL:  The pool worker could not start a thread for the lookup of the host name\.$/m ],
	[ named => 'getnameinfo', { times => 4 }, '08001', qr/found no address/ ],
	[ named => 'PQconnectStartParams', {}, '53200', qr/out of memory/ ],
	[ named => 'pthread_create', { errno => EAGAIN, skip => 1 }, '53000', qr/DETAIL:  The pool worker could not start a thread for the login\.$/m ],
	[ one => 'pthread_create', { errno => EAGAIN }, '53000', qr/DETAIL:  The pool worker could not start a thread for the login\.$/m ],
	[ one => 'pthread_create', { errno => EAGAIN, skip => 2 }, '53000', qr/DETAIL:  The pool worker could not start a thread for the login\.$/m ],
	[ one => 'PQgssEncInUse', {}, '0A000', qr/connection to server "one" is encrypted in a way that is not supported\n.*GSS encryption/ ],
	[ started => 'PQsendQuery', {}, '08001', qr/could not connect to server "started"/ ])
{
	my ($server, $function, $how, $sqlstate, $said) = @$case;
	my $name = join ' ', $function, %$how;

	# close all connections that other sessions could use, and open none of another pool,
	# which could fail instead
	is($session->run("SELECT bool_and(pgpool.drain(s, '10 s')) FROM unnest('{one,named,started}'::text[]) AS s"), 't', "$name: pools are empty");
	fail_next($local, $function, %$how);
	$session->run("SELECT pgpool.resume('$server'); SELECT pgpool.checkout('$server', '10 s')");
	ok($session->sqlstate eq $sqlstate && $session->error =~ $said, "$name: waiter receives the error") or diag($session->error);
	unlink PgpxFailing::order($local);
	$session->run('SELECT pgpool.checkin_all()');
	works($server, $name);
}
$session->run("SELECT pgpool.resume(s) FROM unnest('{one,named,started}'::text[]) AS s");
check_invariants($local);

{
	my $fresh = PgpxSession->new($local);

	fail_next($local, 'PQconninfoParse', process => 'session');
	$fresh->fails(q{CREATE SERVER two FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host 'x')}, 'HV001', qr/out of memory/, 'out of memory for the list of options is an error');
	$fresh->run(q{CREATE SERVER two FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host 'x')});
	is($fresh->error, '', 'next attempt succeeds');
	$fresh->quit;
}

# --- a session cannot create a socket pair or send its request; the worker cannot send
# its reply
{
	my $fresh = PgpxSession->new($local);

	fail_next($local, 'socketpair', process => 'session', errno => EMFILE);
	$fresh->fails(q{SELECT pgpool.checkout('one', '10 s')}, '53000', qr/could not create a socket pair: Too many open files/, 'session without a socket pair receives an error');
	is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '0', 'failed checkout leaves no lease');
	fail_next($local, 'sendmsg', process => 'session', errno => ETOOMANYREFS);
	like($fresh->run(q{SELECT pgpool.checkout('one', '10 s')}), qr/^\d+$/, 'session waits while too many descriptors are in flight') or diag($fresh->error);
	ok(has_failed($local), 'request was sent again');
	$fresh->run('SELECT pgpool.checkin_all()');
	$fresh->quit;

	# no epoll set, and a socket that cannot be added to it
	$fresh = PgpxSession->new($local);
	fail_next($local, 'epoll_create1', process => 'session', errno => EMFILE);
	$fresh->fails(q{SELECT pgpool.checkout('one', '10 s')}, '53000', qr/could not wait for pooled connections: Too many open files/, 'session without an epoll set receives an error');
	is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '0', 'failed checkout leaves no lease without an epoll set');
	fail_next($local, 'epoll_ctl', process => 'session', errno => ENOSPC);
	$fresh->fails(q{SELECT a FROM pgpool.query('one', 'select pg_sleep(600)::text') AS t(a text)}, '53000', qr/could not wait for a pooled connection: No space left on device/, 'session that cannot wait for a socket receives an error');
	$fresh->quit;

	# the worker cannot send a socket, because too many descriptors are in flight
	$fresh = PgpxSession->new($local);
	fail_next($local, 'sendmsg', process => 'worker', errno => ETOOMANYREFS);
	like($fresh->run(q{SELECT pgpool.checkout('one', '10 min')}), qr/^\d+$/, 'session asks again if the worker cannot send a socket') or diag($fresh->error);
	ok(has_failed($local), 'reply of the worker has failed');
	$fresh->run('SELECT pgpool.checkin_all()');
	$fresh->quit;

	# the next connection is tried without an error
	$fresh = PgpxSession->new($local);
	fail_next($local, 'sendmsg', process => 'session', errno => EPIPE);
	is($fresh->run(q{SELECT a FROM pgpool.query('one', 'select 7') AS t(a int)}) . $fresh->error, '7', 'failed request: another connection is used');
	$fresh->quit;

	# the conninfo cannot be sent
	$fresh = PgpxSession->new($local);
	$local->safe_psql('postgres', q{ALTER SERVER one OPTIONS (ADD keepalives_idle '100')});
	fail_next($local, 'sendmsg', process => 'session', errno => EPIPE);
	$fresh->fails(q{SELECT pgpool.checkout('one', '10 s')}, '08006', qr/could not send the options of server "one" to the pool worker: Broken pipe/, 'conninfo that cannot be sent is an error that names the reason');
	like($fresh->run(q{SELECT pgpool.checkout('one', '10 s')}), qr/^\d+$/, 'next checkout sends the conninfo') or diag($fresh->error);
	$local->safe_psql('postgres', q{ALTER SERVER one OPTIONS (DROP keepalives_idle)});
	$fresh->quit;

	# a reply that cannot be received: the same, and the next request has a new socket
	# pair
	$fresh = PgpxSession->new($local);
	fail_next($local, 'recvmsg', process => 'session', errno => EPIPE);
	is($fresh->run(q{SELECT a FROM pgpool.query('one', 'select 8') AS t(a int)}) . $fresh->error, '8', 'failed reply: another connection is used');
	ok(has_failed($local), 'receiving has failed');
	$fresh->quit;

	# a lost reply: until the checkout times out, or operation_timeout
	$fresh = PgpxSession->new($local);
	fail_next($local, 'sendmsg', process => 'worker', errno => EPIPE);
	$fresh->fails(q{SELECT pgpool.checkout('one', '500 ms')}, '55P03', qr/no connection to server "one" became available within 500 ms/, 'lost reply: checkout times out');
	like($fresh->run(q{SELECT pgpool.checkout('one', '20 s')}), qr/^\d+$/, 'next request is answered') or diag($fresh->error);
	$fresh->quit;
	$local->safe_psql('postgres', q{ALTER SERVER one OPTIONS (ADD operation_timeout '300 ms')});
	$fresh = PgpxSession->new($local);
	fail_next($local, 'sendmsg', process => 'worker', errno => EPIPE);
	is($fresh->run(q{SELECT a FROM pgpool.query('one', 'select 8') AS t(a int)}) . $fresh->error, '8', 'lost reply: another connection is used after operation_timeout');
	ok(has_failed($local), 'reply was lost');
	$local->safe_psql('postgres', q{ALTER SERVER one OPTIONS (DROP operation_timeout)});
	$fresh->quit;
}
works('one', 'requests and replies');

# --- a login without a password is refused, and its Terminate cannot be sent
{
	my $app = PgpxSession->new($local, user => 'app');

	make_pool($local, $remote, server => 'unasked', options => { %quick, host => $remote->host });
	fail_next($local, 'PQfinish');
	$app->fails(q{SELECT pgpool.checkout('unasked', '10 s')}, '2F003', qr/must be authenticated by a password/, 'login without a password is refused without waiting for Terminate to be sent');
	ok(has_failed($local), 'Terminate could not be sent');
	$app->quit;
}
works('one', 'Terminate that cannot be sent');

# --- signals that interrupt a call
foreach my $function (qw(send recv))
{
	fail_next($local, $function, process => 'session', errno => EINTR);
	is($session->run(q{SELECT a FROM pgpool.query('one', 'select 9') AS t(a int)}) . $session->error, '9', "$function: interrupted call is repeated");
	ok(has_failed($local), "$function: call was interrupted");
}

# --- a remote server that sends without a pause: reading is bounded in bytes and in
# time
{
	make_pool($local, $fake, server => 'endless', remote_dbname => 'silent',
		options => { %quick, operation_timeout => '500 ms', notices => 'ignore', sslmode => PgpxFakeServer::sslmode() });
	my $lease = lease($session, 'endless');

	$session->start("SET statement_timeout = '1 h'; SELECT pgpool.exec($lease, 'select 1')");
	ok(wait_until($local, q{SELECT state FROM pgpool.leases WHERE server = 'endless'}, 'active'), 'statement runs');
	send_endless_notices($local, $session->pid);
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish;
	$session->failed('57014', qr/canceling statement/, 'statement with endless data can be cancelled');
	$session->run("RESET statement_timeout; SELECT pgpool.exec($lease, 'select 1')", 30);
	$session->failed('08006', qr/a cancelled statement did not end within operation_timeout/i, 'lease is lost at operation_timeout');
	send_endless_notices($local);
	$session->run("SELECT pgpool.checkin($lease)");

	$lease = lease($session, 'endless');
	$session->run("SELECT pgpool.send($lease, 'select 1')");
	send_endless_notices($local, $session->pid);
	$session->run("SELECT pgpool.checkin($lease)", 30);
	like($session->error, qr/WARNING: .*lease $lease was returned with a statement in flight, which is cancelled/, 'lease with endless data in flight can be returned');
	send_endless_notices($local);
}

# --- a socket that accepts no data: a message that was not begun counts as not written
{
	my $fresh = PgpxSession->new($local);
	my $lease = lease($fresh, 'one');
	my $pid = $fresh->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)");

	$remote->safe_psql('remote_db', 'CREATE TABLE taken (a int); GRANT ALL ON taken TO remote_app');
	foreach my $sql ("'insert into taken values (1)'", "'insert into taken values (\$1)', 1")
	{
		fail_next($local, 'send', process => 'session', errno => EAGAIN, times => 1_000_000_000);
		$fresh->run(q{SET statement_timeout = '300 ms'});
		$fresh->fails("SELECT pgpool.exec($lease, $sql)", '57014', qr/statement timeout/, "$sql: statement cannot be sent");
		unlink PgpxFailing::order($local);
		$fresh->reset_statement_timeout;
		is($fresh->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)") . $fresh->error, $pid, "$sql: lease stays usable");
	}
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM taken'), '0', 'no statement was executed');

	# a reset that cannot be sent: the connection closes without waiting
	fail_next($local, 'send', process => 'session', errno => EAGAIN, times => 1_000_000_000);
	$fresh->run("SELECT pgpool.checkin($lease)");
	unlink PgpxFailing::order($local);
	is($fresh->error . $local->safe_psql('postgres', "SELECT count(*) FROM pgpool.connections WHERE remote_pid = $pid AND state <> 'closing'"), '0', 'connection closes if the reset cannot be sent');

	# a reset in front of a pipelined statement cannot be sent: the statement runs in
	# another session
	my $waiter = PgpxSession->new($local);
	make_pool($local, $remote, server => 'single', options => { %quick, pool_size => 1 });
	$lease = lease($fresh, 'single');
	$fresh->run("SELECT pgpool.exec($lease, 'set work_mem = ''7MB''')");
	$waiter->start(q{SELECT a FROM pgpool.query('single', 'show work_mem') AS t(a text)});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'single'}, '1'), 'session waits with a pending statement');
	fail_next($local, 'sendmsg', process => 'session', errno => EAGAIN);
	$fresh->run("SELECT pgpool.checkin($lease)");
	is($waiter->finish(60) . $waiter->error, '4MB', 'pending statement runs in a clean session');
	ok(has_failed($local), 'hand-over has failed');

	# the same if the waiter is cancelled before it wakes: the next session must not
	# be granted the connection before its reset
	$lease = lease($fresh, 'single');
	$fresh->run("SELECT pgpool.exec($lease, 'set work_mem = ''7MB''')");
	$waiter->start(q{SELECT a FROM pgpool.query('single', 'show work_mem') AS t(a text)});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'single'}, '1'), 'session waits again with a pending statement');
	kill 'STOP', $waiter->pid;
	fail_next($local, 'sendmsg', process => 'session', errno => EAGAIN);
	$fresh->run("SELECT pgpool.checkin($lease)");
	ok(has_failed($local), 'hand-over has failed again');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
	kill 'CONT', $waiter->pid;
	$waiter->finish(60);
	$waiter->failed('57014', qr/canceling statement/, 'waiter is cancelled');
	is($fresh->run(q{SELECT a FROM pgpool.query('single', 'show work_mem') AS t(a text)}) . $fresh->error, '4MB', 'next session is granted a clean remote session');
	$local->safe_psql('postgres', 'DROP SERVER single CASCADE');
	$waiter->quit;
	$fresh->quit;
}

# --- cancel requests that cannot be sent are repeated, and not counted
foreach my $function (qw(calloc pthread_create), libpq_cancels() ? () : qw(PQgetCancel socket connect))
{
	my $cancels = q{SELECT cancels FROM pgpool.stats WHERE server = 'one'};
	my $lease = lease($session, 'one');

	$session->run("SELECT pgpool.exec($lease, 'select 1')");
	my $sent = $local->safe_psql('postgres', $cancels);
	my $log = -s $remote->logfile;
	fail_next($local, $function, errno => EAGAIN);
	cancel_running($local, $session, "SELECT pgpool.exec($lease, 'select pg_sleep(600)')", "$function: statement is cancelled locally");
	$session->run('SELECT pgpool.checkin_all()', 30);
	ok(has_failed($local), "$function: call has failed");
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.600' AND state = 'active' AND pid <> pg_backend_pid()}, 0, 30), "$function: statement ends on the remote server");
	ok(wait_until($local, sub {
		my $received = () = slurp_file($remote->logfile, $log) =~ /processing cancel request/g;

		return $received > 0 && $local->safe_psql('postgres', $cancels) == $sent + $received ? 1 : 0;
	}, 1), "$function: only the cancel requests that were sent are counted");
	works('one', $function);
}
check_invariants($local);
stats_add_up($local);

# --- the worker exits, and its first cancel request fails: the second one succeeds
{
	my $running = q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.604' AND state = 'active' AND pid <> pg_backend_pid()};

	$session->start(q{SELECT pgpool.exec('one', 'select pg_sleep(604)')});
	ok(wait_until($remote, $running, 1), 'statement runs before the worker exits');
	fail_next($local, 'pthread_create', errno => EAGAIN);
	terminate($local, worker_pid($local));
	$session->finish(30);
	$session->failed('08006', qr/worker was restarted/, 'lease reports the restart of the worker');
	ok(wait_until($remote, $running, 0, 30), 'statement is cancelled');
	ok(has_failed($local), 'first attempt has failed');
	works('one', 'exit of the worker');
}

# --- cancel requests that do not end: neither other pools nor a worker that exits wait for
# their threads
{
	my $worker = worker_pid($local);
	my $threads = sub { return threads_of($worker) };
	my @callers = map { PgpxSession->new($local) } 1 .. 5;

	make_pool($local, $remote, server => 'cancelled', options => { %quick, pool_size => 5, operation_timeout => '2s' });
	hold_logins($local, 'PQcancel');
	$_->start(q{SELECT pgpool.exec('cancelled', 'select pg_sleep(605)')}) foreach @callers;
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.605' AND state = 'active' AND pid <> pg_backend_pid()}, 5), 'five statements run');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $_->pid . ')') foreach @callers;
	$_->finish(30) foreach @callers;
	$_->failed('57014', qr/canceling statement/, 'statement is cancelled locally') foreach @callers;
	ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'cancelled'}, 0), 'connections are closed at operation_timeout');
	ok(wait_until($local, $threads, 5), 'cancel requests are abandoned');
	$session->run(q{SELECT pgpool.reconnect('one')});
	works('one', 'another pool connects meanwhile');
	ok(wait_until($local, $threads, 5), 'threads have not ended meanwhile');
	hold_logins($local);
	ok(wait_until($local, $threads, 0), 'threads end');
	ok(wait_until($local, 'SELECT sum(descriptors) - ' . descriptors_wanted() . ' FROM pgpool.workers', '0', 30), 'sockets of the threads are closed');
	$_->quit foreach @callers;
	works('cancelled', 'pool opens other connections');

	$session->start(q{SELECT pgpool.exec('one', 'select pg_sleep(606)')});
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.606' AND state = 'active' AND pid <> pg_backend_pid()}, 1), 'statement runs');
	hold_logins($local, 'PQcancel');
	terminate($local, $worker);
	ok(wait_until($local, sub { my $pid = worker_pid($local); $pid ne '' && $pid ne $worker ? 1 : 0 }, 1, 30), 'worker exits without waiting for its cancel request');
	hold_logins($local);
	$session->finish(30);
	$session->failed('08006', qr/worker was restarted/, 'lease reports the restart of the worker');
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE query ~ 'pg_sleep.60[56]' AND pid <> pg_backend_pid()});
	works('one', 'next worker works');
	check_invariants($local);
}

# --- locks: the worker cannot open its connection for pings, or send a ping; the ttl is
# long
$session->run(q{SELECT pgpool.lock_setup('started')});
my $token = $session->run(q{SELECT pgpool.lock('started', 'a', ttl => '10 min')});
ok(wait_until($local, 'SELECT last_ping IS NOT NULL FROM pgpool.locks', 't'), 'lock is held and pinged');
foreach my $case (
	[ PQconnectStartParams => qr/out of memory/ ],
	[ pthread_create => qr/could not start a thread for the login/ ],
	[ PQsendQuery => qr// ],
	[ PQsendQueryParams => qr// ])
{
	my ($function, $said) = @$case;
	my $log = -s $local->logfile;

	fail_next($local, $function);
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'});
	let_time_pass($local, 2);
	logs($log, qr/cannot ping the locks of server "started".*\n.*$said/, "$function: reason is logged");
	let_time_pass($local, 2);
	logs($log, qr/pings the locks of server "started" .* again/, "$function: lock is pinged again");
	ok(has_failed($local), "$function: call has failed");
}
# (the host of a login that computes, or waits for other such logins, has accepted the
# connection, so it may use all of the time)
{
	my $log = -s $local->logfile;
	my $next = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die "no socket: $!";
	my $gone_on = sub { return scalar grep { $next->accept } 1 .. 5 };
	$next->blocking(0);
	my %list = (host => '127.0.0.1,127.0.0.1', port => $remote->port . ',' . $next->sockport, sslmode => over_tls() ? 'require' : 'disable');

	make_pool($local, $remote, server => 'listed', options => { %quick, %list });
	my $listed = $session->run(q{SELECT pgpool.lock('listed', 'b', ttl => '10 min')});
	ok(wait_until($local, q{SELECT last_ping IS NOT NULL FROM pgpool.locks WHERE name = 'b'}, 't'), 'lock on a server with several hosts is held and pinged');
	hold_logins($local, 'remote_db');
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'});
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, 2), 'two logins for pings compute');
	let_time_pass($local, 11);
	logs($log, qr/cannot ping the locks of server "$_".*\n.*The connection attempt did not end within .*: what the remote server asks for takes longer to compute/, "$_: log names the login that computes for long")
	  foreach qw(started listed);
	hold_logins($local);
	logs($log, qr/pings the locks of server "$_" .* again/, "$_: lock is pinged again") foreach qw(started listed);
	is($session->run(q{SELECT pgpool.prewarm('listed', 2)}) . $session->error, '2', 'listed: pool opens a connection');
	$gone_on->();
	is($session->run("SELECT pgpool.unlock('listed', 'b', $listed)"), 't', 'listed: lock is released');
}
is($session->run("SELECT pgpool.lock_valid('started', 'a', $token)"), 't', 'lock is still held');
fail_next($local, 'clock_gettime', process => 'session', times => 3);
is($session->run("SELECT pgpool.lock_valid('started', 'a', $token)"), 't', 'lock is valid by the other clock if CLOCK_BOOTTIME is missing');
is($session->run("SELECT pgpool.unlock('started', 'a', $token)"), 't', 'lock is released');

# --- TLS: the socket pair of the relay
{
	my $secret = remote_node('secret', tls => 1);

	make_pool($local, $secret, server => 'tls', options => { %quick, sslmode => 'require' });
	fail_next($local, 'socketpair', errno => EMFILE);
	$session->fails(q{SELECT pgpool.checkout('tls', '10 s')}, '53000', qr/the pool worker could not create a socket pair/, 'missing socket pair for the relay is reported to the waiter');
	works('tls', 'relay');

	# repeatedly: file descriptors that were not opened must not stay counted
	fail_next($local, 'socketpair', errno => EMFILE, times => over_tls() ? 60 : 30);
	is($session->run(q{SELECT pgpool.drain('tls', '10 s')}), 't', 'pool is empty');
	$session->run(q{SELECT pgpool.resume('tls')});
	ok(wait_until($local, sub { $session->run(q{SELECT pgpool.checkout('tls', '10 s')}); return -e PgpxFailing::order($local) ? 1 : 0 }, 0), 'socket pair fails many times')
	  or diag($session->error);
	$session->run('SELECT pgpool.checkin_all()');
	works('tls', 'relay after many failures');
	ok(wait_until($secret, q{SELECT count(*) FROM pg_stat_activity WHERE application_name ~ 'pgpool_ext'}, 1), 'one connection is open');
}

$_->quit foreach $session, $other;
ok(wait_until($local, 'SELECT sum(descriptors) - ' . descriptors_wanted() . ' FROM pgpool.workers', '0', 20), 'worker has no superfluous file descriptor');
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

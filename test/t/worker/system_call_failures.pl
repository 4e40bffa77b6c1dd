# Failures of system calls, libc and libpq functions that hardly ever fail: threads,
# sockets, pipes, memory. The affected session receives an error, other sessions are
# not affected, nothing is left behind, and the next attempt succeeds.
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

# "overtaken" logs in when the file $said exists, and writes the messages that it receives
# to the journal. (The server is made first, because its processes inherit the pipes of
# existing sessions.)
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

# autovacuum would wake the postmaster
$local->append_conf('postgresql.conf', 'autovacuum = off');

# --- at server start
fail_next($local, 'socketpair', process => 'all', errno => EMFILE);
is(failing($local, sub { $local->start(fail_ok => 1) }), 0, 'no control socket: server does not start');
like(slurp_file($local->logfile), qr/FATAL: .*could not create control socket of pgpool_ext: Too many open files/, 'no control socket: log has the reason');
failing($local, sub { $local->start });

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
	[ 'pipe2', qr/FATAL: .*pgpool_ext could not initialize its worker: Too many open files/ ],
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
	[ named => 'calloc', {}, '53000', qr/out of memory/ ],
	[ named => 'strdup', {}, '53000', qr/out of memory/ ],
	[ named => 'strdup', { skip => 1 }, '53000', qr/out of memory/ ],
	[ named => 'getnameinfo', { times => 4 }, '08001', qr/found no address/ ],
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

# --- password commands: eight run, and no thread can be started for more than eight that
# wait for their ends
{
	my $folder = PostgreSQL::Test::Utils::tempdir;
	my @names = map { "printed$_" } 1 .. 18;
	my $runs = sub { return -e "$folder/runs" ? scalar(split /\n/, slurp_file("$folder/runs")) : 0 };

	$local->append_conf('postgresql.conf', "pgpool_ext.password_command = 'echo run >>$folder/runs; while [ ! -e $folder/go ]; do sleep 0.05; done; echo $REMOTE_APP_PASSWORD'");
	$local->reload;
	foreach my $name (@names)
	{
		make_pool($local, $remote, server => $name, options => { %quick, connect_timeout => '1min' });
		$session->run("ALTER USER MAPPING FOR CURRENT_USER SERVER $name OPTIONS (DROP password, ADD use_password_command 'true')");
	}
	my @waiters = map { PgpxSession->new($local) } @names;
	$waiters[$_]->start("SELECT pgpool.checkout('$names[$_]', '50 s')") foreach 0 .. $#names;
	ok(wait_until($local, q{SELECT sum(connecting) FROM pgpool.pools WHERE server ~ '^printed'}, scalar @names), 'all logins need a password');
	ok(wait_until($local, $runs, 8), 'eight commands run');
	fail_next($local, 'pthread_create', errno => EAGAIN, times => 1000);
	append_to_file("$folder/go", '');
	$_->finish(60) foreach @waiters;
	is(scalar(grep { $_->error !~ /could not start a thread for the (?:login|password command)/ } @waiters), 0, 'all waiters receive the error')
	  or diag(join "\n", map { $_->error } @waiters);
	unlink PgpxFailing::order($local);
	works($_, 'password commands') foreach @names[0, -1];
	$_->quit foreach @waiters;
	check_invariants($local);
}

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
	$fresh->fails(q{SELECT a FROM pgpool.query('one', 'select pg_sleep(0.3)::text') AS t(a text)}, '53000', qr/could not wait for a pooled connection: No space left on device/, 'session that cannot wait for a socket receives an error');
	$local->safe_psql('postgres', q{SELECT pgpool.reconnect('one')});
	$fresh->run(q{SELECT pgpool.checkin(pgpool.checkout('one', '10 s'))});
	fail_next($local, 'epoll_ctl', process => 'session', errno => ENOSPC);
	is($fresh->run(q{SELECT pgpool.checkin(pgpool.checkout('one', '10 s'))}) . $fresh->error, '', 'idle socket that cannot be registered is checked in another way');
	ok(has_failed($local), 'registration has failed');
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

# --- cancel requests that cannot be sent: the connection closes after operation_timeout
SKIP:
{
	skip 'libpq itself sends cancel requests', 1 if libpq_cancels();
	foreach my $case ([ socket => EMFILE ], [ connect => ECONNREFUSED ], [ PQgetCancel => ENOMEM ], [ send => EINTR ], [ recv => EINTR ], [ send => EPIPE ], [ recv => ETIMEDOUT ])
	{
		my ($function, $errno) = @$case;

		# over TLS the error would occur in the relay
		next if $errno == ETIMEDOUT && over_tls();

		$session->run(q{SELECT pgpool.reconnect('one')});
		if ($function eq 'PQgetCancel')
		{
			# the second call, when the connection is complete, makes the key of the first one invalid
			fail_next($local, $function, errno => $errno, skip => 1);
			ok(wait_until($local, sub { $session->run(q{SELECT pgpool.exec('one', 'select 1')}) }, '1'), 'connection without a cancel key');
		}
		my ($sent, $pid, $failed);
		foreach my $attempt (1 .. 10)
		{
			my $lease = lease($session, 'one');

			$sent = $local->safe_psql('postgres', q{SELECT sum(cancels) FROM pgpool.stats});
			$pid = $session->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)");
			$session->run("SET statement_timeout = '200 ms'");
			fail_next($local, $function, errno => $errno) unless $function eq 'PQgetCancel';
			# without a cancel key the statement ends by itself
			my $time = $function eq 'PQgetCancel' ? 2 : 20;
			$session->run("SELECT pgpool.exec($lease, 'select pg_sleep($time)')", 30);
			is($session->sqlstate, '57014', "$function: statement is cancelled locally");
			$session->reset_statement_timeout;
			$session->run('SELECT pgpool.checkin_all()', 30);
			$failed = has_failed($local);

			# The worker does not call recv if the statement ends before the connection of
			# the cancel request closes. Try again then.
			last if $failed || $function ne 'recv';
			unlink PgpxFailing::order($local);
		}
		ok($failed, "$function: call has failed");
		ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.(2|20)' AND state = 'active' AND pid <> pg_backend_pid()}, 0, 30), "$function: statement ends on the remote server");
		is($local->safe_psql('postgres', q{SELECT sum(cancels) FROM pgpool.stats}), $sent, "$function: unsent cancel request is not counted")
		  if $function eq 'PQgetCancel';

		# the request may be executed at any time, and hit the next session's statement
		ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE remote_pid = $pid", 0, 30), 'connection is not used again after a possibly lost request')
		  if $errno == ETIMEDOUT;
		works('one', $function);
	}

	# a full backlog of a Unix socket: the request was not begun, so there is nothing to
	# wait for
	make_pool($local, $remote, server => 'near', options => { %quick, host => $remote->host, operation_timeout => '1 h' });
	my $lease = lease($session, 'near');
	$session->run("SELECT pgpool.exec($lease, 'select 1'); SET statement_timeout = '200 ms'");
	fail_next($local, 'connect', errno => EAGAIN);
	$session->run("SELECT pgpool.exec($lease, 'select pg_sleep(600)')");
	$session->reset_statement_timeout;
	$session->run('SELECT pgpool.checkin_all()');
	ok(has_failed($local), 'full backlog: connect fails');
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.600' AND state = 'active' AND pid <> pg_backend_pid()}, 0), 'full backlog: second attempt ends the statement on the remote server');
	works('near', 'full backlog');
}
check_invariants($local);
stats_add_up($local);

# --- the worker exits, and its first cancel request fails: the second one succeeds
SKIP:
{
	my $running = q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.604' AND state = 'active' AND pid <> pg_backend_pid()};

	skip 'libpq itself sends cancel requests', 1 if libpq_cancels();
	$session->start(q{SELECT pgpool.exec('one', 'select pg_sleep(604)')});
	ok(wait_until($remote, $running, 1), 'statement runs before the worker exits');
	fail_next($local, 'socket', errno => EMFILE);
	terminate($local, worker_pid($local));
	$session->finish(30);
	$session->failed('08006', qr/worker was restarted/, 'lease reports the restart of the worker');
	ok(wait_until($remote, $running, 0, 30), 'statement is cancelled');
	ok(has_failed($local), 'first attempt has failed');
	works('one', 'exit of the worker');
}

# --- cancel requests sent by libpq over TLS compute in threads, four for each pool;
# neither other pools nor a worker that exits wait for them
SKIP:
{
	skip 'the extension itself sends cancel requests', 1 unless libpq_cancels();
	my $worker = worker_pid($local);
	my $threads = sub { return threads_of($worker) };
	my @callers = map { PgpxSession->new($local) } 1 .. 5;

	make_pool($local, $remote, server => 'cancelled', options => { %quick, pool_size => 5, operation_timeout => '2s' });
	hold_logins($local, 'PQcancelPoll');
	$_->start(q{SELECT pgpool.exec('cancelled', 'select pg_sleep(605)')}) foreach @callers;
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.605' AND state = 'active' AND pid <> pg_backend_pid()}, 5), 'five statements run');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $_->pid . ')') foreach @callers;
	$_->finish(30) foreach @callers;
	$_->failed('57014', qr/canceling statement/, 'statement is cancelled locally') foreach @callers;
	ok(wait_until($local, $threads, '0 4'), 'cancel requests are abandoned, four of them in threads');
	$session->run(q{SELECT pgpool.reconnect('one')});
	works('one', 'another pool connects meanwhile');
	ok(wait_until($local, $threads, '0 4'), 'threads have not ended meanwhile');
	hold_logins($local);
	ok(wait_until($local, $threads, '0 0'), 'threads end');
	ok(wait_until($local, 'SELECT sum(descriptors) - ' . descriptors_wanted() . ' FROM pgpool.workers', '0', 30), 'sockets of the threads are closed');
	$_->quit foreach @callers;
	works('cancelled', 'pool opens other connections');

	$session->start(q{SELECT pgpool.exec('one', 'select pg_sleep(606)')});
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.606' AND state = 'active' AND pid <> pg_backend_pid()}, 1), 'statement runs');
	hold_logins($local, 'PQcancelPoll');
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
	[ calloc => qr/out of memory/ ],
	[ pthread_create => qr/could not start a thread for the login/ ],
	[ PQsendQuery => qr// ],
	[ PQsendQueryParams => qr// ])
{
	my ($function, $said) = @$case;
	my $log = -s $local->logfile;

	fail_next($local, $function);
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'});
	logs($log, qr/cannot ping the locks of server "started".*\n.*$said/, "$function: reason is logged");
	logs($log, qr/pings the locks of server "started" .* again/, "$function: lock is pinged again");
	ok(has_failed($local), "$function: call has failed");
}
# (a login that computes, or waits for other such logins, has been accepted, so its host
# counts as responsive and the next one of the list is not tried)
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
	logs($log, qr/cannot ping the locks of server "$_".*\n.*The connection attempt did not end in time: what the remote server asks for takes longer to compute/, "$_: log names the login that computes for long")
	  foreach qw(started listed);
	hold_logins($local);
	logs($log, qr/pings the locks of server "$_" .* again/, "$_: lock is pinged again") foreach qw(started listed);
	is($session->run(q{SELECT pgpool.prewarm('listed', 2)}) . $session->error, '2', 'listed: pool opens a connection');
	is($gone_on->(), 0, 'listed: next host is not tried');
	is($session->run("SELECT pgpool.unlock('listed', 'b', $listed)"), 't', 'listed: lock is released');

	# five logins: one queues for a thread, and stays in that queue when its share of
	# connect_timeout is over
	make_pool($local, $remote, server => 'in_line', options => { %list, pool_size => 5, connect_timeout => '2s' });
	hold_logins($local, 'remote_db');
	$session->start(q{SELECT pgpool.prewarm('in_line', 5, timeout => '300 ms')});
	ok(wait_until($local, q{SELECT connecting FROM pgpool.pools WHERE server = 'in_line'}, 5), 'in_line: five logins are in progress');
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '4 0'), 'in_line: one login queues for a thread');
	is($session->finish(60) . $session->error, '0', 'in_line: prewarm times out');
	ok(wait_until($local, q{SELECT connects_failed FROM pgpool.stats WHERE server = 'in_line'}, 5), 'in_line: attempts time out');
	is($gone_on->(), 0, 'in_line: next host is not tried');
	hold_logins($local);
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '0 0'), 'in_line: threads end');
}
{
	my $app = PgpxSession->new($local, user => 'app');
	my $hba = $remote->data_dir . '/pg_hba.conf';
	my $before = slurp_file($hba);
	my $log;

	# a pinger that is no longer asked for a password; Terminate cannot be sent
	like($app->run(q{SELECT pgpool.lock('started', 'b', ttl => '10 min')}), qr/^\d+$/, 'user holds a lock') or diag($app->error);
	ok(wait_until($local, q{SELECT bool_and(last_ping IS NOT NULL) FROM pgpool.locks}, 't'), 'lock of the user is pinged');
	PgpxFailing::put($hba, "host all all 127.0.0.1/32 trust\n$before");
	$remote->reload;
	ok(wait_until($remote, q{SELECT count(*) > 0 FROM pg_hba_file_rules WHERE auth_method = 'trust' AND address IS NOT NULL}, 't'), 'remote server requests no password');
	hold_logins($local, 'remote_db');
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'});
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '2 0'), 'two logins for pings are in progress');
	$log = -s $local->logfile;
	fail_next($local, 'PQfinish');
	hold_logins($local);
	logs($log, qr/cannot ping the locks of server "started".*\n.*must be authenticated by a password/, 'ping without a password is refused without waiting for Terminate to be sent');
	ok(has_failed($local), 'Terminate could not be sent');
	PgpxFailing::put($hba, $before);
	$remote->reload;
	logs($log, qr/pings the locks of server "started" .* again/, 'lock is pinged again with a password');
	$app->quit;
}
is($session->run("SELECT pgpool.lock_valid('started', 'a', $token)"), 't', 'lock is still held');
fail_next($local, 'clock_gettime', process => 'session', times => 3);
is($session->run("SELECT pgpool.lock_valid('started', 'a', $token)"), 't', 'lock is valid by the other clock if CLOCK_BOOTTIME is missing');
is($session->run("SELECT pgpool.unlock('started', 'a', $token)"), 't', 'lock is released');

# --- a lookup that ends after its attempt has timed out
{
	$session->run(q{SELECT pgpool.drain('named'); SELECT pgpool.resume('named'); ALTER SERVER named OPTIONS (ADD connect_timeout '300ms')});
	hold_logins($local, 'localhost');
	$session->fails(q{SELECT pgpool.checkout('named', '10 s')}, '08001', qr/The lookup of the host name did not end within connect_timeout \(0\.3 s\)/, 'lookup exceeds connect_timeout');
	hold_logins($local);
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '0 0'), 'lookup ends later');
	$session->run(q{ALTER SERVER named OPTIONS (SET connect_timeout '30s')});
	works('named', 'late lookup');

	# a host with a colon that is not an address is looked up, too
	make_pool($local, $remote, server => 'colon', options => { %quick, host => 'x:y.invalid', connect_timeout => '300ms' });
	hold_logins($local, 'x:y.invalid');
	$session->fails(q{SELECT pgpool.checkout('colon', '10 s')}, '08001', qr/The lookup of the host name did not end within connect_timeout/, 'name with a colon is looked up in a thread');
	hold_logins($local);
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '0 0'), 'lookup of the name with a colon ends');
	$session->run(q{ALTER SERVER colon OPTIONS (SET connect_timeout '30s')});
	$session->fails(q{SELECT pgpool.checkout('colon', '10 s')}, '08001', qr/could not translate host name "x:y\.invalid"/, 'name with a colon has no address');
	$session->run(q{ALTER SERVER colon OPTIONS (SET host 'fe80::1%lo')});
	$session->fails(q{SELECT pgpool.checkout('colon', '10 s')}, '08001', qr/connection to server at "fe80::1%lo"/, 'address with a scope is not looked up');
}

# --- options change while the host of the old ones is looked up: nothing of the new
# options may be sent to the old host, neither by the pool nor by the pinger
{
	my $old = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die "no socket: $!";
	my $pinged = q{SELECT count(*) FROM pgpool.locks WHERE server = 'moved' AND last_ping > '%s'};

	make_pool($local, $remote, server => 'moved', options => { %quick, pool_size => 4, host => 'localhost', connect_timeout => '1min' });
	$session->run(q{SELECT pgpool.lock_setup('moved')});
	my $moved = $session->run(q{SELECT pgpool.lock('moved', 'a', ttl => '1 min')});
	ok(wait_until($local, sprintf($pinged, '-infinity'), 1), 'lock is pinged');
	$session->run('SELECT pgpool.checkin_all()');
	hold_logins($local, 'localhost');
	$session->run(q{ALTER SERVER moved OPTIONS (SET port '} . $old->sockport . q{')});
	$other->start(q{SELECT pgpool.checkout('moved', '1 min')});
	ok(wait_until($local, sub { threads_of(worker_pid($local)) =~ /^2 / ? 1 : 0 }, 1, 60), 'host is looked up by the pool and by the pinger');
	$session->run(q{ALTER SERVER moved OPTIONS (SET host '127.0.0.1', SET port '} . $remote->port . q{')});
	$session->start(q{SELECT a FROM pgpool.query('moved', 'select 1') AS t(a int)});
	like($other->finish(60), qr/^\d+$/, 'connection with the new options opens meanwhile') or diag($other->error);
	my $now = $local->safe_psql('postgres', 'SELECT now()');
	hold_logins($local);
	is($session->finish(60) . $session->error, '1', 'waiting call succeeds');
	ok(wait_until($local, sprintf($pinged, $now), 1, 60), 'lock is pinged again');
	ok(wait_until($local, sub { threads_of(worker_pid($local)) }, '0 0'), 'lookups have ended');
	ok(!IO::Select->new($old)->can_read(0.5), 'no connection to the old host is opened');
	is($session->run("SELECT pgpool.unlock('moved', 'a', $moved)"), 't', 'lock is released');
	$other->run('SELECT pgpool.checkin_all()');
}

# --- options change, and no session can publish them: the worker does not connect with
# the old ones for the waiters
{
	make_pool($local, $remote, server => 'unpublished', options => { %quick, pool_size => 1 });
	my $lease = lease($session, 'unpublished');
	$session->run("SELECT pgpool.exec($lease, 'select 1')");
	$other->start(q{SELECT a FROM pgpool.query('unpublished', 'select current_database()') AS t(a text)});
	ok(wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'unpublished'}, 1), 'unpublished: session waits');
	fail_next($local, 'sendmsg', process => 'session', errno => EAGAIN, times => 1_000_000_000);
	$local->safe_psql('postgres', q{ALTER SERVER unpublished OPTIONS (SET dbname 'postgres')});
	is($session->run("SELECT pgpool.checkin($lease)") . $session->error, '', 'unpublished: connection with the old options is returned');
	ok(wait_until($local, q{SELECT total, waiters FROM pgpool.pools WHERE server = 'unpublished'}, '0|1'), 'unpublished: connection with the old options closes');
	unlink PgpxFailing::order($local);
	is($other->finish(60) . $other->error, 'postgres', 'unpublished: waiter is granted a connection with the new options');
	is($local->safe_psql('postgres', q{SELECT connects FROM pgpool.stats WHERE server = 'unpublished'}), '2', 'unpublished: no superfluous connection was opened');
}

# --- the worker learns of new options and of the end of a lookup, or of a login, at
# the same time
{
	my $old = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die "no socket: $!";
	my $worker = worker_pid($local);
	my $busy = PgpxSession->new($local);

	# The worker is stopped in a recv for another pool. When it continues, it sees all events
	# of that time at once.
	my $at_once = sub {
		my ($server, $name, $change) = @_;

		ok(wait_until($local, sub { threads_of($worker) }, '1 0'), "$name is in progress");
		stop_in_recv($local, $worker);

		# the worker reads the answer to the reset of a lease
		$busy->start(q{DO $$ DECLARE lease bigint := pgpool.checkout('one'); BEGIN
			PERFORM pgpool.exec(lease, 'select 1'); PERFORM pgpool.checkin(lease); END $$});
		ok(wait_until($local, sub { is_stopped_in_recv($local, $worker) }, 1), "$name: worker is stopped in another pool's work");
		$session->run("ALTER SERVER $server OPTIONS ($change)");
		$session->start("SELECT a FROM pgpool.query('$server', 'select 1') AS t(a int)");
		ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = '$server'", 2), "$name: new options are published");
		hold_logins($local);
		ok(wait_until($local, sub { threads_of($worker) }, '0 0'), "$name: thread has ended");
		stop_in_recv($local);
		is($session->finish(60) . $session->error, '1', "$name: session that published is granted a connection");
		like($other->finish(60), qr/^\d+$/, "$name: earlier waiter is granted a connection") or diag($other->error);
		is($busy->finish(60) . $busy->error, '', "$name: statement of the other pool is answered");
		$_->run('SELECT pgpool.checkin_all()') foreach $session, $other;
	};

	make_pool($local, $remote, server => 'at_once', options => { %quick, connect_timeout => '1min', host => 'localhost', port => $old->sockport });
	hold_logins($local, 'localhost');
	$other->start(q{SELECT pgpool.checkout('at_once', '1 min')});
	$at_once->('at_once', 'a lookup', q{SET host '127.0.0.1', SET port '} . $remote->port . q{'});
	ok(!IO::Select->new($old)->can_read(0.5), 'no connection to the old host is opened');

	make_pool($local, $fake, server => 'overtaken', remote_dbname => 'overtaken', options => { %quick, connect_timeout => '1min', sslmode => PgpxFakeServer::sslmode() });
	$other->start(q{SELECT pgpool.checkout('overtaken', '1 min')});
	ok(wait_until($local, sub { -e $journal ? 1 : 0 }, 1), 'login begins');
	hold_logins($local, 'overtaken');
	append_to_file($said, '');
	$at_once->('overtaken', 'the end of a login', q{ADD start_commands 'set geqo = on'});
	my ($first, $rest) = slurp_file($journal) =~ /^(\d+) login\n(.*)/s;
	unlike($rest, qr/^$first set geqo/m, 'new start commands are not sent on the old connection');
	like($rest, qr/ set geqo/, 'new start commands are sent on the next connection');
	$busy->quit;
}

# --- abandoned lookups: at most sixteen for each user, and they look up no further
# names
{
	my $worker = worker_pid($local);
	my $dead = q{SELECT pgpool.checkout('dead', '10 s')};
	my $refused = qr/Too many host names are being looked up for attempts of this user that have ended/;

	make_pool($local, $remote, server => 'dead', options => { %quick, connect_timeout => '50ms', host => 'localhost,held.example' });
	make_pool($local, $remote, server => 'alive', options => { %quick, host => 'LOCALHOST' });
	hold_logins($local, 'localhost', 'held.example');
	ok(wait_until($local, sub { $session->run($dead); $session->error =~ $refused ? 1 : 0 }, 1, 60), 'attempts time out before their lookups until there are too many')
	  or diag($session->error);
	is($session->sqlstate, '53000', 'refused attempt is an error');
	ok(wait_until($local, sub { threads_of($worker) }, '16 0'), 'sixteen lookups are abandoned');
	is($local->safe_psql('postgres', q{SELECT a FROM pgpool.query('alive', 'select 1') AS t(a int)}, extra_params => [ '-U', 'app' ]), '1', 'names of another user are looked up');
	hold_logins($local, 'held.example');
	ok(wait_until($local, sub { threads_of($worker) }, '0 0'), 'abandoned lookup does not look up further names');
	hold_logins($local);
	works('alive', 'lookups');
}

# --- at most 48 names are looked up at a time for a user; the other lookups wait
{
	my $worker = worker_pid($local);

	make_pool($local, $remote, server => 'names', options => { host => 'LocalHost', pool_size => 60, connect_timeout => '10min' });
	hold_logins($local, 'LocalHost');
	$other->start(q{SELECT pgpool.prewarm('names', 60, '9 min')});
	ok(wait_until($local, sub { threads_of($worker) }, '48 0', 30), '48 names are looked up at a time');
	hold_logins($local);
	is($other->finish(600) . $other->error, 60, 'lookups that waited follow');
	is($local->safe_psql('postgres', q{SELECT connects_failed FROM pgpool.stats WHERE server = 'names'}), 0, 'no attempt has failed');
	$other->run(q{SELECT pgpool.drain('names', '30 s')});
}

# --- abandoned logins that compute: at most four for a pool with the same conninfo, and
# 64 for a user, whatever options and user mappings change
{
	my %hasty = (pool_size => 8, connect_timeout => '300ms', retry_min => '10 ms', retry_max => '10 ms');
	my @held = map { "held$_" } 0 .. 4;
	my $worker = worker_pid($local);
	my $threads = sub { return threads_of($worker) };
	my $before_it = qr/did not end within connect_timeout \(0\.3 s\): earlier logins of the pool are still computing their authentication/;

	# on a busy machine another attempt may be needed to reach the computation
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
		}, "0 $wanted"), "$wanted threads are abandoned");
		$session->run('SELECT pg_terminate_backend(' . $_->pid . ')') foreach values %callers;
		return;
	};
	# not every attempt reaches the point at which it has to wait, so attempts are repeated
	my $fails_with = sub {
		my ($server, $why, $name) = @_;

		ok(wait_until($local, sub {
			$session->run("SELECT pgpool.checkout('$server', '10 s')");
			return $session->sqlstate eq '08001' && $session->error =~ $why ? 1 : 0;
		}, 1), $name) or diag($session->error);
		return;
	};
	my $change_mappings = sub {
		$session->run("ALTER USER MAPPING FOR CURRENT_USER SERVER $_ OPTIONS (SET password '$REMOTE_APP_PASSWORD')") foreach @_;
		return;
	};

	# in a pool that is in use, and so stays the same with other options, new logins do
	# not queue behind logins with the old options
	make_pool($local, $remote, server => 'in_use', options => { %hasty, connect_timeout => '30s' });
	my $lease = lease($session, 'in_use');
	$session->run(qq{ALTER SERVER in_use OPTIONS (SET connect_timeout '$hasty{connect_timeout}')});
	hold_logins($local, 'remote_db');
	$leave_behind->(4, 'in_use');
	$session->run(q{ALTER SERVER in_use OPTIONS (SET dbname 'postgres', SET connect_timeout '1min')});
	is($other->run(q{SELECT a FROM pgpool.query('in_use', 'select 1') AS t(a int)}) . $other->error, '1', 'pool connects at once with other options');
	ok(wait_until($local, $threads, '0 4'), 'abandoned logins still compute');
	hold_logins($local);
	ok(wait_until($local, $threads, '0 0'), 'abandoned logins end');
	$session->run("SELECT pgpool.checkin($lease)");

	make_pool($local, $remote, server => $_, options => \%hasty, $_ eq 'held4' ? (remote_dbname => 'template1') : ()) foreach @held;
	$session->run('ALTER SERVER held4 OWNER TO app; GRANT EXECUTE ON FUNCTION pgpool.prewarm TO app');
	make_pool($local, $remote, server => 'newcomer', remote_dbname => 'postgres', options => \%quick);
	hold_logins($local, 'remote_db', 'template1');
	$leave_behind->(20, @held);
	$change_mappings->('held1');
	$leave_behind->(24, 'held1');
	$fails_with->('held1', $before_it, 'further login of the pool has to wait');
	works('newcomer', 'pool without abandoned logins');
	check_invariants($local);

	# the logins of a user that can change user mappings and create servers are limited
	$remote->safe_psql('postgres', 'CREATE DATABASE more_db OWNER remote_app');
	make_pool($local, $remote, server => $_, remote_dbname => 'more_db', options => \%hasty) foreach map { "more$_" } 0 .. 11;
	make_pool($local, $remote, server => 'of_others', remote_dbname => 'postgres', options => \%quick);
	hold_logins($local, 'remote_db', 'template1', 'more_db');
	$leave_behind->(68, map { "more$_" } 0 .. 10);
	my $too_many = qr/did not end within connect_timeout \(0\.3 s\): too many logins of this user are still computing their authentication/;
	$fails_with->('more11', $too_many, 'further server of the same user has to wait');
	$session->run("DROP USER MAPPING FOR CURRENT_USER SERVER held1; CREATE USER MAPPING FOR CURRENT_USER SERVER held1 OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')");
	$fails_with->('held1', $too_many, 'new user mapping does not lift the limit');
	ok(wait_until($local, $threads, '0 68'), 'no login has started another thread');
	is($local->safe_psql('postgres', q{SELECT a FROM pgpool.query('of_others', 'select 1') AS t(a int)}, extra_params => [ '-U', 'app' ]), '1', 'another user can connect');
	check_invariants($local);
	hold_logins($local, 'remote_db', 'template1');
	ok(wait_until($local, $threads, '0 24'), 'abandoned logins of these servers end');

	$session->run("ALTER SERVER $_ OPTIONS (SET connect_timeout '1min')") foreach @held;
	$session->start(q{SELECT pgpool.checkout('held2', '1 min')});
	$other->start(q{SELECT pgpool.checkout('held0', '1 min')});
	ok(wait_until($local, q{SELECT sum(connecting) FROM pgpool.pools}, 2), 'two logins queue for a thread');
	ok(wait_until($local, $threads, '0 24'), 'queued logins have no thread');
	hold_logins($local, 'remote_db');
	ok(wait_until($local, $threads, '0 20'), 'queued logins have no thread after the end of the logins of another user');
	hold_logins($local);
	like($_->finish(60), qr/^\d+$/, 'login succeeds when the abandoned logins have ended') or diag($_->error) foreach $session, $other;
	ok(wait_until($local, $threads, '0 0'), 'no thread is left');
	$_->quit foreach $session, $other;

	# The number of abandoned logins is also limited by the file descriptors of the worker,
	# apart from those of the server's own files: at most a third of them is for other
	# purposes than connections, and over TLS a login needs two.
	my $most = over_tls() ? 250 : 130;
	$local->append_conf('postgresql.conf', "max_files_per_process = $most");
	failing($local, sub { $local->restart });
	my ($postmaster) = split /\n/, slurp_file($local->data_dir . '/postmaster.pid');
	is(system('prlimit', '--pid', $postmaster, "--nofile=$most:$most"), 0, "limit is $most descriptors");
	terminate($local, worker_pid($local));
	ok(wait_until($local, 'SELECT state FROM pgpool.workers', 'running'), 'new worker has this limit');
	$worker = worker_pid($local);
	($session, $other) = map { PgpxSession->new($local) } 1 .. 2;
	$session->run("ALTER SERVER $_ OPTIONS (SET connect_timeout '300ms')") foreach @held;
	foreach (1 .. 3)
	{
		hold_logins($local, 'remote_db', 'template1');
		$leave_behind->(20, @held);
		hold_logins($local);
		ok(wait_until($local, $threads, '0 0'), 'abandoned logins end');
	}
	works('one', 'file descriptors of abandoned logins');
}

# --- busy polling (pgpool_ext.busy_poll) by at most half of the processors: the next
# process sleeps at once
SKIP:
{
	my $half = int((grep { /^processor\s*:/ } split /\n/, slurp_file('/proc/cpuinfo')) / 2);

	skip 'a machine with a single processor does not poll', 4 if $half < 1;
	skip 'over TLS sessions leave polling to the worker', 4 if over_tls() && $half < 2;
	skip "too many processors to occupy half of them", 4 if $half > 8;
	make_pool($local, $remote, server => 'poll', options => { %quick, pool_size => $half });
	my @pollers = map { PgpxSession->new($local) } 1 .. $half;
	my @leases = map { lease($_, 'poll') } @pollers;
	my $lease = lease($session, 'one');
	my $asleep = "SELECT wait_event IS NOT NULL FROM pg_stat_activity WHERE state = 'active' AND pid = " . $session->pid;

	$_->run('SET pgpool_ext.busy_poll = 1000') foreach @pollers, $session;
	stop_in_recv($local, map { $_->pid } @pollers, $session);
	$pollers[$_]->start("SELECT pgpool.exec($leases[$_], 'select pg_sleep(0.1)')") foreach 0 .. $#pollers;
	ok(wait_until($local, sub { join '', map { is_stopped_in_recv($local, $_->pid) } @pollers }, '1' x $half), 'half of the processors poll');
	$session->start("SELECT pgpool.exec($lease, 'select pg_sleep(600)')");
	ok(wait_until($local, $asleep), 'next session sleeps');
	is(is_stopped_in_recv($local, $session->pid), 0, 'next session has not polled');
	stop_in_recv($local);
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$_->finish, $_->run('SELECT pgpool.checkin_all()') foreach @pollers, $session;

	$lease = lease($session, 'poll');
	stop_in_recv($local, $session->pid);
	$session->start("SELECT pgpool.exec($lease, 'select pg_sleep(600)')");
	ok(wait_until($local, sub { is_stopped_in_recv($local, $session->pid) }, 1), 'session polls when the others have ended');
	stop_in_recv($local);
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish;
	$session->run('SELECT pgpool.checkin_all()');
	$_->quit foreach @pollers;
}

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

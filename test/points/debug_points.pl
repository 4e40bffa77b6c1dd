# Races at exact points: processes are stopped, ended and made to fail at debug points,
# which only the build for this suite has.
use strict;
use warnings;

use PgpxPoints;
use PgpxProxy;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $proxy = PgpxProxy->new($remote->port);
my $local = local_node('local', conf => ['restart_after_crash = on']);
make_pool($local, $remote, server => 'one', options => { pool_size => 1, retry_min => '10 ms' });

points_of($local);

sub works
{
	my ($name) = @_;

	return ok(wait_until($local, "SELECT a FROM pgpool.query('one', 'select 42') AS t(a int)", '42', 30), $name);
}

# Arm a debug point of the worker that runs, and wait until it has read the setting: it closes a
# connection in several rounds.
sub arm_worker
{
	my ($what) = @_;

	works("$what: pool has a connection");
	arm(debug_point => $what);
	is($local->safe_psql('postgres', q{SELECT pgpool.drain('one', '30 s')}), 't', "$what: it is closed");
	$local->safe_psql('postgres', q{SELECT pgpool.resume('one')});
	return;
}

# A holder; a session that waits behind it with a debug point armed; and another
# session.  The worker is stopped until the timeout, because it removes late waiters.
sub waiting
{
	my ($point, $timeout) = @_;
	my ($holder, $waiter, $next) = map { PgpxSession->new($local) } 1 .. 3;

	disarm();
	lease($holder, 'one');
	my @worker = $point eq 'timed_out' ? worker_pid($local) : ();
	$waiter->run("SET pgpool_ext.debug_point = '$point wait'");
	kill 'STOP', @worker;
	$waiter->start("SELECT pgpool.checkout('one', '$timeout')");
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';
	reached($point) if @worker;
	kill 'CONT', @worker;
	return ($holder, $waiter, $next);
}

# A release after the deadline of the first waiter, before it has left the queue: the next
# waiter is granted the connection.
{
	my ($holder, $waiter, $next) = waiting('timed_out', '100 ms');

	ok(reached('timed_out'), 'waiter times out');
	$next->run("SET pgpool_ext.debug_point = 'nothing wait'");
	$next->start("SELECT pgpool.checkout('one', '60 s')");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters WHERE pid = ' . $next->pid, 1), 'next session waits');
	$holder->run('SELECT pgpool.checkin_all()');
	like($next->finish, qr/^\d+$/, 'timeout and release: next session is granted the connection');
	check_invariants($local, 'timeout and release: invariants hold before the waiter has left the queue');
	resume('timed_out');
	$waiter->finish;
	$waiter->failed('55P03', qr/no connection/, 'timeout and release: waiter receives the error');
	is($local->safe_psql('postgres', 'SELECT timeouts FROM pgpool.stats'), '1', 'timeout and release: one timeout is counted');
	$local->safe_psql('postgres', 'SELECT pgpool.reset_stats()');
	$_->quit foreach $holder, $waiter, $next;
}
works('timeout and release: pool works');

# a timeout without a grant is counted once
{
	my ($holder, $waiter, $next) = waiting('timed_out', '100 ms');

	ok(reached('timed_out'), 'waiter times out without a grant');
	resume('timed_out');
	$waiter->finish;
	$waiter->failed('55P03', qr/no connection/, 'timeout alone: waiter receives the error');
	is($local->safe_psql('postgres', 'SELECT timeouts FROM pgpool.stats'), '1', 'timeout alone: one timeout is counted');
	$_->quit foreach $holder, $waiter, $next;
}

# a cancel or terminate at the moment of the grant: the connection is handed back
foreach my $case ([ 'cancelled', 'pg_cancel_backend', '57014' ], [ 'exit', 'pg_terminate_backend', '57P01' ])
{
	my ($point, $function, $sqlstate) = @$case;
	my ($holder, $waiter, $next) = waiting($point, '60 s');

	$local->safe_psql('postgres', "SELECT $function(" . $waiter->pid . ')');
	ok(reached($point), "$function reaches the waiter");
	$holder->run('SELECT pgpool.checkin_all()');
	is($local->safe_psql('postgres', 'SELECT pid FROM pgpool.leases'), $waiter->pid, 'waiter is granted a connection before it has left the queue');
	$next->start("SELECT pgpool.checkout('one', '60 s')");
	check_invariants($local, "$function: invariants hold before the waiter has left the queue");
	resume($point);
	$waiter->finish;
	is($waiter->sqlstate, $sqlstate, "$function: waiter receives the error") or diag($waiter->error);
	like($next->finish, qr/^\d+$/, "$function: next session is granted the connection");
	$_->quit foreach $holder, $waiter, $next;
}

# after the waiter has been cancelled and before it hands back its grant, no other
# session can lease the connection
{
	my ($holder, $waiter, $next) = waiting('cancelled', '60 s');

	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
	ok(reached('cancelled'), 'waiter is cancelled');
	$holder->run('SELECT pgpool.checkin_all()');
	$next->run("SET pgpool_ext.debug_point = 'nothing wait'");
	$next->start("SELECT pgpool.checkout('one', '60 s')");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1), 'next session waits');
	resume('cancelled');
	like($next->finish, qr/^\d+$/, 'next session is granted the connection that was handed back');
	$waiter->finish;
	$waiter->failed('57014', qr/canceling statement/, 'cancelled waiter receives the error');
	$_->quit foreach $holder, $waiter, $next;
}
works('cancel and grant: pool works');
check_invariants($local);

# A holder is terminated, idle and with a running query. Until its exit callback
# continues it keeps its lease.
foreach my $sql ("SELECT 1", "SELECT pgpool.exec((SELECT max(lease) FROM pgpool.leases), 'select pg_sleep(60)')")
{
	my ($holder, $next) = map { PgpxSession->new($local) } 1 .. 2;

	disarm();
	$holder->run("SET pgpool_ext.debug_point = 'exit wait'");
	lease($holder, 'one');
	$holder->start($sql);
	wait_until($local, "SELECT count(*) FROM pg_stat_activity WHERE pid = " . $holder->pid . " AND state = 'active' AND wait_event IS NOT NULL", 1)
	  if $sql =~ /sleep/;
	$local->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $holder->pid . ')');
	ok(reached('exit'), 'holder is terminated');
	$next->start("SELECT pgpool.checkout('one', '60 s')");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1), 'next session waits until the exit callback');
	check_invariants($local, 'holder ends: invariants hold');
	resume('exit');
	like($next->finish, qr/^\d+$/, 'next session is granted the connection');
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()", '0'),
		'nothing runs on the remote server');
	$_->quit foreach $holder, $next;
}
works('holders end: pool works');

# the worker exits, fails or crashes at points where it could leave something behind
foreach my $case (
	[ 'worker_starts exit', 0 ], [ 'worker_set_up exit', 0 ], [ 'worker_set_up error', 0 ],
	[ 'worker_connects error', 0 ], [ 'worker_connects exit', 0 ], [ 'granted error', 0 ], [ 'granted exit', 0 ],
	[ 'worker_starts crash', 1 ], [ 'worker_ends crash', 1 ], [ 'worker_connects crash', 1 ])
{
	my ($what, $crash) = @$case;
	my ($point) = $what =~ /^(\w+)/;
	my $worker = worker_pid($local);

	# a worker that ends before it is set up does not affect leases and waiters
	my ($holder, $waiter) = $what =~ /^worker_(?:starts|set_up) (?:exit|error)$/ ? map { PgpxSession->new($local) } 1 .. 2 : ();
	my $lease;

	if ($holder)
	{
		$lease = lease($holder, 'one');
		$waiter->start(q{SELECT pgpool.checkout('one', '60 s')});
		wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';

		# the next worker starts soon, and must not grant a connection before the waiter has been checked
		$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 0');
	}
	$holder ? arm(debug_point => $what) : arm_worker($what);
	if ($point =~ /^worker_(?:starts|set_up|ends)$/)
	{
		$local->psql('postgres', "SELECT pg_terminate_backend($worker)");
	}
	else
	{
		$local->psql('postgres', "SELECT pgpool.exec('one', 'select 1')");
	}
	ok(reached($point), "$what: worker reaches the point");
	if ($holder)
	{
		check_invariants($local, "$what: invariants hold without a worker");
		is($local->safe_psql('postgres', 'SELECT pid FROM pgpool.waiters'), $waiter->pid, "$what: waiter still waits");
		$holder->fails("SELECT pgpool.exec($lease, 'select 1')", '08006', qr/worker was restarted/, "$what: lease reports the restart of the worker");
		is($holder->run("SELECT pgpool.checkin($lease)") . $holder->error, '', "$what: lease can be returned");
		$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT -1');
		like($waiter->finish, qr/^\d+$/, "$what: waiter is granted a connection by the next worker");
		$_->quit foreach $holder, $waiter;
	}
	works("$what: pool works again");
	check_invariants($local, "$what: invariants hold");
}
arm(debug_point => '');

# A message that a worker has not read must be ignored after shared memory has been
# reinitialized, although a pool of another server has the same number.
{
	my $asker;
	my $next_life = sub {
		my $worker = worker_pid($local);

		kill 'KILL', $worker;
		return wait_until($local, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker' AND pid <> $worker", '1', 60);
	};

	make_pool($local, $remote, server => 'before', options => { dbname => 'postgres' });
	make_pool($local, $remote, server => 'after', options => { dbname => 'remote_db' });
	ok($next_life->(), 'reinitialization: server restarts for the first time');
	$asker = PgpxSession->new($local);
	lease($asker, 'before');
	foreach my $n (1 .. 3)
	{
		is($asker->run(q{SELECT pgpool.exec('before', 'select 1')}) . $asker->error, '1', 'reinitialization: pool works');
		kill 'STOP', worker_pid($local) if $n == 3;
		$local->safe_psql('postgres', 'ALTER SERVER before OPTIONS (' . ($n == 1 ? 'ADD' : 'SET') . " application_name 'before $n')");
	}
	my $pool = $local->safe_psql('postgres', 'SELECT pool_id FROM pgpool.pools');
	$asker->start(q{SELECT pgpool.checkout('before', '60 s')});
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1), 'reinitialization: conninfo is published and not read');
	arm(debug_point => 'worker_starts wait');
	ok($next_life->() && reached('worker_starts'), 'reinitialization: server restarts for the second time');
	$asker->quit;
	$asker = PgpxSession->new($local);
	$asker->start(q{SELECT a FROM pgpool.query('after', 'select current_database()') AS t(a text)});
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1), 'reinitialization: another pool is used');
	is($local->safe_psql('postgres', 'SELECT pool_id FROM pgpool.pools'), $pool, 'reinitialization: pool has the same number');
	resume('worker_starts');
	is($asker->finish(60) . $asker->error, 'remote_db', 'reinitialization: pool uses its own options');
	arm(debug_point => '');
	$asker->quit;
	$local->safe_psql('postgres', 'DROP SERVER before, after CASCADE');
}

# the state of a worker that starts or stops
foreach my $case ([ worker_starts => 'starting' ], [ worker_ends => 'stopping' ])
{
	my ($point, $state) = @$case;

	arm_worker("$point wait");
	$local->psql('postgres', 'SELECT pg_terminate_backend(' . worker_pid($local) . ')');
	ok(reached($point), "$point: worker reaches the point");
	is($local->safe_psql('postgres', 'SELECT state FROM pgpool.workers'), $state, "$point: worker is shown as $state");
	resume($point);
	works("$point: pool works again");
	arm(debug_point => '');
}

# A session is cancelled during its statement while the worker is about to end and reads
# no more work.
{
	my ($holder, $caller) = map { PgpxSession->new($local) } 1 .. 2;
	my $running = q{SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(601)' AND state = 'active'};

	make_pool($local, $remote, server => 'given_up', options => { pool_size => 1 });
	$holder->start(q{SELECT pgpool.exec('given_up', 'SELECT pg_sleep(601)')});
	ok(wait_until($remote, $running, '1'), 'statement runs');
	arm_worker('worker_connects wait');
	$caller->start(q{SELECT pgpool.exec('one', 'SELECT 1')});
	ok(reached('worker_connects'), 'worker connects');
	$local->safe_psql('postgres', 'SELECT pg_terminate_backend(' . worker_pid($local) . ')');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $holder->pid . ')');
	$holder->finish(30);
	$holder->failed('57014', qr/canceling statement/, 'holder is cancelled meanwhile');
	resume('worker_connects');
	is($caller->finish(60) . $caller->error, '1', 'waiter is granted a connection by the next worker');
	ok(wait_until($remote, $running, '0', 10), 'abandoned statement is cancelled');
	arm(debug_point => '');
	$local->safe_psql('postgres', 'DROP SERVER given_up CASCADE');
	$_->quit foreach $holder, $caller;
}

# a session uses a retired pool when the worker is about to forget it
{
	my $caller = PgpxSession->new($local);
	my $pool = q{SELECT pool_id FROM pgpool.pools WHERE server = 'former'};

	make_pool($local, $remote, server => 'former', options => { pool_size => 1 });

	# the worker is not about to forget another one
	ok(wait_until($local, q{SELECT string_agg(server, ' ') FROM pgpool.pools}, 'one'), 'pools of dropped servers are gone');
	arm_worker('worker_forgets wait');
	is($caller->run(q{SELECT pgpool.exec('former', 'SELECT 1')}) . $caller->error, '1', 'pool has a connection');
	my $before = $local->safe_psql('postgres', $pool);
	$local->safe_psql('postgres', q{ALTER SERVER former OPTIONS (ADD application_name 'former')});
	ok(reached('worker_forgets'), 'worker is about to forget the pool after a change of its options');
	$caller->start(q{SELECT pgpool.exec('former', 'SELECT 1')});
	ok(wait_until($local, q{SELECT server FROM pgpool.waiters}, 'former'), 'session waits in the pool');
	resume('worker_forgets');
	is($caller->finish(30) . $caller->error, '1', 'session is granted a connection');
	is($local->safe_psql('postgres', $pool), $before, 'pool is the same one');
	check_invariants($local, 'forget: invariants hold');
	arm(debug_point => '');
	$local->safe_psql('postgres', 'DROP SERVER former CASCADE');
	$caller->quit;
}

# A waiter is about to leave the queue, to publish its conninfo to a new worker. Meanwhile
# its statement is pipelined, and then its user mapping is replaced, which selects another
# pool: the statement must not run there again.
{
	my ($holder, $next, $waiter) = map { PgpxSession->new($local, user => 'app') } 1 .. 3;
	my $n = 0;

	disarm();
	make_pool($local, $remote, server => 'moving', options => { pool_size => 1, retry_min => '10 ms' });
	$remote->safe_psql('remote_db', 'CREATE TABLE moved (n int); GRANT ALL ON moved TO remote_app');
	lease($holder, 'moving');
	$waiter->run(q{SET pgpool_ext.debug_point = 'publish wait'});
	foreach my $session ($next, $waiter)
	{
		$session->start('SELECT pgpool.exec($$moving$$, $$INSERT INTO moved VALUES (' . ++$n . ')$$)');
		wait_until($local, 'SELECT count(*) FROM pgpool.waiters', $n) or die 'no waiter';
	}
	kill 'STOP', $next->pid;
	terminate($local, worker_pid($local));
	ok(reached('publish'), 'publish: new worker runs');
	kill 'CONT', $next->pid;
	is($next->finish(30) . $next->error, '1', 'publish: another session has published the conninfo');
	my $rows = 'SELECT string_agg(n::text, $$ $$) FROM moved';
	ok(wait_until($remote, sub { $remote->safe_psql('remote_db', $rows) }, '1 2'), 'publish: statement was pipelined');
	$local->safe_psql('postgres', q{BEGIN; DROP USER MAPPING FOR app SERVER moving;}
		  . qq{ CREATE USER MAPPING FOR app SERVER moving OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD'); COMMIT});
	resume('publish');
	is($waiter->finish(30) . $waiter->error, '1', 'publish: owner receives the answer');
	is($remote->safe_psql('remote_db', $rows), '1 2', 'publish: statement ran once');
	check_invariants($local, 'publish: invariants hold');
	$_->quit foreach $holder, $next, $waiter;
	$local->safe_psql('postgres', 'DROP SERVER moving CASCADE');
}

# The same, while the connection attempt for both waiters fails: each wait is counted once.
{
	my ($holder, $next, $waiter) = map { PgpxSession->new($local, user => 'app') } 1 .. 3;
	my $n = 0;

	disarm();
	make_pool($local, $remote, server => 'failing', options => { pool_size => 1, retry_min => '10 ms', on_unavailable => 'fail' });
	lease($holder, 'failing');
	$waiter->run(q{SET pgpool_ext.debug_point = 'publish wait'});
	foreach my $session ($next, $waiter)
	{
		$session->start(q{SELECT pgpool.exec('failing', 'SELECT 1')});
		wait_until($local, 'SELECT count(*) FROM pgpool.waiters', ++$n) or die 'no waiter';
	}
	kill 'STOP', $next->pid;
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app NOLOGIN');
	terminate($local, worker_pid($local));
	ok(reached('publish'), 'publish, failed: new worker runs');
	kill 'CONT', $next->pid;
	$next->finish(30);
	$next->failed('08001', qr/not permitted to log in/, 'publish, failed: waiter receives the error');
	check_invariants($local, 'publish, failed: invariants hold before the other waiter has left the queue');
	resume('publish');
	$waiter->finish(30);
	$waiter->failed('08001', qr/not permitted to log in/, 'publish, failed: waiter that was to publish receives the error');
	is($local->safe_psql('postgres', q{SELECT waited, granted, failed FROM pgpool.stats WHERE server = 'failing'}), '3|1|2', 'publish, failed: each wait is counted once');
	check_invariants($local, 'publish, failed: invariants hold');
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app LOGIN');
	$_->quit foreach $holder, $next, $waiter;
	$local->safe_psql('postgres', 'DROP SERVER failing CASCADE');
}

# a connection has been granted with a pending statement that is just being sent
make_pool($local, $proxy, server => 'pipelined', options => { pool_size => 1, retry_min => '10 ms' });
$remote->safe_psql('remote_db', 'CREATE TABLE executed (n int); GRANT ALL ON executed TO remote_app');

# Used below: the server's timer for statistics wakes a session ten seconds after its
# first statement. After a statement of that length no timer is set.
my %waiter_by_relay = map { $_ => PgpxSession->new($local) } qw(answered taken);
$_->start('SELECT pg_sleep(11)') foreach values %waiter_by_relay;
my $counters = q{SELECT pipelined, errors, leased, waiters FROM pgpool.stats JOIN pgpool.pools USING (pool_id) WHERE pools.server = 'pipelined'};
foreach my $case (qw(undisturbed lost cancelled terminated taken))
{
	my ($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;
	my $sql = $case =~ /undisturbed|lost|taken/ ? 'INSERT INTO executed VALUES (1)' : 'SELECT pg_sleep(600)';
	my $running = q{SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND usename = 'remote_app' AND state = 'active'};

	disarm();
	$local->safe_psql('postgres', q{SELECT pgpool.reset_stats('pipelined')});
	$remote->safe_psql('remote_db', 'TRUNCATE executed');
	$holder->run("SET pgpool_ext.debug_point = 'hand_over wait'");
	my $lease = lease($holder, 'pipelined');
	$holder->run("SELECT pgpool.exec($lease, 'SELECT 1')");
	$waiter->start("SELECT pgpool.exec('pipelined', '$sql')");
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';
	$holder->start("SELECT pgpool.checkin($lease)");
	ok(reached('hand_over'), "pipelined, $case: connection is granted");
	is($local->safe_psql('postgres', 'SELECT pid, state FROM pgpool.leases'), $waiter->pid . '|active', "pipelined, $case: lease is shown as active");
	check_invariants($local, "pipelined, $case: invariants hold");
	if ($case eq 'lost')
	{
		# a RST that the sender has not seen: no byte is sent
		$proxy->command('reset 0');
		$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/pipelined'});
		my $to_proxy = sprintf ':%04X 0[18] ', $proxy->port;
		ok(wait_until($local, sub { scalar(() = slurp_file('/proc/net/tcp') =~ /$to_proxy/g) }, '0'), "pipelined, $case: connection has ended");
		$proxy->command('pass');
	}
	my %how = (cancelled => 'SELECT pg_cancel_backend(' . $waiter->pid . ')', terminated => 'SELECT pg_terminate_backend(' . $waiter->pid . ')',
		taken => 'SELECT pgpool.terminate(lease) FROM pgpool.leases');
	is($local->safe_psql('postgres', $how{$case}), 't', "pipelined, $case: action succeeds") if $how{$case};

	# the socket is shut down then, so that nothing is sent
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/pipelined'}, '0'), "pipelined, $case: connection ends") if $case eq 'taken';
	resume('hand_over');
	is($holder->finish(30) . $holder->error, '', "pipelined, $case: predecessor has returned its lease");
	$waiter->finish(30);
	is($waiter->sqlstate, { cancelled => '57014', terminated => '57P01' }->{$case} // '', "pipelined, $case: owner receives the expected result") or diag($waiter->error);
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM executed'), $case =~ /ed$/ && $case ne 'undisturbed' ? '0' : '1', "pipelined, $case: statement ran as often as expected");
	ok(wait_until($remote, $running, '0'), "pipelined, $case: nothing runs on the remote server");
	ok(wait_until($local, $counters, $case eq 'undisturbed' ? '1|0|0|0' : '0|0|0|0'), "pipelined, $case: counters are as expected");
	is($local->safe_psql('postgres', "SELECT a FROM pgpool.query('pipelined', 'select 42') AS t(a int)"), '42', "pipelined, $case: next session is granted a connection");
	$_->quit foreach $holder, $waiter;
	stats_add_up($local, "pipelined, $case: counters add up");
}

# The session that returns the connection is stopped while it sends the waiter's
# statement. The waiter ends nevertheless, and bytes that are sent later do no harm.
foreach my $point (qw(hand_over hand_over_sent))
{
	foreach my $case (qw(cancelled terminated late))
	{
		my ($holder, $waiter, $second) = map { PgpxSession->new($local) } 1 .. 3;
		my $name = "stopped at $point, $case";

		disarm();
		$local->safe_psql('postgres', q{SELECT pgpool.reset_stats('pipelined')});
		$remote->safe_psql('remote_db', 'TRUNCATE executed');
		$holder->run("SET pgpool_ext.debug_point = '$point wait'");
		my $lease = lease($holder, 'pipelined');
		$holder->run("SELECT pgpool.exec($lease, 'SELECT 1')");
		$waiter->run(q{SET pgpool_ext.checkout_timeout = '10 s'}) if $case eq 'late';
		$waiter->start(q{SELECT pgpool.exec('pipelined', 'INSERT INTO executed VALUES (1)')});
		wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';
		$holder->start("SELECT pgpool.checkin($lease)");
		ok(reached($point), "$name: connection is granted");
		ok(wait_until($remote, sub { $remote->safe_psql('remote_db', 'SELECT count(*) FROM executed') }, '1'), "$name: statement has run") if $point eq 'hand_over_sent';
		$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')') if $case eq 'cancelled';
		$local->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $waiter->pid . ')') if $case eq 'terminated';
		$waiter->finish(60);
		is($waiter->sqlstate, { cancelled => '57014', terminated => '57P01', late => '08006' }->{$case}, "$name: waiter ends") or diag($waiter->error);
		like($waiter->error, qr/It may have been executed/, "$name: error reports that the statement may have run") if $case eq 'late';

		# the pool works on, also for the same session with a pending statement
		$waiter = PgpxSession->new($local) if $case eq 'terminated';
		is($waiter->run(q{SET pgpool_ext.checkout_timeout = '1 min'; SELECT a FROM pgpool.query('pipelined', 'select 43') AS t(a int)}) . $waiter->error, '43', "$name: pool works for the same session");
		lease($second, 'pipelined');
		$waiter->start(q{SELECT a FROM pgpool.query('pipelined', 'select 44') AS t(a int)});
		wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';
		ok(!$holder->done, "$name: first session is still stopped");
		resume($point);
		is($holder->finish(30) . $holder->error, '', "$name: first session continues");
		ok(!$waiter->done, "$name: later pending statement is not affected");
		$second->run(q{SELECT pgpool.checkin_all()});
		is($waiter->finish(30) . $waiter->error, '44', "$name: later pending statement receives its own answer");
		is($remote->safe_psql('remote_db', 'SELECT count(*) FROM executed'), $point eq 'hand_over_sent' ? '1' : '0', "$name: first statement ran as often as expected");
		ok(wait_until($local, q{SELECT leased, waiters FROM pgpool.pools WHERE server = 'pipelined'}, '0|0'), "$name: no lease and no waiter is left");
		check_invariants($local, "$name: invariants hold");
		stats_add_up($local, "$name: counters add up");
		$_->quit foreach $holder, $waiter, $second;
	}
}

# With the relay, the answer can arrive before the waiter is notified that its statement was
# sent. A waiter that sleeps until the answer arrives must be woken nevertheless, also
# if its lease is terminated then.
{
	my $tls = remote_node('remote_tls', tls => 1);
	my $seen = q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND state = 'idle' AND query = 'SELECT 43 AS a'};

	disarm();
	make_pool($local, $tls, server => $_, options => { pool_size => 1, checkout_timeout => '0' }) foreach qw(relayed beside);
	is($local->safe_psql('postgres', q{SELECT a FROM pgpool.query('beside', 'select 1') AS t(a int)}), '1', 'sent: another relay works');
	my $worker = $local->safe_psql('postgres', 'SELECT pid FROM pgpool.workers');
	$_->finish foreach values %waiter_by_relay;
	foreach my $case (qw(answered taken))
	{
		my ($holder, $waiter) = (PgpxSession->new($local), $waiter_by_relay{$case});

		$local->safe_psql('postgres', q{SELECT pgpool.reset_stats('relayed')});
		$holder->run("SET pgpool_ext.debug_point = 'hand_over_sent wait'");
		my $lease = lease($holder, 'relayed');
		$holder->run("SELECT pgpool.exec($lease, 'SELECT 1')");
		$waiter->start($case eq 'taken' ? q{SELECT pgpool.exec('relayed', 'SELECT pg_sleep(600)')} :
			  q{SELECT a FROM pgpool.query('relayed', 'SELECT 43 AS a') AS t(a int)});
		wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';

		# a tick of the worker would wake the waiter
		kill 'STOP', $worker if $case eq 'taken';
		$holder->start("SELECT pgpool.checkin($lease)");
		ok(reached('hand_over_sent'), "sent, $case: waiter has not been woken yet");
		if ($case eq 'taken')
		{
			is($local->safe_psql('postgres', q{SELECT pgpool.terminate(lease) FROM pgpool.leases}), 't', "sent, $case: lease is terminated");
		}
		else
		{
			ok(wait_until($tls, $seen, '1'), "sent, $case: remote server has answered");

			# the worker reads events in order, so it has read the answer after these
			$local->safe_psql('postgres', q{SELECT a FROM pgpool.query('beside', 'select 1') AS t(a int)}) foreach 1 .. 3;
		}
		resume('hand_over_sent');
		is($holder->finish(30) . $holder->error, '', "sent, $case: predecessor has returned its lease");
		is($waiter->finish(30) . $waiter->sqlstate, $case eq 'taken' ? 'PX001' : '43', "sent, $case: waiter receives the expected result") or diag($waiter->error);
		kill 'CONT', $worker;
		$_->quit foreach $holder, $waiter;
		is($local->safe_psql('postgres', q{SELECT pipelined FROM pgpool.stats WHERE server = 'relayed'}), '1', "sent, $case: statement was pipelined");
		disarm();
	}
	$local->safe_psql('postgres', "SELECT pgpool.drain('$_', '10 s')") foreach qw(relayed beside);
	$tls->stop;
}

# A waiter's statement has been sent, and then its user mapping is dropped: the session
# receives the answer, and not the error that the mapping does not exist.
{
	my ($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;

	disarm();
	make_pool($local, $remote, server => 'unmapped', options => { pool_size => 1 });
	$holder->run("SET pgpool_ext.debug_point = 'hand_over_sent wait'");
	my $lease = lease($holder, 'unmapped');
	$holder->run("SELECT pgpool.exec($lease, 'SELECT 1')");
	$waiter->start(q{SELECT a FROM pgpool.query('unmapped', 'SELECT 44 AS a') AS t(a int)});
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';
	$holder->start("SELECT pgpool.checkin($lease)");
	ok(reached('hand_over_sent'), 'mapping is dropped: statement of the waiter has been sent');
	$local->safe_psql('postgres', 'DROP USER MAPPING FOR CURRENT_USER SERVER unmapped');
	resume('hand_over_sent');
	is($holder->finish(30) . $holder->error, '', 'mapping is dropped: predecessor has returned its lease');
	is($waiter->finish(30) . $waiter->error, '44', 'mapping is dropped: session receives the answer');
	$waiter->fails(q{SELECT a FROM pgpool.query('unmapped', 'SELECT 44 AS a') AS t(a int)}, '42704', qr/user mapping/, 'mapping is dropped: next statement fails');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'unmapped'}, 0), 'mapping is dropped: connection closes');
	$local->safe_psql('postgres', 'DROP SERVER unmapped CASCADE');
	$_->quit foreach $holder, $waiter;
	disarm();
}

# a waiter is cancelled at the moment in which its connection attempt fails: the session
# reports the cancel
{
	my $waiter = PgpxSession->new($local);

	disarm();
	$local->safe_psql('postgres', q{SELECT pgpool.reset_stats('pipelined'); SELECT pgpool.drain('pipelined', '10 s'); SELECT pgpool.resume('pipelined')});
	$proxy->command('freeze');
	$waiter->run(q{SET pgpool_ext.debug_point = 'cancelled wait'});
	$waiter->start(q{SELECT pgpool.checkout('pipelined', '60 s')});
	ok(wait_until($local, q{SELECT state FROM pgpool.connections WHERE server = 'pipelined'}, 'connecting'), 'session waits for a connection attempt');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
	ok(reached('cancelled'), 'session is cancelled');
	ok(wait_until($local, q{SELECT last_error IS NOT NULL FROM pgpool.pools WHERE server = 'pipelined'}, 't', 30), 'connection attempt fails meanwhile');
	resume('cancelled');
	$waiter->finish(30);
	$waiter->failed('57014', qr/canceling statement/, 'cancel and failure: session receives the cancel');
	is($local->safe_psql('postgres', q{SELECT cancelled, failed FROM pgpool.stats WHERE server = 'pipelined'}), '1|0', 'cancel and failure: cancel is counted');
	$proxy->command('pass');
	$waiter->quit;
	ok(wait_until($local, q{SELECT a FROM pgpool.query('pipelined', 'select 42') AS t(a int)}, '42', 30), 'cancel and failure: pool works');
}

# A waiter is granted a connection while its process is stopped, and then its user mapping is
# replaced: it must not use the connection of the former user.
{
	my ($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;

	disarm();
	make_pool($local, $remote, server => 'moved', options => { pool_size => 1, retry_min => '10 ms' });
	my $lease = lease($holder, 'moved');
	$waiter->start(q{SELECT pgpool.checkout('moved', '60 s')});
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters WHERE pid = ' . $waiter->pid, 1), 'session waits');
	kill 'STOP', $waiter->pid;
	$holder->run("SELECT pgpool.checkin($lease)");
	is($local->safe_psql('postgres', q{SELECT pid FROM pgpool.leases WHERE server = 'moved'}), $waiter->pid, 'waiter is granted a connection');
	$local->safe_psql('postgres', "DROP USER MAPPING FOR CURRENT_USER SERVER moved; CREATE USER MAPPING FOR CURRENT_USER SERVER moved OPTIONS (user 'remote_super', password '$REMOTE_SUPER_PASSWORD')");
	kill 'CONT', $waiter->pid;
	my $granted = $waiter->finish(30);
	$waiter->run("SELECT a FROM pgpool.query($granted, 'select current_user') AS t(a text)");
	is($waiter->{text}, 'remote_super', 'grant and new mapping: session is granted no connection of the former user') or diag($waiter->error);
	$_->quit foreach $holder, $waiter;
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.leases WHERE server = 'moved'}, '0'), 'grant and new mapping: no lease is left');
	stats_add_up($local, 'grant and new mapping: counters add up');
}

# A pool with damaged shared state is out of service until its worker has restarted.
{
	my $node = local_node('damaged', conf => [ 'pgpool_ext.workers = 2', 'pgpool_ext.max_connections = 20' ]);
	my $state = q{SELECT state FROM pgpool.pools WHERE server = 'damaged'};
	my $restarts = q{SELECT sum(restarts) FROM pgpool.workers};

	make_pool($node, $remote, server => 'damaged', options => { pool_size => 6 });
	make_pool($node, $remote, server => 'other', options => { pool_size => 1 });

	# Each case damages a pool with two leases and two idle connections. The code finds the damage.
	foreach my $case (
		[ 'checkout', 'closing', sub {
			my ($holder, $leases, $worker) = @_;

			kill 'STOP', $worker;
			lease($holder, 'damaged');
			$holder->run(q{SELECT pgpool.checkout('damaged')});
			$holder->failed('PX004', qr/the pool of server "damaged" is out of service.*cannot go from state "closing" to "leased"/s, 'damage: checkout that finds the damage fails');
			is($node->safe_psql('postgres', $state), 'damaged', 'damage: pgpool.pools shows the state');
			$holder->run('SELECT pgpool.check_invariants()');
			$holder->failed('XX000', qr/is out of service: Connection \d+/, 'damage: check_invariants reports the damage');
			is($holder->run("SELECT a FROM pgpool.query($leases->[0], 'select 7') AS t(a int)"), '7', 'damage: lease stays usable until the restart');
			$holder->run(qq{SELECT pgpool.checkin($leases->[0]); SELECT pgpool.reconnect('damaged'); SELECT pgpool.terminate(lease) FROM pgpool.leases WHERE server = 'damaged'});
			is($holder->error, '', 'damage: lease can be returned, and administrative functions can be called');
			is($node->safe_psql('postgres', $state), 'damaged', 'damage: state is unchanged');
			kill 'CONT', $worker;
		} ],
		[ 'checkin', 'leased', sub { my ($holder, $leases) = @_; $holder->run("SELECT pgpool.checkin($leases->[0])"); is($holder->error, '', 'checkin: no error'); } ])
	{
		my ($name, $damage, $act) = @$case;
		my ($holder, $damager) = map { PgpxSession->new($node) } 1 .. 2;
		my @leases = map { lease($holder, 'damaged') } 1 .. 4;
		my $kept = lease($holder, 'other');
		my $before = $node->safe_psql('postgres', $restarts);
		my $worker = $node->safe_psql('postgres', q{SELECT w.pid FROM pgpool.workers w JOIN pgpool.pools p ON p.worker = w.worker WHERE p.server = 'damaged'});

		$holder->run("SELECT pgpool.checkin($_)") foreach @leases[ 0, 1 ];
		wait_until($node, q{SELECT idle FROM pgpool.pools WHERE server = 'damaged'}, '2') or die 'not idle';
		$damager->run("SET pgpool_ext.debug_damage = '$damage'");
		$act->($holder, [ @leases[ 2, 3 ] ], $worker);
		ok(wait_until($node, $restarts, $before + 1, 30), "$name: worker restarts once");
		ok(wait_until($node, $state, 'ready', 30), "$name: pool is in service again");
		$holder->run("SELECT pgpool.exec($leases[3], 'select 1')");
		$holder->failed('08006', qr/connection of lease $leases[3] was lost/, "$name: earlier lease has ended");
		is($holder->run("SELECT a FROM pgpool.query($kept, 'select 1') AS t(a int)"), '1', "$name: lease of the other worker's pool is kept");
		$holder->run('SELECT pgpool.checkin_all()');
		is($holder->run(q{SELECT a FROM pgpool.query('damaged', 'select 1') AS t(a int)}), '1', "$name: checkout succeeds");
		check_invariants($node, "$name: invariants hold");
		$damager->run('RESET pgpool_ext.debug_damage');
		is($damager->error, '', "$name: damage is undone");
		$_->quit foreach $holder, $damager;
	}
	like(slurp_file($node->logfile), qr/WARNING: +pgpool_ext worker \d+ restarts because of a damaged pool.*The pool of server "damaged" was out of service/s, 'damage: log has a message');
	unlike(slurp_file($node->logfile), qr/PANIC|TRAP|was terminated by/, 'damage: no process crashed');
	$node->stop;
}

# out of memory in a session: an error, the lease stays usable or ends, nothing is lost
my ($failed, $wrong, $all) = (0, '', 0);
foreach my $n (1 .. 500)
{
	my $session = PgpxSession->new($local);

	disarm();
	$session->run("SET pgpool_ext.debug_oom = $n");
	foreach my $sql (
		"SELECT pgpool.checkout('one', '30 s') AS lease \\gset",
		"SELECT * FROM pgpool.query(:lease, 'select \$1::int, repeat(''x'', 100000) from generate_series(1, 10)', 7) AS t(a int, b text)",
		"SELECT pgpool.exec(:lease, 'select 1; select 1/0')",
		"SELECT pgpool.send(:lease, 'select 1')", "SELECT * FROM pgpool.result(:lease) AS t(a int)",
		"SELECT pgpool.exec(:lease, 'listen oom; notify oom')", "SELECT count(*) FROM pgpool.notifications(:lease)",
		"SELECT pgpool.checkin(:lease)",
		"SELECT * FROM pgpool.query('one', 'select 1') AS t(a int)",
		"SELECT * FROM pgpool.fanout('{one}', 'select 1') AS t(pool text, a int)",
		"BEGIN; SELECT pgpool.exec(pgpool.checkout_xact('one'), 'select 1'); COMMIT",
		"BEGIN; ALTER SERVER one OPTIONS (ADD idle_timeout '1h'); SELECT pgpool.exec('one', 'select 1'); ROLLBACK",
		"SELECT count(*) FROM pgpool.pools, pgpool.connections, pgpool.leases, pgpool.waiters, pgpool.stats, pgpool.workers, pgpool.locks")
	{
		$session->run($sql);
		$failed++ if $session->sqlstate eq '53200';
		$wrong .= "$n: $sql: " . $session->error if $session->sqlstate !~ /^(?:|53200|22012|42601|55000)$/;
	}
	$all = 1 if !-e path('oom', 'at');
	$session->run('RESET pgpool_ext.debug_oom; SELECT pgpool.checkin_all()');
	$wrong .= "$n: " . $session->error if $session->error ne '';
	$session->run("SELECT * FROM pgpool.query('one', 'select 1') AS t(a int)");
	$wrong .= "$n: afterwards: " . $session->error if $session->error ne '';
	$session->quit;
	last if $all;
}
is($wrong, '', 'out of memory in a session: statement fails, and the session stays usable');
cmp_ok($failed, '>=', 10, "out of memory was raised $failed times");
is($all, 1, 'every allocation failed once');
check_invariants($local);

# the same when the format prediction for a result is wrong: the lease stays usable
my %ends;
$wrong = '';
$remote->safe_psql('remote_db', 'CREATE TABLE guessed AS SELECT i AS a, i AS b FROM generate_series(1, 1000) AS i; ALTER TABLE guessed OWNER TO remote_app');
foreach my $n (1 .. 12)
{
	my $session = PgpxSession->new($local);
	my $guessed = "SELECT sum(a) FROM pgpool.query(:lease, 'select * from guessed') AS t(a int, b int)";

	$session->run("SELECT pgpool.checkout('one', '30 s') AS lease \\gset");
	$session->run("$guessed; SELECT pgpool.exec(:lease, 'begin; alter table guessed drop b')");
	disarm();
	$session->run("SET pgpool_ext.debug_oom = $n");
	$session->run($guessed);
	$ends{ $session->sqlstate }++;
	$session->run('RESET pgpool_ext.debug_oom');
	$session->run("SELECT pgpool.exec(:lease, 'rollback'); SELECT pgpool.checkin(:lease)");
	$wrong .= "$n: " . $session->error if $session->error ne '';
	$session->quit;
}
is($wrong, '', 'out of memory after a wrong format prediction: lease stays usable');
is(join(' ', sort keys %ends), '42804 53200', 'both errors occurred');

# The same in the worker, which exits and restarts. Because that lasts two seconds, only
# every fourth allocation fails, beginning with a random one; PGPX_TEST_ALLOCATIONS=all:
# every one.
my $each = ($ENV{PGPX_TEST_ALLOCATIONS} // '') eq 'all' ? 1 : 4;
my $first = 1 + int rand $each;
my $ended = 0;
$all = 0;
note "allocations of the worker: every $each, beginning with $first";
foreach my $n (map { $first + $each * $_ } 0 .. 200)
{
	arm(debug_oom => $n);

	# the worker may have exited already, at an allocation for the new setting
	my $worker = worker_pid($local);
	terminate($local, $worker) if $worker ne '';
	works("out of memory at allocation $n of the worker: pool works again");
	$all = 1, last if !-e path('oom', 'at');
	$ended++;
}
cmp_ok($ended, '>=', 5, "out of memory ended the worker $ended times");
is($all, 1, 'every allocation was reached');
arm(debug_oom => 0);

# --- deadlocks: changes during a check, and before the victim has left the queue
make_pool($local, $remote, server => $_, options => { pool_size => 1, checkout_timeout => '10min' }) foreach qw(east west);

# The first session holds one of east, waits for one of west, and completes a deadlock
# with the second.  It performs the action at the debug point.  $wait: how it waits.
sub cross
{
	my ($point, $action, $waits_first, $wait) = @_;
	my @sessions = map { PgpxSession->new($local) } 0, 1;

	$wait //= q{SELECT pgpool.checkout_xact('west') > 0};

	disarm();
	$sessions[0]->run(qq{SET deadlock_timeout = '50ms'; SET pgpool_ext.debug_point = '$point $action'; BEGIN; SELECT pgpool.checkout_xact('east')});
	$sessions[1]->run(q{SET deadlock_timeout = '1h'; BEGIN; SELECT pgpool.checkout_xact('west')});
	if ($waits_first)
	{
		$waits_first->start(q{SELECT pgpool.checkout('west') > 0});
		ok(wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'west'}, '1'), 'session without a lease waits');
	}
	$sessions[1]->start(q{SELECT pgpool.checkout_xact('east') > 0});
	ok(wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'east'}, '1'), 'one session of the deadlock waits');
	$sessions[0]->start($wait);
	ok(reached($point), "$point $action: the other session has found the deadlock");
	return @sessions;
}

sub deadlock_ended
{
	my ($what, @sessions) = @_;

	$_->quit foreach @sessions;
	ok(wait_until($local, q{SELECT sum(leased), sum(waiters) FROM pgpool.pools WHERE server IN ('east', 'west')}, '0|0'), "$what: no lease and no waiter is left");
	return;
}

# a lease is revoked between the two readings, and its connection is granted to a session
# that does not wait any more
my $third = PgpxSession->new($local);
my @cross = cross('deadlock_read', 'wait', $third);
$local->safe_psql('postgres', q{SELECT pgpool.terminate(lease) FROM pgpool.leases WHERE server = 'west'});
is($third->finish(30), 't', 'connection of a revoked lease is granted to the first waiter');
resume('deadlock_read');
ok(wait_until($local, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $cross[0]->pid, 'Extension'),
	'deadlock that no longer exists in the second reading is not reported: the session waits again');
$third->run('SELECT pgpool.checkin_all()');
is($cross[0]->finish(30) . $cross[0]->error, 't', 'session that checked for deadlocks is granted a connection');
$cross[0]->run('ROLLBACK');
is($cross[1]->finish(30) . $cross[1]->error, 't', 'session whose lease was revoked is granted a connection, too');
deadlock_ended('revoked lease', $third, @cross);

# the other session is cancelled: its connection is granted to the victim
@cross = cross('deadlocked', 'wait');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $cross[1]->pid . ')');
$cross[1]->finish(30);
$cross[1]->failed('57014', qr/user request/, 'other session is cancelled before the victim has left the queue');
ok(wait_until($local, q{SELECT pid FROM pgpool.leases WHERE server = 'west'}, $cross[0]->pid), 'victim is granted its connection');
resume('deadlocked');
is($cross[0]->finish(30) . $cross[0]->error, 't', 'victim is granted the connection, and receives no error');
deadlock_ended('grant to a victim', @cross);

# the other session is cancelled or terminated between the two readings, which ends the
# deadlock
foreach my $function (qw(pg_cancel_backend pg_terminate_backend))
{
	@cross = cross('deadlock_read', 'wait');
	$local->safe_psql('postgres', "SELECT $function(" . $cross[1]->pid . ')');
	$cross[1]->finish(30);
	ok(wait_until($local, q{SELECT pid FROM pgpool.leases WHERE server = 'west'}, $cross[0]->pid), "$function of the other session: session that checks is granted its connection");
	resume('deadlock_read');
	is($cross[0]->finish(30) . $cross[0]->error, 't', "$function of the other session between the two readings: no deadlock is reported");
	deadlock_ended($function, @cross);
}

# the victim is cancelled, terminated, exits, or has an error: in a checkout, a call and a
# foreign table
my @waits = (q{SELECT pgpool.checkout_xact('west') > 0}, q{SELECT pgpool.exec('west', 'SELECT 1')});
if ($local->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'}))
{
	$local->safe_psql('postgres', q{CREATE FOREIGN TABLE far_west (relname name) SERVER west OPTIONS (schema_name 'pg_catalog', table_name 'pg_class')});
	push @waits, 'SELECT count(*) FROM far_west';
}
foreach my $wait (@waits)
{
	foreach my $case ([ 'wait', 'pg_cancel_backend' ], [ 'wait', 'pg_terminate_backend' ], ['exit'], ['error'])
	{
		my ($action, $function) = @$case;
		my $what = ($function // $action) . ", $wait";

		@cross = cross('deadlocked', $action, undef, $wait);
		$local->safe_psql('postgres', "SELECT $function(" . $cross[0]->pid . ')') if $function;
		resume('deadlocked') if $action eq 'wait';
		is($cross[1]->finish(30) . $cross[1]->error, 't', "$what of the victim: other session is granted a connection");
		$cross[0]->finish(30);
		isnt($cross[0]->error, '', "$what of the victim: victim receives an error");
		deadlock_ended($what, @cross);
	}
}
disarm();
check_invariants($local);

# --- the transactions of foreign tables: an error, a cancel and the end of the session at
# each step
SKIP:
{
	skip 'postgres_fdw is not installed', 1 if @waits < 3;
	make_pool($local, $remote, server => $_, options => { pool_size => 1, checkout_timeout => '60 s' }) foreach qw(north south);
	$remote->safe_psql('remote_db', 'CREATE TABLE public.n (v int); INSERT INTO n VALUES (0); CREATE TABLE public.s AS SELECT * FROM n; GRANT ALL ON n, s TO remote_app');
	$local->safe_psql('postgres', 'CREATE FOREIGN TABLE n (v int) SERVER north; CREATE FOREIGN TABLE s (v int) SERVER south');
	my $values = 'SELECT n.v, s.v FROM n, s';
	my $writes = 'BEGIN; UPDATE n SET v = v + 1; SELECT v FROM n; SELECT v FROM s; UPDATE s SET v = v + 1; COMMIT';
	$local->safe_psql('postgres', 'CREATE TABLE local_writes (v int)');
	my @all = ([ 'wait', 'pg_cancel_backend' ], [ 'wait', 'pg_terminate_backend' ], ['exit'], ['error']);
	my @callback = @all[ 0 .. 2 ];    # in a callback of an abort, which must not raise errors

	$remote->safe_psql('remote_db', 'CREATE TABLE public.many AS SELECT i AS v FROM generate_series(1, 1000) AS i; GRANT ALL ON many TO remote_app');
	$local->safe_psql('postgres', q{CREATE FOREIGN TABLE many (v int) SERVER north;
		CREATE FOREIGN TABLE an (v int) SERVER north OPTIONS (table_name 'n', async_capable 'true');
		CREATE FOREIGN TABLE asl (v text) SERVER south OPTIONS (table_name 'slow', async_capable 'true')});
	$remote->safe_psql('remote_db', 'CREATE VIEW public.slow AS SELECT pg_advisory_xact_lock(8)::text AS v; GRANT ALL ON slow TO remote_app');
	my $slow = PgpxSession->new($remote, dbname => 'remote_db');
	$slow->run('SELECT pg_advisory_lock(8)');

	# A point, its statements, the values that are allowed at the end, the cases, an action
	# before the statements, and whether the session waits behind a holder. After the first
	# COMMIT was sent, each remote server has committed or not, and an interrupt waits for
	# their answers.
	my @points = (
		[ 'fdw_leased', $writes, '0\|0', \@all ],
		[ 'fdw_sent', $writes, '0\|0', \@all ],
		[ 'fdw_row', $writes, '0\|0', \@all ],
		(map { [ $_, $writes =~ s/COMMIT/INSERT INTO local_writes VALUES (1); COMMIT/r, '1\|1', [ @all[ 0, 1 ] ] ] } qw(fdw_committing fdw_commit_sent)),
		(map { [ $_, $writes, '[01]\|[01]', [ @all[ 2, 3 ] ] ] } qw(fdw_committing fdw_commit_sent)),
		[ 'fdw_committed', $writes, '1\|1', \@all ],
		[ 'fdw_row', 'BEGIN; UPDATE s SET v = v + 1; UPDATE n SET v = v + 1 RETURNING v; COMMIT', '0\|0', \@all ],
		[ 'fdw_buffer', 'BEGIN; UPDATE s SET v = v + 1; DECLARE c CURSOR FOR SELECT v FROM many; FETCH 1 FROM c; UPDATE n SET v = v + 1; COMMIT', '0\|0', \@all ],
		[ 'fdw_append_waits', 'BEGIN; UPDATE n SET v = v + 1; SELECT v::text FROM an UNION ALL SELECT v FROM asl; COMMIT', '0\|0', \@all ],
		[ 'fdw_rollback_sent', 'BEGIN; UPDATE n SET v = v + 1; SAVEPOINT a; UPDATE n SET v = v + 1; ROLLBACK TO a; SELECT v FROM n; COMMIT', '[01]\|0', \@callback ],
		[ 'fdw_abort', 'BEGIN; UPDATE n SET v = v + 1; SELECT v FROM s; SELECT 1 / 0; COMMIT', '0\|0', \@callback ],
		[ 'fdw_await_begin', 'BEGIN; SELECT v FROM n; UPDATE n SET v = v + 1; COMMIT', '0\|0', \@all, undef, 'behind a holder' ]);

	foreach (@points)
	{
		my ($point, $transaction, $outcome, $cases, $before, $behind) = @$_;

		foreach my $case (@$cases)
		{
			my ($action, $function) = @$case;
			my $what = "$point, " . ($function // $action);
			my $session = PgpxSession->new($local);
			my $holder = PgpxSession->new($local);

			disarm();
			$remote->safe_psql('remote_db', 'UPDATE n SET v = 0; UPDATE s SET v = 0');
			$before->($session) if $before;
			$holder->run('BEGIN; SELECT v FROM n') if $behind;
			$session->run("SET pgpool_ext.debug_point = '$point $action'");
			$session->start($transaction);
			if ($behind)
			{
				wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';
				$holder->run('COMMIT');
			}
			ok(reached($point), "$what: session has reached the point");
			ok(wait_until($remote, sub { $remote->safe_psql('remote_db', $values) }, '1|1'), "$what: remote servers have committed") if $point eq 'fdw_commit_sent' && $function;
			$local->safe_psql('postgres', "SELECT $function(" . $session->pid . ')') if $function;
			resume($point);
			$session->finish(30);
			# at these points interrupts are held until the statement has ended
			if ($point !~ /^fdw_(committing|commit_sent|committed|rollback_sent)$/ || !$function)
			{
				isnt($session->error, '', "$what: session receives an error");
			}
			elsif ($point ne 'fdw_rollback_sent')
			{
				unlike($session->error, qr/ERROR/, "$what: commit succeeds");
			}
			ok(wait_until($local, q{SELECT sum(leased), sum(waiters) FROM pgpool.pools WHERE server IN ('north', 'south')}, '0|0'), "$what: no lease is left");
			ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND state <> 'idle'}, '0'), "$what: no remote transaction is left");
			like($remote->safe_psql('remote_db', $values), qr/^$outcome$/, "$what: remote tables have allowed values");
			is($local->safe_psql('postgres', 'DELETE FROM local_writes RETURNING v'), '1', "$what: local transaction has committed") if $point =~ /^fdw_commit(ting|_sent)$/ && $function;
			$_->quit foreach $session, $holder;
			is($local->safe_psql('postgres', "SELECT count(*) FROM n, s"), '1', "$what: foreign tables work");
		}
	}
	$slow->quit;

	# the second COMMIT cannot be sent: the session reads the answer to the first one
	{
		my $session = PgpxSession->new($local);
		my $blocker = PgpxSession->new($remote, dbname => 'remote_db');
		my $open = q{FROM pg_stat_activity WHERE usename = 'remote_app' AND state = 'idle in transaction'};

		disarm();
		$remote->safe_psql('remote_db', q{CREATE FUNCTION public.block() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END';
			CREATE CONSTRAINT TRIGGER block AFTER INSERT ON n DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION block()});
		$blocker->run('SELECT pg_advisory_lock(7)');
		$session->run(q{SET pgpool_ext.debug_point = 'fdw_committing wait'});
		$session->start('BEGIN; INSERT INTO n VALUES (7); SELECT v FROM s; COMMIT');
		ok(reached('fdw_committing'), 'two servers: first COMMIT was sent');
		ok(wait_until($remote, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}, 1), 'two servers: first COMMIT waits');
		$remote->safe_psql('remote_db', "SELECT pg_terminate_backend(pid) $open");
		ok(wait_until($remote, "SELECT count(*) $open", 0), 'two servers: other remote session has ended');
		resume('fdw_committing');
		ok(wait_until($local, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $session->pid, 'Extension'), 'two servers: session waits for the first server');
		$blocker->quit;
		$session->finish;
		$session->failed('08006', qr/connection to server "south" was lost/, 'two servers: error of the second server is raised');
		is($remote->safe_psql('remote_db', 'SELECT count(*) FROM n WHERE v = 7'), '1', 'two servers: first server has committed');
		$session->quit;
	}
	disarm();
	check_invariants($local);
}

# --- distributed locks
make_pool($local, $remote, server => 'keeper', options => { pool_size => 2 });
$local->safe_psql('postgres', q{SELECT pgpool.lock_setup('keeper')});

# Assert that the lock is held neither locally nor on the remote server.
sub released
{
	my ($name) = @_;
	my $free = q{coalesce(bool_and(state = 'free'), true) FROM pgpool.lock_status('keeper')};

	return wait_until($local, "SELECT (SELECT count(*) FROM pgpool.locks) = 0 AND $free", 't', 10) ? '' : "$name: lock is not released\n";
}

# a session that drains a pool exits before it has closed connections: the worker closes
# them
{
	my ($session, $drains) = map { PgpxSession->new($local) } 1 .. 2;

	make_pool($local, $remote, server => 'drained');
	disarm();
	$drains->run("SET pgpool_ext.debug_point = 'draining exit'");
	$session->run(q{SELECT pgpool.exec('drained', 'select 1')});
	$drains->run(q{SELECT pgpool.drain('drained', '1 min')});
	ok(reached('draining'), q{session is about to close the pool's connections});

	# the worker maintains all pools
	$local->reload;
	ok(wait_until($local, q{SELECT closed_stale FROM pgpool.stats WHERE server = 'drained'}, 1), q{worker closes the connections after the session's exit});
	$local->safe_psql('postgres', q{SELECT pgpool.resume('drained')});
	is($session->run(q{SELECT pgpool.exec('drained', 'select 1')}), '1', 'pool works after resume');
	$_->quit foreach $session, $drains;
}

# the session fails or exits after the grant on the remote server and before it has
# recorded it
foreach my $action (qw(error exit))
{
	my $session = PgpxSession->new($local);

	disarm();
	$session->run("SET pgpool_ext.debug_point = 'lock_answered $action'");
	$session->run(q{SELECT pgpool.lock('keeper', 'a', '10 s', '1 hour')});
	ok(reached('lock_answered'), "$action: session has received the answer");
	is($remote->safe_psql('remote_db', q{SELECT acquisition > 0 FROM pgpool_lock.locks WHERE name = 'a'}), 't', "$action: lock was granted");
	is(released($action), '', "$action: lock is released");
	$session->quit;
}

# the lock is lost between two checks of unlock, which reports it
{
	my $session = PgpxSession->new($local);
	my $lost = $session->run(q{SELECT pgpool.lock('keeper', 'a')});

	disarm();
	$session->run("SET pgpool_ext.debug_point = 'unlock wait'");
	$session->start("SELECT pgpool.unlock('keeper', 'a', $lost)");
	ok(reached('unlock'), 'session is about to release its lock');
	$local->safe_psql('postgres', q{SELECT pgpool.lock_force_release('keeper', 'a')});
	ok(wait_until($local, 'SELECT state FROM pgpool.locks', 'lost', 10), 'lock is lost at this moment');
	resume('unlock');
	is($session->finish(20), 'f', 'unlock returns false');
	like($session->error, qr/WARNING:.*lock "a" of server "keeper" was lost/, 'warning reports the loss');
	is(released('unlock'), '', 'lock is released');
	$session->quit;
}

# out of memory at each allocation in turn: the lock is held, or it is released
($failed, $wrong, $all) = (0, '', 0);
foreach my $n (1 .. 60)
{
	my $session = PgpxSession->new($local);

	disarm();
	$session->run("SET pgpool_ext.debug_oom = $n");
	my $got = $session->run(q{SELECT pgpool.lock('keeper', 'a', '10 s', '1 hour')});
	my $state = $session->sqlstate;
	$session->run('RESET pgpool_ext.debug_oom');
	$wrong .= "$n: $state $got\n" unless $state eq '53200' || $got =~ /^\d+$/;
	$failed++ if $state eq '53200';
	$session->run("SELECT pgpool.unlock('keeper', 'a', $got)") if $got =~ /^\d+$/;
	$wrong .= released($n);
	$session->quit;
	$all = $n, last if $state eq '' && !-e path('oom', 'at');
}
is($wrong, '', 'out of memory during lock: call fails, and the lock is released');
cmp_ok($all, '>', 1, 'every allocation of lock failed once');
cmp_ok($failed, '>=', 5, "out of memory during lock was raised $failed times");

# An abort drains the rest of an answer, whose rows need more memory than those before. If
# that memory cannot be allocated, the connection is closed and no second error is raised.
{
	my $session = PgpxSession->new($local);
	my (%ends, $errors);

	$remote->safe_psql('remote_db', q{SET ROLE remote_app; CREATE VIEW grown AS SELECT i AS v, repeat('y', CASE i WHEN 3 THEN 100000 WHEN 4 THEN 400000 ELSE 8000 END) AS filler FROM generate_series(1, 4) AS i});
	$session->run(q{CREATE FOREIGN TABLE grown (v int, filler text) SERVER one OPTIONS (schema_name 'public')});
	my $abort = sub {
		foreach my $sql ('BEGIN', 'DECLARE c CURSOR FOR SELECT length(filler) / (v - 2) * random() FROM grown', 'FETCH 1 FROM c', 'FETCH 1 FROM c')
		{
			$session->run($sql);
			last if $session->error ne '';
			wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND state = 'active'}, 0) or die 'remote server has not sent all rows';
		}
		my $error = $session->error;
		$session->run('ROLLBACK');
		return $error;
	};
	$wrong = '';
	foreach my $n (1 .. 60)
	{
		# First without a failure, so that the number of allocations is the same each time.
		$abort->() =~ /22012/ or die 'division by zero is not reported';
		disarm();
		$session->run("SET pgpool_ext.debug_oom = $n");
		my $error = $abort->();
		my $failed = -e path('oom', 'at');
		$errors = () = $error =~ /ERROR:/g;
		$wrong .= "$n: $error" if $errors != 1;
		$ends{ ($error =~ /ERROR:  (\w+)/)[0] . ($failed ? ' failed' : '') }++;
		$session->run('RESET pgpool_ext.debug_oom');
		$session->run(q{SELECT * FROM pgpool.query('one', 'select 1') AS t(a int)});
		$wrong .= "$n: afterwards: " . $session->error if $session->error ne '';
		last if !$failed;
	}
	is($wrong, '', 'out of memory in the drain of an abort: no second error, and the pool works');
	is(join(', ', sort keys %ends), '22012, 22012 failed, 53200 failed', 'allocations failed before the error of the statement and after it');
	disarm();
	$session->run('DROP FOREIGN TABLE grown');
	$session->quit;
}

# A commit that writes on one server and has an unread scan on another one: the scan is
# drained before the first COMMIT is sent, so an interrupt of the drain loses nothing.
{
	my $session = PgpxSession->new($local);

	make_pool($local, $remote, server => 'two');
	$remote->safe_psql('remote_db', 'SET ROLE remote_app; CREATE TABLE numbers AS SELECT i AS id FROM generate_series(1, 100000) AS i; CREATE TABLE written (id int)');
	$session->run(q{CREATE FOREIGN TABLE numbers (id int) SERVER one OPTIONS (schema_name 'public');
		CREATE FOREIGN TABLE written (id int) SERVER two OPTIONS (schema_name 'public')});
	foreach my $order ('INSERT INTO written VALUES (1); %s', '%s; INSERT INTO written VALUES (1)')
	{
		disarm();
		$session->run("SET pgpool_ext.debug_point = 'commit_drains error'");
		$session->run('BEGIN; ' . sprintf $order, 'DECLARE c CURSOR FOR SELECT id FROM numbers WHERE random() >= 0; FETCH 1 FROM c');
		$session->run('COMMIT');
		like($session->error, qr/commit_drains/, 'drain of an unread scan is interrupted at commit');
		is($remote->safe_psql('remote_db', 'SELECT count(*) FROM written'), '0', 'no server has committed');
	}
	$session->run('RESET pgpool_ext.debug_point');
	disarm();
	$session->run('DROP FOREIGN TABLE numbers, written');
	$session->quit;
}
works('interrupted commit: pool works');

check_invariants($local);
stats_add_up($local);
leak_check($local, $remote);
done_testing();

# Pipelined hand-over: the session that returns a connection sends the first waiter's
# pending statement together with the reset. The statement runs in a clean session or
# not at all, whatever happens meanwhile to its owner, the predecessor, the remote
# server, or the pool.
use strict;
use warnings;

use PgpxFakeServer qw(message ready done columns row failure);
use PgpxTest;
use Test::More;

# Fake remote servers: the answer of each to a pipelined statement, and the expected
# result.
my $reset = message('1', '') . message('2', '') . done('DISCARD ALL');
my %answers = (
	right => [ sub { $reset, $_[0]->answer('7') }, '7' ],
	refused => [ sub { failure(S => 'ERROR', C => '25001', M => 'no'), ready }, '1' ],
	half => [ sub { message('1', ''), failure(S => 'ERROR', C => '57014', M => 'no'), ready }, '1' ],
	fatal => [ sub { failure(S => 'FATAL', V => 'FATAL', C => '57P01', M => 'bye', R => 'ProcessInterrupts') }, '1' ],
	# of a proxy, behind which the statement may be running
	fatal_by_proxy => [ sub { failure(S => 'FATAL', C => '08P01', M => 'query timeout') }, '08006' ],
	marker_fatal_by_proxy => [ sub { failure(S => 'FATAL', C => '08P01', M => 'query timeout') }, '08006' ],
	silent => [ sub { '' }, '08006' ],
	marker_missing => [ sub { $reset, $_[0]->answer('7') }, '08006' ],
	marker_of_another => [ sub { message('1', ''), message('t', pack 'nN3', 3, 1, 2, 3), message('n', ''), $reset, $_[0]->answer('7') }, '08006' ],
	marker_twice => [ sub { $_[0]->echo, $_[0]->echo, $reset, $_[0]->answer('7') }, '08006' ],
	marker_error => [ sub { failure(S => 'ERROR', V => 'ERROR', C => '22012', M => 'of the one before'), ready, $_[0]->echo, $reset, $_[0]->answer('7') }, '08006' ],
	marker_fatal => [ sub { failure(S => 'FATAL', V => 'FATAL', C => '57P01', M => 'bye', R => 'ProcessInterrupts') }, '1' ],
	unreset => [ sub { $_[0]->answer('7') }, '08006' ],
	reset_only => [ sub { $reset, ready }, '08006' ],
	reset_twice => [ sub { ($reset) x 2, $_[0]->answer('7') }, '08006' ],
	rows_of_the_reset => [ sub { message('1', ''), message('2', ''), row('666'), done('SELECT 1'), $_[0]->answer('7') }, '08006' ],
	answer_of_nobody => [ sub { $reset, ($_[0]->answer('7')) x 2 }, '08006' ],
	notices => [ sub { map({ message('N', "SWARNING\0C01000\0Mof the one before\0\0"), $_ } message('1', ''), message('2', ''), done('DISCARD ALL')), $_[0]->answer('7') }, '7' ],
	changed => [ sub { message('S', "DateStyle\0German, DMY\0"), $reset, $_[0]->answer('01/02/2020') }, '2020-01-02', 'a date' ],
	failing => [ sub { $reset, failure(S => 'ERROR', C => '22012', M => 'division by zero'), ready }, '22012' ],
);
my $go = PostgreSQL::Test::Utils::tempdir . '/go';
my %behaviours = (
	old => { version => '14.4', do => sub { $_[0]->serve } },
	gone => sub {
		$_[0]->serve if -e $go;
		$_[0]->serve(1);
		select undef, undef, undef, 0.01 until -e $go;
	},
	new => { version => '14.5', do => sub { $_[0]->serve(1); $_[0]->receive; $_[0]->send($reset, $_[0]->answer('1')); $_[0]->serve } },
);
foreach my $what (keys %answers)
{
	my $say = $answers{$what}[0];
	my $mark = PostgreSQL::Test::Utils::tempdir . "/$what";

	# only the first connection answers like this
	$behaviours{$what} = sub {
		my ($fake) = @_;

		$fake->serve if !mkdir $mark;
		$fake->serve(1);
		$fake->{mute} = $what =~ /^marker/;
		$fake->receive;
		$fake->send($say->($fake));
		$fake->{mute} = 0;
		$fake->serve if $what !~ /silent|fatal/;
	};
}
my $fake = PgpxFakeServer->new(%behaviours);
my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'one', options => { pool_size => 1 });
make_pool($local, $remote, server => 'own_reset', options => { pool_size => 1, reset_command => 'SET a.b = 1' });
make_pool($local, $remote, server => 'start', options => { pool_size => 1, start_commands => "SET a.b = 'started'" });
make_pool($local, $remote, server => 'never', options => { pool_size => 1, reset => 'never' });
make_pool($local, $remote, server => 'aging', options => { pool_size => 1, max_lifetime => '500 ms' });
$remote->safe_psql('remote_db', 'CREATE TABLE log (n int); GRANT ALL ON log TO remote_app; '
	  . 'CREATE TABLE many (t text); GRANT SELECT ON many TO remote_app');

my $first = PgpxSession->new($local);
my $second = PgpxSession->new($local);
my $third = PgpxSession->new($local);

sub pipelined_count
{
	my ($server) = @_;

	return $local->safe_psql('postgres', "SELECT pipelined FROM pgpool.stats WHERE server = '$server'");
}

sub counter
{
	my ($name, $server) = @_;

	return $local->safe_psql('postgres', "SELECT $name FROM pgpool.stats WHERE server = '$server'");
}

# $waiter starts SQL that has to wait while $holder holds the connection, on which
# $before is executed. Returns when $waiter waits.
sub queue_behind
{
	my ($server, $before, $waiter, $sql) = @_;
	my $lease = lease($first, $server);

	$first->run("SELECT pgpool.exec($lease, \$x\$$_\$x\$)"), is($first->error, '', "before: $_") foreach @$before;
	$waiter->start($sql);
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') or die 'no waiter';
	return $lease;
}

# The same, and the lease is returned. Returns the result of the waiter.
sub behind
{
	my ($server, $before, $sql) = @_;
	my $lease = queue_behind($server, $before, $second, $sql);

	$first->run("SELECT pgpool.checkin($lease)");
	is($first->error, '', 'predecessor has returned its lease');
	return $second->finish(30);
}

sub query
{
	my ($server, $sql, $columns) = @_;

	return "SELECT * FROM pgpool.query('$server', \$\$$sql\$\$) AS t($columns)";
}

# the predecessor sends the statement, which runs in a clean session
is(behind('one', ['SELECT 1'], query('one', 'SELECT 7', 'a int')), '7', 'pending statement is answered');
is(pipelined_count('one'), '1', 'statement was pipelined');
my @traces = (
	'SET search_path = pg_temp', 'CREATE TEMP TABLE trace (a int)', 'PREPARE trace AS SELECT 1', 'LISTEN trace',
	'SELECT pg_advisory_lock(7)', "SET DateStyle = 'German'", "SET statement_timeout = '1 h'"
);
is(behind('one', \@traces, query('one', <<'EOT', 'a text')),
SELECT concat_ws(',', current_setting('search_path'), to_regclass('pg_temp.trace'), (SELECT count(*) FROM pg_prepared_statements),
	(SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
	current_setting('statement_timeout'), date '2020-02-01')
EOT
	'"$user", public,0,0,0,0,2020-02-01', 'statement finds no traces of the predecessor');
is(behind('one', ["SET DateStyle = 'German'"], query('one', "SELECT date '2020-02-03', now() > '2020-01-01'", 'a date, b bool')),
	'2020-02-03|t', 'values are read with the right DateStyle');
is(pipelined_count('one'), '3', 'both statements were pipelined');

# parameters, NULL, many rows, no rows, utility statements, errors
is(behind('one', ['SELECT 1'], q{SELECT * FROM pgpool.query('one', 'SELECT $1, $2::text, $3::int', 'a', NULL, 5) AS t(a text, b text, c int)}),
	'a||5', 'parameters are sent');
is(behind('one', ['SELECT 1'], 'SELECT count(*), sum(a) FROM (' . query('one', 'SELECT generate_series(1, 100000)', 'a int') . ') s'),
	'100000|5000050000', 'many rows are received');
is(behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', 'INSERT INTO log SELECT generate_series(1, 3)')}), '3', 'number of affected rows is returned');
is(behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', 'TRUNCATE log')}), '0', 'utility statement succeeds');
is(behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', 'VACUUM log')}), '0', 'statement that cannot run in a transaction succeeds');
is($second->error, '', 'statements report no error');
is(pipelined_count('one'), '8', 'all statements were pipelined');
behind('one', ['SET search_path = pg_temp'], query('one', 'SELECT 1 / 0', 'a int'));
$second->failed('22012', qr/division by zero/, 'error of the statement is reported');
is($second->run(query('one', 'SHOW search_path', 'a text')), '"$user", public', 'error does not undo the reset');
behind('one', ['SELECT 1'], query('one', 'SELEC', 'a int'));
$second->failed('42601', qr/syntax error/, 'syntax error is reported');
behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', '')});
$second->failed('22023', qr/contains no statement/, 'empty statement is refused');
is(counter('closed_broken + closed_reset + closed_with_lease', 'one'), '0', 'no connection was lost');
behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', 'COPY log TO STDOUT')});
$second->failed('0A000', qr/COPY/, 'COPY TO STDOUT is refused');
behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', 'COPY log FROM STDIN')});
$second->failed('0A000', qr/COPY/, 'COPY FROM STDIN is refused');
is($second->run(query('one', 'SELECT 8', 'a int')), '8', 'next statement receives its own answer');
ok(wait_until($local, sub { counter('closed_broken + closed_reset + closed_with_lease', 'one') }, 2), 'each COPY has closed its connection');

# (the connection closes if the end of the answer has not arrived yet)
behind('one', ['SELECT 1'], query('one', 'SELECT 1, 2', 'a int'));
$second->failed('42804', qr/column/, 'wrong number of columns is reported');
is($second->run(query('one', 'SELECT 8', 'a int')), '8', 'pool works after the error');
is(pipelined_count('one'), '14', 'failed statements were pipelined, too');

# statements that are not pipelined succeed as well
my $before = pipelined_count('one');
is(behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', 'INSERT INTO log VALUES (1); INSERT INTO log VALUES (2)')}),
	'2', 'several statements succeed');
is(behind('one', ['SELECT 1'], "SELECT length(a) FROM (" . query('one', q{SELECT '} . 'x' x 3000 . q{'}, 'a text') . ') s'),
	'3000', 'long statement succeeds');
is( behind('one', ['SELECT 1'], q{SELECT length(a) FROM pgpool.query('one', 'SELECT } . join('||', map { "\$$_" } 1 .. 250)
		  . q{', VARIADIC array_fill('x'::text, ARRAY[250])) AS t(a text)}),
	'250', 'statement with many short parameters succeeds');
is(behind('one', [], query('one', 'SELECT 9', 'a int')), '9', 'statement after an unused lease succeeds');
like(behind('one', ['SELECT 1'], "SELECT pgpool.checkout('one')"), qr/^\d+$/, 'lease is granted');
$second->run('SELECT pgpool.checkin_all()');
is(pipelined_count('one'), $before, 'no such statement was pipelined');
is(behind('own_reset', ['SET a.b = 2'], query('own_reset', 'SHOW a.b', 'a text')), '1', 'own reset command: statement succeeds without pipelining');
is(behind('start', ["SET a.b = 'other'"], query('start', 'SHOW a.b', 'a text')), 'started', 'start commands: statement succeeds without pipelining');
is(pipelined_count($_), '0', "$_: no statement was pipelined") foreach qw(own_reset start);
is(behind('never', ["SET a.b = 'other'"], query('never', 'SHOW a.b', 'a text')), 'other', 'never: next session finds the unreset session');
is(pipelined_count('never'), '1', 'never: statement was pipelined');

# Return a lease with a temporary table. A lock on the table stops the reset, which is
# cancelled then.
my $locker = PgpxSession->new($remote, dbname => 'remote_db');
sub return_and_fail_reset
{
	my ($lease) = @_;
	my ($pid, $schema) = split /\|/, $first->run("SELECT * FROM pgpool.query($lease, 'SELECT pg_backend_pid(), pg_my_temp_schema()::regnamespace') AS t(a int, b text)");

	$locker->run("BEGIN; LOCK TABLE $schema.held IN ACCESS SHARE MODE");
	$first->run("SELECT pgpool.checkin($lease)");
	wait_until($remote, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid", 'Lock');
	$remote->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	return;
}

# the reset fails: the statement has not run, and runs on another connection
$remote->safe_psql('remote_db', 'TRUNCATE log');
my $failed = counter('closed_reset', 'one');
my $lease = queue_behind('one', ['CREATE TEMP TABLE held ()'], $second, q{SELECT pgpool.exec('one', 'INSERT INTO log VALUES (42)')});
return_and_fail_reset($lease);
is($second->finish(30), '1', 'statement behind a failed reset succeeds');
$locker->run('COMMIT');
is($second->error, '', 'owner of the statement receives no error');
is($remote->safe_psql('remote_db', 'SELECT string_agg(n::text, chr(44)) FROM log'), '42', 'statement ran once');
is(counter('closed_reset', 'one'), $failed + 1, 'connection of the failed reset was closed');

# The waiter keeps its queue position: the next one is granted a connection after it.
# (If the waiter cannot run at once it enqueues again for as long as a login takes,
# hence the retry.)
ok(wait_until($local, sub {
	$remote->safe_psql('remote_db', 'TRUNCATE log');
	$lease = queue_behind('one', ['CREATE TEMP TABLE held ()'], $second,
		q{SELECT pgpool.exec('one', 'INSERT INTO log SELECT 1 FROM pg_sleep(0.2)')});
	$third->start(q{SELECT pgpool.exec('one', 'INSERT INTO log SELECT count(*) FROM log')});
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '2');
	return_and_fail_reset($lease);
	$_->finish(30), is($_->error, '', 'both statements succeed') foreach $second, $third;
	$locker->run('COMMIT');
	return $remote->safe_psql('remote_db', 'SELECT string_agg(n::text, chr(44) ORDER BY ctid) FROM log');
}, '1,1', 20), 'statement behind a failed reset keeps its queue position');

# The connection ends during the lease before the worker notices: the waiter is granted
# another one.
$lease = queue_behind('one', ['SELECT 1'], $second, query('one', 'SELECT 10', 'a int'));
my $worker = worker_pid($local);
my $ending = $local->safe_psql('postgres', "SELECT remote_pid FROM pgpool.leases WHERE lease = $lease");
kill 'STOP', $worker;
terminate($remote, $ending);
$first->run("SELECT pgpool.checkin($lease)");
kill 'CONT', $worker;
is($second->finish(30), '10', 'connection that ended during the lease is replaced') or diag($second->error);

# A late cancel request must not hit the next session's statement. (Over TLS nothing is
# sent while the worker is stopped.)
if (!over_tls())
{
	$lease = queue_behind('one', ['SELECT 1'], $second, query('one', 'SELECT 14 FROM pg_sleep(1)', 'a int'));
	kill 'STOP', $worker;
	is($first->run("SELECT pgpool.send($lease, 'SELECT 3 FROM pg_sleep(0.1)'); SELECT pgpool.cancel($lease); SELECT * FROM pgpool.result($lease) AS t(a int); "
		  . "SELECT pgpool.checkin($lease)"), "\nt\n3\n", 'statement ends before its cancel request is sent');
	kill 'CONT', $worker;
	is($second->finish(30), '14', 'statement of the next session is not cancelled') or diag($second->error);
}

# A pipelined statement is that of its owner: it ends by cancel, terminate, the administrative
# function, the end of the worker, and the end of the remote session.
my $sleep = query('one', 'SELECT 1 FROM pg_sleep(600)', 'a int');
my $asleep = q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app' AND state = 'active'};
my %ends = (
	cancel => [ sub { 'SELECT pg_cancel_backend(' . $_[0]->pid . ')' }, '57014' ],
	terminate => [ sub { 'SELECT pg_terminate_backend(' . $_[0]->pid . ', 20000)' } ],
	revoke => [ sub { 'SELECT pgpool.terminate(lease) FROM pgpool.leases' }, 'PX001' ],
	worker => [ sub { 'SELECT pg_terminate_backend(pid, 20000) FROM pgpool.workers' }, '08006' ],
);
foreach my $how (sort keys %ends)
{
	my ($end, $sqlstate) = @{ $ends{$how} };
	my $victim = PgpxSession->new($local);

	$before = pipelined_count('one');
	$lease = queue_behind('one', ['SELECT 1'], $victim, $sleep);
	$first->run("SELECT pgpool.checkin($lease)");
	wait_until($remote, $asleep, '1');
	# its owner counts it when it wakes, behind a relay at the next tick at the latest
	ok(wait_until($local, sub { pipelined_count('one') }, $before + 1, 20), "$how: statement was pipelined");
	$third->run($end->($victim));
	is($third->error, '', "$how: action succeeds");
	$victim->finish(30);
	$victim->failed($sqlstate, qr/./, "$how: owner receives the error") if $sqlstate;
	ok($victim->is_gone, "$how: owner has ended") if !$sqlstate;
	ok(wait_until($remote, $asleep, '0'), "$how: nothing runs on the remote server");
	is($third->run(query('one', "SELECT '$how'", 'a text')), $how, "$how: next statement receives its own answer");
	$victim->quit;
}
$lease = queue_behind('one', ['SELECT 1'], $second, $sleep);
$first->run("SELECT pgpool.checkin($lease)");
wait_until($remote, $asleep, '1');
$remote->safe_psql('remote_db', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app'});
$second->finish(30);
$second->failed('08006', qr/was lost/, 'lost connection is reported, and the statement is not repeated');

# the lease is revoked while its owner is stopped: the statement is cancelled
$lease = queue_behind('one', ['SELECT 1'], $second, $sleep);
kill 'STOP', $second->pid;
$first->run("SELECT pgpool.checkin($lease)");
ok(wait_until($remote, $asleep, '1'), 'statement of a stopped session runs');
is($third->run('SELECT state FROM pgpool.leases'), 'active', 'lease is shown as active');
is($third->run('SELECT pgpool.terminate(lease) FROM pgpool.leases'), 't', 'lease is terminated');
ok(wait_until($remote, $asleep, '0'), 'statement ends');
kill 'CONT', $second->pid;
$second->finish(30);
$second->failed('PX001', qr/was terminated/, 'stopped session receives the error');

# The owner needs a socket from the worker first. A cancel meanwhile leaves a running
# statement, which has to be cancelled.
if (!over_tls())
{
	my $newcomer = PgpxSession->new($local);
	$lease = queue_behind('one', ['SELECT 1'], $newcomer, $sleep);
	$worker = worker_pid($local);
	kill 'STOP', $worker;
	$first->run("SELECT pgpool.checkin($lease)");
	ok(wait_until($remote, $asleep, '1'), 'statement of a session without a socket runs');
	$third->run('SELECT pg_cancel_backend(' . $newcomer->pid . ')');
	$newcomer->finish(30);
	$newcomer->failed('57014', qr/canceling statement/, 'session is cancelled');
	kill 'CONT', $worker;
	ok(wait_until($remote, $asleep, '0'), 'abandoned statement is cancelled');
	$newcomer->quit;
}

# a pool that is paused or has new options does not pipeline
$lease = queue_behind('one', ['SELECT 1'], $second, query('one', 'SELECT 11', 'a int'));
$third->run("SELECT pgpool.pause('one')");
$before = pipelined_count('one');
$first->run("SELECT pgpool.checkin($lease)");
is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.waiters'), '1', 'paused: session waits');
$third->run("SELECT pgpool.resume('one')");
is($second->finish(30), '11', 'resumed: statement runs');
$lease = queue_behind('one', ['SELECT 1'], $second, query('one', 'SHOW a.b', 'a text'));
$third->run("ALTER SERVER one OPTIONS (ADD start_commands 'SET a.b = 5')");
$first->run("SELECT pgpool.checkin($lease)");
is($second->finish(30), '5', 'new options: statement runs with them');
is(pipelined_count('one'), $before, 'neither statement was pipelined');
$third->run('ALTER SERVER one OPTIONS (DROP start_commands)');

# The mapping changes after the statement was sent, while its owner is stopped: it has
# run once, and its answer is used.
my $mapping = sub {
	my ($server) = @_;
	my $options = $local->safe_psql('postgres', "SELECT string_agg(format('%I %L', option_name, option_value), ', ') FROM pg_user_mappings, pg_options_to_table(umoptions) WHERE srvname = '$server' AND usename = CURRENT_USER");

	return "BEGIN; DROP USER MAPPING FOR CURRENT_USER SERVER $server; CREATE USER MAPPING FOR CURRENT_USER SERVER $server OPTIONS ($options); COMMIT";
};
$remote->safe_psql('remote_db', 'TRUNCATE log');
$lease = queue_behind('one', ['SELECT 1'], $second, q{SELECT pgpool.exec('one', 'INSERT INTO log VALUES (5)')});
kill 'STOP', $second->pid;
$first->run("SELECT pgpool.checkin($lease)");
ok(wait_until($remote, sub { $remote->safe_psql('remote_db', 'SELECT count(*) FROM log') }, '1'), 'statement has run while its owner is stopped');
$third->run($mapping->('one'));
is($third->error, '', 'user mapping is replaced');
kill 'CONT', $second->pid;
is($second->finish(30), '1', 'owner receives the answer') or diag($second->error);
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM log'), '1', 'statement ran once only');

# a waiter moves to another pool with its pending statement
my $gate = PgpxSession->new($remote, dbname => 'remote_db');
$gate->run('SELECT pg_advisory_lock(21)');
$lease = queue_behind('one', ['SELECT 1'], $second, query('one', 'SELECT 21 FROM pg_advisory_xact_lock(21)', 'a int'));
my $fourth = PgpxSession->new($local);
$fourth->start(query('one', 'SELECT 22 FROM pg_advisory_xact_lock(21)', 'a int'));
wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '2');

# The new pool has no connection before both wait in it. Otherwise the first one may send the
# reset behind its statement.
$worker = worker_pid($local);
kill 'STOP', $worker;
$third->run($mapping->('one'));
ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters WHERE pool_id = (SELECT max(pool_id) FROM pgpool.stats)', '2'), 'both wait in the new pool');
kill 'CONT', $worker;
ok(wait_until($remote, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}, '1'), 'one statement runs in the new pool');
$gate->quit;
is($second->finish(30), '21', 'waiter moves to the pool of the new mapping') or diag($second->error);
is($fourth->finish(30), '22', 'next waiter moves, too') or diag($fourth->error);
ok(wait_until($local, "SELECT max(pipelined) FROM pgpool.stats WHERE server = 'one' AND pool_id = (SELECT max(pool_id) FROM pgpool.stats)", '1'),
	q{next waiter's statement was pipelined in the new pool});
$first->run("SELECT pgpool.checkin($lease)");
ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE server = 'one'}, '1'), 'pools of the old mappings are removed');

# connections expire in a pool that is never idle
$third->start("SELECT pgpool.exec('aging', 'SELECT pg_sleep(0.001)') FROM generate_series(1, 100000)");
$fourth->start("SELECT pgpool.exec('aging', 'SELECT pg_sleep(0.001)') FROM generate_series(1, 100000)");
ok(wait_until($local, "SELECT closed_lifetime >= 2 AND pipelined > 100 FROM pgpool.stats WHERE server = 'aging'"), 'max_lifetime applies to connections that are always in use');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $_->pid . ')'), $_->finish(30) foreach $third, $fourth;
$fourth->quit;

# A waiter is stopped while the options change and another session publishes them. It
# must return its connection under the new options.
foreach my $next (query('never', q{SELECT current_setting('a.trace', true)}, 'a text'), q{SELECT pgpool.checkout('never')})
{
	$third->run("ALTER SERVER never OPTIONS (SET reset 'never')");
	$lease = queue_behind('never', ['SELECT 1'], $second, query('never', q{SELECT set_config('a.trace', 'left', false)}, 'a text'));
	kill 'STOP', $second->pid;
	$third->run("ALTER SERVER never OPTIONS (SET reset 'always')");
	$third->start($next);
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '2');

	# the worker processes its messages in order, so it has the new options now
	my $after = PgpxSession->new($local);
	is($after->run(query('start', 'SELECT 1', 'a int')), '1', 'another pool works');
	$after->quit;
	kill 'CONT', $second->pid;
	$first->run("SELECT pgpool.checkin($lease)");
	is($second->finish(30), 'left', 'first waiter is granted a connection under new options');
	my $got = $third->finish(30);
	$got = $third->run("SELECT * FROM pgpool.query($got, 'SELECT current_setting(''a.trace'', true)') AS t(a text)") if $next =~ /checkout/;
	is($got, '', 'first waiter resets under the new options: second waiter finds no traces');
	$third->run('SELECT pgpool.checkin_all()');
}

# a pending statement must not remain when its session leaves the queue
$lease = queue_behind('one', ['SELECT 1'], $second, query('one', 'SELECT 12', 'a int'));
$third->run('SELECT pg_cancel_backend(' . $second->pid . ')');
$second->finish(30);
$second->failed('57014', qr/user request/, 'session with a pending statement leaves the queue');
$second->start("SELECT pgpool.checkout('one')");
wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1');
$before = pipelined_count('one');
$first->run("SELECT pgpool.exec($lease, 'SELECT 1'); SELECT pgpool.checkin($lease)");
like(my $other = $second->finish(30), qr/^\d+$/, 'session enqueues again for a lease');
is(pipelined_count('one'), $before, 'no statement was sent on the lease');
is($second->run("SELECT * FROM pgpool.query($other, 'SELECT 13') AS t(a int)"), '13', 'session receives the answers of its own statements') or diag($second->error);
$second->run('SELECT pgpool.checkin_all()');

# all answers of fake servers, and versions that are too old for pipelining
foreach my $what (grep { $_ ne 'gone' } sort keys %behaviours)
{
	my $wanted = $answers{$what} ? $answers{$what}[1] : '1';

	$first->run(<<"EOT");
CREATE SERVER s_$what FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '${\ $fake->port}', dbname '$what',
	sslmode 'disable', pool_size '1', operation_timeout '${\ ($what eq 'silent' ? '1s' : '60s')}', test_period '-1');
CREATE USER MAPPING FOR CURRENT_USER SERVER s_$what OPTIONS (user 'any_user', password 'something');
EOT
	$lease = lease($first, "s_$what");
	$first->run("SELECT * FROM pgpool.query($lease, 'select 1') AS t(a text)");
	$second->start(query("s_$what", 'select 1', $answers{$what} && $answers{$what}[2] || 'a text'));
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') or die 'no waiter';
	$first->run("SELECT pgpool.checkin($lease)");
	my $got = $second->finish(30);
	is($second->sqlstate || $got, $wanted, "$what: result is $wanted") or diag($got . $second->error);
	unlike($second->error, qr/of the one before/, "$what: no message of the predecessor is reported");
	is(pipelined_count("s_$what"), $what eq 'old' ? '0' : '1', "$what: " . ($what eq 'old' ? 'statement was not pipelined' : 'statement was pipelined'));
	is($second->run(query("s_$what", 'select 1', 'a text')), '1', "$what: next statement is answered");
	$first->run("DROP SERVER s_$what CASCADE");
}

# True if a connection to the fake server is in CLOSE_WAIT, that is, its end has
# arrived.
sub end_has_come
{
	my $port = sprintf ':%04X', $fake->port;

	return PostgreSQL::Test::Utils::slurp_file('/proc/net/tcp') =~ /$port 08 / ? 't' : 'f';
}

# the remote server has closed the connection, and no process has noticed
$first->run(<<"EOT");
CREATE SERVER s_gone FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '${\ $fake->port}', dbname 'gone', sslmode 'disable', pool_size '1');
CREATE USER MAPPING FOR CURRENT_USER SERVER s_gone OPTIONS (user 'any_user', password 'something');
EOT
$lease = lease($first, 's_gone');
$first->run("SELECT * FROM pgpool.query($lease, 'select 1') AS t(a text)");
$second->start(query('s_gone', 'select 1', 'a text'));
wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') or die 'no waiter';
kill 'STOP', worker_pid($local);
PostgreSQL::Test::Utils::append_to_file($go, 'x');
wait_until($local, \&end_has_come) or die 'the end does not arrive';
$first->run("SELECT pgpool.checkin($lease)");
kill 'CONT', worker_pid($local);
is($second->finish(30), '1', 'closed connection is replaced without an error') or diag($second->error);
$first->run('DROP SERVER s_gone CASCADE');

$_->quit foreach $first, $second, $third, $locker;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

# Who returns a connection sends the statement of the first in the queue along
# with the reset: it runs in a clean session or not at all, whatever its owner, its
# predecessor, the remote or an administrator do in the meantime.
use strict;
use warnings;

use PgpxFakeServer qw(message ready done columns row failure);
use PgpxTest;
use Test::More;

# Remotes of our own making: what each answers to a statement that was carried, and
# what comes of it.
my $reset = message('1', '') . message('2', '') . done('DISCARD ALL');
my %answers = (
	right => [ sub { $reset, $_[0]->answer('7') }, '7' ],
	refused => [ sub { failure(S => 'ERROR', C => '25001', M => 'no'), ready }, '1' ],
	half => [ sub { message('1', ''), failure(S => 'ERROR', C => '57014', M => 'no'), ready }, '1' ],
	fatal => [ sub { failure(S => 'FATAL', V => 'FATAL', C => '57P01', M => 'bye') }, '1' ],
	silent => [ sub { '' }, '08006' ],
	token_missing => [ sub { $reset, $_[0]->answer('7') }, '08006' ],
	token_of_another => [ sub { message('1', ''), message('t', pack 'nN3', 3, 1, 2, 3), message('n', ''), $reset, $_[0]->answer('7') }, '08006' ],
	token_twice => [ sub { $_[0]->echo, $_[0]->echo, $reset, $_[0]->answer('7') }, '08006' ],
	token_error => [ sub { failure(S => 'ERROR', V => 'ERROR', C => '22012', M => 'of the one before'), ready, $_[0]->echo, $reset, $_[0]->answer('7') }, '08006' ],
	token_fatal => [ sub { failure(S => 'FATAL', V => 'FATAL', C => '57P01', M => 'bye') }, '1' ],
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

	# the first connection alone
	$behaviours{$what} = sub {
		my ($fake) = @_;

		$fake->serve if !mkdir $mark;
		$fake->serve(1);
		$fake->{mute} = $what =~ /^token/;
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
make_pool($local, $remote, server => 'transfer', options => { pool_size => 1, reset => 'on_transfer' });
make_pool($local, $remote, server => 'never', options => { pool_size => 1, reset => 'never' });
make_pool($local, $remote, server => 'aging', options => { pool_size => 1, max_lifetime => '500 ms' });
make_pool($local, $remote, server => 'used', options => { pool_size => 1, max_uses => 1 });
$remote->safe_psql('remote_db', 'CREATE TABLE log (n int); GRANT ALL ON log TO remote_app; '
	  . 'CREATE TABLE many (t text); GRANT SELECT ON many TO remote_app');

my $first = PgpxSession->new($local);
my $second = PgpxSession->new($local);
my $third = PgpxSession->new($local);

sub carried
{
	my ($server) = @_;

	return $local->safe_psql('postgres', "SELECT pipelined FROM pgpool.stats WHERE server = '$server'");
}

sub counter
{
	my ($name, $server) = @_;

	return $local->safe_psql('postgres', "SELECT $name FROM pgpool.stats WHERE server = '$server'");
}

# $waiter runs SQL that has to wait while $holder has the connection, on which
# $before is run.  Nobody has been answered when this returns.
sub queue_behind
{
	my ($server, $before, $waiter, $sql) = @_;
	my $lease = lease($first, $server);

	$first->run("SELECT pgpool.exec($lease, \$x\$$_\$x\$)"), is($first->error, '', "before: $_") foreach @$before;
	$waiter->start($sql);
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') or die 'no waiter';
	return $lease;
}

# The same, and the connection goes on.
sub behind
{
	my ($server, $before, $sql) = @_;
	my $lease = queue_behind($server, $before, $second, $sql);

	$first->run("SELECT pgpool.checkin($lease)");
	is($first->error, '', 'the predecessor has returned its lease');
	return $second->finish(30);
}

sub query
{
	my ($server, $sql, $columns) = @_;

	return "SELECT * FROM pgpool.query('$server', \$\$$sql\$\$) AS t($columns)";
}

# The statement is sent by the one before, in a session that is clean.
is(behind('one', ['SELECT 1'], query('one', 'SELECT 7', 'a int')), '7', 'a statement is answered');
is(carried('one'), '1', 'it was carried');
my @traces = (
	'SET search_path = pg_temp', 'CREATE TEMP TABLE trace (a int)', 'PREPARE trace AS SELECT 1', 'LISTEN trace',
	'SELECT pg_advisory_lock(7)', "SET DateStyle = 'German'", "SET statement_timeout = '1 h'"
);
is(behind('one', \@traces, query('one', <<'EOT', 'a text')),
SELECT concat_ws(',', current_setting('search_path'), to_regclass('pg_temp.trace'), (SELECT count(*) FROM pg_prepared_statements),
	(SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
	current_setting('statement_timeout'), date '2020-02-01')
EOT
	'"$user", public,0,0,0,0,2020-02-01', 'it finds nothing of the session before');
is(behind('one', ["SET DateStyle = 'German'"], query('one', "SELECT date '2020-02-03', now() > '2020-01-01'", 'a date, b bool')),
	'2020-02-03|t', 'and its values are read as they are written');
is(carried('one'), '3', 'both were carried');

# Parameters, NULL, many rows, no rows, utility statements, errors.
is(behind('one', ['SELECT 1'], q{SELECT * FROM pgpool.query('one', 'SELECT $1, $2::text, $3::int', 'a', NULL, 5) AS t(a text, b text, c int)}),
	'a||5', 'parameters');
is(behind('one', ['SELECT 1'], 'SELECT count(*), sum(a) FROM (' . query('one', 'SELECT generate_series(1, 100000)', 'a int') . ') s'),
	'100000|5000050000', 'many rows');
is(behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', 'INSERT INTO log SELECT generate_series(1, 3)')}), '3', 'rows affected');
is(behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', 'TRUNCATE log')}), '0', 'a utility statement');
is(behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', 'VACUUM log')}), '0', 'one that no transaction may have around it');
is($second->error, '', 'no error');
is(carried('one'), '8', 'all were carried');
behind('one', ['SET search_path = pg_temp'], query('one', 'SELECT 1 / 0', 'a int'));
$second->failed('22012', qr/division by zero/, 'its error is its own');
is($second->run(query('one', 'SHOW search_path', 'a text')), '"$user", public', 'and the reset is not undone by it');
behind('one', ['SELECT 1'], query('one', 'SELEC', 'a int'));
$second->failed('42601', qr/syntax error/, 'no syntax');
behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', '')});
$second->failed('22023', qr/holds no statement/, 'no statement');
behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', 'COPY log TO STDOUT')});
$second->failed('0A000', qr/COPY/, 'COPY TO STDOUT is refused');
is(counter('closed_broken + closed_reset + closed_holder_died', 'one'), '0', 'no connection was lost');

behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', 'COPY log FROM STDIN')});
$second->failed('0A000', qr/COPY/, 'COPY FROM STDIN is refused');
is($second->run(query('one', 'SELECT 8', 'a int')), '8', 'and the next statement has its own answer');
is(counter('closed_broken + closed_reset + closed_holder_died', 'one'), '1', 'from another connection');

# (this one costs the connection, should the end of its answer not be there yet)
behind('one', ['SELECT 1'], query('one', 'SELECT 1, 2', 'a int'));
$second->failed('42804', qr/column/, 'another number of columns');
is($second->run(query('one', 'SELECT 8', 'a int')), '8', 'and the pool works on');
is(carried('one'), '14', 'they were carried too');

# What is not carried works all the same.
my $before = carried('one');
is(behind('one', ['SELECT 1'], q{SELECT pgpool.exec('one', 'INSERT INTO log VALUES (1); INSERT INTO log VALUES (2)')}),
	'2', 'several statements');
is(behind('one', ['SELECT 1'], "SELECT length(a) FROM (" . query('one', q{SELECT '} . 'x' x 3000 . q{'}, 'a text') . ') s'),
	'3000', 'a long statement');
is( behind('one', ['SELECT 1'], q{SELECT length(a) FROM pgpool.query('one', 'SELECT } . join('||', map { "\$$_" } 1 .. 250)
		  . q{', VARIADIC array_fill('x'::text, ARRAY[250])) AS t(a text)}),
	'250', 'one whose parameters are short, and many');
is(behind('one', [], query('one', 'SELECT 9', 'a int')), '9', 'behind one who has sent nothing');
like(behind('one', ['SELECT 1'], "SELECT pgpool.checkout('one')"), qr/^\d+$/, 'a lease');
$second->run('SELECT pgpool.checkin_all()');
is(carried('one'), $before, 'are not carried');
is(behind('own_reset', ['SET a.b = 2'], query('own_reset', 'SHOW a.b', 'a text')), '1', 'nor is any behind a reset of its own');
is(behind('start', ["SET a.b = 'other'"], query('start', 'SHOW a.b', 'a text')), 'started', 'nor behind start commands');
is(behind('used', ['SELECT 1'], query('used', 'SELECT 6', 'a int')), '6', 'nor on a connection that has had its uses');
ok(wait_until($local, sub { counter('closed_uses', 'used') }, '2'), 'which is closed');
is(carried($_), '0', "$_: not carried") foreach qw(own_reset start used);
is(behind('transfer', ["SET a.b = 'other'"], query('transfer', q{SELECT current_setting('a.b', true)}, 'a text')), '',
	'on_transfer: the next session has a clean one');
is(behind('never', ["SET a.b = 'other'"], query('never', 'SHOW a.b', 'a text')), 'other', 'never: it has the one that was left');
is(carried($_), '1', "$_: carried") foreach qw(transfer never);

# A statement of large results that is known comes in binary, and is not carried.
my $large = 'SELECT count(*) FROM (' . query('one', 'SELECT generate_series(1, 1000)', 'a int') . ') s';
$second->run($large) foreach 1, 2;
$before = carried('one');
is(behind('one', ['SELECT 1'], $large), '1000', 'a large result that is known');
is(carried('one'), $before, 'is asked for in binary, by its owner');

# The reset fails: the statement has not run, and runs on another connection.
my $tables = 'DO $d$BEGIN FOR i IN 1 .. 400 LOOP EXECUTE \'CREATE TEMP TABLE t\' || i || \' (a int)\'; END LOOP; END$d$';
$remote->safe_psql('remote_db', 'TRUNCATE log');
my $failed = counter('closed_reset', 'one');
is(behind('one', [ $tables, "SET statement_timeout = '1 ms'" ], q{SELECT pgpool.exec('one', 'INSERT INTO log VALUES (42)')}),
	'1', 'behind a reset that fails a statement is run');
is($second->error, '', 'its owner sees nothing of that');
is($remote->safe_psql('remote_db', 'SELECT string_agg(n::text, chr(44)) FROM log'), '42', 'it has run once');
is(counter('closed_reset', 'one'), $failed + 1, 'on another connection');
is(counter('resets_failed', 'one'), '1', 'and the failed reset is counted');

# In the same way its place in the queue is kept: the next one comes after it.  (Unless it
# is kept from running, where it gives up the one and stands in line again, for as long as
# a login takes: not each time.)
my $lease;
ok(wait_until($local, sub {
	$remote->safe_psql('remote_db', 'TRUNCATE log');
	$lease = queue_behind('one', [ $tables, "SET statement_timeout = '1 ms'" ], $second,
		q{SELECT pgpool.exec('one', 'INSERT INTO log SELECT 1 FROM pg_sleep(0.2)')});
	$third->start(q{SELECT pgpool.exec('one', 'INSERT INTO log SELECT count(*) FROM log')});
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '2');
	$first->run("SELECT pgpool.checkin($lease)");
	$_->finish(30), is($_->error, '', 'no error') foreach $second, $third;
	return $remote->safe_psql('remote_db', 'SELECT string_agg(n::text, chr(44) ORDER BY ctid) FROM log');
}, '1,1', 20), 'in their order');

# The connection has died in its holder's hands, and not even the worker has seen
# it: the next one does not either.
$lease = queue_behind('one', ['SELECT 1'], $second, query('one', 'SELECT 10', 'a int'));
my $worker = worker_pid($local);
kill 'STOP', $worker;
is($remote->safe_psql('remote_db', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/one'}),
	't', 'the remote session ends while it is held');
$first->run("SELECT pgpool.checkin($lease)");
kill 'CONT', $worker;
is($second->finish(30), '10', 'a connection that died while it was held is replaced') or diag($second->error);

# A cancel that is still on its way must not hit the next one's statement.  (Over
# TLS nothing moves while the worker is stopped.)
if (!over_tls())
{
	$lease = queue_behind('one', ['SELECT 1'], $second, query('one', 'SELECT 14 FROM pg_sleep(1)', 'a int'));
	kill 'STOP', $worker;
	is($first->run("SELECT pgpool.send($lease, 'SELECT 3 FROM pg_sleep(0.1)'); SELECT pgpool.cancel($lease); SELECT * FROM pgpool.result($lease) AS t(a int); "
		  . "SELECT pgpool.checkin($lease)"), "\nt\n3\n", 'a statement ends before the cancel is sent');
	kill 'CONT', $worker;
	is($second->finish(30), '14', 'and the next one is not hit') or diag($second->error);
}

# A statement that was sent by somebody else is its owner's: cancel, terminate,
# the administrator, the worker, the remote.
my $sleep = query('one', 'SELECT 1 FROM pg_sleep(600)', 'a int');
my $asleep = q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app' AND state = 'active'};
my %ends = (
	cancel => [ sub { 'SELECT pg_cancel_backend(' . $_[0]->pid . ')' }, '57014' ],
	timeout => [ sub { 'SELECT 1' }, '57014', "SET statement_timeout = '3 s'; " ],
	terminate => [ sub { 'SELECT pg_terminate_backend(' . $_[0]->pid . ', 20000)' } ],
	lever => [ sub { 'SELECT pgpool.terminate(lease) FROM pgpool.leases' }, 'PX001' ],
	worker => [ sub { 'SELECT pg_terminate_backend(pid, 20000) FROM pgpool.workers' }, '08006' ],
);
foreach my $how (sort keys %ends)
{
	my ($end, $sqlstate, $prepare) = @{ $ends{$how} };
	my $victim = PgpxSession->new($local);

	$victim->run($prepare) if $prepare;
	$before = carried('one');
	$lease = queue_behind('one', ['SELECT 1'], $victim, $sleep);
	$first->run("SELECT pgpool.checkin($lease)");
	wait_until($remote, $asleep, '1', 20, 'remote_db') if $how ne 'timeout';
	# counted by its owner, when it wakes up: behind a relay at the next tick at the latest
	ok(wait_until($local, sub { carried('one') }, $before + 1, 20), "$how: the statement was carried");
	$third->run($end->($victim));
	is($third->error, '', "$how: done");
	$victim->finish(30);
	$victim->failed($sqlstate, qr/./, "$how: its owner is told") if $sqlstate;
	ok($victim->is_gone, "$how: its owner has gone") if !$sqlstate;
	ok(wait_until($remote, $asleep, '0'), "$how: nothing runs on over there");
	is($third->run(query('one', "SELECT '$how'", 'a text')), $how, "$how: the next has its own answer");
	$victim->quit;
}
$lease = queue_behind('one', ['SELECT 1'], $second, $sleep);
$first->run("SELECT pgpool.checkin($lease)");
wait_until($remote, $asleep, '1');
$remote->safe_psql('remote_db', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app'});
$second->finish(30);
$second->failed('08006', qr/was lost/, 'the remote ends it: it may have run, so it is not run again');

# Not even awake, and the lease is taken away: what runs on it ends.
$lease = queue_behind('one', ['SELECT 1'], $second, $sleep);
kill 'STOP', $second->pid;
$first->run("SELECT pgpool.checkin($lease)");
ok(wait_until($remote, $asleep, '1'), 'the statement of a session runs that is not awake');
is($third->run('SELECT state FROM pgpool.leases'), 'active', 'as the view says');
is($third->run('SELECT pgpool.terminate(lease) FROM pgpool.leases'), 't', 'its lease is taken away');
ok(wait_until($remote, $asleep, '0'), 'the statement ends');
kill 'CONT', $second->pid;
$second->finish(30);
$second->failed('PX001', qr/was terminated/, 'and the session is told');

# The socket has to be fetched first, which takes a worker: who is cancelled then
# leaves a statement that runs.
if (!over_tls())
{
	my $newcomer = PgpxSession->new($local);
	$lease = queue_behind('one', ['SELECT 1'], $newcomer, $sleep);
	$worker = worker_pid($local);
	kill 'STOP', $worker;
	$first->run("SELECT pgpool.checkin($lease)");
	ok(wait_until($remote, $asleep, '1'), 'the statement of a session runs that has no socket');
	$third->run('SELECT pg_cancel_backend(' . $newcomer->pid . ')');
	$newcomer->finish(30);
	$newcomer->failed('57014', qr/canceling statement/, 'it is cancelled');
	kill 'CONT', $worker;
	ok(wait_until($remote, $asleep, '0'), 'and so is what it has left');
	$newcomer->quit;
}

# A pool that is paused, or has new options, hands nothing over.
$lease = queue_behind('one', ['SELECT 1'], $second, query('one', 'SELECT 11', 'a int'));
$third->run("SELECT pgpool.pause('one')");
$before = carried('one');
$first->run("SELECT pgpool.checkin($lease)");
is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.waiters'), '1', 'paused: it waits');
$third->run("SELECT pgpool.resume('one')");
is($second->finish(30), '11', 'resumed: it runs');
$lease = queue_behind('one', ['SELECT 1'], $second, query('one', 'SHOW a.b', 'a text'));
$third->run("ALTER SERVER one OPTIONS (ADD start_commands 'SET a.b = 5')");
$first->run("SELECT pgpool.checkin($lease)");
is($second->finish(30), '5', 'new options: it runs under them');
is(carried('one'), $before, 'and neither was carried');
$third->run('ALTER SERVER one OPTIONS (DROP start_commands)');

# The mapping changes when the statement has been sent, and its owner is not awake:
# it has run once, and its answer is taken where it is.
my $mapping = sub {
	my ($server) = @_;
	my $options = $local->safe_psql('postgres', "SELECT string_agg(format('%I %L', option_name, option_value), ', ') FROM pg_user_mappings, pg_options_to_table(umoptions) WHERE srvname = '$server' AND usename = CURRENT_USER");

	return "BEGIN; DROP USER MAPPING FOR CURRENT_USER SERVER $server; CREATE USER MAPPING FOR CURRENT_USER SERVER $server OPTIONS ($options); COMMIT";
};
$remote->safe_psql('remote_db', 'TRUNCATE log');
$lease = queue_behind('one', ['SELECT 1'], $second, q{SELECT pgpool.exec('one', 'INSERT INTO log VALUES (5)')});
kill 'STOP', $second->pid;
$first->run("SELECT pgpool.checkin($lease)");
ok(wait_until($remote, sub { $remote->safe_psql('remote_db', 'SELECT count(*) FROM log') }, '1'), 'a statement has run, its owner is not awake');
$third->run($mapping->('one'));
is($third->error, '', 'his mapping is another');
kill 'CONT', $second->pid;
is($second->finish(30), '1', 'he has its answer') or diag($second->error);
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM log'), '1', 'and it has run once');

# Who waits moves to another pool with what he has offered.
$lease = queue_behind('one', ['SELECT 1'], $second, query('one', 'SELECT 21 FROM pg_sleep(0.2)', 'a int'));
my $fourth = PgpxSession->new($local);
$fourth->start(query('one', 'SELECT 22 FROM pg_sleep(0.2)', 'a int'));
wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '2');
$third->run($mapping->('one'));
is($second->finish(30), '21', 'who waits moves on to the pool of the new mapping') or diag($second->error);
is($fourth->finish(30), '22', 'and so does the next') or diag($fourth->error);
ok(wait_until($local, "SELECT max(pipelined) FROM pgpool.stats WHERE server = 'one' AND pool_id = (SELECT max(pool_id) FROM pgpool.stats)", '1'),
	'whose statement was carried there');
$first->run("SELECT pgpool.checkin($lease)");

# A pool that is never idle lets its connections retire.
$third->start("SELECT pgpool.exec('aging', 'SELECT pg_sleep(0.001)') FROM generate_series(1, 100000)");
$fourth->start("SELECT pgpool.exec('aging', 'SELECT pg_sleep(0.001)') FROM generate_series(1, 100000)");
ok(wait_until($local, "SELECT closed_lifetime >= 2 AND pipelined > 100 FROM pgpool.stats WHERE server = 'aging'"), 'max_lifetime ends connections that are always wanted');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $_->pid . ')'), $_->finish(30) foreach $third, $fourth;
$fourth->quit;

# Who waits while the options change, and somebody else tells the pool, returns the
# connection under the new ones.
foreach my $next (query('never', q{SELECT current_setting('a.trace', true)}, 'a text'), q{SELECT pgpool.checkout('never')})
{
	$third->run("ALTER SERVER never OPTIONS (SET reset 'never')");
	$lease = queue_behind('never', ['SELECT 1'], $second, query('never', q{SELECT set_config('a.trace', 'left', false)}, 'a text'));
	kill 'STOP', $second->pid;
	$third->run("ALTER SERVER never OPTIONS (SET reset 'always')");
	$third->start($next);
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '2');

	# and the worker has been told: it takes what it is sent in turn
	my $after = PgpxSession->new($local);
	is($after->run(query('transfer', 'SELECT 1', 'a int')), '1', 'another pool works');
	$after->quit;
	kill 'CONT', $second->pid;
	$first->run("SELECT pgpool.checkin($lease)");
	is($second->finish(30), 'left', 'the first in the queue is served under new options');
	my $got = $third->finish(30);
	$got = $third->run("SELECT * FROM pgpool.query($got, 'SELECT current_setting(''a.trace'', true)') AS t(a text)") if $next =~ /checkout/;
	is($got, '', 'and resets under them: the second finds no traces');
	$third->run('SELECT pgpool.checkin_all()');
}

# What one offers must not be in force for its next, other wait.
$lease = queue_behind('one', ['SELECT 1'], $second, "SET statement_timeout = '500 ms'; " . query('one', 'SELECT 12', 'a int'));
$second->finish(30);
$second->failed('57014', qr/statement timeout/, 'one who has offered leaves the queue');
$second->run('RESET statement_timeout');
$second->start("SELECT pgpool.checkout('one')");
wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1');
$before = carried('one');
$first->run("SELECT pgpool.exec($lease, 'SELECT 1'); SELECT pgpool.checkin($lease)");
like(my $other = $second->finish(30), qr/^\d+$/, 'and comes back for a lease');
is(carried('one'), $before, 'on which nothing was sent');
is($second->run("SELECT * FROM pgpool.query($other, 'SELECT 13') AS t(a int)"), '13', 'it has the answers of its own statements') or diag($second->error);
$second->run('SELECT pgpool.checkin_all()');

# Whatever a remote answers, and where it is too old to answer rightly.
foreach my $what (grep { $_ ne 'gone' } sort keys %behaviours)
{
	my $wanted = $answers{$what} ? $answers{$what}[1] : '1';

	$first->run(<<"EOT");
CREATE SERVER s_$what FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '${\ $fake->port}', dbname '$what',
	sslmode 'disable', pool_size '1', operation_timeout '2s', test_period '-1');
CREATE USER MAPPING FOR CURRENT_USER SERVER s_$what OPTIONS (user 'somebody', password 'something');
EOT
	$lease = lease($first, "s_$what");
	$first->run("SELECT * FROM pgpool.query($lease, 'select 1') AS t(a text)");
	$second->start(query("s_$what", 'select 1', $answers{$what} && $answers{$what}[2] || 'a text'));
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') or die 'no waiter';
	$first->run("SELECT pgpool.checkin($lease)");
	my $got = $second->finish(30);
	is($second->sqlstate || $got, $wanted, "$what: $wanted") or diag($got . $second->error);
	unlike($second->error, qr/of the one before/, "$what: nothing of the one before");
	is(carried("s_$what"), $what eq 'old' ? '0' : '1', "$what: " . ($what eq 'old' ? 'not carried' : 'carried'));
	is($second->run(query("s_$what", 'select 1', 'a text')), '1', "$what: and the next is answered");
	$first->run("DROP SERVER s_$what CASCADE");
}

# Has the end of a connection to it come in, that nobody has answered (CLOSE_WAIT)?
sub end_has_come
{
	my $port = sprintf ':%04X', $fake->port;

	return PostgreSQL::Test::Utils::slurp_file('/proc/net/tcp') =~ /$port 08 / ? 't' : 'f';
}

# A remote that has gone without a word, and nobody has seen it.
$first->run(<<"EOT");
CREATE SERVER s_gone FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '${\ $fake->port}', dbname 'gone', sslmode 'disable', pool_size '1');
CREATE USER MAPPING FOR CURRENT_USER SERVER s_gone OPTIONS (user 'somebody', password 'something');
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
is($second->finish(30), '1', 'a remote that has gone is replaced, unseen') or diag($second->error);
$first->run('DROP SERVER s_gone CASCADE');

# All of it at once, with cancels at any moment: everybody has his own answer, in a
# session without traces, or none.  How many cancels come while the crowd runs is the
# machine's affair, so it runs again until they were many.
make_pool($local, $remote, server => 'crowded', options => { pool_size => 2 });
$local->safe_psql('postgres', <<'EOT');
CREATE SEQUENCE answered;
CREATE SEQUENCE cancelled;
CREATE FUNCTION crowd(rounds int) RETURNS text LANGUAGE plpgsql AS $f$
DECLARE
	n text;
	got record;
BEGIN
	FOR i IN 1 .. rounds LOOP
		BEGIN
			n := i || '-' || pg_backend_pid();
			SELECT * INTO got FROM pgpool.query('crowded', 'SELECT $1, current_setting(''a.trace'', true), set_config(''a.trace'', $1, false), pg_sleep(random() * 0.001)::text',
				n) AS t(a text, trace text, c text, d text);
			PERFORM nextval('answered');
			IF got.a <> n OR got.trace <> '' THEN
				RETURN format('%s has got %s, %s', n, got.a, got.trace);
			END IF;
		EXCEPTION WHEN query_canceled THEN
			PERFORM nextval('cancelled');
		END;
	END LOOP;
	RETURN 'right';
END $f$;
EOT
my @crowd = map { PgpxSession->new($local) } 1 .. 8;
my $pids = join ',', map { $_->pid } @crowd;
my ($answered, $cancelled, %said);
foreach (1 .. 10)
{
	my %open = map { $_->pid => $_ } @crowd;

	$_->start('SELECT crowd(400)') foreach @crowd;
	while (%open)
	{
		$third->run("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid IN ($pids) AND state = 'active' AND random() < 0.02");
		delete $open{$_} foreach grep { $open{$_}->done } keys %open;
	}
	$said{ $_->finish =~ s/^$/$_->sqlstate/er }++ foreach @crowd;
	($answered, $cancelled) = split /\|/, $local->safe_psql('postgres', 'SELECT a.last_value, c.last_value FROM answered a, cancelled c');
	last if $cancelled > 100;
}
note join ', ', map { "$_: $said{$_}" } sort keys %said;
delete @said{ 'right', '57014' };    # a cancel between two rounds ends all of them
is(join('; ', keys %said), '', 'nobody has an answer of another, or finds traces');
my $carried = carried('crowded');
note "$answered answered, $cancelled cancelled, $carried carried";
cmp_ok($answered, '>', 100, 'many were answered');
cmp_ok($cancelled, '>', 100, 'many were cancelled');
cmp_ok($carried, '>', 100, 'many were carried');
cmp_ok(remote_sessions($remote), '<=', 8, 'and the remote never has more sessions than places');

# Among calls alone, too, all go by one connection.
foreach my $reset (qw(always on_transfer never))
{
	make_pool($local, $remote, server => "calm_$reset", options => { pool_size => 1, reset => $reset });
	$_->start("DO \$\$ BEGIN FOR i IN 1 .. 100 LOOP PERFORM a FROM pgpool.query('calm_$reset', 'SELECT 1') AS t(a int); END LOOP; END \$\$")
	  foreach @crowd;
	is(join('', map { $_->finish . $_->error } @crowd), '', "reset $reset: all calls are answered");
	is(counter('connects', "calm_$reset"), '1', '.. on one connection');
	cmp_ok(carried("calm_$reset"), '>', 50, '.. on which most were carried');
}

$_->quit foreach @crowd, $first, $second, $third;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

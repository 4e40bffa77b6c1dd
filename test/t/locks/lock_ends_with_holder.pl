# A distributed lock ends with its holder, and not with a change of a clock: at once if only the session ends, after the
# ttl if its whole server does. A holder that cannot ping notices the loss before
# another session acquires the lock, and the fence refuses its token.
use strict;
use warnings;

use PgpxClock;
use PgpxProcesses;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();

my $remote = remote_node('remote');
my $one = local_node('one', start => 0);
my $two = local_node('two', start => 0);
with_clock($remote, sub { $remote->restart });
my $start_one = sub { with_clock($one, sub { $one->start }); return };
$start_one->();
with_clock($two, sub { $two->start });
make_pool($_, $remote, server => 'keeper', options => { pool_size => 4, operation_timeout => '1h' }) foreach $one, $two;
$one->safe_psql('postgres', q{SELECT pgpool.lock_setup('keeper')});
$remote->safe_psql('remote_db', 'CREATE TABLE written (token bigint); GRANT ALL ON written TO remote_app');

# --- Changes of clocks. The clock of the holder's server is set by an hour and back: no
# effect. The clock of the remote server is set back: the lock stays. It is set forward by more
# than the ttl: another session can acquire the lock at once, the holder learns of it from its
# next ping, the fence refuses it, and tokens still increase.
{
	my $holder = PgpxSession->new($one);
	my $other = PgpxSession->new($two);
	my $token = $holder->run(q{SELECT pgpool.lock('keeper', 'a', ttl => '1 min')});
	my $valid = "SELECT pgpool.lock_valid('keeper', 'a', $token)";
	my $hour = 3600;

	foreach my $offset ($hour, -$hour, 0)
	{
		set_clock($one, $offset);
		ok(wait_until($one, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time + $offset ]}) < 60", 't'), "clock of the holder's server is set to $offset");
		my $pinged = $one->safe_psql('postgres', 'SELECT valid_until FROM pgpool.locks');
		is($other->run(q{SELECT pgpool.try_lock('keeper', 'a')}) . $other->error, '', 'no other session acquires the lock');
		ok(wait_until($one, "SELECT valid_until <> '$pinged' AND state = 'held' FROM pgpool.locks"), 'lock is pinged');
		is($holder->run($valid), 't', 'lock is valid');
	}

	# --- the remote server's clock is set back
	set_clock($remote, -$hour);
	ok(wait_until($remote, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time - $hour ]}) < 60", 't'), 'clock of the remote server is set back');
	is($other->run(q{SELECT pgpool.try_lock('keeper', 'a')}) . $other->error, '', 'no other session acquires the lock after the clock was set back');
	is($holder->run($valid), 't', 'lock is valid after the clock was set back');
	is($holder->run("SELECT pgpool.unlock('keeper', 'a', $token)"), 't', 'lock is released');
	my $next = $holder->run(q{SELECT pgpool.lock('keeper', 'a', ttl => '1 min')});
	cmp_ok($next, '>', $token, 'next token is higher although the clock was set back');

	# --- the remote server's clock is set forward
	set_clock($remote, $hour);
	my $taken = $other->run(q{SELECT pgpool.lock('keeper', 'a', '1 min')});
	cmp_ok($taken, '>', $next, 'another session acquires the lock after a jump forward, with a higher token') or diag($other->error);
	ok(wait_until($one, q{SELECT state FROM pgpool.locks}, 'lost'), 'holder loses the lock');
	is($holder->run("SELECT pgpool.lock_valid('keeper', 'a', $next)"), 'f', 'lock is not valid');
	like($holder->error, qr/was lost/, 'warning reports the loss');
	$holder->fails("SELECT pgpool.exec('keeper', 'SELECT pgpool_lock.fence_check(\$1, \$2::bigint)', 'a', $next)", '55000', qr/not valid any more/, 'fence refuses the old token');

	set_clock($remote, 0);
	$_->quit foreach $holder, $other;
	ok(wait_until($_, 'SELECT count(*) FROM pgpool.locks', '0'), 'no lock is left') foreach $one, $two;
}

sub lock_sql
{
	my ($name, %args) = @_;

	return sprintf q{SELECT pgpool.lock('keeper', '%s', '%s', '%s')}, $name, $args{timeout} // '30 s', $args{ttl} // '1 min';
}

sub fenced_write
{
	my ($name, $token) = @_;

	return "BEGIN; SELECT pgpool.checkout_xact('keeper') AS lease \\gset\n"
	  . "SELECT pgpool.exec(:lease, 'BEGIN');"
	  . "SELECT pgpool.exec(:lease, 'SELECT pgpool_lock.fence_check(\$1, \$2::bigint)', '$name', $token);"
	  . "SELECT pgpool.exec(:lease, 'INSERT INTO written VALUES ($token)');"
	  . "SELECT pgpool.exec(:lease, 'COMMIT'); COMMIT";
}

# longer than the ttl of a lock
my $beyond = 61;

my $watch = PgpxSession->new($two);

# --- a session ends in different ways: the lock is free long before its ttl
foreach my $how (qw(quit terminate query transaction waiting))
{
	my $holder = PgpxSession->new($one);
	my $token;

	$holder->run('BEGIN') if $how eq 'transaction';
	$token = $holder->run(lock_sql('session') =~ s/pgpool\.lock/$how eq 'transaction' ? 'pgpool.lock_xact' : 'pgpool.lock'/er);
	like($token, qr/^\d+$/, "$how: session holds the lock") or diag($holder->error);
	is($watch->run(q{SELECT pgpool.try_lock('keeper', 'session')}) . $watch->error, '', "$how: session of another server cannot acquire it");
	if ($how eq 'waiting')
	{
		like($watch->run(lock_sql('other')), qr/^\d+$/, "$how: watcher holds another lock");
		$holder->start(lock_sql('other'));

		# the session has sent its request, and waits for its next turn
		ok(wait_until($one, 'SELECT count(*) FROM pg_stat_activity WHERE wait_event_type IS NOT NULL AND state = \'active\' AND pid = ' . $holder->pid, '1'),
			"$how: session waits");
	}
	$holder->start('SELECT pg_sleep(60)') if $how eq 'query';
	$how eq 'quit' ? $holder->quit : terminate($one, $holder->pid);
	ok(wait_until($two, q{SELECT state = 'free' FROM pgpool.lock_status('keeper') WHERE name = 'session'}, 't'), "$how: lock becomes free");
	cmp_ok($watch->run(lock_sql('session')), '>', $token, "$how: next token is higher");
	$watch->run('DISCARD ALL');
	check_invariants($one);
}

# --- restart of the worker: a call of the session, or the catalog reader, makes the new
# worker ping
my $holder = PgpxSession->new($one);
my $token = $holder->run(lock_sql('kept'));
ok(wait_until($one, 'SELECT last_ping IS NOT NULL FROM pgpool.locks', 't'), 'worker pings');
ok(terminate($one, worker_pid($one)), 'worker exits');
is($holder->run("SELECT pgpool.lock_valid('keeper', 'kept', $token)"), 't', 'lock is still held');
ok(wait_until($one, sub { worker_pid($one) ne '' }, 1), 'next worker runs');
my $since = $one->safe_psql('postgres', 'SELECT clock_timestamp()');
is($holder->run("SELECT pgpool.lock_valid('keeper', 'kept', $token)"), 't', 'session makes a call');
ok(wait_until($one, "SELECT last_ping > '$since' FROM pgpool.locks"), 'new worker pings the lock of a session that makes calls');
ok(terminate($one, worker_pid($one)), 'worker exits again');
my $exited = $remote->safe_psql('postgres', 'SELECT clock_timestamp()');
ok(wait_until($remote, sub { $remote->safe_psql('remote_db', "SELECT pinged > '$exited' FROM pgpool_lock.locks WHERE name = 'kept'") }, 't'),
	'new worker pings the lock of a session that makes no calls');
is($one->safe_psql('postgres', 'SELECT state FROM pgpool.locks'), 'held', 'lock of a session that makes no calls is held');

# --- a worker that does not run for longer than the ttl
my $worker = worker_pid($one);
kill 'STOP', $worker;
let_time_pass($one, $beyond);
ok(wait_until($one, q{SELECT state FROM pgpool.locks}, 'lost'), 'lock expires without pings');
kill 'CONT', $worker;
$holder->run("SELECT pgpool.lock_valid('keeper', 'kept', $token)");
like($holder->error, qr/WARNING:.*lock "kept" of server "keeper" was lost/, 'loss is reported by a warning');
is($holder->run("SELECT pgpool.lock_valid('keeper', 'kept', $token)"), 'f', 'lost lock is not valid');
ok(wait_until($one, sub { slurp_file($one->logfile) =~ /pgpool_ext lost lock "kept" of server "keeper"/ ? 1 : 0 }, 1), 'loss is logged');
is($holder->run("SELECT pgpool.unlock('keeper', 'kept', $token)"), 'f', 'unlock reports the loss');

# --- a session acquires its own lost lock again: the log has the loss, and no takeover
sub own_takeovers { return scalar(() = slurp_file($one->logfile) =~ /took over lock "own"/g); }
sub own_losses { return scalar(() = slurp_file($one->logfile) =~ /lost lock "own"/g); }

$token = $holder->run(lock_sql('own'));
my $named = $remote->safe_psql('remote_db', q{SELECT holder FROM pgpool_lock.locks WHERE name = 'own'});
$worker = worker_pid($one);
kill 'STOP', $worker;
let_time_pass($one, $beyond);
ok(wait_until($one, q{SELECT state FROM pgpool.locks WHERE name = 'own'}, 'lost'), 'own lock expires without pings');
$holder->start(lock_sql('own'));
kill 'CONT', $worker;
cmp_ok($holder->finish(30), '>', $token, 'session acquires its lost lock again, with a higher token') or diag($holder->error);
like($holder->error, qr/WARNING:.*lock "own" of server "keeper" was lost/, 'warning reports the loss when the lock is acquired again');
wait_until($one, sub { own_losses() }, 1);
is(own_losses() . own_takeovers(), '10', 'loss is logged once, and not as a takeover');

# the release of the lost lock has not reached the remote server
foreach my $run ([ 'this', 0 ], [ 'an earlier', 1 ])
{
	my ($which, $logged) = @$run;

	$holder->run('SELECT pgpool.unlock(server, name, token) FROM pgpool.locks');
	$remote->safe_psql('remote_db', q{UPDATE pgpool_lock.locks SET state = 'held', expires = now() - interval '1 s'} . ($logged ? q{, instance = 'former'} : '') . q{ WHERE name = 'own'});
	like($holder->run(lock_sql('own')), qr/^\d+$/, "session acquires a lock that it held in $which run of its server");
	is(own_takeovers(), $logged, "takeover from $which run is logged $logged times");
}
like(slurp_file($one->logfile), qr/took over lock "own" of .* from "\Q$named\E"/, 'log names the holder of the earlier run, although its PID is the same');
$holder->run('SELECT pgpool.unlock(server, name, token) FROM pgpool.locks');

# --- the first answer to the request that takes a lock over arrives after the ttl
$token = $holder->run(lock_sql('late'));
$worker = worker_pid($one);
kill 'STOP', $worker;
let_time_pass($_, $beyond) foreach $one, $remote;
ok(wait_until($one, q{SELECT state FROM pgpool.locks WHERE name = 'late'}, 'lost'), 'lock of the first holder expires');
$remote->safe_psql('remote_db', <<'EOT');
CREATE SEQUENCE public.late;
CREATE TABLE public.go ();
GRANT ALL ON SEQUENCE public.late TO PUBLIC;
GRANT SELECT ON public.go TO PUBLIC;
CREATE FUNCTION public.late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	-- (not a lock, because the request has a lock_timeout)
	IF nextval('public.late') = 1 THEN WHILE NOT EXISTS (SELECT FROM public.go) LOOP PERFORM pg_sleep(0.01); END LOOP; END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER late AFTER UPDATE ON pgpool_lock.locks FOR EACH ROW WHEN (NEW.name = 'late' AND NEW.token > OLD.token) EXECUTE FUNCTION public.late();
EOT
$watch->start(lock_sql('late', timeout => '1 h'));
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'}, 1), 'request is executed, and not answered');
let_time_pass($_, $beyond) foreach $two, $remote;
$remote->safe_psql('remote_db', 'INSERT INTO public.go DEFAULT VALUES');
my $late = $watch->finish;
cmp_ok($late, '>', $token, 'lock is acquired although the first answer is late') or diag($watch->error);
kill 'CONT', $worker;
my @takeovers = slurp_file($two->logfile) =~ /took over lock "late" of .*/g;
is(scalar(@takeovers), 1, 'takeover is logged once') or diag(join "\n", @takeovers);
like($takeovers[0] // '', qr/from "[^"]*, PID @{[ $holder->pid ]} of [^"]*"/, 'log names the former holder of the lock whose answer was late');
$watch->run("SELECT pgpool.unlock('keeper', 'late', $late)");
$holder->run("SELECT pgpool.unlock('keeper', 'late', $token)");
$remote->safe_psql('remote_db', 'DROP FUNCTION public.late() CASCADE; DROP SEQUENCE public.late');

# --- a whole server is stopped, another server acquires the lock, and the first server
# continues
$token = $holder->run(lock_sql('stopped'));
$holder->run(fenced_write('stopped', $token));
is($holder->error, '', 'fenced write with the token succeeds') or diag($holder->error);
my @stopped = processes($one);
kill 'STOP', @stopped;
my $ends = $remote->safe_psql('remote_db', q{SELECT expires FROM pgpool_lock.locks WHERE name = 'stopped'});
let_time_pass($remote, $beyond);
my $taken = $watch->run(lock_sql('stopped'));
cmp_ok($taken, '>', $token, 'another server acquires the lock after the ttl, with a higher token');
is($remote->safe_psql('remote_db', "SELECT since >= '$ends' FROM pgpool_lock.locks WHERE name = 'stopped'"), 't', 'lock is not acquired before its expiry');
my ($pid, $log) = ($holder->pid, slurp_file($two->logfile));
like($log, qr/LOG: +pgpool_ext took over lock "stopped" of server "keeper" of database "postgres", token $taken, from "[^"]*, PID $pid of [^"]*"/,
	'log names the former holder');
unlike($log, qr/took over lock "session"/, 'acquisition of a released lock is not logged as a takeover');
let_time_pass($one, $beyond);
kill 'CONT', reverse @stopped;
is($holder->run("SELECT pgpool.lock_valid('keeper', 'stopped', $token)"), 'f', 'former holder has noticed the loss before it writes');
is($one->safe_psql('postgres', q{SELECT state FROM pgpool.locks WHERE name = 'stopped'}), 'lost', 'pgpool.locks shows the loss');
$holder->fails(fenced_write('stopped', $token), '55000', qr/token $token of lock "stopped" is not valid any more/,
	'fenced write with the old token is refused');
$holder->run('ROLLBACK');
$watch->run(fenced_write('stopped', $taken));
is($watch->error, '', 'fenced write of the new holder succeeds');
is($remote->safe_psql('remote_db', 'SELECT string_agg(token::text, $$ $$) FROM written'), "$token $taken", 'only writes with a valid token were executed');
is($watch->run("SELECT pgpool.lock_valid('keeper', 'stopped', $taken)"), 't', 'new holder keeps the lock');

# --- a token of another server is useless
is($holder->run("SELECT pgpool.lock_valid('keeper', 'stopped', $taken)"), 'f', 'token of another server is not valid');
is($holder->run("SELECT pgpool.unlock('keeper', 'stopped', $taken)"), 'f', 'token of another server releases nothing');
is($watch->run("SELECT pgpool.lock_valid('keeper', 'stopped', $taken)"), 't', 'holder still has the lock');
$watch->run('DISCARD ALL');

# --- only the session is stopped: its server pings and keeps the lock
$token = $holder->run(lock_sql('asleep'));
kill 'STOP', $holder->pid;
my $valid = $one->safe_psql('postgres', q{SELECT valid_until FROM pgpool.locks WHERE name = 'asleep'});
ok(wait_until($one, "SELECT valid_until > '$valid' FROM pgpool.locks WHERE name = 'asleep'"), 'lock of the stopped session is pinged');
$watch->fails(lock_sql('asleep', timeout => '100 ms'), '55P03', qr/./, 'other sessions time out');
like($watch->error, qr/is held by ".*, PID @{[ $holder->pid ]} of .*" since/, 'error names the holder');
kill 'CONT', $holder->pid;
is($holder->run("SELECT pgpool.lock_valid('keeper', 'asleep', $token)"), 't', 'lock is still valid');
is($holder->run("SELECT pgpool.unlock('keeper', 'asleep', $token)"), 't', 'lock can be released');

# --- restart of the remote server: locks that are pinged again in time are kept, and
# waiters keep waiting
$holder->run('DISCARD ALL');
$token = $holder->run(lock_sql('restart'));
$watch->start(lock_sql('restart', timeout => '1 h'));
ok(wait_until($remote, sub { $remote->safe_psql('remote_db', q{SELECT contended IS NOT NULL FROM pgpool_lock.locks WHERE name = 'restart'}) }, 't'), 'another server requests the lock');
my $failed = $two->safe_psql('postgres', q{SELECT connects_failed FROM pgpool.stats WHERE server = 'keeper'});
$remote->stop('immediate');
ok(wait_until($two, "SELECT connects_failed > $failed FROM pgpool.stats WHERE server = 'keeper'", 't', 30), 'waiter retries while the remote server is down');
with_clock($remote, sub { $remote->start });
my $ping = $one->safe_psql('postgres', 'SELECT clock_timestamp()');
ok(wait_until($one, "SELECT last_ping > '$ping' FROM pgpool.locks", 't', 30), 'worker pings the restarted remote server');
is($holder->run("SELECT pgpool.lock_valid('keeper', 'restart', $token)"), 't', 'lock is still held after the restart');
$two->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $watch->pid . ')');
$watch->finish;
$watch->failed('57014', qr/canceling statement/, 'waiter still waits');
$remote->stop('immediate');
is($holder->run("SELECT pgpool.unlock('keeper', 'restart', $token)"), '', 'release cannot be confirmed while the remote server is down');
like($holder->error, qr/WARNING:.*was released, but the remote server has not confirmed it/, 'warning reports the unconfirmed release');
ok(wait_until($one, sub { slurp_file($one->logfile) =~ /could not release lock "restart".*\n.*5 attempts have failed/ ? 1 : 0 }, 1), 'log reports the unconfirmed release after some attempts');
ok(wait_until($one, 'SELECT count(*) FROM pgpool.locks', '0'), 'lock is not listed any more');
$holder->fails(lock_sql('restart'), '08001', qr/could not connect to server "keeper"/, 'lock cannot be acquired without a remote server');
is($one->safe_psql('postgres', 'SELECT count(*) FROM pgpool.locks'), '0', 'failed request leaves no lock');
with_clock($remote, sub { $remote->start });
let_time_pass($remote, $beyond);
ok(wait_until($two, sub { $watch->run(q{SELECT pgpool.try_lock('keeper', 'restart') > 0}) }, 't'), 'lock is free after its ttl');

# --- queue order
$holder = PgpxSession->new($one);
$token = $holder->run(lock_sql('queue'));
# enough sessions to exclude the right order by chance
my @waiters = map { PgpxSession->new($one) } 1 .. 9;
my @others = 3 .. $#waiters;
foreach my $i (0 .. $#waiters)
{
	$waiters[$i]->start(lock_sql('queue', timeout => '1 h'));
	ok(wait_until($one, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = @{[ $waiters[$i]->pid ]}", 'Extension'), "session $i waits");
}
$one->safe_psql('postgres', "SELECT pg_cancel_backend(@{[ $waiters[1]->pid ]})");
$waiters[1]->finish;
$waiters[1]->failed('57014', qr/canceling statement/, 'one waiter is cancelled');
terminate($one, $waiters[2]->pid);
$holder->run("SELECT pgpool.unlock('keeper', 'queue', $token)");
foreach my $i (0, @others)
{
	my $next = $waiters[$i]->finish(10);

	cmp_ok($next, '>', $token, "session $i is granted the lock");
	is(scalar(grep { $_->done } @waiters[ grep { $_ > $i } @others ]), 0, 'later waiters still wait');
	$token = $next;
	is($waiters[$i]->run("SELECT pgpool.unlock('keeper', 'queue', $token)"), 't', "session $i releases the lock");
}

# --- all locks are pinged on one connection
$holder->run(lock_sql("many $_")) foreach 1 .. 20;
ok(wait_until($remote, q{SELECT count(*) <= 2 FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'}), 'each server has one connection for pings');
ok(wait_until($one, 'SELECT descriptors - ' . descriptors_wanted() . ' FROM pgpool.workers', '1'), 'connection for pings counts as a file descriptor');
ok(wait_until($one, q{SELECT bool_and(last_ping IS NOT NULL) FROM pgpool.locks}), 'all locks are pinged');
$_->run('DISCARD ALL') foreach $holder, $watch;
ok(wait_until($one, 'SELECT count(*) FROM pgpool.locks', '0'), 'all locks are released');
let_time_pass($_, 6) foreach $one, $two;
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'}, '0'), 'connections for pings close after a while');
ok(wait_until($one, 'SELECT descriptors - ' . descriptors_wanted() . ' FROM pgpool.workers', '0'), 'file descriptors of pings are closed');

check_invariants($_) foreach $one, $two;
stats_add_up($_) foreach $one, $two;
$watch->quit;
$two->stop('fast');
leak_check($one, $remote);
done_testing();

# Two servers contend for a lock on a third one, while holders, servers, the
# network and the remote server fail in different ways. Two sessions never believe that
# they hold the lock at the same time, tokens increase, and a fenced write never has a
# lower token than an earlier one.
#
# Each holder records when it acquired the lock, and the last time before which
# lock_valid was true, by the monotonic clock of this machine (/proc/uptime, hundredths of
# a second). lock_ends_with_holder changes the time of day.
#
# PGPX_LOCK_ACQUISITIONS: number of acquisitions (default 100).
use strict;
use warnings;

use PgpxClock;
use PgpxProcesses;
use PgpxProxy;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $wanted = $ENV{PGPX_LOCK_ACQUISITIONS} // 100;
my $remote = remote_node('remote', conf => [ 'restart_after_crash = on', 'max_connections = 60' ]);
my $proxy = PgpxProxy->new($remote->port);

# the minimum length of a lock request; other messages are shorter
my $question = 3000;

# Seconds: how long a holder that will be interrupted keeps the lock; and a ttl within
# which this machine may stall.
my ($long, $patient) = (300, 60);

my @nodes = map { local_node("local$_", start => 0, conf => [ 'restart_after_crash = on', 'fsync = off' ]) } 1 .. 2;

# Start the server; the remote one has a clock that can be set.
sub started
{
	my ($node, $how) = @_;

	return $node == $remote && can_set_clocks() ? with_clock($node, sub { $node->$how }) : $node->$how;
}

sub crash
{
	my ($node) = @_;

	$node->stop('immediate');
	started($node, 'start');
	return;
}

started($_, 'start') foreach @nodes;
started($remote, 'restart');
my %options = (pool_size => 8, retry_min => '20ms', retry_max => '100ms', tcp_user_timeout => 3000);
make_pool($nodes[0], $remote, server => 'keeper', options => {%options});
make_pool($nodes[1], $remote, server => 'keeper', options => { %options, port => $proxy->port });
$nodes[0]->safe_psql('postgres', q{SELECT pgpool.lock_setup('keeper')});
$remote->safe_psql('remote_db', 'CREATE TABLE written (id bigserial, token bigint); GRANT ALL ON written, written_id_seq TO remote_app');
$_->safe_psql('postgres', <<'EOT') foreach @nodes;
CREATE TABLE held (token bigint, up float8, down float8, valid_at_end boolean, hold float8, fenced text);
CREATE TABLE errors (at timestamptz DEFAULT clock_timestamp(), state text, message text, context text);
CREATE TABLE control (run boolean, hold float8, ttl interval);
INSERT INTO control VALUES (true, 0, '1 s');

-- The monotonic clock.
CREATE FUNCTION uptime() RETURNS float8 LANGUAGE sql VOLATILE AS $$
SELECT split_part(pg_read_file('/proc/uptime'), ' ', 1)::float8
$$;

-- Acquire the lock repeatedly.  Holders record the time after they acquired it, and the
-- last time before which it was valid; a holder that has held it for long enough then
-- writes, fenced.  The hold time can be changed meanwhile.  pg_sleep is not used, because
-- it depends on the time of day.
CREATE PROCEDURE contend() LANGUAGE plpgsql AS $$
DECLARE
	t bigint; up float8; last float8; u float8;
	valid boolean; s text; m text; c text; hold float8; asked interval; now_asked interval; now_hold float8;
BEGIN
	LOOP
		EXIT WHEN NOT EXISTS (SELECT FROM control WHERE run);
		t := NULL;
		BEGIN
			SELECT ttl INTO asked FROM control;
			t := pgpool.lock('keeper', 'only one', '30 s', asked, 'test');
			up := uptime();
			last := up;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS s = RETURNED_SQLSTATE, m = MESSAGE_TEXT, c = PG_EXCEPTION_CONTEXT;
			INSERT INTO errors (state, message, context) VALUES (s, m, c);
		END;
		COMMIT;
		IF t IS NOT NULL THEN
			-- hold it only if the ttl is unchanged, and not for longer than recorded here
			SELECT CASE WHEN ttl = asked THEN control.hold ELSE 0 END INTO hold FROM control;
			INSERT INTO held VALUES (t, up, up, NULL, hold, NULL);
			COMMIT;
			LOOP
				u := uptime();
				valid := pgpool.lock_valid('keeper', 'only one', t);
				IF valid THEN last := u; END IF;
				SELECT control.hold, ttl INTO now_hold, now_asked FROM control;
				EXIT WHEN NOT valid OR u >= up + LEAST(hold, now_hold) OR asked <> now_asked;
			END LOOP;
			s := NULL;
			IF hold > 0 THEN
				BEGIN
					PERFORM pgpool.exec('keeper', format('SELECT pgpool_lock.fence_check(%L, %s); INSERT INTO written (token) VALUES (%s)', 'only one', t, t));
					s := 'written';
				EXCEPTION WHEN OTHERS THEN
					GET STACKED DIAGNOSTICS s = RETURNED_SQLSTATE;
				END;
				COMMIT;
			END IF;
			UPDATE held SET down = last, valid_at_end = valid, fenced = s WHERE token = t;
			COMMIT;
			BEGIN
				PERFORM pgpool.unlock('keeper', 'only one', t);
			EXCEPTION WHEN OTHERS THEN
				GET STACKED DIAGNOSTICS s = RETURNED_SQLSTATE, m = MESSAGE_TEXT;
				INSERT INTO errors (state, message) VALUES (s, m);
			END;
			COMMIT;
		ELSE
			u := uptime() + 0.05;
			WHILE uptime() < u LOOP
			END LOOP;
		END IF;
	END LOOP;
END $$;
EOT

my %sessions;

sub contend
{
	my ($node) = @_;

	$sessions{ $node->name } = [ map { PgpxSession->new($node) } 1 .. 2 ];
	$_->start('SET client_min_messages = error; CALL contend()') foreach @{ $sessions{ $node->name } };
	return;
}

# the number of acquisitions by each server
sub acquired { return map { $_->safe_psql('postgres', 'SELECT count(*) FROM held') } @nodes; }

sub all_acquired { my $n = 0; $n += $_ foreach acquired(); return $n; }

# Set how long sessions of one node, or of both, hold the lock, and its ttl.
sub hold
{
	my ($seconds, $ttl, $which) = @_;

	foreach my $node (@nodes)
	{
		my $hold = defined $which && $node != $which ? 0 : $seconds;

		$node->safe_psql('postgres', "UPDATE control SET hold = $hold, ttl = '" . ($ttl // 1) . " s'");
	}
	return;
}

# Wait until a session of the node has acquired the lock with the hold time that was set
# last. Returns the token and the process ID.
sub wait_for_holder
{
	my ($node, $name, $hold) = @_;
	my $who;

	ok( wait_until($node, sub {
				$who = $node->safe_psql('postgres', qq{SELECT token, pid FROM pgpool.locks JOIN held USING (token)
					WHERE state = 'held' AND hold = $hold});
				$who =~ /^\d+\|\d+$/ ? 1 : 0 }, 1, 30), "$name: session of that server holds the lock") or die;
	return split /\|/, $who;
}

# True if one of these servers has acquired the lock after this token.
sub later
{
	my ($token, @at) = @_;

	return (grep { $_->safe_psql('postgres', "SELECT count(*) FROM held WHERE token > $token") > 0 } @at) ? 1 : 0;
}

sub wait_for_others
{
	my ($name, $token, @at) = @_;

	return ok(wait_until($nodes[0], sub { later($token, @at) }, 1, 30), $name);
}

# Columns of "held" recorded by the session with this token.
sub noted
{
	my ($node, $token, $columns) = @_;

	return $node->safe_psql('postgres', "SELECT $columns FROM held WHERE token = $token");
}

# Assert that the holder has finished and recorded these values.
sub has_noted
{
	my ($node, $token, $columns, $expected, $name) = @_;

	return ok(wait_until($node, sub { noted($node, $token, 'valid_at_end IS NOT NULL') eq 't' ? noted($node, $token, $columns) : '' }, $expected, 20), $name);
}

# Wait until the lock was pinged again, twice: a ping may have been under way.
sub outlive
{
	my ($name) = @_;
	my $pinged = sub { $remote->safe_psql('remote_db', "SELECT $_[0] FROM pgpool_lock.locks WHERE name = 'only one'") };

	foreach (1, 2)
	{
		my $before = $pinged->(q{coalesce(pinged, '-infinity')});

		ok(wait_until($remote, sub { $pinged->("pinged > '$before'") }), $name);
	}
	return;
}

# The lock of a holder that has ended without a release expires. (A holder that still runs
# would lose it without notice.)
sub let_it_expire
{
	let_time_pass($remote, $patient + 1) if can_set_clocks();
	return;
}

my $began = time;
contend($_) foreach @nodes;

# --- Faults, one after the other, each while a session of the server holds the lock.
# Elements: name, server, hold time, action, ttl (default 1 s). The arguments of the
# action are the server, the holder's PID and token, the other server, and the worker. A
# holder that will be interrupted holds the lock long enough for a slow machine. A holder
# that must keep the lock, or must still have it when the fault occurs, has a sufficient
# ttl.
my @faults = (
	[ 'holder ended', 0, $long, sub { my ($node, $pid, $token) = @_;
		ok(terminate($node, $pid), 'session has ended');
		is(noted($node, $token, 'valid_at_end IS NULL'), 't', 'session held the lock when it was terminated') }, $patient ],

	# the lock is lost before the fenced write, which is refused
	[ 'server stopped, and continued after the takeover', 0, $long, sub { my ($node, $pid, $token, $other) = @_;
		my @stopped = processes($node);
		kill 'STOP', @stopped;
		wait_for_others('other server acquires the lock meanwhile', $token, $other);
		kill 'CONT', reverse @stopped;
		has_noted($node, $token, 'valid_at_end, fenced', 'f|55000', 'holder has noticed the loss, and its fenced write is refused') } ],
	[ 'worker stopped', 0, $long, sub { my ($node, $pid, $token, $other, $worker) = @_;
		kill 'STOP', $worker;
		wait_for_others('other server acquires the lock meanwhile', $token, $other);
		kill 'CONT', $worker;
		has_noted($node, $token, 'valid_at_end', 'f', 'holder has noticed the loss') } ],
	[ 'holder cut off', 1, $long, sub { my ($node, $pid, $token, $other) = @_;
		$proxy->command('freeze');
		wait_for_others('other server acquires the lock meanwhile', $token, $other);
		$proxy->command('pass');
		has_noted($node, $token, 'valid_at_end, fenced', 'f|55000', 'holder has noticed the loss, and its fenced write is refused') } ],
	[ 'contender cut off', 0, $long, sub { my ($node, $pid, $token) = @_;
		$proxy->command('freeze');
		outlive('lock is pinged');
		is(later($token, @nodes), 0, 'no session acquires the lock meanwhile');
		$proxy->command('pass');
		hold(0, $patient);
		has_noted($node, $token, 'valid_at_end', 't', 'holder keeps the lock') }, $patient ],
	[ 'flapping', 1, 3, sub {
		foreach (1 .. 4)
		{
			$proxy->command('freeze');
			usleep(200_000);
			$proxy->command('pass');
			usleep(200_000);
		} } ],
	[ 'reply lost', 1, 0.2, sub {
		$proxy->command("swallow $question");
		ok(wait_until($nodes[0], sub { $proxy->command('status') }, 'pass', 20), 'answer was lost') } ],
	[ 'worker ended', 1, 0.4, sub { my ($node, $pid, $token, $other, $worker) = @_;
		ok(terminate($node, $worker), 'worker has ended') } ],
	[ 'remote restarted', 0, 0.4, sub { started($remote, 'restart') } ],
	[ 'remote crashed', 1, 0.4, sub { crash($remote) } ],
	[ 'server restarted', 0, $long, sub { my ($node, $pid, $token) = @_;
		started($node, 'restart');
		is(noted($node, $token, 'valid_at_end IS NULL'), 't', 'session held the lock when the server was restarted');
		let_it_expire() }, $patient ],
	[ 'server crashed', 1, $long, sub { my ($node, $pid, $token) = @_;
		crash($node);
		is(noted($node, $token, 'valid_at_end IS NULL'), 't', 'session held the lock when the server crashed');
		let_it_expire() }, $patient ],
	[ 'holder killed by the system', 0, $long, sub { my ($node, $pid, $token) = @_;
		my $log = -s $node->logfile;
		is(kill('KILL', $pid), 1, 'session is killed');
		is_logged($node, $log, qr/all server processes terminated; reinitializing/, 'server restarts');
		ok(wait_until($node, 'SELECT 1', 1), 'server is up again');
		is(noted($node, $token, 'valid_at_end IS NULL'), 't', 'session held the lock when it was killed');
		let_it_expire() }, $patient ]);

foreach my $fault (@faults)
{
	my ($name, $which, $hold, $do, $ttl) = @$fault;
	my $node = $nodes[$which];

	note "--- $name";
	my $worker;
	wait_until($node, sub { ($worker = worker_pid($node)) ne '' ? 1 : 0 }, 1, 30) or die 'no worker';
	hold($hold, $ttl, $node);
	my ($token, $pid) = wait_for_holder($node, $name, $hold);
	$do->($node, $pid, $token, $nodes[ 1 - $which ], $worker);
	foreach my $other (@nodes)
	{
		# sessions that ended with their server
		foreach my $session (@{ $sessions{ $other->name } })
		{
			next unless $session->done;
			$session = PgpxSession->new($other);
			$session->start('SET client_min_messages = error; CALL contend()');
		}
	}
	hold(0);
	wait_for_others("$name: lock is acquired again afterwards", $token, @nodes);

	# (the pool of this server may still pause after the fault)
	ok(wait_until($nodes[0], sub {
		$nodes[0]->psql('postgres', "SELECT pgpool.exec('keeper', 'SELECT pgpool_lock.fence_check(\$1, \$2::bigint)', 'only one', $token)", stderr => \my $refused);
		return $refused =~ /token $token of lock "only one" is not valid any more/ ? 1 : 0;
	}, 1), "$name: old token is refused");
}

# some more fenced writes
hold(0.1);
ok(wait_until($remote, sub { $remote->safe_psql('remote_db', 'SELECT count(*) > 10 FROM written') }), 'fenced writes succeed');
hold(0);

# --- the remaining acquisitions, with lost replies only
my $lost = 0;
while ($lost < 3 || (all_acquired() < $wanted && time - $began < 3600))
{
	$proxy->command("swallow $question"), $lost++ if $proxy->command('status') eq 'pass';
	usleep(300_000);
}
$proxy->command('pass');
$_->safe_psql('postgres', 'UPDATE control SET run = false') foreach @nodes;
foreach my $session (map { @$_ } values %sessions)
{
	$session->finish(60);
	is($session->error, '', 'session ends without an error');
}
my @acquired = acquired();
note "acquisitions: @acquired in " . int(time - $began) . " s, lost replies: $lost";
cmp_ok($acquired[0] + $acquired[1], '>=', $wanted, 'lock was acquired often enough');
cmp_ok($acquired[$_], '>', 0, "server $_ acquired the lock") foreach 0, 1;
cmp_ok($lost, '>', 0, 'replies were lost meanwhile');

# --- single lost answers: the lock is acquired, and not left behind
my $session = PgpxSession->new($nodes[1]);
my $status = q{FROM pgpool.lock_status('keeper') WHERE name};

foreach my $call (q{pgpool.lock('keeper', 'lost answer', '10 s', '1 hour')}, q{pgpool.try_lock('keeper', 'lost answer', '1 hour')})
{
	$proxy->command("swallow $question");
	my $token = $session->run("SELECT $call");
	like($token, qr/^\d+$/, "$call: repeated request is granted") or diag($session->error);
	is($proxy->command('status'), 'pass', "$call: first answer was lost");
	is($nodes[0]->safe_psql('postgres', "SELECT token $status = 'lost answer' AND state = 'held'"), $token, "$call: token is the last one that was granted");
	is($session->run("SELECT pgpool.unlock('keeper', 'lost answer', $token)"), 't', "$call: lock can be released");
}
$proxy->command('mute');
$session->run(q{SELECT pgpool.lock('keeper', 'no answer', '1 s', '1 hour')});
like($session->sqlstate, qr/^(08006|08001|55P03)$/, 'session without an answer times out without a lock') or diag($session->error);
$proxy->command('pass');
ok(wait_until($nodes[0], "SELECT coalesce(bool_and(state = 'free'), true) $status = 'no answer'", 't', 10),
	'lock that was granted nevertheless is released');

# Send a request, and hold back the answer once the remote server has granted the lock.
# Returns the token.
sub grant_without_answer
{
	my ($name, $how) = @_;
	my $token;

	$proxy->command("keep $question");
	$session->start("SELECT $how");
	ok(wait_until($nodes[0], sub { $proxy->command('status') }, 'kept', 10), "$name: remote server has answered");
	ok( wait_until($nodes[0], sub {
				$token = $nodes[0]->safe_psql('postgres', "SELECT token $status = '$name' AND state IN ('held', 'expired')");
				$token =~ /^\d+$/ ? 1 : 0 }, 1, 10), "$name: remote server has granted the lock");
	return $token;
}

# the remote server crashes after the grant and before the reply: the outcome
# is requested again, not assumed
my $granted = grant_without_answer('crash', q{pgpool.lock('keeper', 'crash', '1 hour', '1 hour')});
$remote->stop('immediate');
$proxy->command('drop');
started($remote, 'start');
is($session->finish(40), $granted, 'crash: session acquires the lock with the token that was granted') or diag($session->error);
is($session->run("SELECT pgpool.lock_valid('keeper', 'crash', $granted), pgpool.unlock('keeper', 'crash', $granted)"), 't|t', 'crash: lock is valid and can be released');

# the session's lease is terminated: the lock is not left behind
$granted = grant_without_answer('revoked', q{pgpool.lock('keeper', 'revoked', '1 hour', '1 hour')});
is($nodes[1]->safe_psql('postgres', 'SELECT pgpool.terminate(lease) FROM pgpool.leases'), 't', 'revoked: lease is terminated');
$proxy->command('drop');
is($session->finish(40) . $session->sqlstate, 'PX001', 'revoked: session has no lock') or diag($session->error);
ok(wait_until($nodes[0], "SELECT state = 'free' $status = 'revoked'", 't', 10), 'revoked: lock is released');

# the answer arrives after the lock has expired, and then no connection is free to ask again
$granted = grant_without_answer('late', q{pgpool.lock('keeper', 'late', '1 hour', '1 s')});
ok(wait_until($nodes[0], "SELECT state = 'expired' $status = 'late'", 't', 10), 'late: lock expires');
$nodes[1]->safe_psql('postgres', q{SELECT pgpool.pause('keeper')});
$proxy->command('pass');
ok(wait_until($nodes[1], 'SELECT reason FROM pgpool.waiters', 'paused'), 'late: session asks again');
$nodes[1]->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
is($session->finish(40) . $session->sqlstate, '57014', 'late: session has no lock') or diag($session->error);
ok(wait_until($nodes[0], "SELECT state = 'free' $status = 'late'", 't', 10), 'late: lock is released');
$nodes[1]->safe_psql('postgres', q{SELECT pgpool.resume('keeper')});
$session->quit;

# --- evaluation of all acquisitions
my @held;
foreach my $node (@nodes)
{
	foreach my $row (split /\n/, $node->safe_psql('postgres', 'SELECT token, up, down, valid_at_end FROM held ORDER BY token'))
	{
		my ($token, $up, $down, $valid) = split /\|/, $row, -1;

		push @held, { token => $token, up => $up, down => $down, valid => $valid, text => "$token $up-$down " . $node->name };
	}
}

my @by_time = sort { $a->{up} <=> $b->{up} || $a->{token} <=> $b->{token} } @held;
my (@overlaps, @falls);

foreach my $i (1 .. $#by_time)
{
	my ($before, $after) = @by_time[ $i - 1, $i ];

	push @overlaps, "$before->{text} and $after->{text}" if $before->{down} > $after->{up};
	push @falls, "$before->{text} and $after->{text}" if $before->{token} >= $after->{token};
}
is(join("\n", @overlaps), '', 'no two sessions held the lock at the same time');
is(join("\n", @falls), '', 'tokens increase with each acquisition');
my $highest = (sort { $a <=> $b } map { $_->{token} } @held)[-1];
cmp_ok(scalar(grep { $_->{valid} eq 'f' } @held), '>=', 3, 'some holders have lost the lock');
note $_->name . ': ' . $_->safe_psql('postgres', q{SELECT coalesce(string_agg(state || ' x ' || n || ' ' || m, ', '), 'no error') FROM (SELECT state, min(message) AS m, count(*) AS n FROM errors GROUP BY 1) e})
  foreach @nodes;
is($nodes[$_]->safe_psql('postgres', q{SELECT string_agg(DISTINCT state || ' ' || message, ', ') FROM errors WHERE state !~ '^(08...|55P03|57...|PX003)$'}), '',
	"errors of server $_ are connection errors") foreach 0, 1;
is($remote->safe_psql('remote_db', q{SELECT count(*) FROM pgpool_lock.locks WHERE name = 'only one'}), '1', 'lock has one row');
cmp_ok($remote->safe_psql('remote_db', q{SELECT token FROM pgpool_lock.locks WHERE name = 'only one'}), '>=', $highest, 'row has the highest token');
is($remote->safe_psql('remote_db', q{SELECT count(*) > 10 AND bool_and(rises) IS TRUE FROM (SELECT token > coalesce(lag(token) OVER (ORDER BY id), 0) AS rises FROM written) w}), 't',
	'fenced writes have increasing tokens');

foreach my $node (@nodes)
{
	ok(wait_until($node, 'SELECT count(*) FROM pgpool.locks', '0', 10), 'no lock is left');
	stats_add_up($node);
	check_invariants($node);
}
$nodes[1]->stop('fast');
leak_check($nodes[0], $remote);
done_testing();

# Two servers contend for a lock on a third one, while holders, servers, clocks,
# network and the remote fail in every way: at no instant two sessions believe that
# they hold it, tokens rise, and what is fenced takes no token after a later one.
#
# Each holder notes when it got the lock, and the last instant before which lock_valid
# was true: by the monotonic clock of this machine, which has hundredths of a second
# (/proc/uptime), and by the time of day, which has microseconds.  That of the first
# server is moved by hours, which are taken out again.
#
# PGPX_LOCK_ACQUISITIONS: how many; default 10000, over TLS 2000.
use strict;
use warnings;

use PgpxClock;
use PgpxProcesses;
use PgpxProxy;
use PgpxTest;
use PostgreSQL::Test::Utils;
use POSIX ();
use Test::More;
use Time::HiRes qw(time usleep clock_gettime CLOCK_REALTIME CLOCK_MONOTONIC);

my $wanted = $ENV{PGPX_LOCK_ACQUISITIONS} // (over_tls() ? 2000 : 10000);
my $remote = remote_node('remote', conf => [ 'restart_after_crash = on', 'max_connections = 60' ]);
my $proxy = PgpxProxy->new($remote->port);
my $hour = 3600;

# The length of a question for a lock, at least; others are shorter.
my $question = 3000;

# Seconds: how long a holder keeps the lock that is interrupted, or told to end; and a ttl
# within which this machine may stand still for a while.
my ($long, $patient) = (60, 6);

my @nodes = map { local_node("local$_", start => 0, conf => [ 'restart_after_crash = on', 'fsync = off' ]) } 1 .. 2;

# Start the server, so that its clock can be set if it is the first one.
sub started
{
	my ($node, $how) = @_;

	return $node == $nodes[0] && can_set_clocks() ? with_clock($node, sub { $node->$how }) : $node->$how;
}

sub crash
{
	my ($node) = @_;

	$node->stop('immediate');
	started($node, 'start');
	return;
}

started($_, 'start') foreach @nodes;
my %options = (pool_size => 8, retry_min => '20ms', retry_max => '100ms', tcp_user_timeout => 3000);
make_pool($nodes[0], $remote, server => 'keeper', options => {%options});
make_pool($nodes[1], $remote, server => 'keeper', options => { %options, port => $proxy->port });
$nodes[0]->safe_psql('postgres', q{SELECT pgpool.lock_setup('keeper')});
$remote->safe_psql('remote_db', 'CREATE TABLE written (id bigserial, token bigint); GRANT ALL ON written, written_id_seq TO remote_app');
$_->safe_psql('postgres', <<'EOT') foreach @nodes;
CREATE TABLE held (token bigint, began timestamptz, ended timestamptz, up float8, down float8, valid_at_end boolean, hold float8, fenced text);
CREATE TABLE errors (at timestamptz DEFAULT clock_timestamp(), state text, message text, context text);
CREATE TABLE control (run boolean, hold float8, ttl interval);
INSERT INTO control VALUES (true, 0, '1 s');

-- The monotonic clock.
CREATE FUNCTION uptime() RETURNS float8 LANGUAGE sql VOLATILE AS $$
SELECT split_part(pg_read_file('/proc/uptime'), ' ', 1)::float8
$$;

-- Take the lock again and again.  Holders note the time after they got it, and the
-- last time before which it was valid; who has had it for long writes then, fenced.
-- How long they hold it can be changed meanwhile.  No pg_sleep: it goes by the time of day.
CREATE PROCEDURE contend() LANGUAGE plpgsql AS $$
DECLARE
	t bigint; b timestamptz; e timestamptz; n timestamptz; up float8; last float8; u float8;
	valid boolean; s text; m text; c text; hold float8; asked interval; now_asked interval; now_hold float8;
BEGIN
	LOOP
		EXIT WHEN NOT EXISTS (SELECT FROM control WHERE run);
		t := NULL;
		BEGIN
			SELECT ttl INTO asked FROM control;
			t := pgpool.lock('keeper', 'only one', '30 s', asked, 'test');
			b := clock_timestamp();
			up := uptime();
			e := b;
			last := up;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS s = RETURNED_SQLSTATE, m = MESSAGE_TEXT, c = PG_EXCEPTION_CONTEXT;
			INSERT INTO errors (state, message, context) VALUES (s, m, c);
		END;
		COMMIT;
		IF t IS NOT NULL THEN
			-- not if it was asked for under another ttl, and never for longer than is noted
			SELECT CASE WHEN ttl = asked THEN control.hold ELSE 0 END INTO hold FROM control;
			INSERT INTO held VALUES (t, b, b, up, up, NULL, hold, NULL);
			COMMIT;
			LOOP
				n := clock_timestamp();
				u := uptime();
				valid := pgpool.lock_valid('keeper', 'only one', t);
				IF valid THEN e := n; last := u; END IF;
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
			UPDATE held SET ended = e, down = last, valid_at_end = valid, fenced = s WHERE token = t;
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

# How often the lock was taken, here and there.
sub acquired { return map { $_->safe_psql('postgres', 'SELECT count(*) FROM held') } @nodes; }

sub all_acquired { my $n = 0; $n += $_ foreach acquired(); return $n; }

# How long sessions hold the lock, those of one node or of both, and its ttl.
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

# Wait until a session of the node has got the lock, to hold it so long (and
# not as long as was asked for before it began to wait); the token, and the process.
sub wait_for_holder
{
	my ($node, $name, $hold) = @_;
	my $who;

	ok( wait_until($node, sub {
				$who = $node->safe_psql('postgres', qq{SELECT token, pid FROM pgpool.locks JOIN held USING (token)
					WHERE state = 'held' AND hold = $hold});
				$who =~ /^\d+\|\d+$/ ? 1 : 0 }, 1, 30), "$name: a session of that server holds the lock") or die;
	return split /\|/, $who;
}

# Have these servers got the lock after this token?
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

# What the session with this token has noted, in the columns of "held".
sub noted
{
	my ($node, $token, $columns) = @_;

	return $node->safe_psql('postgres', "SELECT $columns FROM held WHERE token = $token");
}

# One assertion: the holder came to the end of its time, and noted this.
sub has_noted
{
	my ($node, $token, $columns, $expected, $name) = @_;

	return ok(wait_until($node, sub { noted($node, $token, 'valid_at_end IS NOT NULL') eq 't' ? noted($node, $token, $columns) : '' }, $expected, 20), $name);
}

# Wait until a lock that was not pinged any more would have run out.
sub outlive
{
	my ($name) = @_;
	my $then = $remote->safe_psql('postgres', "SELECT clock_timestamp() + interval '$patient s'");

	return ok(wait_until($remote, "SELECT clock_timestamp() > '$then'"), $name);
}

# Move the clock of the first server, and wait until it is so.
sub move_clock
{
	my ($offset) = @_;

	set_clock($nodes[0], $offset);
	return ok(wait_until($nodes[0], "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time + $offset ]}) < 60", 't', 10), "the clock is moved to $offset s");
}

# How far the clocks are apart, as seen when nothing has come between the looks.
sub clocks
{
	while (1)
	{
		my $before = clock_gettime(CLOCK_MONOTONIC);
		my $day = clock_gettime(CLOCK_REALTIME);
		my $after = clock_gettime(CLOCK_MONOTONIC);

		return $day - $before if $after - $before < 0.0005;
	}
}

my $clocks = clocks();
my $began = time;
my $since_boot = $began - (split ' ', slurp_file('/proc/uptime'))[0];
contend($_) foreach @nodes;

# --- one fault after the other, each while a session of the server has the lock:
# name, server, how long its sessions keep it, and what is done to that server, to the
# session that holds the lock, whose token this is, beside the other server, with this
# worker; and the ttl, if it is not a second.  Whoever is to be interrupted holds it for so
# long that this machine can take its time; and who is to keep it all the while, or to have
# it still when a clock has been set, has a ttl that leaves it that.
my @faults = (
	[ 'holder ended', 0, $long, sub { my ($node, $pid, $token) = @_;
		ok(terminate($node, $pid), 'the session has ended');
		is(noted($node, $token, 'valid_at_end IS NULL'), 't', 'while it held the lock') } ],

	# row 45: it is lost before the fenced write, and that is refused
	[ 'server stopped, and continued after the takeover', 0, $long, sub { my ($node, $pid, $token, $other) = @_;
		my @stopped = processes($node);
		kill 'STOP', @stopped;
		wait_for_others('another one takes it meanwhile', $token, $other);
		kill 'CONT', reverse @stopped;
		has_noted($node, $token, 'valid_at_end, fenced', 'f|55000', 'the holder knows of its loss, and its fenced write is refused') } ],
	[ 'worker stopped', 0, $long, sub { my ($node, $pid, $token, $other, $worker) = @_;
		kill 'STOP', $worker;
		wait_for_others('another one takes it meanwhile', $token, $other);
		kill 'CONT', $worker;
		has_noted($node, $token, 'valid_at_end', 'f', 'the holder knows of its loss') } ],
	[ 'holder cut off', 1, $long, sub { my ($node, $pid, $token, $other) = @_;
		$proxy->tell('freeze');
		wait_for_others('another one takes it meanwhile', $token, $other);
		$proxy->tell('pass');
		has_noted($node, $token, 'valid_at_end, fenced', 'f|55000', 'the holder knows of its loss, and its fenced write is refused') } ],
	[ 'contender cut off', 0, $long, sub { my ($node, $pid, $token) = @_;
		$proxy->tell('freeze');
		outlive('for longer than the ttl');
		is(later($token, @nodes), 0, 'nobody gets it meanwhile');
		$proxy->tell('pass');
		hold(0, $patient);
		has_noted($node, $token, 'valid_at_end', 't', 'the holder keeps it') }, $patient ],
	[ 'flapping', 1, 3, sub {
		foreach (1 .. 4)
		{
			$proxy->tell('freeze');
			usleep(500_000);
			$proxy->tell('pass');
			usleep(500_000);
		} } ],
	[ 'reply lost', 1, 0.2, sub {
		$proxy->tell("swallow $question");
		ok(wait_until($nodes[0], sub { $proxy->tell('look') }, 'pass', 20), 'an answer was lost') } ],
	[ 'worker ended', 1, 0.4, sub { my ($node, $pid, $token, $other, $worker) = @_;
		ok(terminate($node, $worker), 'the worker has ended') } ],
	[ 'remote restarted', 0, 0.4, sub { $remote->restart } ],
	[ 'remote crashed', 1, 0.4, sub { crash($remote) } ],
	[ 'server restarted', 0, $long, sub { my ($node, $pid, $token) = @_;
		started($node, 'restart');
		is(noted($node, $token, 'valid_at_end IS NULL'), 't', 'while its session held the lock') } ],
	[ 'server crashed', 1, $long, sub { my ($node, $pid, $token) = @_;
		crash($node);
		is(noted($node, $token, 'valid_at_end IS NULL'), 't', 'while its session held the lock') } ],
	[ 'holder killed by the system', 0, $long, sub { my ($node, $pid, $token) = @_;
		is(kill('KILL', $pid), 1, 'the session is killed');
		ok(wait_until($node, 'SELECT 1', 1), 'the server is up again');
		is(noted($node, $token, 'valid_at_end IS NULL'), 't', 'while it held the lock') } ]);

# by the time of day a lock would be lost now, and kept for an hour then
my @moves = (
	[ 'clock moved forward by an hour', 0, $long, sub { my ($node, $pid, $token) = @_;
		move_clock($hour);
		outlive('for longer than the ttl');
		hold(0, $patient);
		has_noted($node, $token, "valid_at_end, ended - began > '30 min'", 't|t', 'the holder keeps the lock') }, $patient ],
	[ 'clock moved back by an hour, and the worker stopped', 0, $long, sub { my ($node, $pid, $token, $other, $worker) = @_;
		kill 'STOP', $worker;
		move_clock(0);
		wait_for_others('another one takes it meanwhile', $token, $other);
		kill 'CONT', $worker;
		has_noted($node, $token, "valid_at_end, ended - began < '-30 min'", 'f|t', 'the holder knows of its loss') }, $patient ]);

push @faults, @moves if can_set_clocks();
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
		# sessions that have ended with their server
		foreach my $session (@{ $sessions{ $other->name } })
		{
			next unless $session->done;
			$session = PgpxSession->new($other);
			$session->start('SET client_min_messages = error; CALL contend()');
		}
	}
	hold(0);
	wait_for_others("$name: others get it afterwards", $token, @nodes);
	$nodes[0]->psql('postgres', "SELECT pgpool.exec('keeper', 'SELECT pgpool_lock.fence_check(\$1, \$2::bigint)', 'only one', $token)", stderr => \my $refused);
	like($refused, qr/token $token of lock "only one" is not valid any more/, "$name: the old token is refused");
}

# some more is written
hold(0.1);
ok(wait_until($remote, sub { $remote->safe_psql('remote_db', 'SELECT count(*) > 10 FROM written') }), 'fenced writes');
hold(0);

# --- and the bulk of it, undisturbed but for replies that are lost, and the clock
my @offsets = ($hour, 0, -$hour);
my ($lost, $moved) = (0, 0);
while ($moved < @offsets || (all_acquired() < $wanted && time - $began < 1200))
{
	$proxy->tell("swallow $question"), $lost++ if $proxy->tell('look') eq 'pass';
	set_clock($nodes[0], $offsets[ $moved % @offsets ]) if can_set_clocks();
	$moved++;
	usleep(1_000_000);
}
$proxy->tell('pass');
set_clock($nodes[0], 0) if can_set_clocks();
$_->safe_psql('postgres', 'UPDATE control SET run = false') foreach @nodes;
foreach my $session (map { @$_ } values %sessions)
{
	$session->finish(60);
	is($session->error, '', 'a session comes to its end');
}
my @acquired = acquired();
note "acquisitions: @acquired in " . int(time - $began) . " s, lost replies: $lost, moves of the clock: $moved";
cmp_ok($acquired[0] + $acquired[1], '>=', $wanted, 'the lock was taken so often');
cmp_ok($acquired[$_], '>', $wanted / 20, "by server $_ many times") foreach 0, 1;
cmp_ok($lost, '>', 0, 'replies were lost meanwhile');
SKIP:
{
	skip $CLOCKS_MISSING, 1 unless can_set_clocks();
	cmp_ok($moved, '>', 0, 'and the clock was moved');
}
cmp_ok(abs(clocks() - $clocks), '<', 0.001, 'the clock of this machine was not set meanwhile');

# --- answers that are lost, one by one: the lock is got, and not left behind
my $session = PgpxSession->new($nodes[1]);
my $status = q{FROM pgpool.lock_status('keeper') WHERE name};

foreach my $call (q{pgpool.lock('keeper', 'lost answer', '10 s', '1 hour')}, q{pgpool.try_lock('keeper', 'lost answer', '1 hour')})
{
	$proxy->tell("swallow $question");
	my $token = $session->run("SELECT $call");
	like($token, qr/^\d+$/, "$call: asked again, it is granted") or diag($session->error);
	is($proxy->tell('look'), 'pass', 'the first answer was lost');
	is($nodes[0]->safe_psql('postgres', "SELECT token $status = 'lost answer' AND state = 'held'"), $token, 'the token is the last one');
	is($session->run("SELECT pgpool.unlock('keeper', 'lost answer', $token)"), 't', 'it can be released');
}
$proxy->tell('mute');
$session->run(q{SELECT pgpool.lock('keeper', 'no answer', '1 s', '1 hour')});
like($session->sqlstate, qr/^(08006|08001|55P03)$/, 'who gets no answer in time has no lock') or diag($session->error);
$proxy->tell('pass');
ok(wait_until($nodes[0], "SELECT coalesce(bool_and(state = 'free'), true) $status = 'no answer'", 't', 10),
	'if it was granted all the same, it is released');

# Ask, and keep the answer back once the remote has granted the lock: its token.
sub grant_unheard
{
	my ($name, $how) = @_;
	my $token;

	$proxy->tell("keep $question");
	$session->start("SELECT $how");
	ok(wait_until($nodes[0], sub { $proxy->tell('look') }, 'kept', 10), "$name: the remote has answered");
	ok( wait_until($nodes[0], sub {
				$token = $nodes[0]->safe_psql('postgres', "SELECT token $status = '$name' AND state = 'held'");
				$token =~ /^\d+$/ ? 1 : 0 }, 1, 10), "$name: and granted the lock");
	return $token;
}

# the remote crashes after the grant and before the reply (row 46): the outcome is
# asked for, and not assumed
my $granted = grant_unheard('crash', q{pgpool.lock('keeper', 'crash', '30 s', '1 hour')});
$remote->stop('immediate');
$proxy->tell('drop');
usleep(500_000);
$remote->start;
is($session->finish(40), $granted, 'crash: the session has what the remote had granted, under the same token') or diag($session->error);
is($session->run("SELECT pgpool.lock_valid('keeper', 'crash', $granted), pgpool.unlock('keeper', 'crash', $granted)"), 't|t', 'crash: it holds it, and releases it');

# its lease is taken from the session: no lost connection, but the lock is not left behind
$granted = grant_unheard('taken', q{pgpool.lock('keeper', 'taken', '30 s', '1 hour')});
is($nodes[1]->safe_psql('postgres', 'SELECT pgpool.terminate(lease) FROM pgpool.leases'), 't', 'taken: its lease is ended');
$proxy->tell('drop');
is($session->finish(40) . $session->sqlstate, 'PX001', 'taken: the session has no lock') or diag($session->error);
ok(wait_until($nodes[0], "SELECT state = 'free' $status = 'taken'", 't', 10), 'taken: it is released');

# the answer is on its way for a while: the lock is certain for its ttl since the question
$granted = grant_unheard('slow', q{pgpool.lock('keeper', 'slow', '30 s', '1 hour')});
my $asked_before = $nodes[1]->safe_psql('postgres', 'SELECT clock_timestamp()');
$proxy->tell('pass');
is($session->finish(40), $granted, 'slow: the session has the lock') or diag($session->error);
is($session->run("SELECT valid_until < timestamptz '$asked_before' + 0.99 * ttl FROM pgpool.locks WHERE name = 'slow'"), 't', 'slow: not for longer than is certain');
is($session->run("SELECT pgpool.unlock('keeper', 'slow', $granted)"), 't', 'slow: it releases it');

# the answer comes when the lock has run out, but not yet the time of who asks, and then there
# is no connection to ask again
$granted = grant_unheard('late', q{pgpool.lock('keeper', 'late', '12 s', '1 s')});
ok(wait_until($nodes[0], "SELECT state = 'expired' $status = 'late'", 't', 10), 'late: the lock runs out');
$nodes[1]->safe_psql('postgres', q{SELECT pgpool.pause('keeper')});
$proxy->tell('pass');
is($session->finish(40) . $session->sqlstate, '55P03', 'late: the session has no lock') or diag($session->error);
ok(wait_until($nodes[0], "SELECT state = 'free' $status = 'late'", 't', 10), 'late: it is released');
$nodes[1]->safe_psql('postgres', q{SELECT pgpool.resume('keeper')});
$session->quit;

# --- the log of all holders
my @held;
foreach my $node (@nodes)
{
	foreach my $row (split /\n/, $node->safe_psql('postgres',
			q{SELECT token, extract(epoch FROM began), extract(epoch FROM ended), up, down, valid_at_end FROM held ORDER BY token}))
	{
		my ($token, $from, $to, $up, $down, $valid) = split /\|/, $row, -1;

		# the hours by which the clock was moved
		$_ -= $hour * POSIX::floor(($_ - $began) / $hour + 0.5) foreach $from, $to;
		push @held, { token => $token, day => [ $from, $to ], mono => [ $up, $down ], valid => $valid, text => "$token $from-$to $up-$down " . $node->name };
	}
}

# they are read one after the other, and whole servers are stopped: no hour is left, or
# one too many is gone
is(join("\n", map { $_->{text} } grep { abs($_->{day}[0] - $_->{mono}[0] - $since_boot) > 60 || abs($_->{day}[1] - $_->{mono}[1] - $since_boot) > 60 } @held), '',
	'the two clocks agree, but for the moment between them');
foreach my $clock (qw(day mono))
{
	my @by_time = sort { $a->{$clock}[0] <=> $b->{$clock}[0] || $a->{token} <=> $b->{token} } @held;
	my (@overlaps, @falls);

	foreach my $i (1 .. $#by_time)
	{
		my ($before, $after) = @by_time[ $i - 1, $i ];

		push @overlaps, "$before->{text} and $after->{text}" if $before->{$clock}[1] > $after->{$clock}[0];
		push @falls, "$before->{text} and $after->{text}" if $before->{token} >= $after->{token};
	}
	is(join("\n", @overlaps), '', "no two sessions held it at the same time ($clock)");
	is(join("\n", @falls), '', "tokens rise with each acquisition ($clock)");
}
my $highest = (sort { $a <=> $b } map { $_->{token} } @held)[-1];
cmp_ok(scalar(grep { $_->{valid} eq 'f' } @held), '>=', 3, 'some holders have lost it');
note $_->name . ': ' . $_->safe_psql('postgres', q{SELECT coalesce(string_agg(state || ' x ' || n || ' ' || m, ', '), 'no error') FROM (SELECT state, min(message) AS m, count(*) AS n FROM errors GROUP BY 1) e})
  foreach @nodes;
is($nodes[$_]->safe_psql('postgres', q{SELECT string_agg(DISTINCT state || ' ' || message, ', ') FROM errors WHERE state !~ '^(08...|55P03|57...|PX003)$'}), '',
	"errors at server $_ say that there was no connection") foreach 0, 1;
is($remote->safe_psql('remote_db', q{SELECT count(*) FROM pgpool_lock.locks WHERE name = 'only one'}), '1', 'the lock is one row');
cmp_ok($remote->safe_psql('remote_db', q{SELECT token FROM pgpool_lock.locks WHERE name = 'only one'}), '>=', $highest, 'with the highest token');
is($remote->safe_psql('remote_db', q{SELECT count(*) > 10 AND bool_and(rises) IS TRUE FROM (SELECT token > coalesce(lag(token) OVER (ORDER BY id), 0) AS rises FROM written) w}), 't',
	'what is fenced was written with rising tokens');
cmp_ok($remote->safe_psql('remote_db', q{SELECT count(*) FROM pgpool_lock.pings}), '<=', 12, 'and one ping row for each life of a server');

foreach my $node (@nodes)
{
	ok(wait_until($node, 'SELECT count(*) FROM pgpool.locks', '0', 10), 'no lock is left');
	stats_add_up($node);
	check_invariants($node);
}
$nodes[1]->stop('fast');
leak_check($nodes[0], $remote, 20);
done_testing();

# Two servers contend for a lock on a third one, while holders, servers, network
# and the remote fail in every way: at no instant two sessions believe that they
# hold it, and tokens rise.
#
# Each holder notes when it got the lock, and the last instant before which
# lock_valid was true.  All clocks are that of this machine, which is compared with
# the one that nobody sets; the clock of a server that is moved is not used.
#
# PGPX_LOCK_ACQUISITIONS: how many; default 10000.
use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use PgpxTest;
use PostgreSQL::Test::Utils;
use POSIX ();
use Socket;
use Test::More;
use Time::HiRes qw(time usleep clock_gettime CLOCK_REALTIME CLOCK_MONOTONIC);

plan skip_all => 'its proxy reads what it passes on' if over_tls();

my $wanted = $ENV{PGPX_LOCK_ACQUISITIONS} // 10000;
my $remote = remote_node('remote', conf => [ 'restart_after_crash = on', 'max_connections = 60' ]);
my $mode = PostgreSQL::Test::Utils::tempdir . '/mode';

# A proxy in front of the remote, with a mode in a file: "pass"; "hole": nothing
# goes through, and nobody is told; "swallow": the next answer to a question for a
# lock is lost with its connection, after the remote has sent it; "mute": so are all
# answers, and the connections stay.
append_to_file($mode, 'pass');
my $proxy = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1', ReuseAddr => 1) or die "no listener: $!";
my $child = fork // die "fork: $!";
if ($child == 0)
{
	my (%peer, %client, %asked, %muted);
	my $select = IO::Select->new($proxy);
	my $end = sub { foreach (@_) { $select->remove($_); delete $peer{$_}; close $_; } };

	# _exit: what the test does at its end is not to be done here
	$SIG{PIPE} = 'IGNORE';
	while (getppid() != 1)
	{
		my $now = slurp_file($mode);

		usleep(10_000), next if $now eq 'hole';
		foreach my $socket ($select->can_read(0.05))
		{
			next unless $select->exists($socket);
			if ($socket == $proxy)
			{
				my $in = $proxy->accept or next;
				my $out = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $remote->port);

				close $in, next unless $out;
				$select->add($in, $out);
				@peer{ $in, $out } = ($out, $in);
				$client{$in} = 1;
				delete @asked{ $in, $out };
				delete @muted{ $in, $out };
				delete $client{$out};
				next;
			}
			my $to = $peer{$socket};

			$end->($socket, $to), next unless sysread $socket, my $bytes, 65536;
			$asked{$to} = $bytes =~ /INSERT INTO pgpool_lock\.locks/ if $client{$socket};
			if (!$client{$socket} && $asked{$socket} && $now eq 'swallow' && $bytes =~ /INSERT 0|SELECT 1/)
			{
				open my $file, '>', $mode;
				print $file 'pass';
				close $file;
				$end->($socket, $to);
				next;
			}
			$muted{$to} = 1, next if $now eq 'mute' && !$client{$socket};
			$end->($socket, $to), next if $muted{$to};
			syswrite $to, $bytes;
		}
	}
	POSIX::_exit(0);
}

sub crash
{
	my ($node) = @_;

	$node->stop('immediate');
	$node->start;
	return;
}

sub set_mode
{
	open my $file, '>', "$mode.new" or die;
	print $file $_[0];
	close $file;
	rename "$mode.new", $mode or die;
	return;
}

my @nodes = map { local_node("local$_", conf => [ 'restart_after_crash = on', 'fsync = off' ]) } 1 .. 2;
my %options = (pool_size => 8, retry_min => '20ms', retry_max => '100ms', tcp_user_timeout => 3000);
make_pool($nodes[0], $remote, server => 'keeper', options => {%options});
make_pool($nodes[1], $remote, server => 'keeper', options => { %options, port => $proxy->sockport });
$nodes[0]->safe_psql('postgres', q{SELECT pgpool.lock_setup('keeper')});
$_->safe_psql('postgres', <<'EOT') foreach @nodes;
CREATE TABLE held (token bigint, began timestamptz, ended timestamptz, valid_at_end boolean, hold float8);
CREATE TABLE errors (at timestamptz DEFAULT clock_timestamp(), state text, message text, context text);
CREATE TABLE control (run boolean, hold float8);
INSERT INTO control VALUES (true, 0);

-- Take the lock again and again.  Holders note the time after they got it, and
-- the last time before which it was valid.
CREATE PROCEDURE contend() LANGUAGE plpgsql AS $$
DECLARE
	t bigint; b timestamptz; e timestamptz; n timestamptz; valid boolean; s text; m text; c text; hold float8;
BEGIN
	LOOP
		EXIT WHEN NOT EXISTS (SELECT FROM control WHERE run);
		t := NULL;
		BEGIN
			t := pgpool.lock('keeper', 'only one', '30 s', '1 s', 'test');
			b := clock_timestamp();
			e := b;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS s = RETURNED_SQLSTATE, m = MESSAGE_TEXT, c = PG_EXCEPTION_CONTEXT;
			INSERT INTO errors (state, message, context) VALUES (s, m, c);
		END;
		COMMIT;
		IF t IS NOT NULL THEN
			SELECT control.hold INTO hold FROM control;
			INSERT INTO held VALUES (t, b, b, NULL, hold);
			COMMIT;
			LOOP
				n := clock_timestamp();
				valid := pgpool.lock_valid('keeper', 'only one', t);
				IF valid THEN e := n; END IF;
				EXIT WHEN NOT valid OR clock_timestamp() >= b + hold * '1 s'::interval;
				PERFORM pg_sleep(0.01);
			END LOOP;
			UPDATE held SET ended = e, valid_at_end = valid WHERE token = t;
			COMMIT;
			BEGIN
				PERFORM pgpool.unlock('keeper', 'only one', t);
			EXCEPTION WHEN OTHERS THEN
				GET STACKED DIAGNOSTICS s = RETURNED_SQLSTATE, m = MESSAGE_TEXT;
				INSERT INTO errors (state, message) VALUES (s, m);
			END;
			COMMIT;
		ELSE
			PERFORM pg_sleep(0.05);
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

sub hold { my ($seconds) = @_; $_->safe_psql('postgres', "UPDATE control SET hold = $seconds") foreach @nodes; return; }

# Wait until a session of the node has just got the lock, to hold it so long (and
# not as long as was asked for before it began to wait); the token.
sub wait_for_holder
{
	my ($node, $name, $hold) = @_;
	my $token;

	ok( wait_until($node, sub {
				$token = $node->safe_psql('postgres', qq{SELECT token FROM pgpool.locks JOIN held USING (token)
					WHERE state = 'held' AND since > clock_timestamp() - interval '0.3 s' AND hold = $hold});
				$token =~ /^\d+$/ ? 1 : 0 }, 1, 20), "$name: a session of that server holds the lock") or die;
	return $token;
}

# Wait until somebody has the lock after this token.
sub wait_for_others
{
	my ($name, $token) = @_;

	return ok(wait_until($nodes[0], sub {
				(grep { $_->safe_psql('postgres', "SELECT count(*) FROM held WHERE token > $token") > 0 } @nodes) ? 1 : 0 }, 1, 20),
		"$name: others get it afterwards");
}

sub processes
{
	my ($node) = @_;
	my ($postmaster) = split /\n/, slurp_file($node->data_dir . '/postmaster.pid');

	return ($postmaster, split ' ', `ps -o pid= --ppid $postmaster`);
}

sub clocks { return clock_gettime(CLOCK_REALTIME) - clock_gettime(CLOCK_MONOTONIC); }

my $clocks = clocks();
my $began = time;
contend($_) foreach @nodes;

# --- one fault after the other, each while a session of the server has the lock:
# name, server, how long holders keep it
my @faults = (
	[ 'holder killed', 0, 0.4, sub { my ($node) = @_;
		my $pid = $node->safe_psql('postgres', 'SELECT pid FROM pgpool.locks LIMIT 1');
		terminate($node, $pid) if $pid ne '' } ],
	[ 'server stopped and continued', 0, 2.2, sub { my ($node) = @_;
		my @stopped = processes($node);
		kill 'STOP', @stopped;
		usleep(1_800_000);
		kill 'CONT', reverse @stopped } ],
	[ 'worker stopped', 0, 2.2, sub { my ($node) = @_;
		my $worker = worker_pid($node);
		kill 'STOP', $worker;
		usleep(1_800_000);
		kill 'CONT', $worker } ],
	[ 'cut off', 1, 3, sub {
		set_mode('hole');
		usleep(2_500_000);
		set_mode('pass') } ],
	[ 'flapping', 1, 3, sub {
		foreach (1 .. 4)
		{
			set_mode('hole');
			usleep(400_000);
			set_mode('pass');
			usleep(300_000);
		} } ],
	[ 'reply lost', 1, 0.2, sub {
		set_mode('swallow');
		usleep(500_000);
		set_mode('pass') } ],
	[ 'worker terminated', 1, 0.4, sub { my ($node) = @_; terminate($node, worker_pid($node)) } ],
	[ 'remote restarted', 0, 0.4, sub { $remote->restart } ],
	[ 'remote crashed', 1, 0.4, sub { crash($remote) } ],
	[ 'server restarted', 0, 0.4, sub { $_[0]->restart } ],
	[ 'server crashed', 1, 0.4, sub { crash($_[0]) } ],
	[ 'holder killed by the system', 0, 0.4, sub { my ($node) = @_;
		my $pid = $node->safe_psql('postgres', 'SELECT pid FROM pgpool.locks LIMIT 1');
		kill 'KILL', $pid if $pid =~ /^\d+$/;
		ok(wait_until($node, 'SELECT 1', 1), 'the server is up again') } ]);
foreach my $fault (@faults)
{
	my ($name, $which, $hold, $do) = @$fault;
	my $node = $nodes[$which];

	hold($hold);
	my $token = wait_for_holder($node, $name, $hold);
	$do->($node);
	foreach my $other (@nodes)
	{
		# sessions that have ended with their server
		next unless grep { $_->done } @{ $sessions{ $other->name } };
		foreach my $session (@{ $sessions{ $other->name } })
		{
			next unless $session->done;
			$session = PgpxSession->new($other);
			$session->start('SET client_min_messages = error; CALL contend()');
		}
	}
	hold(0);
	wait_for_others($name, $token) if defined $token;
}

# --- and the bulk of it, undisturbed but for replies that are lost
my $lost = 0;
while (all_acquired() < $wanted && time - $began < 400)
{
	set_mode('swallow'), $lost++ if slurp_file($mode) eq 'pass';
	usleep(1_000_000);
}
set_mode('pass');
$_->safe_psql('postgres', 'UPDATE control SET run = false') foreach @nodes;
foreach my $session (map { @$_ } values %sessions)
{
	$session->finish(60);
	is($session->error, '', 'a session comes to its end');
}
my @acquired = acquired();
note "acquisitions: @acquired in " . int(time - $began) . " s, lost replies: $lost";
cmp_ok($acquired[0] + $acquired[1], '>=', $wanted, 'the lock was taken so often');
cmp_ok($acquired[$_], '>', $wanted / 20, "by server $_ many times") foreach 0, 1;
cmp_ok(abs(clocks() - $clocks), '<', 0.001, 'the clock of this machine was not set meanwhile');

# --- answers that are lost, one by one: the lock is got, and not left behind
my $session = PgpxSession->new($nodes[1]);
foreach my $call (q{pgpool.lock('keeper', 'lost answer', '10 s', '1 hour')}, q{pgpool.try_lock('keeper', 'lost answer', '1 hour')})
{
	set_mode('swallow');
	my $token = $session->run("SELECT $call");
	like($token, qr/^\d+$/, "$call: asked again, it is granted") or diag($session->error);
	is(slurp_file($mode), 'pass', 'the first answer was lost');
	is($nodes[0]->safe_psql('postgres', q{SELECT token FROM pgpool.lock_status('keeper') WHERE name = 'lost answer' AND state = 'held'}), $token, 'the token is the last one');
	is($session->run("SELECT pgpool.unlock('keeper', 'lost answer', $token)"), 't', 'it can be released');
}
set_mode('mute');
$session->run(q{SELECT pgpool.lock('keeper', 'no answer', '1 s', '1 hour')});
like($session->sqlstate, qr/^(08006|08001|55P03)$/, 'who gets no answer in time has no lock') or diag($session->error);
set_mode('pass');
ok(wait_until($nodes[0], q{SELECT coalesce(bool_and(state = 'free'), true) FROM pgpool.lock_status('keeper') WHERE name = 'no answer'}, 't', 10),
	'if it was granted all the same, it is released');
$session->quit;

# --- the log of all holders
my @held;
foreach my $node (@nodes)
{
	foreach my $row (split /\n/, $node->safe_psql('postgres',
			q{SELECT token, extract(epoch FROM began), extract(epoch FROM ended), valid_at_end FROM held ORDER BY token}))
	{
		push @held, [ split(/\|/, $row, -1), $node->name ];
	}
}
my @by_time = sort { $a->[1] <=> $b->[1] || $a->[0] <=> $b->[0] } @held;
my (@overlaps, @falls);
foreach my $i (1 .. $#by_time)
{
	my ($before, $after) = @by_time[ $i - 1, $i ];

	push @overlaps, "@$before and @$after" if $before->[2] > $after->[1];
	push @falls, "@$before and @$after" if $before->[0] >= $after->[0];
}
is(join("\n", @overlaps), '', 'no two sessions held it at the same time');
is(join("\n", @falls), '', 'tokens rise with each acquisition');
cmp_ok(scalar(grep { ($_->[3] // '') eq 'f' } @held), '>=', 3, 'some holders have lost it');
note $_->name . ': ' . $_->safe_psql('postgres', q{SELECT coalesce(string_agg(state || ' x ' || n || ' ' || m, ', '), 'no error') FROM (SELECT state, min(message) AS m, count(*) AS n FROM errors GROUP BY 1) e})
  foreach @nodes;
is($nodes[$_]->safe_psql('postgres', q{SELECT string_agg(DISTINCT state || ' ' || message, ', ') FROM errors WHERE state !~ '^(08...|55P03|57...|PX003)$'}), '',
	"errors at server $_ say that there was no connection") foreach 0, 1;
is($remote->safe_psql('remote_db', q{SELECT count(*) FROM pgpool_lock.locks WHERE name = 'only one'}), '1', 'the lock is one row');
cmp_ok($remote->safe_psql('remote_db', q{SELECT token FROM pgpool_lock.locks WHERE name = 'only one'}), '>=', $by_time[-1][0], 'with the highest token');
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

END
{
	my $status = $?;

	kill 'KILL', $child if $child;
	waitpid $child, 0 if $child;
	$? = $status;
}

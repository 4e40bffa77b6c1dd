# A network that resets connections again and again: nothing hangs, no statement
# receives the answer to another one, and afterwards everything works. Also: a remote
# server becomes read-only while another one becomes the primary.
# PGPX_TEST_STORM: duration of the resets in seconds (default 15; use 1800 for a long run).
use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use PgpxTest;
use PostgreSQL::Test::Utils;
use POSIX ();
use Socket;
use Test::More;
use Time::HiRes qw(time usleep);

my $remote = remote_node('remote');
my $other = remote_node('other');
my $flag = PostgreSQL::Test::Utils::tempdir . '/reset';
my $storm = $ENV{PGPX_TEST_STORM} // 1;
my @lengths = (0.05, 0.7, 0.1, 0.02, 0.3);

# A proxy that resets every connection, old and new, while the file is there.
my $proxy = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1', ReuseAddr => 1) or die "no listener: $!";
my $child = fork // die "fork: $!";
if ($child == 0)
{
	my %peer;
	my $select = IO::Select->new($proxy);
	my $reset = sub {
		my ($socket) = @_;

		setsockopt $socket, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0;
		$select->remove($socket);
		delete $peer{$socket};
		close $socket;
	};

	# _exit skips the END blocks of the test
	$SIG{PIPE} = 'IGNORE';
	while (getppid() != 1)
	{
		my @ready = $select->can_read(0.01);

		if (-e $flag)
		{
			$reset->($_) foreach grep { $_ != $proxy } $select->handles;
		}
		foreach my $socket (@ready)
		{
			next unless $select->exists($socket);
			if ($socket == $proxy)
			{
				my $in = $proxy->accept or next;
				my $out = -e $flag ? undef : IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $remote->port);

				$select->add($in);
				$reset->($in), next unless $out;
				$select->add($out);
				@peer{ $in, $out } = ($out, $in);
				next;
			}
			my $to = $peer{$socket};
			if (sysread $socket, my $bytes, 65536)
			{
				syswrite $to, $bytes;
				next;
			}
			$reset->($_) foreach $socket, $to;
		}
	}
	POSIX::_exit(0);
}

my $local = local_node('local');
make_pool($local, $remote, server => 'stormy',
	options => { port => $proxy->sockport, pool_size => 4, retry_min => '20ms', retry_max => '100ms', checkout_timeout => '10s',
		test_period => '100ms' });
make_pool($local, $remote, server => 'calm', options => { pool_size => 2 });
$local->safe_psql('postgres', <<'EOT');
CREATE UNLOGGED TABLE calls (server text, took interval, state text, message text);
CREATE TABLE sums (server text, state text, calls bigint, longest interval, message text);
CREATE TABLE stop ();
CREATE PROCEDURE loop_until_stopped(server text) LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz; s text; m text; n int; v int[];
BEGIN
	WHILE to_regclass('stop') IS NOT NULL LOOP
		began := clock_timestamp(); s := '00000'; m := ''; v := NULL;
		n := (random() * 1e9)::int;
		BEGIN
			SELECT array_agg(a) INTO v FROM pgpool.query(server, 'select $1::int + g from generate_series(1, 200) g', n) AS t(a int);
			IF v IS DISTINCT FROM (SELECT array_agg(n + g) FROM generate_series(1, 200) g) THEN s := 'wrong'; END IF;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS s = RETURNED_SQLSTATE, m = MESSAGE_TEXT;
		END;
		INSERT INTO calls VALUES (server, clock_timestamp() - began, s, m);
		COMMIT;
		PERFORM pg_sleep(0.002);
	END LOOP;
END $$;
EOT

my @sessions = map { PgpxSession->new($local) } 1 .. 14;
my $watch = PgpxSession->new($local);
$_->start(q{CALL loop_until_stopped('stormy')}) foreach @sessions[ 0 .. 11 ];
$_->start(q{CALL loop_until_stopped('calm')}) foreach @sessions[ 12, 13 ];
ok(wait_until($local, q{SELECT count(*) > 200 FROM calls WHERE server = 'stormy' AND state = '00000'}, 't'), 'sessions make calls');

# Sum up the calls since the last time, and keep the table small.
sub sum_up
{
	return $local->safe_psql('postgres', <<'EOT');
BEGIN;
LOCK TABLE calls;
INSERT INTO sums SELECT server, state, count(*), max(took), max(message) FROM calls GROUP BY server, state;
TRUNCATE calls;
COMMIT;
EOT
}

my ($began, $rounds, $recovered, $kept) = (time(), 0, 0, 0);
while (time() - $began < $storm || $rounds < @lengths)
{
	append_to_file($flag, '');
	$watch->run('SELECT pg_sleep(' . $lengths[ $rounds++ % @lengths ] . ')');
	unlink $flag;
	sum_up();
	$recovered++ if wait_until($local, q{SELECT count(*) > 20 FROM calls WHERE server = 'stormy' AND state = '00000'}, 't');
	$kept++ if $watch->run('SELECT pgpool.check_invariants()') . $watch->error eq '';
}
is($recovered, $rounds, "calls succeed after each of $rounds storms");
is($kept, $rounds, 'invariants hold after each storm');
check_invariants($local, 'invariants hold during the calls');
$local->safe_psql('postgres', 'DROP TABLE stop');
$_->finish(30) foreach @sessions;
is(join('', map { $_->error } @sessions), '', 'all sessions end without an error');
sum_up();

note $local->safe_psql('postgres', q{SELECT string_agg(concat_ws(' ', server, state, n), ', ') FROM (SELECT server, state, sum(calls) AS n FROM sums GROUP BY 1, 2) c});
is($local->safe_psql('postgres', q{SELECT count(*) FROM sums WHERE server = 'stormy' AND state NOT IN ('00000', '08001', '08006')}),
	'0', 'every call succeeds or reports a connection error')
  or diag($local->safe_psql('postgres', q{SELECT DISTINCT state, message FROM sums WHERE server = 'stormy'}));
is($local->safe_psql('postgres', q{SELECT count(*) FROM sums WHERE state = 'wrong'}), '0', 'no answer is wrong');
cmp_ok($local->safe_psql('postgres', q{SELECT sum(calls) FROM sums WHERE state <> '00000'}), '>', 0, 'calls were hit by a reset');
is($local->safe_psql('postgres', q{SELECT count(*) FROM sums WHERE server = 'calm' AND state <> '00000'}), '0', 'no call of another pool failed');
ok(wait_until($local, 'SELECT sum(leased + waiters + connecting + closing + cancelling) FROM pgpool.pools', '0'), 'no lease, waiter or unfinished operation is left');
is($local->safe_psql('postgres', q{SELECT count(*) FROM pgpool.pools WHERE total > pool_size}), '0', 'no pool exceeds pool_size');
ok( wait_until($local, 'SELECT descriptors - ' . descriptors_wanted() . ' FROM pgpool.workers', '0'),
	'worker has no superfluous file descriptor');
ok(wait_until($remote, "SELECT count(*) <= 6 FROM pg_stat_activity WHERE application_name LIKE 'pgpool_ext%'", 't'), 'remote server has no superfluous session');

# --- another server becomes the primary
$_->safe_psql('remote_db', 'CREATE TABLE written (n int); GRANT ALL ON written TO remote_app') foreach $remote, $other;
$other->append_conf('postgresql.conf', 'default_transaction_read_only = on');
$other->reload;
ok(wait_until($other, 'SHOW default_transaction_read_only', 'on'), 'one of two remote servers is read-only');
my %both = (host => '127.0.0.1,127.0.0.1', port => $remote->port . ',' . $other->port, target_session_attrs => 'read-write', pool_size => 2);
make_pool($local, $remote, server => 'reconnected', options => {%both});
make_pool($local, $remote, server => 'evicted', options => {%both});
make_pool($local, $remote, server => 'lifetime', options => { %both, max_lifetime => '2s' });
my $session = $sessions[0];
sub insert { return "SELECT pgpool.exec('$_[0]', 'insert into written values (1)')"; }
is($session->run(insert($_)) . $session->error, '1', "$_: write is executed by the primary") foreach qw(reconnected lifetime evicted);
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM written'), '3', 'first server is the primary');

$remote->append_conf('postgresql.conf', 'default_transaction_read_only = on');
$other->append_conf('postgresql.conf', 'default_transaction_read_only = off');
$_->reload foreach $remote, $other;
ok(wait_until($_->[0], 'SHOW default_transaction_read_only', $_->[1]), 'remote servers exchange their roles') foreach [ $remote, 'on' ], [ $other, 'off' ];
$session->run(insert('reconnected'));
is($session->sqlstate, '25006', 'reconnected: old primary refuses a write, and the caller receives its SQLSTATE');
$session->run("SELECT pgpool.reconnect('reconnected')");
$session->fails(insert('evicted'), '25006', qr/read-only/, 'evicted: another pool receives the error, too');
is($session->run(insert('evicted')) . $session->error, '1', 'evicted: connection was closed, so the next write is executed by the new primary');
ok(wait_until($local, "SELECT connects, closed_broken, closed_stale FROM pgpool.stats WHERE server = 'evicted'", '2|1|0'),
	'evicted: connection is closed and replaced without an administrative function');
is($session->run(insert('reconnected')) . $session->error, '1', 'reconnected: next write after reconnect succeeds');
ok(wait_until($local, sub { $session->run(insert('lifetime')) }, '1', 20), 'lifetime: write succeeds after max_lifetime');
is($other->safe_psql('remote_db', 'SELECT count(*) FROM written'), '3', 'writes went to the new primary');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

END
{
	my $status = $?;

	kill 'KILL', $child if $child;
	waitpid $child, 0 if $child;
	$? = $status;
}

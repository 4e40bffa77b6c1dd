# Many sessions on foreign tables share few connections: at most pool_size. While sessions, the worker and remote sessions are killed at random, each transaction is
# executed completely or not at all: accounts, tellers, branches and history of TPC-B have equal sums.
# PGPX_TEST_SESSIONS: their number. PGPX_TEST_SECONDS, PGPX_TEST_SEED: of the part with faults.
use strict;
use warnings;

use IPC::Run;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $sessions = $ENV{PGPX_TEST_SESSIONS} // 60;
my $seconds = $ENV{PGPX_TEST_SECONDS} // 1;
my $seed = $ENV{PGPX_TEST_SEED} // 1;
my $folder = PostgreSQL::Test::Utils::tempdir();
my $remote = remote_node('remote');
my $local = local_node('local', conf => [ 'restart_after_crash = on', 'max_connections = ' . ($sessions + 40) ]);
my $pool_size = 8;
my $branches = 20;

$remote->safe_psql('remote_db', <<"EOT");
SET ROLE remote_app;
CREATE TABLE branches (bid int PRIMARY KEY, bbalance int NOT NULL) WITH (fillfactor = 10);
CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int NOT NULL) WITH (fillfactor = 10);
CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int NOT NULL);
CREATE TABLE history (tid int, bid int, aid int, delta int, mtime timestamp);
INSERT INTO branches SELECT i, 0 FROM generate_series(1, $branches) AS i;
INSERT INTO tellers SELECT i, (i + 9) / 10, 0 FROM generate_series(1, 10 * $branches) AS i;
INSERT INTO accounts SELECT i, (i + 99) / 100, 0 FROM generate_series(1, 100 * $branches) AS i;
ANALYZE;
EOT
make_pool($local, $remote, server => 'bank', options => { pool_size => $pool_size, checkout_timeout => '10min', retry_max => '200ms', operation_timeout => '10min' });
$local->safe_psql('postgres', <<'EOT');
IMPORT FOREIGN SCHEMA public FROM SERVER bank INTO public;
GRANT SELECT, INSERT, UPDATE ON branches, tellers, accounts, history TO app;
EOT
append_to_file("$folder/tpcb.sql", <<"EOT");
\\set aid random(1, 100 * $branches)
\\set bid random(1, $branches)
\\set tid random(1, 10 * $branches)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM accounts WHERE aid = :aid;
UPDATE tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
EOT

never_too_many();
killed_at_random();
check_invariants($local);
stats_add_up($local);
leak_check($local, $remote);
done_testing();

sub sums
{
	return $remote->safe_psql('remote_db', 'SELECT (SELECT sum(abalance) FROM accounts) - s, (SELECT sum(tbalance) FROM tellers) - s,'
		  . ' (SELECT sum(bbalance) FROM branches) - s FROM (SELECT coalesce(sum(delta), 0) AS s FROM history) AS h');
}

# Starts pgbench with this number of clients; returns its harness of IPC::Run.
sub bench
{
	my ($clients, $out, @options) = @_;

	return IPC::Run::start([ 'pgbench', '-n', '-c', $clients, '-j', 2, '--max-tries=1000', '-f', "$folder/tpcb.sql", @options, $local->connstr('postgres') . ' application_name=tpcb' ],
		'>', $out, '2>&1');
}

# The remote server refuses more sessions than pool_size.
sub never_too_many
{
	my $all = $sessions * 5;

	$remote->safe_psql('postgres', "ALTER ROLE remote_app CONNECTION LIMIT $pool_size");
	my $bench = bench($sessions, \my $out, '-t', 5);
	$bench->finish;
	is($bench->result(0), 0, "pgbench succeeds with $sessions sessions on $pool_size connections") or diag($out);
	like($out, qr/number of transactions actually processed: $all\/$all/, 'all transactions are executed');
	is(sums(), '0|0|0', 'sums of accounts, tellers, branches and history agree before the faults');
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM history'), $all, 'each transaction was committed once');
	is($local->safe_psql('postgres', "SELECT connects <= $pool_size, connects_failed, timeouts FROM pgpool.stats"), 't|0|0', "at most $pool_size connections were tried");
	$local->safe_psql('postgres', q{ALTER SERVER bank OPTIONS (SET operation_timeout '3s')});
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT -1');
	return;
}

sub killed_at_random
{
	my $end = time() + $seconds;
	my ($out, $bench, %done) = ('');
	my $before = $remote->safe_psql('remote_db', 'SELECT count(*) FROM history');
	my $of_pool = "FROM pg_stat_activity WHERE usename = 'remote_app'";
	my %faults = (
		'a session is terminated' => sub { at($local, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tpcb' ORDER BY random() LIMIT 1") },
		'a session is cancelled' => sub { at($local, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'tpcb' ORDER BY random() LIMIT 1") },
		'a lease is terminated' => sub { at($local, 'SELECT pgpool.terminate(lease) FROM pgpool.leases ORDER BY random() LIMIT 1') },
		'a remote session is terminated' => sub { at($remote, "SELECT pg_terminate_backend(pid) $of_pool ORDER BY random() LIMIT 1") },
		'a remote statement is cancelled' => sub { at($remote, "SELECT pg_cancel_backend(pid) $of_pool ORDER BY random() LIMIT 1") },
		'the worker is terminated' => sub { at($local, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker'") },
		'the remote crashes' => sub { $remote->stop('immediate'); $remote->start; 1 },
		'a session is killed' => sub { crash("application_name = 'tpcb'") },
		'the worker is killed' => sub { crash("backend_type = 'pgpool_ext worker'") });

	# each once, then some more often than the rest
	my @next = sort keys %faults;
	my @often = grep { !/crashes|killed|worker/ } @next;

	srand($seed);
	while (time() < $end || (@next && time() < $end + 900))
	{
		if (!$bench || !$bench->pumpable)
		{
			eval { $bench->finish } if $bench;
			$bench = bench($sessions, \$out, '-T', 30);
		}
		usleep(20_000 + rand 100_000);
		eval { $bench->pump_nb };
		my $fault = $next[0] // $often[ rand @often ];

		next if $faults{$fault}->() eq '';
		shift @next;
		$done{$fault}++;
		push @next, $often[ rand @often ] if rand() < 0.2;
		push @next, 'the worker is terminated' if rand() < 0.03;
	}
	at($local, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tpcb'");
	eval { $bench->finish };

	is("@next", '', 'each kind of fault has occurred');
	note(join ', ', map { "$done{$_} times $_" } sort keys %done);
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.leases', '0'), 'no lease is left');
	ok(wait_until($remote, "SELECT count(*) $of_pool AND state <> 'idle'", '0'), 'no remote transaction is left');
	is(sums(), '0|0|0', 'sums of accounts, tellers, branches and history agree');
	note($remote->safe_psql('remote_db', 'SELECT count(*) FROM history') - $before . ' transactions were committed meanwhile');
	# the last attempt to connect may have failed
	$local->safe_psql('postgres', q{ALTER SERVER bank OPTIONS (ADD on_unavailable 'wait')});
	my $session = PgpxSession->new($local, user => 'app');
	is($session->run('SELECT count(*) FROM accounts') . $session->error, 100 * $branches, 'foreign tables work after the faults');
	$session->quit;
	return;
}

# Kill one of these processes with SIGKILL, and wait until the local server has restarted after the crash.
sub crash
{
	my ($which) = @_;
	my $pid = at($local, "SELECT pid FROM pg_stat_activity WHERE $which ORDER BY random() LIMIT 1");
	my $started = 'SELECT pid FROM pg_stat_activity WHERE backend_type = \'checkpointer\'';
	my $before = at($local, $started);

	return '' unless $pid =~ /^\d+$/ && $before =~ /^\d+$/ && kill 'KILL', $pid;
	return wait_until($local, sub { my $now = at($local, $started); $now =~ /^\d+$/ && $now != $before ? 1 : 0 }, '1');
}

# The rows of a query that may fail; '' if it has none.
sub at
{
	my ($node, $sql) = @_;
	my $out;

	eval { $node->psql('postgres', $sql, stdout => \$out) };
	return $out // '';
}

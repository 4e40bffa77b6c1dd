# Runs alone: many sessions write on two shards and locally, while sessions, the worker, the
# resolver, remote sessions, the remote servers, the local server and the network fail at random.
# At the end each transfer is in all three places or in none, and no part is prepared.
#
# Part of "make check-world" only. PGPX_TEST_SECONDS: duration (20, or 600 for a long run);
# PGPX_TEST_SESSIONS, PGPX_TEST_SEED; PGPX_TEST_TWO_PHASE=off: without the option, which shows
# how many transfers are partial then.
use strict;
use warnings;

use IPC::Run;
use PgpxProxy;
use PgpxTest;
use PgpxTransfers;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

plan skip_all => 'PGPX_TEST_SETTINGS is not "all", and PGPX_TEST_SECONDS is not set'
  unless ($ENV{PGPX_TEST_SETTINGS} // '') eq 'all' || $ENV{PGPX_TEST_SECONDS};

my $sessions = $ENV{PGPX_TEST_SESSIONS} // 60;
my $seconds = $ENV{PGPX_TEST_SECONDS} // 20;
my $seed = $ENV{PGPX_TEST_SEED} // 1;
my $two_phase = $ENV{PGPX_TEST_TWO_PHASE} // 'on';
my $script = PostgreSQL::Test::Utils::tempdir() . '/transfer.sql';
my @shards = map { shard_node($_) } qw(one two);
my @proxies = map { PgpxProxy->new($_->port) } @shards;
my $local = local_node('local', conf => [ 'restart_after_crash = on', 'max_connections = ' . ($sessions + 40), q{pgpool_ext.resolve_interval = '1s'} ]);

make_shards($local, \@proxies, options => { two_phase_commit => $two_phase, pool_size => 16, checkout_timeout => '30s', operation_timeout => '2s' });
$local->safe_psql('postgres', 'CREATE SEQUENCE numbers; GRANT ALL ON SEQUENCE numbers TO app');
append_to_file($script, <<'EOT');
\set a random(1, 1000)
\set from random(1, 100)
\set to random(1, 100)
SELECT nextval('numbers') AS n \gset
BEGIN;
INSERT INTO shard1.transfers VALUES (:n, - :a);
UPDATE shard1.accounts SET balance = balance - :a WHERE id = :from;
INSERT INTO shard2.transfers VALUES (:n, :a);
UPDATE shard2.accounts SET balance = balance + :a WHERE id = :to;
INSERT INTO ledger VALUES (:n, :a);
END;
EOT

my $of_app = q{FROM pg_stat_activity WHERE usename = 'app' ORDER BY random() LIMIT 1};
my $of_pool = q{FROM pg_stat_activity WHERE usename = 'remote_app' ORDER BY random() LIMIT 1};
my %faults = (
	'a session is terminated' => sub { at($local, "SELECT pg_terminate_backend(pid) $of_app") },
	'a session is cancelled' => sub { at($local, "SELECT pg_cancel_backend(pid) $of_app") },
	'a lease is terminated' => sub { at($local, 'SELECT pgpool.terminate(lease) FROM pgpool.leases ORDER BY random() LIMIT 1') },
	'the worker is terminated' => sub { at($local, q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker'}) },
	'the resolver is terminated' => sub { at($local, q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type ~ 'pgpool_ext.*resolver'}) },
	'a remote session is terminated' => sub { at($shards[ rand @shards ], "SELECT pg_terminate_backend(pid) $of_pool") },
	'a remote statement is cancelled' => sub { at($shards[ rand @shards ], "SELECT pg_cancel_backend(pid) $of_pool") },
	'connections are reset' => sub { $proxies[ rand @proxies ]->command('reset ' . int rand 2000) },
	'answers are lost' => sub { my $proxy = $proxies[ rand @proxies ]; $proxy->command('mute'); usleep(rand 200_000); $proxy->command('pass') },
	'the network stands still' => sub { my $proxy = $proxies[ rand @proxies ]; $proxy->command('freeze'); usleep(rand 3_000_000); $proxy->command('pass') },
	'a remote server crashes' => sub { my $shard = $shards[ rand @shards ]; $shard->stop('immediate'); usleep(rand 500_000); $shard->start; 1 },
	'a session is killed' => sub { kills_a_session() },
	'all processes are killed' => sub { kill_all($local); start_again($local); 1 });
my @often = grep { !/crashes|killed|worker|still/ } sort keys %faults;
my @next = sort keys %faults;
my ($bench, $out, %done) = (undef, '');
my $end = time() + $seconds;

srand($seed);
while (time() < $end || (@next && time() < $end + 900))
{
	if (!$bench || !$bench->pumpable)
	{
		eval { $bench->finish } if $bench;
		$bench = IPC::Run::start([ 'pgbench', '-n', '-c', $sessions, '-j', 2, '-T', 60, '--max-tries=1', '-f', $script, $local->connstr('postgres') . ' user=app' ], '>', \$out, '2>&1');
	}
	usleep(20_000 + rand 150_000);
	eval { $bench->pump_nb };
	my $fault = $next[0] // $often[ rand @often ];

	next if $faults{$fault}->() eq '';
	shift @next;
	$done{$fault}++;
	push @next, $often[ rand @often ] if rand() < 0.2;
	push @next, (sort keys %faults)[ rand keys %faults ] if rand() < 0.1;
}
$_->command('pass') foreach @proxies;
wait_until($local, q{SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app') AS t}, '0');
eval { $bench->finish };

is("@next", '', 'each kind of fault has occurred');
note(join ', ', map { "$done{$_} times $_" } sort keys %done);
ok(wait_until($local, 'SELECT count(*) FROM pgpool.leases', '0'), 'no lease is left');
nothing_is_prepared(\@shards, 'at the end');
my ($all, @partial) = differences($local, \@shards);
note("two_phase_commit $two_phase: $all transfers, of them " . @partial . ' partial');
if ($two_phase eq 'on')
{
	is("@partial", '', 'each transfer is in both shards and the ledger, or in none');
	is(join(' ', map { $_->safe_psql('remote_db', 'SELECT (SELECT sum(balance) FROM accounts) - (SELECT coalesce(sum(amount), 0) FROM transfers)') } @shards), '0 0', 'balances agree with the transfers');
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.prepared_transactions', '0'), 'view shows no part');
}
cmp_ok($all, '>', 0, 'transfers were committed');
my $session = PgpxSession->new($local, user => 'app');
$session->run(transfer(-1));
is($session->error, '', 'a transfer succeeds after the faults');
$session->quit;
check_invariants($local);
stats_add_up($local);
is(scalar(() = slurp_file($local->logfile) =~ /PANIC|TRAP|terminated by signal (?:6|11)/g), 0, 'no process has crashed by itself');
leak_check($local, @shards);
done_testing();

# Kill a session with SIGKILL, and wait until the local server has restarted after the crash.
sub kills_a_session
{
	my $pid = at($local, "SELECT pid $of_app");
	my $started = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'};
	my $before = at($local, $started);

	return '' unless $pid =~ /^\d+$/ && $before =~ /^\d+$/ && kill 'KILL', $pid;
	return wait_until($local, sub { my $now = at($local, $started); $now =~ /^\d+$/ && $now != $before ? 1 : 0 }, '1');
}

# The rows of a query that may fail; '' if it has none.
sub at
{
	my ($node, $sql) = @_;
	my $rows;

	eval { $node->psql('postgres', $sql, stdout => \$rows, stderr => \my $ignored) };
	return $rows // '';
}

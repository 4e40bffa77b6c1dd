# Runs alone: many sessions write on two shards and locally, while sessions, the worker, the
# resolver, remote sessions, the remote servers, the local server and the network fail at random.
# At the end each transfer is in all three places or in none, and no part is prepared.
#
# Part of "make check-world" only. PGPX_TEST_SECONDS: duration (20, or 600 for a long run);
# PGPX_TEST_SESSIONS (60), PGPX_TEST_SEED; PGPX_TEST_TWO_PHASE=off: without the option. The log of
# the job has the number of faults of each kind, of transfers and of partial ones.
use strict;
use warnings;

use IPC::Run;
use PgpxProxy;
use PgpxTest;
use PgpxTransfers;
use PostgreSQL::Test::Utils;
use Test::More;

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
my $of_worker = q{FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker'};
my $of_resolver = q{FROM pg_stat_activity WHERE backend_type ~ 'pgpool_ext.*resolver'};

# each returns '' if it could not occur
my %faults = (
	'a session is terminated' => sub { at($local, "SELECT pg_terminate_backend(pid) $of_app") },
	'a session is cancelled' => sub { at($local, "SELECT pg_cancel_backend(pid) $of_app") },
	'a session is killed' => sub { kills("SELECT pid $of_app") },
	'a lease is terminated' => sub { at($local, 'SELECT pgpool.terminate(lease) FROM pgpool.leases ORDER BY random() LIMIT 1') },
	'the worker is terminated' => sub { at($local, "SELECT pg_terminate_backend(pid) $of_worker") },
	'the worker is killed' => sub { kills("SELECT pid $of_worker") },
	'the resolver is terminated' => sub { at($local, "SELECT pg_terminate_backend(pid) $of_resolver") },
	'the resolver is killed' => sub { kills("SELECT pid $of_resolver") },
	'all processes are killed' => sub { kill_all($local); start_again($local); 1 },
	'a remote session is terminated' => sub { at($shards[ rand @shards ], "SELECT pg_terminate_backend(pid) $of_pool") },
	'a remote statement is cancelled' => sub { at($shards[ rand @shards ], "SELECT pg_cancel_backend(pid) $of_pool") },
	'a remote server crashes' => sub { crashes(int rand @shards) },
	'connections are reset' => sub { $proxies[ rand @proxies ]->command('reset ' . int rand 2000) },
	'answers are lost' => sub { loses_answers($proxies[ rand @proxies ]) },
	'the network stands still' => sub { stands_still($proxies[ rand @proxies ]) });
delete @faults{ grep { /resolver/ } keys %faults } if $two_phase eq 'off';
my @all = sort keys %faults;
my @often = grep { !/crashes|killed|worker|still/ } @all;
my @next = @all;
my ($bench, $out, %done) = (undef, '');
my $end = time() + $seconds;

srand($seed);
while (time() < $end || (@next && time() < $end + 900))
{
	my $begun;
	my $number = rand 50;

	# further transfers begin
	is_reached(sub {
		my $now = at($local, 'SELECT last_value FROM numbers') || return '';

		$begun //= $now;
		return $now >= $begun + $number ? 't' : '';
	});
	my $fault = shift @next // (rand() < 0.3 ? $all[ rand @all ] : $often[ rand @often ]);

	if ($faults{$fault}->() eq '') { push @next, $fault; }
	else { $done{$fault}++; }
}
$_->command('pass') foreach @proxies;
eval { $bench->kill_kill } if $bench;
wait_until($local, q{SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app') AS t}, '0');

is("@next", '', 'each kind of fault has occurred');
note(join ', ', map { "$_: $done{$_}" } sort keys %done);
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

# Wait for a state while the sessions run.
sub is_reached
{
	my ($what) = @_;

	return wait_until($local, sub {
		eval { $bench->pump_nb } if $bench;
		if (!$bench || !$bench->pumpable)
		{
			eval { $bench->finish } if $bench;
			$bench = IPC::Run::start([ 'pgbench', '-n', '-c', $sessions, '-j', 2, '-T', 60, '--max-tries=1', '-f', $script, $local->connstr('postgres') . ' user=app' ], '>', \$out, '2>&1');
		}
		return $what->();
	}) ? 1 : '';
}

# Kill a process with SIGKILL, and wait until the local server has restarted after the crash.
sub kills
{
	my $pid = at($local, $_[0]);
	my $started = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'};
	my $before = at($local, $started);
	my $state = sub {
		open my $stat, '<', "/proc/$pid/stat" or return 'X';
		return (<$stat> // '') =~ /\) (\w)/ ? $1 : 'X';
	};

	return '' unless $pid =~ /^\d+$/ && $before =~ /^\d+$/ && kill 'STOP', $pid;

	# the server does not restart if the process has already exited
	is_reached(sub { $state->() =~ /[TXZ]/ ? 't' : '' });
	return '' unless $state->() eq 'T' && kill 'KILL', $pid;
	return is_reached(sub { my $now = at($local, $started); $now =~ /^\d+$/ && $now != $before ? 't' : '' });
}

# Crash a shard. In half of the cases it starts again only when no session has a lease on it.
sub crashes
{
	my ($i) = @_;

	$shards[$i]->stop('immediate');
	is_reached(sub { at($local, "SELECT count(*) = 0 FROM pgpool.leases WHERE server = 'shard@{[$i + 1]}'") }) if rand() < 0.5;
	$shards[$i]->start;
	return 1;
}

# Lose an answer, and those that arrive before this function has noticed the first one.
sub loses_answers
{
	my ($proxy) = @_;

	$proxy->command('mute');
	is_reached(sub { $proxy->command('count') > 0 ? 't' : '' });
	return $proxy->command('pass');
}

# Forward nothing until a session has waited for up to 3 s: operation_timeout is 2 s.
sub stands_still
{
	my ($proxy) = @_;
	my $time = rand 3;

	$proxy->command('freeze');
	is_reached(sub { at($local, "SELECT bool_or(clock_timestamp() - query_start > '$time s') FROM pg_stat_activity WHERE usename = 'app' AND state = 'active'") });
	return $proxy->command('pass');
}

# The rows of a query that may fail; '' if it has none.
sub at
{
	my ($node, $sql) = @_;
	my $rows;

	eval { $node->psql('postgres', $sql, stdout => \$rows, stderr => \my $ignored) };
	return $rows // '';
}

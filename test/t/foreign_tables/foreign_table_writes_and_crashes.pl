# Transactions write to foreign tables while sessions, the worker, remote sessions, the
# remote server and the local server are killed. The remote changes of a transaction are
# committed together or not at all, and a transaction that is committed locally has its
# remote changes.
use strict;
use warnings;

use IPC::Run;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $clients = 6;
my $rounds = $ENV{PGPX_TEST_KILLS} // 12;
my $remote = remote_node('remote');
my $local = local_node('local', conf => ['restart_after_crash = on', 'deadlock_timeout = 100ms']);

make_pool($local, $remote, server => 'bank', options => { pool_size => 4, checkout_timeout => '20s' });
$remote->safe_psql('remote_db', <<"EOT");
SET ROLE remote_app;
CREATE TABLE accounts (id int PRIMARY KEY, branch int, balance bigint);
CREATE TABLE tellers (id int PRIMARY KEY, branch int, balance bigint);
CREATE TABLE branches (id int PRIMARY KEY, balance bigint);
CREATE TABLE history (id uuid PRIMARY KEY, branch int, delta bigint);
INSERT INTO branches SELECT i, 0 FROM generate_series(0, $clients - 1) i;
INSERT INTO tellers SELECT i, i % $clients, 0 FROM generate_series(0, 10 * $clients - 1) i;
INSERT INTO accounts SELECT i, i % $clients, 0 FROM generate_series(0, 100 * $clients - 1) i;
EOT
$local->safe_psql('postgres', <<'EOT');
CREATE FOREIGN TABLE accounts (id int, branch int, balance bigint) SERVER bank OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE tellers (id int, branch int, balance bigint) SERVER bank OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE branches (id int, balance bigint) SERVER bank OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE history (id uuid, branch int, delta bigint) SERVER bank OPTIONS (schema_name 'public', batch_size '2');
CREATE TABLE journal (id uuid PRIMARY KEY, delta bigint);
EOT

# Direct modification, modification by ctid, a batch and savepoints. A client has rows of
# its own, so that no transaction waits for another one's rows.
my $script = PostgreSQL::Test::Utils::tempdir . '/bank.sql';
append_to_file($script, <<"EOT");
\\set delta random(-1000, 1000)
\\set account random(0, 99) * $clients + :client_id
\\set teller random(0, 9) * $clients + :client_id
SELECT quote_literal(gen_random_uuid()) AS id, quote_literal(gen_random_uuid()) AS second \\gset
BEGIN;
INSERT INTO journal VALUES (:id, :delta), (:second, 0 - :delta);
UPDATE accounts SET balance = balance + :delta WHERE id = :account;
SAVEPOINT a;
UPDATE tellers SET balance = balance + :delta WHERE id = :teller AND random() < 2;
SAVEPOINT b;
UPDATE branches SET balance = balance + 1 WHERE id = :client_id;
ROLLBACK TO b;
UPDATE branches SET balance = balance + :delta WHERE id = :client_id RETURNING balance;
INSERT INTO history VALUES (:id, :client_id, :delta), (:second, :client_id, 0 - :delta);
UPDATE accounts SET balance = balance - :delta WHERE id = :account;
UPDATE tellers SET balance = balance - :delta WHERE id = :teller AND random() < 2;
RELEASE a;
UPDATE branches SET balance = balance - :delta WHERE id = :client_id;
COMMIT;
EOT

# Return the process ID of a client that executes a statement; '' if there is none.
sub busy_client
{
	return $local->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE application_name = 'bank' AND state = 'active' LIMIT 1});
}

# Call the function of the server for such a client. Returns its result.
sub call_for_client
{
	my ($function) = @_;
	my $pid = busy_client();

	return $pid ne '' && $local->safe_psql('postgres', "SELECT $function($pid)") eq 't';
}

# Each of these returns a true value if it has ended something.
my %kills = (
	'a session' => sub {
		return call_for_client('pg_terminate_backend');
	},
	'a statement' => sub {
		return call_for_client('pg_cancel_backend');
	},
	'the leases' => sub {
		return $local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases WHERE pgpool.terminate(lease)');
	},
	'the worker' => sub {
		my $pid = worker_pid($local);

		return $pid && $local->safe_psql('postgres', "SELECT pg_terminate_backend($pid)") eq 't';
	},
	'remote sessions' => sub {
		return $remote->safe_psql('postgres',
			q{WITH s AS MATERIALIZED (SELECT pid FROM pg_stat_activity WHERE usename = 'remote_app' ORDER BY random() LIMIT 2)
			SELECT count(*) FROM s WHERE pg_terminate_backend(pid)});
	},
	'the remote server' => sub { $remote->stop('immediate'); return $remote->start; },
	'the local server' => sub {
		my $pid = busy_client();

		return $pid ne '' && kill('KILL', $pid);
	});
my @order = sort keys %kills;

sub committed
{
	return $local->safe_psql('postgres', 'SELECT count(*) FROM journal');
}

foreach my $round (0 .. $rounds - 1)
{
	my $what = $order[ $round % @order ];
	my $before = committed();
	my ($out, $err) = ('', '');
	my $bench = IPC::Run::start(
		['pgbench', '-n', '-c', $clients, '-j', 2, '-T', 60, '--max-tries', 1000, '-f', $script, $local->connstr('postgres') . ' application_name=bank'],
		'>', \$out, '2>', \$err);

	ok( wait_until($local, sub { committed() > $before + 20 ? 'enough' : $bench->pumpable ? 'few' : 'ended' }, 'enough', 60),
		"round $round: transactions commit")
	  or last;
	ok(wait_until($local, sub { $kills{$what}->() ? 1 : 0 }, 1), "round $round: $what was ended");
	usleep(200_000 * rand);
	$bench->signal('TERM');
	eval { $bench->finish };
	unlike($err, qr/PANIC|invalid|malformed|does not fit/, "round $round: clients report no damage after the end of $what") or diag($err);
	ok(wait_until($local, 'SELECT true', 't'), "round $round: local server accepts connections after the end of $what");
}

# the last transactions have ended on the remote server
ok( wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND state <> 'idle'", '0'),
	'no remote transaction is left open');
my $ids = $local->safe_psql('postgres', 'SELECT id FROM journal');

$remote->safe_psql('remote_db', 'CREATE TABLE journal (id uuid PRIMARY KEY)');
$remote->safe_psql('remote_db', "COPY journal FROM STDIN;\n$ids\n\\.\n");
cmp_ok(scalar(split /\n/, $ids), '>', $rounds * 20, 'transactions were committed in each round');
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM journal WHERE id NOT IN (SELECT id FROM history)'),
	'0', 'transactions that are committed locally have their remote changes');
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM (SELECT 1 FROM history GROUP BY branch HAVING sum(delta) <> 0) h'),
	'0', 'remote changes of a transaction are committed together');
is( $remote->safe_psql('remote_db',
		'SELECT (SELECT count(*) FROM accounts WHERE balance <> 0), (SELECT count(*) FROM tellers WHERE balance <> 0), (SELECT count(*) FROM branches WHERE balance <> 0)'),
	'0|0|0', 'balances agree with the history');

# Only a transaction whose session ended between the two commits can be missing in the local journal.
my $surplus = $remote->safe_psql('remote_db', 'SELECT count(*) FROM history WHERE id NOT IN (SELECT id FROM journal)');

cmp_ok($surplus, '<=', 2 * $clients * $rounds, "remote server has $surplus rows of transactions whose outcome the local server did not learn");

check_invariants($local);
leak_check($local, $remote);
done_testing();

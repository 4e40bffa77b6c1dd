# Hundreds of sessions on foreign tables of a pool of 8 use at most 8 remote sessions, and are
# granted connections in the order in which they began to wait. No statement fails, and nothing is
# left. PGPX_TEST_CLIENTS: number of sessions; fewer on a machine with too little memory, or too
# few processes or file descriptors.
use strict;
use warnings;

use IPC::Run;
use List::Util qw(max min);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $wanted = $ENV{PGPX_TEST_CLIENTS} // 120;
my $size = 8;
my $each = 3;    # transactions of each session
my $sessions = max($size + 1, min($wanted, possible_sessions()));
my $remote = remote_node('remote', conf => ['log_connections = on']);
my $local = local_node('local', conf => [ 'max_connections = ' . ($sessions + $size + 20) ]);
my $folder = PostgreSQL::Test::Utils::tempdir();

# served.id is the order of execution at the remote
$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE TABLE items AS SELECT i AS id, i * 7 AS value FROM generate_series(1, 1000) AS i;
CREATE TABLE served (id serial, pid int, value int);
EOT
$remote->safe_psql('postgres', "ALTER ROLE remote_app CONNECTION LIMIT $size; CREATE TABLE sampled (most int, samples int); CREATE TABLE stop (now bool)");
make_pool($local, $remote, server => 'eight', options => { pool_size => $size, checkout_timeout => '30min' });
$local->safe_psql('postgres', <<'EOT');
CREATE FOREIGN TABLE items (id int, value int) SERVER eight;
CREATE FOREIGN TABLE served (pid int, value int) SERVER eight;
GRANT SELECT, INSERT ON items, served TO app;
EOT
append_to_file("$folder/client.sql", <<'EOT');
\set id random(1, 1000)
BEGIN;
INSERT INTO served SELECT pg_backend_pid(), value FROM items WHERE id = :id;
SELECT value / 7 AS read FROM items WHERE id = :id \gset
SELECT 1 / (:read = :id)::int;
COMMIT;
EOT

note("$sessions sessions");
diag("only $sessions of $wanted sessions, because memory, processes or file descriptors do not suffice for more") if $sessions < $wanted;

my $sampler = PgpxSession->new($remote);
$sampler->start(<<'EOT');
DO $$
DECLARE
	n int;
	most int := 0;
	samples int := 0;
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		PERFORM pg_stat_clear_snapshot();
		SELECT count(*) INTO n FROM pg_stat_activity WHERE usename = 'remote_app';
		most := greatest(most, n);
		samples := samples + 1;
		PERFORM pg_sleep(0.005);
	END LOOP;
	INSERT INTO sampled VALUES (most, samples);
END $$
EOT

# all sessions wait; then one connection serves them, so that the order of execution is that of
# the grants
my @holders = map { PgpxSession->new($local, user => 'app') } 1 .. $size;
$_->run('BEGIN; SELECT value FROM items WHERE id = 1') foreach @holders;
is(join('', map { $_->error } @holders), '', "$size transactions hold all connections");
my $bench = IPC::Run::start([ 'pgbench', '-n', '-c', $sessions, '-j', 2, '-t', $each, '-f', "$folder/client.sql", $local->connstr('postgres') . ' user=app' ],
	'>', \my $out, '2>&1');
ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', $sessions), "$sessions sessions wait");
my $queue = $local->safe_psql('postgres', 'SELECT string_agg(pid::text, \' \' ORDER BY "position") FROM pgpool.waiters');
$holders[0]->run('COMMIT');
ok(wait_until($remote, sub { $remote->safe_psql('remote_db', 'SELECT count(*) FROM served') >= $sessions }, 1), 'one connection serves all of them');
$_->run('COMMIT') foreach @holders;
$bench->finish;
is($bench->result(0), 0, "pgbench succeeds with $sessions sessions on $size connections") or diag($out);
my $all = $sessions * $each;
like($out, qr/number of transactions actually processed: $all\/$all\n(number of failed transactions: 0 |(?!number of failed))/, 'no transaction fails');
unlike($out, qr/ERROR|FATAL|abort/, 'pgbench reports no error');
$remote->safe_psql('postgres', 'INSERT INTO stop VALUES (true)');
$sampler->finish;

is($remote->safe_psql('remote_db', "SELECT string_agg(pid::text, ' ' ORDER BY id) FROM (SELECT id, pid FROM served ORDER BY id LIMIT $sessions) AS first"),
	$queue, 'sessions are granted the connection in the order of the queue');
is($remote->safe_psql('remote_db', 'SELECT count(*), count(DISTINCT pid) FROM served'), "$all|$sessions", 'each transaction was committed once');
is($remote->safe_psql('remote_db', "SELECT count(*) FROM (SELECT FROM served GROUP BY pid HAVING count(*) <> $each) AS other"), '0', 'no session was passed over');

my ($most, $samples) = split /\|/, $remote->safe_psql('postgres', 'SELECT most, samples FROM sampled');
is($most, $size, "remote server had $size sessions at most, in $samples samples");
is($remote->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'"), $size, "$size sessions are kept");
is($local->safe_psql('postgres', 'SELECT connects, connects_failed, timeouts, cancelled, failed, discards FROM pgpool.stats'), "$size|0|0|0|0|0", 'no other connection was tried, and no wait failed');
is($local->safe_psql('postgres', 'SELECT fdw_leases - checkins, fdw_statements - statements, fdw_lease_time - lease_time FROM pgpool.stats'), '0|0|0',
	'all leases are those of foreign tables');
cmp_ok($local->safe_psql('postgres', 'SELECT waited FROM pgpool.stats'), '>=', $sessions, 'each session waited');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND state <> 'idle'", '0'), 'no remote transaction is left');
check_invariants($local);
stats_add_up($local);
leak_check($local, $remote);
is(scalar(() = slurp_file($remote->logfile) =~ /connection authorized: user=remote_app /g), $size, "remote server has accepted $size sessions in all");
unlike(slurp_file($_->logfile), qr/ (ERROR|FATAL|PANIC):  (?!terminating connection due to administrator command)/, 'log of server ' . $_->name . ' has no error') foreach $local, $remote;
done_testing();

# The number of sessions for which memory, processes and file descriptors suffice, as far as known.
sub possible_sessions
{
	my $memory = eval { slurp_file('/proc/meminfo') } // '';
	my ($kb) = $memory =~ /^MemAvailable:\s+(\d+)/m;
	my @limits = map { /^(\d+)$/ ? $1 - 200 : () } split /\n/, qx(ulimit -n; ulimit -u 2>/dev/null);

	push @limits, int($kb / 1024 / 12) if defined $kb;
	return min(@limits, 100_000);
}

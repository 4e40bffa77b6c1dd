# Four local servers share the connections of a remote database (cluster_connections).
# The remote server never has more sessions than the cap, every server that wants
# connections has its fair share, and what one does not use the others have, also when
# it was killed. While the table of shares cannot be used, open connections remain in
# use.
#
# The remote role has a limit of connections, so one too many is an error.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'shares do not depend on TLS' if over_tls();
use Time::HiRes qw(time);

my ($cap, $pause) = (8, 0.02);
my $remote = remote_node('remote');
my @nodes = map { local_node("local$_", conf => ['fsync = off']) } 0 .. 3;

foreach my $node (@nodes)
{
	make_pool($node, $remote,
		server => 'shared',
		options => { pool_size => 12, cluster_connections => $cap, retry_max => '200ms', checkout_timeout => '10min' });
	$node->safe_psql('postgres', <<'EOT');
CREATE TABLE control (run boolean);
INSERT INTO control VALUES (true);
CREATE TABLE done (n bigint, failed bigint);

-- Use connections until control says otherwise.
CREATE PROCEDURE work(pause float8) LANGUAGE plpgsql AS $$
DECLARE
	n bigint := 0;
	failed bigint := 0;
BEGIN
	WHILE (SELECT run FROM control) LOOP
		BEGIN
			PERFORM pgpool.exec('shared', format('SELECT pg_sleep(%s)', pause));
			n := n + 1;
		EXCEPTION WHEN connection_exception OR query_canceled THEN
			failed := failed + 1;
			PERFORM pg_sleep(0.1);
		END;
		COMMIT;
	END LOOP;
	INSERT INTO done VALUES (n, failed);
END $$;
EOT
}
make_pool($nodes[0], $remote, server => 'plain', user => 'remote_super', password => $REMOTE_SUPER_PASSWORD);

# beside the sessions of the pools: one of each server for the shares, and one that the
# remote server has not ended yet
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT ' . ($cap + @nodes + 1));

# The remote server samples the number of sessions until a relation "stopped" exists.
$remote->safe_psql('postgres', 'CREATE TABLE stop (); CREATE TABLE cap (n int); INSERT INTO cap VALUES (' . $cap . ')');
my $sampler = PgpxSession->new($remote);
$sampler->start(<<'EOT');
CREATE TABLE sampled AS SELECT 0::bigint AS most, 0 AS samples WHERE false;
DO $$
DECLARE
	most bigint := 0; samples int := 0; n bigint;
BEGIN
	WHILE NOT EXISTS (SELECT FROM pg_class WHERE relname = 'stopped') LOOP
		PERFORM pg_stat_clear_snapshot();
		SELECT count(*) INTO n FROM pg_stat_activity
			WHERE usename = 'remote_app' AND application_name LIKE 'pgpool_ext%' AND application_name <> 'pgpool_ext lock';
		most := greatest(most, n);
		samples := samples + 1;
		PERFORM pg_sleep(0.005);
	END LOOP;
	INSERT INTO sampled VALUES (most, samples);
END $$;
EOT

sub share
{
	my ($node, $columns) = @_;

	return $node->safe_psql('postgres', "SELECT $columns FROM pgpool.cluster_shares WHERE server = 'shared'");
}

# Wait until servers have these numbers of connections.
sub used_become
{
	my ($name, @used) = @_;
	my $expected = join ' ', @used;

	return ok(wait_until($nodes[0], sub { join ' ', map { $used[$_] eq '-' ? '-' : share($nodes[$_], 'used') } 0 .. $#used }, $expected, 20),
		"$name: $expected") || die "shares are wrong\n";
}

my %working;

# Begin to use connections in some sessions of a server; end that, and return the
# numbers of statements and of failures.
sub begin_work
{
	my ($i, $sessions) = @_;

	$nodes[$i]->safe_psql('postgres', 'UPDATE control SET run = true; DELETE FROM done');
	$working{$i} = [ map { PgpxSession->new($nodes[$i]) } 1 .. $sessions ];
	$_->start("CALL work($pause)") foreach @{ $working{$i} };
	return;
}

sub end_work
{
	my ($i) = @_;

	$nodes[$i]->safe_psql('postgres', 'UPDATE control SET run = false');
	$_->finish(60) foreach @{ $working{$i} };
	$_->quit foreach @{ $working{$i} };
	delete $working{$i};
	return $nodes[$i]->safe_psql('postgres', 'SELECT sum(n) > 0, sum(failed) FROM done');
}

# --- without the tables
my $session = PgpxSession->new($nodes[0]);
$session->fails(q{SELECT pgpool.checkout('shared', '30 s')},
	'08001', qr/cannot agree on the shares.*pgpool_lock\.share.* does not exist\nHINT:  .*pgpool\.lock_setup/s, 'checkout without the tables fails at once');
$nodes[0]->safe_psql('postgres', q{SELECT pgpool.lock_setup('plain')});
$remote->safe_psql('remote_db', 'GRANT USAGE ON SCHEMA pgpool_lock TO remote_app; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgpool_lock TO remote_app');
ok( wait_until($nodes[0], sub { $session->run(q{SELECT pgpool.exec('shared', 'SELECT 1')}) }, '1', 30),
	'checkout succeeds after lock_setup');
is(share($nodes[0], 'cap, weight, members, failing_since, error'), "$cap|1|1||", 'pgpool.cluster_shares shows the agreement');

# --- one server may have all connections
my @holders = map { PgpxSession->new($nodes[0]) } 1 .. $cap;
lease($_, 'shared') foreach @holders;
is(share($nodes[0], 'used, share, demand, others'), "$cap|$cap|$cap|0", 'one busy server has all connections');
my $waiter = PgpxSession->new($nodes[0]);
$waiter->start(q{SELECT pgpool.checkout('shared', '60 s')});
ok(wait_until($nodes[0], 'SELECT reason FROM pgpool.waiters', 'server_cap', 30), 'another session waits because of the share');
$session->fails(q{SELECT pgpool.checkout('shared', '100 ms')}, '55P03', qr/HINT:  Raise "cluster_connections" or the timeout/, 'error of a timeout names the limit');

# --- idle connections of the first server are closed for the other servers
$_->run('SELECT pgpool.checkin_all()') foreach @holders;
like($waiter->finish(60), qr/^\d+$/, 'waiter is granted a connection');
$waiter->run('SELECT pgpool.checkin_all()');
begin_work($_, 4) foreach 1 .. 3;
my $delay = delay_begin();
my $before = time;
my $ok = wait_until($nodes[1], sub { my @used = map { share($nodes[$_], 'used') } 1 .. 3; (grep { $_ > 1 } @used) . ' of ' . ($used[0] + $used[1] + $used[2]) }, "3 of $cap", 30);
my $took = time - $before;
ok($ok, 'all connections of an idle server go to the busy servers');
cmp_ok($took, '<', 3 + delay_end($delay, 20), 'busy servers have the connections of an idle server within three seconds');

# --- all are busy: equal shares
begin_work(0, 4);
used_become('equal shares', (2) x 4);
ok( wait_until($nodes[$_], sub { share($nodes[$_], 'demand >= 4, others') }, 't|' . ($cap - 2), 30),
	"server $_ shows its demand and the connections of the others") foreach 0 .. 3;

# --- a lower cap applies at once, although all are busy
foreach my $lower (4, 1)
{
	$nodes[2]->safe_psql('postgres', "ALTER SERVER shared OPTIONS (SET cluster_connections '$lower')");
	ok(wait_until($nodes[0], sub { my $n = 0; $n += share($nodes[$_], 'used') foreach 0 .. 3; $n <= $lower ? 1 : 0 }, 1, 20), "lower cap of $lower applies to four busy servers");
	$nodes[2]->safe_psql('postgres', "ALTER SERVER shared OPTIONS (SET cluster_connections '$cap')");
	used_become("equal shares after a cap of $lower", (2) x 4);
}

# --- the tables are made again while all are busy
# (repeated after a deadlock with a statement of a server)
ok(wait_until($remote, sub { scalar $remote->psql('remote_db', 'DROP SCHEMA pgpool_lock CASCADE') }, 0, 30), 'tables are dropped');
ok(wait_until($nodes[0], sub { join ' ', map { share($nodes[$_], 'failing_since IS NOT NULL') } 0 .. 3 }, 't t t t', 30), 'tables are missing');
$nodes[0]->safe_psql('postgres', q{SELECT pgpool.lock_setup('plain')});
$remote->safe_psql('remote_db', 'GRANT USAGE ON SCHEMA pgpool_lock TO remote_app; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgpool_lock TO remote_app');
ok(wait_until($nodes[0], sub { join ' ', map { share($nodes[$_], 'used, failing_since IS NULL') } 0 .. 3 }, '2|t 2|t 2|t 2|t', 30), 'servers have the same shares when the tables are made again');
is(end_work(0), 't|0', 'server 0 made progress');
is(end_work(1), 't|0', 'server 1 made progress');
used_become('connections of servers that became idle are used', '-', '-', 4, 4);

# --- weights
$nodes[2]->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (ADD cluster_weight '3')});
begin_work(1, 8);
used_become('one server has the weight 3', '-', 2, 4, 2);
$nodes[1]->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (ADD cluster_weight '1000')});
used_become('a high weight leaves a connection to each server that wants one', '-', $cap - 2, 1, 1);
$nodes[1]->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (DROP cluster_weight)});
$nodes[2]->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (DROP cluster_weight)});
end_work(1);
end_work(2);

# --- a stopped worker keeps its connections: they are counted by their PIDs
begin_work(1, 12);
used_become('two busy servers', '-', 4, '-', 4);
end_work(3);
begin_work(3, 2);
used_become('server that wants less than an equal share leaves the rest', '-', $cap - 2, '-', 2);
end_work(3);
begin_work(3, 4);
used_become('two busy servers again', '-', 4, '-', 4);
ok(wait_until($remote, sub { $remote->safe_psql('remote_db', 'SELECT sum(cardinality(pids)) FROM pgpool_lock.shares') }, $cap, 30), 'PIDs of all sessions are published');
my $stopped = worker_pid($nodes[3]);
kill 'STOP', $stopped;
ok( wait_until($nodes[1], sub { $remote->safe_psql('remote_db', q{SELECT count(*) FROM pgpool_lock.shares WHERE clock_timestamp() - pinged > '6 s'}) }, '1', 30),
	'share of the stopped worker has expired');
is(share($nodes[1], 'used'), '4', 'sessions of a stopped worker still count');
kill 'CONT', $stopped;
ok(wait_until($nodes[3], q{SELECT valid_until > clock_timestamp() FROM pgpool.cluster_shares}, 't', 30), 'worker agrees again when it continues');

# --- a killed server: the remote server measures after what time another server uses its share
$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION taken_after() RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
	last timestamptz; pinged timestamptz; taken timestamptz;
BEGIN
	LOOP
		SELECT max(s.pinged) FILTER (WHERE held > 0 AND demand <= 4), max(s.pinged) FILTER (WHERE held > 4)
			INTO pinged, taken FROM pgpool_lock.shares AS s;
		last := coalesce(pinged, last);
		EXIT WHEN taken IS NOT NULL;
		PERFORM pg_sleep(0.005);
	END LOOP;
	RETURN extract(epoch FROM taken - last);
END $$;
EOT
my $taker = PgpxSession->new($remote, dbname => 'remote_db');
$taker->start('SELECT taken_after()');
$delay = delay_begin();
delete $working{3};
my @victims = split /\n/, $nodes[3]->safe_psql('postgres', 'SELECT pid FROM pg_stat_activity');
$nodes[3]->kill9;
kill 'KILL', @victims;
is($remote->safe_psql('remote_db', q{SELECT count(*) FROM pgpool_lock.shares WHERE held > 0}), '2', 'killed server still has its share');
used_become('share of a killed server is used by another one', '-', $cap);
my $after = $taker->finish(30);
cmp_ok($after, '>', 4.9, 'share of a killed server is not used before it has expired');
cmp_ok($after, '<', 5 + 3 + delay_end($delay, 20), 'share of a killed server is used soon after it has expired');
$taker->quit;
$remote->safe_psql('remote_db', 'DROP FUNCTION taken_after');
is(share($nodes[1], 'members'), '1', 'neither the killed server nor the idle ones are members');
like(end_work(1), qr/^t\|0$/, 'no statement failed');

# --- different caps, and fewer connections than servers
my $mark = -s $nodes[0]->logfile;
$nodes[1]->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (SET cluster_connections '2')});
begin_work($_, 3) foreach 0 .. 2;
ok(wait_until($nodes[1], sub { join ' ', map { share($nodes[$_], 'cap') } 0 .. 2 }, '2 2 2', 30), 'smallest of different caps applies to all');
ok(wait_until($nodes[0], sub { slurp_file($nodes[0]->logfile, $mark) =~ /different values of cluster_connections/ ? 1 : 0 }, '1', 30), 'different caps are logged');
ok(wait_until($nodes[1], sub { my $n = 0; $n += share($nodes[$_], 'used') foreach 0 .. 2; $n <= 2 ? 1 : 0 }, '1', 30), 'sessions decrease to the smaller cap');
my @before = map { $nodes[$_]->safe_psql('postgres', q{SELECT sum(checkouts) FROM pgpool.stats WHERE server = 'shared'}) } 0 .. 2;
ok( wait_until($nodes[0], sub { join ' ', map { $nodes[$_]->safe_psql('postgres', q{SELECT sum(checkouts) FROM pgpool.stats WHERE server = 'shared'}) > $before[$_] + 5 ? 1 : 0 } 0 .. 2 }, '1 1 1', 30),
	'three servers take turns with two connections');
like(end_work($_), qr/^t\|0$/, "server $_ did not starve") foreach 0 .. 2;
my $logged = () = slurp_file($nodes[0]->logfile, $mark) =~ /different values of cluster_connections/g;
is($logged, 1, 'different caps are logged once');
$nodes[1]->safe_psql('postgres', qq{ALTER SERVER shared OPTIONS (SET cluster_connections '$cap')});

# --- the table cannot be used
my $lease = lease($session, 'shared');
foreach my $fault (
	[ 'is missing', 'ALTER TABLE pgpool_lock.shares RENAME TO elsewhere', 'ALTER TABLE pgpool_lock.elsewhere RENAME TO shares', 'does not exist' ],
	[ 'was altered', 'ALTER TABLE pgpool_lock.shares RENAME held TO has', 'ALTER TABLE pgpool_lock.shares RENAME has TO held', 'does not exist' ],
	[ 'has no turn', 'DELETE FROM pgpool_lock.share_turn', 'INSERT INTO pgpool_lock.share_turn VALUES (1, 1000)', 'has no row' ],
	[ 'is read-only', 'ALTER SYSTEM SET default_transaction_read_only = on', 'ALTER SYSTEM SET default_transaction_read_only = off', 'read-only transaction' ])
{
	my ($name, $break, $repair, $error) = @$fault;

	$remote->safe_psql('remote_db', $break);
	$remote->reload;
	ok(wait_until($nodes[0], "SELECT error ~ '$error' FROM pgpool.cluster_shares WHERE failing_since IS NOT NULL", 't', 30), "table $name: pgpool.cluster_shares shows the error");
	is($session->run("SELECT pgpool.exec($lease, 'SELECT 1')"), '1', "table $name: open connection is in use");
	$remote->safe_psql('remote_db', "SET default_transaction_read_only = off; $repair");
	$remote->reload;
	ok(wait_until($nodes[0], 'SELECT failing_since IS NULL FROM pgpool.cluster_shares', 't', 30), "table $name: agreement is possible again");
}

# --- the table cannot be used for longer than the share is valid
$remote->safe_psql('remote_db', 'ALTER TABLE pgpool_lock.shares RENAME TO elsewhere');
ok(wait_until($nodes[0], 'SELECT valid_until < clock_timestamp() FROM pgpool.cluster_shares', 't', 30), 'share expires');
is($session->run("SELECT pgpool.exec($lease, 'SELECT 1')"), '1', 'lease stays usable after the share has expired');
is($session->run("SELECT pgpool.checkin($lease)") . $session->error, '', 'lease is returned after the share has expired');
is($session->run(q{SELECT pgpool.exec('shared', 'SELECT 1')}), '1', 'returned connection is leased again');
is(share($nodes[0], 'used'), '1', 'no other connection is opened while the share is expired');
$remote->safe_psql('remote_db', 'ALTER TABLE pgpool_lock.elsewhere RENAME TO shares');
my @leases = map { lease($_, 'shared') } @holders;
is(share($nodes[0], 'used'), $cap, 'connections are opened again');

# --- a worker ends, and the remote server continues the statements of its sessions
my $stubborn = q{DO $$ BEGIN FOR i IN 1 .. 150 LOOP BEGIN PERFORM pg_sleep(0.1); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$};
my $worker = worker_pid($nodes[0]);
$holders[$_]->start("SELECT pgpool.exec($leases[$_], \$remote\$$stubborn\$remote\$)") foreach 0 .. $#holders;
ok( wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND state = 'active' AND query LIKE 'DO %'}, $cap),
	'remote server executes statements');
kill 'TERM', $worker;
$_->finish(30) foreach @holders;
is(join(' ', map { $_->sqlstate } @holders), join(' ', ('08006') x $cap), 'leases end with their worker');
is($session->run(q{SELECT pgpool.exec('shared', 'SELECT 1')}, 660), '1', 'next worker opens a connection when the remote server has ended one') or diag($session->error);

# --- the cap was kept throughout
$remote->safe_psql('postgres', 'CREATE TABLE stopped ()');
$sampler->finish(30);
is($remote->safe_psql('postgres', 'SELECT most, samples > 100 FROM sampled'), "$cap|t", 'remote server never had more sessions than the cap');
unlike(slurp_file($remote->logfile), qr/too many connections for role/, 'no session was refused');
# --- a server changes to another remote database, whose cap is used up by another member
$remote->safe_psql('postgres', 'CREATE DATABASE second_db');
make_pool($nodes[0], $remote, server => 'setup', remote_dbname => 'second_db', user => 'remote_super', password => $REMOTE_SUPER_PASSWORD);
$nodes[0]->safe_psql('postgres', q{SELECT pgpool.lock_setup('setup'); SELECT pgpool.drain('setup', '30 s')});
$remote->safe_psql('second_db', 'GRANT USAGE ON SCHEMA pgpool_lock TO remote_app; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgpool_lock TO remote_app');
make_pool($nodes[1], $remote, server => 'second', remote_dbname => 'second_db', options => { cluster_connections => 2 });
my @others = map { PgpxSession->new($nodes[1]) } 1 .. 2;
lease($_, 'second') foreach @others;
is($session->run(q{SELECT pgpool.exec('shared', 'SELECT 1')}), '1', 'server has a valid share of the first database');
$remote->safe_psql('postgres', 'ALTER DATABASE second_db CONNECTION LIMIT 4');    # the cap, and one session of each server for the shares
$session->fails(q{BEGIN; ALTER SERVER shared OPTIONS (SET dbname 'second_db'); SELECT pgpool.checkout('shared', '500 ms')}, '55P03', qr/did not become available|no connection/i, 'transaction that has changed the database cannot use the share of the first one');
$session->run('ROLLBACK');
is($session->run(q{SELECT pgpool.exec('shared', 'SELECT 1')}) . $session->error, '1', 'server uses its share again after the rollback');
$nodes[0]->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (SET dbname 'second_db', SET cluster_connections '2')});
$session->fails(q{SELECT pgpool.checkout('shared', '1 s')}, '55P03', qr/did not become available|no connection/i, 'share of the first database is not valid for the second one');
unlike(slurp_file($remote->logfile), qr/too many connections for database "second_db"/, 'second database never had more sessions than its cap');
$remote->safe_psql('postgres', 'ALTER DATABASE second_db CONNECTION LIMIT -1');
$others[0]->run('SELECT pgpool.checkin_all()');
like($session->run(q{SELECT pgpool.checkout('shared', '60 s')}) . $session->error, qr/^\d+$/, 'server has a share of the second database when the other member has returned a connection');
$session->run('SELECT pgpool.checkin_all()');
$_->quit foreach @others;

foreach my $node (@nodes[ 0 .. 2 ])
{
	stats_add_up($node);
	check_invariants($node);
}
leak_check($_) foreach @nodes[ 0, 1 ];
leak_check($nodes[2], $remote);
done_testing();

# Pools with min_size are open when the server has started: the catalog reader, a
# short-lived background worker, publishes how to connect where no session does.
# It has the rights of the pool's user, and no more.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', conf => [ 'restart_after_crash = on', 'pgpool_ext.log_connections = on', 'autovacuum = off', 'max_wal_senders = 2', 'wal_level = replica' ]);
my $address = sprintf q{host '127.0.0.1', port '%d', dbname 'remote_db'}, $remote->port;
my $credentials = qq{"user" 'remote_app', password '$REMOTE_APP_PASSWORD'};

# The pools and their free connections.
sub pools
{
	my ($node) = @_;

	return $node->safe_psql('postgres', <<'EOT');
SELECT string_agg(pool, ', ' ORDER BY pool COLLATE "C") FROM pgpool.pools,
	concat_ws(' ', database, server, CASE local_user WHEN current_user THEN 'SUPER' ELSE local_user END, idle) AS pool
EOT
}

sub becomes
{
	my ($expected, $name, $node) = @_;

	return ok(wait_until($node // $local, sub { pools($node // $local) }, $expected, 60), $name) || diag(pools($node // $local));
}

sub log_count
{
	my ($pattern) = @_;

	return scalar(() = slurp_file($local->logfile) =~ /$pattern/g);
}

# --- the start of the server
make_pool($local, $remote, server => 'warm', options => { min_size => 2 });
make_pool($local, $remote, server => 'cold');
make_pool($local, $remote, server => 'refused', options => { min_size => 1 });
$local->safe_psql('postgres', <<"EOT");
-- without rights, in the end
CREATE ROLE stranger LOGIN;
CREATE USER MAPPING FOR stranger SERVER refused OPTIONS ($credentials);
DROP USER MAPPING FOR CURRENT_USER SERVER refused;
DROP USER MAPPING FOR app SERVER refused;

-- one pool for all users
CREATE SERVER shared FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($address, min_size '1');
CREATE USER MAPPING FOR PUBLIC SERVER shared OPTIONS ($credentials);

-- one for each of them
CREATE SERVER each FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($address, min_size '1');
CREATE USER MAPPING FOR PUBLIC SERVER each OPTIONS (password '$REMOTE_APP_PASSWORD');

-- with a base server
CREATE SERVER based FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'cold', min_size '1');
GRANT USAGE ON FOREIGN SERVER based TO app;

-- of an owner who has start commands executed with the rights of others
CREATE ROLE evil LOGIN;
GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO evil;
GRANT CREATE ON DATABASE postgres TO evil;
CREATE ROLE trusted LOGIN;
SET ROLE evil;
CREATE SERVER trap FOREIGN DATA WRAPPER pgpool_fdw
	OPTIONS ($address, min_size '1', start_commands 'CREATE TABLE IF NOT EXISTS trapped()');
CREATE USER MAPPING FOR CURRENT_USER SERVER trap OPTIONS ($credentials);
GRANT USAGE ON FOREIGN SERVER trap TO trusted;
RESET ROLE;
CREATE USER MAPPING FOR trusted SERVER trap OPTIONS ($credentials, password_required 'false');
EOT
my $super = $local->safe_psql('postgres', 'SELECT current_user');
$local->safe_psql('postgres', qq{SET ROLE evil; CREATE USER MAPPING FOR "$super" SERVER trap OPTIONS ($credentials)});
$remote->safe_psql('remote_db', 'GRANT CREATE ON SCHEMA public TO remote_app');

$local->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(another empty closed);
make_pool($local, $remote, server => 'there', dbname => 'another', options => { min_size => 1 });
make_pool($local, $remote, server => 'there', dbname => 'closed', options => { min_size => 1 });
$local->safe_psql('postgres', 'ALTER DATABASE closed ALLOW_CONNECTIONS false');
is(pools($local), '', 'no pool is opened before its first use');
$local->restart;
my $after_start = 'another there SUPER 1, another there app 1, postgres based SUPER 1, postgres based app 1, '
  . 'postgres shared public 1, postgres trap evil 1, postgres warm SUPER 2, postgres warm app 2';
becomes($after_start, 'after the start of the server, pools with min_size are open');
ok( wait_until($local, sub { log_count(qr/"refused" of database "postgres" for user "stranger" before a checkout.*\n.*permission denied for foreign server refused/) }, '1'),
	'a user without the right has no pool, which the log says');
foreach my $user ('trusted', $super)
{
	is(log_count(qr/"trap" of database "postgres" for user "$user" before a checkout.*\n.*pgpool_ext opens no connection without a password.*/), 1,
		"nor does the owner of a server get connections of $user without a password");
}
is(log_count(qr/FATAL/), 0, 'a database that allows no connections is left out');
is($remote->safe_psql('remote_db', q{SELECT tableowner FROM pg_tables WHERE tablename = 'trapped'}), 'remote_app', 'the start commands were those of the owner himself');
is($local->safe_psql('postgres', "SELECT pgpool.exec('warm', 'select 1'); SELECT connects FROM pgpool.stats WHERE server = 'warm' AND local_user = '$super'"), "1\n2",
	'the first checkout finds an open connection');
check_invariants($local);

# --- a crash, which makes all shared memory anew
my $victim = PgpxSession->new($local);
my $start = $local->safe_psql('postgres', 'SELECT started_at FROM pgpool.workers');
kill 'KILL', $victim->pid;
ok(wait_until($local, sub { scalar $local->psql('postgres', 'SELECT 1') }, '0', 60), 'the server starts again');
becomes($after_start, 'after a crash, pools with min_size are open again');

# --- options that are changed while no session uses the pool
my $pids = $remote->safe_psql('postgres', 'SELECT array_agg(pid) FROM pg_stat_activity');
sub renewed
{
	my ($where) = @_;

	return "SELECT count(*) FROM pgpool.connections WHERE state = 'idle' AND NOT stale AND $where AND remote_pid <> ALL ('$pids')";
}
$local->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (ADD application_name 'changed')});
ok(wait_until($local, renewed(q{server = 'shared'}), '1'), 'the pool of all users follows a change of options');
$local->safe_psql('postgres', q{ALTER SERVER cold OPTIONS (ADD application_name 'changed')});
ok(wait_until($local, renewed(q{server = 'based'}), '2'), 'so do pools with a base server');
$local->safe_psql('postgres', q{ALTER SERVER warm RENAME TO hot});
ok(wait_until($local, renewed(q{server = 'hot'}), '4'), 'and those of a server that is renamed');
$local->safe_psql('postgres', q{REVOKE USAGE ON FOREIGN SERVER hot FROM app});
ok(wait_until($local, q{SELECT string_agg(local_user, ' ') FROM pgpool.pools WHERE server = 'hot'}, $super), 'without the right there is no pool any more');

# what cannot be published is logged once, and shown, until it can be
$local->safe_psql('postgres', q{ALTER USER MAPPING FOR evil SERVER trap OPTIONS (DROP password)});
ok(wait_until($local, q{SELECT last_error FROM pgpool.pools WHERE server = 'trap'}, 'password is required'), 'a pool shows why it cannot be opened');
my $before = $local->safe_psql('postgres', q{SELECT last_error_at FROM pgpool.pools WHERE server = 'trap'});
ok(wait_until($local, qq{SELECT last_error_at > '$before' FROM pgpool.pools WHERE server = 'trap'}, 't'), 'the attempt is repeated');
$local->safe_psql('postgres', qq{ALTER USER MAPPING FOR evil SERVER trap OPTIONS (ADD password '$REMOTE_APP_PASSWORD')});
ok(wait_until($local, q{SELECT idle FROM pgpool.pools WHERE server = 'trap'}, '1'), 'once it can be, it is');
is(log_count(qr/"trap" of database "postgres" for user "evil" before a checkout/), 1, 'the log has one line about it');
becomes('another there SUPER 1, another there app 1, postgres based SUPER 1, postgres based app 1, '
	  . 'postgres hot SUPER 2, postgres shared public 1, postgres trap evil 1', 'all pools are open');

# --- the reader in pg_stat_activity; it can be ended, and does not wait for long
my ($locker, $watch) = map { PgpxSession->new($local) } 1 .. 2;
my $reader = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgpool_ext catalog reader'};
$locker->run('BEGIN; LOCK TABLE pg_foreign_data_wrapper IN ACCESS EXCLUSIVE MODE');
ok(terminate($local, worker_pid($local)), 'a worker is to start again');
ok(wait_until($local, sub { $watch->run($reader) =~ /^\d+$/ ? 1 : 0 }, '1'), 'a reader is shown in pg_stat_activity');
my $first = $watch->run($reader);
$watch->run("SELECT pg_terminate_backend($first)");
ok(wait_until($local, sub { $watch->run("SELECT count(*) FROM pg_stat_activity WHERE pid = $first") }, '0'), 'it ends when it is terminated');
ok(wait_until($local, sub { my $next = $watch->run($reader); $next =~ /^\d+$/ && $next != $first ? 1 : 0 }, '1'), 'another one is started');
ok(wait_until($local, sub { $watch->run($reader) }, ''), 'which does not wait for a lock on the catalogs for long');
$locker->run('ROLLBACK');
becomes('another there SUPER 1, another there app 1, postgres based SUPER 1, postgres based app 1, '
	  . 'postgres hot SUPER 2, postgres shared public 1, postgres trap evil 1', 'then all pools are open again', $local);

# --- databases are dropped while the reader works in them
my @took;
foreach my $round (1 .. 5)
{
	$local->safe_psql('postgres', 'CREATE DATABASE tenant STRATEGY file_copy');
	make_pool($local, $remote, server => 'there', dbname => 'tenant', options => { min_size => 1 });
	$local->safe_psql('tenant', q{SELECT pgpool.exec('there', 'select 1'); ALTER SERVER there OPTIONS (ADD application_name 'changed')});
	push @took, seconds { $local->safe_psql('postgres', 'DROP DATABASE tenant') };
}
cmp_ok((sort { $a <=> $b } @took)[-1], '<', 10, 'a database is dropped while the reader works in it');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE database = 'tenant'}, '0'), 'its pools are forgotten');

# --- several workers, and no process left for the reader
$local->append_conf('postgresql.conf', "pgpool_ext.workers = 2\nmax_worker_processes = 2\nmax_logical_replication_workers = 0");
$local->restart;
ok(wait_until($local, sub { log_count(qr/cannot start its catalog reader/) }, '1'), 'no background worker is left for the reader, which the log says');
is($local->safe_psql('postgres', q{SELECT pgpool.exec('hot', 'select 1')}), '1', 'checkouts work as ever');
becomes('postgres hot SUPER 2', 'and open their pools');
$local->safe_psql('postgres', q{ALTER SERVER hot OPTIONS (ADD application_name 'again')});
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections}, '0'), 'after a change of options they are closed');
is($local->safe_psql('postgres', q{SELECT pgpool.exec('hot', 'select 1')}), '1', 'until the next checkout');
is(log_count(qr/cannot start its catalog reader/), 1, 'the log has one line about all of it');

$local->append_conf('postgresql.conf', 'max_worker_processes = 8');
$local->restart;
becomes('another there SUPER 1, another there app 1, postgres based SUPER 1, postgres based app 1, '
	  . 'postgres hot SUPER 2, postgres shared public 1, postgres trap evil 1', 'two workers have their pools open after the start');

# --- a standby
$local->append_conf('pg_hba.conf', "local replication all trust");
$local->reload;
$local->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($local, 'copy', has_streaming => 1);
$standby->start;
becomes('another there SUPER 1, another there app 1, postgres based SUPER 1, postgres based app 1, '
	  . 'postgres hot SUPER 2, postgres shared public 1, postgres trap evil 1', 'a hot standby has its pools open, too', $standby);
$standby->stop('smart');
ok(1, 'a smart shutdown ends it');

is(log_count(qr/\Q$REMOTE_APP_PASSWORD/), 0, 'no password is in the log');
$_->quit foreach $locker, $watch;
check_invariants($local);
leak_check($local, $remote);
done_testing();

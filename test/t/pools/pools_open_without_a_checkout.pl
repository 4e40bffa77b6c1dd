# Pools with min_size or min_idle are open after the start of the server: the catalog reader, a
# short-lived background worker, publishes the conninfo if no session does. It has only
# the privileges of the pool's user.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the reasons to open a connection do not depend on TLS' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local', conf => [ 'restart_after_crash = on', 'max_prepared_transactions = 2', 'log_min_messages = debug1', 'pgpool_ext.log_connections = on', 'autovacuum = off', 'max_wal_senders = 2', 'wal_level = replica' ]);
my $address = sprintf q{host '127.0.0.1', port '%d', dbname 'remote_db'}, $remote->port;
my $credentials = qq{"user" 'remote_app', password '$REMOTE_APP_PASSWORD'};

# The pools and their idle connections.
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

	return ok(wait_until($node // $local, sub { pools($node // $local) }, $expected), $name) || diag(pools($node // $local));
}

sub log_count
{
	my ($pattern) = @_;

	return scalar(() = slurp_file($local->logfile) =~ /$pattern/g);
}

# --- the start of the server
make_pool($local, $remote, server => 'warm', options => { min_size => '0x2' });    # hexadecimal, which is valid, too
make_pool($local, $remote, server => 'cold');
make_pool($local, $remote, server => 'refused', options => { min_size => 1 });
$local->safe_psql('postgres', <<"EOT");
-- a user with a mapping and without USAGE
CREATE ROLE stranger LOGIN;
CREATE USER MAPPING FOR stranger SERVER refused OPTIONS ($credentials);
DROP USER MAPPING FOR CURRENT_USER SERVER refused;
DROP USER MAPPING FOR app SERVER refused;

-- a server with one pool for all users
CREATE SERVER shared FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($address, min_idle '1');
CREATE USER MAPPING FOR PUBLIC SERVER shared OPTIONS ($credentials);

-- a server with a pool for each user
CREATE SERVER each FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($address, min_size '1');
CREATE USER MAPPING FOR PUBLIC SERVER each OPTIONS (password '$REMOTE_APP_PASSWORD');

-- a server with a base server
CREATE SERVER based FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'cold', min_size '1');
GRANT USAGE ON FOREIGN SERVER based TO app;

-- a server whose owner sets start commands for the connections of others
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
is(pools($local), '', 'pool is not opened before its first use');
my $since = -s $local->logfile;
$local->restart;
my $after_start = 'another there SUPER 1, another there app 1, postgres based SUPER 1, postgres based app 1, '
  . 'postgres shared public 1, postgres trap evil 1, postgres warm SUPER 2, postgres warm app 2';
becomes($after_start, 'pools with min_size or min_idle are open after the start of the server');
ok( wait_until($local, sub { log_count(qr/"refused" of database "postgres" for user "stranger" before a checkout.*\n.*permission denied for foreign server refused/) }, '1'),
	'user without USAGE has no pool, and the log has the reason');
foreach my $user ('trusted', $super)
{
	ok(wait_until($local, sub { log_count(qr/"trap" of database "postgres" for user "$user" before a checkout.*\n.*pgpool_ext opens no connection without a password.*/) }, 1),
		"owner of a server has no connections of $user without a password");
}
is(log_count(qr/FATAL:.*not currently accepting connections/), 0, 'database that does not allow connections is skipped');
is($remote->safe_psql('remote_db', q{SELECT tableowner FROM pg_tables WHERE tablename = 'trapped'}), 'remote_app', q{start commands were executed as the server's owner});
is($local->safe_psql('postgres', "SELECT pgpool.exec('warm', 'select 1'); SELECT connects FROM pgpool.stats WHERE server = 'warm' AND local_user = '$super'"), "1\n2",
	'first checkout is granted an open connection');
is(scalar(() = slurp_file($local->logfile, $since) =~ /starting background worker process "pgpool_ext catalog reader"/g), 3, 'one catalog reader was started for each database');
my $name = '"pgpool_ext catalog reader"';
my $readers = sub { return join '', map { /starting/ ? 'b' : 'e' } slurp_file($local->logfile, $since) =~ /(starting background worker process $name|$name \(PID \d+\) exited)/g; };
ok(wait_until($local, $readers, 'bebebe', 30), 'catalog readers visit the databases one after the other') or diag($readers->());
check_invariants($local);

# --- a crash, after which shared memory is initialized again
my $victim = PgpxSession->new($local);
my $start = $local->safe_psql('postgres', 'SELECT started_at FROM pgpool.workers');
kill 'KILL', $victim->pid;
ok(wait_until($local, "SELECT started_at > '$start' FROM pgpool.workers", 't', 60), 'server restarts');
becomes($after_start, 'pools with min_size are open again after a crash');

# --- changes of options while no session uses the pool
my $pids = $remote->safe_psql('postgres', 'SELECT array_agg(pid) FROM pg_stat_activity');
sub renewed
{
	my ($where) = @_;

	return "SELECT count(*) FROM pgpool.connections WHERE state = 'idle' AND NOT stale AND $where AND remote_pid <> ALL ('$pids')";
}
$local->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (ADD application_name 'changed')});
ok(wait_until($local, renewed(q{server = 'shared'}), '1'), 'pool of all users follows a change of options');
$local->safe_psql('postgres', q{ALTER SERVER cold OPTIONS (ADD application_name 'changed')});
ok(wait_until($local, renewed(q{server = 'based'}), '2'), 'pools with a base server follow a change of options');
$local->safe_psql('postgres', q{ALTER SERVER warm RENAME TO hot});
ok(wait_until($local, renewed(q{server = 'hot'}), '4'), 'pools of a renamed server are open under its new name');
$local->safe_psql('postgres', q{REVOKE USAGE ON FOREIGN SERVER hot FROM app});
ok(wait_until($local, q{SELECT string_agg(local_user, ' ') FROM pgpool.pools WHERE server = 'hot'}, $super), 'pool of a user without USAGE is closed');

# a failed publication is logged once, and shown until it succeeds
$local->safe_psql('postgres', q{ALTER USER MAPPING FOR evil SERVER trap OPTIONS (DROP password)});
ok(wait_until($local, q{SELECT last_error FROM pgpool.pools WHERE server = 'trap'}, 'password is required'), 'pool shows why it cannot be opened');
my $before = $local->safe_psql('postgres', q{SELECT last_error_at FROM pgpool.pools WHERE server = 'trap'});
ok(wait_until($local, qq{SELECT last_error_at > '$before' FROM pgpool.pools WHERE server = 'trap'}, 't'), 'publication is repeated');
$local->safe_psql('postgres', qq{ALTER USER MAPPING FOR evil SERVER trap OPTIONS (ADD password '$REMOTE_APP_PASSWORD')});
ok(wait_until($local, q{SELECT idle FROM pgpool.pools WHERE server = 'trap'}, '1'), 'pool is opened once the publication succeeds');
is(log_count(qr/"trap" of database "postgres" for user "evil" before a checkout/), 1, 'log has a single line about the failed publication');
becomes('another there SUPER 1, another there app 1, postgres based SUPER 1, postgres based app 1, '
	  . 'postgres hot SUPER 2, postgres shared public 1, postgres trap evil 1', 'all pools are open');

# --- passwords of other users are not sent to servers of owners without rights on them
$local->safe_psql('postgres', <<"EOT");
SET ROLE evil;
CREATE SERVER bait FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($address, min_size '1');
CREATE SERVER common FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($address, min_size '1');
CREATE USER MAPPING FOR PUBLIC SERVER common OPTIONS ($credentials);
GRANT USAGE ON FOREIGN SERVER bait TO trusted;
RESET ROLE;
CREATE USER MAPPING FOR trusted SERVER bait OPTIONS ($credentials);
EOT
my @open = ('another there SUPER 1', 'another there app 1', 'postgres based SUPER 1', 'postgres based app 1', 'postgres hot SUPER 2', 'postgres shared public 1', 'postgres trap evil 1');
my $with = sub { return join ', ', sort @open, @_; };
my $refused = qr/"bait" of database "postgres" for user "trusted" before a checkout\n.*DETAIL:  pgpool_ext sends no password of a user to a server whose owner is neither a superuser/;
$local->restart;
becomes($with->('postgres common public 1'), 'mapping of PUBLIC, which its owner can read, has connections after the start');
ok(wait_until($local, sub { log_count($refused) }, 1), 'user whose password the owner could not read has no connections, and the log has the reason');
my $trusted = PgpxSession->new($local, user => 'trusted');
is($trusted->run(q{SELECT pgpool.exec('bait', 'select 1')}) . $trusted->error, '1', 'session of the user opens the pool');
ok(terminate($local, worker_pid($local)), 'worker is terminated');
becomes($with->('postgres bait trusted 1', 'postgres common public 1'), 'next worker opens the pool again with the same options');
$local->safe_psql('postgres', q{SET ROLE evil; ALTER SERVER bait OPTIONS (ADD start_commands 'CREATE TABLE IF NOT EXISTS baited()')});
ok(wait_until($local, sub { log_count($refused) }, 2), 'options that the owner has changed are refused, and the log has the reason');
like($local->safe_psql('postgres', q{SELECT total || last_error FROM pgpool.pools WHERE server = 'bait'}), qr/^0pgpool_ext sends no password/, 'pool is not opened with the options that its user has not used');
is($remote->safe_psql('remote_db', q{SELECT count(*) FROM pg_tables WHERE tablename = 'baited'}), '0', 'start commands that the owner has added are not executed');
$local->safe_psql('postgres', 'GRANT trusted TO evil');
becomes($with->('postgres bait trusted 1', 'postgres common public 1'), 'pool is opened when its owner has the privileges of the user');
$trusted->quit;
$local->safe_psql('postgres', 'DROP SERVER bait CASCADE; DROP SERVER common CASCADE');

# --- the catalog reader is shown in pg_stat_activity, can be terminated, and has a lock
# timeout
my ($locker, $watch) = map { PgpxSession->new($local) } 1 .. 2;
my $reader = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgpool_ext catalog reader'};
$locker->run('BEGIN; LOCK TABLE pg_foreign_data_wrapper IN ACCESS EXCLUSIVE MODE');
ok(terminate($local, worker_pid($local)), 'worker is terminated');
my $first = '';
ok(wait_until($local, sub { ($first = $watch->run($reader)) =~ /^\d+$/ ? 1 : 0 }, '1'), 'catalog reader is shown in pg_stat_activity');
my $minutes = 1;
$since = -s $local->logfile;
$local->safe_psql('another', q{ALTER SERVER there OPTIONS (ADD idle_timeout '1min')});
$watch->run("SELECT pg_terminate_backend($first)");
ok(wait_until($local, sub { $watch->run("SELECT count(*) FROM pg_stat_activity WHERE pid = $first") }, '0'), 'catalog reader exits when it is terminated');
ok(wait_until($local, sub { my $next = $watch->run($reader); $next =~ /^\d+$/ && $next != $first ? 1 : 0 }, '1'), 'another catalog reader is started');
# (the worker looks for pools that need a reader after each change of an option)
ok(wait_until($local, sub { $minutes = 3 - $minutes; $local->safe_psql('another', "ALTER SERVER there OPTIONS (SET idle_timeout '${minutes}min')"); $watch->run($reader) }, ''),
	'catalog reader does not wait long for a lock on the catalogs');
$locker->run('ROLLBACK');
$local->safe_psql('another', q{ALTER SERVER there OPTIONS (DROP idle_timeout)});
becomes('another there SUPER 1, another there app 1, postgres based SUPER 1, postgres based app 1, '
	  . 'postgres hot SUPER 2, postgres shared public 1, postgres trap evil 1', 'all pools are open again after the lock', $local);
like($readers->(), qr/^(?:eb){2,}/, 'catalog readers were started one after the other');
unlike($readers->(), qr/bb/, 'no catalog reader was started before the end of the previous one');

# --- databases are dropped while the catalog reader works in them
foreach my $round (1 .. 5)
{
	$local->safe_psql('postgres', 'CREATE DATABASE tenant STRATEGY file_copy');
	make_pool($local, $remote, server => 'there', dbname => 'tenant', options => { min_size => 1 });
	$local->safe_psql('tenant', q{SELECT pgpool.exec('there', 'select 1'); ALTER SERVER there OPTIONS (ADD application_name 'changed')});
	is($local->psql('postgres', 'DROP DATABASE tenant'), 0, 'database can be dropped while the catalog reader works in it');
}
ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE database = 'tenant'}, '0'), 'pools of a dropped database are removed');

# --- several workers, and no background worker slot for the catalog reader
$local->append_conf('postgresql.conf', "pgpool_ext.workers = 2\nmax_worker_processes = 2\nmax_logical_replication_workers = 0");
$local->restart;
ok(wait_until($local, sub { log_count(qr/cannot start its catalog reader/) }, '1'), 'missing background worker slot is logged');
is($local->safe_psql('postgres', q{SELECT pgpool.exec('hot', 'select 1')}), '1', 'checkout works without the catalog reader');
becomes('postgres hot SUPER 2', 'checkout opens the pool up to min_size');
$local->safe_psql('postgres', q{ALTER SERVER hot OPTIONS (ADD application_name 'again')});
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections}, '0'), 'connections are closed after a change of options');
is($local->safe_psql('postgres', q{SELECT pgpool.exec('hot', 'select 1')}), '1', 'next checkout opens the pool again');
is(log_count(qr/cannot start its catalog reader/), 1, 'log has a single line about the missing slot');

$local->append_conf('postgresql.conf', 'max_worker_processes = 8');
$local->restart;
becomes('another there SUPER 1, another there app 1, postgres based SUPER 1, postgres based app 1, '
	  . 'postgres hot SUPER 2, postgres shared public 1, postgres trap evil 1', 'pools of two workers are open after the start');

# --- a visit that fails is repeated, and does not delay the other databases
$local->safe_psql('postgres', 'CREATE DATABASE later');
make_pool($local, $remote, server => 'there', dbname => 'later', options => { min_size => 1 });
$local->safe_psql('postgres', q{BEGIN; ALTER DATABASE another RENAME TO renamed; PREPARE TRANSACTION 'database'});
$local->restart;
becomes(join(', ', sort 'later there SUPER 1', 'later there app 1', grep { !/^another/ } @open), 'locked database does not delay the databases behind it');
$local->safe_psql('postgres', q{ROLLBACK PREPARED 'database'});
becomes($with->('later there SUPER 1', 'later there app 1'), 'visit is repeated, and its pools are open after the end of the lock');

# --- too few slots for all pools
my $slots = q{LOG:  (?:\w+: )?pgpool_ext cannot open connections to server "\w+" of database "\w+" for user ".*" before a checkout\n.*DETAIL:  too many pools};
$local->append_conf('postgresql.conf', 'pgpool_ext.max_pools = 5');
$local->restart;
ok(wait_until($local, sub { log_count(qr/$slots/) }, 2), 'log has one line for each of two databases about the missing slots of four pools');
is(pools($local) =~ tr/,//, 4, 'all slots for pools are used');
$local->append_conf('postgresql.conf', 'pgpool_ext.max_pools = 64');
$local->safe_psql('postgres', 'DROP DATABASE later');
$local->restart;
becomes($with->(), 'all pools are open with enough slots');
is(log_count(qr/$slots/), 2, 'log has no further line about missing slots');

# --- a standby
$local->append_conf('pg_hba.conf', "local replication all trust");
$local->reload;
$local->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($local, 'copy', has_streaming => 1);
$standby->start;
becomes('another there SUPER 1, another there app 1, postgres based SUPER 1, postgres based app 1, '
	  . 'postgres hot SUPER 2, postgres shared public 1, postgres trap evil 1', 'pools are open on a hot standby', $standby);
$standby->stop('smart');
ok(1, 'standby stops with a smart shutdown');

is(log_count(qr/\Q$REMOTE_APP_PASSWORD/), 0, 'log contains no password');
$_->quit foreach $locker, $watch;
check_invariants($local);
leak_check($local, $remote);
done_testing();

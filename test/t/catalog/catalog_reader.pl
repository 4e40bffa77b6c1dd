# The worker reads the catalogs: pools open without a checkout, a reader that cannot read, and databases that are dropped meanwhile.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');

# ---------- pools without a checkout
# Pools with min_size or min_idle are open after the start of the server: the catalog reader, a
# short-lived background worker, publishes the conninfo if no session does. It has only
# the privileges of the pool's user.
SKIP:
{
	skip 'the reasons to open a connection do not depend on TLS', 1 if over_tls();

	my $local = local_node('local1', conf => [ 'restart_after_crash = on', 'max_prepared_transactions = 2', 'log_min_messages = debug1', 'pgpool_ext.log_connections = on', 'autovacuum = off' ]);
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
	my $name = '"pgpool_ext catalog reader"';
	my $readers = sub { return join '', map { /starting/ ? 'b' : 'e' } slurp_file($local->logfile, $since) =~ /(starting background worker process $name|$name \(PID \d+\) exited)/g; };
	ok(wait_until($local, sub { $readers->() =~ /^(?:be){3,}$/ ? 1 : 0 }, 1), 'catalog readers visit the databases one after the other') or diag($readers->());
	check_invariants($local);

	# --- a crash, after which shared memory is initialized again
	my $victim = PgpxSession->new($local);
	my $worker = $local->safe_psql('postgres', 'SELECT pid FROM pgpool.workers');
	kill 'KILL', $victim->pid;
	ok(wait_until($local, "SELECT pid <> $worker FROM pgpool.workers", 't', 60), 'server restarts');
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
	ok(wait_until($local, sub { log_count($refused) }, 2), 'next worker does not open the pool, and the log has the reason');
	ok(wait_until($local, q{SELECT total, last_error ~ '^pgpool_ext sends no password' FROM pgpool.pools WHERE server = 'bait'}, '0|t'), 'pool shows the reason');
	$local->safe_psql('postgres', 'GRANT trusted TO evil');
	becomes($with->('postgres bait trusted 1', 'postgres common public 1'), 'pool is opened when its owner has the privileges of the user');
	$trusted->quit;
	$local->safe_psql('postgres', 'DROP SERVER bait CASCADE; DROP SERVER common CASCADE');

	# --- a server with a base server: its owner must be able to use the mapping
	$local->safe_psql('postgres', q{SET ROLE evil; CREATE SERVER steal FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'cold', min_size '2', min_idle '1');
		GRANT USAGE ON FOREIGN SERVER steal TO app});
	$local->restart;
	ok(wait_until($local, sub { log_count(qr/"steal" of database "postgres" for user "app" before a checkout\n.*DETAIL:  permission denied to use option "min_size" of server "steal"/) }, 1),
		'pool on a base server of another owner is not opened, and the log has the reason');
	becomes($with->(), 'other pools are open');
	my $app = PgpxSession->new($local, user => 'app');
	$app->fails(q{SELECT pgpool.exec('steal', 'select 1')}, '42501', qr/permission denied to use option "min_size"/, 'checkout is refused for the same reason');
	$local->safe_psql('postgres', 'ALTER SERVER steal OPTIONS (DROP min_size, DROP min_idle)');
	is($app->run(q{SELECT pgpool.exec('steal', 'select 1')}) . $app->error, '1', 'server without these options can be used');
	$local->safe_psql('postgres', q{SET ROLE evil; ALTER SERVER steal OPTIONS (ADD min_size '3')});
	becomes($with->(), 'pool is closed when the owner has set such an option');
	$local->safe_psql('postgres', 'GRANT app TO evil');
	is($app->run(q{SELECT pgpool.exec('steal', 'select 1')}) . $app->error, '1', 'server can be used when the owner has the privileges of the user');
	becomes($with->('postgres steal app 3'), 'min_size takes effect');
	$local->safe_psql('postgres', 'REVOKE app FROM evil');
	becomes($with->(), 'pool is closed when the owner has lost these privileges');
	$app->quit;
	$local->safe_psql('postgres', 'DROP SERVER steal');

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
	like($readers->(), qr/^e?b(?:eb)+/, 'catalog readers were started one after the other');
	unlike($readers->(), qr/bb/, 'no catalog reader was started before the end of the previous one');

	# --- databases are dropped while the catalog reader works in them
	foreach my $round (1 .. 2)
	{
		$local->safe_psql('postgres', 'CREATE DATABASE tenant STRATEGY file_copy');
		make_pool($local, $remote, server => 'there', dbname => 'tenant', options => { min_size => 1 });
		$local->safe_psql('tenant', q{SELECT pgpool.exec('there', 'select 1'); ALTER SERVER there OPTIONS (ADD application_name 'changed')});
		is($local->psql('postgres', 'DROP DATABASE tenant'), 0, 'database can be dropped while the catalog reader works in it');
	}
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE database = 'tenant'}, '0'), 'pools of a dropped database are removed');

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

	is(log_count(qr/\Q$REMOTE_APP_PASSWORD/), 0, 'log contains no password');
	$_->quit foreach $locker, $watch;
	check_invariants($local);
	leak_check($local, $remote);
}

# ---------- a reader that cannot read
# Bad input of the catalog reader: its database does not accept connections, is full or is
# dropped, no background worker slot is free, or the role of a pool lost its rights. The
# reason is in the log or in the view, other pools are not affected, and the pools open
# as soon as the cause has ended.
SKIP:
{
	skip 'the catalog reader does not depend on TLS', 1 if over_tls();

	my $local = local_node('local2', conf => [ 'autovacuum = off', 'max_logical_replication_workers = 0' ]);
	my $credentials = qq{"user" 'remote_app', password '$REMOTE_APP_PASSWORD'};

	$local->safe_psql('postgres', 'CREATE DATABASE tenant; CREATE ROLE user1 LOGIN');
	make_pool($local, $remote, server => 'here', options => { min_size => 1, retry_max => '200ms' });
	make_pool($local, $remote, server => 'there', dbname => 'tenant', options => { min_size => 1, retry_max => '200ms' });
	$local->safe_psql('tenant', "CREATE USER MAPPING FOR user1 SERVER there OPTIONS ($credentials); GRANT USAGE ON FOREIGN SERVER there TO user1");

	# The pools with an idle connection.
	sub open_pools
	{
		return $local->safe_psql('postgres', q{SELECT string_agg(server || ' ' || local_user, ', ' ORDER BY server, local_user) FROM pgpool.pools WHERE idle > 0 AND local_user <> current_user});
	}

	sub become_open
	{
		my ($expected, $name) = @_;

		return ok(wait_until($local, \&open_pools, $expected, 120), $name);
	}

	$local->restart;
	become_open('here app, there app, there user1', 'pools are open after the start');

	# --- the database does not accept connections while its pools lose theirs
	$local->safe_psql('postgres', 'ALTER DATABASE tenant ALLOW_CONNECTIONS false');
	ok(terminate($local, worker_pid($local)), 'worker is terminated');
	become_open('here app', 'pools of other databases are open again');
	$local->safe_psql('postgres', 'ALTER DATABASE tenant ALLOW_CONNECTIONS true');
	become_open('here app, there app, there user1', 'pools are open again when their database accepts connections');

	# --- the role has lost its rights; it needs no LOGIN, because a role without it owns
	# objects and runs functions
	my $pools_of_user1 = q{SELECT count(*) FROM pgpool.pools WHERE local_user = 'user1'};
	my $since = -s $local->logfile;

	$local->safe_psql('tenant', 'REVOKE USAGE ON FOREIGN SERVER there FROM user1');
	ok(wait_until($local, $pools_of_user1, '0'), 'role without USAGE has no pool');
	$local->restart;
	is_logged($local, $since, qr/cannot open connections to server "there" of database "tenant" for user "user1" before a checkout\n.*DETAIL:  permission denied for foreign server there/, 'missing right is logged after the start');
	become_open('here app, there app', 'pools of other roles are open');
	$local->safe_psql('tenant', 'ALTER ROLE user1 NOLOGIN; GRANT USAGE ON FOREIGN SERVER there TO user1; DROP USER MAPPING FOR user1 SERVER there');
	$local->restart;
	become_open('here app, there app', 'restart of the server: pools of other roles are open');
	reader_has_ended($local);
	is($local->safe_psql('postgres', $pools_of_user1), '0', 'role without its mapping has no pool');
	$local->safe_psql('tenant', "CREATE USER MAPPING FOR user1 SERVER there OPTIONS ($credentials)");
	$local->restart;
	become_open('here app, there app, there user1', 'role that cannot log in has its pool');
	$local->safe_psql('tenant', 'DROP USER MAPPING FOR user1 SERVER there; REVOKE USAGE ON FOREIGN SERVER there FROM user1; DROP ROLE user1');

	# --- the role of a mapping is dropped while the reader visits its database
	$local->safe_psql('postgres', 'CREATE ROLE lost; CREATE USER MAPPING FOR lost SERVER here');
	make_pool($local, $remote, server => 'next', options => { min_size => 1 });
	$local->safe_psql('postgres', q{DELETE FROM pg_authid WHERE rolname = 'lost'});
	$local->restart;
	become_open('here app, next app, there app', 'mapping without a role does not keep other pools from being opened');
	$local->safe_psql('postgres', 'DELETE FROM pg_user_mapping AS m WHERE NOT EXISTS (SELECT FROM pg_authid AS r WHERE r.oid = m.umuser); DROP SERVER next CASCADE');

	# --- the database is dropped
	$local->safe_psql('postgres', 'DROP DATABASE tenant');
	ok(terminate($local, worker_pid($local)), 'worker is terminated');
	become_open('here app', 'other pools are open after the drop of a database');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE server = 'there'}, 0), 'pools of the dropped database are removed');

	# --- all background worker slots are taken when the worker has restarted, and a lock is held
	$local->safe_psql('postgres', q{SELECT pgpool.lock_setup('here')});
	$local->append_conf('postgresql.conf', "max_worker_processes = 1");
	$local->restart;
	my $session = PgpxSession->new($local);
	my $token = $session->run(q{SELECT pgpool.lock('here', 'a', ttl => '10 min')});
	like($token, qr/^\d+$/, 'lock is held');
	$since = -s $local->logfile;
	ok(terminate($local, worker_pid($local)), 'worker is terminated');
	is_logged($local, $since, qr/cannot start its catalog reader\n.*DETAIL:  All background worker slots are in use.*\n.*HINT:  Raise "max_worker_processes"/, 'missing slot is logged, with its consequences');
	is($session->run("SELECT pgpool.lock_valid('here', 'a', $token)"), 't', 'lock is valid');
	is($session->run(q{SELECT pgpool.exec('here', 'SELECT 1')}), '1', 'checkout works');
	$session->quit;
	$local->append_conf('postgresql.conf', 'max_worker_processes = 8');
	$local->restart;
	become_open('here app', 'pools are open after the start with enough slots');
	stats_add_up($local);
	check_invariants($local);
	leak_check($local, $remote);
}

# ---------- databases that are dropped
# DROP DATABASE waits until every process has answered a barrier. The worker does while
# it is idle, and sessions do while they wait for a connection or for a remote server.
# The worker is not connected to any database.
{
	my $local = local_node('local3', conf => [ 'pgpool_ext.workers = 2', 'autovacuum = off' ]);
	make_pool($local, $remote, server => 'shard1', options => { pool_size => 2 });

	my @sessions = map { PgpxSession->new($local) } 1 .. 3;
	my $admin = PgpxSession->new($local);

	sub drops
	{
		my ($what, $database) = @_;
		my $name = $database // 'elsewhere';

		$admin->run("CREATE DATABASE $name STRATEGY file_copy") unless $database;
		$admin->run("DROP DATABASE $name");
		is($admin->error, '', "$what: DROP DATABASE succeeds");
		return;
	}

	drops('no pool was ever used');
	my @leases = map { lease($_, 'shard1') } @sessions[ 0, 1 ];
	$sessions[0]->run("SELECT pgpool.exec($leases[0], 'select 1')");
	drops('leases are held and the worker is idle');

	$sessions[1]->start("SELECT pgpool.exec($leases[1], 'select pg_sleep(300)')");
	ok( wait_until($remote,
			"SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(300)' AND state = 'active'",
			'1'),
		'one session executes a remote query');
	$sessions[2]->start("SELECT pgpool.checkout('shard1', '5 min')");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'another session waits');
	drops('a session executes a remote query, and one waits');
	is($sessions[$_]->done, 0, "session $_ is not disturbed") foreach 1, 2;
	$sessions[1]->quit if terminate($local, $sessions[1]->pid);
	like($sessions[2]->finish(10), qr/^\d+$/, 'waiter is granted the connection of a terminated session');

	# a database with pools of its own
	$admin->run('CREATE DATABASE tenant');
	make_pool($local, $remote, server => 'shard1', dbname => 'tenant');
	is($local->safe_psql('tenant', "SELECT pgpool.exec('shard1', 'select 1')"), '1', 'database has a pool');
	drops('a database with an open connection of its pool', 'tenant');

	# a database in which the catalog reader waits for a lock, on a catalog of all databases. From 19 on,
	# the server ends the reader. (The reader waits for two seconds, so an attempt can be too late.)
	my $since = -s $local->logfile;
	my $ended = 0;
	my $ends = $local->safe_psql('postgres', 'SHOW server_version_num') >= 190000 ? 1 : 0;

	foreach my $attempt (1 .. 10)
	{
		$admin->run('CREATE DATABASE tenant');
		make_pool($local, $remote, server => 'shard1', dbname => 'tenant', options => { min_size => 1 });
		$local->safe_psql('tenant', "SELECT pgpool.exec('shard1', 'select 1')");
		my $workers = $admin->run(q{SELECT string_agg(format('pg_terminate_backend(%s)', pid), ', ') FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker'});
		$sessions[0]->run('SELECT pgpool.checkin_all(); BEGIN; LOCK TABLE pg_authid IN ACCESS EXCLUSIVE MODE');
		$admin->run("SELECT $workers");
		ok(wait_until($local, sub { $admin->run(q{SELECT count(*) FROM pg_locks WHERE relation = 1260 AND NOT granted}) > 0 ? 1 : 0 }, '1'), 'catalog reader waits for a lock');
		drops('a database with a waiting catalog reader', 'tenant');
		$sessions[0]->run('ROLLBACK');
		$ended = slurp_file($local->logfile, $since) =~ /terminating background worker "pgpool_ext catalog reader" due to administrator command/;
		last if $ended || !$ends;
	}
	is($ended ? 1 : 0, $ends, 'DROP DATABASE ends the catalog reader from 19 on');

	$_->run('SELECT pgpool.checkin_all()') foreach @sessions[ 0, 2 ];
	stats_add_up($local);
	check_invariants($local);
	leak_check($local, $remote);
}

done_testing();

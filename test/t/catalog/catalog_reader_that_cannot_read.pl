# Bad input of the catalog reader: its database does not accept connections, is full or is
# dropped, no background worker slot is free, or the role of a pool lost its rights. The
# reason is in the log or in the view, other pools are not affected, and the pools open
# as soon as the cause has ended.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the catalog reader does not depend on TLS' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local', conf => [ 'autovacuum = off', 'max_logical_replication_workers = 0' ]);
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

# --- the database is full; its limit does not apply to superusers such as the reader
$local->safe_psql('postgres', 'ALTER DATABASE tenant CONNECTION LIMIT 0');
ok(terminate($local, worker_pid($local)), 'worker is terminated');
become_open('here app, there app, there user1', 'connection limit of the database does not affect the reader');
$local->safe_psql('postgres', 'ALTER DATABASE tenant CONNECTION LIMIT -1');

# --- the role has lost its rights
foreach my $case (
	[ 'USAGE', 'REVOKE USAGE ON FOREIGN SERVER there FROM user1', 'GRANT USAGE ON FOREIGN SERVER there TO user1' ],
	[ 'its mapping', 'DROP USER MAPPING FOR user1 SERVER there', "CREATE USER MAPPING FOR user1 SERVER there OPTIONS ($credentials)" ])
{
	my ($right, $revoke, $grant) = @$case;
	my $pools_of_user1 = q{SELECT count(*) FROM pgpool.pools WHERE local_user = 'user1'};

	$local->safe_psql('tenant', $revoke);
	ok(wait_until($local, $pools_of_user1, '0'), "role without $right has no pool");
	foreach my $restart ('worker', 'server')
	{
		if ($restart eq 'worker')
		{
			ok(terminate($local, worker_pid($local)), 'worker is terminated');
		}
		else
		{
			$local->restart;
		}
		become_open('here app, there app', "restart of the $restart: pools of other roles are open");
		reader_has_ended($local);
		is($local->safe_psql('postgres', $pools_of_user1), '0', "restart of the $restart: role without $right has no pool");
	}
	$local->safe_psql('tenant', $grant);
	$local->restart;
	become_open('here app, there app, there user1', "role with $right has a pool after the next start");
}

# LOGIN is not needed: a role without it owns objects and runs functions
$local->safe_psql('postgres', 'ALTER ROLE user1 NOLOGIN');
$local->restart;
become_open('here app, there app, there user1', 'role that cannot log in has its pool');
my $since = -s $local->logfile;
$local->safe_psql('tenant', q{REVOKE USAGE ON FOREIGN SERVER there FROM user1});
$local->restart;
is_logged($local, $since, qr/cannot open connections to server "there" of database "tenant" for user "user1" before a checkout\n.*DETAIL:  permission denied for foreign server there/, 'missing right is logged after the start');
become_open('here app, there app', 'other pools are open');
$local->safe_psql('tenant', q{DROP USER MAPPING FOR user1 SERVER there});
$local->safe_psql('postgres', 'DROP ROLE user1');

# --- the server is dropped, and its database
$local->safe_psql('tenant', 'DROP SERVER there CASCADE');
ok(terminate($local, worker_pid($local)), 'worker is terminated');
become_open('here app', 'dropped server has no pool');
make_pool($local, $remote, server => 'there', dbname => 'tenant', options => { min_size => 1 });
$local->restart;
become_open('here app, there app', 'server that was created again has a pool');
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
done_testing();

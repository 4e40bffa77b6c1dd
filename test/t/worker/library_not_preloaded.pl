# Without shared_preload_libraries, CREATE EXTENSION, CREATE SERVER, the validator and a
# restore work, because pg_upgrade needs them. Everything else fails with 55000 and a
# hint that names the setting.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $local = local_node('local', preload => 0);
my $session = PgpxSession->new($local);

is($session->run('CREATE EXTENSION pgpool_ext') . $session->error, '', 'extension can be created');
$session->run(<<'EOT');
CREATE ROLE app LOGIN;
CREATE SERVER shard1 FOREIGN DATA WRAPPER pgpool_fdw
	OPTIONS (host '10.0.0.7', dbname 'app', pool_size '8', checkout_timeout '1min', reset 'never');
CREATE USER MAPPING FOR app SERVER shard1 OPTIONS (user 'app', password 'secret');
CREATE USER MAPPING FOR PUBLIC SERVER shard1 OPTIONS (user 'other', password 'also secret');
GRANT USAGE ON FOREIGN SERVER shard1 TO app;
CREATE SERVER batch FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'shard1', pool_size '2');
EOT
is($session->error, '', 'server can be created');
$session->fails("ALTER SERVER shard1 OPTIONS (SET pool_size 'many')", '22023', qr/pool_size/, 'validator rejects a wrong value');
$session->fails("ALTER SERVER shard1 OPTIONS (ADD pool_sise '1')", 'HV00D', qr/pool_sise/, 'validator rejects an unknown option');
$session->fails("ALTER USER MAPPING FOR app SERVER shard1 OPTIONS (ADD pool_size '1')", 'HV00D', qr/pool_size/, 'validator rejects a server option in a user mapping');

# every function and every view; predict_wait only computes, and the rest that is left out only uses tables
my $quiet = "set client_min_messages = error;\n";
my @functions = split /\n/, $session->run(<<'EOT');
SELECT format('SELECT * FROM %s(%s)%s', p.oid::regproc, (
		SELECT string_agg(CASE WHEN t IN ('"any"'::regtype, 'anyelement'::regtype) THEN 'NULL::int'
			WHEN p.provariadic <> 0 AND n = p.pronargs THEN format('VARIADIC NULL::%s', t::regtype)
			WHEN t = 'interval'::regtype THEN 'interval ''1 hour'''
			ELSE format('NULL::%s', t::regtype) END, ', ' ORDER BY n)
		FROM unnest(p.proargtypes) WITH ORDINALITY AS a(t, n)),
	CASE WHEN p.prorettype = 'record'::regtype AND coalesce(p.proargmodes::text, '') NOT LIKE '%t%' THEN ' AS t(a int)' END)
FROM pg_proc p
WHERE p.pronamespace = 'pgpool'::regnamespace AND p.proname NOT IN ('pgpool_fdw_validator', 'pgpool_fdw_handler', 'detach_postgres_fdw', 'detach_dblink', 'predict_wait', 'adopt_prepared', 'forget_participant') AND p.proname NOT LIKE 'param%'
EOT
cmp_ok(scalar @functions, '>', 20, 'list of functions is complete');
my @views = split /\n/, $session->run(
	"SELECT 'SELECT * FROM ' || oid::regclass FROM pg_class WHERE relnamespace = 'pgpool'::regnamespace AND relkind = 'v' AND relname <> 'prepared_transactions'");
cmp_ok(scalar @views, '>=', 7, 'list of views is complete');
$session->fails($quiet . $_, '55000', qr/HINT:.*shared_preload_libraries/, "$_ fails with 55000") foreach @functions, @views;
$session->fails("SELECT pgpool.checkout('shard1')", '55000', qr/HINT:.*shared_preload_libraries/, 'checkout with arguments fails with 55000');

# functions of dblink that are attached, and are detached
my $string = PgpxTest::quote($local->connstr('postgres'));
$session->run(<<'EOT');
CREATE EXTENSION dblink;
CREATE OR REPLACE FUNCTION dblink(text, text) RETURNS SETOF record AS '$libdir/pgpool_ext', 'pgpx_dblink_record' LANGUAGE C STRICT;
CREATE OR REPLACE FUNCTION dblink_exec(text, text) RETURNS text AS '$libdir/pgpool_ext', 'pgpx_dblink_exec' LANGUAGE C STRICT;
EOT
my $calls = "SELECT a, dblink_exec($string, 'set work_mem = 64') FROM dblink($string, 'select 7') AS t(a int)";
is($session->run($calls) . $session->error, '7|SET', 'calls of attached functions are passed to dblink');
is($session->run("SELECT pgpool.detach_dblink(), pgpool.detach_dblink(); $calls") . $session->error, "t|f\n7|SET", 'functions are detached');

# a dump, restored into a database of the same server
my $dump = PostgreSQL::Test::Utils::tempdir . '/dump';
my $options = q{SELECT srvname, o FROM pg_foreign_server, unnest(srvoptions) AS o
	UNION ALL SELECT usename, o FROM pg_user_mappings, unnest(umoptions) AS o ORDER BY 1, 2};
my $before = $local->safe_psql('postgres', $options);
$local->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $local->connstr('postgres') ], 'database can be dumped');
$session->run('CREATE DATABASE restored');
$local->command_ok([ 'pg_restore', '-e', '-d', $local->connstr('restored'), $dump ], 'dump can be restored');
is($local->safe_psql('restored', $options), $before, 'restored servers and mappings have all options');
is($session->run('DROP EXTENSION pgpool_ext CASCADE; SELECT count(*) FROM pg_foreign_server'), '0', 'extension can be dropped');
$session->quit;

# now the library is preloaded
my $remote = remote_node('remote');
my $port = $remote->port;
$local->append_conf('postgresql.conf', "shared_preload_libraries = 'pgpool_ext'");
$local->restart;
is( $local->safe_psql('restored', <<"EOT"), '1', 'pool of the restored database works once the library is preloaded');
ALTER SERVER shard1 OPTIONS (SET host '127.0.0.1', ADD port '$port', SET dbname 'remote_db');
ALTER USER MAPPING FOR PUBLIC SERVER shard1 OPTIONS (SET user 'remote_app', SET password '$REMOTE_APP_PASSWORD');
SELECT pgpool.exec('shard1', 'select 1');
EOT
is($local->safe_psql('restored', "SELECT pgpool.exec('batch', 'select 1')"), '1',
	'server that was restored before its base server works');
$local->safe_psql('postgres', 'CREATE EXTENSION pgpool_ext');
check_invariants($local);
leak_check($local, $remote);
done_testing();

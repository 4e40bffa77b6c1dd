# Privileges and foreign tables: a server with a base server, a user without USAGE, a
# privilege that is revoked while a session waits.
use strict;
use warnings;

use PgpxTest;
use Test::More;

plan skip_all => 'privileges do not depend on TLS' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local');

sub local_sql { return $local->safe_psql('postgres', $_[0]); }

$remote->safe_psql('remote_db', 'CREATE TABLE numbers AS SELECT g AS n FROM generate_series(1, 3) g; GRANT ALL ON numbers TO remote_app; CREATE TABLE commands (n int); GRANT ALL ON commands TO remote_app');
make_pool($local, $remote, server => 'base');
local_sql(q{CREATE EXTENSION postgres_fdw;
	CREATE SCHEMA tables; GRANT USAGE ON SCHEMA tables TO app;
	CREATE SERVER derived FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'base');
	CREATE FOREIGN TABLE tables.numbers (n int) SERVER derived OPTIONS (schema_name 'public');
	GRANT SELECT ON tables.numbers TO app});
my $su = PgpxSession->new($local);
my $app = PgpxSession->new($local, user => 'app');

# --- foreign tables of a server with a base server
my $twice = 'BEGIN; SELECT sum(n) FROM tables.numbers; SELECT count(*) FROM tables.numbers; COMMIT';
is($su->run($twice) . $su->error, "6\n3", 'table is read twice in a transaction');
is($app->run($twice) . $app->error, "6\n3", 'user without USAGE on the server reads its table twice in a transaction');

# --- the user has no USAGE on either server: changes of other roles do not retire the pool
local_sql('REVOKE USAGE ON FOREIGN SERVER base FROM app');
is($app->run($twice) . $app->error, "6\n3", 'user without USAGE on both servers reads the table');
my $connects = q{SELECT sum(connects) FROM pgpool.stats WHERE server = 'derived'};
my $before = local_sql($connects);
foreach my $change ('CREATE ROLE unrelated', 'ALTER ROLE unrelated CONNECTION LIMIT 3', 'DROP ROLE unrelated')
{
	local_sql($change);
	is($app->run('SELECT sum(n) FROM tables.numbers') . $app->error, 6, "$change: table is read");
}
is(local_sql($connects), $before, 'changes of other roles close no connection of the user');
$app->fails(q{SELECT pgpool.exec('derived', 'SELECT 1')}, '42501', qr/permission denied for foreign server/, 'functions need USAGE');

# --- the owner of a server with a base server needs USAGE on it
local_sql(q{CREATE ROLE evil LOGIN; GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO evil; CREATE SCHEMA evil AUTHORIZATION evil;
	CREATE USER MAPPING FOR PUBLIC SERVER base OPTIONS (user 'remote_app', password '} . $REMOTE_APP_PASSWORD . q{')});
my $evil = PgpxSession->new($local, user => 'evil');
is($evil->run(q{CREATE SERVER own FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'base', min_size '1', start_commands 'INSERT INTO commands VALUES (1)');
	CREATE FOREIGN TABLE evil.numbers (n int) SERVER own OPTIONS (schema_name 'public')}) . $evil->error, '', 'user without USAGE on a server creates another one with this base server');
$evil->fails('SELECT * FROM evil.numbers', '42501', qr/permission denied for foreign server base\nDETAIL:  Server "own" has "base" as its base server\.\nHINT:  Grant USAGE on the base server to the owner of server "own"/, 'table of that server cannot be read');
$evil->fails('SELECT pgpool.exec($$own$$, $$SELECT 1$$)', '42501', qr/permission denied for foreign server base/, 'functions cannot use that server');
local_sql(q{CREATE SERVER warm FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'base', min_size '1')});
$_->quit foreach $su, $app, $evil;
my $since = -s $local->logfile;
$local->restart;
ok(wait_until($local, q{SELECT count(*) > 0 FROM pgpool.connections WHERE server = 'warm' AND state = 'idle'}, 't', 30), 'catalog reader has read the servers with min_size');
is_logged($local, $since, qr/cannot open connections to server "own".*before a checkout.*\n.*permission denied for foreign server base/,
	'catalog reader logs that it opens no connection to server "own"');
reader_has_ended($local);
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM commands'), 0, 'commands of that server were not executed');
local_sql('GRANT USAGE ON FOREIGN SERVER base TO evil');
$evil = PgpxSession->new($local, user => 'evil');
is($evil->run('SELECT sum(n) FROM evil.numbers') . $evil->error, 6, 'table can be read when the owner has USAGE on the base server');

# --- the pool of the table ends when the owner of its server loses the privilege
is(local_sql(q{SELECT count(*) FROM pgpool.connections WHERE server = 'own'}), 1, 'pool of the table has a connection');
local_sql('REVOKE USAGE ON FOREIGN SERVER base FROM evil');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'own'}, 0, 30), 'connection is closed when the owner of the server loses USAGE on the base server');

# --- while a session waits, its membership in the role that has USAGE is revoked in
# another database; the holder is in a transaction, so no session applies the change
$evil->quit;
$app = PgpxSession->new($local, user => 'app');
local_sql(q{CREATE ROLE grp; GRANT USAGE ON FOREIGN SERVER base TO grp; GRANT grp TO app; CREATE DATABASE other;
	ALTER SERVER base OPTIONS (ADD pool_size '1')});
my $waiter = PgpxSession->new($local, user => 'app');
my $lease = $app->run(q{BEGIN; SELECT pgpool.checkout('base')});
$waiter->start(q{SELECT pgpool.checkout('base', '60 s')});
ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1, 30), 'session waits for a connection');
$local->end_shared_session;	# it would apply the change
$local->safe_psql('other', 'REVOKE grp FROM app');
$app->run("SELECT pgpool.checkin($lease)");
like($waiter->finish(30) . $waiter->error, qr/42501.*permission denied for foreign server base/, 'checkout that waited fails, because the privilege was revoked');
$app->run('COMMIT');

$_->quit foreach $app, $waiter;
check_invariants($local);
leak_check($local, $remote);
done_testing();

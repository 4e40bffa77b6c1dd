# Large messages: errors and notices that quote a large value, the memory of a lease after
# a large value, the memory of a foreign table that returns many rows one by one. A
# statement that the remote server does not read ends at tcp_user_timeout. A notice in the
# answer to COMMIT does not let a cancel undo the local transaction.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
my $session = PgpxSession->new($local);

make_pool($local, $remote, server => 'large', options => { pool_size => 2 });
$local->safe_psql('postgres', q{CREATE EXTENSION postgres_fdw});

# --- errors and notices
$session->fails(q{SELECT pgpool.exec('large', 'select $1::int', repeat('x', 1100000))}, '22P02', qr/invalid input syntax for type integer: "xxx/, 'error that quotes a value of over 1 MB is reported');
my $lease = lease($session, 'large');
$session->fails("SELECT pgpool.exec($lease, 'select \$1::int', repeat('x', 1100000))", '22P02', qr/invalid input syntax for type integer: "xxx/, 'error on a lease is reported');
$session->run('SET client_min_messages = error');
is($session->run("SELECT pgpool.exec($lease, 'do \$f\$ begin raise notice ''%'', repeat(''x'', 1100000); end \$f\$'); SELECT pgpool.exec($lease, 'select 1')") . $session->error, "0\n1", 'statement with a notice of over 1 MB is executed, and the lease is usable');
$session->run('RESET client_min_messages');

# --- memory of a lease
my $memory = 'SELECT sum(total_bytes) / 1024 / 1024 FROM pg_backend_memory_contexts';
is($session->run("SELECT length(a) FROM pgpool.query($lease, 'select repeat(''x'', 100000000)') AS t(a text)"), 100000000, 'large value is read');
cmp_ok($session->run($memory) || 'inf', '<', 60, 'lease does not keep the memory of the large value');
$session->run("SELECT pgpool.checkin($lease)");

# --- memory of a foreign table: a domain with a check needs several kB for each result
$remote->safe_psql('remote_db', 'CREATE TABLE positive (n int); GRANT ALL ON positive TO remote_app');
$local->safe_psql('postgres', q{CREATE DOMAIN positive_int AS int CHECK (VALUE > 0);
	CREATE FOREIGN TABLE positive (n positive_int) SERVER large OPTIONS (schema_name 'public')});
is($session->run(q{CREATE TEMP TABLE used AS SELECT 0::bigint AS bytes WITH NO DATA;
	CREATE FUNCTION pg_temp.measure(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
		IF n = 20000 THEN INSERT INTO used SELECT sum(total_bytes) FROM pg_backend_memory_contexts; END IF; RETURN n; END $$;
	WITH w AS (INSERT INTO positive SELECT pg_temp.measure(g) FROM generate_series(1, 20000) g RETURNING n) SELECT count(n) FROM w}) . $session->error, 20000, 'rows are inserted and returned one by one');
cmp_ok($session->run('SELECT max(bytes) / 1024 / 1024 FROM used') || 'inf', '<', 60, 'memory does not grow with the number of returned rows');

# --- a remote server that reads nothing: it waits for a lock before it reads the parameters
$remote->safe_psql('remote_db', 'CREATE TABLE locked (value text); GRANT ALL ON locked TO remote_app');
make_pool($local, $remote, server => 'stuck', options => { pool_size => 1, tcp_user_timeout => 2000 });
my $locker = PgpxSession->new($remote, dbname => 'remote_db');
$locker->run('BEGIN; LOCK TABLE locked');
$lease = lease($session, 'stuck');
$session->fails("SELECT pgpool.exec($lease, 'insert into locked values (\$1)', repeat('x', 50000000))", '08006', over_tls() ? qr{DETAIL:  The remote server closed the connection\.} : qr/DETAIL:  The network connection timed out\./, 'statement that the remote server does not read ends at tcp_user_timeout');
$locker->run('COMMIT');
$session->run("SELECT pgpool.checkin($lease)");
is($session->run(q{SELECT pgpool.exec('stuck', 'insert into locked values (''next'')')}) . $session->error, 1, 'next statement has another connection');
is($remote->safe_psql('remote_db', 'SELECT string_agg(value, NULL) FROM locked'), 'next', 'statement was not executed');

# --- a notice in the answer to COMMIT, with a pending cancel
$remote->safe_psql('remote_db', q{CREATE TABLE deferred (n int); GRANT ALL ON deferred TO remote_app;
	CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		RAISE NOTICE 'committing'; PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
	CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT ON deferred DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_commit()});
$local->safe_psql('postgres', q{CREATE TABLE here (n int); CREATE FOREIGN TABLE deferred (n int) SERVER large OPTIONS (schema_name 'public')});
my $blocker = PgpxSession->new($remote, dbname => 'remote_db');
my $watch = PgpxSession->new($remote);
my $canceller = PgpxSession->new($local);
my $pid = $session->pid;
my $committed = 0;
foreach my $attempt (1 .. 20)
{
	$blocker->run('BEGIN; SELECT pg_advisory_xact_lock(1)');
	$session->start("BEGIN; INSERT INTO here VALUES ($attempt); INSERT INTO deferred VALUES ($attempt); COMMIT");
	ok(wait_until($remote, sub { $watch->run(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}) }, 1, 30), 'remote server waits during COMMIT');
	$canceller->run("SELECT pg_cancel_backend($pid)");
	$blocker->run('COMMIT');

	# The session defers the cancel for a second after it has sent COMMIT. If the answer
	# arrives later, the local transaction is rolled back. Try again then.
	my $error = $session->finish(30) . $session->error;
	$committed = $local->safe_psql('postgres', "SELECT count(*) FROM here WHERE n = $attempt");
	last if $committed;
	$session->run('ROLLBACK');
}
is($committed, 1, 'local transaction commits after the remote one, although a cancel is pending');

$_->quit foreach $session, $blocker, $watch, $canceller;
check_invariants($local);
leak_check($local, $remote);
done_testing();

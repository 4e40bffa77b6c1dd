# Large results, messages and notices, and binary values.
use strict;
use warnings;

use PgpxFakeServer qw(message ready done row);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $remote = remote_node('remote');
my $local = local_node('local', conf => ["shared_buffers = '16MB'", "work_mem = '4MB'" ]);

# ---------- large results
# A result larger than the memory of a session: it spills to disk, the session stays
# small, and the query can be cancelled at any time.
{
	make_pool($local, $remote, server => 's', options => { pool_size => 4 });
	my $session = PgpxSession->new($local);

	# 120 MB of 1 kB rows, which is twice the memory that the session may use
	my $rows = 120_000;
	my $sum = $rows * ($rows + 1) / 2;
	my $bytes = 1000 * $rows;
	my $large = "select i, repeat(''x'', 1000) from generate_series(1, $rows) as i";

	# The peak memory of the session in MB.
	sub most_memory
	{
		my ($session) = @_;
		my $pid = $session->pid;
		my ($kb) = PostgreSQL::Test::Utils::slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+) kB/m;

		return $kb / 1024;
	}

	$session->run("SELECT pgpool.exec('s', 'select 1')");
	my $before = most_memory($session);
	foreach my $round ('as text', 'in binary where possible')
	{
		is($session->run("SELECT count(*), sum(i), sum(length(x)) FROM pgpool.query('s', '$large') AS t(i int, x text)"),
			"$rows|$sum|$bytes", "result is received $round");
		my $grown = most_memory($session) - $before;
		cmp_ok($grown, '<', 64, sprintf('%s: session has grown by %.1f MB', $round, $grown));
	}
	is($session->run("SELECT count(*), sum(length(x)) FROM pgpool.fanout('{s}', '$large') AS t(pool text, i int, x text)"),
		"$rows|$bytes", 'result is received by fanout');
	# a scan of a foreign table returns rows as they arrive, and one that is interrupted by another statement is buffered
	SKIP:
	{
		skip 'postgres_fdw is not installed', 3 if $local->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'}) eq '0';
		my $reader = PgpxSession->new($local);

		$remote->safe_psql('remote_db', "CREATE VIEW public.large AS SELECT i, repeat('x', 1000) AS x FROM generate_series(1, $rows) AS i; GRANT SELECT ON large TO PUBLIC");
		$local->safe_psql('postgres', q{CREATE FOREIGN TABLE large (i int, x text) SERVER s OPTIONS (schema_name 'public')});
		$reader->run('SELECT i FROM large LIMIT 1');
		my $small = most_memory($reader);

		is($reader->run('SELECT count(*), sum(i), sum(length(x)) FROM (SELECT * FROM large OFFSET 0) AS t'),
			"$rows|$sum|$bytes", 'result is received from a foreign table');
		is($reader->run(<<'EOT') . $reader->error, "1\n" . ($rows - 101), 'rest of a scan is buffered');
ALTER FOREIGN TABLE large OPTIONS (ADD fetch_size '2147483647');
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM large WHERE random() >= 0;
MOVE 100 IN c;
SELECT i FROM large LIMIT 1;
MOVE 1 IN c;
CREATE FUNCTION pg_temp.rest() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE c refcursor := 'c'; n bigint;
BEGIN
	MOVE FORWARD ALL IN c;
	GET DIAGNOSTICS n = ROW_COUNT;
	RETURN n;
END $$;
SELECT pg_temp.rest();
COMMIT;
EOT
		my $grown = most_memory($reader) - $small;
		cmp_ok($grown, '<', 32, sprintf('foreign table: session has grown by %.1f MB', $grown));
	}
	my $lease = lease($session, 's');
	$session->run("SELECT pgpool.send($lease, '$large')");
	is($session->run("SELECT pgpool.wait($lease, '60 s')"), 't', 'send: first rows arrive before the result is complete');
	is($session->run("SELECT count(*), sum(length(x)) FROM pgpool.result($lease) AS t(i int, x text)"),
		"$rows|$bytes", 'send: result is received');
	my $grown = most_memory($session) - $before;
	cmp_ok($grown, '<', 64, sprintf('fanout and result: session has grown by %.1f MB', $grown));

	# like any set-returning function
	is($session->run("SELECT i FROM pgpool.query($lease, 'select i from generate_series(1, 100000) as i') AS t(i int) LIMIT 3 OFFSET 5"),
		"6\n7\n8", 'LIMIT and OFFSET apply');
	is($session->run(<<"EOT"), "1\n2\n100000\n99999", 'cursor moves forward and back');
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT i FROM pgpool.query($lease, 'select i from generate_series(1, 100000) as i') AS t(i int);
FETCH 2 FROM c;
FETCH LAST FROM c;
FETCH PRIOR FROM c;
COMMIT;
EOT
	is($session->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'lease stays usable after large results');

	# cancelled in the middle of the result
	my $running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%repeat(%' AND state = 'active' AND pid <> pg_backend_pid()";

	# Start the query and cancel it.
	sub cancel_during_result
	{
		my ($name, $from) = @_;

		$session->start("SELECT count(*) FROM $from");
		ok(wait_until($remote, $running, '1'), "$name: rows are being received");
		$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
		$session->finish;
		is($session->sqlstate, '57014', "$name: query fails in the middle of the result");
		return;
	}

	foreach my $from ("pgpool.query('s', '$large') AS t(i int, x text)", "pgpool.fanout('{s}', '$large') AS t(pool text, i int, x text)")
	{
		my ($name) = $from =~ /^pgpool.(\w+)/;

		cancel_during_result($name, $from);
		ok(wait_until($remote, $running, '0'), "$name: remote query has ended");
	}

	# A remote server that waits for its client does not process a cancel. After a cancel, a
	# session therefore receives rows of a lease for at most 50 ms. It receives the remaining
	# rows at the next use of the lease.
	cancel_during_result('query on a lease', "pgpool.query($lease, '$large') AS t(i int, x text)");
	is($session->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'lease is usable after a cancel');
	ok(wait_until($remote, $running, '0'), 'remote query has ended at the next use of the lease');
	is($session->run("SELECT pgpool.exec('s', 'select 1')"), '1', 'pool works after cancels');
	$session->run('SELECT pgpool.checkin_all()');
	$session->quit;
	ok(wait_until($local, 'SELECT count(*) FROM pg_ls_tmpdir()', '0'), 'no temporary file is left');
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- large messages and notices
# Large messages: errors and notices that quote a large value, the memory of a lease after
# a large value, the memory of a foreign table that returns many rows one by one. A
# statement that the remote server does not read ends at tcp_user_timeout. A notice in the
# answer to COMMIT does not let a cancel undo the local transaction.
{
	my $session = PgpxSession->new($local);

	make_pool($local, $remote, server => 'large', options => { pool_size => 2 });
	$local->safe_psql('postgres', q{CREATE EXTENSION postgres_fdw});

	# --- errors and notices
	$session->fails(q{SELECT pgpool.exec('large', 'select $1::int', repeat('x', 1100000))}, '22P02', qr/invalid input syntax for type integer: "xxx.* \.\.\. \(1100\d\d\d bytes in total\)$/m, 'error that quotes a value of over 1 MB is reported, with a mark where it is cut');
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
	$session->run(q{CREATE TEMP TABLE used (statement text, bytes bigint);
		CREATE FUNCTION pg_temp.measure(n int, statement text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
			IF n IN (1000, 20000) THEN INSERT INTO used SELECT statement, sum(used_bytes) FROM pg_backend_memory_contexts WHERE name NOT IN ('PortalHoldContext', 'tuplestore tuples'); END IF; RETURN n; END $$});
	my $returned = () = $session->run(q{INSERT INTO positive SELECT pg_temp.measure(g, 'returning') FROM generate_series(1, 20000) g RETURNING n}) =~ /^\d+$/mg;
	is($returned . $session->error, 20000, 'rows are inserted and returned one by one');
	is($session->run(q{INSERT INTO positive SELECT pg_temp.measure(g, 'insert') FROM generate_series(1, 20000) g}) . $session->error, '', 'rows are inserted one by one');
	is($session->run("SELECT count(*), max(bytes) - min(bytes) < 500000 FROM used WHERE statement = '$_'"), '2|t', "memory does not grow with the number of rows ($_)") foreach 'returning', 'insert';

	# --- a remote server that reads nothing: it waits for a lock before it reads the parameters
	$remote->safe_psql('remote_db', 'CREATE TABLE locked (value text); GRANT ALL ON locked TO remote_app');
	make_pool($local, $remote, server => 'stuck', options => { pool_size => 1, tcp_user_timeout => 2000 });
	my $locker = PgpxSession->new($remote, dbname => 'remote_db');
	$locker->run('BEGIN; LOCK TABLE locked');
	$lease = lease($session, 'stuck');
	$session->fails("SELECT pgpool.exec($lease, 'insert into locked values (\$1)', repeat('x', 50000000))", '08006', qr/DETAIL:  The network connection timed out\./, 'statement that the remote server does not read ends at tcp_user_timeout');
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
	clean_slate($local, $remote);
}

# ---------- binary values
# A binary value is read exactly as sent, or raises an error with the reason, whatever
# its bytes are. A value that does not fit, in the middle of a large result, leaves the
# connection usable. A large answer is read in few chunks, of which nothing is left for
# the next answer.
{
	# "select OID HEX" returns one row with this type and these bytes, in binary
	sub say_binary
	{
		my ($fake) = @_;

		while (1)
		{
			my ($oid, $hex) = $fake->receive =~ /^select (\d+) (\w*)$/;
			$fake->send(done('DISCARD ALL'), ready), next unless defined $oid;
			$fake->send(message('T', pack('n', 1) . "a\0" . pack('NnNnNn', 0, 0, $oid, 65535, 0xFFFFFFFF, 1)),
				row(pack 'H*', $hex), done('SELECT 1'), ready);
		}
		return;
	}

	my $fake = PgpxFakeServer->new(bytes => \&say_binary);
	make_pool($local, $remote, server => 's');
	my $session = PgpxSession->new($local);

	foreach (qw(bytes))
	{
		$session->run(<<"EOT");
CREATE SERVER $_ FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '${\ $fake->port}', dbname '$_',
	sslmode '${\ PgpxFakeServer::sslmode() }', pool_size '1');
CREATE USER MAPPING FOR CURRENT_USER SERVER $_ OPTIONS (user 'any_user', password 'something');
EOT
	}

	# --- single values
	my $last_date = '7ffffffe';
	my $last_time = '7ffffffffffffffe';
	my $uuid = 'a0eebc999c0b4ef8bb6d6bb9bd380a11';
	my @values = (
		[ bool => 16, '00' => 'false', '01' => 'true', '02' => 'true', '' => '08P01', '0001' => '22P03' ],
		[ int2 => 21, '8000' => '-32768', '7fff' => '32767', 'fffe' => '-2', '80' => '08P01', '000001' => '22P03' ],
		[ int4 => 23, '80000000' => '-2147483648', '7fffffff' => '2147483647', 'fffffffe' => '-2', '000001' => '08P01', '' => '08P01', '0000000001' => '22P03' ],
		[ int8 => 20, '8000000000000000' => '-9223372036854775808', 'fffffffffffffffe' => '-2', '00000001' => '08P01', '000000000000000001' => '22P03' ],
		[ float4 => 700, '80000000' => '-0', '00000001' => '1e-45', 'ff800000' => '-Infinity', '7fc00000' => 'NaN', '3f80' => '08P01', '3f80000000' => '22P03' ],
		[ float8 => 701, '8000000000000000' => '-0', '0000000000000001' => '5e-324', '7ff0000000000000' => 'Infinity', '3f800000' => '08P01', '3ff000000000000000' => '22P03' ],
		[ date => 1082, '00000000' => '2000-01-01', '7fffffff' => 'infinity', '80000000' => '-infinity', $last_date => '22008', '80000001' => '22008', '0000' => '08P01' ],
		[ time => 1083, '0000000000000001' => '00:00:00.000001', '000000141dd76000' => '24:00:00', '000000141dd76001' => '22008', 'ffffffffffffffff' => '22008', '00000000' => '08P01' ],
		[ 'time(0)' => 1083, '00000000000927c0' => '00:00:01' ],
		[ timestamp => 1114, '0000000000000001' => '2000-01-01 00:00:00.000001', '7fffffffffffffff' => 'infinity', '8000000000000000' => '-infinity', $last_time => '22008', '8000000000000001' => '22008', '00000000' => '08P01' ],
		[ 'timestamp(0)' => 1114, '00000000000927c0' => '2000-01-01 00:00:01' ],
		[ timestamptz => 1184, '0000000000000000' => '2000-01-01 00:00:00+00', '7fffffffffffffff' => 'infinity', $last_time => '22008', '8000000000000001' => '22008', '00' => '08P01' ],
		[ 'timestamptz(0)' => 1184, '00000000000927c0' => '2000-01-01 00:00:01+00' ],
		[ uuid => 2950, $uuid => 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', substr($uuid, 2) => '08P01', "${uuid}00" => '22P03' ],
		[ numeric => 1700, '0001000000000000002a' => '42', '0001000012340000002a' => '22P03', '00010000000000002710' => '22P03', '0001' => '08P01' ],

		# a domain has checks, and values of a different local type are converted from text,
		# unless settings affect the text
		[ positive => 23, '00000001' => '1', 'ffffffff' => '23514' ],
		[ int8 => 23, 'fffffffe' => '-2' ],
		[ text => 1082, '00000000' => '42804' ],
		[ text => 1700, '0001000000000000002a' => '42' ],
		[ int2 => 23, '00010000' => '22003' ]);

	$session->run("CREATE DOMAIN positive AS int CHECK (VALUE > 0); SET timezone = 'UTC'");
	foreach (@values)
	{
		my ($type, $oid, @cases) = @$_;

		while (my ($hex, $expected) = splice @cases, 0, 2)
		{
			my $said = $session->run("SELECT a::text FROM pgpool.query('bytes', 'select $oid $hex') AS t(a $type)");

			is($said || $session->sqlstate, $expected, "$type: bytes '$hex' of type $oid are read as $expected, or fail with it");
		}
	}
	is($session->run("SELECT connects FROM pgpool.stats WHERE server = 'bytes'"), '1', 'all values were received on one connection');

	# --- values in the middle of a large result
	my $lease = lease($session, 's');

	$session->run("CREATE DOMAIN fits AS bigint CHECK (VALUE < 3000000000)");
	$session->run("SELECT pgpool.exec('s', 'create table large as select i::bigint as a, i as b from generate_series(1, 100000) as i; create index on large (b); analyze large')");
	is($session->run("SELECT count(*), sum(a), sum(b) FROM pgpool.query('s', 'select * from large order by b') AS t(a fits, b int)", 120),
		'100000|5000050000|5000050000', 'many rows are received as text');
	$session->run("SELECT pgpool.exec('s', 'update large set a = 3000000000 where b = 50000')");
	$session->run('\set SHOW_CONTEXT always');
	foreach my $how ([ $lease, 'int', '22003' ], [ "'s'", 'int', '22003' ], [ $lease, 'fits', '23514' ], [ "'s'", 'fits', '23514' ])
	{
		my ($where, $type, $sqlstate) = @$how;

		$session->fails("SELECT count(*) FROM pgpool.query($where, 'select * from large order by b') AS t(a $type, b int)", $sqlstate,
			qr/column "a" of row 50000 of the remote result/, "$type: value that does not fit in row 50,000 is an error");
		is($session->run("SELECT * FROM pgpool.query($where, 'select 7, 8') AS t(a int, b int)"), '7|8',
			"$type: next statement receives its own answer");
	}
	is($session->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'lease stays usable');

	$session->run('SELECT pgpool.checkin_all()');
	$session->quit;
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();

# One-shot calls of dblink, detached and then attached: results, tags, errors with their fields, and
# the remote user and database are equal. Outcomes are counted. An autonomous log that is written
# by such calls loses no line.
# PGPX_TEST_STATEMENTS: number of statements. PGPX_TEST_SEED: other statements. PGPX_TEST_SESSIONS:
# number of sessions that write the log.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $n = $ENV{PGPX_TEST_STATEMENTS} // 150;
my $seed = $ENV{PGPX_TEST_SEED} // 1;
my $folder = PostgreSQL::Test::Utils::tempdir();
my $remote = remote_node('remote');
my $local = local_node('local', conf => ['pgpool_ext.default_pool_size = 2']);
my $port = $remote->port;
my $where = "host=127.0.0.1 port=$port dbname=remote_db";
my $string = "$where user=remote_app password='$REMOTE_APP_PASSWORD'";

make_pool($local, $remote, server => 'shard1');
$local->safe_psql('postgres', 'CREATE EXTENSION dblink; CREATE EXTENSION postgres_fdw');

# ---------- results
{
	my @statements = statements($n);
	my $detached = run_script('detached', @statements);

	$local->safe_psql('postgres', 'SELECT pgpool.attach_dblink()');
	my $attached = run_script('attached', @statements);
	my @differ = grep { $detached->[$_] ne ($attached->[$_] // '') } 0 .. $#statements;

	is(scalar(@$detached), scalar(@statements), 'all statements were executed while detached');
	is(scalar(@$attached), scalar(@statements), 'all statements were executed while attached');
	ok(!@differ, "results are equal ($n statements)");
	diag("seed $seed, $statements[$_]\n-- detached:\n$detached->[$_]\n-- attached:\n$attached->[$_]") foreach grep { defined } @differ[ 0 .. 2 ];
	cmp_ok(scalar(grep { /^ERROR/m } @$detached), '>', $n / 10, 'some statements raise errors');
	is(outcomes(), "pooled|$n", 'all calls were pooled');
}

# ---------- identity
# [comment, role, connection, outcome, statement before, query]
{
	# options with which sessions differ from those of dblink, also if they are off
	my %differ = (service => 'nowhere', passfile => '/nowhere', reset_command => 'discard all', use_password_command => 'false');
	$differ{use_scram_passthrough} = 'false' if $local->pg_version >= 18;
	$local->safe_psql('postgres', <<"EOT");
CREATE ROLE other LOGIN;
CREATE ROLE owner LOGIN;
GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw, postgres_fdw, dblink_fdw TO owner;
CREATE SERVER of_fdw FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'postgres', fetch_size '5');
CREATE USER MAPPING FOR CURRENT_USER SERVER of_fdw OPTIONS (user 'remote_super', password '$REMOTE_SUPER_PASSWORD');
CREATE SERVER of_dblink FOREIGN DATA WRAPPER dblink_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'template1', application_name 'mine');
CREATE USER MAPPING FOR CURRENT_USER SERVER of_dblink OPTIONS (user 'remote_super', password '$REMOTE_SUPER_PASSWORD');
GRANT USAGE ON FOREIGN SERVER of_fdw TO other;
CREATE SERVER address FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host 'nowhere.invalid', hostaddr '127.0.0.1', port '$port', dbname 'remote_db');
CREATE USER MAPPING FOR CURRENT_USER SERVER address OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
CREATE SERVER addresses FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (hostaddr '127.0.0.1,127.0.0.1', port '1,$port', dbname 'remote_db');
CREATE USER MAPPING FOR CURRENT_USER SERVER addresses OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
CREATE SERVER no_user FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');
CREATE USER MAPPING FOR CURRENT_USER SERVER no_user OPTIONS (password 'nothing');
CREATE SERVER commands FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', connect_timeout '7s', start_commands 'set role pg_monitor');
CREATE USER MAPPING FOR CURRENT_USER SERVER commands OPTIONS (user 'remote_super', password '$REMOTE_SUPER_PASSWORD');
CREATE SERVER keeps FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'template1', keepalives '1', reset 'never');
CREATE USER MAPPING FOR CURRENT_USER SERVER keeps OPTIONS (user 'remote_super', password '$REMOTE_SUPER_PASSWORD');
CREATE SERVER hosts FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1,127.0.0.1', port '1,$port', dbname 'remote_db');
CREATE USER MAPPING FOR PUBLIC SERVER hosts OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
GRANT USAGE ON FOREIGN SERVER hosts TO app, other;
CREATE SERVER opts FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', options '-c search_path=x');
CREATE USER MAPPING FOR CURRENT_USER SERVER opts OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
CREATE SERVER based FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'shard1');
SET ROLE owner;
CREATE SERVER owned FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', target_session_attrs 'any');
CREATE USER MAPPING FOR PUBLIC SERVER owned OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
GRANT USAGE ON FOREIGN SERVER owned TO other;
RESET ROLE;
CREATE FUNCTION as_superuser(connection text) RETURNS text LANGUAGE sql SECURITY DEFINER AS
	\$\$SELECT a FROM dblink(connection, 'select current_user || ''\@'' || current_database()') AS t(a text)\$\$;
EOT
	foreach my $option (sort keys %differ)
	{
		my $where = $option eq 'use_password_command' ? 'USER MAPPING FOR CURRENT_USER SERVER' : 'SERVER';

		$local->safe_psql('postgres', <<"EOT");
CREATE SERVER has_$option FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'template1');
CREATE USER MAPPING FOR CURRENT_USER SERVER has_$option OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
ALTER $where has_$option OPTIONS (ADD $option '$differ{$option}');
EOT
	}
	my $super = "port=$port dbname=postgres user=remote_super password='$REMOTE_SUPER_PASSWORD'";
	my @calls = (
		[ 'name of a server', 'app', 'shard1', 'pooled' ],
		[ 'name of a server of postgres_fdw', undef, 'of_fdw', 'pooled' ],
		[ 'name of a server of dblink_fdw', undef, 'of_dblink', 'pooled' ],
		[ 'name in other case', undef, 'SHARD1', 'no server' ],
		[ 'name without privilege', 'other', 'shard1', 'no server' ],
		[ 'name without mapping', 'other', 'of_fdw', 'no server' ],
		[ 'mapping of PUBLIC', 'other', 'owned', 'pooled' ],
		[ 'server with hostaddr', undef, 'address', 'pooled' ],
		[ 'server with several addresses', undef, 'addresses', 'other session' ],
		(map { [ "server or mapping with $_", undef, "has_$_", 'other session' ] } sort keys %differ),
		[ 'name, in a SECURITY DEFINER function', 'other', 'shard1', 'pooled', undef, 'SELECT as_superuser(%s)' ],
		[ 'string, in a SECURITY DEFINER function', 'other', $string, 'pooled', undef, 'SELECT as_superuser(%s)' ],
		[ 'server with several hosts', 'other', 'hosts', 'other session' ],
		[ 'mapping without user', undef, 'no_user', 'other session' ],
		[ 'server with start commands', undef, 'commands', 'other session' ],
		[ 'server without reset', undef, 'keeps', 'other session' ],
		[ 'server with options', undef, 'opts', 'other session' ],
		[ 'string of a server', undef, $string, 'pooled' ],
		[ 'string of a server, as app', 'app', $string, 'pooled' ],
		[ 'string in another order', undef, "password='$REMOTE_APP_PASSWORD' user = remote_app dbname=remote_db  port=$port host=127.0.0.1", 'pooled' ],
		[ 'string as a URI', undef, "postgresql://remote_app:secret%20of%20the%20remote\@127.0.0.1:$port/remote_db", 'pooled' ],
		[ 'string with one keyword more', undef, "$string application_name=x", 'no server' ],
		[ 'string with one keyword less', undef, "host=127.0.0.1 port=$port dbname=template1 user=remote_super password='$REMOTE_SUPER_PASSWORD'", 'no server' ],
		[ 'string with another password', undef, "$where user=remote_app password=wrong", 'no server' ],
		[ 'string with another user', undef, "$where user=remote_super password='$REMOTE_SUPER_PASSWORD'", 'no server' ],
		[ 'string without a password', 'app', "$where user=remote_app", 'no server' ],
		[ 'string with another database', undef, "host=127.0.0.1 port=$port dbname=postgres user=remote_app password='$REMOTE_APP_PASSWORD'", 'no server' ],
		[ 'string with a keyword twice', undef, "$string dbname=postgres", 'no server' ],
		[ 'string of a server without privilege', 'other', $string, 'no server' ],
		[ 'string of a mapping', undef, "host=127.0.0.1 $super", 'pooled' ],
		[ 'string of the mapping of another user', 'other', "host=127.0.0.1 $super", 'no server' ],
		[ 'string with hostaddr', undef, "host=nowhere.invalid hostaddr=127.0.0.1 port=$port dbname=remote_db user=remote_app password='$REMOTE_APP_PASSWORD'", 'pooled' ],
		[ 'string with hostaddr in place of host', undef, "hostaddr=127.0.0.1 $super", 'no server' ],
		[ 'string of several hosts', undef, "host=127.0.0.1,127.0.0.1 port=1,$port dbname=remote_db user=remote_app password='$REMOTE_APP_PASSWORD'", 'other session' ],
		[ 'string of a mapping of PUBLIC that the user may not read', 'other', "$string target_session_attrs=any", 'no server' ],
		[ 'string of a mapping of PUBLIC, as owner', 'owner', "$string target_session_attrs=any", 'pooled' ],
		[ 'string of a server with start commands', undef, "$where connect_timeout=7s user=remote_super password='$REMOTE_SUPER_PASSWORD'", 'other session' ],
		[ 'string of a server with options', undef, "$where options='-c search_path=x' user=remote_app password='$REMOTE_APP_PASSWORD'", 'other session' ],
		[ 'service', undef, "service=nowhere", 'no server' ],
		[ 'name of an open connection', undef, 'shard1', 'open connection', "SELECT dblink_connect('shard1', 'host=127.0.0.1 port=$port dbname=postgres user=remote_super password=''$REMOTE_SUPER_PASSWORD''')" ],
		[ 'name that is cut to that of an open connection', undef, 'x' x 70, 'open connection', "SELECT dblink_connect('" . 'x' x 70 . "', 'host=127.0.0.1 port=$port dbname=postgres user=remote_super password=''$REMOTE_SUPER_PASSWORD''')" ],
		[ 'empty string', undef, '', 'no server' ],
	);
	my $identity = q{SELECT a FROM dblink(%s, 'select current_user || ''@'' || current_database()') AS t(a text)};
	my $of = sub {
		my ($attached, $role, $connection, $before, $query) = @_;
		my $session = PgpxSession->new($local);

		$session->run($attached ? 'SELECT pgpool.attach_dblink()' : 'SELECT pgpool.detach_dblink()');
		$session->run($before) if defined $before;
		$session->run("SET ROLE $role") if defined $role;
		my $result = $session->run(sprintf $query // $identity, PgpxTest::quote($connection));
		my $error = $session->error;
		$session->quit;
		$error =~ s/^LOCATION:.*\n//mg;
		$error =~ s/^psql:\S+ //mg;
		return $result . $error;
	};

	foreach my $call (@calls)
	{
		my ($what, $role, $connection, $outcome, @how) = @$call;
		my $plain = $of->(0, $role, $connection, @how);
		my $count = outcomes();
		my $pooled = $of->(1, $role, $connection, @how);

		is($pooled, $plain, "$what: the remote user and database are equal");
		is(difference($count, outcomes()), $outcome, "$what: $outcome");
	}

	# the user of a function
	my $app = PgpxSession->new($local, user => 'app');
	is($app->run("SELECT as_superuser('of_fdw')"), 'remote_super@postgres', 'SECURITY DEFINER function uses the mapping of its owner');
	$app->fails('SELECT * FROM dblink(\'of_fdw\', \'select 1\') AS t(a int)', '42704', qr/user mapping not found/, 'its caller does not');
	$app->quit;

	# dblink does not know servers with base_server
	my $count = outcomes();
	is($local->safe_psql('postgres', sprintf $identity, q{'based'}), 'remote_app@remote_db', 'server with base_server is used');
	is(difference($count, outcomes()), 'pooled', 'server with base_server: pooled');
	$local->psql('postgres', "ALTER SERVER shard1 OPTIONS (SET host '127.0.0.1', SET port '1')");
	my (undef, undef, $error) = $local->psql('postgres', sprintf $identity, q{'based'});
	like($error, qr/server "based"/, 'its error is not hidden by a call of dblink');
	$local->psql('postgres', "ALTER SERVER shard1 OPTIONS (SET port '$port')");

	# changes of a mapping take effect at once
	my $session = PgpxSession->new($local);
	my $by_string = sprintf $identity, PgpxTest::quote($string);
	$session->run($by_string);
	$local->safe_psql('postgres', 'ALTER USER MAPPING FOR CURRENT_USER SERVER shard1 OPTIONS (SET password \'new\')');
	$count = outcomes();
	is($session->run($by_string), 'remote_app@remote_db', 'string of a server whose password was changed is executed');
	is(difference($count, outcomes()), 'no server', 'it is passed to dblink');
	$local->safe_psql('postgres', "ALTER USER MAPPING FOR CURRENT_USER SERVER shard1 OPTIONS (SET password '$REMOTE_APP_PASSWORD')");
	$count = outcomes();
	$session->run($by_string);
	is(difference($count, outcomes()), 'pooled', 'string of the server with the old password is pooled again');
	$session->quit;
}

# ---------- settings in the environment of the server, a full pool and a stopped remote
{
	$ENV{PGOPTIONS} = '-c search_path=far';
	$local->restart;
	delete $ENV{PGOPTIONS};
	is($local->safe_psql('postgres', q{SELECT * FROM dblink('shard1', 'show search_path') AS t(a text)}), 'far', 'PGOPTIONS of the server applies to a call,');
	is(outcomes(), 'pooled|1', 'also on a pool');
	$local->restart;

	$local->safe_psql('postgres', "ALTER SERVER shard1 OPTIONS (ADD pool_size '1', ADD checkout_timeout '100ms')");
	my $holder = PgpxSession->new($local);
	my $lease = lease($holder, 'shard1');
	my $count = outcomes();

	is($local->safe_psql('postgres', q{SELECT * FROM dblink('shard1', 'select 1') AS t(a int)}), '1', 'call succeeds while the pool is full');
	is(difference($count, outcomes()), 'none free', 'it is passed to dblink');
	$holder->run("SELECT pgpool.checkin($lease)");
	$holder->quit;
	$local->safe_psql('postgres', 'ALTER SERVER shard1 OPTIONS (DROP checkout_timeout)');
	$remote->stop;
	$count = outcomes();
	my (undef, undef, $error) = $local->psql('postgres', q{SELECT * FROM dblink('shard1', 'select 1') AS t(a int)});
	like($error, qr/could not establish connection/, 'error of a stopped remote server is that of dblink');
	is(difference($count, outcomes()), 'unavailable', 'the call was passed to dblink');
	$remote->start;
}

# ---------- an autonomous log
# Transactions of TPC-B write lines to a remote server by dblink_exec, and then commit or roll
# back. Sessions, remote sessions and the worker are killed meanwhile. Each line whose call has
# returned is in the log.
{
	my $nsessions = $ENV{PGPX_TEST_SESSIONS} // 60;
	my $per_session = 20;

	make_pool($local, $remote, options => { pool_size => 4 });
	$remote->safe_psql('remote_db', 'CREATE TABLE log(id text); GRANT ALL ON log TO remote_app');
	$local->safe_psql('postgres', <<'EOT');
CREATE TABLE accounts(aid int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE tellers(tid int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE branches(bid int PRIMARY KEY, balance int NOT NULL);
CREATE TABLE history(aid int, tid int, bid int, delta int);
INSERT INTO accounts SELECT i, 0 FROM generate_series(0, 999) AS i;
INSERT INTO tellers SELECT i, 0 FROM generate_series(0, 99) AS i;
INSERT INTO branches SELECT i, 0 FROM generate_series(0, 9) AS i;
EOT

	my @sessions = map { PgpxSession->new($local) } 1 .. $nsessions;
	my @acknowledged;

	foreach my $s (0 .. $#sessions)
	{
		# each line is printed when its call has returned; every second transaction rolls back
		$sessions[$s]->start(join '', map { my $end = $_ % 2 ? 'COMMIT' : 'ROLLBACK'; <<"EOT" } 1 .. $per_session);
BEGIN;
UPDATE accounts SET balance = balance + $_ WHERE aid = ($s * 17 + $_) % 1000;
UPDATE tellers SET balance = balance + $_ WHERE tid = ($s + $_) % 100;
UPDATE branches SET balance = balance + $_ WHERE bid = ($s + $_) % 10;
INSERT INTO history VALUES (($s * 17 + $_) % 1000, ($s + $_) % 100, ($s + $_) % 10, $_);
SELECT 'logged $s.$_' WHERE dblink_exec('remote', 'insert into log values (''$s.$_'')') = 'INSERT 0 1';
$end;
EOT
	}

	# some of each kind are killed, each time after more lines have arrived
	foreach my $round (1 .. 8)
	{
		my $lines = $remote->safe_psql('remote_db', 'SELECT count(*) FROM log');

		last if $lines >= $nsessions * $per_session;
		wait_until($remote, sub { $remote->safe_psql('remote_db', "SELECT count(*) > $lines FROM log") eq 't' || !grep { !$_->done } @sessions }, '1');
		if ($round % 4 == 0)
		{
			$local->safe_psql('postgres', 'SELECT pg_terminate_backend(pid) FROM pgpool.workers WHERE pid IS NOT NULL');
		}
		elsif ($round % 2 == 0)
		{
			$local->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $sessions[$round]->pid . ')');
		}
		else
		{
			$remote->safe_psql('remote_db', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'remote_app' LIMIT 2});
		}
	}

	push @acknowledged, $_->finish =~ /^logged (\S+)$/mg foreach @sessions;
	my %logged = map { $_ => 1 } split /\n/, $remote->safe_psql('remote_db', 'SELECT id FROM log');

	cmp_ok(scalar(@acknowledged), '>', $nsessions * $per_session / 2, scalar(@acknowledged) . ' calls have returned');
	is(join(' ', grep { !$logged{$_} } @acknowledged), '', 'each line whose call has returned is in the log');
	is($local->safe_psql('postgres', <<'EOT'), '1', 'the local balances agree');
SELECT count(DISTINCT sum) FROM (SELECT sum(balance) FROM accounts UNION ALL SELECT sum(balance) FROM tellers
	UNION ALL SELECT sum(balance) FROM branches UNION ALL SELECT sum(delta) FROM history) AS t
EOT
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM (SELECT FROM log GROUP BY id HAVING count(*) > 1) AS t'), '0', 'no line is there twice');
	cmp_ok($local->safe_psql('postgres', q{SELECT calls FROM pgpool.dblink_calls WHERE outcome = 'pooled'}), '>', 0, 'calls were pooled');
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'", '0'), 'no transaction is left open');
	$_->quit foreach @sessions;
}

check_invariants($local);
leak_check($local, $remote);
done_testing();

sub outcomes
{
	return $local->safe_psql('postgres', 'SELECT outcome, calls FROM pgpool.dblink_calls WHERE calls > 0');
}

# The outcome of which there is one more.
sub difference
{
	my ($before, $after) = @_;
	my %before = map { split /\|/ } split /\n/, $before;
	my %after = map { split /\|/ } split /\n/, $after;

	return join ', ', map { my $more = $after{$_} - ($before{$_} // 0); $more > 1 ? "$_ $more" : $more ? $_ : () } sort keys %after;
}

# Executes the statements in one session; returns the output of each.
sub run_script
{
	my ($name, @statements) = @_;
	my $script = join '', map { "\\echo ---- $_\n$statements[$_];\n\\echo state :SQLSTATE\n" } 0 .. $#statements;

	$remote->safe_psql('remote_db', <<'EOT');
SET client_min_messages = warning;
SET ROLE remote_app;
DROP SCHEMA IF EXISTS far CASCADE;
CREATE SCHEMA far;
CREATE TABLE far.item (id int PRIMARY KEY, qty int CHECK (qty >= 0), note text);
INSERT INTO far.item SELECT i, i % 7, CASE i % 5 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'n ' || i END FROM generate_series(1, 50) AS i;
CREATE FUNCTION far.fails(what text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'failed: %', what USING DETAIL = 'because', HINT = 'do not', ERRCODE = 'P0003';
END $$;
EOT
	append_to_file("$folder/$name.sql", "\\set VERBOSITY default\n\\set SHOW_CONTEXT always\n\\pset null NULL\n$script\\echo ----\n");
	system_or_bail('sh', '-c', 'exec "$0" -XAtq -d "$1" -f "$2" >"$3" 2>&1', $local->installed_command('psql'), $local->connstr('postgres'),
		"$folder/$name.sql", "$folder/$name.out");
	my (undef, @of) = split /^---- ?\d*\n/m, slurp_file("$folder/$name.out");

	foreach (@of)
	{
		s/^psql:\S+: //mg;

		# dblink writes notices of the remote to the server's log, and names no column
		s/^WARNING: .*\n//mg;
		s/^CONTEXT:  column .* of the remote result\n//mg;
	}
	return \@of;
}

# Calls with all kinds of statements, by name and by string, with and without "fail".
sub statements
{
	my ($count) = @_;
	my @statements;
	my $last = $seed;
	my $random = sub { $last = ($last * 1103515245 + 12345) % 2147483648; return int($last / 65536) % $_[0] };

	foreach my $i (1 .. $count)
	{
		my $id = 1 + $random->(60);
		my @rows = (
			[ 'a int, b int, c text', "select id, qty, note from far.item where id % 9 = $id % 9 order by id" ],
			[ 'a numeric, b float8, c bool', "select $id / 7.0, 'nan'::float8, $id > 30" ],
			[ 'a timestamptz, b date, c interval', "select timestamptz '2024-02-28 23:00+00' + $id * interval '1 day', date '2024-02-28' + $id, $id * interval '90 minutes'" ],
			[ 'a int[], b jsonb, c bytea', "select array[$id, null], jsonb_build_object('a', $id), decode(md5('$id'), 'hex')" ],
			[ 'a text', "select repeat('x', $id * 100)" ],
			[ 'a int', "insert into far.item values ($id + 100, 1, 'new') returning id" ],
			[ 'a int', "select $id where false" ],
			[ 'a int', "select 1; select $id" ],
			[ 'a int', "create temp table t(a int); insert into t values ($id); select * from t" ],
			[ 'a text', "select current_setting('search_path')" ],
			[ 'a int', "select 100 / ($id - $id)" ],
			[ 'a int', "select far.fails('$id')" ],
			[ 'a int', "select 'x$id'" ],
			[ 'a int, b int', "select $id" ],
			[ 'a int', "select a from nothing" ],
			[ 'a int', "selec $id" ],
			[ 'a text', "update far.item set qty = qty + 1 where id = $id" ],
			[ 'a int', "update far.item set qty = qty + 1 where id = $id" ],
			[ 'a text', "begin; update far.item set qty = -1 where id = $id; select 'no'" ],
			[ 'a text', "set search_path = far; select count(*)::text from item" ],
			[ 'a text', "begin; delete from far.item; rollback; select count(*)::text from far.item" ],
		);
		my @commands = (
			"update far.item set note = note || '!' where id = $id",
			"update far.item set qty = -1 where id = $id",
			"insert into far.item values ($id, 0, null)",
			"delete from far.item where id = $id + 100",
			"begin; delete from far.item",
			"set statement_timeout = 5000",
			"create table far.t$i(a int); drop table far.t$i",
			"insert into far.item values ($i + 1000, 0, ''); select 1/0",
			"insert into far.item values ($i + 2000, 0, ''); commit; select 1/0",
			"select * from far.item",
			"do 'begin perform far.fails(''do''); end'",
			"vacuum far.item", "", ";", "-- nothing", "lock far.item",
		);
		my $connection = PgpxTest::quote($random->(3) == 0 ? $string : 'shard1');
		my $fail = (', true', ', false', '', '')[ $random->(4) ];

		if ($random->(3) < 2)
		{
			my ($columns, $sql) = @{ $rows[ $random->(scalar @rows) ] };
			push @statements, "SELECT * FROM dblink($connection, " . PgpxTest::quote($sql) . "$fail) AS t($columns)";
		}
		else
		{
			push @statements, "SELECT dblink_exec($connection, " . PgpxTest::quote($commands[ $random->(scalar @commands) ]) . "$fail)";
		}
	}
	return @statements;
}

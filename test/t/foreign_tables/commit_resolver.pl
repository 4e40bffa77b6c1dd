# The resolver commits or rolls back the parts that a session has left: after a crash of all
# processes at the instant of each decision, after lost connections, with a remote server that
# returns late, in spite of forged rows and ids, and outside the pools. Until then DDL cannot
# remove the server or the user mapping of a part.
use strict;
use warnings;

use PgpxTest;
use PgpxTransfers;
use PostgreSQL::Test::Utils;
use Test::More;

my @shards = map { shard_node($_) } qw(one two);
my $local = local_node('local', conf => [ 'max_connections = 60', 'wal_writer_delay = 10s', 'autovacuum = off', 'wal_level = replica', 'max_wal_senders = 5', q{pgpool_ext.resolve_interval = '500ms'} ]);
my $app = sub { PgpxSession->new($local, user => 'app') };
my $resolver = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgpool_ext resolver'};
my $transfers = 0;    # committed
my $n = 1000;         # of the last one that did not commit

make_shards($local, \@shards, options => { pool_size => 3, checkout_timeout => '60s' });
{
	my $session = $app->();

	$session->run(transfer(++$transfers));
	is($session->error, '', 'first transfer');
	$session->quit;
}

# A session that has prepared its part on the first shard, and waits at the gate of the second
# one. Returns it, the gate, and the global id of the part.
sub waiting_at_gate
{
	my ($number, $sql) = @_;
	my $gate = close_gate($shards[1]);
	my $session = $app->();

	$session->start($sql // transfer($number, note => 'gate'));
	is_at_gate($shards[1]);
	ok(wait_until($shards[0], sub { prepared_on($shards[0]) }, '1'), 'part of the first shard is prepared');
	return ($session, $gate, ids_on($shards[0]));
}

# Leave the part of such a session, which ends and cannot roll it back. Returns the global id of the
# part. $meanwhile: function that is called before the session ends.
sub orphan
{
	my ($number, $sql, $meanwhile) = @_;
	my ($session, $gate, $gid) = waiting_at_gate($number, $sql);
	my $pid = $session->pid;
	my $remote_pid = $local->safe_psql('postgres', "SELECT remote_pid FROM pgpool.leases WHERE server = 'shard1' AND pid = $pid");

	terminate($shards[0], $remote_pid);
	$meanwhile->($gid) if $meanwhile;
	terminate($local, $pid);
	$session->quit;
	$gate->quit;
	return $gid;
}

# kill -9 of all processes before and after the decision, and a PREPARE that arrives after the restart
sub crashes
{
	my ($name) = @_;
	my ($session, $gate) = waiting_at_gate(++$n);

	kill_all($local);
	start_again($local);
	nothing_is_prepared([ $shards[0] ], "$name, before the decision");
	$session->quit;
	is_at_gate($shards[1], "$name: PREPARE of the session that was killed still runs");
	isnt(scalar $local->psql('postgres', q{SET default_transaction_read_only = off; ALTER SERVER shard2 OPTIONS (SET port '1')}, stderr => \my $e), 0, "$name: server cannot be changed");
	like($e, qr/"shard2" may have prepared/, "$name: error names the server");
	$gate->quit;
	ok(wait_until($shards[1], q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND backend_xid IS NOT NULL}, '0'), "$name: it is executed");
	all_agree($local, \@shards, "$name, before the decision", $transfers);

	$session = $app->();
	commits_wait($local);
	$session->run('SET synchronous_commit = off');
	$session->start(transfer(++$transfers));
	commit_waits($local, $session);
	is(join(' ', map { prepared_on($_) } @shards), '1 1', "$name: both parts are prepared");
	kill_all($local);
	start_again($local);
	$session->quit;
	commits_synchronously($local);
	all_agree($local, \@shards, "$name, after the decision", $transfers);
	return;
}

crashes('default settings');
foreach my $setting (
	"default_transaction_isolation = 'repeatable read'", "default_transaction_isolation = serializable",
	'default_transaction_read_only = on')
{
	my ($name) = $setting =~ /^(\w+)/;

	$local->safe_psql('postgres', "ALTER DATABASE postgres SET $setting; ALTER ROLE app SET default_transaction_read_only = off");
	crashes($setting);
	$local->safe_psql('postgres', "SET default_transaction_read_only = off; ALTER DATABASE postgres RESET $name");
}

# --- the commit is durable when COMMIT returns
{
	my $session = $app->();

	$session->run('SET synchronous_commit = off');
	is($session->run(transfer(++$transfers)) . $session->error, '', 'commit with synchronous_commit off');
	kill_all($local);
	start_again($local);
	$session->quit;
	all_agree($local, \@shards, 'synchronous_commit off', $transfers);
	is($local->safe_psql('postgres', "SELECT count(*) FROM ledger WHERE n = $transfers"), '1', 'local row is durable');
}

# --- an xid that is assigned again: xids that are not logged are lost. Visits would log them.
{
	my $reused = 0;
	my $visit = sub {
		$local->safe_psql('postgres', "ALTER SYSTEM SET pgpool_ext.resolve_interval = '$_[0]'");
		$local->reload;
	};

	$visit->('60s');
	for (my $try = 1; $try <= 20 && !$reused; $try++)
	{
		$local->safe_psql('postgres', 'DO $$ BEGIN FOR i IN 1 .. 300 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$');
		my ($session, $gate, $gid) = waiting_at_gate(++$n);
		my ($xid) = $gid =~ /^pgpx_[^_]+_(\d+)_/ or die "unexpected id: $gid";

		# the first shard cannot be reached until the next transaction has committed
		kill_all($local);
		$shards[0]->safe_psql('postgres', 'ALTER ROLE remote_app NOLOGIN');
		$gate->quit;
		start_again($local);
		$session->quit;
		nothing_is_prepared([ $shards[1] ], 'xid');
		my $next = $app->();
		commits_wait($local);

		# (a transaction may log hint bits, and would then wait for the standby)
		$local->safe_psql('postgres', "SET synchronous_commit = local; DO \$\$ BEGIN WHILE pg_current_xact_id()::text::bigint < $xid - 1 LOOP COMMIT; END LOOP; END \$\$");
		$next->start("BEGIN; SELECT pg_current_xact_id(); INSERT INTO shard2.accounts VALUES (@{[1000 + $n]}, 1); INSERT INTO ledger VALUES (-$n, 0); COMMIT");
		commit_waits($local, $next);
		$shards[0]->safe_psql('postgres', 'ALTER ROLE remote_app LOGIN');
		commits_synchronously($local);
		$reused = $next->finish eq $xid;
		is($next->error, '', 'next transaction commits');
		nothing_is_prepared(\@shards, 'xid');
		is($shards[0]->safe_psql('remote_db', "SELECT count(*) FROM transfers WHERE n = $n"), '0', 'part of the transaction that was killed is rolled back');
		is($shards[1]->safe_psql('remote_db', "SELECT count(*) FROM accounts WHERE id = 1000 + $n"), '1', 'part of the next one is committed');
		$local->safe_psql('postgres', "DELETE FROM ledger WHERE n = -$n");
		$next->quit;
	}
	ok($reused, 'both had the same xid');
	$visit->('500ms');
	all_agree($local, \@shards, 'xid', $transfers);
}

# --- database of the pool is full: the resolver needs no lease
{
	my (@waiters, $session);
	my $gid = orphan(++$n, "BEGIN; UPDATE shard1.accounts SET balance = 1 WHERE id = 1; INSERT INTO shard2.transfers VALUES ($n, 1, 'gate'); COMMIT", sub {
		@waiters = map { $app->() } 1 .. 4;
		$_->start('SELECT balance FROM shard1.accounts WHERE id = 1 FOR UPDATE') foreach @waiters;
		ok(wait_until($shards[0], q{SELECT count(*) > 0 FROM pg_stat_activity WHERE usename = 'remote_app' AND wait_event_type = 'Lock'}, 't'), 'leases wait for the row of the part');
	});

	is(join(' ', map { $_->finish . $_->error } @waiters), '0 0 0 0', 'statements that waited for the part succeed, and it was rolled back');
	$_->quit foreach @waiters;
	all_agree($local, \@shards, 'orphan', $transfers);
}

# --- a row that another transaction has inserted decides nothing
{
	my $forger = PgpxSession->new($local);
	my $id;

	orphan(++$n, undef, sub {
		($id) = $_[0] =~ /^(.*)_\d+$/;
		$shards[0]->safe_psql('postgres', 'ALTER ROLE remote_app NOLOGIN');
		$shards[0]->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'remote_app'});
		$forger->start("INSERT INTO pgpool.commit_decisions SELECT '$id', array_agg(id ORDER BY id) FROM pgpool.commit_participants");
	});
	$forger->finish;
	is($forger->error, '', 'row is forged');
	is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.commit_decisions WHERE id = '$id'"), '1', 'and visible');
	is(prepared_on($shards[0]), '1', 'part is not resolved');
	$shards[0]->safe_psql('postgres', 'ALTER ROLE remote_app LOGIN');
	all_agree($local, \@shards, 'forged row', $transfers);
	$local->safe_psql('postgres', "DELETE FROM pgpool.commit_decisions WHERE id = '$id'");
	$forger->quit;
}

# --- parts of other roles and databases with our origin are not ours
{
	my $origin = $local->safe_psql('postgres', 'SELECT min(origin) FROM pgpool.commit_participants');
	my $id = "pgpx_${origin}_3_0123456789abcdef";

	$shards[0]->safe_psql('postgres', "CREATE ROLE squatter; CREATE TABLE t AS SELECT 1 AS a; GRANT ALL ON t TO remote_app");
	$shards[0]->safe_psql('remote_db', "GRANT INSERT ON accounts TO squatter");
	$shards[0]->safe_psql('remote_db', "BEGIN; SET LOCAL ROLE squatter; INSERT INTO accounts VALUES (-1, 1); PREPARE TRANSACTION '${id}_1'");
	$shards[0]->safe_psql('postgres', "BEGIN; SET LOCAL ROLE remote_app; INSERT INTO t VALUES (2); PREPARE TRANSACTION '${id}_2'");
	$shards[0]->safe_psql('remote_db', "BEGIN; SET LOCAL ROLE remote_app; INSERT INTO accounts VALUES (-3, 1); PREPARE TRANSACTION '${id}_3'");

	# the third part has the role and the database of the participant
	ok(wait_until($shards[0], q{SELECT string_agg(right(gid, 1), ' ' ORDER BY gid) FROM pg_prepared_xacts}, '1 2'), 'part of the same role and database is rolled back, and no other');
	orphan(++$n);
	ok(wait_until($shards[0], q{SELECT string_agg(right(gid, 1), ' ' ORDER BY gid) FROM pg_prepared_xacts}, '1 2'), 'orphan is rolled back, and no other part');
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.prepared_transactions', '0'), 'foreign parts are not shown');
	$shards[0]->safe_psql('remote_db', "ROLLBACK PREPARED '${id}_1'");
	$shards[0]->safe_psql('postgres', "ROLLBACK PREPARED '${id}_2'");
	all_agree($local, \@shards, 'squatted ids', $transfers);
}

# --- a remote server that is away after the decision; DDL meanwhile
{
	my $session = $app->();
	my $unresolved = q{SELECT string_agg(concat_ws(' ', server, user_name, state, last_error IS NOT NULL), ', ') FROM pgpool.prepared_transactions};

	commits_wait($local);
	$session->start(transfer(++$transfers));
	commit_waits($local, $session);
	$shards[1]->stop('immediate');
	commits_synchronously($local);
	$session->finish;
	like($session->error, qr/^psql:.*WARNING:.*shard2/m, 'COMMIT warns that a part is not committed');
	unlike($session->error, qr/ERROR/, 'and succeeds');
	nothing_is_prepared([ $shards[0] ], 'other shard');
	ok(wait_until($local, $unresolved, 'shard2 app commit t'), 'view shows the part');
	is($session->run('SELECT count(*) FROM shard1.transfers') . $session->error, $transfers, 'session works');
	is(PgpxSession->new($local)->run($unresolved), 'shard2 app commit t', 'view can be read');

	foreach my $ddl (
		q{ALTER SERVER shard2 OPTIONS (SET port '1')}, q{ALTER SERVER shard2 OPTIONS (SET host '127.0.0.2')}, q{ALTER SERVER shard2 OPTIONS (SET dbname 'postgres')},
		q{DROP SERVER shard2 CASCADE}, q{DROP USER MAPPING FOR app SERVER shard2}, q{ALTER USER MAPPING FOR app SERVER shard2 OPTIONS (SET user 'remote_super')},
		q{REVOKE USAGE ON FOREIGN SERVER shard2 FROM app}, q{DROP OWNED BY app}, q{DROP EXTENSION pgpool_ext CASCADE},
		q{DROP FOREIGN DATA WRAPPER pgpool_fdw CASCADE})
	{
		my ($status, undef, $message) = $local->psql('postgres', "BEGIN; $ddl; COMMIT", on_error_stop => 1);

		isnt($status, 0, "$ddl is refused") or $local->safe_psql('postgres', q{SELECT 1});
		like($message, qr/prepared|shard2|participant|extension/, "$ddl: error names the cause");
	}
	foreach my $ddl (
		q{ALTER SERVER shard2 OPTIONS (SET pool_size '4')}, q{ALTER SERVER shard2 OPTIONS (SET two_phase_commit 'off')}, q{ALTER SERVER shard2 OPTIONS (SET two_phase_commit 'on')},
		qq{ALTER USER MAPPING FOR app SERVER shard2 OPTIONS (SET password '$REMOTE_APP_PASSWORD')})
	{
		is(scalar $local->psql('postgres', $ddl), 0, "$ddl is possible");
	}
	ok(wait_until($local, $unresolved, 'shard2 app commit t'), 'view still shows the part');

	# over a restart of the local server
	$session->quit;
	$local->restart;
	is($local->safe_psql('postgres', $unresolved), 'shard2 app commit t', 'view shows the part after a restart');
	$shards[1]->start;
	all_agree($local, \@shards, 'shard was away', $transfers);
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.prepared_transactions', '0'), 'view shows no part');
	ok(wait_until($local, sub { scalar $local->psql('postgres', q{ALTER SERVER shard2 OPTIONS (SET host 'localhost')}, stderr => \my $e) }, '0'), 'server can be altered');
	$local->safe_psql('postgres', q{ALTER SERVER shard2 OPTIONS (SET host '127.0.0.1')});
	my $next = $app->();
	$next->run(transfer(++$transfers));
	is($next->error, '', 'transfer succeeds after the change');
	$next->quit;
}

# --- a commit that waits for another transaction holds no lock, behind which DDL would wait, and the
# commit of that transaction behind the DDL
{
	my ($first, $second) = map { $app->() } 1, 2;
	my $ddl = PgpxSession->new($local);

	$shards[1]->safe_psql('remote_db', 'SET ROLE remote_app; CREATE TABLE late (a int UNIQUE DEFERRABLE INITIALLY DEFERRED)');
	$local->safe_psql('postgres', 'CREATE FOREIGN TABLE shard2.late (a int) SERVER shard2 OPTIONS (schema_name $$public$$); GRANT ALL ON shard2.late TO app; CREATE TABLE l (a int); GRANT ALL ON l TO app');
	$first->run('BEGIN; INSERT INTO shard2.late VALUES (1); INSERT INTO l VALUES (1)');
	$second->start('BEGIN; INSERT INTO shard2.late VALUES (1); INSERT INTO l VALUES (2); COMMIT');
	ok(wait_until($shards[1], q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND wait_event_type = 'Lock'}, '1'), 'commit waits for a deferred constraint');
	is($ddl->run(q{SET statement_timeout = '30s'; BEGIN; ALTER SERVER shard1 OPTIONS (SET host 'localhost'); ROLLBACK}) . $ddl->error, '', 'DDL does not wait for it');
	is($first->run('COMMIT') . $first->error, '', 'nor does the other commit');
	$second->finish;
	$second->failed('23505', qr/late_a_key/, 'constraint is violated');
	$_->quit foreach $first, $second, $ddl;
	all_agree($local, \@shards, 'deferred constraint', $transfers);
}

# --- an administrator gives a part up
{
	my $session = $app->();

	ok(wait_until($local, 'SELECT count(*) FROM pgpool.commit_decisions', '0'), 'earlier decisions are removed');
	commits_wait($local);
	$session->start("BEGIN; INSERT INTO shard1.accounts VALUES (500, 1); INSERT INTO shard2.accounts VALUES (500, 1); COMMIT");
	commit_waits($local, $session);
	$shards[1]->stop('immediate');
	commits_synchronously($local);
	$session->finish;
	$session->quit;
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.prepared_transactions WHERE server = 'shard2'}, '1'), 'part is not resolved');
	isnt(scalar $local->psql('postgres', 'DROP USER MAPPING FOR app SERVER shard2', stderr => \my $e), 0, 'user mapping cannot be dropped');
	is($local->safe_psql('postgres', q{SELECT pgpool.forget_participant(participant) FROM (SELECT DISTINCT participant FROM pgpool.prepared_transactions WHERE server = 'shard2') AS p}), 't', 'participant is forgotten');
	is($local->safe_psql('postgres', q{SELECT count(*) FROM pgpool.prepared_transactions WHERE server = 'shard2'}), '0', 'view does not show it');
	is(scalar $local->psql('postgres', 'DROP USER MAPPING FOR app SERVER shard2'), 0, 'user mapping can be dropped');
	is(scalar $local->psql('postgres', q{BEGIN; ALTER SERVER shard1 OPTIONS (SET host 'localhost'); ROLLBACK}, on_error_stop => 1), 0, 'server of the other part can be changed');
	$local->safe_psql('postgres', "CREATE USER MAPPING FOR app SERVER shard2 OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')");
	$shards[1]->start;
	my $next = $app->();
	$next->run(transfer(++$transfers));
	is($next->error, '', 'server can be used again');
	$next->quit;
	all_agree($local, \@shards, 'given up', $transfers);
	is($shards[1]->safe_psql('remote_db', 'SELECT count(*) FROM accounts WHERE id = 500'), '1', 'part is committed when the server is used again');
	$local->safe_psql('postgres', 'DELETE FROM pgpool.commit_decisions WHERE NOT participants <@ ARRAY(SELECT id FROM pgpool.commit_participants)');
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.commit_decisions', '0'), 'no decision is left');
}

# --- a dump has no decisions and no participants; a restored database is another installation
{
	my ($session, $gate) = waiting_at_gate(++$transfers);
	my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';

	$local->command_ok([ 'pg_dump', '-d', $local->connstr('postgres'), '-f', $dump ], 'database is dumped');
	unlike(slurp_file($dump), qr/COPY pgpool\.|pgpx_/, 'dump has no rows of the extension');
	$local->safe_psql('postgres', 'CREATE DATABASE restored');
	$local->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $local->connstr('restored'), '-f', $dump ], 'dump is restored');
	is($local->safe_psql('restored', 'SELECT (SELECT count(*) FROM pgpool.commit_participants) + (SELECT count(*) FROM pgpool.commit_decisions)'), '0', 'restored database has no participants');
	my $there = PgpxSession->new($local, dbname => 'restored', user => 'app');
	$there->run(transfer(9000));
	is($there->error, '', 'transfer in the restored database succeeds');
	$there->run('BEGIN; DELETE FROM shard1.transfers WHERE n = 9000; DELETE FROM shard2.transfers WHERE n = 9000; DELETE FROM ledger WHERE n = 9000; COMMIT');
	is($there->error, '', 'and another one');
	$there->quit;
	isnt($local->safe_psql('restored', 'SELECT min(origin) FROM pgpool.commit_participants'), $local->safe_psql('postgres', 'SELECT min(origin) FROM pgpool.commit_participants'), 'origins differ');
	has_visited($local, 'its resolver has visited the shards', dbname => 'restored');
	is(prepared_on($shards[0]), '1', 'part of the other database is not rolled back');
	$gate->quit;
	is($session->finish . $session->error, '', 'and committed by its own session');
	$session->quit;
	all_agree($local, \@shards, 'restored dump', $transfers);
	ok(wait_until($local, sub { scalar $local->psql('postgres', 'DROP DATABASE restored', stderr => \my $e) }, '0'), 'database whose parts are resolved can be dropped');
}

# --- the resolver is terminated, and the option is turned off
{
	my $session = $app->();

	$local->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM ($resolver) AS r");
	orphan(++$n);
	$local->safe_psql('postgres', "ALTER SERVER shard$_ OPTIONS (SET two_phase_commit 'off')") foreach 1, 2;
	all_agree($local, \@shards, 'option is off', $transfers);
	$session->run(transfer(++$transfers));
	is($session->error, '', 'transfer in one phase');
	all_agree($local, \@shards, 'one phase', $transfers);
	$session->quit;
}

stats_add_up($local);
check_invariants($local);
is(scalar(() = slurp_file($local->logfile) =~ /PANIC|TRAP|terminated by signal (?:6|11)/g), 0, 'no process has crashed');
leak_check($local, @shards);
done_testing();

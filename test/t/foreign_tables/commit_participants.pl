# Participants of commits on several servers: when they are registered and removed, and what the
# resolver does with parts whose transactions it knows nothing of.
use strict;
use warnings;

use Fcntl qw(O_NONBLOCK O_WRONLY);
use PgpxTest;
use PgpxTransfers;
use POSIX 'mkfifo';
use PostgreSQL::Test::Utils;
use Test::More;

my @remotes = map { remote_node($_, conf => ['max_prepared_transactions = 20']) } qw(one two);
my $local = local_node('local', conf => [q{pgpool_ext.resolve_interval = '200ms'}]);
my $participants = 'SELECT count(*) FROM pgpool.commit_participants';
my $decisions = 'SELECT count(*) FROM pgpool.commit_decisions';

sub on_remotes { return join ' ', map { $_->safe_psql('remote_db', $_[0]) } @remotes; }
sub prepared { return on_remotes('SELECT count(*) FROM pg_prepared_xacts'); }
sub rows { return on_remotes('SELECT count(*) FROM t'); }

# Prepare a part as the remote role of the pools.
sub prepare
{
	my ($node, $gid) = @_;

	$node->safe_psql('remote_db', "SET SESSION AUTHORIZATION remote_app; BEGIN; INSERT INTO t VALUES (7); PREPARE TRANSACTION '$gid'");
	return;
}

foreach my $i (1, 2)
{
	make_pool($local, $remotes[ $i - 1 ], server => "s$i", options => { two_phase_commit => 'on' });
	$remotes[ $i - 1 ]->safe_psql('remote_db', 'SET ROLE remote_app; CREATE TABLE t(a int)');
	$local->safe_psql('postgres', "CREATE FOREIGN TABLE t$i(a int) SERVER s$i OPTIONS (table_name 't')");
}

# --- a commit registers its participants, and leaves nothing else
$local->safe_psql('postgres', 'INSERT INTO t1 VALUES (1)');
is($local->safe_psql('postgres', $participants), '0', 'commit in one phase registers no participant');
$local->safe_psql('postgres', 'BEGIN; INSERT INTO t1 VALUES (1); INSERT INTO t2 VALUES (1); COMMIT');
is(rows(), '2 1', 'parts are committed');
is(prepared(), '0 0', 'and none is prepared');
is($local->safe_psql('postgres', $participants), '2', 'participants are registered');
ok(wait_until($local, $decisions, '0'), 'decision is deleted');

# --- parts without a decision
my $origin = $local->safe_psql('postgres', 'SELECT pgpool.commit_origin()');
foreach my $xid (3, '9999999999', '9999999999999999999')
{
	prepare($remotes[0], "pgpx_${origin}_${xid}_0123456789abcdef_1");
	ok(wait_until($local, sub { prepared() }, '0 0'), "part of transaction $xid is rolled back");
}
foreach my $gid ("pgpx_${origin}_3_0123456789abcdef", "pgpx_${origin}_3_0123456789abcdef_x", "pgpx_${origin}_03_0123456789abcdef_1", 'pgpx_0123456789abcdef_3_0123456789abcdef_1', "pgpx_${origin}_3_0123456789abcdef_1'")
{
	(my $quoted = $gid) =~ s/'/''/g;
	prepare($remotes[0], $quoted);
}
is(rows(), '2 1', 'parts were rolled back');

# --- decisions, valid and forged
my $insert = 'INSERT INTO pgpool.commit_decisions SELECT %s, array_agg(id ORDER BY id) FROM pgpool.commit_participants RETURNING id';
my $session = PgpxSession->new($local);
my $decide = sub { $session->run('BEGIN; ' . sprintf $insert, "'pgpx_${origin}_' || pg_current_xact_id() || '_$_[0]'") };
my $id = $decide->('aaaaaaaaaaaaaaaa');
prepare($remotes[1], "${id}_2");
prepare($remotes[1], "${id}_3");
has_visited($local, 'resolver visits the servers');
is(prepared(), '5 2', 'it does not resolve parts of a transaction that runs');
$session->run('COMMIT');
ok(wait_until($local, sub { prepared() }, '5 0'), 'parts are resolved, and ids that are not well-formed are left alone');
is(rows(), '2 2', 'part in the decision is committed, and another one is not');
ok(wait_until($local, sub { slurp_file($local->logfile) =~ /has committed 1 and rolled back 1 prepared transactions on server "s2"/ ? 1 : 0 }, 1), 'log has their numbers');
ok(wait_until($local, $decisions, '0'), 'decision is deleted');
$local->safe_psql('postgres', sprintf $insert, "'pgpx_${origin}_3_bbbbbbbbbbbbbbbb'");
$local->safe_psql('postgres', sprintf $insert, q{'nonsense'});
prepare($remotes[1], "pgpx_${origin}_3_bbbbbbbbbbbbbbbb_1");
ok(wait_until($local, sub { prepared() }, '5 0'), 'part is resolved');
is(rows(), '2 2', 'decision whose xmin is another xid does not count');

# a part of another role, which the resolver cannot commit
$id = $decide->('eeeeeeeeeeeeeeee');
$remotes[1]->safe_psql('remote_db', "BEGIN; INSERT INTO t VALUES (8); PREPARE TRANSACTION '${id}_2'");
$session->run('COMMIT');
$session->quit;
has_visited($local, 'resolver visits the servers');
is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.commit_decisions WHERE id = '$id'"), '1', 'decision is kept while its part is prepared');
$remotes[1]->safe_psql('remote_db', "ROLLBACK PREPARED '${id}_2'");
ok(wait_until($local, "SELECT count(*) FROM pgpool.commit_decisions WHERE id = '$id'", '0'), 'and deleted after that');
$local->safe_psql('postgres', 'DELETE FROM pgpool.commit_decisions');
foreach my $gid (split /\n/, $remotes[0]->safe_psql('remote_db', 'SELECT quote_literal(gid) FROM pg_prepared_xacts'))
{
	$remotes[0]->safe_psql('remote_db', "ROLLBACK PREPARED $gid");
}

# --- a server that is not the participant, or not a database of it, proves nothing
{
	my $gid = "pgpx_${origin}_3_cccccccccccccccc_1";

	foreach my $column ('system_identifier = system_identifier %s 1', q{database = CASE '%s' WHEN '+' THEN 'other' ELSE 'remote_db' END})
	{
		my $error = q{SELECT count(*) FROM pgpool.commit_participants WHERE error LIKE '%is not the one%'};

		$local->safe_psql('postgres', 'UPDATE pgpool.commit_participants SET ' . sprintf $column, '+');
		ok(wait_until($local, $error, '2'), 'resolver finds that it is another one');
		prepare($remotes[0], $gid);
		$local->safe_psql('postgres', sprintf $insert, "'pgpx_${origin}_' || pg_current_xact_id() || '_dddddddddddddddd'");
		ok(wait_until($local, q{SELECT count(*) FROM pgpool.prepared_transactions WHERE state = 'commit'}, '2', 30), 'view shows what may be left');
		is(prepared() . ' ' . $local->safe_psql('postgres', $decisions), '1 0 1', 'it resolves no part, and deletes no decision');
		$local->safe_psql('postgres', 'UPDATE pgpool.commit_participants SET ' . sprintf $column, '-');
		ok(wait_until($local, sub { prepared() . ' ' . $local->safe_psql('postgres', $decisions) }, '0 0 0'), 'participant is itself again: both go');
	}
}

# --- a cancelled login: its thread uses memory of the round
{
	my $fifo = PostgreSQL::Test::Utils::tempdir() . '/password';
	my $end;
	my ($password) = $local->safe_psql('postgres', q{SELECT umoptions FROM pg_user_mappings WHERE srvname = 's1' AND usename = current_user}) =~ /password=([^,}"]+)/;
	my $mapping = 'ALTER USER MAPPING FOR CURRENT_USER SERVER s1 OPTIONS (%s)';

	# the command reads until this end is closed, and it can be opened only while there is a reader
	mkfifo($fifo, 0600) or die "mkfifo: $!";
	$local->append_conf('postgresql.conf', "pgpool_ext.password_command = 'cat $fifo'");
	$local->reload;
	$local->safe_psql('postgres', sprintf $mapping, q{DROP password, ADD use_password_command 'true'});
	ok(wait_until($local, sub { sysopen($end, $fifo, O_WRONLY | O_NONBLOCK) ? 1 : 0 }, 1), 'resolver runs the password command');
	my $pid = $local->safe_psql('postgres', q{SELECT pid, pg_cancel_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext resolver'}) =~ s/\|t$//r;
	ok(wait_until($local, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0'), 'resolver ends after its login was cancelled');

	# DDL waits for such a login, too
	my $ddl = PgpxSession->new($local);
	$ddl->start(q{ALTER SERVER s1 OPTIONS (SET port '1')});
	ok(wait_until($local, q{SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext resolver errand'}, '1'), 'worker of the DDL is terminated');
	$ddl->finish;
	$ddl->failed('XX000', qr/has failed\nDETAIL: (?!.*HINT)/s, 'DDL fails, and no hint advises to forget the participant');
	$ddl->quit;
	$local->safe_psql('postgres', sprintf $mapping, "DROP use_password_command, ADD password '$password'");
	close $end;
	has_visited($local, 'another resolver goes on');
}

# --- DDL removes participants whose parts are resolved
$local->safe_psql('postgres', "BEGIN; ALTER SERVER s1 OPTIONS (SET port '1'); ROLLBACK");
is($local->safe_psql('postgres', $participants), '2', 'ALTER SERVER that is rolled back removes no participant');
$local->safe_psql('postgres', "ALTER SERVER s1 OPTIONS (SET port '" . $remotes[0]->port . q{')});
is($local->safe_psql('postgres', $participants), '1', 'ALTER SERVER removes the participant');
$remotes[1]->stop;
isnt(scalar $local->psql('postgres', 'DROP SERVER s2 CASCADE', stderr => \my $error), 0, 'server that cannot be asked is not dropped');
like($error, qr/"s2" may have prepared transactions.*Connection refused/s, 'error has the reason');
$remotes[1]->start;
$local->safe_psql('postgres', 'DROP SERVER s2 CASCADE');
is($local->safe_psql('postgres', $participants), '0', 'DROP SERVER removes the participant');

# --- the resolver removes participants without the option, and does not keep its database in use
$local->safe_psql('postgres', 'BEGIN; INSERT INTO t1 VALUES (1); CREATE TABLE l1(); COMMIT');
is($local->safe_psql('postgres', $participants), '1', 'participant is registered again');
$local->safe_psql('postgres', q{ALTER SERVER s1 OPTIONS (SET two_phase_commit 'off')});
ok(wait_until($local, $participants, '0'), 'participant goes after the option');
$local->safe_psql('postgres', q{ALTER SERVER s1 OPTIONS (SET two_phase_commit 'on')});
$local->safe_psql('postgres', 'BEGIN; INSERT INTO t1 VALUES (1); CREATE TABLE l2(); COMMIT');
is($local->safe_psql('postgres', $participants), '1', 'and comes with it');

# --- a participant of a mapping for PUBLIC, which a superuser uses while another one has a mapping
{
	my $holder = PgpxSession->new($local);
	my $resolved = sub { ok(wait_until($local, sub { prepared() }, '0 0'), $_[0]) };
	my @ddl = ("CREATE USER MAPPING FOR other SERVER s1 OPTIONS (user 'remote_super', password '$REMOTE_SUPER_PASSWORD')", 'DROP ROLE other');

	# the server has no mapping for PUBLIC, so commits do not wait for this transaction
	$local->safe_psql('postgres', 'CREATE ROLE other SUPERUSER LOGIN');
	$holder->run('BEGIN; CREATE USER MAPPING FOR other SERVER s1');
	is($local->safe_psql('postgres', 'BEGIN; INSERT INTO t1 VALUES (1); CREATE TABLE l3(); DROP TABLE l3; COMMIT'), '', 'commit while another transaction has created a mapping');
	$holder->run('ROLLBACK');
	$local->safe_psql('postgres', <<"EOS");
CREATE USER MAPPING FOR PUBLIC SERVER s1 OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
ALTER USER MAPPING FOR CURRENT_USER SERVER s1 OPTIONS (SET user 'remote_super', SET password '$REMOTE_SUPER_PASSWORD');
EOS
	foreach my $ddl (@ddl)
	{
		my $other = PgpxSession->new($local, user => 'other');

		$other->run('BEGIN; INSERT INTO t1 VALUES (1); CREATE TABLE l3(); DROP TABLE l3; COMMIT');
		is($other->error, '', 'commit registers a participant');
		$other->quit;
		prepare($remotes[0], "pgpx_${origin}_3_0123456789abcdef_1");
		$resolved->('resolver logs in by the mapping for PUBLIC');
		prepare($remotes[0], "pgpx_${origin}_" . $holder->run('BEGIN; SELECT pg_current_xact_id()') . '_0123456789abcdef_1');
		isnt(scalar $local->psql('postgres', "BEGIN; $ddl; COMMIT", stderr => \my $e, on_error_stop => 1), 0, "$ddl is refused");
		like($e, qr/"s1" may have prepared transactions.*Some are/s, 'error names the server');
		$holder->run('ROLLBACK');
		$resolved->('part is resolved');
		$local->safe_psql('postgres', $ddl);
		is($local->safe_psql('postgres', $participants), '0', "$ddl removes the participant");
		$local->safe_psql('postgres', 'DROP USER MAPPING FOR other SERVER s1') if $ddl eq $ddl[0];
	}

	# the remote session has the former login, the resolver would have the present one
	$holder->run('BEGIN; INSERT INTO t1 VALUES (1); CREATE TABLE l5()');
	$local->safe_psql('postgres', "ALTER USER MAPPING FOR CURRENT_USER SERVER s1 OPTIONS (SET user 'remote_app', SET password '$REMOTE_APP_PASSWORD')");
	$holder->fails('COMMIT', '55000', qr/log in as another user/, 'part that the resolver would not find is not prepared');
	$holder->quit;
}

# --- DROP EXTENSION ends the origin
$local->safe_psql('postgres', 'BEGIN; INSERT INTO t1 VALUES (1); CREATE TABLE l5(); COMMIT');
$local->safe_psql('postgres', 'DROP EXTENSION pgpool_ext CASCADE');
is(prepared(), '0 0', 'no part is left');
$local->safe_psql('postgres', 'CREATE EXTENSION pgpool_ext');
isnt($local->safe_psql('postgres', 'SELECT pgpool.commit_origin()'), $origin, 'origin is another one after CREATE EXTENSION');

# --- a resolver that runs does not execute the functions of a user who makes a schema of that name
{
	make_pool($local, $remotes[0], server => 's1', options => { two_phase_commit => 'on' });
	$local->safe_psql('postgres', q{CREATE FOREIGN TABLE t1(a int) SERVER s1 OPTIONS (table_name 't'); GRANT CREATE ON DATABASE postgres TO app});
	$local->safe_psql('postgres', 'BEGIN; INSERT INTO t1 VALUES (1); CREATE TABLE l4(); COMMIT');
	$remotes[0]->stop;
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.commit_participants WHERE error LIKE '%Connection refused%'}, '1'), 'resolver waits for the server');

	my $at = -s $local->logfile;
	$local->safe_psql('postgres', <<'EOS');
BEGIN;
SELECT pgpool.forget_participant(id) FROM pgpool.commit_participants;
SET LOCAL client_min_messages = warning;
DROP EXTENSION pgpool_ext CASCADE;
SET ROLE app;
CREATE SCHEMA pgpool;
CREATE TABLE pgpool.commit_decisions ();
CREATE FUNCTION pgpool.logs() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE LOG 'executed by %', current_user; RETURN ''; END $$;
CREATE VIEW pgpool.commit_participants AS
SELECT 1 AS id, 1::oid AS server, 1::oid AS user_id, pgpool.logs() AS origin, 1::int8 AS system_identifier, '' AS database, '' AS error, '' AS adopter;
COMMIT;
EOS
	ok(wait_until($local, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext resolver'}, '0'), 'resolver ends');
	unlike(slurp_file($local->logfile, $at), qr/executed by|ERROR:(?!.*lock timeout)/, 'and has executed nothing');
	$local->safe_psql('postgres', 'DROP SCHEMA pgpool CASCADE; CREATE EXTENSION pgpool_ext');
	$remotes[0]->start;
}
check_invariants($local);
leak_check($local, @remotes);
done_testing();

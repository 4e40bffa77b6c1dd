# Changes of a base server, and of its user mappings, take effect when they commit,
# as those of the server itself do: idle connections of the old version close,
# leased ones live until they come in, waiters get what is so now, also if that is
# another pool.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', conf => ['pgpool_ext.log_connections = on']);
my $port = $remote->port;
my $credentials = "user 'remote_app', password '$REMOTE_APP_PASSWORD'";

make_pool($local, $remote, server => $_) foreach qw(data spare others plain);
$local->safe_psql('postgres', <<'EOT');
CREATE SERVER shard FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'data', pool_size '2');
CREATE SERVER bystander FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'others');
GRANT USAGE ON FOREIGN SERVER shard, bystander TO app;
EOT
my ($holder, $other) = map { PgpxSession->new($local) } 1 .. 2;
my %stage = (local => $local, remote => $remote, holder => $holder, other => $other, server => 'shard');
$other->run("SELECT pgpool.exec('bystander', 'select 1')");
my $bystander = $local->safe_psql('postgres',
	"SELECT remote_pid FROM pgpool.connections WHERE server = 'bystander'");

# --- what changes, one by one
takes_effect(\%stage, q(ALTER SERVER data OPTIONS (ADD application_name 'pgpool_ext data')), '');
is($remote->safe_psql('postgres', q(SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'pgpool_ext data')),
	't', 'new connections have the new options');
takes_effect(\%stage, q(ALTER SERVER data OPTIONS (DROP application_name)), '');
takes_effect(\%stage, q(ALTER SERVER shard OPTIONS (ADD start_commands 'SET geqo = off')), '');
takes_effect(\%stage,
	q(ALTER USER MAPPING FOR CURRENT_USER SERVER data OPTIONS (SET password 'of yesterday')),
	'08001', qq(ALTER USER MAPPING FOR CURRENT_USER SERVER data OPTIONS (SET password '$REMOTE_APP_PASSWORD')));
takes_effect(\%stage, 'DROP USER MAPPING FOR CURRENT_USER SERVER data',
	'42704', "CREATE USER MAPPING FOR CURRENT_USER SERVER data OPTIONS ($credentials)");
takes_effect(\%stage, 'ALTER SERVER data RENAME TO renamed', '42704', 'ALTER SERVER renamed RENAME TO data');
takes_effect(\%stage, "ALTER SERVER shard OPTIONS (SET base_server 'spare')", '', "ALTER SERVER shard OPTIONS (SET base_server 'data')");
takes_effect(\%stage, "CREATE USER MAPPING FOR CURRENT_USER SERVER shard OPTIONS ($credentials)",
	'22023', 'DROP USER MAPPING FOR CURRENT_USER SERVER shard');
takes_effect(\%stage, 'CREATE USER MAPPING FOR PUBLIC SERVER shard', '22023', 'DROP USER MAPPING FOR PUBLIC SERVER shard');

# --- what a user may
# a PUBLIC mapping that names no remote user has a pool for each local one
$remote->safe_psql('postgres', "CREATE ROLE $_ LOGIN PASSWORD '$REMOTE_APP_PASSWORD'") foreach qw(member guest);
my ($app, $member, $guest) = map {
	my $role = $_;
	$local->safe_psql('postgres', "CREATE ROLE $role LOGIN") if $role ne 'app';
	PgpxSession->new($local, user => $role);
} qw(app member guest);
$local->safe_psql('postgres', <<"EOT");
CREATE ROLE readers;
GRANT readers TO member;
CREATE SERVER everybody FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');
CREATE USER MAPPING FOR PUBLIC SERVER everybody OPTIONS (password '$REMOTE_APP_PASSWORD');
CREATE SERVER through FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'everybody');
GRANT USAGE ON FOREIGN SERVER everybody TO readers, guest;
GRANT USAGE ON FOREIGN SERVER through TO member, guest;
EOT

foreach my $case (
	[ $app, 'shard', 'app', 'data', 'REVOKE USAGE ON FOREIGN SERVER data FROM app' ],
	[ $member, 'through', 'member', 'everybody', 'REVOKE readers FROM member' ])
{
	my ($session, $server, $user, $base, $sql) = @$case;
	my $pid = idle_of($local, $session, $server, $user);

	closes(\%stage, $pid, $sql, "$sql: the idle connection closes");
	$session->fails("SELECT pgpool.exec('$server', 'select 1')", '42501', qr/permission denied for foreign server $base/, "$sql: the next use");
}
$local->safe_psql('postgres', 'GRANT USAGE ON FOREIGN SERVER data TO app');
my $pid = idle_of($local, $app, 'shard', 'app');
closes(\%stage, $pid, 'REVOKE USAGE ON FOREIGN SERVER shard FROM app', 'REVOKE USAGE ON FOREIGN SERVER shard FROM app: the idle connection closes');
$pid = idle_of($local, $guest, 'through', 'guest');
closes(\%stage, $pid, 'ALTER ROLE guest SUPERUSER', 'ALTER ROLE SUPERUSER: a connection of another identity class');
$local->safe_psql('postgres', 'ALTER ROLE guest NOSUPERUSER');
$pid = idle_of($local, $guest, 'through', 'guest');
my $public = idle_of($local, $guest, 'everybody', 'guest');
closes(\%stage, $pid, "CREATE USER MAPPING FOR guest SERVER everybody OPTIONS ($credentials)", 'CREATE USER MAPPING for somebody whose pool was by PUBLIC\'s: the idle connection closes');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $public", '0'), 'and that of the base itself');
$pid = idle_of($local, $guest, 'through', 'guest');
closes(\%stage, $pid, 'DROP USER MAPPING FOR guest SERVER everybody', 'DROP USER MAPPING: back to that of PUBLIC');
$pid = idle_of($local, $guest, 'through', 'guest');
$guest->quit;
closes(\%stage, $pid, 'DROP OWNED BY guest; DROP ROLE guest', 'DROP ROLE: the connection closes');

# --- in two phases: the first session that hears of it sees to it
my ($lease, $leased, $idle) = one_leased_one_idle(\%stage);
$local->safe_psql('postgres', q(BEGIN; ALTER SERVER data OPTIONS (ADD keepalives '1'); PREPARE TRANSACTION 'two'));
ok(alive(\%stage, $idle), 'PREPARE TRANSACTION: nothing happens');
closes(\%stage, $idle, q(COMMIT PREPARED 'two'; SELECT 1), 'COMMIT PREPARED: the idle connection closes');
closes(\%stage, $leased, sub { $holder->run("SELECT pgpool.checkin($lease)") }, 'COMMIT PREPARED: the leased one at checkin');

# --- waiters: the pool is full, and stays so; the change makes it another one
$local->safe_psql('postgres', "ALTER SERVER shard OPTIONS (SET pool_size '1')");
$local->safe_psql('postgres', "ALTER SERVER plain OPTIONS (ADD pool_size '1')");

# $server's only connection is leased, and $other waits for one, while $sql
# commits.  What becomes of it: '' is a lease, else an SQLSTATE and its texts.
sub waiter_sees
{
	my ($server, $sql, $expected, $texts) = @_;
	my $own = lease($holder, $server);

	$other->start("SELECT pgpool.checkout('$server', '60 s')");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), "somebody waits for $server");
	$local->safe_psql('postgres', $sql);
	my $answer = $other->finish(30);
	is($other->sqlstate, $expected, "$sql: who waits") or diag($other->error);
	like($other->error, $texts, "$sql: with the names of both") if defined $texts;
	if ($expected eq '')
	{
		is($other->run("SELECT pgpool.exec($answer, 'select 1')"), '1', 'it has a lease that works');
		is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.leases WHERE server = '$server'"),
			'2', 'while that of the former pool is still out');
	}
	check_invariants($local);
	$_->run('SELECT pgpool.checkin_all()') foreach $holder, $other;
	return;
}

waiter_sees('shard', "ALTER SERVER shard OPTIONS (SET base_server 'spare')", '');
waiter_sees('shard', "ALTER SERVER shard OPTIONS (SET base_server 'data')", '');
waiter_sees('shard', 'BEGIN; DROP USER MAPPING FOR CURRENT_USER SERVER data;'
	  . " CREATE USER MAPPING FOR CURRENT_USER SERVER data OPTIONS ($credentials); COMMIT", '');
waiter_sees('plain', 'BEGIN; DROP USER MAPPING FOR CURRENT_USER SERVER plain;'
	  . " CREATE USER MAPPING FOR CURRENT_USER SERVER plain OPTIONS ($credentials); COMMIT", '');
waiter_sees('shard', 'ALTER SERVER data RENAME TO renamed', '42704',
	qr/"data" does not exist.*DETAIL:  Server "shard" has "data" as its base server/s);
$local->safe_psql('postgres', 'ALTER SERVER renamed RENAME TO data');

# a pool that was left by who waited there can be used again
my $rounds = 20;
my $served = 0;
my $ddl = PgpxSession->new($local);
for my $round (1 .. $rounds)
{
	$lease = lease($holder, 'shard');
	$other->start("SELECT pgpool.checkout('shard', '20 s')");
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') or last;
	$ddl->run("ALTER SERVER shard OPTIONS (SET base_server '" . ($round % 2 ? 'spare' : 'data') . "')");
	last unless $other->finish(30) =~ /^\d+$/;
	$served++;
	$_->run('SELECT pgpool.checkin_all()') foreach $holder, $other;
}
is($served, $rounds, 'a waiter goes over to another base, every time')
  or diag($other->error);

# --- the end of it all
$lease = lease($holder, 'shard');
$leased = $local->safe_psql('postgres',
	"SELECT remote_pid FROM pgpool.connections WHERE server = 'shard' AND state = 'leased'");
$local->safe_psql('postgres', 'DROP SERVER data CASCADE');
is($holder->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'DROP SERVER: the lease goes on');
$other->fails("SELECT pgpool.exec('shard', 'select 1')", '42704', qr/server "data" does not exist/, 'DROP SERVER: the next use');
closes(\%stage, $leased, sub { $holder->run("SELECT pgpool.checkin($lease)") }, 'DROP SERVER: its connection closes at checkin');
ok(alive(\%stage, $bystander), 'a server with another base has not noticed any of this');
stats_add_up($local);
$_->quit foreach $holder, $other, $app, $member, $ddl;
check_invariants($local);
leak_check($local, $remote);
done_testing();

# Changes of a base server and of its user mappings take effect at commit, like those of
# the server itself: idle connections of the old version close at once, leased ones at
# checkin, and waiters use the new options, even if these select another pool.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'catalog changes do not depend on TLS' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local', conf => ['pgpool_ext.log_connections = on']);
my $port = $remote->port;
my $credentials = "user 'remote_app', password '$REMOTE_APP_PASSWORD'";

make_pool($local, $remote, server => $_) foreach qw(data spare others plain);
$local->safe_psql('postgres', <<'EOT');
CREATE SERVER shard FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'data', pool_size '2');
CREATE SERVER bystander FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'others', idle_timeout '0', max_lifetime '0');
GRANT USAGE ON FOREIGN SERVER shard, bystander TO app;
EOT
my ($holder, $other) = map { PgpxSession->new($local) } 1 .. 2;
my %stage = (local => $local, remote => $remote, holder => $holder, other => $other, server => 'shard');
$other->run("SELECT pgpool.exec('bystander', 'select 1')");
my $bystander = $local->safe_psql('postgres',
	"SELECT remote_pid FROM pgpool.connections WHERE server = 'bystander'");

# --- changes of servers and user mappings
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

# --- privileges
# a PUBLIC mapping that names no remote user has a pool for each local user
$remote->safe_psql('postgres', "CREATE ROLE $_ LOGIN PASSWORD '$REMOTE_APP_PASSWORD'") foreach qw(member guest);
my ($app, $member, $guest) = map {
	my $role = $_;
	$local->safe_psql('postgres', "CREATE ROLE $role LOGIN") if $role ne 'app';
	PgpxSession->new($local, user => $role);
} qw(app member guest);
$local->safe_psql('postgres', <<"EOT");
CREATE ROLE readers;
GRANT readers TO member;
CREATE SERVER for_public FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');
CREATE USER MAPPING FOR PUBLIC SERVER for_public OPTIONS (password '$REMOTE_APP_PASSWORD');
CREATE SERVER through FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'for_public');
GRANT USAGE ON FOREIGN SERVER for_public TO readers, guest;
GRANT USAGE ON FOREIGN SERVER through TO member, guest;
EOT

foreach my $case (
	[ $app, 'shard', 'app', 'data', 'REVOKE USAGE ON FOREIGN SERVER data FROM app' ],
	[ $member, 'through', 'member', 'for_public', 'REVOKE readers FROM member' ])
{
	my ($session, $server, $user, $base, $sql) = @$case;
	my $pid = idle_of($local, $session, $server, $user);

	closes(\%stage, $pid, $sql, "$sql: idle connection closes");
	$session->fails("SELECT pgpool.exec('$server', 'select 1')", '42501', qr/permission denied for foreign server $base/, "$sql: next use fails");
}
$local->safe_psql('postgres', 'GRANT USAGE ON FOREIGN SERVER data TO app');
my $pid = idle_of($local, $app, 'shard', 'app');
closes(\%stage, $pid, 'REVOKE USAGE ON FOREIGN SERVER shard FROM app', 'REVOKE USAGE ON FOREIGN SERVER shard FROM app: idle connection closes');
$pid = idle_of($local, $guest, 'through', 'guest');
closes(\%stage, $pid, 'ALTER ROLE guest SUPERUSER', 'ALTER ROLE SUPERUSER: connection of the non-superuser closes');
$local->safe_psql('postgres', 'ALTER ROLE guest NOSUPERUSER');
$pid = idle_of($local, $guest, 'through', 'guest');
my $public = idle_of($local, $guest, 'for_public', 'guest');
closes(\%stage, $pid, "CREATE USER MAPPING FOR guest SERVER for_public OPTIONS ($credentials)", 'CREATE USER MAPPING for a user who used that of PUBLIC: idle connection closes');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $public", '0'), 'idle connection of the base server closes, too');
$pid = idle_of($local, $guest, 'through', 'guest');
closes(\%stage, $pid, 'DROP USER MAPPING FOR guest SERVER for_public', 'DROP USER MAPPING: connection by the own mapping closes');
$pid = idle_of($local, $guest, 'through', 'guest');
$guest->quit;
closes(\%stage, $pid, 'DROP OWNED BY guest; DROP ROLE guest', 'DROP ROLE: connection closes');

# --- two-phase commit
my ($lease, $leased, $idle) = one_leased_one_idle(\%stage);
$local->safe_psql('postgres', q(BEGIN; ALTER SERVER data OPTIONS (ADD keepalives '1'); PREPARE TRANSACTION 'two'));
ok(alive(\%stage, $idle), 'PREPARE TRANSACTION: connection stays open');
closes(\%stage, $idle, q(COMMIT PREPARED 'two'), 'COMMIT PREPARED: idle connection closes');
closes(\%stage, $leased, sub { $holder->run("SELECT pgpool.checkin($lease)") }, 'COMMIT PREPARED: leased connection closes at checkin');

# --- waiters of a full pool: the change moves them to another pool
$local->safe_psql('postgres', "ALTER SERVER shard OPTIONS (SET pool_size '1')");
$local->safe_psql('postgres', "ALTER SERVER plain OPTIONS (ADD pool_size '1')");

# The only connection of $server is leased and $other waits while $sql commits.
# $expected is '' for a lease, else an SQLSTATE with its message.
sub waiter_sees
{
	my ($server, $sql, $expected, $texts) = @_;
	my $own = lease($holder, $server);

	$other->start("SELECT pgpool.checkout('$server', '60 s')");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), "session waits for $server");
	$local->safe_psql('postgres', $sql);
	my $answer = $other->finish(30);
	is($other->sqlstate, $expected, "$sql: waiter receives the expected result") or diag($other->error);
	like($other->error, $texts, "$sql: error names both servers") if defined $texts;
	if ($expected eq '')
	{
		is($other->run("SELECT pgpool.exec($answer, 'select 1')"), '1', 'lease of the new pool works');
		is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.leases WHERE server = '$server'"),
			'2', 'lease of the former pool is still held');
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

# a pool that its waiters have left can be used again
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
is($served, $rounds, 'waiter moves to the pool of another base server, every time')
  or diag($other->error);

# --- DROP SERVER
$lease = lease($holder, 'shard');
$leased = $local->safe_psql('postgres',
	"SELECT remote_pid FROM pgpool.connections WHERE server = 'shard' AND state = 'leased'");
$local->safe_psql('postgres', 'DROP SERVER data CASCADE');
is($holder->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'DROP SERVER: lease stays usable');
$other->fails("SELECT pgpool.exec('shard', 'select 1')", '42704', qr/server "data" does not exist/, 'DROP SERVER: next use fails');
closes(\%stage, $leased, sub { $holder->run("SELECT pgpool.checkin($lease)") }, 'DROP SERVER: leased connection closes at checkin');
ok(alive(\%stage, $bystander), 'connection of a server with another base was not affected');
stats_add_up($local);
$_->quit foreach $holder, $other, $app, $member, $ddl;
check_invariants($local);
leak_check($local, $remote);
done_testing();

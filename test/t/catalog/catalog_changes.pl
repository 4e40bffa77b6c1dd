# Changes of the catalogs take effect at commit without a call of the extension: idle
# connections of the old version close at once, leased ones at checkin, and waiters use
# the new options.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'catalog changes do not depend on TLS' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local', conf => [ 'pgpool_ext.max_pools = 8', 'pgpool_ext.log_connections = on' ]);
my $port = $remote->port;

make_pool($local, $remote, server => 'shard', options => { pool_size => 2 });
make_pool($local, $remote, server => 'bystander', options => { idle_timeout => 0, max_lifetime => 0 });
my ($holder, $other) = map { PgpxSession->new($local) } 1 .. 2;
my %stage = (local => $local, remote => $remote, holder => $holder, other => $other, server => 'shard');
$other->run("SELECT pgpool.exec('bystander', 'select 1')");
my $bystander = $local->safe_psql('postgres',
	"SELECT remote_pid FROM pgpool.connections WHERE server = 'bystander'");

# --- changes of servers and user mappings
takes_effect(\%stage, q(ALTER SERVER shard OPTIONS (ADD start_commands 'SET geqo = off')), '');
takes_effect(\%stage, q(ALTER SERVER shard OPTIONS (ADD application_name 'pgpool_ext shard')), '');
is($remote->safe_psql('postgres', q(SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'pgpool_ext shard')),
	't', 'new connections have the new options');
takes_effect(\%stage, q(ALTER SERVER shard OPTIONS (DROP start_commands, DROP application_name)), '');
takes_effect(\%stage, q(ALTER USER MAPPING FOR CURRENT_USER SERVER shard OPTIONS (SET password 'of yesterday')), '08001');
like($other->error, qr/password authentication failed/, 'error has the reason');
takes_effect_from_nothing(qq(ALTER USER MAPPING FOR CURRENT_USER SERVER shard OPTIONS (SET password '$REMOTE_APP_PASSWORD')));
takes_effect(\%stage, q(DROP USER MAPPING FOR CURRENT_USER SERVER shard), '42704');
takes_effect_from_nothing(qq(CREATE USER MAPPING FOR CURRENT_USER SERVER shard OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')));

# Without a connection to close, the next use shows the effect.
sub takes_effect_from_nothing
{
	my ($sql) = @_;

	$local->safe_psql('postgres', $sql);
	return is($other->run("SELECT pgpool.exec('shard', 'select 1')"), '1', "$sql: next use succeeds");
}

# --- privileges
my ($app, $member, $guest) = map {
	my $role = $_;
	$local->safe_psql('postgres', "CREATE ROLE $role LOGIN") if $role ne 'app';
	PgpxSession->new($local, user => $role);
} qw(app member guest);
# a PUBLIC mapping that names no remote user has a pool for each local user
$remote->safe_psql('postgres', "CREATE ROLE $_ LOGIN PASSWORD '$REMOTE_APP_PASSWORD'") foreach qw(member guest);
$local->safe_psql('postgres', <<"EOT");
CREATE ROLE readers;
GRANT readers TO member;
CREATE SERVER for_public FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');
CREATE USER MAPPING FOR PUBLIC SERVER for_public OPTIONS (password '$REMOTE_APP_PASSWORD');
GRANT USAGE ON FOREIGN SERVER for_public TO readers, guest;
EOT

foreach my $case (
	[ $app, 'shard', 'app', 'REVOKE USAGE ON FOREIGN SERVER shard FROM app' ],
	[ $member, 'for_public', 'member', 'REVOKE readers FROM member' ])
{
	my ($session, $server, $user, $sql) = @$case;
	my $pid = idle_of($local, $session, $server, $user);

	closes(\%stage, $pid, $sql, "$sql: idle connection closes");
	$session->fails("SELECT pgpool.exec('$server', 'select 1')", '42501', qr/permission denied for foreign server $server/, "$sql: next use fails");
}
my $pid = idle_of($local, $guest, 'for_public', 'guest');
closes(\%stage, $pid, 'ALTER ROLE guest SUPERUSER', 'ALTER ROLE SUPERUSER: connection of the non-superuser closes');
$local->safe_psql('postgres', 'ALTER ROLE guest NOSUPERUSER');
$pid = idle_of($local, $guest, 'for_public', 'guest');
closes(\%stage, $pid, "CREATE USER MAPPING FOR guest SERVER for_public OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')",
	'CREATE USER MAPPING: connection by the PUBLIC mapping closes');
$local->safe_psql('postgres', 'DROP USER MAPPING FOR guest SERVER for_public');
$pid = idle_of($local, $guest, 'for_public', 'guest');
$guest->quit;
closes(\%stage, $pid, 'DROP OWNED BY guest; DROP ROLE guest', 'DROP ROLE: connection closes');

# --- privileges of other roles have no effect
my ($lease, $leased, $idle) = one_leased_one_idle(\%stage);
$local->safe_psql('postgres', $_)
  foreach 'GRANT USAGE ON FOREIGN SERVER shard TO readers', 'GRANT USAGE ON FOREIGN SERVER shard TO app WITH GRANT OPTION',
  'GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO readers', 'REVOKE USAGE ON FOREIGN SERVER shard FROM readers',
  'CREATE ROLE newcomer IN ROLE readers', "ALTER SERVER shard OPTIONS (SET pool_size '2')";
$holder->run("SELECT pgpool.checkin($lease)");
$_->run("SELECT pgpool.checkin(pgpool.checkout('shard'))") foreach $holder, $other;
is($local->safe_psql('postgres', "SELECT string_agg(remote_pid::text, ' ' ORDER BY remote_pid) FROM pgpool.connections WHERE server = 'shard' AND local_user = current_user"),
	join(' ', sort { $a <=> $b } $leased, $idle), 'GRANT to others and unchanged options: connections stay open');

# --- options that only a superuser may set require that the server's owner is a
# superuser
$local->safe_psql('postgres', <<"EOT");
CREATE ROLE boss SUPERUSER;
CREATE SERVER owned FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', options '-c work_mem=7MB');
ALTER SERVER owned OWNER TO boss;
CREATE USER MAPPING FOR app SERVER owned OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
GRANT USAGE ON FOREIGN SERVER owned TO app;
EOT
$pid = idle_of($local, $app, 'owned', 'app');
closes(\%stage, $pid, 'ALTER ROLE boss NOSUPERUSER', 'ALTER ROLE NOSUPERUSER of an owner: idle connection closes');
$app->fails("SELECT pgpool.exec('owned', 'select 1')", '42501', qr/permission denied to use option "options".*owner "boss" is not a superuser/s,
	'ALTER ROLE NOSUPERUSER of an owner: next use fails');
$local->safe_psql('postgres', 'ALTER ROLE boss SUPERUSER');
$pid = idle_of($local, $app, 'owned', 'app');
closes(\%stage, $pid, "ALTER SERVER owned OWNER TO CURRENT_USER", 'ALTER SERVER OWNER: idle connection closes');

# --- roles are shared by all databases: the change is made in another one
$local->safe_psql('postgres', 'CREATE DATABASE elsewhere');
foreach my $case (
	[ $app, 'shard', 'app', 'GRANT USAGE ON FOREIGN SERVER shard TO app', 'ALTER ROLE app SUPERUSER', 'ALTER ROLE app NOSUPERUSER' ],
	[ $member, 'for_public', 'member', 'GRANT readers TO member', 'REVOKE readers FROM member' ],
	[ $app, 'owned', 'app', 'ALTER SERVER owned OWNER TO boss', 'ALTER ROLE boss NOSUPERUSER' ])
{
	my ($session, $server, $user, $before, $sql, @after) = @$case;

	$local->safe_psql('postgres', $before);
	$pid = idle_of($local, $session, $server, $user);
	closes(\%stage, $pid, sub { $local->safe_psql('elsewhere', $sql) }, "$sql in another database: idle connection closes");
	$local->safe_psql('elsewhere', $_) foreach @after;
}

# --- ALTER ROLE RENAME: without option user in its mapping the role has another remote
# name
$remote->safe_psql('postgres', "CREATE ROLE $_ LOGIN PASSWORD 'of both'") foreach qw(before after);
$local->safe_psql('postgres', <<"EOT");
CREATE ROLE before LOGIN;
CREATE SERVER mine FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', pool_size '2');
CREATE USER MAPPING FOR before SERVER mine OPTIONS (password 'of both');
CREATE SERVER ours FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', pool_size '2');
CREATE USER MAPPING FOR PUBLIC SERVER ours OPTIONS (password 'of both');
GRANT USAGE ON FOREIGN SERVER mine, ours TO before;
EOT
my $renamed = PgpxSession->new($local, user => 'before');
foreach my $server (qw(mine ours))
{
	foreach my $where (qw(postgres elsewhere))
	{
		my ($from, $to) = $where eq 'postgres' ? qw(before after) : qw(after before);
		my $sql = "ALTER ROLE $from RENAME TO $to";
		my $who = "SELECT a FROM pgpool.query('$server', 'select current_user') AS t(a text)";
		my $kept = lease($renamed, $server);

		is($renamed->run($who), $from, "$server: remote user has the role's name");
		my $free = $local->safe_psql('postgres', "SELECT remote_pid FROM pgpool.connections WHERE server = '$server' AND state IN ('idle', 'reset_pending', 'resetting')");
		closes(\%stage, $free, sub { $local->safe_psql($where, $sql) }, "$sql in $where, $server: free connection closes");
		wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE remote_pid = $free", '0');

		# a new role of the old name must not see the connections, even before the next
		# use
		$local->safe_psql('postgres', "CREATE ROLE $from LOGIN");
		my $seen = "SELECT count(remote_addr) FROM pgpool.connections WHERE server = '$server'";
		is($local->safe_psql('postgres', "SET ROLE $from; $seen"), '0', "$server: new role of the old name does not see the remote address");
		is($local->safe_psql('postgres', "SET ROLE $to; $seen"), '1', "$server: renamed role sees the remote address");
		is($renamed->run($who) . $renamed->error, $to, "$sql in $where, $server: next use has the new name");
		is($local->safe_psql('postgres', "SELECT local_user FROM pgpool.pools WHERE server = '$server'"), $to, "$server: views show the new name");
		$renamed->run("SELECT pgpool.checkin($kept)");
		$local->safe_psql('postgres', "DROP ROLE $from");
	}
}
$renamed->quit;

# --- two-phase commit
($lease, $leased, $idle) = one_leased_one_idle(\%stage);
$local->safe_psql('postgres', q(BEGIN; ALTER SERVER shard OPTIONS (ADD keepalives '1'); PREPARE TRANSACTION 'two'));
ok(alive(\%stage, $idle), 'PREPARE TRANSACTION: connection stays open');
closes(\%stage, $idle, q(COMMIT PREPARED 'two'), 'COMMIT PREPARED: idle connection closes');
closes(\%stage, $leased, sub { $holder->run("SELECT pgpool.checkin($lease)") }, 'COMMIT PREPARED: leased connection closes at checkin');

# --- a transaction cannot use what it has changed before the change is committed
{
	$local->safe_psql('postgres', 'GRANT USAGE ON FOREIGN SERVER for_public TO PUBLIC');
	foreach my $case (
		[ 'pg_foreign_server', q(ALTER SERVER for_public OPTIONS (ADD pool_size '3')) ],
		[ 'pg_user_mapping', q(ALTER USER MAPPING FOR PUBLIC SERVER for_public OPTIONS (ADD user 'remote_app')) ],
		[ 'pg_authid', 'ALTER ROLE member SUPERUSER' ])
	{
		my ($catalog, $sql) = @$case;

		$other->run("BEGIN; $sql; SET LOCAL ROLE member");
		$other->fails(q(SELECT pgpool.exec('for_public', 'select 1')), '55000',
			qr/options of server "for_public" were changed in this transaction\nDETAIL:  The transaction has changed a row of $catalog\./, "$sql: server cannot be used");
		$other->run('ROLLBACK');
		is($member->run(q(SELECT pgpool.exec('for_public', 'select 1'))) . $member->error, '1', "$sql: server can be used after the rollback");
	}

	# a privilege is not an option
	is($other->run(q(BEGIN; GRANT USAGE ON FOREIGN SERVER shard TO readers; SELECT pgpool.exec('shard', 'select 1'))) . $other->error, '1', 'GRANT: server can be used before the commit');
	$other->run('ROLLBACK');

	# without its own mapping the user has that of PUBLIC
	$local->safe_psql('postgres', "CREATE USER MAPPING FOR member SERVER for_public OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')");
	$other->run('BEGIN; DROP OWNED BY member; SET LOCAL ROLE member');
	is($other->run(q(SELECT pgpool.exec('for_public', 'select 1'))) . $other->error, '1', 'DROP OWNED: session uses the mapping of PUBLIC');
	$other->run('ROLLBACK; SELECT 1');
	ok(wait_until($local, q(SELECT count(*) FROM pgpool.pools WHERE server = 'for_public'), '0'), 'DROP OWNED: the pool ends with the transaction');
	$local->safe_psql('postgres', 'DROP USER MAPPING FOR member SERVER for_public; REVOKE USAGE ON FOREIGN SERVER for_public FROM PUBLIC');
}

# --- a transaction can use what it has created
{
	my $pools = q(SELECT count(*) FROM pgpool.pools WHERE server = 'made');
	my $there = q(SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext made');
	my $server = qq(CREATE SERVER made FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');
		ALTER SERVER made OPTIONS (ADD application_name 'pgpool_ext made'));
	my $mapping = qq(CREATE USER MAPPING FOR CURRENT_USER SERVER made OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD'));
	my $made = "$server; $mapping; SELECT pgpool.exec('made', 'select 1')";

	$remote->safe_psql('remote_db', 'CREATE TABLE migrated AS SELECT 1 AS a; GRANT SELECT ON migrated TO remote_app');
	is($other->run("BEGIN; $server; $mapping; CREATE SCHEMA made; IMPORT FOREIGN SCHEMA public LIMIT TO (migrated) FROM SERVER made INTO made;"
		. 'SELECT a FROM made.migrated') . $other->error, '1', 'server is created and used in one transaction');
	is($remote->safe_psql('postgres', $there), '1', 'connection has the options of the transaction');
	$other->fails(q(SELECT pgpool.lock('made', 'a')), '55000', qr/server "made" or its user mapping was created in this transaction/, 'lock is refused');
	$other->run('ROLLBACK');
	foreach my $end ('ROLLBACK', q(PREPARE TRANSACTION 'three'), 'ROLLBACK TO a; COMMIT')
	{
		is($other->run("BEGIN; SAVEPOINT a; $made") . $other->error, '1', "$end: server can be used before it");
		$other->run($end);
		ok(wait_until($remote, $there, '0'), "$end: connection closes");
		ok(wait_until($local, $pools, '0'), "$end: the pool ends");
		$local->safe_psql('postgres', q(ROLLBACK PREPARED 'three')) if $end =~ /PREPARE/;
	}

	# changes of other sessions
	$other->run("BEGIN; $made");
	$local->safe_psql('postgres', q(ALTER SERVER bystander OPTIONS (ADD connect_timeout '8 s')));
	is($other->run(q(SELECT pgpool.exec('made', 'select 1'))) . $other->error, '1', 'server can be used after the catalog change of another session');
	my $created = $remote->safe_psql('postgres', $there =~ s/count.../max(pid)/r);
	$other->run('COMMIT');
	is($other->run(q(SELECT pgpool.exec('made', 'select 1'))) . $other->error, '1', 'server can be used after the commit');
	is($remote->safe_psql('postgres', $there =~ s/count.../max(pid)/r), $created, 'pool keeps its connection after the commit');

	# another mapping; a lease that outlives its transaction; a waiter that is terminated
	$other->run("BEGIN; DROP USER MAPPING FOR CURRENT_USER SERVER made; $mapping; SELECT pgpool.checkout('made')");
	$other->run('ROLLBACK');
	is($other->run(q(SELECT a FROM pgpool.leases AS l, pgpool.query(l.lease, 'show application_name') AS t(a text))) . $other->error,
		'pgpool_ext made', 'lease of a pool of a dropped mapping can still be used');
	is($local->safe_psql('postgres', $pools), '2', 'pool of the lease is not removed');
	$other->run('SELECT pgpool.checkin_all()');
	ok(wait_until($local, $pools, '1'), 'pool ends when the lease is returned');
	$local->safe_psql('postgres', q(SELECT pgpool.pause('made')));
	my $waiter = PgpxSession->new($local);
	my $pid = $waiter->pid;
	$waiter->start("BEGIN; DROP USER MAPPING FOR CURRENT_USER SERVER made; $mapping; SELECT pgpool.exec('made', 'select 1')");
	ok(wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE pid = $pid", '1'), 'transaction waits for its pool');
	$local->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	ok(wait_until($local, $pools, '1'), 'pool ends when the waiter is terminated');
	$waiter->finish(10);
	$local->safe_psql('postgres', 'DROP SERVER made CASCADE');
	ok(wait_until($local, $pools, '0'), 'DROP SERVER: the pool ends');
}

# --- prewarm follows changes of the options while it waits
{
	my $closed_port = PostgreSQL::Test::Cluster::get_free_port();
	# (the pool and its counters may be replaced at each change)
	my $failed = sub { scalar(() = slurp_file($local->logfile) =~ /could not connect to server "late"/g) };
	my $goes_on = sub {
		my ($name) = @_;
		my $before = $failed->();

		return ok(wait_until($local, sub { $failed->() > $before ? 1 : 0 }, '1'), $name);
	};

	make_pool($local, $remote, server => 'late', options => { port => $closed_port, pool_size => 2, retry_min => '10 ms', retry_max => '20 ms' });
	$holder->start(q(SELECT pgpool.prewarm('late', 2, '10 min')));
	$goes_on->('prewarm waits for connections that are refused');
	$local->safe_psql('postgres', q(ALTER SERVER late OPTIONS (ADD connect_timeout '3s')));
	$goes_on->('prewarm waits on after a change of an option');
	$local->safe_psql('postgres', qq(ALTER SERVER late OPTIONS (SET port '$port')));
	is($holder->finish(60) . $holder->error, '2', 'prewarm succeeds when the server has the right port');
	is($other->run(q(SELECT pgpool.exec('late', 'select 1'))) . $other->error, '1', 'another session can use the server');

	# connections with the former options occupy their slots while they close
	my @old = split /\n/, $local->safe_psql('postgres', q(SELECT remote_pid FROM pgpool.connections WHERE server = 'late'));
	kill 'STOP', @old;
	$local->safe_psql('postgres', q(ALTER SERVER late OPTIONS (ADD keepalives '1')));
	is($holder->run(q(SELECT pgpool.prewarm('late', 2, '10 min'))) . $holder->error, '2', 'prewarm waits for slots that are about to be free');
	kill 'CONT', @old;

	$local->safe_psql('postgres', qq(ALTER SERVER late OPTIONS (SET port '$closed_port')));
	$holder->start(q(SELECT pgpool.prewarm('late', 2, '10 min')));
	$goes_on->('prewarm waits again');
	$local->safe_psql('postgres', q(ALTER SERVER late OPTIONS (SET connect_timeout '4s')));
	$goes_on->('prewarm waits on after another change');
	$local->safe_psql('postgres', q(DROP USER MAPPING FOR CURRENT_USER SERVER late));
	$holder->finish(60);
	$holder->failed('42704', qr/user mapping not found/, 'prewarm fails when its user mapping is dropped');
	ok(wait_until($local, q(SELECT count(*) FROM pgpool.connections WHERE server = 'late'), '0'), 'worker stops its attempts');
}

# --- server and mapping change between the reads of the two catalogs: no mixture is
# used
$remote->safe_psql('postgres', q(CREATE ROLE newcomer LOGIN PASSWORD 'of the new one'));
make_pool($local, $remote, server => 'torn');
{
	my $reader = PgpxSession->new($local);
	my $changer = PgpxSession->new($local);
	my $pid = $reader->pid;

	$changer->run('BEGIN; LOCK TABLE pg_user_mapping');
	$changer->run(q(ALTER SERVER torn OPTIONS (SET dbname 'postgres')));
	$changer->run(q(ALTER USER MAPPING FOR CURRENT_USER SERVER torn OPTIONS (SET user 'newcomer', SET password 'of the new one')));
	is($changer->error, '', 'server and mapping change together');
	$reader->start(q(SELECT a FROM pgpool.query('torn', $$select current_user || '@' || current_database()$$) AS t(a text)));
	ok(wait_until($local, "SELECT count(*) FROM pg_locks WHERE pid = $pid AND NOT granted AND relation = 'pg_user_mapping'::regclass", '1'),
		'session reads one catalog before the change and the other one after it');
	$changer->run('COMMIT');
	is($reader->finish . $reader->error, 'newcomer@postgres', 'session connects with the new server and the new mapping');
	$_->quit foreach $reader, $changer;
}
$local->safe_psql('postgres', 'DROP SERVER torn CASCADE');

# --- back-off at one address does not apply to the next one
make_pool($local, $remote, server => 'moves', options => { port => 1, retry_min => '1h', retry_max => '1h' });
$other->fails(q{SELECT pgpool.exec('moves', 'select 1')}, '08001', qr/could not connect to server "moves"/, 'server at a wrong address fails');
$local->safe_psql('postgres', "ALTER SERVER moves OPTIONS (SET port '" . $remote->port . "')");
is($other->run(q{SELECT pgpool.exec('moves', 'select 1')}, 20) . $other->error, '1', 'attempt at the new address is made at once');
$local->safe_psql('postgres', 'DROP SERVER moves CASCADE');

# --- a dropped server that was paused leaves nothing behind
foreach my $n (1 .. 10)
{
	make_pool($local, $remote, server => "paused$n");
	$local->safe_psql('postgres', "SELECT pgpool.pause('paused$n')");
	$local->safe_psql('postgres', "BEGIN; DROP SERVER paused$n CASCADE; ROLLBACK");
	$local->safe_psql('postgres', "DROP SERVER paused$n CASCADE");
}
make_pool($local, $remote, server => 'later');
is($other->run("SELECT pgpool.exec('later', 'select 1')"), '1', 'dropped servers that were paused free their slots');
$local->safe_psql('postgres', "SELECT pgpool.pause('later'); ALTER SERVER later OPTIONS (ADD pool_size '2')");
is($other->run("SELECT pgpool.try_checkout('later', '') IS NULL"), 't', 'changed server stays paused');
$other->fails("SELECT pgpool.checkout('later', '300 ms')", '55P03', qr/paused/, 'changed server stays paused for waiters');
$local->safe_psql('postgres', 'DROP SERVER later CASCADE');

# --- a connection whose user mapping is dropped during its reset closes after the reset
my $gate = PgpxSession->new($remote, dbname => 'remote_db');
$gate->run('SELECT pg_advisory_lock(8)');
make_pool($local, $remote, server => 'sleepy', options => { pool_size => 1, min_size => 1, operation_timeout => '60 s',
		reset_command => 'select pg_advisory_xact_lock_shared(8)' });
is($other->run("SELECT pgpool.exec('sleepy', 'select 1')") . $other->error, '1', 'call succeeds before a long reset');
my $sleepy = "SELECT state FROM pgpool.connections WHERE server = 'sleepy'";
ok(wait_until($local, $sleepy, 'resetting'), 'reset is in progress');
$local->safe_psql('postgres', 'DROP USER MAPPING FOR CURRENT_USER SERVER sleepy');
is($local->safe_psql('postgres', $sleepy), 'resetting', 'reset continues while the user mapping is dropped');
$gate->run('SELECT pg_advisory_unlock(8)');
$gate->quit;
ok(wait_until($local, $sleepy, '', 60), 'connection closes when the reset ends');
$local->safe_psql('postgres', 'DROP SERVER sleepy CASCADE');

# a reset that the worker has not begun: new start commands are not sent on the old
# connection
$remote->safe_psql('remote_db', 'CREATE TABLE started (pid int DEFAULT pg_backend_pid()); GRANT ALL ON started TO remote_app');
# (The end of a session leaves a reset of this length to the worker.)
make_pool($local, $remote, server => 'busy', options => { pool_size => 1, start_commands => 'select ' . '1 + ' x 1500 . '1' });
my $leaver = PgpxSession->new($local);
$lease = lease($leaver, 'busy');
my $old = $leaver->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)");
my $worker = worker_pid($local);
kill 'STOP', $worker;
$leaver->quit;
ok(wait_until($local, "SELECT state FROM pgpool.connections WHERE server = 'busy'", 'resetting'), 'worker is about to reset a connection');
$local->safe_psql('postgres', "ALTER SERVER busy OPTIONS (SET start_commands 'insert into started default values')");
$other->start("SELECT pgpool.exec('busy', 'select 1')");
ok(wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE server = 'busy'", '1'), 'session waits with other options');
kill 'CONT', $worker;
is($other->finish(60) . $other->error, '1', 'session is granted a connection');
isnt($old, '', 'process ID of the former connection is known');
is($remote->safe_psql('remote_db', "SELECT count(*) FROM started WHERE pid = $old"), '0', 'new start commands were not sent on the old connection');
$local->safe_psql('postgres', 'DROP SERVER busy CASCADE');

# --- DROP SERVER and DROP EXTENSION
($lease, $leased) = (lease($holder, 'shard'), undef);
$leased = $local->safe_psql('postgres',
	"SELECT remote_pid FROM pgpool.connections WHERE server = 'shard' AND state = 'leased'");
$local->safe_psql('postgres', 'DROP SERVER shard CASCADE');
is($holder->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'DROP SERVER: lease stays usable');
$other->fails("SELECT pgpool.exec('shard', 'select 1')", '42704', qr/server "shard" does not exist/, 'DROP SERVER: next use fails');
closes(\%stage, $leased, sub { $holder->run("SELECT pgpool.checkin($lease)") }, 'DROP SERVER: leased connection closes at checkin');
ok(alive(\%stage, $bystander), 'connection of another server was not affected');
check_invariants($local);
stats_add_up($local);
closes(\%stage, $bystander, 'DROP EXTENSION pgpool_ext CASCADE', 'DROP EXTENSION: connections of all servers close');
$local->safe_psql('postgres', 'CREATE EXTENSION pgpool_ext');
leak_check($local, $remote);
done_testing();

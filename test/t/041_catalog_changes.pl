# Changes of the catalogs take effect when they commit, without anybody calling a
# function of ours: idle connections of the old version close, leased ones live
# until they come in, waiters get the new options.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', conf => [ 'pgpool_ext.max_pools = 8', 'pgpool_ext.log_connections = on' ]);
my $port = $remote->port;

make_pool($local, $remote, server => 'shard', options => { pool_size => 2 });
make_pool($local, $remote, server => 'bystander');
my ($holder, $other) = map { PgpxSession->new($local) } 1 .. 2;
my %stage = (local => $local, remote => $remote, holder => $holder, other => $other, server => 'shard');
$other->run("SELECT pgpool.exec('bystander', 'select 1')");
my $bystander = $local->safe_psql('postgres',
	"SELECT remote_pid FROM pgpool.connections WHERE server = 'bystander'");

# --- what changes, one by one
takes_effect(\%stage, q(ALTER SERVER shard OPTIONS (ADD start_commands 'SET geqo = off')), '');
takes_effect(\%stage, q(ALTER SERVER shard OPTIONS (ADD application_name 'pgpool_ext shard')), '');
is($remote->safe_psql('postgres', q(SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'pgpool_ext shard')),
	't', 'new connections have the new options');
takes_effect(\%stage, q(ALTER SERVER shard OPTIONS (DROP start_commands, DROP application_name)), '');
takes_effect(\%stage, q(ALTER USER MAPPING FOR CURRENT_USER SERVER shard OPTIONS (SET password 'of yesterday')), '08001');
like($other->error, qr/password authentication failed/, 'with the reason');
takes_effect_from_nothing(qq(ALTER USER MAPPING FOR CURRENT_USER SERVER shard OPTIONS (SET password '$REMOTE_APP_PASSWORD')));
takes_effect(\%stage, q(DROP USER MAPPING FOR CURRENT_USER SERVER shard), '42704');
takes_effect_from_nothing(qq(CREATE USER MAPPING FOR CURRENT_USER SERVER shard OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')));

# Where there is no connection to close, it is the next use that shows it.
sub takes_effect_from_nothing
{
	my ($sql) = @_;

	$local->safe_psql('postgres', $sql);
	return is($other->run("SELECT pgpool.exec('shard', 'select 1')"), '1', "$sql: the next use");
}

# --- what a user may
my ($app, $member, $guest) = map {
	my $role = $_;
	$local->safe_psql('postgres', "CREATE ROLE $role LOGIN") if $role ne 'app';
	PgpxSession->new($local, user => $role);
} qw(app member guest);
# a PUBLIC mapping that names no remote user has a pool for each local one
$remote->safe_psql('postgres', "CREATE ROLE $_ LOGIN PASSWORD '$REMOTE_APP_PASSWORD'") foreach qw(member guest);
$local->safe_psql('postgres', <<"EOT");
CREATE ROLE readers;
GRANT readers TO member;
CREATE SERVER everybody FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');
CREATE USER MAPPING FOR PUBLIC SERVER everybody OPTIONS (password '$REMOTE_APP_PASSWORD');
GRANT USAGE ON FOREIGN SERVER everybody TO readers, guest;
EOT

foreach my $case (
	[ $app, 'shard', 'app', 'REVOKE USAGE ON FOREIGN SERVER shard FROM app' ],
	[ $member, 'everybody', 'member', 'REVOKE readers FROM member' ])
{
	my ($session, $server, $user, $sql) = @$case;
	my $pid = idle_of($local, $session, $server, $user);

	closes(\%stage, $pid, $sql, "$sql: the idle connection closes");
	$session->fails("SELECT pgpool.exec('$server', 'select 1')", '42501', qr/permission denied for foreign server $server/, "$sql: the next use");
}
my $pid = idle_of($local, $guest, 'everybody', 'guest');
closes(\%stage, $pid, 'ALTER ROLE guest SUPERUSER', 'ALTER ROLE SUPERUSER: a connection of another identity class');
$local->safe_psql('postgres', 'ALTER ROLE guest NOSUPERUSER');
$pid = idle_of($local, $guest, 'everybody', 'guest');
closes(\%stage, $pid, "CREATE USER MAPPING FOR guest SERVER everybody OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')",
	'CREATE USER MAPPING where PUBLIC has one: the connection of PUBLIC\'s closes');
$local->safe_psql('postgres', 'DROP USER MAPPING FOR guest SERVER everybody');
$pid = idle_of($local, $guest, 'everybody', 'guest');
$guest->quit;
closes(\%stage, $pid, 'DROP OWNED BY guest; DROP ROLE guest', 'DROP ROLE: the connection closes');

# --- rights of others are no change
my ($lease, $leased, $idle) = one_leased_one_idle(\%stage);
$local->safe_psql('postgres', $_)
  foreach 'GRANT USAGE ON FOREIGN SERVER shard TO readers', 'GRANT USAGE ON FOREIGN SERVER shard TO app WITH GRANT OPTION',
  'GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO readers', 'REVOKE USAGE ON FOREIGN SERVER shard FROM readers',
  'CREATE ROLE newcomer IN ROLE readers', "ALTER SERVER shard OPTIONS (SET pool_size '2')";
$holder->run("SELECT pgpool.checkin($lease)");
$_->run("SELECT pgpool.checkin(pgpool.checkout('shard'))") foreach $holder, $other;
is($local->safe_psql('postgres', "SELECT string_agg(remote_pid::text, ' ' ORDER BY remote_pid) FROM pgpool.connections WHERE server = 'shard' AND local_user = current_user"),
	join(' ', sort { $a <=> $b } $leased, $idle), 'GRANT to others, and the same options again: the connections stay');

# --- the owner of a server may set what others may not, as long as he may
$local->safe_psql('postgres', <<"EOT");
CREATE ROLE boss SUPERUSER;
CREATE SERVER owned FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', options '-c work_mem=7MB');
ALTER SERVER owned OWNER TO boss;
CREATE USER MAPPING FOR app SERVER owned OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
GRANT USAGE ON FOREIGN SERVER owned TO app;
EOT
$pid = idle_of($local, $app, 'owned', 'app');
closes(\%stage, $pid, 'ALTER ROLE boss NOSUPERUSER', 'ALTER ROLE NOSUPERUSER of an owner: the idle connection closes');
$app->fails("SELECT pgpool.exec('owned', 'select 1')", '42501', qr/permission denied to use option "options".*owner "boss" is not a superuser/s,
	'ALTER ROLE NOSUPERUSER of an owner: the next use');
$local->safe_psql('postgres', 'ALTER ROLE boss SUPERUSER');
$pid = idle_of($local, $app, 'owned', 'app');
closes(\%stage, $pid, "ALTER SERVER owned OWNER TO CURRENT_USER", 'ALTER SERVER OWNER: the idle connection closes');

# --- roles are every database's: the change is made in another one
$local->safe_psql('postgres', 'CREATE DATABASE elsewhere');
foreach my $case (
	[ $app, 'shard', 'app', 'GRANT USAGE ON FOREIGN SERVER shard TO app', 'ALTER ROLE app SUPERUSER', 'ALTER ROLE app NOSUPERUSER' ],
	[ $member, 'everybody', 'member', 'GRANT readers TO member', 'REVOKE readers FROM member' ],
	[ $app, 'owned', 'app', 'ALTER SERVER owned OWNER TO boss', 'ALTER ROLE boss NOSUPERUSER' ])
{
	my ($session, $server, $user, $before, $sql, @after) = @$case;

	$local->safe_psql('postgres', $before);
	$pid = idle_of($local, $session, $server, $user);
	closes(\%stage, $pid, sub { $local->safe_psql('elsewhere', $sql) }, "$sql in another database: the idle connection closes");
	$local->safe_psql('elsewhere', $_) foreach @after;
}

# --- a role is renamed: without option user in its mapping it has another name at the remote
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

		is($renamed->run($who), $from, "$server: who logs in at the remote");
		my $free = $local->safe_psql('postgres', "SELECT remote_pid FROM pgpool.connections WHERE server = '$server' AND state IN ('idle', 'reset_pending', 'resetting')");
		closes(\%stage, $free, sub { $local->safe_psql($where, $sql) }, "$sql in $where, $server: the free connection closes");

		# who comes to have that name has nothing of the other's, also before the next use
		$local->safe_psql('postgres', "CREATE ROLE $from LOGIN");
		my $seen = "SELECT count(remote_addr) FROM pgpool.connections WHERE server = '$server'";
		is($local->safe_psql('postgres', "SET ROLE $from; $seen"), '0', "$server: a role that now has the old name does not see where they lead");
		is($local->safe_psql('postgres', "SET ROLE $to; $seen"), '1', "$server: the one who has been renamed does");
		is($renamed->run($who) . $renamed->error, $to, "$sql in $where, $server: the next use has the new name");
		is($local->safe_psql('postgres', "SELECT local_user FROM pgpool.pools WHERE server = '$server'"), $to, "$server: so have the views");
		$renamed->run("SELECT pgpool.checkin($kept)");
		$local->safe_psql('postgres', "DROP ROLE $from");
	}
}
$renamed->quit;

# --- in two phases: the first session that hears of it sees to it
($lease, $leased, $idle) = one_leased_one_idle(\%stage);
$local->safe_psql('postgres', q(BEGIN; ALTER SERVER shard OPTIONS (ADD keepalives '1'); PREPARE TRANSACTION 'two'));
ok(alive(\%stage, $idle), 'PREPARE TRANSACTION: nothing happens');
closes(\%stage, $idle, q(COMMIT PREPARED 'two'; SELECT 1), 'COMMIT PREPARED: the idle connection closes');
closes(\%stage, $leased, sub { $holder->run("SELECT pgpool.checkin($lease)") }, 'COMMIT PREPARED: the leased one at checkin');

# --- what a transaction has changed counts for itself, until it ends without a commit
my $moved = q(BEGIN; ALTER SERVER shard OPTIONS (ADD application_name 'pgpool_ext moved'); SELECT pgpool.exec('shard', 'select 1'));
my $there = q(SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext moved');
foreach my $end ('ROLLBACK', q(PREPARE TRANSACTION 'three'))
{
	is($other->run($moved) . $other->error, '1', "$end: its own statement goes");
	is($remote->safe_psql('postgres', $there), '1', "$end: where the change says");
	$other->run($end);
	ok(wait_until($remote, $there, '0'), "$end: no connection of it is left");
}
$local->safe_psql('postgres', q(ROLLBACK PREPARED 'three'));

# .. through a pool of its own, which is no business of those who wait for the other
{
	my $pools = q(SELECT count(*) FROM pgpool.pools WHERE server = 'shard');
	my $nobody = PostgreSQL::Test::Cluster::get_free_port();

	$local->safe_psql('postgres', q(ALTER SERVER shard OPTIONS (SET pool_size '1', ADD on_unavailable 'fail')));
	$lease = lease($holder, 'shard');
	my $waiter = PgpxSession->new($local);
	my $pid;

	$waiter->start(q(SELECT pgpool.exec('shard', 'select 1')));
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'a session waits');
	$other->run("BEGIN; ALTER SERVER shard OPTIONS (SET port '$nobody'); SELECT pgpool.exec('shard', 'select 1')");
	$other->failed('08001', qr/could not connect/, 'another one has changed the port, and finds nobody there, through a pool of its own');
	$other->run('ROLLBACK');
	ok(wait_until($local, $pools, '1'), '.. which ends with its transaction');
	is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.waiters'), '1', '.. and the first one waits as before');
	$holder->run("SELECT pgpool.checkin($lease)");
	is($waiter->finish(30) . $waiter->error, '1', '.. and is served');
	$waiter->quit;

	my $own = q(SELECT count(*) FROM pgpool.pools WHERE server IN ('shard', 'bystander'));

	$other->run(q(BEGIN; ALTER SERVER shard OPTIONS (ADD connect_timeout '8 s'); ALTER SERVER bystander OPTIONS (ADD connect_timeout '8 s')));
	is($other->run(q(SELECT pgpool.exec(s, 'select 1') FROM unnest('{shard,bystander,shard}'::text[]) AS s)) . $other->error, "1\n1\n1", 'two servers at once');
	is($local->safe_psql('postgres', $own), '4', '.. through two pools of its own');
	$other->run('ROLLBACK');
	ok(wait_until($local, $own, '2'), '.. both of which end with its transaction');

	# a lease that goes on is to what was so when it began
	$other->run($moved =~ s/pgpool.exec\('shard', 'select 1'\)/pgpool.checkout('shard') AS own/r);
	$other->run('ROLLBACK');
	is($local->safe_psql('postgres', $pools), '2', 'a lease of the transaction outlives it, and so does the pool');
	is($other->run(q(SELECT a FROM pgpool.leases AS l, pgpool.query(l.lease, 'show application_name') AS t(a text))) . $other->error,
		'pgpool_ext moved', '.. and leads where it did');
	$other->fails("$moved", '55000', qr/DETAIL:.*Lease \d+ is from another transaction of this session that had changed them/, '.. and keeps the next such transaction from a pool of its own');
	$other->run('ROLLBACK');
	$other->run('SELECT pgpool.checkin_all()');
	ok(wait_until($local, $pools, '1'), '.. until it is returned');
	is($remote->safe_psql('postgres', $there), '0', '.. and its connection closes');
	$local->safe_psql('postgres', q(ALTER SERVER shard OPTIONS (SET pool_size '2', DROP on_unavailable)));

	# whoever waits for one in vain leaves none behind
	$local->safe_psql('postgres', q(SELECT pgpool.exec('shard', 'select 1'); SELECT pgpool.pause('shard')));
	$waiter = PgpxSession->new($local);
	$pid = $waiter->pid;
	$waiter->start($moved);
	ok(wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE pid = $pid", '1'), 'a transaction waits for a pool of its own');
	$local->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	ok(wait_until($local, $pools, '1'), '.. and is terminated, and its pool goes');
	$local->safe_psql('postgres', q(SELECT pgpool.resume('shard')));
	$waiter->finish(10);

	# what was dropped is no row of one's own, but a change
	$local->safe_psql('postgres', q(ALTER USER MAPPING FOR PUBLIC SERVER everybody OPTIONS (ADD user 'remote_app')));
	$local->safe_psql('postgres', "CREATE USER MAPPING FOR CURRENT_USER SERVER everybody OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')");
	$other->run('BEGIN; DROP USER MAPPING FOR CURRENT_USER SERVER everybody');
	is($other->run(q(SELECT pgpool.exec('everybody', 'select 1'))) . $other->error, '1', "without one's own mapping it is PUBLIC's");
	$other->fails(q(SELECT pgpool.lock('everybody', 'a')), '55000', qr/options of server "everybody" were changed in this transaction/, '.. through a pool of its own, too');
	$other->run('ROLLBACK');
	ok(wait_until($local, q(SELECT count(*) FROM pgpool.pools WHERE server = 'everybody'), '0'), '.. which ends, too');
	$local->safe_psql('postgres', 'DROP USER MAPPING FOR CURRENT_USER SERVER everybody');

	# whatever drops it
	$local->safe_psql('postgres', 'GRANT USAGE ON FOREIGN SERVER everybody TO PUBLIC');
	$local->safe_psql('postgres', "CREATE USER MAPPING FOR member SERVER everybody OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')");
	$other->run('BEGIN; DROP OWNED BY member; SET LOCAL ROLE member');
	is($other->run(q(SELECT pgpool.exec('everybody', 'select 1'))) . $other->error, '1', '.. nor with DROP OWNED');
	$other->run('ROLLBACK');
	ok(wait_until($local, q(SELECT count(*) FROM pgpool.pools WHERE server = 'everybody'), '0', 20), '.. whose pool ends, too');
	$local->safe_psql('postgres', 'DROP USER MAPPING FOR member SERVER everybody');

	# what a role or the wrapper is for now is no other transaction's business either
	foreach my $own ('ALTER ROLE member SUPERUSER', 'ALTER FOREIGN DATA WRAPPER pgpool_fdw NO VALIDATOR')
	{
		$other->run("BEGIN; $own; SET LOCAL ROLE member");
		is($other->run(q(SELECT pgpool.exec('everybody', 'select 1'))) . $other->error, '1', "$own: its own statement goes");
		$other->run('ROLLBACK');
		ok(wait_until($local, q(SELECT count(*) FROM pgpool.pools WHERE server = 'everybody'), '0', 20), '.. through a pool of its own, which ends');
	}
	$local->safe_psql('postgres', 'REVOKE USAGE ON FOREIGN SERVER everybody FROM PUBLIC');
}

# --- who asks for as long as it takes asks for what is so by then
{
	my $nobody = PostgreSQL::Test::Cluster::get_free_port();
	# (the pool, with its counters, may be another one after each change)
	my $failed = sub { scalar(() = slurp_file($local->logfile) =~ /could not connect to server "late"/g) };
	my $goes_on = sub {
		my ($name) = @_;
		my $before = $failed->();

		return ok(wait_until($local, sub { $failed->() > $before ? 1 : 0 }, '1'), $name);
	};

	make_pool($local, $remote, server => 'late', options => { port => $nobody, pool_size => 2, retry_min => '10 ms', retry_max => '20 ms' });
	$holder->start(q(SELECT pgpool.prewarm('late', 2, '30 s')));
	$goes_on->('prewarm asks for connections that nobody accepts');
	$local->safe_psql('postgres', q(ALTER SERVER late OPTIONS (ADD connect_timeout '3s')));
	$goes_on->('.. under other options, too');
	$local->safe_psql('postgres', qq(ALTER SERVER late OPTIONS (SET port '$port')));
	is($holder->finish(60) . $holder->error, '2', '.. and gets them where the server is by then');
	is($other->run(q(SELECT pgpool.exec('late', 'select 1'))) . $other->error, '1', '.. and so does another session');

	# those of the former options still have their places while they close
	my @old = split /\n/, $local->safe_psql('postgres', q(SELECT remote_pid FROM pgpool.connections WHERE server = 'late'));
	kill 'STOP', @old;
	$local->safe_psql('postgres', q(ALTER SERVER late OPTIONS (SET connect_timeout '5s')));
	is($holder->run(q(SELECT pgpool.prewarm('late', 2, '30 s'))) . $holder->error, '2', 'prewarm waits for places that are about to be free');
	kill 'CONT', @old;

	$local->safe_psql('postgres', qq(ALTER SERVER late OPTIONS (SET port '$nobody')));
	$holder->start(q(SELECT pgpool.prewarm('late', 2, '30 s')));
	$goes_on->('prewarm asks again');
	$local->safe_psql('postgres', q(ALTER SERVER late OPTIONS (SET connect_timeout '4s')));
	$goes_on->('.. under other options');
	$local->safe_psql('postgres', q(DROP USER MAPPING FOR CURRENT_USER SERVER late));
	$holder->finish(60);
	$holder->failed('42704', qr/user mapping not found/, '.. and not with a mapping that is gone');
	ok(wait_until($local, q(SELECT count(*) FROM pgpool.connections WHERE server = 'late'), '0'), '.. nor does the worker go on');
}

# --- what prewarm has asked for is not there for one whose rights have gone meanwhile: be it
# still on its way then, or open before the worker has heard of it
{
	my $gate = PgpxSession->new($remote, dbname => 'remote_db');
	my $at_gate = q(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted);
	my $worker = worker_pid($local);

	make_pool($local, $remote, server => 'gated', options => { pool_size => 2, connect_timeout => '10 min',
			start_commands => 'select pg_advisory_lock_shared(7)' });
	$local->safe_psql('postgres', 'GRANT pg_signal_backend TO app; GRANT EXECUTE ON FUNCTION pgpool.prewarm TO app');
	$gate->run('SELECT pg_advisory_lock(7)');
	foreach my $when ('on its way', 'just open')
	{
		$local->safe_psql('postgres', 'GRANT USAGE ON FOREIGN SERVER gated TO app');
		$app->start(q(SELECT pgpool.prewarm('gated', 2, '20 s')));
		ok(wait_until($remote, $at_gate, '2'), "$when: prewarm has asked for connections");
		if ($when eq 'just open')
		{
			kill 'STOP', $worker;
			$gate->run('SELECT pg_advisory_unlock(7)');
			ok(wait_until($remote, q(SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/gated' AND state = 'idle'), '2'),
				"$when: which the remote lets in");
		}
		$local->safe_psql('postgres', 'REVOKE USAGE ON FOREIGN SERVER gated FROM app');
		$app->finish(60);
		$app->failed('42501', qr/permission denied for foreign server gated/, "$when: the right to the server goes, which prewarm says");
		kill 'CONT', $worker;
		ok(wait_until($local, q(SELECT count(*) FROM pgpool.connections WHERE server = 'gated'), '0', 30), "$when: and no connection stays");
		is(scalar(() = slurp_file($local->logfile) =~ /could not connect to server "gated"/g), 0, "$when: which is no failure");
		is($remote->safe_psql('postgres', $at_gate), '0', "$when: nor does one wait at the remote");
	}
	$gate->quit;
	$local->safe_psql('postgres', 'REVOKE pg_signal_backend FROM app; REVOKE EXECUTE ON FUNCTION pgpool.prewarm FROM app; DROP SERVER gated CASCADE');
}

# --- a change that comes between two rows of it: never half of each
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
		'.. between the look at one and at the other');
	$changer->run('COMMIT');
	is($reader->finish . $reader->error, 'newcomer@postgres', '.. and nobody logs in to the old one as the new one says');
	$_->quit foreach $reader, $changer;
}
$local->safe_psql('postgres', 'DROP SERVER torn CASCADE');

# --- waiters get the new options, whichever is faster, the waiter or the commit
my $rounds = 50;
my $served = 0;
$local->safe_psql('postgres', "ALTER SERVER shard OPTIONS (SET pool_size '1')");
my $ddl = PgpxSession->new($local);
my $targets = q(SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'pgpool_ext target');
my $known = $other->run($targets);
for my $round (1 .. $rounds)
{
	$lease = lease($holder, 'shard');
	$other->start("SELECT pgpool.checkout('shard', '20 s')");
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') or last;
	$ddl->run("ALTER SERVER shard OPTIONS (SET pool_size '2')");
	my $answer = $other->finish(30);
	last unless $answer =~ /^\d+$/;
	$served++;
	$_->run('SELECT pgpool.checkin_all()') foreach $holder, $other;
	$ddl->run("ALTER SERVER shard OPTIONS (SET pool_size '1')");
}
is($served, $rounds, 'a waiter gets the room that ALTER SERVER makes, every time')
  or diag($other->error);
cmp_ok($other->run($targets), '<=', $known, '.. and keeps no options that have gone');

# --- what is known of an address says nothing of the next one
make_pool($local, $remote, server => 'moves', options => { port => 1, retry_min => '1h', retry_max => '1h' });
$other->fails(q{SELECT pgpool.exec('moves', 'select 1')}, '08001', qr/could not connect to server "moves"/, 'a server at a wrong address');
$local->safe_psql('postgres', "ALTER SERVER moves OPTIONS (SET port '" . $remote->port . "')");
is($other->run(q{SELECT pgpool.exec('moves', 'select 1')}, 20) . $other->error, '1', 'at another one it is tried at once');
$local->safe_psql('postgres', 'DROP SERVER moves CASCADE');

# --- a paused server that is dropped leaves nothing behind
foreach my $n (1 .. 10)
{
	make_pool($local, $remote, server => "paused$n");
	$local->safe_psql('postgres', "SELECT pgpool.pause('paused$n')");
	$local->safe_psql('postgres', "BEGIN; DROP SERVER paused$n CASCADE; ROLLBACK");
	$local->safe_psql('postgres', "DROP SERVER paused$n CASCADE");
}
make_pool($local, $remote, server => 'later');
is($other->run("SELECT pgpool.exec('later', 'select 1')"), '1', 'paused servers that are dropped leave their places');
$local->safe_psql('postgres', "SELECT pgpool.pause('later'); ALTER SERVER later OPTIONS (ADD pool_size '2')");
is($other->run("SELECT pgpool.try_checkout('later', '') IS NULL"), 't', 'one that changes stays paused');
$other->fails("SELECT pgpool.checkout('later', '300 ms')", '55P03', qr/paused/, 'for those who wait, too');
$local->safe_psql('postgres', 'DROP SERVER later CASCADE');

# --- nor do those that can have no pool, when all are paused
$local->safe_psql('postgres', 'CREATE DATABASE files');
make_pool($local, $remote, server => 'shard', dbname => 'files');
$local->safe_psql('files', "CREATE FOREIGN DATA WRAPPER dummy; " . join ';', map { "CREATE SERVER file$_ FOREIGN DATA WRAPPER dummy" } 1 .. 10);
my $files = PgpxSession->new($local, dbname => 'files');
is($files->run('SELECT pgpool.pause(NULL)') . $files->error, '', 'pause of all servers, more than there are places for pools');
is($files->run(q(SELECT pgpool.drain(NULL, '10 s'))) . $files->error, 't', '.. and drain');
is($files->run(q(SELECT pgpool.try_checkout('shard', '') IS NULL)), 't', '.. pauses the one that has a pool');
make_pool($local, $remote, server => 'later');
is($other->run(q(SELECT pgpool.exec('later', 'select 1'))) . $other->error, '1', '.. and leaves room to others');
$local->safe_psql('postgres', 'DROP SERVER later CASCADE');
$files->run('SELECT pgpool.resume(NULL)');
$files->quit;
$local->safe_psql('postgres', 'DROP DATABASE files');

# --- nor does one whose database is dropped, of as many as can be paused
my $paused;
foreach my $database (qw(tenant1 tenant2))
{
	$local->safe_psql('postgres', "CREATE DATABASE $database");
	make_pool($local, $remote, server => "paused$_", dbname => $database) foreach 1 .. 9;
	my $tenant = PgpxSession->new($local, dbname => $database);

	if (!defined $paused)
	{
		$paused = 0;
		$paused++ while $paused < 9 && $tenant->run('SELECT pgpool.pause($$paused' . ($paused + 1) . '$$)') . $tenant->error eq '';
		ok($paused > 0 && $paused < 9, "$paused servers can be paused");
		$tenant->failed('53300', qr/too many pools\nDETAIL:  All 8 places are in use; a paused server has one, too\./, 'one more is refused');
		$tenant->fails('SELECT pgpool.pause(NULL)', '53300', qr/too many pools/, 'and all of them');
		$tenant->fails("SELECT pgpool.drain('paused9', '1 s')", '53300', qr/too many pools/, 'and to drain it');
		is($tenant->run("SELECT pgpool.resume('paused9')") . $tenant->error, '', 'it can be resumed');
	}
	else
	{
		ok(wait_until($local, sub { $tenant->run("SELECT pgpool.pause('paused' || n) FROM generate_series(1, $paused) n"); $tenant->error }, ''), 'once their database is dropped as many others can');
	}
	$tenant->quit;
	$local->safe_psql('postgres', "DROP DATABASE $database");
}

# --- a connection that is being reset when its rights go is not kept, nor reset for others
my $gate = PgpxSession->new($remote, dbname => 'remote_db');
$gate->run('SELECT pg_advisory_lock(8)');
make_pool($local, $remote, server => 'sleepy', options => { pool_size => 1, min_size => 1, operation_timeout => '60 s',
		reset_command => 'select pg_advisory_xact_lock_shared(8)' });
is($other->run("SELECT pgpool.exec('sleepy', 'select 1')") . $other->error, '1', 'a reset takes long');
my $sleepy = "SELECT state FROM pgpool.connections WHERE server = 'sleepy'";
ok(wait_until($local, $sleepy, 'resetting'), 'and goes on');
$local->safe_psql('postgres', 'DROP USER MAPPING FOR CURRENT_USER SERVER sleepy');
is($local->safe_psql('postgres', $sleepy), 'resetting', 'while the user mapping goes');
$gate->run('SELECT pg_advisory_unlock(8)');
$gate->quit;
ok(wait_until($local, $sleepy, '', 60), 'the connection closes when it ends');
$local->safe_psql('postgres', 'DROP SERVER sleepy CASCADE');

# nor is one that is being tested
make_pool($local, $remote, server => 'tested', options => { pool_size => 1, test_period => '1ms', operation_timeout => '10 min' });
my $tested = "SELECT state FROM pgpool.connections WHERE server = 'tested'";
my $quiet = $other->run(q{SELECT a FROM pgpool.query('tested', 'select pg_backend_pid()') AS t(a int)});
ok(wait_until($local, $tested, 'idle'), 'a connection is idle');
kill 'STOP', $quiet;

# in one go: it is given up after 2 s
my ($tried, $then) = split /\n/, $other->run(qq(SELECT pgpool.try_checkout('tested'); ALTER SERVER tested OPTIONS (ADD application_name 'pgpool_ext tested'); $tested));
is($tried . $other->error, '', 'a test of it takes long');
is($then, 'checking', '.. and goes on while the options change');
kill 'CONT', $quiet;
ok(wait_until($local, $tested, '', 30), '.. and the connection closes when it ends');
$local->safe_psql('postgres', 'DROP SERVER tested CASCADE');

# the worker has not begun it: what the new options say is not for the connection of the old
$remote->safe_psql('remote_db', 'CREATE TABLE started (pid int DEFAULT pg_backend_pid()); GRANT ALL ON started TO remote_app');
make_pool($local, $remote, server => 'busy', options => { pool_size => 1, reset => 'on_transfer' });
$lease = lease($holder, 'busy');
my $old = $holder->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)");
$holder->run("SELECT pgpool.exec($lease, 'SET datestyle TO german')");
my $worker = worker_pid($local);
kill 'STOP', $worker;
$holder->run("SELECT pgpool.checkin($lease)");
is($local->safe_psql('postgres', "SELECT state FROM pgpool.connections WHERE server = 'busy'"), 'resetting', 'the worker is to reset a connection');
$local->safe_psql('postgres', "ALTER SERVER busy OPTIONS (ADD start_commands 'insert into started default values')");
$other->start("SELECT pgpool.exec('busy', 'select 1')");
ok(wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE server = 'busy'", '1'), 'and somebody comes with other options');
kill 'CONT', $worker;
is($other->finish(60) . $other->error, '1', 'who is served');
isnt($old, '', 'by another connection than the old one');
is($remote->safe_psql('remote_db', "SELECT count(*) FROM started WHERE pid = $old"), '0', 'to which the new start commands were not sent');
$local->safe_psql('postgres', 'DROP SERVER busy CASCADE');

# --- the end of it all
($lease, $leased) = (lease($holder, 'shard'), undef);
$leased = $local->safe_psql('postgres',
	"SELECT remote_pid FROM pgpool.connections WHERE server = 'shard' AND state = 'leased'");
$local->safe_psql('postgres', 'DROP SERVER shard CASCADE');
is($holder->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'DROP SERVER: the lease goes on');
$other->fails("SELECT pgpool.exec('shard', 'select 1')", '42704', qr/server "shard" does not exist/, 'DROP SERVER: the next use');
closes(\%stage, $leased, sub { $holder->run("SELECT pgpool.checkin($lease)") }, 'DROP SERVER: its connection closes at checkin');
ok(alive(\%stage, $bystander), 'another server has not noticed any of this');
check_invariants($local);
stats_add_up($local);
closes(\%stage, $bystander, 'DROP EXTENSION pgpool_ext CASCADE', 'DROP EXTENSION: the connections of all its servers close');
$local->safe_psql('postgres', 'CREATE EXTENSION pgpool_ext');
leak_check($local, $remote);
done_testing();

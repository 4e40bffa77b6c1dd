# Faults while servers agree on their shares of cluster_connections: the remote server is
# full or cannot be reached, a pool is evicted while a statement is in flight, rows are
# those of an earlier life of the remote server, or are too many, the option is dropped
# meanwhile, a distributed lock needs its pings, a session cannot be cancelled.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'shares do not depend on TLS' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local', conf => ['pgpool_ext.max_pools = 3']);
my %super = (user => 'remote_super', password => $REMOTE_SUPER_PASSWORD);
my $holder = PgpxSession->new($local);
my $su = $local->safe_psql('postgres', 'SELECT current_user');
my $blocker = PgpxSession->new($remote, dbname => 'remote_db');

make_pool($local, $remote, server => 'plain', %super);
make_pool($local, $remote, server => 'other');
make_pool($local, $remote, server => 'shared', options => { cluster_connections => 8, retry_max => '200ms' });
$local->safe_psql('postgres', q{SELECT pgpool.lock_setup('plain')});

$remote->safe_psql('remote_db', 'GRANT USAGE ON SCHEMA pgpool_lock TO remote_app; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgpool_lock TO remote_app');

# Sessions for polls, because a new connection for each one would take too long.
my $watch = PgpxSession->new($local);
my $remote_watch = PgpxSession->new($remote);

sub share { return $watch->run("SELECT $_[0] FROM pgpool.cluster_shares WHERE server = 'shared'"); }

# Lock the table share_turn, and wait until the worker's statement waits for it.
sub try_block_statement
{
	my ($timeout) = @_;

	$blocker->run('BEGIN; LOCK TABLE pgpool_lock.share_turn IN EXCLUSIVE MODE');
	return wait_until($remote, sub { $remote_watch->run(q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock' AND wait_event_type = 'Lock'}) }, 1, $timeout);
}

sub block_statement
{
	my ($name) = @_;

	return ok(try_block_statement(30), "$name: statement is in flight");
}

# --- the remote server accepts no more connections
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 0');
$holder->start(q{SELECT pgpool.checkout('shared', '2 min')});
ok(wait_until($local, 'SELECT reason FROM pgpool.waiters', 'remote_full', 30), 'full remote server: session waits, and shows why');
is($local->safe_psql('postgres', q{SELECT state, last_error ~ 'too many connections for role' FROM pgpool.pools WHERE server = 'shared'}), 'remote_full|t', 'full remote server: pool shows the reason, too');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT -1');
like($holder->finish(60) . $holder->error, qr/^\d+$/, 'full remote server: waiter is granted a connection later');
$holder->run(q{SELECT pgpool.checkin_all(); SELECT pgpool.drain('shared', '10 s'); SELECT pgpool.resume('shared')});

# --- the pool whose pinger has sent a statement is evicted
my $app = PgpxSession->new($local, user => 'app');
is($holder->run(q{SELECT pgpool.exec('shared', 'SELECT 1')}) . $holder->error, '1', 'first pool of the server is used');
$holder->run(q{SELECT pgpool.drain('shared', '10 s'); SELECT pgpool.resume('shared')});
lease($app, 'shared');
lease($holder, 'plain');
block_statement('evicted pool');
is($holder->run(q{SELECT pgpool.exec('other', 'SELECT 1')}) . $holder->error, '1', 'evicted pool: another pool takes its slot');
is($holder->run(q{SELECT string_agg(server || ' ' || local_user, ', ' ORDER BY server) FROM pgpool.pools}), "other $su, plain $su, shared app", 'evicted pool: slot of the first pool is taken');
$blocker->run('COMMIT');
like($app->run(q{SELECT pgpool.checkout('shared', '20 s')}) . $app->error, qr/^\d+$/, 'evicted pool: server agrees by another pool, and opens a connection');
$_->run('SELECT pgpool.checkin_all()') foreach $app, $holder;

# --- rows of dead servers: sessions are counted only if the PID is still that of one
my $pid = $blocker->pid;
my $rows = 0;
foreach my $row (
	[ 'an earlier life of the remote server', $pid, q{'2000-01-01'}, 0 ],
	[ 'a background process', q{(SELECT min(pid) FROM pg_stat_activity WHERE backend_type = 'checkpointer')}, 'pg_postmaster_start_time()', 0 ],
	[ 'a session', $pid, 'pg_postmaster_start_time()', 1 ])
{
	my ($name, $pids, $postmaster, $left) = @$row;

	$remote->safe_psql('remote_db', qq{INSERT INTO pgpool_lock.shares (member, request, cap, weight, demand, held, pids, postmaster, since, pinged)
		VALUES ('deadbeef/1/2/@{[ ++$rows ]}', 1, 8, 1, 3, 3, ARRAY[$pids], $postmaster, 1, now())});
	ok(wait_until($local, sub { share('others') }, 3, 30), "row of $name: its connections count at first");
	ok(wait_until($local, sub { share('others') }, $left, 30), "row of $name: $left session is left");
}
$remote->safe_psql('remote_db', 'DELETE FROM pgpool_lock.shares');

# --- too many rows
$remote->safe_psql('remote_db', q{INSERT INTO pgpool_lock.shares SELECT 'deadbeef/1/2/' || i, 1, 8, 1, 0, 0, '{}', pg_postmaster_start_time(), 1, now() FROM generate_series(1, 1001) i});
ok(wait_until($local, sub { share('error') }, 'pgpool_lock.shares has more than 1000 rows: delete those of servers that no longer exist', 30), 'too many rows: pgpool.cluster_shares shows the reason');
$remote->safe_psql('remote_db', 'DELETE FROM pgpool_lock.shares');
ok(wait_until($local, sub { share('failing_since IS NULL') }, 't', 30), 'too many rows: servers agree when the rows are deleted');

# --- other servers remove the row of an idle one: that is no sign of new tables
$holder->run(q{SELECT pgpool.drain('shared', '10 s'); SELECT pgpool.resume('shared')});
$remote->safe_psql('remote_db', 'DELETE FROM pgpool_lock.shares');
like($holder->run(q{SELECT pgpool.checkout('shared', '4 s')}) . $holder->error, qr/^\d+$/, 'idle server whose row was removed opens a connection at once');
$holder->run('SELECT pgpool.checkin_all()');

# --- a free connection goes to the server that has waited longest, then by the names
my $first;

# Change the row of the other server, which shows that it is alive.
sub ping_as_other { return $remote->safe_psql('remote_db', "UPDATE pgpool_lock.shares SET request = request + 1 WHERE member = '$first'"); }

sub own_row { return $remote->safe_psql('remote_db', "SELECT $_[0] FROM pgpool_lock.shares WHERE member <> '$first'"); }

# Wait until this server has sent some more statements.
sub send_statements
{
	my ($name) = @_;
	my $request = own_row('request');

	return ok(wait_until($local, sub { ping_as_other(); own_row("request > $request + 4") }, 't', 30), $name);
}

foreach my $case ([ '0/1/2/1', 0 ], [ 'ffffffffffffffff/1/2/1', 1 ])
{
	($first, my $later) = @$case;
	my $same = "(SELECT since FROM pgpool_lock.shares WHERE member <> '$first')";

	# the connection is closed when this server has seen the row of the other one
	is($holder->run(q{SELECT pgpool.exec('shared', 'SELECT 1')}) . $holder->error, '1', 'server has an idle connection');
	$remote->safe_psql('remote_db', qq{INSERT INTO pgpool_lock.shares VALUES ('$first', 1, 1, 1, 1, 0, '{}', pg_postmaster_start_time(), 0, now())});
	ok(wait_until($local, sub { ping_as_other(); share('used') }, 0, 30), 'idle connection is closed because another server waits for the only one');
	$holder->start(q{SELECT pgpool.checkout('shared', '2 min')});
	ok(wait_until($local, sub { ping_as_other(); $local->safe_psql('postgres', 'SELECT reason FROM pgpool.waiters') }, 'server_cap', 30), 'session waits because the other server has waited longer');
	send_statements('server sends statements while the other server has waited longer');
	is(own_row('held'), 0, 'connection is left to the server that has waited longer');
	$remote->safe_psql('remote_db', "UPDATE pgpool_lock.shares SET since = $same WHERE member = '$first'");
	if (!$later)
	{
		send_statements('server sends statements while the other one has waited as long, and its name is first');
		is(own_row('held'), 0, 'connection is left to the server whose name is first');
		$remote->safe_psql('remote_db', "UPDATE pgpool_lock.shares SET since = 1000000000000 WHERE member = '$first'");
	}
	ok(wait_until($local, sub { ping_as_other(); own_row('held') }, 1, 30),
		$later ? 'server has the connection because the other one has waited as long, and its name is last' : 'server has the connection because the other one has waited for a shorter time');
	like($holder->finish(60) . $holder->error, qr/^\d+$/, 'session is granted the connection of its server');

	# both hold the only connection, as after a decrease of the cap
	$remote->safe_psql('remote_db', "UPDATE pgpool_lock.shares SET held = 1, since = $same WHERE member = '$first'");
	send_statements('server sends statements while both servers hold the only connection for as long');
	ok(wait_until($local, sub { ping_as_other(); share('share') }, $later, 30), $later ? 'server keeps the connection because the name of the other one is last' : 'server releases the connection because the name of the other one is first');
	$holder->run('SELECT pgpool.checkin_all()');
	$remote->safe_psql('remote_db', 'DELETE FROM pgpool_lock.shares');
}
$first = 'deadbeef/1/2/1';

# --- a lock keeps its pings while a statement about shares waits
$holder->run(q{SELECT pgpool.drain('shared', '10 s'); SELECT pgpool.resume('shared')});    # a slot for the pool of the lock
my $kept = 0;
foreach my $attempt (1 .. 20)
{
	my $token = $app->run(q{SELECT pgpool.lock('shared', 'short', '10 s', ttl => '2 s')});

	if ($token !~ /^\d+$/)
	{
		diag("attempt $attempt: the lock was not acquired: " . $app->error);
		next;
	}
	block_statement("lock, attempt $attempt");
	wait_until($local, sub { share('failing_since IS NOT NULL') }, 't', 30);
	$kept = $app->run("SELECT pgpool.lock_valid('shared', 'short', $token)") eq 't';
	$blocker->run('COMMIT');
	$app->run("SELECT pgpool.unlock('shared', 'short', $token)");
	wait_until($local, sub { share('failing_since IS NULL') }, 't', 30);
	last if $kept;
}
ok($kept, 'lock is kept while a statement about shares waits') or diag($app->error);
$holder->run("SELECT pgpool.drain('$_', '10 s'); SELECT pgpool.resume('$_')") foreach qw(plain other);

# --- the tables are created again: other servers enter their rows later
my $second = PgpxSession->new($local);

lease($holder, 'shared');
$remote->safe_psql('remote_db', qq{INSERT INTO pgpool_lock.shares VALUES ('$first', 1, 8, 1, 7, 7, '{}', pg_postmaster_start_time(), 0, now())});
ok(wait_until($local, sub { ping_as_other(); share('others') }, 7, 30), 'new tables: another server has the other connections');
$second->start(q{SELECT pgpool.checkout('shared', '2 min')});
ok(wait_until($local, sub { ping_as_other(); $local->safe_psql('postgres', 'SELECT reason FROM pgpool.waiters') }, 'server_cap', 30), 'new tables: session waits');
$remote->safe_psql('remote_db', "UPDATE pgpool_lock.shares SET held = 2 WHERE member <> '$first'");
send_statements('server sends statements after its row has claimed a connection of others');
is(own_row('held'), 1, 'statements correct the row that has claimed too much');
my $created = $remote->safe_psql('remote_db', 'SELECT clock_timestamp()');
$remote->safe_psql('remote_db', 'BEGIN; LOCK TABLE pgpool_lock.share_turn IN EXCLUSIVE MODE; DELETE FROM pgpool_lock.shares; UPDATE pgpool_lock.share_turn SET turn = 0; COMMIT');
like($second->finish(60) . $second->error, qr/^\d+$/, 'new tables: session is granted a connection');
is($remote->safe_psql('remote_db', "SELECT clock_timestamp() - '$created' > interval '4.9 s'"), 't', 'new tables: connection is granted after the other servers had the time to enter their rows');
$holder->run(q{SELECT pgpool.checkin_all(); SELECT pgpool.drain('shared', '10 s'); SELECT pgpool.resume('shared')});
$second->quit;

# --- the demand of a server is limited by its caps, and does not include waiters of a
# paused server
$local->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (ADD max_server_connections '2')});
my @leases = map { lease($_, 'shared') } $app, $holder;
my @waiting = map { PgpxSession->new($local, user => $_) } ($su, 'app') x 2;
$_->start(q{SELECT pgpool.checkout('shared', '2 min')}) foreach @waiting;
ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 4, 30), 'four sessions wait');
ok(wait_until($local, sub { share('demand') }, 2, 30), 'caps: demand is max_server_connections at most');
$local->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (DROP max_server_connections, ADD min_size '4'); SELECT pgpool.pause('shared')});
ok(wait_until($local, sub { share('demand') }, 2, 30), 'pause: only leases count as demand');
$local->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (DROP min_size); SELECT pgpool.resume('shared')});
like($_->finish(60) . $_->error, qr/^\d+$/, 'waiter is granted a connection after the pause') foreach @waiting;
ok(wait_until($local, sub { share('demand') }, 6, 30), 'all six leases are part of the demand after the pause');
$_->quit foreach @waiting;

# --- a session would wait for itself
$_->run('SELECT pgpool.checkin_all()') foreach $app, $holder;
$local->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (SET cluster_connections '1'); SELECT pgpool.drain('shared', '10 s'); SELECT pgpool.resume('shared')});
lease($app, 'shared');
$app->fails(q{SELECT pgpool.checkout('shared', '10 s')}, '40P01', qr/would wait for this session itself\nDETAIL:  This session holds all connections \(1\) that "cluster_connections" allows/, 'session that holds all of the cap does not wait');
$app->run('SELECT pgpool.checkin_all()');
$local->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (SET cluster_connections '8')});

# --- a session is not used before its PID is published, and ends when the share expires
my $sessions = q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND application_name LIKE 'pgpool_ext%' AND application_name <> 'pgpool_ext lock'};
$_->run('SELECT pgpool.checkin_all()') foreach $app, $holder;
$local->safe_psql('postgres', q{ALTER SERVER shared OPTIONS (ADD connect_timeout '1h', ADD checkout_timeout '0')});
my $blocked = 0;
foreach my $attempt (1 .. 60)
{
	# a share remains for a second after its use, and the statement must be blocked before its end
	lease($app, 'shared');
	$app->run('SELECT pgpool.checkin_all()');
	$holder->run(q{SELECT pgpool.drain('shared', '10 s'); SELECT pgpool.resume('shared')});
	$blocked = try_block_statement(5) && share('share > 0') eq 't';
	last if $blocked;
	$blocker->run('COMMIT');
}
ok($blocked, 'unpublished session: statement is in flight while the server has a share');
$app->start(q{SELECT pgpool.checkout('shared', '0')});
ok(wait_until($remote, sub { $remote_watch->run($sessions) }, 1, 30), 'unpublished session: remote session has logged in');
ok(wait_until($local, sub { share('failing_since IS NOT NULL') }, 't', 30), 'unpublished session: statement that publishes it has failed');
is($local->safe_psql('postgres', q{SELECT count(*) FROM pgpool.connections WHERE server = 'shared' AND state = 'leased'}), 0, 'unpublished session: connection is not leased');
ok(wait_until($remote, $sessions, 0, 30), 'unpublished session: remote session ends when the share has expired');
$app->finish(60);
like($app->error, qr/share of cluster_connections has expired: .*(?:lock timeout|did not answer in time)|cannot agree on the shares/, 'unpublished session: checkout fails with the error of the share');
$blocker->run('COMMIT');
ok(wait_until($local, sub { share('failing_since IS NULL') }, 't', 30), 'unpublished session: servers agree again');

# --- sessions that wait for the end of a pause do not fail
$local->safe_psql('postgres', q{SELECT pgpool.drain('shared', '10 s'); SELECT pgpool.resume('shared')});
ok(wait_until($local, sub { share('valid_until < clock_timestamp()') }, 't', 30), 'paused pool: share is not valid any more');
$blocker->run('BEGIN; LOCK TABLE pgpool_lock.share_turn IN EXCLUSIVE MODE');
$app->start(q{SELECT pgpool.checkout('shared', '0')});
ok(wait_until($remote, sub { $remote_watch->run(q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock' AND wait_event_type = 'Lock'}) }, 1, 30), 'paused pool: statement is in flight');
$holder->run(q{SELECT pgpool.pause('shared')});
ok(wait_until($local, sub { share('failing_since IS NOT NULL') }, 't', 30), 'paused pool: statement has failed');
$blocker->run('COMMIT');
$local->safe_psql('postgres', q{SELECT pgpool.resume('shared')});
like($app->finish(60), qr/^\d+$/, 'paused pool: session is granted a connection after the pause') or diag($app->error);
$app->run(q{SELECT pgpool.checkin_all(); SELECT pgpool.drain('shared', '10 s'); SELECT pgpool.resume('shared')});

# --- the option is dropped while a session waits until its PID is published
block_statement('dropped option');
$app->start(q{SELECT pgpool.checkout('shared', '0')});
ok(wait_until($remote, sub { $remote_watch->run($sessions) }, 1, 30), 'dropped option: remote session has logged in');
$holder->run('ALTER SERVER shared OPTIONS (DROP cluster_connections)');
like($app->finish(60), qr/^\d+$/, 'dropped option: connection is leased') or diag($app->error);
$blocker->run('COMMIT');
$app->run('SELECT pgpool.checkin_all()');

# --- the hint about the tables is given only if they are missing
make_pool($local, $remote, server => 'nowhere', options => { port => 1, cluster_connections => 8 });
$holder->fails(q{SELECT pgpool.checkout('nowhere', '10 s')}, '08001', qr/^(?!.*lock_setup).*shares of cluster_connections.*refused/s, 'unreachable server: error has the reason, and no hint about tables');

$_->quit foreach $app, $holder, $blocker, $watch, $remote_watch;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

# Connections that a running remote server refuses, or closes after the login. A remote server that accepts no more
# connections is a reason to wait: the waiters keep their queue positions and deadlines,
# existing connections are granted to them, and one attempt at a time is made, about once a
# second. A remote server that accepts logins and then closes the connections counts as a
# failed attempt to connect, with the pauses of retry_min and retry_max, although no session
# waits.
use strict;
use warnings;

use PgpxClock;
use PgpxFakeServer qw(greeting failure);
use PgpxTest qw(:DEFAULT becomes pool);
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the limits of the remote server and the back-off do not depend on TLS' if over_tls();
plan skip_all => $CLOCKS_MISSING unless can_set_clocks();

my $remote = remote_node('remote', conf => ['log_connections = on']);
my $local = local_node('local', start => 0);
with_clock($local, sub { $local->start });
my @sessions = map { PgpxSession->new($local) } 1 .. 6;

# retry_min and retry_max must not apply: pauses_are_random accepts only pauses below 2 s
make_pool($local, $remote, server => 'shard1', options => { pool_size => 5, retry_min => '1min', retry_max => '1min' });
make_pool($local, $remote, server => 'shard2', options => { pool_size => 5, retry_min => '1min', retry_max => '1min' });
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 2');

sub waiting
{
	return $local->safe_psql('postgres', q{SELECT string_agg(pid || ' ' || reason, ',' ORDER BY position) FROM pgpool.waiters});
}

sub refusals { return scalar(() = slurp_file($remote->logfile) =~ /too many connections for role "remote_app"/g); }

# --- existing connections are granted to the waiters, in order
my @leases = map { lease($_, 'shard1') } @sessions[ 0, 1 ];
my $since = 'unavailable_since, remote_full_since';
my ($mark, $full);
is(pool('shard1', $since), '|', 'pool shows no reason not to connect');
foreach my $n (2 .. 4)
{
	$sessions[$n]->start("SELECT pgpool.checkout('shard1', '1 h')");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', $n - 1), "session $n waits");

	# later attempts follow the first refusal
	ok(wait_until($local, sub { pool('shard1', 'state') }, 'remote_full'), 'pool shows that the remote server is full');
	($mark, $full) = (-s $remote->logfile, pool('shard1', $since)) if $n == 2;
}
ok(wait_until($local, sub { refusals() >= 2 ? 1 : 0 }, 1), 'worker tries again, although the pause of an outage is a minute');
is(waiting(), join(',', map { $_->pid . ' remote_full' } @sessions[ 2 .. 4 ]), 'waiters show that the remote server is full');
is(pool('shard1', 'state, unavailable_since IS NULL, remote_full_since <= last_error_at'), 'remote_full|t|t', 'pool shows that the remote server is full, and since when');
like(pool('shard1', 'last_error'), qr/too many connections for role "remote_app"/, 'pool shows the message of the remote server');

# The beginnings and ends of the attempts.
sub attempts { return join '', map { /received/ ? 'b' : 'e' } slurp_file($remote->logfile, $mark) =~ /(connection received: host=127|FATAL:)/g; }

# Assert that the pauses between the attempts of a pool differ.
sub pauses_are_random
{
	my ($server) = @_;
	my %pauses;

	ok( wait_until($local, sub {
				my ($at, $pause) = split /\|/, pool($server, q{last_error_at, extract(epoch FROM next_try_at - last_error_at)});

				let_time_pass($local, 2), $pauses{$at} = $pause if ($pause // 2) < 2 && !$pauses{$at};
				return keys %pauses >= 6 ? 1 : 0;
			}, 1), "$server: several attempts are made");
	my @pauses = sort { $a <=> $b } values %pauses;
	return cmp_ok($pauses[-1] - $pauses[0], '>', 0.01, "$server: pauses between attempts are random") || diag("@pauses");
}

pauses_are_random('shard1');
like(attempts(), qr/^e?(?:be){5,}b?$/, 'one attempt is made at a time');
is(pool('shard1', $since), $full, 'remote server is full since the first refused attempt');
is(scalar(() = slurp_file($local->logfile) =~ /LOG:  pgpool_ext waits because server "shard1" of database "postgres" accepts no more connections for user/g),
	1, 'log reports once, for all attempts, that the remote server accepts no more connections')
  or diag(slurp_file($local->logfile));
$sessions[0]->run("SELECT pgpool.checkin($leases[0])");
like($sessions[2]->finish(30), qr/^\d+$/, 'connection that is returned is granted to the first waiter');
is(waiting(), join(',', map { $_->pid . ' remote_full' } @sessions[ 3, 4 ]), 'other waiters keep their queue positions');

# --- notice_after: each checkout sends one NOTICE
$local->safe_psql('postgres', "ALTER SERVER shard1 OPTIONS (ADD notice_after '50 ms')");
my $noticed = PgpxSession->new($local);

# Cancel a statement that waits when it has raised a notice.
sub cancel_after_notice
{
	my ($session, $sql) = @_;

	$session->start($sql);
	ok(wait_until($local, sub { $session->done || $session->error =~ /still waiting/ ? 1 : 0 }, 1), 'session has received a notice');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish;
	return;
}
cancel_after_notice($noticed, q{SELECT pgpool.checkout('shard1', '1 h')});
is(scalar(() = $noticed->error =~ /NOTICE:  (?:00000: )?still waiting for a connection to server "shard1" after \d+ ms\nDETAIL:  .*accepted no more connections/g), 1,
	'NOTICE appears once, with the reason of the wait') or diag($noticed->error);
$local->safe_psql('postgres', 'ALTER SERVER shard1 OPTIONS (DROP notice_after)');
$noticed->fails("SELECT pgpool.checkout('shard1', '200 ms')", '55P03', qr/\A(?!.*still waiting)/s, 'no NOTICE is raised without notice_after');

# --- a timeout names the cause
$sessions[5]->fails("SELECT pgpool.checkout('shard1', '100 ms')", '55P03',
	qr/no connection to server "shard1" became available within 100 ms\nDETAIL:  2 of \d connections are leased.* The remote server has accepted no more connections for [\d.]+ s: .*too many connections for role "remote_app"\nHINT:  Raise the limit of connections on the remote server/,
	'error of a timeout reports that the remote server is full');
is($sessions[5]->run("SELECT pgpool.try_checkout('shard1') IS NULL"), 't', 'checkout without wait returns NULL');

# --- another pool of the server that shares the remote's limit
$sessions[5]->start("SELECT pgpool.checkout('shard2', '1 h')");
ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'shard2' AND reason = 'remote_full'}, '1'),
	'pool without a connection waits, too');
is(pool('shard2', 'state, total - connecting'), 'remote_full|0', 'pool without a connection is shown as remote_full');
pauses_are_random('shard2');
$sessions[1]->run("SELECT pgpool.discard($leases[1])");
ok( wait_until($local, q{SELECT count(*) FROM pgpool.waiters}, '2'),
	'connection that closes makes room for one of the waiters');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT -1');
like($_->finish(30), qr/^\d+$/, 'waiter is granted a connection when the limit is raised') foreach @sessions[ 3, 4, 5 ];
ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE remote_full_since IS NOT NULL OR unavailable_since IS NOT NULL OR state = 'remote_full'}, '0'),
	'pools show that the remote server is not full any more');
$_->run('SELECT pgpool.checkin_all()') foreach @sessions;

# --- a limit of zero: no connection exists, and the sessions wait nevertheless
is($local->safe_psql('postgres', "SELECT pgpool.drain(NULL, '30 s')"), 't', 'pools are drained');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'", '0'), 'remote server has no session of the pools');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 0');
$local->safe_psql('postgres', 'SELECT pgpool.resume()');
$_->run(q{SET pgpool_ext.checkout_timeout = '10min'}) foreach @sessions[ 0, 3 ];
$sessions[0]->start(q{SELECT a FROM pgpool.query('shard1', 'select 1') AS t(a int)});
ok(wait_until($local, q{SELECT reason FROM pgpool.waiters}, 'remote_full'), 'statement waits while the remote server accepts no connection');
$sessions[1]->fails("SELECT pgpool.checkout('shard1', '200 ms')", '55P03', qr/accepted no more connections/,
	'later session waits, too, until its timeout');

# statements on foreign tables wait, too
my $tables = $local->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'});
SKIP:
{
	skip 'postgres_fdw is not installed', 3 if !$tables;
	$remote->safe_psql('remote_db', 'CREATE TABLE public.t (a int); GRANT ALL ON t TO remote_app');
	$local->safe_psql('postgres', q{CREATE FOREIGN TABLE t (a int) SERVER shard1 OPTIONS (schema_name 'public')});
	$sessions[2]->run(q{SET pgpool_ext.checkout_timeout = '200 ms'});
	$sessions[2]->fails($_, '55P03', qr/accepted no more connections/, "foreign table waits, too, until its timeout: $_") foreach 'SELECT a FROM t', 'INSERT INTO t VALUES (1)';
	$sessions[3]->start('INSERT INTO t VALUES (2); SELECT a FROM t');
	ok(wait_until($local, q{SELECT string_agg(reason, ',') FROM pgpool.waiters}, 'remote_full,remote_full'), 'foreign table waits while the remote server accepts no connection');
}

# the worker restarts, and the sessions still wait
terminate($local, worker_pid($local));
ok( wait_until($local, sub { ($local->safe_psql('postgres', q{SELECT string_agg(reason, ',') FROM pgpool.waiters}) // '') eq ($tables ? 'remote_full,remote_full' : 'remote_full') && pool('shard1', 'remote_full_since IS NOT NULL') eq 't' ? 1 : 0 }, 1, 60),
	'statements still wait after a restart of the worker');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT -1');
is($sessions[0]->finish(30), '1', 'statement runs when there is room');
is($sessions[3]->finish(30) . $sessions[3]->error, '2', 'statement on a foreign table runs, too') if $tables;

is($local->safe_psql('postgres', "SELECT pgpool.drain(NULL, '30 s')"), 't', 'pools are drained again');
$local->safe_psql('postgres', 'SELECT pgpool.resume()');

# --- two local servers share what the remote server allows
my $second_local = local_node('second');
make_pool($second_local, $remote, server => 'shard1', options => { pool_size => 5, retry_min => '1min', retry_max => '1min' });
my $guest = PgpxSession->new($second_local);
my $in_turn = q{SELECT a FROM pgpool.query('shard1', 'select 1') AS t(a int)};
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 1');
foreach my $turn ([ 'second', $sessions[0], $guest, $second_local ], [ 'first', $guest, $sessions[0], $local ])
{
	my ($name, $holder, $waiter, $node) = @{$turn};
	my $lease = lease($holder, 'shard1');

	$waiter->start($in_turn);
	ok(wait_until($node, 'SELECT reason FROM pgpool.waiters', 'remote_full'), "$name server waits while the other one has all connections");
	$holder->run("SELECT pgpool.discard($lease)");
	is($waiter->finish(60) . $waiter->error, '1', "$name server is granted a connection when the other one has closed its own");
	$waiter->run(q{SELECT pgpool.discard(pgpool.checkout('shard1'))});
}
$guest->quit;
stats_add_up($second_local);
check_invariants($second_local);
leak_check($second_local);

# --- an outage is no reason to wait
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 1');
@leases = (lease($sessions[0], 'shard1'));
$sessions[1]->start("SELECT pgpool.checkout('shard1', '5 min')");
ok(wait_until($local, q{SELECT reason FROM pgpool.waiters}, 'remote_full'), 'session waits again');
$remote->stop('immediate');
$sessions[1]->finish(30);
is($sessions[1]->sqlstate, '08001', 'waiter of a full server fails when the server cannot be reached at all') or diag($sessions[1]->error);
is(pool('shard1', 'remote_full_since IS NULL, unavailable_since IS NOT NULL'), 't|t', 'pool is shown as unavailable after the outage');
$sessions[0]->run('SELECT pgpool.checkin_all()');
$remote->start;
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT -1');

# --- limits of a real server: of the database, and of the server
make_pool($local, $remote, server => 'limits', options => { pool_size => 2, retry_min => '1min', retry_max => '1min' });
my ($most) = $remote->safe_psql('postgres', 'SHOW max_connections');
my @others;
foreach my $limit (
	[ 'of the database', sub { $remote->safe_psql('postgres', 'ALTER DATABASE remote_db CONNECTION LIMIT 0') }, sub { $remote->safe_psql('postgres', 'ALTER DATABASE remote_db CONNECTION LIMIT -1') }, qr/too many connections for database "remote_db"/ ],
	[ 'of the server, except for superusers', \&fill_server, sub { $_->quit foreach splice @others }, qr/remaining connection slots are reserved/ ])
{
	my ($name, $fill, $free, $message) = @{$limit};

	$fill->();
	$sessions[2]->start(q{SELECT pgpool.checkout('limits', '5 min')});
	ok(wait_until($local, q{SELECT reason FROM pgpool.waiters}, 'remote_full'), "session waits at the limit $name") or diag(pool('limits', 'last_error'));
	like(pool('limits', 'last_error'), $message, 'pool shows the message of the remote server');
	$free->();
	my $lease = $sessions[2]->finish(120);
	like($lease, qr/^\d+$/, 'session is granted a connection when there is room') or diag($sessions[2]->error);
	$sessions[2]->run("SELECT pgpool.discard($lease)");
}
$remote->adjust_conf('postgresql.conf', 'max_connections', $most);
$remote->restart;

# of the three connections two are for superusers, and a superuser has the third one, until
# it quits (a restart would be an outage, which fails the waiter)
sub fill_server
{
	$remote->append_conf('postgresql.conf', "max_connections = 3\nsuperuser_reserved_connections = 2");
	$remote->restart;
	@others = (PgpxSession->new($remote));
	return;
}

# --- notice_after: a foreign table that waits for a lease, and a checkout of a paused server
make_pool($local, $remote, server => 'noticed', options => { pool_size => 1, notice_after => '50 ms', checkout_timeout => '1min' });
$local->safe_psql('postgres', q{CREATE FOREIGN TABLE remote_classes (oid oid) SERVER noticed OPTIONS (schema_name 'pg_catalog', table_name 'pg_class')});
my $lease = lease($sessions[3], 'noticed');
my $notice = qr/NOTICE:  (?:00000: )?still waiting for a connection to server "noticed"/;
$sessions[4]->run(q{SET pgpool_ext.checkout_timeout = '1h'});
cancel_after_notice($sessions[4], q{SELECT count(*) FROM remote_classes});
$sessions[4]->failed('57014', qr/$notice after \d+ ms\nDETAIL:  1 of 1 connections are leased and 0 other sessions wait;/, 'foreign table that waits for a lease raises the notice');
$sessions[3]->run("SELECT pgpool.checkin($lease)");
$local->safe_psql('postgres', q{SELECT pgpool.pause('noticed')});
cancel_after_notice($sessions[4], q{SELECT pgpool.checkout('noticed')});
$sessions[4]->failed('57014', qr/$notice after \d+ ms\nDETAIL:  The server is paused/, 'checkout that waits for the end of a pause raises the notice');
$local->safe_psql('postgres', q{SELECT pgpool.resume('noticed')});

# --- the timeout of a role is followed
$local->safe_psql('postgres', q{ALTER ROLE app SET pgpool_ext.checkout_timeout = '123ms'});
my $app = PgpxSession->new($local, user => 'app');
$lease = lease($app, 'noticed');
my $second = PgpxSession->new($local, user => 'app');
$second->fails(q{SELECT pgpool.checkout('noticed')}, '55P03', qr/became available within 123 ms/, 'setting of the role limits the wait');
$_->quit foreach $app, $second;
$local->safe_psql('postgres', q{ALTER ROLE app RESET pgpool_ext.checkout_timeout});

# --- PgBouncer sends SQLSTATE 08P01 with every error
my $fake = PgpxFakeServer->new(
	map {
		my $text = $_->[1];
		$_->[0] => { login => sub { $_[0]->send(greeting(), failure(S => 'FATAL', V => 'FATAL', C => '08P01', M => $text)) } }
	} [ bouncer => 'no more connections allowed (max_client_conn)' ],
	[ behind => 'server login has been failing, cached error: sorry, too many clients already (server_login_retry)' ],
	[ wrong => 'no such database: too_many_clients' ]);
foreach my $name (qw(bouncer behind wrong))
{
	make_pool($local, $fake, server => "by_$name", remote_dbname => $name, options => { sslmode => PgpxFakeServer::sslmode() });
}
foreach my $name (qw(bouncer behind))
{
	$sessions[0]->start("SELECT pgpool.checkout('by_$name', '5 min')");
	ok(wait_until($local, q{SELECT reason FROM pgpool.waiters}, 'remote_full'), "message of PgBouncer means that it is full: $name");
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $sessions[0]->pid . ')');
	$sessions[0]->finish(30);
}
$sessions[0]->fails("SELECT pgpool.checkout('by_wrong', '5 min')", '08001', qr/no such database/, 'another message with this SQLSTATE is an error');

# ---------- logins that are accepted, and connections that are then closed
{
	my $session = PgpxSession->new($local);

	# Assert that columns of a pool become as expected, while the pauses between attempts pass.
	sub passes
	{
		my ($server, $columns, $expected, $name) = @_;

		return ok( wait_until($local, sub {
					let_time_pass($local, 5) if pool($server, 'next_try_at > clock_timestamp()') eq 't';
					return pool($server, $columns);
				}, $expected), "$server: $name");
	}

	$remote->safe_psql('postgres', q{ALTER ROLE remote_app SET idle_session_timeout = '1ms'});

	# the first pause does not end during the test
	make_pool($local, $remote, server => 'once', options => { pool_size => 20, min_size => 20, retry_min => '1h', retry_max => '1h' });
	$session->run("SELECT pgpool.prewarm('once', 20, '1 ms')");
	becomes('once', q{total, next_try_at > now() + '30 min'}, '0|t', 'worker pauses after connections have been closed');
	becomes('once', 'connects <= 20, connects_failed > 0, connects_failed <= connects, closed_broken = connects', 't|t|t|t', 'closed connections count as failed attempts');
	becomes('once', 'last_error', 'The remote server closed the connection before it was used.', 'last_error has the reason');
	is_logged($local, 0, qr/LOG:  pgpool_ext lost an unused connection to server "once" of database "postgres" for user "postgres"/, 'closed connections are logged');

	# the attempts continue after pauses, and the pool recovers
	make_pool($local, $remote, server => 'twice', options => { pool_size => 1, min_size => 1, retry_min => '500ms', retry_max => '500ms' });
	$session->run("SELECT pgpool.prewarm('twice', 1, '1 ms')");
	passes('twice', 'connects_failed > 1', 't', 'attempts continue');
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app RESET idle_session_timeout');
	passes('twice', 'idle, next_try_at IS NULL', '1|t', 'pool recovers');
	is($session->run("SELECT pgpool.exec('twice', 'select 1')") . $session->error, '1', 'twice: pool works');

	# a single connection that is lost before its first lease delays a call, which succeeds
	make_pool($local, $remote, server => 'idle', options => { pool_size => 1, min_size => 1 });
	is($session->run("SELECT pgpool.prewarm('idle', 1, '60 s')"), '1', 'idle: connection is opened');
	my $pid = $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 'idle'});
	terminate($remote, $pid);
	is($session->run("SELECT pgpool.exec('idle', 'select 1')") . $session->error, '1', 'idle: call waits for another connection');
	is($local->safe_psql('postgres', q{SELECT unavailable + failed FROM pgpool.stats WHERE server = 'idle'}), '0', 'idle: no call failed');

	# the pauses grow, although another connection is open or in use: the third one is longer
	# than 1500 ms
	make_pool($local, $remote, server => 'kept', options => { pool_size => 2, min_size => 2, retry_min => '500ms', retry_max => '1h' });
	is($session->run("SELECT pgpool.prewarm('kept', 2, '60 s')"), '2', 'kept: connections are opened');
	is($session->run("SELECT pgpool.exec('kept', 'select 1')"), '1', 'kept: one connection is in use');

	sub pauses_grow
	{
		my ($in_use, $name) = @_;
		my $failed = $local->safe_psql('postgres', q{SELECT connects_failed FROM pgpool.stats WHERE server = 'kept'});

		terminate($remote, $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 'kept' AND last_used = opened_at}));
		foreach (1 .. 3)
		{
			is($session->run("SELECT pgpool.exec('kept', 'select 1')"), '1', 'kept: the older connection works') if $in_use;
			passes('kept', 'connects_failed >= ' . ++$failed, 't', "failure $_");
		}
		becomes('kept', q{next_try_at - last_error_at > '1 s'}, 't', $name);
	}

	$remote->safe_psql('postgres', q{ALTER ROLE remote_app SET idle_session_timeout = '1ms'});
	pauses_grow(0, 'pauses grow while an older connection is open');
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app RESET idle_session_timeout');
	passes('kept', 'idle, next_try_at IS NULL', '2|t', 'pool recovers');
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app NOLOGIN');
	pauses_grow(1, 'pauses grow while an older connection is used');
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app LOGIN');
	passes('kept', 'idle, next_try_at IS NULL', '2|t', 'pool recovers again');

	# a connection that was open at the last loss and is lost after its pause begins another
	# pause: else each loss would be followed by an attempt at once
	make_pool($local, $remote, server => 'late', options => { pool_size => 2, retry_min => '10s' });
	is($session->run("SELECT pgpool.prewarm('late', 2, '60 s')"), '2', 'late: connections are opened');
	my $paused = 'next_try_at > clock_timestamp()';
	foreach (split /\n/, $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 'late'}))
	{
		terminate($remote, $_);
		becomes('late', $paused, 't', 'loss begins a pause');
		let_time_pass($local, 60);
		becomes('late', $paused, 'f', 'pause ends');
	}

	# the loss of an unused connection does not hide the message about the outage
	$local->safe_psql('postgres', q{SELECT pgpool.drain('idle', '60 s')});
	$local->safe_psql('postgres', q{SELECT pgpool.resume('idle')});
	is($session->run("SELECT pgpool.prewarm('idle', 1, '60 s')"), '1', 'idle: another connection is opened');
	my $from = -s $local->logfile;
	$remote->stop('immediate');
	becomes('idle', 'unavailable_since IS NOT NULL', 't', 'remote server is down');
	ok( wait_until($local, sub {
				let_time_pass($local, 5) if pool('idle', 'next_try_at > clock_timestamp()') eq 't';
				return slurp_file($local->logfile, $from) =~ /LOG:  pgpool_ext cannot connect to server "idle"/ ? 1 : 0;
			}, 1), 'outage is logged');
	$remote->start;
}

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

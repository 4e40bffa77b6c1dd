# Sessions that hold connections and wait for each other's: the session that began to
# wait last fails with 40P01 after deadlock_timeout, and the other sessions continue. All
# checkout timeouts are far longer than the test.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'deadlocks do not depend on TLS' if over_tls();

my @conf = ("deadlock_timeout = '100ms'", "pgpool_ext.checkout_timeout = '1h'", "statement_timeout = '150s'", 'log_min_messages = debug1');
my $remote = remote_node('remote');
my $local = local_node('local', conf => \@conf);

make_pool($local, $remote, server => $_, options => { pool_size => 1 }) foreach qw(a b c);
make_pool($local, $remote, server => 'two', options => { pool_size => 2 });

my @s = map { PgpxSession->new($local) } 0 .. 3;

# Lease connections until the end of the transaction, so that an error returns them.
sub begin_with
{
	my ($session, @servers) = @_;

	$session->run('BEGIN');
	foreach my $server (@servers)
	{
		$session->run("SELECT pgpool.checkout_xact('$server')");
		is($session->error, '', "session leases a connection of $server");
	}
	return;
}

# Start a checkout, and check that it waits in the queue.
sub waits
{
	my ($session, $server, $node) = @_;

	$node //= $local;
	my $pid = $session->pid;

	$session->start("SELECT pgpool.checkout_xact('$server') > 0");
	ok(wait_until($node, "SELECT server FROM pgpool.waiters WHERE pid = $pid", $server), "session waits for a connection of $server");
	return;
}

# Start the wait that completes the deadlock; $sql: another statement than a checkout.
sub is_victim
{
	my ($session, $server, $lines, $name, $sql) = @_;

	$session->run($sql // "SELECT pgpool.checkout_xact('$server')");
	my ($detail) = $session->error =~ /^DETAIL:  (.*?)\nHINT/ms;

	$session->failed('40P01', qr/deadlock detected while waiting for a connection to server "$server"$/m, $name);
	is($detail, join("\n", @$lines), 'error detail lists each wait');
	return;
}

sub continues
{
	my ($session, $name) = @_;

	is($session->finish . $session->error, 't', $name);
	return;
}

# Sessions that wait have checked for a deadlock since, and found none.
sub find_none
{
	my ($name, @sessions) = @_;
	my $since = -s $local->logfile;
	my $checked = sub { my $log = slurp_file($local->logfile, $since); return scalar grep { my $pid = $_->pid; $log =~ /\[$pid\].*found no deadlock/ } @sessions; };

	ok(wait_until($local, $checked, scalar @sessions), "$name: each session checks for a deadlock");
	is(join(' ', map { $_->done } @sessions), join(' ', map { 0 } @sessions), $name);
	return;
}

sub line
{
	my ($session, $what, @holders) = @_;

	return 'Process ' . $session->pid . " waits for a connection of $what; held by process" . (@holders > 1 ? 'es' : '') . ' '
	  . join(', ', map { $_->pid } @holders) . '.';
}

sub end_all
{
	$_->run('ROLLBACK') foreach @s;
	return is($local->safe_psql('postgres', 'SELECT sum(leased), sum(waiters) FROM pgpool.pools'), '0|0', 'no leases and no waiters are left');
}

# Each circle has a lease of a foreign table, and the wait of a foreign table, of a call
# with the name of a server, or of a checkout. A call whose statement was not sent can be
# the victim.
sub mixed_circles
{
	my %hold = (
		table => sub { "SELECT count(*) > 0 FROM far_$_[0]" },
		checkout => sub { "SELECT pgpool.checkout_xact('$_[0]') > 0" });
	my %wait = (%hold, query => sub { "SELECT a FROM pgpool.query('$_[0]', 'SELECT true') AS t(a bool)" }, exec => sub { "SELECT pgpool.exec('$_[0]', 'SELECT 1') = 1" });
	my @waits = sort keys %wait;

	$local->safe_psql('postgres', q{CREATE FOREIGN TABLE far_c (relname name) SERVER c OPTIONS (schema_name 'pg_catalog', table_name 'pg_class')});
	foreach my $n (0 .. $#waits)
	{
		# two sessions: both kinds of leases, each kind of wait as the victim's and as the other one's
		my ($first, $victim) = @waits[ $n, ($n + 1) % @waits ];
		my @holds = $n % 2 ? qw(table checkout) : qw(checkout table);

		$s[0]->run('BEGIN; ' . $hold{ $holds[0] }->('a'));
		$s[1]->run('BEGIN; ' . $hold{ $holds[1] }->('b'));
		$s[0]->start($wait{$first}->('b'));
		ok(wait_until($local, 'SELECT server FROM pgpool.waiters', 'b'), "$first waits for a connection");
		is_victim($s[1], 'a', [ line($s[1], 'server "a"', $s[0]), line($s[0], 'server "b"', $s[1]) ], "$victim completes a deadlock with $first", $wait{$victim}->('a'));
		continues($s[0], "$first is granted the victim's connection");
		end_all();
	}

	# three sessions, and one behind the circle
	$s[0]->run('BEGIN; ' . $hold{table}->('a'));
	$s[1]->run('BEGIN; ' . $hold{checkout}->('b'));
	$s[2]->run('BEGIN; ' . $hold{table}->('c'));
	$s[0]->start($wait{query}->('b'));
	ok(wait_until($local, q{SELECT string_agg(server, ' ' ORDER BY server) FROM pgpool.waiters}, 'b'), 'query waits for a connection');
	$s[1]->start($wait{table}->('c'));
	ok(wait_until($local, q{SELECT string_agg(server, ' ' ORDER BY server) FROM pgpool.waiters}, 'b c'), 'foreign table waits for a connection');
	$s[3]->start($wait{exec}->('c'));
	ok(wait_until($local, q{SELECT string_agg(server, ' ' ORDER BY server) FROM pgpool.waiters}, 'b c c'), 'session without a lease waits behind the circle');
	is_victim($s[2], 'a', [ line($s[2], 'server "a"', $s[0]), line($s[0], 'server "b"', $s[1]), line($s[1], 'server "c"', $s[2]) ],
		'foreign table completes a circle of a query and a foreign table', $wait{table}->('a'));
	like($s[2]->error, qr/HINT:  Roll back the local transaction/, 'hint names the local transaction of foreign tables');
	continues($s[1], q{session of the circle is granted the victim's connection});
	is(join(' ', map { $_->done } @s[ 0, 3 ]), '0 0', 'other sessions still wait');
	$s[1]->run('COMMIT');
	continues($s[3], 'session behind the circle is granted its connection');
	continues($s[0], 'query is granted its connection');
	end_all();

	return;
}

sub deadlocks
{
	return $local->safe_psql('postgres', q{SELECT string_agg(server || ' ' || deadlocks, ',' ORDER BY server) FROM pgpool.stats WHERE deadlocks > 0});
}

# --- two sessions, two pools of one
begin_with($s[0], 'a');
begin_with($s[1], 'b');
waits($s[0], 'b');
is_victim($s[1], 'a', [ line($s[1], 'server "a"', $s[0]), line($s[0], 'server "b"', $s[1]) ], 'session that completes a cycle of two fails with 40P01');
continues($s[0], q{first session is granted the victim's connection});
end_all();

# a session lease outlives the error, until it is returned
my $kept = lease($s[1], 'b');
begin_with($s[0], 'a');
waits($s[0], 'b');
is_victim($s[1], 'a', [ line($s[1], 'server "a"', $s[0]), line($s[0], 'server "b"', $s[1]) ], 'session that holds a session lease fails with 40P01');
is($s[0]->done, 0, 'first session still waits');
$s[1]->run("SELECT pgpool.checkin($kept)");
continues($s[0], 'first session is granted the connection once the victim has returned it');
end_all();

# --- the views during a deadlock, and the cancel of one of its sessions
$_->run("SET deadlock_timeout = '1h'") foreach @s[ 0, 1 ];
begin_with($s[0], 'a');
begin_with($s[1], 'b');
waits($s[0], 'b');
waits($s[1], 'a');
is( $local->safe_psql('postgres', <<'EOT'),
SELECT w.server, w.reason, count(*) FROM pgpool.waiters w JOIN pgpool.leases l ON l.server = w.server JOIN pgpool.waiters h ON h.pid = l.pid
	GROUP BY 1, 2 ORDER BY 1
EOT
	"a|full|1\nb|full|1", 'views show that each session waits for a lease of the other one');
check_invariants($local, 'invariants hold in a deadlock');
is(join(' ', map { $_->done } @s[ 0, 1 ]), '0 0', 'both sessions wait');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $s[0]->pid . ')');
$s[0]->finish;
$s[0]->failed('57014', qr/user request/, 'canceled session fails with 57014');
continues($s[1], 'other session is granted its connection');
$_->run('ROLLBACK; RESET deadlock_timeout') foreach @s[ 0, 1 ];
end_all();

# --- without a timeout, with one lease each in a pool of two
$_->run("SET pgpool_ext.checkout_timeout = 0") foreach @s[ 0, 1 ];
begin_with($_, 'two') foreach @s[ 0, 1 ];
waits($s[0], 'two');
is_victim($s[1], 'two', [ line($s[1], 'server "two"', $s[0], $s[1]), line($s[0], 'server "two"', $s[0], $s[1]) ],
	'session that wants a second connection of a full pool fails with 40P01 without a timeout');
continues($s[0], q{other session is granted the victim's connection});
$_->run('ROLLBACK; RESET pgpool_ext.checkout_timeout') foreach @s[ 0, 1 ];
end_all();

# --- a cycle of three
begin_with($s[0], 'a');
begin_with($s[1], 'b');
begin_with($s[2], 'c');
waits($s[0], 'b');
waits($s[1], 'c');
is_victim($s[2], 'a', [ line($s[2], 'server "a"', $s[0]), line($s[0], 'server "b"', $s[1]), line($s[1], 'server "c"', $s[2]) ],
	'session that completes a cycle of three fails with 40P01');
continues($s[1], 'session that waits for the victim is granted its connection');
is($s[0]->done, 0, 'first session of the cycle still waits');
$s[1]->run('COMMIT');
continues($s[0], 'first session of the cycle is granted its connection in turn');
end_all();

# --- sessions that wait behind a deadlock are not victims, even if they hold a
# connection and were enqueued last
my @behind = map { PgpxSession->new($local) } 0 .. 2;
begin_with($behind[2], 'two');
begin_with($s[0], 'a');
begin_with($s[1], 'b');
$local->safe_psql('postgres', q{SELECT pgpool.pause('b')});
waits($s[0], 'b');
waits($s[1], 'a');
waits($behind[0], 'a');
waits($behind[1], 'b');
waits($behind[2], 'b');
is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.waiters'), '5', 'three sessions wait behind the deadlock');
$local->safe_psql('postgres', q{SELECT pgpool.resume('b')});
$s[1]->finish;
$s[1]->failed('40P01', qr/deadlock detected/, 'last session of the deadlock fails with 40P01');
continues($s[0], 'other session of the deadlock is granted its connection');
is(join(' ', map { $_->done } @behind), '0 0 0', 'sessions behind the deadlock still wait');
$s[0]->run('ROLLBACK');
continues($behind[0], 'session behind the deadlock is granted its connection in turn');
continues($behind[1], 'session behind the deadlock is granted its connection in turn');
$behind[2]->finish;
is($behind[2]->error, '', 'last session behind the deadlock is granted its connection in turn');
$_->run('ROLLBACK') foreach @behind;
$s[1]->run('ROLLBACK');
end_all();

# --- no false positives: a single holder that does not wait is enough, in the same pool
# or further along the chain
my $before = deadlocks();

$_->run("SET deadlock_timeout = '1ms'") foreach @s;
begin_with($s[0], 'a', 'two');
begin_with($s[1], 'b');
begin_with($s[2], 'two');
begin_with($s[3], 'c');
waits($s[1], 'two');
waits($s[0], 'b');
waits($s[3], 'a');
find_none('three sessions wait in a chain whose last holder does not wait', @s[ 0, 1, 3 ]);
$s[2]->run('ROLLBACK');
continues($s[1], 'session is granted the connection that this holder returns');
$s[1]->run('ROLLBACK');
continues($s[0], 'next session of the chain is granted its connection');
$s[0]->run('ROLLBACK');
continues($s[3], 'last session of the chain is granted its connection');
end_all();
is(deadlocks(), $before, 'no session failed with 40P01');

# waiters of a paused pool are granted connections when it is resumed
begin_with($s[0], 'a');
begin_with($s[1], 'b');
$local->safe_psql('postgres', q{SELECT pgpool.pause('b')});
waits($s[0], 'b');
waits($s[1], 'a');
find_none('no session is a victim while a pool is paused', @s[ 0, 1 ]);
$local->safe_psql('postgres', q{SELECT pgpool.resume('b')});
$s[1]->finish;
$s[1]->failed('40P01', qr/deadlock detected/, 'deadlock is detected once the pool is resumed');
continues($s[0], 'other session is granted its connection');
end_all();

# --- a deadlock that arises without a new wait: a connection is closed because
# pool_size was reduced
begin_with($s[0], 'two');
begin_with($s[2], 'two');
begin_with($s[1], 'b');
waits($s[0], 'b');
waits($s[1], 'two');
$local->safe_psql('postgres', q{ALTER SERVER two OPTIONS (SET pool_size '1')});
find_none('sessions wait while one of two holders does not wait', @s[ 0, 1 ]);
$s[2]->run('ROLLBACK');
$s[1]->finish;
$s[1]->failed('40P01', qr/deadlock detected/, 'deadlock is detected by a later check, after the connection of the other holder is closed');
continues($s[0], 'other session is granted its connection');
end_all();
$local->safe_psql('postgres', q{ALTER SERVER two OPTIONS (SET pool_size '2')});

begin_with($s[0], 'two');
begin_with($s[1], 'two');
waits($s[0], 'two');
$local->safe_psql('postgres', q{ALTER SERVER two OPTIONS (SET pool_size '1')});
$s[1]->run('ROLLBACK');
$s[0]->finish;
$s[0]->failed('40P01', qr/deadlock detected.*\nDETAIL:  \Q${\ line($s[0], 'server "two"', $s[0])}\E/, 'session that waits for itself fails with 40P01');
end_all();
$local->safe_psql('postgres', q{ALTER SERVER two OPTIONS (SET pool_size '2')});

# --- a broken lease is no longer a connection of its pool, regardless of its holder
begin_with($s[2], 'a');
my $killed = $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.leases WHERE server = 'a'});
terminate($remote, $killed);
begin_with($s[0], 'a');
begin_with($s[1], 'b');
waits($s[0], 'b');
is_victim($s[1], 'a', [ line($s[1], 'server "a"', $s[0]), line($s[0], 'server "b"', $s[1]) ], 'deadlock is detected although another session holds a broken lease of the pool');
continues($s[0], 'other session is granted its connection');
end_all();

# --- max_server_connections: pools of two users
$_->run('RESET deadlock_timeout') foreach @s;
make_pool($local, $remote, server => 'capped', options => { pool_size => 2, max_server_connections => 2 });
my $app = PgpxSession->new($local, user => 'app');

begin_with($app, 'capped');
begin_with($s[0], 'capped');
waits($s[0], 'capped');
my $cap = 'server "capped" within max_server_connections';
is_victim($app, 'capped', [ line($app, $cap, $app, $s[0]), line($s[0], $cap, $app, $s[0]) ], 'session that waits for a server with max_server_connections reached fails with 40P01');
continues($s[0], 'other session is granted the slot');
$app->run('ROLLBACK');
end_all();

# a single holder within the limit that does not wait is enough
$before = deadlocks();
$local->safe_psql('postgres', q{ALTER SERVER capped OPTIONS (SET max_server_connections '3')});
begin_with($app, 'capped');
begin_with($s[1], 'capped');
begin_with($s[0], 'capped');
waits($s[0], 'capped');
waits($app, 'capped');
find_none('no session is a victim while a third holder within the limit does not wait', $s[0], $app);
$s[1]->run('ROLLBACK');
continues($s[0], 'first waiter is granted the slot of this holder');
$s[0]->run('ROLLBACK');
continues($app, 'second waiter is granted the next slot');
$app->run('ROLLBACK');
end_all();
is(deadlocks(), $before, 'no session failed with 40P01');

# --- foreign tables lease connections for the transaction
SKIP:
{
	skip 'postgres_fdw is not installed', 1
	  unless $local->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'});
	$local->safe_psql('postgres', "CREATE FOREIGN TABLE far_$_ (relname name) SERVER $_ OPTIONS (schema_name 'pg_catalog', table_name 'pg_class')") foreach qw(a b);
	$s[0]->run('BEGIN; SELECT count(*) FROM far_a');
	$s[1]->run('BEGIN; SELECT count(*) FROM far_b');
	$s[0]->start('SELECT count(*) > 0 FROM far_b');
	ok(wait_until($local, 'SELECT server FROM pgpool.waiters', 'b'), 'session waits for a connection of a foreign table');
	$s[1]->fails('SELECT count(*) FROM far_a', '40P01', qr/deadlock detected while waiting for a connection to server "a"/, 'foreign tables: later waiter fails with 40P01');
	continues($s[0], 'foreign tables: other session continues');
	end_all();
	mixed_circles();
}

stats_add_up($local);
check_invariants($local);

# --- max_connections: pools of two databases
my $small = local_node('small', conf => [ @conf, 'pgpool_ext.max_connections = 3' ]);
$small->safe_psql('postgres', 'CREATE DATABASE other');
make_pool($small, $remote, server => 'a', options => { pool_size => 3 });
make_pool($small, $remote, server => 'hidden', dbname => 'other', options => { pool_size => 3 });
my @t = map { PgpxSession->new($small, dbname => $_) } 'postgres', 'other', 'postgres';
$t[1]->run("BEGIN; SELECT pgpool.checkout_xact('hidden')");
begin_with($t[0], 'a');
begin_with($t[2], 'a');
terminate($remote, $small->safe_psql('postgres', 'SELECT remote_pid FROM pgpool.leases WHERE pid = ' . $t[2]->pid));
ok(wait_until($small, 'SELECT state FROM pgpool.leases WHERE pid = ' . $t[2]->pid, 'broken'), 'one of three connections is broken');
is($t[0]->run(q{SELECT pgpool.checkout_xact('a') > 0}) . $t[0]->error, 't', 'slot of the broken connection serves another session');
waits($t[0], 'a', $small);
$cap = 'within pgpool_ext.max_connections';
$t[1]->fails(q{SELECT pgpool.checkout_xact('hidden')}, '40P01', qr/server "hidden" $cap; held by processes.*waits for a connection of a server of database "postgres" $cap;/s,
	'deadlock is detected although another session has held a broken lease');
$t[1]->run('ROLLBACK');
continues($t[0], 'first session is granted a slot');
$_->run('ROLLBACK') foreach @t;
stats_add_up($small);
check_invariants($small);
$_->quit foreach @t, @s, @behind, $app;
leak_check($small);
leak_check($local, $remote);
done_testing();

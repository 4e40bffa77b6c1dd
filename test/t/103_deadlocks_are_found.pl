# Sessions that hold connections and wait for each other's: the one that began to
# wait last gets 40P01 after deadlock_timeout, and the others go on.  The timeout of
# all waits is far longer than the test.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my @conf = ("deadlock_timeout = '100ms'", "pgpool_ext.checkout_timeout = '1h'", "statement_timeout = '150s'");
my $remote = remote_node('remote');
my $local = local_node('local', conf => \@conf);

make_pool($local, $remote, server => $_, options => { pool_size => 1 }) foreach qw(a b c);
make_pool($local, $remote, server => 'two', options => { pool_size => 2 });

my @s = map { PgpxSession->new($local) } 0 .. 3;

# A connection until the end of the transaction, so that an error releases it.
sub begin_with
{
	my ($session, @servers) = @_;

	$session->run('BEGIN');
	foreach my $server (@servers)
	{
		$session->run("SELECT pgpool.checkout_xact('$server')");
		is($session->error, '', "a session leases a connection of $server");
	}
	return;
}

# Begin to wait, and stay in the queue for the time being.
sub waits
{
	my ($session, $server, $node) = @_;

	$node //= $local;
	my $pid = $session->pid;

	$session->start("SELECT pgpool.checkout_xact('$server') > 0");
	ok(wait_until($node, "SELECT server FROM pgpool.waiters WHERE pid = $pid", $server), ".. and waits for one of $server");
	return;
}

# The last wait completes the deadlock.
sub is_victim
{
	my ($session, $server, $lines, $name) = @_;

	$session->run("SELECT pgpool.checkout_xact('$server')");
	my ($detail) = $session->error =~ /^DETAIL:  (.*?)\nHINT/ms;

	$session->failed('40P01', qr/deadlock detected while waiting for a connection to server "$server"$/m, $name);
	is($detail, join("\n", @$lines), '.. and the detail has each wait');
	return;
}

sub goes_on
{
	my ($session, $name) = @_;

	is($session->finish . $session->error, 't', $name);
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
	return is($local->safe_psql('postgres', 'SELECT sum(leased), sum(waiters) FROM pgpool.pools'), '0|0', 'nothing is left');
}

sub deadlocks
{
	return $local->safe_psql('postgres', q{SELECT string_agg(server || ' ' || deadlocks, ',' ORDER BY server) FROM pgpool.stats WHERE deadlocks > 0});
}

# --- two sessions, two pools of one
begin_with($s[0], 'a');
begin_with($s[1], 'b');
waits($s[0], 'b');
is_victim($s[1], 'a', [ line($s[1], 'server "a"', $s[0]), line($s[0], 'server "b"', $s[1]) ], 'two sessions cross: the second one gets 40P01');
goes_on($s[0], '.. and the first one its connection');
end_all();

# leases of the session outlive the error, until they are returned
my $kept = lease($s[1], 'b');
begin_with($s[0], 'a');
waits($s[0], 'b');
is_victim($s[1], 'a', [ line($s[1], 'server "a"', $s[0]), line($s[0], 'server "b"', $s[1]) ], 'a lease of the session: the error is the same');
is($s[0]->done, 0, 'the first one waits on');
$s[1]->run("SELECT pgpool.checkin($kept)");
goes_on($s[0], '.. until the second one returns it');
end_all();

# --- what the views show meanwhile, and a session of the deadlock that is cancelled
$_->run("SET deadlock_timeout = '1h'") foreach @s[ 0, 1 ];
begin_with($s[0], 'a');
begin_with($s[1], 'b');
waits($s[0], 'b');
waits($s[1], 'a');
is( $local->safe_psql('postgres', <<'EOT'),
SELECT w.server, w.reason, count(*) FROM pgpool.waiters w JOIN pgpool.leases l ON l.server = w.server JOIN pgpool.waiters h ON h.pid = l.pid
	GROUP BY 1, 2 ORDER BY 1
EOT
	"a|full|1\nb|full|1", 'the views show who waits for whom');
check_invariants($local, 'the invariants hold in a deadlock');
is(join(' ', map { $_->done } @s[ 0, 1 ]), '0 0', 'deadlock_timeout has not passed: both wait');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $s[0]->pid . ')');
$s[0]->finish;
$s[0]->failed('57014', qr/user request/, 'one is cancelled');
goes_on($s[1], '.. and the other one goes on');
$_->run('ROLLBACK; RESET deadlock_timeout') foreach @s[ 0, 1 ];
end_all();

# --- without a timeout, with one lease, and in a pool of two
$_->run("SET pgpool_ext.checkout_timeout = 0") foreach @s[ 0, 1 ];
begin_with($_, 'two') foreach @s[ 0, 1 ];
waits($s[0], 'two');
is_victim($s[1], 'two', [ line($s[1], 'server "two"', $s[0], $s[1]), line($s[0], 'server "two"', $s[0], $s[1]) ],
	'two that have one connection of a pool of two, and want another, without a timeout');
goes_on($s[0], '.. the other one has it');
$_->run('ROLLBACK; RESET pgpool_ext.checkout_timeout') foreach @s[ 0, 1 ];
end_all();

# --- a ring of three
begin_with($s[0], 'a');
begin_with($s[1], 'b');
begin_with($s[2], 'c');
waits($s[0], 'b');
waits($s[1], 'c');
is_victim($s[2], 'a', [ line($s[2], 'server "a"', $s[0]), line($s[0], 'server "b"', $s[1]), line($s[1], 'server "c"', $s[2]) ],
	'three in a ring: the last one gets 40P01');
goes_on($s[1], '.. the one that waits for it goes on');
is($s[0]->done, 0, '.. and the one behind that waits');
$s[1]->run('COMMIT');
goes_on($s[0], '.. for its turn');
end_all();

# --- sessions behind a deadlock are not victims, also if they hold something and came last
my @behind = map { PgpxSession->new($local) } 0 .. 2;
begin_with($behind[2], 'two');
$s[1]->run("SET deadlock_timeout = '3s'");
begin_with($s[0], 'a');
begin_with($s[1], 'b');
waits($s[0], 'b');
$s[1]->start("SELECT pgpool.checkout_xact('a')");
ok(wait_until($local, q{SELECT server FROM pgpool.waiters WHERE pid = } . $s[1]->pid, 'a'), 'a deadlock');
waits($behind[0], 'a');
waits($behind[1], 'b');
waits($behind[2], 'b');
is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.waiters'), '5', 'three wait behind it');
$s[1]->finish;
$s[1]->failed('40P01', qr/deadlock detected/, 'the last one of the deadlock gets 40P01');
goes_on($s[0], '.. the other one goes on');
is(join(' ', map { $_->done } @behind), '0 0 0', '.. and those behind wait on');
$s[0]->run('ROLLBACK');
goes_on($behind[0], 'until it is their turn');
goes_on($behind[1], 'until it is their turn');
$behind[2]->finish;
is($behind[2]->error, '', 'also of the last one');
$_->run('ROLLBACK') foreach @behind;
$s[1]->run('ROLLBACK; RESET deadlock_timeout');
end_all();

# --- no false alarm: one holder that does not wait is enough, of the pool or of the next one
my $before = deadlocks();

$_->run("SET deadlock_timeout = '1ms'") foreach @s;
begin_with($s[0], 'a', 'two');
begin_with($s[1], 'b');
begin_with($s[2], 'two');
begin_with($s[3], 'c');
waits($s[1], 'two');
waits($s[0], 'b');
waits($s[3], 'a');
$local->safe_psql('postgres', 'SELECT pg_sleep(0.5)');
is(join(' ', map { $_->done } @s[ 0, 1, 3 ]), '0 0 0', 'three wait, in the end for a session that does not');
$s[2]->run('ROLLBACK');
goes_on($s[1], 'it returns its connection');
$s[1]->run('ROLLBACK');
goes_on($s[0], 'the next one goes on');
$s[0]->run('ROLLBACK');
goes_on($s[3], '.. and the last one');
end_all();
is(deadlocks(), $before, 'nobody has had 40P01');

# a paused pool serves its waiters when it is resumed
begin_with($s[0], 'a');
begin_with($s[1], 'b');
$local->safe_psql('postgres', q{SELECT pgpool.pause('b')});
waits($s[0], 'b');
waits($s[1], 'a');
$local->safe_psql('postgres', 'SELECT pg_sleep(0.5)');
is(join(' ', map { $_->done } @s[ 0, 1 ]), '0 0', 'a pool is paused: nobody is a victim');
$local->safe_psql('postgres', q{SELECT pgpool.resume('b')});
$s[1]->finish;
$s[1]->failed('40P01', qr/deadlock detected/, 'it is resumed: the deadlock is found');
goes_on($s[0], '.. and the other one goes on');
end_all();

# --- a deadlock that no wait completes: a connection is lost to a smaller pool
begin_with($s[0], 'two');
begin_with($s[2], 'two');
begin_with($s[1], 'b');
waits($s[0], 'b');
waits($s[1], 'two');
$local->safe_psql('postgres', q{ALTER SERVER two OPTIONS (SET pool_size '1')});
$local->safe_psql('postgres', 'SELECT pg_sleep(0.3)');
is(join(' ', map { $_->done } @s[ 0, 1 ]), '0 0', 'one of two holders does not wait');
$s[2]->run('ROLLBACK');
$s[1]->finish;
$s[1]->failed('40P01', qr/deadlock detected/, 'its connection closes: a later check finds the deadlock');
goes_on($s[0], '.. and the other one goes on');
end_all();
$local->safe_psql('postgres', q{ALTER SERVER two OPTIONS (SET pool_size '2')});

begin_with($s[0], 'two');
begin_with($s[1], 'two');
waits($s[0], 'two');
$local->safe_psql('postgres', q{ALTER SERVER two OPTIONS (SET pool_size '1')});
$s[1]->run('ROLLBACK');
$s[0]->finish;
$s[0]->failed('40P01', qr/deadlock detected.*\nDETAIL:  \Q${\ line($s[0], 'server "two"', $s[0])}\E/, 'a session that comes to wait for itself');
end_all();
$local->safe_psql('postgres', q{ALTER SERVER two OPTIONS (SET pool_size '2')});

# --- a broken lease is no connection of its pool any more, whoever holds it
begin_with($s[2], 'a');
my $killed = $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.leases WHERE server = 'a'});
terminate($remote, $killed);
begin_with($s[0], 'a');
begin_with($s[1], 'b');
waits($s[0], 'b');
is_victim($s[1], 'a', [ line($s[1], 'server "a"', $s[0]), line($s[0], 'server "b"', $s[1]) ], 'another session has a broken lease of the pool');
goes_on($s[0], '.. which is of no use to those that wait');
end_all();

# --- a cap: max_server_connections, pools of two users
$_->run('RESET deadlock_timeout') foreach @s;
make_pool($local, $remote, server => 'capped', options => { pool_size => 2, max_server_connections => 2 });
my $app = PgpxSession->new($local, user => 'app');

begin_with($app, 'capped');
begin_with($s[0], 'capped');
waits($s[0], 'capped');
my $cap = 'server "capped" within max_server_connections';
is_victim($app, 'capped', [ line($app, $cap, $app, $s[0]), line($s[0], $cap, $app, $s[0]) ], 'two pools of a server that is full');
goes_on($s[0], '.. the other one has the slot');
$app->run('ROLLBACK');
end_all();

# .. and one holder under the cap that does not wait is enough
$before = deadlocks();
$local->safe_psql('postgres', q{ALTER SERVER capped OPTIONS (SET max_server_connections '3')});
begin_with($app, 'capped');
begin_with($s[1], 'capped');
begin_with($s[0], 'capped');
waits($s[0], 'capped');
waits($app, 'capped');
$local->safe_psql('postgres', 'SELECT pg_sleep(0.5)');
is($s[0]->done . $app->done, '00', 'a third one under the cap does not wait: nobody is a victim');
$s[1]->run('ROLLBACK');
goes_on($s[0], '.. and its slot goes to the first one');
$s[0]->run('ROLLBACK');
goes_on($app, '.. and then to the next');
$app->run('ROLLBACK');
end_all();
is(deadlocks(), $before, 'nobody has had 40P01');

stats_add_up($local);
check_invariants($local);

# --- the cap over all pools, of two databases
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
waits($t[0], 'a', $small);
$t[1]->start("SELECT pgpool.checkout_xact('hidden') > 0");
ok(wait_until($small, 'SELECT sum(waiters) FROM pgpool.pools', '2'), 'two wait for the cap over all pools');
$small->safe_psql('postgres', 'SELECT pg_sleep(0.4)');
is(join(' ', map { $_->done } @t[ 0, 1 ]), '0 0', 'the third one, whose connection is broken, does not wait: its slot counts');
$t[2]->run("SELECT pgpool.checkout_xact('a')");
$cap = 'within pgpool_ext.max_connections';
$t[2]->failed('40P01', qr/server "a" $cap; held by processes.*waits for a connection of a server of database "other" $cap;/s, 'it waits, too, and is the victim');
goes_on($t[0], '.. one of the others has its slot');
$t[0]->run('ROLLBACK');
goes_on($t[1], '.. and the other one the next');
$_->run('ROLLBACK') foreach @t;
stats_add_up($small);
check_invariants($small);
$_->quit foreach @t, @s, @behind, $app;
leak_check($small, undef);
leak_check($local, $remote);
done_testing();

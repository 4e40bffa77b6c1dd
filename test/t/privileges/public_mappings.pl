# A user mapping for PUBLIC that names the remote user: one pool serves all local users,
# with a reset between two users whatever the option reset is. A mapping without option
# user has a pool for each user.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
my $port = $remote->port;

make_pool($local, $remote, server => 'unrelated');
$local->safe_psql('postgres', join ';', map { "CREATE ROLE $_ LOGIN" } qw(one two three));
$remote->safe_psql('postgres', "CREATE ROLE $_ LOGIN PASSWORD '$REMOTE_APP_PASSWORD'") foreach qw(one two);
my ($one, $two, $three) = map { PgpxSession->new($local, user => $_) } qw(one two three);
my $boss = PgpxSession->new($local);

sub make_public
{
	my ($server, $options, $mapping) = @_;

	$local->safe_psql('postgres', <<"EOT");
CREATE SERVER $server FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', $options);
CREATE USER MAPPING FOR PUBLIC SERVER $server OPTIONS ($mapping);
GRANT USAGE ON FOREIGN SERVER $server TO one, two, three;
EOT
	return;
}
my $identity = "user 'remote_app', password '$REMOTE_APP_PASSWORD'";
my $pid = sub { return $_[0]->run("SELECT a FROM pgpool.query('$_[1]', 'select pg_backend_pid()') AS t(a int)") . $_[0]->error; };
my $pools = sub { return $local->safe_psql('postgres', "SELECT string_agg(local_user || ' ' || shared, ',' ORDER BY local_user, pool_id) FROM pgpool.pools WHERE server = '$_[0]'"); };

# --- foreign tables: two users of one local transaction share a connection
make_public('tables', "pool_size '1', checkout_timeout '5s'", $identity);
$remote->safe_psql('remote_db', 'SET ROLE remote_app; CREATE TABLE items AS SELECT 1 AS id');
$local->safe_psql('postgres', <<'EOT');
CREATE FOREIGN TABLE items (id int) SERVER tables OPTIONS (schema_name 'public');
CREATE VIEW items_of_one AS SELECT id FROM items;
ALTER VIEW items_of_one OWNER TO one;
GRANT SELECT, UPDATE, DELETE ON items TO one, two;
GRANT SELECT ON items_of_one TO two;
EOT
sub explains
{
	my ($sql) = @_;

	return scalar(() = $two->run("EXPLAIN (ANALYZE, VERBOSE, COSTS OFF, TIMING OFF) $sql") =~ /Pool: tables/g) . $two->error;
}
$two->run('BEGIN; SELECT * FROM items_of_one');
is(explains('SELECT * FROM items_of_one UNION ALL SELECT * FROM items'), 2, 'EXPLAIN shows the pool for both users of a shared connection');
is(explains('UPDATE items SET id = 2'), 1, 'EXPLAIN shows the pool of an UPDATE that the remote executes');
is(explains('UPDATE items SET id = 3 WHERE random() < 2'), 2, 'EXPLAIN shows the pool of an UPDATE of single rows');
is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.leases WHERE server = 'tables'"), 1, 'both users have one lease');
$two->run('ROLLBACK');

# --- the log names the user of the lease, also of one that was granted to a waiter
make_public('watched', "pool_size '1', leak_warning '100 ms', lease_timeout '4 s'", $identity);
$one->run(q{SELECT pgpool.checkout('watched')});
$two->run(q{SELECT pgpool.checkout('watched', '60 s')});
foreach my $holder ([ 'one', $one->pid ], [ 'two', $two->pid ])
{
	my ($user, $holder_pid) = @$holder;

	foreach my $event ('has been held for', 'was ended after')
	{
		ok( wait_until($local, sub { slurp_file($local->logfile) =~ /on server "watched" $event .*\n.*DETAIL:  Its holder is PID $holder_pid, user "$user", since/ ? 1 : 0 }, 1),
			"lease of $user $event ..: log has the user");
	}
}
$_->run('SELECT pgpool.checkin_all()') foreach $one, $two;

# --- one pool with one connection, used in turn
foreach my $reset (qw(always on_transfer never))
{
	my $server = "with_$reset";

	make_public($server, "pool_size '1', reset '$reset'", $identity);
	my $first = $pid->($one, $server);
	is($pid->($two, $server), $first, "$reset: two users share a connection");
	is($pools->($server), 'public true', "$reset: there is one pool");
	$one->run("SELECT pgpool.exec('$server', 'SET work_mem = ''77MB''; CREATE TEMP TABLE mine (); SET ROLE NONE')");
	is($two->run("SELECT * FROM pgpool.query('$server', 'select current_setting(''work_mem''), count(*) from pg_class where relname = ''mine''') AS t(a text, b int)") . $two->error,
		'4MB|0', "$reset: second user finds no traces of the first");
	is($pid->($two, $server), $first, "$reset: connection is the same one");

	# a statement that waits for another user's lease
	my $lease = lease($one, $server);
	$one->run("SELECT pgpool.exec($lease, 'SET work_mem = ''77MB''')");
	$two->start("SELECT * FROM pgpool.query('$server', 'show work_mem') AS t(a text)");
	ok(wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE server = '$server' AND user_name = 'two'", 1), "$reset: another user waits");
	is($local->safe_psql('postgres', "SELECT user_name FROM pgpool.leases WHERE server = '$server'"), 'one', "$reset: lease is shown with its user");
	$one->run("SELECT pgpool.checkin($lease)");
	is($two->finish(30) . $two->error, '4MB', "$reset: waiter finds no traces");
	is($local->safe_psql('postgres', "SELECT pipelined FROM pgpool.stats WHERE server = '$server'"), 0, "$reset: waiter's statement was not sent by the other user's session");

	# one session under two users
	$boss->run("SET ROLE one; SELECT pgpool.exec('$server', 'SET work_mem = ''77MB'''); SET ROLE two");
	is($boss->run("SELECT * FROM pgpool.query('$server', 'show work_mem') AS t(a text)") . $boss->error, '4MB', "$reset: second user in the same session finds no traces");
	$boss->run('RESET ROLE');
}
is($one->run(q{SELECT pgpool.exec('with_never', 'SET work_mem = ''77MB''')}) . $one->error, '0', 'never: user changes a setting');
is($one->run(q{SELECT * FROM pgpool.query('with_never', 'show work_mem') AS t(a text)}), '77MB', 'never: same user finds its own traces');

# --- superusers have a pool of their own
is($boss->run(q{SELECT pgpool.exec('with_always', 'select 1')}) . $boss->error, '1', 'superuser can use the mapping');
is($pools->('with_always'), 'public true,public true', 'superuser has another pool');

# --- privileges are checked for each user
my $lease = lease($one, 'with_never');
$two->start(q{SELECT pgpool.exec('with_never', 'select 1')});
ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'with_never'}, 1), 'user waits');
$local->safe_psql('postgres', 'REVOKE USAGE ON FOREIGN SERVER with_never FROM two');
is($one->run("SELECT pgpool.exec($lease, 'select 1')") . $one->error, '1', 'revoke from the waiter does not affect the holder');
$one->run("SELECT pgpool.checkin($lease)");
$two->finish(30);
$two->failed('42501', qr/permission denied for foreign server with_never/, 'waiter without the privilege is refused');
$two->fails(q{SELECT pgpool.exec('with_never', 'select 1')}, '42501', qr/permission denied/, 'next call without the privilege is refused');
is($pid->($one, 'with_never') =~ /^\d+$/ ? 1 : 0, 1, 'other user can still use the pool');
$lease = lease($one, 'with_never');
$three->fails("SELECT pgpool.terminate($lease)", '42501', qr/./, 'another user of the pool cannot terminate the lease');
$three->fails("SELECT pgpool.exec($lease, 'select 1')", '42501', qr/belongs to another session/, 'another user of the pool cannot use the lease');
my $sees = q{SELECT count(remote_addr) FROM pgpool.connections WHERE server = 'with_never'};
is($three->run($sees), 1, 'user of the pool sees the remote address');
is($two->run($sees), 0, 'user without the privilege does not see the remote address');
$one->run('SELECT pgpool.checkin_all()');

# --- changes of mappings
$local->safe_psql('postgres', "CREATE USER MAPPING FOR three SERVER with_always OPTIONS ($identity)");
is($pid->($three, 'with_always') =~ /^\d+$/ ? 1 : 0, 1, 'user with its own mapping can connect');
is($pools->('with_always'), 'public true,public true,three true', 'user with its own mapping has its own pool');
$local->safe_psql('postgres', q{ALTER USER MAPPING FOR PUBLIC SERVER with_on_transfer OPTIONS (DROP user)});
ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE server = 'with_on_transfer'}, 0), 'shared pool ends when the mapping names no remote user');
is($_->[0]->run(q{SELECT * FROM pgpool.query('with_on_transfer', 'select current_user') AS t(a text)}) . $_->[0]->error, $_->[1], "user $_->[1] has the remote user of its name")
  foreach [ $one, 'one' ], [ $two, 'two' ];
is($pools->('with_on_transfer'), 'one false,two false', 'each user has its own pool');
$local->safe_psql('postgres', q{ALTER USER MAPPING FOR PUBLIC SERVER with_on_transfer OPTIONS (ADD user 'remote_app')});
ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE server = 'with_on_transfer'}, 0), 'own pools end when the mapping names a remote user');
is($pid->($one, 'with_on_transfer'), $pid->($two, 'with_on_transfer'), 'users share a pool again');

check_invariants($local);
stats_add_up($local);
$_->quit foreach $one, $two, $three, $boss;
leak_check($local, $remote);
done_testing();

# Privileges: of administrative functions, of mappings for PUBLIC, of base servers.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

# ---------- administrative functions
# Privileges of administrative functions: a superuser grants EXECUTE, and the owner of
# the server or a member of pg_signal_backend may call them. terminate follows the rule
# of pg_terminate_backend. The user of a pool sees its errors in the views; a member of
# that role does not.
{
	make_pool($local, $remote, server => 'owned', options => { pool_size => 4 });
	make_pool($local, $remote, server => 'foreign_', options => { pool_size => 4 });
	$local->safe_psql('postgres', <<'EOT');
CREATE ROLE owner LOGIN;
CREATE ROLE signaller LOGIN IN ROLE pg_signal_backend;
CREATE ROLE friend LOGIN IN ROLE app;
CREATE ROLE nobody LOGIN;
GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO owner;
ALTER SERVER owned OWNER TO owner;
EOT

	my %session = map { $_ => PgpxSession->new($local, user => $_) } qw(app owner signaller friend nobody);
	my $super = PgpxSession->new($local);
	my @functions = qw(pause resume drain reconnect reset_stats);

	sub call
	{
		my ($function, $server) = @_;
		my $pool = defined $server ? "'$server'" : 'NULL';

		return "SELECT pgpool.$function($pool" . ($function eq 'drain' ? ", '20 s')" : ')');
	}

	is($super->run("SELECT pgpool.exec('$_', 'select 1')"), '1', "$_ is used") foreach qw(owned foreign_);

	# not granted to PUBLIC
	foreach my $function (@functions)
	{
		$session{$_}->fails(call($function, 'owned'), '42501', qr/permission denied for function $function/, "$function: $_ has no EXECUTE privilege")
		  foreach qw(nobody app owner signaller);
	}
	$session{nobody}->fails("SELECT pgpool.prewarm('owned', 1)", '42501', qr/permission denied for function prewarm/,
		'prewarm: role "nobody" has no EXECUTE privilege');

	# EXECUTE alone is not enough
	$local->safe_psql('postgres', "GRANT EXECUTE ON FUNCTION pgpool.$_(text" . ($_ eq 'drain' ? ', interval' : '') . ') TO PUBLIC') foreach @functions;
	$local->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION pgpool.prewarm(text, int, interval) TO PUBLIC');
	foreach my $function (@functions)
	{
		$session{$_}->fails(call($function, 'owned'), '42501', qr/must be owner of foreign server owned/, "$function: EXECUTE alone is not enough for $_")
		  foreach qw(nobody app);
		$session{owner}->run(call($function, 'owned'));
		is($session{owner}->error, '', "$function: owner of the server succeeds");
		$session{owner}->fails(call($function, 'foreign_'), '42501', qr/must be owner of foreign server foreign_/, "$function: owner of another server fails");
		$session{signaller}->run(call($function, $_)), is($session{signaller}->error, '', "$function: member of pg_signal_backend succeeds with $_")
		  foreach qw(owned foreign_);
		$session{nobody}->fails(call($function, 'nowhere'), '42704', qr/server "nowhere" does not exist/, "$function: unknown server fails");
	}

	# NULL: all servers on which the caller has the privilege
	my $states = "SELECT string_agg(server || ' ' || state, ',' ORDER BY server) FROM pgpool.pools";
	$super->run(call('resume'));
	$session{owner}->run(call('pause'));
	is($local->safe_psql('postgres', $states), 'foreign_ ready,owned paused', 'NULL: owner can pause only its own servers');
	$session{nobody}->run(call('resume'));
	is($session{nobody}->error . $local->safe_psql('postgres', $states), 'foreign_ ready,owned paused', 'NULL: ordinary role resumes none');
	$session{signaller}->run(call('pause'));
	is($local->safe_psql('postgres', $states), 'foreign_ paused,owned paused', 'NULL: member of pg_signal_backend pauses all');
	$super->run(call('resume'));
	is($local->safe_psql('postgres', $states), 'foreign_ ready,owned ready', 'NULL: superuser resumes all');

	# prewarm needs this privilege, and those of a checkout
	$session{$_}->fails("SELECT pgpool.prewarm('owned', 2, '30 s')", '42501', qr/must be owner of foreign server owned/, "prewarm: EXECUTE alone is not enough for $_")
	  foreach qw(nobody app);
	$session{signaller}->fails("SELECT pgpool.prewarm('owned', 1)", '42501', qr/permission denied for foreign server/, 'prewarm: USAGE is required');
	$local->safe_psql('postgres', 'GRANT pg_signal_backend TO app');
	is($session{app}->run("SELECT pgpool.prewarm('owned', 2, '30 s')") . $session{app}->error, '2', 'prewarm: member of pg_signal_backend can open its own pool');
	$local->safe_psql('postgres', 'REVOKE pg_signal_backend FROM app');
	is($super->run("SELECT pgpool.prewarm('foreign_', 1, '30 s')") . $super->error, '1', 'prewarm: superuser succeeds');

	# terminate
	my $lease = lease($super, 'owned');
	$session{$_}->fails("SELECT pgpool.terminate($lease)", '42501', qr/^DETAIL:  Only superusers can terminate the lease of a superuser\.$/m, "terminate: $_ cannot end a superuser's lease")
	  foreach qw(nobody app owner signaller);
	is($super->run("SELECT pgpool.terminate($lease)"), 't', 'terminate: superuser succeeds');
	$super->run('SELECT pgpool.checkin_all()');
	foreach my $who (qw(app friend signaller))
	{
		$lease = lease($session{app}, 'owned');
		$session{$_}->fails("SELECT pgpool.terminate($lease)", '42501', qr/permission denied to terminate lease \d+\nDETAIL:  Only members of the lease's role or of pg_signal_backend can terminate it\.$/m, "terminate: $_ cannot end the lease of another user")
		  foreach qw(nobody owner);
		is($session{$who}->run("SELECT pgpool.terminate($lease)"), 't', "terminate: $who succeeds");
		$session{app}->fails("SELECT pgpool.exec($lease, 'select 1')", 'PX001', qr/./, 'terminate: holder receives the error');
		$session{app}->run('SELECT pgpool.checkin_all()');
	}
	is($session{nobody}->run("SELECT pgpool.terminate($_)"), 'f', "terminate: lease $_ does not exist") foreach $lease, 0, -1, 9_223_372_036_854_775_807;
	$super->fails('SELECT pgpool.terminate(NULL)', '22004', qr/null/, 'terminate: NULL is refused');

	# errors of a server that cannot be reached
	make_pool($local, $remote, server => 'unreachable', options => { port => 1 });
	$_->fails(q{SELECT pgpool.exec('unreachable', 'select 1')}, '08001', qr/./, 'errors: server cannot connect') foreach $super, $session{app};
	foreach my $who (qw(app friend nobody))
	{
		is($session{$who}->run(q{SELECT string_agg((last_error !~ '^<insufficient')::text, ',' ORDER BY pool_id) FROM pgpool.pools WHERE server = 'unreachable'}),
			$who eq 'app' ? 'false,true' : 'false,false', "errors: view pools as $who");
	}
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- mappings for PUBLIC
# A user mapping for PUBLIC that names the remote user: one pool serves all local users,
# with a reset between two users whatever the option reset is. A mapping without option
# user has a pool for each user.
{
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
	my $pools = sub { return $local->safe_psql('postgres', "SELECT string_agg(local_user, ',' ORDER BY local_user, pool_id) FROM pgpool.pools WHERE server = '$_[0]'"); };

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
	foreach my $reset (qw(always never))
	{
		my $server = "with_$reset";

		make_public($server, "pool_size '1', reset '$reset'", $identity);
		my $first = $pid->($one, $server);
		is($pid->($two, $server), $first, "$reset: two users share a connection");
		is($pools->($server), 'public', "$reset: there is one pool");
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
	is($pools->('with_always'), 'public,public', 'superuser has another pool');

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
	is($pools->('with_always'), 'public,public,three', 'user with its own mapping has its own pool');
	make_public('changing', "pool_size '1'", $identity);
	is($pid->($one, 'changing'), $pid->($two, 'changing'), 'users share a pool');
	$local->safe_psql('postgres', q{ALTER USER MAPPING FOR PUBLIC SERVER changing OPTIONS (DROP user)});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE server = 'changing'}, 0), 'shared pool ends when the mapping names no remote user');
	is($_->[0]->run(q{SELECT * FROM pgpool.query('changing', 'select current_user') AS t(a text)}) . $_->[0]->error, $_->[1], "user $_->[1] has the remote user of its name")
	  foreach [ $one, 'one' ], [ $two, 'two' ];
	is($pools->('changing'), 'one,two', 'each user has its own pool');
	$local->safe_psql('postgres', q{ALTER USER MAPPING FOR PUBLIC SERVER changing OPTIONS (ADD user 'remote_app')});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE server = 'changing'}, 0), 'own pools end when the mapping names a remote user');
	is($pid->($one, 'changing'), $pid->($two, 'changing'), 'users share a pool again');

	# --- foreign tables: superusers and others share one remote transaction, whoever begins it
	make_public('joined', "max_server_connections '1', checkout_timeout '20s'", $identity);
	make_public('unnamed', "pool_size '2'", "password '$REMOTE_APP_PASSWORD'");
	$remote->safe_psql('postgres', "ALTER ROLE one SUPERUSER");
	$local->safe_psql('postgres', <<'EOT');
CREATE FOREIGN TABLE joined (id int) SERVER joined OPTIONS (schema_name 'public', table_name 'items');
CREATE VIEW joined_view AS SELECT id FROM joined;
CREATE FUNCTION update_joined() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'UPDATE public.joined SET id = id + 10';
GRANT SELECT, UPDATE ON joined TO one;
GRANT SELECT ON joined_view TO one;
EOT
	my $leases = "SELECT count(*) FROM pgpool.leases WHERE server = 'joined'";

	foreach my $case (
		[ 'role first', 'UPDATE joined SET id = 5; SELECT id FROM joined_view', '5' ],
		[ 'superuser first', 'SELECT count(*) FROM joined_view; UPDATE joined SET id = 6; SELECT id FROM joined_view', "1\n6" ],
		[ 'SECURITY DEFINER, role first', 'UPDATE joined SET id = 7; SELECT update_joined(); SELECT id FROM joined', "\n17" ],
		[ 'SECURITY DEFINER, superuser first', 'SELECT update_joined(); SELECT id + 1 FROM joined', "\n%d" ],
		[ 'join', 'SELECT count(*) FROM joined JOIN joined_view USING (id)', '1' ])
	{
		my ($name, $sql, $result) = @$case;
		my $id = $remote->safe_psql('remote_db', 'SELECT id FROM items');

		$one->run('BEGIN');
		is($one->run($sql) . $one->error, sprintf($result, $id + 11), "$name: one remote transaction sees what it has written");
		is($local->safe_psql('postgres', $leases), 1, "$name: one lease");
		$one->run('ROLLBACK');
	}

	# two remote users have two transactions
	$remote->safe_psql('remote_db', 'GRANT SELECT ON items TO one, two');
	$local->safe_psql('postgres', <<'EOT');
CREATE FOREIGN TABLE unnamed (u name) SERVER unnamed OPTIONS (schema_name 'public', table_name 'who');
CREATE VIEW unnamed_view AS SELECT u FROM unnamed;
ALTER VIEW unnamed_view OWNER TO two;
GRANT SELECT ON unnamed TO one, two;
GRANT SELECT ON unnamed_view TO one;
EOT
	$remote->safe_psql('remote_db', 'CREATE VIEW public.who AS SELECT session_user AS u; GRANT SELECT ON public.who TO PUBLIC; ALTER ROLE one NOSUPERUSER');
	$local->safe_psql('postgres', 'ALTER ROLE two SUPERUSER');
	$one->run('BEGIN');
	is($one->run('SELECT u FROM unnamed UNION ALL SELECT u FROM unnamed_view') . $one->error, "one\ntwo", 'a mapping for PUBLIC without option user: each user reads as its own remote user');
	is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.leases WHERE server = 'unnamed'"), 2, 'two remote users have two leases');
	$one->run('ROLLBACK');
	$local->safe_psql('postgres', 'ALTER ROLE two NOSUPERUSER');

	# a connection that logged in without the mapping's password is only for superusers
	my $hba = $remote->data_dir . '/pg_hba.conf';
	my $rules = slurp_file($hba);
	unlink $hba;
	$remote->append_conf('pg_hba.conf', ($rules =~ /^hostssl/m ? 'hostssl' : 'host') . " remote_db remote_app 127.0.0.1/32 trust\n$rules");
	$remote->reload;
	ok(wait_until($remote, q{SELECT count(*) FROM pg_hba_file_rules WHERE user_name = '{remote_app}' AND auth_method = 'trust'}, 1), 'remote server trusts the role');
	$local->safe_psql('postgres', "SELECT pgpool.reconnect('joined')");
	is($one->run('BEGIN; SELECT count(*) FROM joined_view; SAVEPOINT s') . $one->error, 1, 'superuser needs no password');
	$one->fails('SELECT count(*) FROM joined', '2F003', qr/password is required.*A superuser has begun/s, 'role is refused on a connection without a password, and gets no second transaction');
	is($local->safe_psql('postgres', $leases), 1, 'one lease');
	is($one->run('ROLLBACK TO s; SELECT count(*) FROM joined_view') . $one->error, 1, 'remote transaction of the superuser continues');
	$one->run('ROLLBACK; BEGIN');
	$one->fails('SELECT count(*) FROM joined', '2F003', qr/password is required/, 'role cannot begin the transaction either');
	$one->run('ROLLBACK');
	unlink $hba;
	$remote->append_conf('pg_hba.conf', $rules);
	$remote->reload;
	ok(wait_until($remote, q{SELECT count(*) FROM pg_hba_file_rules WHERE user_name = '{remote_app}' AND auth_method = 'trust'}, 0), 'remote server requests passwords again');

	check_invariants($local);
	stats_add_up($local);
	$_->quit foreach $one, $two, $three, $boss;
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- base servers
# Privileges and foreign tables: a server with a base server, a user without USAGE, a
# privilege that is revoked while a session waits.
SKIP:
{
	skip 'privileges do not depend on TLS', 1 if over_tls();

	sub local_sql { return $local->safe_psql('postgres', $_[0]); }

	$remote->safe_psql('remote_db', 'CREATE TABLE numbers AS SELECT g AS n FROM generate_series(1, 3) g; GRANT ALL ON numbers TO remote_app; CREATE TABLE commands (n int); GRANT ALL ON commands TO remote_app');
	make_pool($local, $remote, server => 'base');
	local_sql(q{CREATE EXTENSION postgres_fdw;
		CREATE SCHEMA tables; GRANT USAGE ON SCHEMA tables TO app;
		CREATE SERVER derived FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'base');
		CREATE FOREIGN TABLE tables.numbers (n int) SERVER derived OPTIONS (schema_name 'public');
		GRANT SELECT ON tables.numbers TO app});
	my $su = PgpxSession->new($local);
	my $app = PgpxSession->new($local, user => 'app');

	# --- foreign tables of a server with a base server
	my $twice = 'BEGIN; SELECT sum(n) FROM tables.numbers; SELECT count(*) FROM tables.numbers; COMMIT';
	is($su->run($twice) . $su->error, "6\n3", 'table is read twice in a transaction');
	is($app->run($twice) . $app->error, "6\n3", 'user without USAGE on the server reads its table twice in a transaction');

	# --- the user has no USAGE on either server: changes of other roles do not retire the pool
	local_sql('REVOKE USAGE ON FOREIGN SERVER base FROM app');
	is($app->run($twice) . $app->error, "6\n3", 'user without USAGE on both servers reads the table');
	my $pools = q{SELECT string_agg(pool_id::text, ',' ORDER BY pool_id) FROM pgpool.pools WHERE server = 'derived'};
	my $before = local_sql($pools);
	foreach my $change ('CREATE ROLE unrelated', 'ALTER ROLE unrelated CONNECTION LIMIT 3', 'DROP ROLE unrelated')
	{
		local_sql($change);
		is($app->run('SELECT sum(n) FROM tables.numbers') . $app->error, 6, "$change: table is read");
	}
	is(local_sql($pools), $before, 'changes of other roles retire no pool of the user');
	$app->fails(q{SELECT pgpool.exec('derived', 'SELECT 1')}, '42501', qr/permission denied for foreign server/, 'functions need USAGE');

	# --- the owner of a server with a base server needs USAGE on it
	local_sql(q{CREATE ROLE evil LOGIN; GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO evil; CREATE SCHEMA evil AUTHORIZATION evil;
		CREATE USER MAPPING FOR PUBLIC SERVER base OPTIONS (user 'remote_app', password '} . $REMOTE_APP_PASSWORD . q{')});
	my $evil = PgpxSession->new($local, user => 'evil');
	is($evil->run(q{CREATE SERVER own FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'base', min_size '1', start_commands 'INSERT INTO commands VALUES (1)');
		CREATE FOREIGN TABLE evil.numbers (n int) SERVER own OPTIONS (schema_name 'public')}) . $evil->error, '', 'user without USAGE on a server creates another one with this base server');
	$evil->fails('SELECT * FROM evil.numbers', '42501', qr/permission denied for foreign server base\nDETAIL:  Server "own" has "base" as its base server\.\nHINT:  Grant USAGE on the base server to the owner of server "own"/, 'table of that server cannot be read');
	$evil->fails('SELECT pgpool.exec($$own$$, $$SELECT 1$$)', '42501', qr/permission denied for foreign server base/, 'functions cannot use that server');
	local_sql(q{CREATE SERVER warm FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'base', min_size '1')});
	$_->quit foreach $su, $app, $evil;
	my $since = -s $local->logfile;
	$local->restart;
	ok(wait_until($local, q{SELECT count(*) > 0 FROM pgpool.connections WHERE server = 'warm' AND state = 'idle'}, 't', 30), 'catalog reader has read the servers with min_size');
	is_logged($local, $since, qr/cannot open connections to server "own".*before a checkout.*\n.*permission denied for foreign server base/,
		'catalog reader logs that it opens no connection to server "own"');
	reader_has_ended($local);
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM commands'), 0, 'commands of that server were not executed');
	local_sql('GRANT USAGE ON FOREIGN SERVER base TO evil');
	$evil = PgpxSession->new($local, user => 'evil');
	is($evil->run('SELECT sum(n) FROM evil.numbers') . $evil->error, 6, 'table can be read when the owner has USAGE on the base server');

	# --- the pool of the table ends when the owner of its server loses the privilege
	is(local_sql(q{SELECT count(*) FROM pgpool.connections WHERE server = 'own'}), 1, 'pool of the table has a connection');
	local_sql('REVOKE USAGE ON FOREIGN SERVER base FROM evil');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'own'}, 0, 30), 'connection is closed when the owner of the server loses USAGE on the base server');

	# --- while a session waits, its membership in the role that has USAGE is revoked in
	# another database; the holder is in a transaction, so no session applies the change
	$evil->quit;
	$app = PgpxSession->new($local, user => 'app');
	local_sql(q{CREATE ROLE grp; GRANT USAGE ON FOREIGN SERVER base TO grp; GRANT grp TO app; CREATE DATABASE other;
		ALTER SERVER base OPTIONS (ADD pool_size '1')});
	my $waiter = PgpxSession->new($local, user => 'app');
	my $lease = $app->run(q{BEGIN; SELECT pgpool.checkout('base')});
	$waiter->start(q{SELECT pgpool.checkout('base', '60 s')});
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1, 30), 'session waits for a connection');
	$local->end_shared_session;	# it would apply the change
	$local->safe_psql('other', 'REVOKE grp FROM app');
	$app->run("SELECT pgpool.checkin($lease)");
	like($waiter->finish(30) . $waiter->error, qr/42501.*permission denied for foreign server base/, 'checkout that waited fails, because the privilege was revoked');
	$app->run('COMMIT');

	# --- the commands of a server with a base server need the membership of its owner in the
	# user: a revocation ends the connections, also those of min_size
	$waiter->quit;
	local_sql(q{GRANT USAGE ON FOREIGN SERVER base, own TO app; ALTER SERVER base OPTIONS (DROP pool_size)});
	my $commanded = q{SELECT count(*) FROM pgpool.connections WHERE server = 'own' AND local_user = 'app'};
	foreach my $database ('postgres', 'other')
	{
		local_sql('GRANT app TO evil');
		is($app->run(q{SELECT pgpool.exec('own', 'SELECT 1')}) . $app->error, 1, "$database: server with start_commands can be used while its owner is a member of the user");
		is(local_sql($commanded), 1, "$database: there is a connection");
		$local->safe_psql($database, 'REVOKE app FROM evil');
		ok(wait_until($local, $commanded, 0, 60), "$database: connection is closed when the membership is revoked");
		$app->fails(q{SELECT pgpool.exec('own', 'SELECT 1')}, '42501', qr/permission denied to use option "start_commands" of server "own"/, "$database: next use fails");
	}

	# --- the owner of the database has the privileges of pg_database_owner
	$local->safe_psql('postgres', 'CREATE DATABASE owned OWNER app');
	my $address = "host '127.0.0.1', port '" . $remote->port . q{', dbname 'remote_db'};
	$local->safe_psql('owned', qq{CREATE EXTENSION pgpool_ext;
		CREATE SERVER s FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($address);
		CREATE USER MAPPING FOR app SERVER s OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
		GRANT USAGE ON FOREIGN SERVER s TO pg_database_owner});
	my $owner = PgpxSession->new($local, user => 'app', dbname => 'owned');
	my $of_owner = q{SELECT count(*) FROM pgpool.connections WHERE database = 'owned'};
	foreach my $case ([ 'owned', 'ALTER DATABASE owned OWNER TO evil' ], [ 'other', 'ALTER DATABASE owned OWNER TO evil' ], [ 'owned', 'REASSIGN OWNED BY app TO evil' ])
	{
		my ($database, $sql) = @$case;

		local_sql('ALTER DATABASE owned OWNER TO app');
		is($owner->run(q{SELECT pgpool.exec('s', 'SELECT 1')}) . $owner->error, 1, 'owner of the database uses the server');
		is(local_sql($of_owner), 1, 'there is a connection');
		$local->safe_psql($database, $sql);
		ok(wait_until($local, $of_owner, 0, 60), "$sql in $database: idle connection is closed");
		$owner->fails(q{SELECT pgpool.exec('s', 'SELECT 1')}, '42501', qr/permission denied for foreign server s/, "$sql in $database: open session of the former owner is refused");
	}
	$owner->quit;

	$app->quit;
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();

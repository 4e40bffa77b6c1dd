# Changes of options, of servers and of base servers take effect while pools are in use.
use strict;
use warnings;

use FindBin;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', conf => ['pgpool_ext.log_connections = on' ]);

# ---------- options
# ALTER SERVER: an option that is a number of the pool takes effect in place, any other
# option replaces the connections. Each option is tested. Statistics survive every
# change until reset_stats() or DROP SERVER.
{
	my $holder = PgpxSession->new($local);
	my $other = PgpxSession->new($local);
	my $port = $remote->port;

	# a value for each option that takes effect in place
	my %in_place = (
		pool_size => 4,
		max_overflow => 3,
		overflow_ttl => '7s',
		min_size => 1,
		min_idle => 1,
		max_server_connections => 9,
		checkout_timeout => '3s',
		max_waiters => 5,
		idle_timeout => '1h',
		max_lifetime => '2h',
		test_period => '1min',
		connect_timeout => '7s',
		retry_min => '200ms',
		retry_max => '3s',
		on_unavailable => 'wait',
		reset => 'never',
		operation_timeout => '9s',
		lease_timeout => '1h',
		leak_warning => '1h',
		notice_after => '5s',
		notices => 'ignore',
		two_phase_commit => 'on');

	# a value for each option of foreign tables, which does not concern the pool
	my %of_tables = (
		analyze_sampling => 'off',
		async_capable => 'true',
		batch_size => 10,
		extensions => '',
		fdw_startup_cost => 10,
		fdw_tuple_cost => 1,
		fetch_size => 50,
		truncatable => 'false',
		updatable => 'false',
		$local->pg_version >= 18 ? (import_stats => '1d') : ());

	# a value for each option that replaces connections, with which connecting is still
	# possible
	my %replaces = (
		start_commands => 'SET geqo = off',
		reset_command => 'DISCARD ALL; RESET ALL',
		hostaddr => '127.0.0.1',
		application_name => 'changed',
		fallback_application_name => 'changed',
		sslmode => over_tls() ? 'require' : 'disable',
		sslsni => 0,
		ssl_min_protocol_version => 'TLSv1.2',
		ssl_max_protocol_version => 'TLSv1.3',
		channel_binding => 'disable',
		gssencmode => 'disable',
		target_session_attrs => 'read-write',
		keepalives => 1,
		keepalives_idle => 60,
		keepalives_interval => 20,
		keepalives_count => 4,
		tcp_user_timeout => 40000,
		options => '-c geqo=off');

	# Options that cannot have another value here, or do not exist in each libpq version.
	# Options for superusers are all libpq's, and so of one class.
	my %untried = map { $_ => 1 } qw(host port dbname base_server require_auth load_balance_hosts use_scram_passthrough import_stats);

	# --- the lists above are complete
	$holder->run("CREATE EXTENSION pgpool_ext");
	my @valid;
	my ($source) = slurp_file("$FindBin::Bin/../../../src/config/options.c") =~ /pgpx_option_table\[\] = \{(.*?)^\};/ms;
	while ($source =~ /^\t(?:POOL_\w+\((\w+)|\w*[({]"(\w+)"([^"]*?)[)}],$)/mg)
	{
		my ($pool, $name, $flags) = ($1, $2, $3);

		push @valid, $pool // $name if defined $pool || ($flags =~ /ON_SERVER/ && $flags !~ /SUPERUSER/);
	}
	cmp_ok(scalar @valid, '>', 40, 'options were found in the source');
	is(join(' ', sort grep { !exists $in_place{$_} && !exists $of_tables{$_} && !exists $replaces{$_} && !$untried{$_} } @valid), '', 'each option is in one of the lists');

	sub numbers
	{
		my ($server) = @_;

		return $local->safe_psql('postgres', "SELECT checkouts, checkins, connects, statements, stats_reset FROM pgpool.stats WHERE server = '$server'");
	}

	sub pids
	{
		my ($server) = @_;

		return $local->safe_psql('postgres',
			"SELECT string_agg(remote_pid::text, ' ' ORDER BY remote_pid) FROM pgpool.connections WHERE server = '$server' AND NOT stale AND state <> 'closing'");
	}

	# use two connections, and keep one of them leased
	sub begin
	{
		my ($server) = @_;
		my $lease = lease($holder, $server);
		my $second = lease($other, $server);

		$holder->run("SELECT pgpool.exec($lease, 'select 1')");
		$other->run("SELECT pgpool.checkin($second)");
		return $lease;
	}

	# --- options that take effect in place, in a pool and in a pool based on its server
	make_pool($local, $remote, server => 'shard', options => { pool_size => 3 });
	my $lease = begin('shard');
	my $before = pids('shard');
	my $counted = numbers('shard');

	foreach my $option (sort keys %in_place)
	{
		my $value = $in_place{$option};
		my $verb = $option eq 'pool_size' ? 'SET' : 'ADD';

		$local->safe_psql('postgres', "ALTER SERVER shard OPTIONS ($verb $option '$value')");
		is(pids('shard') . ' ' . numbers('shard'), "$before $counted", "$option: connections and statistics are kept");
	}
	foreach my $option (sort keys %of_tables)
	{
		$local->safe_psql('postgres', "ALTER SERVER shard OPTIONS (ADD $option '$of_tables{$option}')");
		is(pids('shard') . ' ' . numbers('shard'), "$before $counted", "$option: connections and statistics are kept");
	}
	is($holder->run("SELECT pgpool.exec($lease, 'select 1'); SELECT pgpool.checkin($lease)"), "1\n", 'lease stays usable')
	  or diag($holder->error);
	is($holder->run("SELECT pgpool.exec('shard', 'select 1')"), '1', 'checkout succeeds with all options');
	is(pids('shard'), $before, 'checkout uses the same connections');
	is($local->safe_psql('postgres', "SELECT pool_size FROM pgpool.pools WHERE server = 'shard'"), '4', 'pool has the new options');
	$local->safe_psql('postgres', "ALTER SERVER shard OPTIONS (" . join(', ', map { "DROP $_" } sort keys %in_place) . ')');
	is(pids('shard'), $before, 'dropping the options keeps the connections');
	is($local->safe_psql('postgres', "SELECT pool_size FROM pgpool.pools WHERE server = 'shard'"), '10', 'pool has the defaults');

	# --- effects without a call
	make_pool($local, $remote, server => 'sized', options => { pool_size => 3, idle_timeout => '1h' });
	sub alter { return $local->safe_psql('postgres', "ALTER SERVER sized OPTIONS ($_[0])"); }
	sub total_becomes
	{
		my ($n, $name) = @_;

		return ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'sized'", $n), $name);
	}
	begin('sized');
	alter("ADD min_size '3'");
	total_becomes(3, 'min_size: connections are opened');
	alter("ADD max_server_connections '2'");
	total_becomes(2, 'max_server_connections: free connection closes');
	$holder->run('SELECT pgpool.checkin_all()');
	alter("SET max_server_connections '1'");
	total_becomes(1, 'max_server_connections: connection closes after a checkin');
	alter("DROP max_server_connections");
	total_becomes(3, 'min_size: connections are opened without max_server_connections');
	alter("DROP min_size, SET idle_timeout '100ms'");
	total_becomes(0, 'idle_timeout: idle connections close');
	alter("SET idle_timeout '1h', ADD max_lifetime '1h'");
	begin('sized');
	$holder->run('SELECT pgpool.checkin_all()');
	total_becomes(2, 'max_lifetime: two connections are open');
	alter("SET max_lifetime '100ms'");
	total_becomes(0, 'max_lifetime: connections expire when it becomes shorter');

	# 0 disables both: other connections close meanwhile
	make_pool($local, $remote, server => 'brief', options => { idle_timeout => '100ms', max_lifetime => '0' });
	alter("SET max_lifetime '1h'");
	begin('sized');
	alter("SET max_lifetime '0', SET idle_timeout '0'");
	lease($other, 'sized');
	$_->run('SELECT pgpool.checkin_all()') foreach $holder, $other;
	lease($holder, 'brief');
	$holder->run('SELECT pgpool.checkin_all()');
	ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'brief'", 0), 'max_lifetime 0: idle_timeout still closes the connection');
	total_becomes(2, 'idle_timeout 0 and max_lifetime 0: connections stay open');
	alter("SET max_lifetime '100ms'");
	total_becomes(0, 'max_lifetime: connections that had no limit expire');
	alter("DROP max_lifetime, SET idle_timeout '1h'");
	lease($holder, 'sized');
	alter("ADD lease_timeout '100ms'");
	ok(wait_until($local, "SELECT leased FROM pgpool.pools WHERE server = 'sized'", 0), 'lease_timeout: existing lease ends');
	$holder->run('SELECT pgpool.checkin_all()');
	alter('DROP lease_timeout');

	# --- a connection that was left without a reset is reset for the next lease
	alter("SET pool_size '1', ADD reset 'never'");
	$holder->run(q{SELECT pgpool.exec('sized', 'SET geqo = off')});
	my $marked = pids('sized');
	alter("SET reset 'always'");
	is($other->run(q{SELECT geqo FROM pgpool.query('sized', 'SHOW geqo') AS t(geqo text)}), 'on', 'reset: traces from before the change are not visible');
	is(pids('sized'), $marked, 'reset: connection is the same one');

	# --- connect_timeout of a base server applies, its pool options do not
	$local->safe_psql('postgres', "CREATE SERVER based FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'shard', pool_size '2')");
	begin('based');
	$before = pids('based');
	$counted = numbers('based');
	$local->safe_psql('postgres', "ALTER SERVER shard OPTIONS (ADD connect_timeout '7s', ADD pool_size '5')");
	is(pids('based') . ' ' . numbers('based'), "$before $counted", 'base server: changes of its options in place keep connections and statistics');
	$holder->run('SELECT pgpool.checkin_all()');

	# --- an attempt in progress uses the new connect_timeout
	make_pool($local, $remote, server => 'slow', options => { pool_size => 1, connect_timeout => '1h', checkout_timeout => '1h', start_commands => 'SELECT pg_sleep(3600)' });
	$other->start("SELECT pgpool.exec('slow', 'select 1')");
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(3600)%' AND pid <> pg_backend_pid()", 1), 'connection attempt is in progress');
	$local->safe_psql('postgres', "ALTER SERVER slow OPTIONS (SET connect_timeout '100ms')");
	like($other->finish(30) . $other->error, qr/start commands did not end within connect_timeout \(0\.1 s\)/, 'connection attempt ends by the new connect_timeout');

	# --- options that replace connections
	make_pool($local, $remote, server => 'moving', options => { pool_size => 3 });
	foreach my $option (sort keys %replaces)
	{
		$lease = begin('moving');
		$before = pids('moving');
		my ($count, $reset) = numbers('moving') =~ /^(\d+)\|.*\|(.*)$/;

		$local->safe_psql('postgres', "ALTER SERVER moving OPTIONS (ADD $option '$replaces{$option}')");
		is(pids('moving'), '', "$option: no existing connection is used again");
		is($holder->run("SELECT pgpool.exec($lease, 'select 1'); SELECT pgpool.checkin($lease)"), "1\n", "$option: lease stays usable");
		ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'moving'", 0), "$option: old connections close");
		is(numbers('moving') =~ /^(\d+)\|.*\|(.*)$/ ? "$1 $2" : '', "$count $reset", "$option: statistics are kept");
		is($holder->run("SELECT pgpool.exec('moving', 'select 1')"), '1', "$option: next use succeeds") or diag($holder->error);
		$local->safe_psql('postgres', "ALTER SERVER moving OPTIONS (DROP $option)");
	}

	# --- other changes that replace connections
	foreach my $change (
		[ 'ALTER SERVER moving RENAME TO moved', 'ALTER SERVER moved RENAME TO moving' ],
		[ "ALTER USER MAPPING FOR CURRENT_USER SERVER moving OPTIONS (SET user 'remote_super', SET password '$REMOTE_SUPER_PASSWORD')", '' ])
	{
		my ($sql, $back) = @$change;

		$holder->run("SELECT pgpool.exec('moving', 'select 1')");
		my ($count, $reset) = numbers('moving') =~ /^(\d+)\|.*\|(.*)$/;

		$local->safe_psql('postgres', $sql);
		$local->safe_psql('postgres', $back) if $back ne '';
		is(pids('moving'), '', "$sql: no existing connection is used again");
		is(numbers('moving') =~ /^(\d+)\|.*\|(.*)$/ ? "$1 $2" : '', "$count $reset", "$sql: statistics are kept");
	}
	$local->safe_psql('postgres', 'SELECT pgpool.reset_stats($$moving$$)');
	like(numbers('moving'), qr/^0\|0\|/, 'reset_stats clears statistics');

	# --- the foreign tables of a server belong to it whatever its name is: its name is given to
	# another server while a session waits
	$remote->safe_psql('postgres', 'CREATE DATABASE second OWNER remote_app');
	$remote->safe_psql($_, "SET ROLE remote_app; CREATE TABLE named (a text); INSERT INTO named VALUES ('$_')") foreach qw(remote_db second);
	make_pool($local, $remote, server => 'left_one', options => { pool_size => 1 });
	make_pool($local, $remote, server => 'right_one', remote_dbname => 'second', options => { pool_size => 1 });
	$local->safe_psql('postgres', 'CREATE FOREIGN TABLE named (a text) SERVER left_one');
	lease($holder, 'left_one');
	$other->start('INSERT INTO named VALUES ($$new$$) RETURNING a');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'left_one'}, '1'), 'session waits for the server of its foreign table');
	$local->safe_psql('postgres', 'BEGIN; ALTER SERVER left_one RENAME TO moved_one; ALTER SERVER right_one RENAME TO left_one; COMMIT');
	$holder->run('SELECT pgpool.checkin_all()');
	is($other->finish(60) . $other->error, 'new', 'session writes to a table');
	is($remote->safe_psql('second', 'SELECT string_agg(a, $$,$$) FROM named'), 'second', 'nothing is written to the server that has received the name');
	is($remote->safe_psql('remote_db', 'SELECT string_agg(a, $$,$$) FROM named'), 'remote_db,new', 'the row is written to the server of the foreign table');
	$local->safe_psql('postgres', 'DROP SERVER left_one CASCADE; DROP SERVER moved_one CASCADE');
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE datname = 'second'}, '0'), 'connections of dropped servers have closed');

	# --- DROP SERVER drops the statistics
	$local->safe_psql('postgres', 'DROP SERVER moving CASCADE');
	ok(wait_until($local, q(SELECT count(*) FROM pgpool.pools WHERE server = 'moving'), 0), 'DROP SERVER: pool is removed');

	check_invariants($local);
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- base servers
# Changes of a base server and of its user mappings take effect at commit, like those of
# the server itself: idle connections of the old version close at once, leased ones at
# checkin, and waiters use the new options, even if these select another pool.
SKIP:
{
	skip 'catalog changes do not depend on TLS', 1 if over_tls();

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
		my $cancelled = 'SELECT sum(cancelled) FROM pgpool.stats';
		my $before = $local->safe_psql('postgres', $cancelled);

		$other->start("SELECT pgpool.checkout('$server', '60 s')");
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), "session waits for $server");
		$local->safe_psql('postgres', $sql);
		my $answer = $other->finish(30);
		is($other->sqlstate, $expected, "$sql: waiter receives the expected result") or diag($other->error);
		like($other->error, $texts, "$sql: error names both servers") if defined $texts;
		is($local->safe_psql('postgres', $cancelled), $before + ($expected ne ''), "$sql: wait counts as cancelled only if it ends with an error");
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
}

leak_check($local, $remote);
done_testing();

# Passwords are not disclosed, and only those of the mapping are used.
use strict;
use warnings;

use PgpxFakeServer qw(message);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');

# ---------- passwords
# No password appears in a log line, a view or an error message. A connection that was
# made without one, or by superuser privilege, is not leased to other users.
{
	my $wrong = 'not the password';
	my $local = local_node('local1', conf => [
		'log_statement = none', 'log_connections = on', 'log_disconnections = on',
		'pgpool_ext.log_connections = on', 'pgpool_ext.log_min_wait = 0', 'log_min_error_statement = panic',
		'log_min_messages = debug1', 'log_error_verbosity = verbose' ]);
	my $port = $remote->port;
	make_pool($local, $remote, server => 'shard1', options => { pool_size => 2 });

	my $boss = PgpxSession->new($local);
	my $app = PgpxSession->new($local, user => 'app');
	my $said = '';

	# --- what users can read --------------------------------------------------------

	$boss->run(<<"EOT");
CREATE SERVER mistaken FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');
CREATE USER MAPPING FOR PUBLIC SERVER mistaken OPTIONS (user 'remote_app', password '$wrong');
GRANT USAGE ON FOREIGN SERVER mistaken TO app;
CREATE SERVER nowhere FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '1', dbname 'remote_db');
CREATE USER MAPPING FOR PUBLIC SERVER nowhere OPTIONS (user 'remote_app', password '$wrong');
GRANT USAGE ON FOREIGN SERVER nowhere TO app;
EOT
	# a password that is printed by a command
	my $of_command = 'of the command alone';
	my $printed = PostgreSQL::Test::Utils::tempdir() . '/printed';
	open my $fh, '>', $printed or die "$printed: $!";
	print {$fh} "$of_command\n";
	close $fh or die "$printed: $!";
	$local->append_conf('postgresql.conf', "pgpool_ext.password_command = 'cat $printed'");
	$local->reload;
	$boss->run(<<"EOT");
CREATE SERVER commanded FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');
CREATE USER MAPPING FOR PUBLIC SERVER commanded OPTIONS (user 'remote_app', use_password_command 'true');
GRANT USAGE ON FOREIGN SERVER commanded TO app;
EOT
	foreach my $session ($boss, $app)
	{
		my $lease = lease($session, 'shard1');

		is($session->run("SELECT * FROM pgpool.query($lease, 'select 1') AS t(a int)"), '1', 'connection with a password works');
		$session->fails("SELECT pgpool.checkout('mistaken')", '08001',
			qr/DETAIL:.*password authentication failed/, 'wrong password is refused');
		$said .= $session->error;
		ok(wait_until($local, sub { $session->run("SELECT pgpool.checkout('commanded')"); $session->sqlstate }, '08001'), 'password of the command is refused');
		like($session->error, qr/DETAIL:.*password authentication failed/, 'error for the password of the command has the message of the remote server');
		$said .= $session->error;
		$session->fails("SELECT pgpool.checkout('nowhere')", '08001', qr/DETAIL:.*refused/, 'wrong address is reported');
		$said .= $session->error;

		# all views, while a connection is leased
		foreach my $view (split /\n/, $boss->run(
				"SELECT oid::regclass FROM pg_class WHERE relnamespace = 'pgpool'::regnamespace AND relkind = 'v'"))
		{
			$said .= $session->run("SELECT v::text FROM $view v");
		}
		foreach my $view (split /\n/, $boss->run(
				q{SELECT oid::regclass FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'v' AND relname ~ '^pg_stat'}))
		{
			$said .= $session->run("SELECT v::text FROM $view v");
		}
		$said .= $session->run("SELECT * FROM pgpool.query($lease, 'select * from nothing') AS t(a int)") . $session->error;
		$session->run("SELECT pgpool.checkin($lease)");
	}
	like($said, qr/shard1/, 'views show the pool');
	unlike($said, qr/\Q$_\E/, 'views and errors show no password') foreach $REMOTE_APP_PASSWORD, $wrong, $of_command;

	# The only occurrences of passwords are the CREATE USER MAPPING commands.
	my $log = slurp_file($local->logfile);
	like($log, qr/pgpool_ext connected to server/, 'log reports connections');
	like($log, qr/password authentication failed/, 'log reports failures');
	unlike($log, qr/\Q$_\E/, 'log contains no password') foreach $REMOTE_APP_PASSWORD, $wrong, $of_command;

	SKIP:
	{
		skip 'no /proc', 1 unless defined in_shared_memory($local, $wrong);

		# (the catalog's pages in shared buffers contain the mapping's password)
		is(in_shared_memory($local, $wrong, "password=$wrong"), 0, 'shared memory contains no password');
		is(in_shared_memory($local, $of_command), 0, 'shared memory does not contain the password of the command');

		# a pending statement is wiped after use (the text is in two pieces here because
		# views show queries)
		my @leases = map { lease($boss, 'shard1') } 1 .. 2;
		my $waiter = PgpxSession->new($local);
		my $value = 'for the remote alone';

		$waiter->start(q{SELECT length(a) FROM pgpool.query('shard1', 'select $1', 'for the ' || 'remote alone') AS t(a text)});
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'statement with a parameter waits');
		cmp_ok(in_shared_memory($local, $value), '>', 0, 'parameter is in shared memory for the session that will send it');
		$boss->run("SELECT pgpool.checkin($leases[0])");
		is($waiter->finish(30) . $waiter->error, length $value, 'pending statement is executed');
		is(in_shared_memory($local, $value), 0, 'parameter is wiped from shared memory');
		$boss->run("SELECT pgpool.checkin($leases[1])");
		$waiter->quit;

		# the same for statements that are never sent
		my $refused = PgpxSession->new($local);

		make_pool($local, $remote, server => 'few', options => { pool_size => 1, max_waiters => 1 });
		is($refused->run(q{SELECT pgpool.exec('few', 'select 1')}), '1', 'session has cached the pool');
		push @leases, lease($boss, 'few');
		$waiter = PgpxSession->new($local);
		$waiter->start(q{SELECT length(a) FROM pgpool.query('few', 'select $1', 'of the ended ' || 'session') AS t(a text)});
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'another session waits');
		$refused->fails(q{SELECT a FROM pgpool.query('few', 'select $1', 'of the refused ' || 'session') AS t(a text)}, '53300', qr/too many sessions wait/, 'session is refused because the queue is full');
		is(in_shared_memory($local, 'of the refused session'), 0, 'parameter of the refused session is not in shared memory');
		cmp_ok(in_shared_memory($local, 'of the ended session'), '>', 0, 'parameter of the waiter is in shared memory');
		ok(terminate($local, $waiter->pid), 'waiter is terminated');
		is(in_shared_memory($local, 'of the ended session'), 0, 'parameter of the terminated waiter is wiped');
		$boss->run("SELECT pgpool.checkin($leases[2])");
		$_->quit foreach $waiter, $refused;
	}

	# --- privileges -------------------------------------------------------------------

	# A remote server that requests no password must not be used by a non-superuser, even if
	# the mapping has a password.
	my $trusting = remote_node('trusting');
	unlink $trusting->data_dir . '/pg_hba.conf';
	$trusting->append_conf('pg_hba.conf', "local all all trust\nhost all all 127.0.0.1/32 trust\n");
	$trusting->reload;
	make_pool($local, $trusting, server => 'trusting');
	$app->fails("SELECT pgpool.checkout('trusting')", '2F003', qr/password is required/,
		'remote server with trust authentication is refused to a non-superuser');
	$app->fails("SELECT * FROM pgpool.query('trusting', 'select 1') AS t(a int)", '2F003', qr/password is required/, 'remote server with trust authentication is refused in a call');
	is($boss->run("SELECT * FROM pgpool.query('trusting', 'select 1') AS t(a int)"), '1', 'superuser may use a remote server with trust authentication');
	is($boss->run("SELECT idle + reset_pending + resetting FROM pgpool.pools WHERE server = 'trusting' AND total > 0"), '1', 'connection of the superuser is open');
	$app->fails("SELECT pgpool.checkout('trusting')", '2F003', qr/password is required/, 'connection of the superuser is not leased to another user');

	# the same with one mapping for PUBLIC
	$boss->run(<<"EOT");
CREATE SERVER for_all FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '${\ $trusting->port}', dbname 'remote_db');
CREATE USER MAPPING FOR PUBLIC SERVER for_all OPTIONS (user 'remote_app', password 'of no use');
GRANT USAGE ON FOREIGN SERVER for_all TO app;
EOT
	is($boss->run("SELECT * FROM pgpool.query('for_all', 'select 1') AS t(a int)"), '1', 'superuser may use a mapping for PUBLIC');
	$app->fails("SELECT pgpool.checkout('for_all')", '2F003', qr/password is required/,
		q{superuser's connection is not leased to another user});
	$boss->run('SET ROLE app');
	$boss->fails("SELECT pgpool.checkout('for_all')", '2F003', qr/password is required/, q{superuser's connection is not leased to the same session under another role});
	$boss->run('RESET ROLE');

	# a non-superuser cannot use a mapping without a password
	$boss->run("ALTER USER MAPPING FOR app SERVER shard1 OPTIONS (DROP password)");
	$app->fails("SELECT pgpool.checkout('shard1')", '2F003', qr/password is required/, 'mapping of a non-superuser must have a password');
	$boss->run("REVOKE USAGE ON FOREIGN SERVER mistaken FROM app");
	$app->fails("SELECT pgpool.checkout('mistaken')", '42501', qr/permission denied/, 'USAGE on the server is required');

	# a lease can be used by one session and one user only
	my $lease = lease($boss, 'shard1');
	$app->fails("SELECT pgpool.exec($lease, 'select 1')", '42501', qr/another session/, 'lease cannot be used by another session');
	$app->fails("SELECT pgpool.checkin($lease)", '42501', qr/another session/, 'lease cannot be returned by another session');
	$boss->fails("SET ROLE app;\nSELECT pgpool.exec($lease, 'select 1')", '42501', qr/another user/,
		'lease cannot be used by another user of its session');
	$boss->run("RESET ROLE; SELECT pgpool.checkin($lease)");

	# the worker forgets the conninfo of a pool that no longer exists, even if it is
	# otherwise idle
	my $contexts = sub {
		my $what = $_[0] // 'conninfo';
		my $since = -s $local->logfile;

		$local->safe_psql('postgres', 'SELECT pg_log_backend_memory_contexts(' . worker_pid($local) . ')');
		wait_until($local, sub { slurp_file($local->logfile, $since) =~ /Grand total/ ? 1 : 0 }, 1) or die 'nothing was logged';
		return scalar(() = slurp_file($local->logfile, $since) =~ /pgpool_ext $what/g);
	};
	is($contexts->('hosts'), 0, 'worker keeps no list of hosts after the attempts');
	my $known = $contexts->();
	make_pool($local, $remote, server => 'emptied');
	$boss->run(q{SELECT pgpool.discard(pgpool.checkout('emptied'))});
	ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'emptied'}, 0), 'pool is empty');
	is($contexts->(), $known + 1, 'worker keeps the conninfo of an empty pool');
	$local->safe_psql('postgres', 'DROP SERVER emptied CASCADE');
	ok(wait_until($local, sub { $contexts->() }, $known, 30), 'worker forgets the conninfo when the server is dropped');

	# the password is wiped from the worker's memory (this one was never passed to libpq,
	# which keeps copies)
	SKIP:
	{
		my $unsent = 'never sent to anybody';
		my $found_in = sub {
			my ($pid, $secret) = @_;
			my $times = 0;

			open my $memory, '<:raw', "/proc/$pid/mem" or return 'unreadable';
			foreach my $line (grep { / rw-p / } split /\n/, slurp_file("/proc/$pid/maps"))
			{
				my ($from, $to) = map { hex } $line =~ /^(\w+)-(\w+)/;

				return 'unreadable' if $to - $from > 1 << 32;    # the shadow memory of a sanitizer
				sysseek $memory, $from, 0 or next;
				sysread $memory, my $bytes, $to - $from or next;
				$times++ while $bytes =~ /$secret/g;
			}
			return $times;
		};
		my $found = sub { return $found_in->(worker_pid($local), qr/\Q$unsent\E/); };

		make_pool($local, $remote, server => 'unfound', password => $unsent, options => { host => 'a,b,c', port => '1,2' });
		$boss->fails(q{SELECT pgpool.checkout('unfound')}, '08001', qr/could not match 2 port numbers to 3 hosts/, 'connection attempt fails before the password is passed to libpq');
		if ($found->() eq 'unreadable')
		{
			$local->safe_psql('postgres', 'DROP SERVER unfound CASCADE');
			skip "the worker's memory cannot be read", 16;
		}
		is($found->(), 1, "worker has the pool's password once");
		$local->safe_psql('postgres', 'DROP SERVER unfound CASCADE');
		ok(wait_until($local, $found, 0, 30), q{password is wiped from the worker's memory when the pool is dropped});

		# A session reads the password from the catalogs as "password=..". Beside the
		# server's catalog cache it keeps a copy only while it may have to publish it again.
		# Options of several lengths.
		foreach my $length (0, 400, 500, 600, 700, 800, 2000)
		{
			my $session = PgpxSession->new($local);
			my $sent = "never sent with $length bytes";

			make_pool($local, $remote, server => "long$length", password => $sent,
				options => { host => 'a,b,c', port => '1,2', start_commands => 'SELECT 1 /*' . 'x' x $length . '*/' });
			$session->fails("SELECT pgpool.checkout('long$length')", '08001', qr/could not match/, "$length bytes: session publishes the conninfo");
			is($found_in->($session->pid, qr/\Q$sent\E/) - $found_in->($session->pid, qr/password=\Q$sent\E/), 1, "$length bytes: session keeps one copy of the password");
			$local->safe_psql('postgres', "DROP SERVER long$length CASCADE");
			$session->quit;
		}
	}

	# the conninfo is kept for a lock, which is pinged and released even after its server
	# was dropped
	make_pool($local, $remote, server => 'locked');
	$boss->run(q{SELECT pgpool.lock_setup('locked')});
	my $owner = PgpxSession->new($local);
	like($owner->run(q{SELECT pgpool.lock('locked', 'a')}), qr/^\d+$/, 'lock is held');
	$local->safe_psql('postgres', 'DROP SERVER locked CASCADE');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'locked'}, 0), q{connections close when the lock's server is dropped});
	is($contexts->(), $known + 1, 'worker keeps the conninfo for the lock');
	$owner->quit;
	ok(wait_until($local, sub { $contexts->() }, $known, 30), 'worker forgets the conninfo when the lock is released');
	$_->quit foreach $boss, $app;
	stats_add_up($local);
	cmp_ok($contexts->(), '>', 0, 'worker keeps the conninfo of pools');
	$local->safe_psql('postgres', 'DROP EXTENSION pgpool_ext CASCADE');
	ok(wait_until($local, sub { $contexts->() }, 0, 30), 'worker forgets the conninfo when the extension is dropped');
	$local->safe_psql('postgres', 'CREATE EXTENSION pgpool_ext');
	check_invariants($local);
	leak_check($local, $remote, $trusting);
}

# ---------- the environment of libpq
# libpq's environment variables of the postmaster do not affect the pool's connections:
# neither address, options, service nor password.
{
	my $local = local_node('local2', start => 0);
	my $folder = PostgreSQL::Test::Utils::tempdir;

	append_to_file("$folder/pg_service.conf", "[evil]\nhost=192.0.2.1\noptions=-c work_mem=111kB\n");
	append_to_file("$folder/pgpass", "*:*:*:*:$REMOTE_APP_PASSWORD\n");
	append_to_file("$folder/.pgpass", "*:*:*:remote_super:$REMOTE_SUPER_PASSWORD\n");
	chmod 0600, "$folder/pgpass", "$folder/.pgpass";
	{
		local @ENV{qw(PGHOSTADDR PGHOST PGPORT PGDATABASE PGUSER PGPASSWORD PGPASSFILE PGSERVICE
			  PGSERVICEFILE PGSYSCONFDIR PGOPTIONS PGAPPNAME PGSSLMODE PGREQUIREPEER PGTZ PGDATESTYLE
			  PGGEQO PGCLIENTENCODING PGTARGETSESSIONATTRS PGCHANNELBINDING PGCONNECT_TIMEOUT HOME)} = (
			'192.0.2.1', '192.0.2.2', '1', 'template1', 'nobody', $REMOTE_APP_PASSWORD, "$folder/pgpass", 'evil',
			"$folder/pg_service.conf", $folder, '-c work_mem=222kB', 'disguise', 'require', 'nobody', 'Asia/Tokyo', 'German',
			'off', 'SQL_ASCII', 'read-only', 'require', '1', $folder);
		$local->start;
	}
	make_pool($local, $remote, server => 'shard1');

	# (the fake server would otherwise inherit the pipes of sessions)
	my $asked = PgpxFakeServer->new(gss => { login => sub { $_[0]->send(message('R', pack 'N', 7)); $_[0]->read_to_end } });
	my $session = PgpxSession->new($local);
	is($session->run("SELECT * FROM pgpool.query('shard1', 'select 1') AS t(a int)") . $session->error,
		'1', 'connection uses the address of the foreign server');
	my %wanted = (
		application_name => qr/^pgpool_ext/,
		client_encoding => qr/^UTF8$/,
		DateStyle => qr/^ISO/,
		geqo => qr/^on$/,
		TimeZone => qr/^(?!Asia.Tokyo)./);
	foreach my $name (sort keys %wanted)
	{
		like($session->run("SELECT * FROM pgpool.query('shard1', 'show $name') AS t(a text)"),
			$wanted{$name}, "$name of the environment is ignored");
	}
	is($session->run("SELECT * FROM pgpool.query('shard1', 'show work_mem') AS t(a text)"), '222kB', 'PGOPTIONS applies, as to other connections of libpq');
	is($session->run("SELECT * FROM pgpool.query('shard1', 'select current_user::text, current_database()::text') AS t(a text, b text)"),
		'remote_app|remote_db', 'user and database of the environment are ignored');

	# A superuser's mapping may lack a password. A password of the environment is not used.
	my $port = $remote->port;
	$session->run(<<"EOT");
CREATE SERVER bare FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');
CREATE USER MAPPING FOR CURRENT_USER SERVER bare OPTIONS (user 'remote_app');
EOT
	$session->fails("SELECT pgpool.checkout('bare')", '08001', qr/DETAIL:.*(?:no password|password authentication failed)/,
		'neither PGPASSWORD nor PGPASSFILE is used');
	unlike($session->error, qr/\Q$REMOTE_APP_PASSWORD/, 'error does not show the password');

	# The .pgpass file in the home directory of the server's account is not used if a user
	# needs a password of its own, whether the mapping has none or a wrong one. A mapping
	# with password_required 'false' shows that the file is found.
	{
		my $app = PgpxSession->new($local, user => 'app');
		my $who = q{SELECT a FROM pgpool.query('homely', 'select current_user') AS t(a text)};

		$session->run(<<"EOT");
CREATE SERVER homely FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', retry_min '1ms', retry_max '1ms');
CREATE USER MAPPING FOR app SERVER homely OPTIONS (user 'remote_super');
GRANT USAGE ON FOREIGN SERVER homely TO app;
EOT
		$app->fails($who, '2F003', qr/password is required/, '.pgpass is not used for a mapping without a password');
		$session->run(q{ALTER USER MAPPING FOR app SERVER homely OPTIONS (ADD password 'wrong')});
		$app->fails($who, '08001', qr/DETAIL:.*password authentication failed/, '.pgpass is not used for a mapping with a wrong password');
		$session->run(q{ALTER USER MAPPING FOR app SERVER homely OPTIONS (DROP password, ADD password_required 'false')});
		is($app->run($who) . $app->error, 'remote_super', '.pgpass is used if no password is required');
		$app->quit;
	}

	# An option that the server does not set has libpq's default, not the environment's
	# value.
	$session->run("CREATE SERVER vague FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port');"
		  . "CREATE USER MAPPING FOR CURRENT_USER SERVER vague OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')");
	$session->fails("SELECT pgpool.checkout('vague')", '08001', qr/database "remote_app" does not exist/,
		q{default database has the name of the remote user});

	# Kerberos tickets of the server's account are not used for users who need a password,
	# even if the remote server requests one. libpq supports this from version 16 on.
	SKIP:
	{
		$session->run(q(CREATE SERVER asked FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (require_auth 'gss')));
		skip 'libpq has no require_auth', 5 if $session->error ne '';

		my $app = PgpxSession->new($local, user => 'app');

		make_pool($local, $asked, server => 'gss', remote_dbname => 'gss',
			options => { sslmode => PgpxFakeServer::sslmode(), require_auth => 'gss' });
		foreach my $wanted ('gss', 'scram-sha-256,gss', '!md5', '!gss', '')
		{
			$session->run("ALTER SERVER gss OPTIONS (SET require_auth '$wanted')") if $wanted ne '';
			$session->run('ALTER SERVER gss OPTIONS (DROP require_auth)') if $wanted eq '';
			$app->fails(q(SELECT pgpool.checkout('gss', '20 s')), '08001', qr/authentication method requirement .* failed: server requested GSSAPI/,
				"require_auth '$wanted': GSSAPI request is refused if a password is required");
		}
		$app->quit;
	}

	$session->quit;
	stats_add_up($local);
	check_invariants($local);
	leak_check($local, $remote);
}

done_testing();

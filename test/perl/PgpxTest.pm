# Helpers for TAP tests: a local server with the extension, a remote server that it
# connects to over TCP with SCRAM, waiting for a condition, and the checks at the end of
# each test.
#
#   use PgpxTest;
#
#   my $remote = remote_node('remote');
#   my $local = local_node('local', conf => ["pgpool_ext.workers = 2"]);
#   make_pool($local, $remote, server => 'shard1', options => { pool_size => 2 });
#   ...
#   my $session = PgpxSession->new($local);
#   wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1');
#   check_invariants($local);
#   leak_check($local, $remote);
#   done_testing();
package PgpxTest;

use strict;
use warnings;

use Exporter 'import';
use File::Basename 'dirname';
use IPC::Run;
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use PgpxNode;
use PgpxSession;

our @EXPORT = qw(
  local_node remote_node make_pool remote_sessions start_pgbouncer
  wait_until check_invariants leak_check stats_add_up
  worker_pid threads_of in_shared_memory terminate lease connects_of
  cancel_running are_idle one_leased_one_idle idle_of alive closes takes_effect clean_slate is_logged reader_has_ended over_tls descriptors_wanted
  $REMOTE_APP_PASSWORD $REMOTE_SUPER_PASSWORD
);
our @EXPORT_OK = qw(pool becomes);

our $REMOTE_APP_PASSWORD = 'secret of the remote';
our $REMOTE_SUPER_PASSWORD = 'root secret';
my $first;    # the first node of local_node

# A server with the library preloaded.
#   conf => [lines]   appended to postgresql.conf
#   preload => 0      without shared_preload_libraries
#   start => 0        do not start it
#   install => ...    use a separate installation, see PgpxInstall.pm
#   bindir => folder  the programs of another server; init => [options of initdb]
sub local_node
{
	my ($name, %args) = @_;

	check_argument_names(\%args, qw(conf preload start install bindir init));
	my $path = $args{install} ? $args{install}->path : $args{bindir} ? dirname($args{bindir}) : undef;
	my $node = new_node($name, $args{init}, $path ? (install_path => $path) : ());

	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pgpool_ext'")
	  if $args{preload} // 1;
	$first //= $node;
	return configure($node, %args);
}

# A server as on another machine: SCRAM over TCP on 127.0.0.1. If PGPX_TEST_TLS names a
# folder with a certificate, it accepts TLS only (tls => 0: never; tls => 1: always,
# with a certificate of its own). The tests' own sessions use its private socket.
# Database remote_db, role remote_app, superuser remote_super. conf and start as above.
sub remote_node
{
	my ($name, %args) = @_;

	check_argument_names(\%args, qw(conf start tls));
	my $sql = <<"EOT";
CREATE ROLE remote_super LOGIN SUPERUSER PASSWORD '$REMOTE_SUPER_PASSWORD';
CREATE ROLE remote_app LOGIN PASSWORD '$REMOTE_APP_PASSWORD';
CREATE DATABASE remote_db OWNER remote_app;
EOT
	my $node = do { local $ENV{PGPX_CLUSTER_SQL} = $sql; new_node($name) };
	my $tls = $args{tls} ? certificate() : defined $args{tls} ? undef : $ENV{PGPX_TEST_TLS};
	my $host = $tls ? 'hostssl' : 'host';

	unlink $node->data_dir . '/pg_hba.conf';
	$node->append_conf('pg_hba.conf', <<"EOT");
local all all trust
$host all all 127.0.0.1/32 scram-sha-256
EOT
	$node->append_conf('postgresql.conf', <<"EOT") if $tls;
ssl = on
ssl_cert_file = '$tls/server.crt'
ssl_key_file = '$tls/server.key'
EOT
	$node->append_conf('postgresql.conf', <<"EOT");
listen_addresses = '127.0.0.1'
password_encryption = 'scram-sha-256'
EOT
	configure($node, %args, start => 1);

	# the installed initdb has not executed them
	if ($node->safe_psql('postgres', q{SELECT count(*) FROM pg_database WHERE datname = 'remote_db'}) eq '0')
	{
		$node->safe_psql('postgres', $_) foreach split /\n/, $sql;
	}
	$node->stop unless $args{start} // 1;
	return $node;
}

# Reject unknown arguments, which would otherwise be ignored silently.
sub check_argument_names
{
	my ($args, @names) = @_;

	foreach my $name (sort keys %$args)
	{
		die "unknown argument: $name" unless grep { $_ eq $name } @names;
	}
	return;
}

sub new_node
{
	my ($name, $init, @args) = @_;
	my $node = PgpxNode->new($name, @args);

	$node->init(extra => [ '--encoding=UTF8', '--locale=C', @{ $init // [] } ]);
	$node->append_conf('postgresql.conf', <<"EOT");
max_connections = 100
max_prepared_transactions = 10
log_statement = none
EOT
	return $node;
}

sub configure
{
	my ($node, %args) = @_;

	$node->append_conf('postgresql.conf', "$_\n") foreach @{ $args{conf} // [] };
	$node->start if $args{start} // 1;
	return $node;
}

# Create the extension, a foreign server, and user mappings for the superuser and for
# the ordinary role app, which may use the server. An existing extension and role are
# kept.
#   server => name     default: remote
#   dbname => name     local database; default: postgres
#   remote_dbname      default: remote_db
#   options => {...}   of the server, beside host, port and dbname
#   user, password     on the remote server; default: remote_app's
sub make_pool
{
	my ($local, $remote, %args) = @_;
	my $server = $args{server} // 'remote';
	my $user = $args{user} // 'remote_app';
	my $password = $args{password} // $REMOTE_APP_PASSWORD;
	my %options = (
		host => '127.0.0.1',
		port => $remote->port,
		dbname => $args{remote_dbname} // 'remote_db',
		%{ $args{options} // {} });
	my $list = join ', ', map { "$_ " . quote($options{$_}) } sort keys %options;
	my $credentials = 'user ' . quote($user) . ', password ' . quote($password);

	$local->safe_psql($args{dbname} // 'postgres', <<"EOT");
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pgpool_ext;
DO \$\$ BEGIN CREATE ROLE app LOGIN; EXCEPTION WHEN duplicate_object THEN END \$\$;
CREATE SERVER $server FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($list);
CREATE USER MAPPING FOR CURRENT_USER SERVER $server OPTIONS ($credentials);
CREATE USER MAPPING FOR app SERVER $server OPTIONS ($credentials);
GRANT USAGE ON FOREIGN SERVER $server TO app;
EOT
	return;
}

# Returns a folder with a self-signed certificate.
sub certificate
{
	my $folder = PostgreSQL::Test::Utils::tempdir();

	system('openssl req -new -x509 -days 2 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1'
		  . " -subj /CN=localhost -keyout $folder/server.key -out $folder/server.crt >$folder/log 2>&1") == 0
	  or die "no certificate: " . slurp_file("$folder/log");
	chmod 0600, "$folder/server.key";
	return $folder;
}

# Start PgBouncer in session mode for a user, with a line of its section "databases".
# Returns its process, its port on 127.0.0.1, and its log file. Returns nothing if it is
# missing.
sub start_pgbouncer
{
	my ($user, $password, $database) = @_;
	my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my $log = "$folder/pgbouncer.log";

	return unless $program;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	PostgreSQL::Test::Utils::append_to_file("$folder/users", qq("$user" "$password"\n));
	PostgreSQL::Test::Utils::append_to_file("$folder/pgbouncer.ini", <<"EOT");
[databases]
$database
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = scram-sha-256
auth_file = $folder/users
server_tls_sslmode = prefer
pool_mode = session
logfile = $log
ignore_startup_parameters = extra_float_digits,IntervalStyle,options
EOT
	my $process = IPC::Run::start([ $program, '-q', "$folder/pgbouncer.ini" ], '<', \'', '>', \my $out, '2>', \my $err);
	wait_until($first, sub { -e $log && slurp_file($log) =~ /process up/ ? 1 : 0 }, 1);
	return ($process, $port, $log);
}

# True if remote servers require TLS, so that the worker relays.
sub over_tls
{
	return defined $ENV{PGPX_TEST_TLS};
}

# SQL expression: the number of file descriptors that the workers need for the existing
# connections.
sub descriptors_wanted
{
	return q{(SELECT coalesce(sum(CASE transport WHEN 'relay' THEN 3 ELSE 1 END), 0)}
	  . q{ FROM pgpool.connections WHERE state <> 'connecting')};
}

# Quotes a text as an SQL literal.
sub quote
{
	my ($value) = @_;

	$value =~ s/'/''/g;
	return "'$value'";
}

# The number of sessions that pools have on the remote server.
sub remote_sessions
{
	my ($remote) = @_;

	return $remote->safe_psql('postgres', sessions_query());
}

sub sessions_query
{
	return "SELECT count(*) FROM pg_stat_activity"
	  . " WHERE application_name LIKE 'pgpool_ext%' AND backend_type = 'client backend'";
}

# Poll until the result equals the expected one, at most for the default timeout, or for $timeout
# seconds if these are more. $what is SQL for the node, or a function. Returns true on success;
# otherwise prints the last result. In void context a timeout fails the test.
sub wait_until
{
	my ($node, $what, $expected, $timeout) = @_;
	my $end = time() + max($timeout // 0, $PostgreSQL::Test::Utils::timeout_default);
	my ($got, $err, $polls) = (undef, undef, 0);

	$expected //= 't';
	while (1)
	{
		if (ref $what)
		{
			$got = $what->();
		}
		else
		{
			# psql, which runs several statements, may have exited before its input was
			# written, if the server refused the connection
			my $status = eval { $node->psql('postgres', $what, stdout => \$got, stderr => \$err) };

			# ignore a result with an error
			$got = undef if !defined $status || $status != 0;
			$err = $@ if !defined $status;
		}
		return 1 if defined $got && $got eq $expected;
		$polls++;
		last if time() > $end;
		usleep(min(50_000, 5_000 * $polls));
	}
	diag('timed out waiting for "' . $expected . '"'
		  . (ref $what ? '' : " from: $what")
		  . ', got: ' . ($got // $err // 'nothing'));
	print_state($node);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	fail('expected state is reached') if !defined wantarray;
	return 0;
}

# Print the sessions and workers of a local server and their wait events.
sub print_state
{
	my ($node) = @_;
	my $said;

	eval {
		$node->psql('postgres', <<'EOT', stdout => \$said, timeout => 10, timed_out => \my $timed_out, on_error_stop => 0);
SELECT 'process', pid, backend_type, state, wait_event, now() - state_change, left(regexp_replace(query, '\s+', ' ', 'g'), 80) FROM pg_stat_activity
	WHERE (backend_type = 'client backend' OR backend_type ~ 'pgpool_ext') AND pid <> pg_backend_pid() LIMIT 20;
SELECT 'worker', worker, pid, state, connections, descriptors FROM pgpool.workers;
SELECT 'pool', server, state, total, leased, idle, reset_pending, connecting, waiters, last_error FROM pgpool.pools LIMIT 10;
SELECT 'connection', server, connection, c.state, now() - state_since, transport, remote_pid, l.lease, l.pid FROM pgpool.connections AS c LEFT JOIN pgpool.leases AS l USING (server, connection, remote_pid) LIMIT 20;
SELECT 'waiter', server, pid, now() - waiting_since, reason FROM pgpool.waiters LIMIT 20;
SELECT 'lock', name, token, state, pid, now() - since, now() - last_ping FROM pgpool.locks LIMIT 20;
EOT
	};
	diag($said) if $said;

	# kernel state of each process
	foreach my $pid (($said // '') =~ /^process\|(\d+)/mg)
	{
		my %process = map { $_ => eval { slurp_file("/proc/$pid/$_") } // '' } qw(stat wchan syscall);

		diag("process $pid: " . ($process{stat} =~ /\) (\w)/ ? $1 : 'gone') . " $process{wchan} $process{syscall}");
	}
	return;
}

# Assert that the shared state is consistent.
sub check_invariants
{
	my ($node, $name) = @_;
	my $err = '';
	my $status = $node->psql('postgres', 'SELECT pgpool.check_invariants()',
		stderr => \$err);

	return is($status == 0 ? '' : $err || 'failed', '', $name // 'invariants hold');
}

# Assert that the counters of every pool are consistent with each other. The views are not
# read at the same moment, so a difference counts only if it remains.
sub stats_add_up
{
	my ($node, $name) = @_;

	return ok(wait_until($node, <<"EOT", ''), $name // 'counters add up');
SELECT to_jsonb(s) || jsonb_build_object('leased', p.leased, 'open', o.open)
FROM pgpool.stats s JOIN pgpool.pools p USING (pool_id),
	LATERAL (SELECT count(*) AS open FROM pgpool.connections c
		WHERE c.pool_id = p.pool_id AND c.opened_at IS NOT NULL) o
WHERE s.checkouts <> s.checkins + s.reclaimed + s.retried
		+ s.terminated + s.lease_timeouts + p.leased
	OR s.waited <> s.granted + s.timeouts + s.cancelled + s.failed
	OR s.connects <> s.closed_idle + s.closed_lifetime + s.closed_overflow + s.closed_evicted
		+ s.closed_reset + s.closed_broken + s.closed_stale + s.closed_with_lease + o.open
EOT
}

# The process ID of the pool worker; '' while none runs.
sub worker_pid
{
	my ($local) = @_;

	return $local->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker'");
}

# The number of threads of a worker in addition to its main thread.
sub threads_of
{
	my ($worker) = @_;

	return scalar(grep { !m{/task/$worker$} } glob "/proc/$worker/task/*");
}

# Counts the chunks of shared memory (which other users of the machine might be able to
# read) that contain $what, and not $unless. Returns undef if the memory cannot be read.
sub in_shared_memory
{
	my ($node, $what, $unless) = @_;
	my $pid = worker_pid($node);
	my ($found, $read) = (0, 0);

	return if !-r "/proc/$pid/maps";
	foreach my $line (grep { m{rw-s } } split /\n/, PostgreSQL::Test::Utils::slurp_file("/proc/$pid/maps"))
	{
		my ($from, $to) = map { hex } $line =~ /^(\w+)-(\w+)/;
		my $memory = '';

		open my $fh, '<:raw', "/proc/$pid/mem" or next;
		next unless sysseek $fh, $from, 0;
		for (my $at = $from; $at < $to; $at += 1 << 20)
		{
			my $tail = substr $memory, -64;

			sysread($fh, $memory, $to - $at < 1 << 20 ? $to - $at : 1 << 20) or last;
			$read++;
			$memory = $tail . $memory;
			$found++ if $memory =~ /\Q$what\E/ && !(defined $unless && $memory =~ /\Q$unless\E/);
		}
	}
	return $read > 0 ? $found : undef;
}

# Call pg_terminate_backend, and wait until the process has exited.
sub terminate
{
	my ($node, $pid) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	return wait_until($node,
		"SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0');
}

# Checks out a connection; returns the lease id.
sub lease
{
	my ($session, $server) = @_;
	my $lease = $session->run("SELECT pgpool.checkout('$server', '30 s')");

	die "no lease: " . $session->error unless $lease =~ /^\d+$/;
	return $lease;
}

# Wait until all connections to a server are idle, so that the next lease opens no other one.
sub are_idle
{
	my ($node, $server) = @_;

	return wait_until($node, "SELECT bool_and(state = 'idle') FROM pgpool.connections WHERE server = '$server'");
}

# Cancel a statement once it runs on a lease, and assert that it fails.
sub cancel_running
{
	my ($node, $session, $sql, $name) = @_;
	my $pid = $session->pid;

	$session->start($sql);
	wait_until($node, "SELECT state FROM pgpool.leases WHERE pid = $pid AND state = 'active'", 'active');
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	$session->finish;
	return $session->failed('57014', qr/canceling statement due to user request/, $name);
}

# Assert that a node logs a text, at or behind an offset.
sub is_logged
{
	my ($node, $since, $pattern, $name) = @_;

	return ok(wait_until($node, sub { slurp_file($node->logfile, $since) =~ $pattern ? 1 : 0 }, 1), $name);
}

# Assert that no catalog reader runs, or that it ends.
sub reader_has_ended
{
	my ($node) = @_;

	return ok(wait_until($node, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext catalog reader'}, '0'), 'catalog reader has ended');
}

# Evaluates the log of a remote server with log_connections since its last start.
# Returns how often more connection attempts of a pool were under way than the limit 1,
# 2, 4, .. (doubled by each success) allows, and the number of successes.
sub connects_of
{
	my ($remote, $server) = @_;
	my @log = split /\n/, (split /database system is ready to accept connections/, slurp_file($remote->logfile))[-1];
	my %mine = map { /\[(\d+)\] .*connection authorized: .*application_name=pgpool_ext\/$server\b/ ? ($1 => 1) : () } @log;
	my ($in, $pending, $too_many) = (0, 0, 0);

	foreach (@log)
	{
		next unless /\[(\d+)\] .*connection (received|authorized)/ && $mine{$1};
		$2 eq 'received' ? $pending++ : ($pending--, $in++);
		$too_many++ if $pending > 2**$in;
	}
	return ($too_many, $in);
}

# Helpers for tests of changes under a pool of two connections. A stage is a hash: the
# nodes local (with log_connections) and remote, the sessions holder and other, the
# server's name.

# One connection is leased by the holder, one is idle. Returns the lease and the remote
# process IDs.
sub one_leased_one_idle
{
	my ($stage) = @_;
	my ($local, $holder, $other, $server) = @$stage{qw(local holder other server)};
	my $lease = lease($holder, $server);
	my $second = lease($other, $server);

	$holder->run("SELECT pgpool.exec($lease, 'select 1')");
	$other->run("SELECT pgpool.checkin($second)");
	return ($lease, map {
		$local->safe_psql('postgres', "SELECT remote_pid FROM pgpool.connections WHERE server = '$server' AND state IN ($_)")
	} "'leased'", "'idle', 'reset_pending', 'resetting'");
}

# Assert that a user's session can use a server. Returns the remote process ID of the
# connection, which is idle then.
sub idle_of
{
	my ($local, $session, $server, $user) = @_;

	is($session->run("SELECT pgpool.exec('$server', 'select 1')"), '1', "$user may use $server");
	return $local->safe_psql('postgres',
		"SELECT remote_pid FROM pgpool.connections WHERE server = '$server' AND local_user = '$user'");
}

# Columns of a pool of the first local node, from pgpool.pools and pgpool.stats.
sub pool
{
	my ($server, $columns) = @_;

	return $first->safe_psql('postgres', "SELECT $columns FROM pgpool.pools JOIN pgpool.stats USING (pool_id, database, server, local_user) WHERE server = '$server'");
}

# Assert that they become as expected.
sub becomes
{
	my ($server, $columns, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(wait_until($first, sub { pool($server, $columns) }, $expected), "$server: $name");
}

# True if a remote session exists.
sub alive
{
	my ($stage, $pid) = @_;

	return $stage->{remote}->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid") eq '1';
}

# Assert that SQL, or a function, makes the worker close the connection to a remote
# session. The test makes no further call before the connection has closed.
sub closes
{
	my ($stage, $pid, $what, $name) = @_;
	my ($local, $remote) = @$stage{qw(local remote)};
	my $connection = $local->safe_psql('postgres', "SELECT connection FROM pgpool.connections WHERE remote_pid = $pid");
	my $log = -s $local->logfile;

	ref $what ? $what->() : $local->safe_psql('postgres', $what);
	is_logged($local, $log, qr/closed connection $connection to server/, $name);
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0'), 'remote session has ended');
	return;
}

# Assert that SQL closes the idle connection at once and the leased one at checkin.
# $next is the SQLSTATE of the next use ('' for success). $back undoes the change.
sub takes_effect
{
	my ($stage, $sql, $next, $back) = @_;
	my ($local, $holder, $other, $server) = @$stage{qw(local holder other server)};
	my ($lease, $leased, $idle) = one_leased_one_idle($stage);

	$local->safe_psql('postgres', "BEGIN; $sql; ROLLBACK");
	ok(alive($stage, $idle), "$sql, rolled back: idle connection stays open");
	closes($stage, $idle, $sql, "$sql: idle connection closes");
	is($holder->run("SELECT pgpool.exec($lease, 'select 1')"), '1', "$sql: lease stays usable");
	closes($stage, $leased, sub { $holder->run("SELECT pgpool.checkin($lease)") }, "$sql: leased connection closes at checkin");
	$other->run("SELECT pgpool.exec('$server', 'select 1')");
	is($other->sqlstate, $next, "$sql: next use has the expected result");
	return unless defined $back;
	$local->safe_psql('postgres', $back);
	is($other->run("SELECT pgpool.exec('$server', 'select 1')"), '1', "$back: next use succeeds");
	return;
}

# Between two parts of a file: assert that no lease and no waiter is left, and remove what the
# first part has made: servers, tables and functions of the databases postgres and remote_db, and
# other local databases.
sub clean_slate
{
	my ($local, $remote) = @_;
	my $public = 'DROP SCHEMA public CASCADE; CREATE SCHEMA public AUTHORIZATION CURRENT_USER; GRANT ALL ON SCHEMA public TO PUBLIC';

	ok(wait_until($local, 'SELECT count(*) FROM pgpool.leases', '0'), 'no lease is left');
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '0'), 'no waiter is left');
	$local->safe_psql('postgres', <<"EOT");
SET client_min_messages = error;
DO \$\$ DECLARE name text; BEGIN
	FOR name IN SELECT srvname FROM pg_foreign_server JOIN pg_foreign_data_wrapper w ON w.oid = srvfdw WHERE fdwname = 'pgpool_fdw' LOOP
		EXECUTE format('DROP SERVER %I CASCADE', name);
	END LOOP;
END \$\$;
$public;
EOT
	$local->safe_psql('postgres', "DROP DATABASE $_ WITH (FORCE)")
	  foreach split /\n/, $local->safe_psql('postgres', q{SELECT datname FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres'});
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.pools', '0'), 'no pool is left');
	$remote->safe_psql('remote_db', "SET client_min_messages = error; $public; DROP SCHEMA IF EXISTS pgpool_lock CASCADE");
	return;
}

# Assert that no lease and no waiter is left and, after the local server has stopped, no
# session on the remote servers. Stops the local server.
sub leak_check
{
	my ($local, @remotes) = @_;

	ok( wait_until($local, 'SELECT count(*) FROM pgpool.leases', '0'),
		'no lease is left');
	ok( wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '0'),
		'no waiter is left');
	$local->stop('fast');
	ok(wait_until($_, sessions_query(), '0'),
		'no session is left on the remote server')
	  foreach @remotes;
	return;
}

1;

# Helpers for TAP tests: a local server with the pool, a remote one that it
# connects to over TCP with SCRAM, waiting for what is to come true, and the
# checks that each test ends with.
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
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use PgpxSession;

our @EXPORT = qw(
  local_node remote_node make_pool remote_sessions
  wait_until check_invariants leak_check stats_add_up
  worker_pid terminate lease seconds over_tls descriptors_wanted
  $REMOTE_APP_PASSWORD $REMOTE_SUPER_PASSWORD
);

our $REMOTE_APP_PASSWORD = 'secret of the remote';
our $REMOTE_SUPER_PASSWORD = 'root secret';

# A server with the library preloaded.
#   conf => [lines]   appended to postgresql.conf
#   preload => 0      without shared_preload_libraries
#   start => 0        do not start it
sub local_node
{
	my ($name, %args) = @_;
	my $node = new_node($name);

	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pgpool_ext'")
	  if $args{preload} // 1;
	return configure($node, %args);
}

# A server as on another machine: SCRAM over TCP on 127.0.0.1; over TLS alone if
# PGPX_TEST_TLS names a folder with a certificate (tls => 0: not even then; tls => 1:
# always, with a certificate of its own).  The tests' own
# sessions go through its private socket.  Database remote_db, role remote_app,
# superuser remote_super.  conf and start as above.
sub remote_node
{
	my ($name, %args) = @_;
	my $node = new_node($name);
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
	$node->safe_psql('postgres', <<"EOT");
CREATE ROLE remote_super LOGIN SUPERUSER PASSWORD '$REMOTE_SUPER_PASSWORD';
CREATE ROLE remote_app LOGIN PASSWORD '$REMOTE_APP_PASSWORD';
EOT
	$node->safe_psql('postgres', 'CREATE DATABASE remote_db OWNER remote_app');
	$node->stop unless $args{start} // 1;
	return $node;
}

sub new_node
{
	my ($name) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(extra => [ '--encoding=UTF8', '--locale=C' ]);
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

# Extension, foreign server and user mappings: of the superuser, and of the
# ordinary role app, which may use the server.  Existing ones of extension and
# role are kept.
#   server => name     default: remote
#   dbname => name     the local database; default: postgres
#   remote_dbname      default: remote_db
#   options => {...}   of the server, beside host, port and dbname
#   user, password     at the remote; default: remote_app's
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

# A folder with a certificate that nobody verifies.
sub certificate
{
	my $folder = PostgreSQL::Test::Utils::tempdir();

	system('openssl req -new -x509 -days 2 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1'
		  . " -subj /CN=localhost -keyout $folder/server.key -out $folder/server.crt >$folder/log 2>&1") == 0
	  or die "no certificate: " . slurp_file("$folder/log");
	chmod 0600, "$folder/server.key";
	return $folder;
}

# Do remote nodes want TLS, so that the worker relays?
sub over_tls
{
	return defined $ENV{PGPX_TEST_TLS};
}

# SQL: how many descriptors workers need for the connections that there are.
sub descriptors_wanted
{
	return q{(SELECT coalesce(sum(CASE transport WHEN 'relay' THEN 3 ELSE 1 END), 0)}
	  . q{ FROM pgpool.connections WHERE state <> 'connecting')};
}

# A text as a literal of SQL.
sub quote
{
	my ($value) = @_;

	$value =~ s/'/''/g;
	return "'$value'";
}

# How many sessions of the pool the remote has.
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

# Ask again until the answer is the expected one, for at most so many seconds.
# $what: SQL for the node, or a function.  Returns whether it became true; says
# what it saw last if not.
sub wait_until
{
	my ($node, $what, $expected, $timeout) = @_;
	my $end = time() + ($timeout // $PostgreSQL::Test::Utils::timeout_default);
	my ($got, $err);

	$expected //= 't';
	while (1)
	{
		if (ref $what)
		{
			$got = $what->();
		}
		else
		{
			my $status = $node->psql('postgres', $what, stdout => \$got, stderr => \$err);

			# an answer that came with an error is none
			$got = undef if $status != 0;
		}
		return 1 if defined $got && $got eq $expected;
		last if time() > $end;
		usleep(50_000);
	}
	diag('waited in vain for "' . $expected . '"'
		  . (ref $what ? '' : " from: $what")
		  . ', got: ' . ($got // $err // 'nothing'));
	return 0;
}

# Everything that must add up does: one assertion.
sub check_invariants
{
	my ($node, $name) = @_;
	my $err = '';
	my $status = $node->psql('postgres', 'SELECT pgpool.check_invariants()',
		stderr => \$err);

	return is($status == 0 ? '' : $err || 'failed', '', $name // 'the invariants hold');
}

# The counters of every pool explain each other: one assertion.
sub stats_add_up
{
	my ($node, $name) = @_;
	my $wrong = $node->safe_psql('postgres', <<"EOT");
SELECT to_jsonb(s) || jsonb_build_object('leased', p.leased, 'waiters', p.waiters,
	'open', o.open)
FROM pgpool.stats s JOIN pgpool.pools p USING (pool_id),
	LATERAL (SELECT count(*) AS open FROM pgpool.connections c
		WHERE c.pool_id = p.pool_id AND c.opened_at IS NOT NULL) o
WHERE s.checkouts <> s.checkins + s.discards + s.reclaimed + s.retried
		+ s.terminated + s.lease_timeouts + p.leased
	OR s.waited <> s.granted + s.timeouts + s.cancelled + s.failed + p.waiters
	OR s.connects <> s.closed_idle + s.closed_lifetime + s.closed_uses
		+ s.closed_overflow + s.closed_evicted + s.closed_reset + s.closed_broken
		+ s.closed_drained + s.closed_stale + s.closed_terminated
		+ s.closed_holder_died + s.closed_discarded + o.open
EOT

	return is($wrong, '', $name // 'the counters add up');
}

# The process of the pool worker; '' while none runs.
sub worker_pid
{
	my ($local) = @_;

	return $local->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker'");
}

# pg_terminate_backend, and wait until the process is gone.
sub terminate
{
	my ($node, $pid) = @_;

	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	return wait_until($node,
		"SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0');
}

# A session's lease of a server.
sub lease
{
	my ($session, $server) = @_;
	my $lease = $session->run("SELECT pgpool.checkout('$server', '30 s')");

	die "no lease: " . $session->error unless $lease =~ /^\d+$/;
	return $lease;
}

# How long a function takes.  Only ever compare it with a generous bound.
sub seconds(&)
{
	my ($function) = @_;
	my $start = time();

	$function->();
	return time() - $start;
}

# Nothing is left behind: no lease, no waiter, and after the local server has
# stopped no session at the remote (undef: do not ask).  Stops the local server.
sub leak_check
{
	my ($local, $remote, $timeout) = @_;

	$timeout //= 10;
	ok( wait_until($local, 'SELECT count(*) FROM pgpool.leases', '0', $timeout),
		'no lease is left');
	ok( wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '0', $timeout),
		'no waiter is left');
	$local->stop('fast');
	ok(wait_until($remote, sessions_query(), '0', $timeout),
		'no session is left at the remote')
	  if defined $remote;
	return;
}

1;

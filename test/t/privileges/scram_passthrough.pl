# With use_scram_passthrough a pool logs in with the SCRAM keys of its sessions. Sessions with
# the same keys share a pool. It ends when the password of their role changes.
use strict;
use warnings;

use Digest::SHA qw(hmac_sha256 sha256);
use MIME::Base64;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', conf => [
	'log_statement = none', 'pgpool_ext.log_connections = on', 'log_min_error_statement = panic', 'log_min_messages = debug1' ]);
my $port = $remote->port;
my $address = "host '127.0.0.1', port '$port', dbname 'remote_db'";
my $boss = PgpxSession->new($local);

$boss->run(q{CREATE EXTENSION pgpool_ext; CREATE EXTENSION postgres_fdw});

# --- before PostgreSQL 18 sessions have no keys
if ($boss->run('SHOW server_version_num') < 180000)
{
	$boss->fails("CREATE SERVER through FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($address, use_scram_passthrough 'true')",
		'HV00D', qr/invalid option "use_scram_passthrough"\nDETAIL:  SCRAM pass-through needs PostgreSQL 18/, 'option is refused before PostgreSQL 18');
	$boss->run("CREATE FOREIGN DATA WRAPPER dblink_fdw; CREATE SERVER through FOREIGN DATA WRAPPER dblink_fdw OPTIONS ($address, use_scram_passthrough 'maybe');"
		. 'CREATE USER MAPPING FOR PUBLIC SERVER through');
	$boss->fails(q{SELECT pgpool.checkout('through')}, '0A000', qr/DETAIL:  Option "use_scram_passthrough" needs PostgreSQL 18/, 'server of another wrapper with this option is refused');
	$boss->run(q{ALTER USER MAPPING FOR PUBLIC SERVER through OPTIONS (ADD use_scram_passthrough 'false', ADD user 'remote_app')});
	$boss->fails(q{SELECT pgpool.checkout('through')}, '08001', qr/no password supplied/, q{the mapping's option has precedence});
	$boss->quit;
	check_invariants($local);
	leak_check($local, $remote);
	done_testing();
	exit;
}

# --- setup: role remote_app on both servers, with the same secret
sub set_password
{
	my ($password) = @_;

	$local->safe_psql('postgres', "ALTER ROLE remote_app PASSWORD '$password'");
	my $secret = $local->safe_psql('postgres', q{SELECT rolpassword FROM pg_authid WHERE rolname = 'remote_app'});
	$remote->safe_psql('postgres', "ALTER ROLE remote_app PASSWORD '$secret'");
	return;
}

# A session of remote_app that has logged in by SCRAM.
sub log_in
{
	my ($password) = @_;
	local $ENV{PGPASSWORD} = $password;

	return PgpxSession->new($local, user => 'remote_app');
}

my $first = 'the first password';
my $second = 'the second password';

$boss->run(<<"EOT");
CREATE ROLE remote_app LOGIN;
CREATE ROLE other LOGIN;
CREATE SERVER through FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($address, use_scram_passthrough 'true', pool_size '2');
CREATE SERVER warm FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($address, use_scram_passthrough 'true', min_size '1');
CREATE SERVER mapped FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($address);
CREATE SERVER pgfdw FOREIGN DATA WRAPPER postgres_fdw OPTIONS ($address, use_scram_passthrough 'true');
CREATE SERVER based FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'pgfdw');
GRANT USAGE ON FOREIGN SERVER through, warm, mapped, pgfdw, based TO remote_app, other;
CREATE USER MAPPING FOR remote_app SERVER through;
CREATE USER MAPPING FOR other SERVER through OPTIONS (user 'remote_app');
CREATE USER MAPPING FOR remote_app SERVER warm;
CREATE USER MAPPING FOR remote_app SERVER mapped OPTIONS (use_scram_passthrough 'true');
CREATE USER MAPPING FOR remote_app SERVER pgfdw OPTIONS (password_required 'true');
EOT
set_password($first);
$remote->safe_psql('remote_db', 'CREATE TABLE rows AS SELECT g AS a FROM generate_series(1, 10) AS g; GRANT ALL ON rows TO remote_app');
$boss->run(q{CREATE FOREIGN TABLE rows (a int) SERVER through; CREATE FOREIGN TABLE fdw_rows (a int) SERVER pgfdw OPTIONS (table_name 'rows'); GRANT ALL ON rows, fdw_rows TO remote_app, other});

my $untrusted = PgpxSession->new($local, user => 'remote_app');
my $pid_of = sub { return $_[0]->run(sprintf(q{SELECT a FROM pgpool.query('%s', 'select pg_backend_pid()') AS t(a int)}, $_[1] // 'through')) . $_[0]->error; };

# --- sessions without keys
$untrusted->fails(q{SELECT pgpool.checkout('through')}, '2F003', qr/password is required\nDETAIL:  SCRAM pass-through has no keys, because this session did not log in by SCRAM/, 'session that has logged in without SCRAM has no keys');
$untrusted->fails('SELECT a FROM rows', '2F003', qr/password is required/, 'foreign table cannot be read without keys');
$untrusted->quit;
unlink $local->data_dir . '/pg_hba.conf';
$local->append_conf('pg_hba.conf', "local all remote_app,other scram-sha-256\nlocal all all trust\n");
$local->reload;
ok(wait_until($local, q{SELECT count(*) FROM pg_hba_file_rules WHERE auth_method = 'scram-sha-256'}, 1), 'role has to log in by SCRAM');

# --- sessions of one role share a pool
my $one;
ok(wait_until($local, sub { $one->quit if $one; $one = log_in($first); $pid_of->($one) =~ /^\d+$/ ? 1 : 0 }, 1), 'session with keys is granted a connection') || diag($pid_of->($one));
my $two = log_in($first);
my $pid = $pid_of->($one);

is($pid_of->($two), $pid, 'another session of the role uses the same connection');
is($boss->run(q{SELECT count(*), sum(total) FROM pgpool.pools WHERE server = 'through'}), '1|1', 'role has one pool');
is($one->run(q{SELECT u FROM pgpool.query('through', 'select current_user::text') AS t(u text)}), 'remote_app', 'remote user is that of the mapping');
is($one->run('SELECT sum(a) FROM rows'), '55', 'foreign table is read');
is($one->run('INSERT INTO rows VALUES (11) RETURNING a'), '11', 'foreign table is written');
like($pid_of->($one, 'mapped'), qr/^\d+$/, 'keys are used because of the option of a user mapping');
like($pid_of->($one, 'pgfdw'), qr/^\d+$/, 'keys are used for a server of postgres_fdw');
like($pid_of->($one, 'based'), qr/^\d+$/, 'keys are used for a base server of postgres_fdw');
is($boss->run(q{SELECT pgpool.attach_postgres_fdw() IS NOT NULL}) . $boss->error, 't', 'tables of postgres_fdw are attached');
is($one->run('SELECT sum(a) FROM fdw_rows') . $one->error, '66', 'attached table is read');
$boss->run(q{ALTER USER MAPPING FOR remote_app SERVER through OPTIONS (ADD use_scram_passthrough 'false')});
$one->fails(q{SELECT pgpool.checkout('through')}, '2F003', qr/password is required\nDETAIL:  Non-superusers must provide a password/, q{option of the mapping has precedence});
ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE server = 'through' AND total > 0}, 0), 'pool with the keys has ended');
$boss->run(q{ALTER USER MAPPING FOR remote_app SERVER through OPTIONS (DROP use_scram_passthrough)});
like($pid_of->($one), qr/^\d+$/, 'pool with the keys is opened again');

# keys are those of the session's login, also under another role
$boss->run('GRANT other TO remote_app');
$one->run('SET ROLE other');
like($pid_of->($one), qr/^\d+$/, 'keys of the login serve the mapping of the current role');
$one->run('RESET ROLE');
$boss->fails(qq{SET ROLE other; SELECT pgpool.checkout('through')}, '2F003', qr/password is required/, 'session without keys is not granted a connection of the pool');
$boss->run('RESET ROLE');

# --- a background worker has no keys
like($pid_of->($one, 'warm'), qr/^\d+$/, 'pool with min_size is open');
ok(terminate($local, worker_pid($local)), 'worker is terminated');
ok(wait_until($local, sub { $pid_of->($two) =~ /^\d+$/ ? 1 : 0 }, 1), 'session publishes its keys to the next worker');

# --- the password changes
my $lease = lease($one, 'through');
$pid = $one->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)");
set_password($second);
is($one->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)"), $pid, 'lease continues after a change of the password');
$two->fails(q{SELECT pgpool.checkout('through')}, '28000', qr/SCRAM keys of this session are outdated\nDETAIL:  The password of role "remote_app" was changed after the session had logged in\.\nHINT:  Log in again/, 'keys from before the change are refused');
my $new = log_in($second);
like($pid_of->($new), qr/^\d+$/, 'session with the new password is granted a connection');
isnt($pid_of->($new), $pid, 'connection with the new keys is another one');
is($one->run("SELECT pgpool.checkin($lease)") . $one->error, '', 'lease is returned');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE server = 'through'}, 1), 'pool with the old keys has ended');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", 0), 'connection with the old keys is closed');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE server = 'warm'}, 0), 'pool with min_size and the old keys has ended, too');
$_->quit foreach $one, $two;

# only the local password
$local->safe_psql('postgres', "ALTER ROLE remote_app PASSWORD '$first'");
$one = log_in($first);
$one->fails(q{SELECT pgpool.checkout('through')}, '08001', qr/password authentication failed/, 'keys that the remote server does not know are refused');
my $secret = $local->safe_psql('postgres', q{SELECT rolpassword FROM pg_authid WHERE rolname = 'remote_app'});
$remote->safe_psql('postgres', "ALTER ROLE remote_app PASSWORD '$secret'");
ok(wait_until($local, sub { $pid_of->($one) =~ /^\d+$/ ? 1 : 0 }, 1), 'keys are accepted when the remote server knows them');

# the password changes while no session is in the database of the pools
$pid = $pid_of->($one);
$_->quit foreach $one, $new, $boss;
$local->end_shared_session;	# it is in the database of the pools, too
$local->safe_psql('template1', "ALTER ROLE remote_app PASSWORD '$second'");
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", 0), 'change of the password in another database closes the connection');
$secret = $local->safe_psql('template1', q{SELECT rolpassword FROM pg_authid WHERE rolname = 'remote_app'});
$remote->safe_psql('postgres', "ALTER ROLE remote_app PASSWORD '$secret'");
$one = log_in($second);
like($pid_of->($one), qr/^\d+$/, 'session with the password of the other database is granted a connection');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.pools WHERE server = 'through'}, 1), 'pool with the keys from before the change in the other database has ended');

# --- secrets
my ($iterations, $salt, $stored) = $secret =~ /^SCRAM-SHA-256\$(\d+):([^\$]+)\$([^:]+):/;
my $u = hmac_sha256(decode_base64($salt) . pack('N', 1), $second);
my $salted = $u;

foreach (2 .. $iterations)
{
	$u = hmac_sha256($u, $second);
	$salted ^= $u;
}
my $client_key = hmac_sha256('Client Key', $salted);

is(encode_base64(sha256($client_key), ''), $stored, 'test knows the client key of the session');
SKIP:
{
	my $found = in_shared_memory($local, $client_key);

	skip 'no /proc', 2 unless defined $found;
	is($found, 0, 'shared memory does not contain the client key');
	is(in_shared_memory($local, encode_base64($client_key, '')), 0, 'shared memory does not contain the client key as text');
}
my $seen = join '', map { $one->run("SELECT v::text FROM $_ v") } qw(pgpool.pools pgpool.connections pgpool.leases pg_stat_activity);
like($seen, qr/through/, 'views show the pool');
unlike($seen, qr/\Q${\ encode_base64($client_key, '')}\E/, 'views do not show the client key');
my $log = slurp_file($local->logfile);
like($log, qr/pgpool_ext connected to server/, 'log reports connections');
unlike($log, qr/\Q$_\E/, 'log contains no key or password') foreach encode_base64($client_key, ''), $first, $second;

# the catalog reader has no keys
$one->quit;
my $since = -s $local->logfile;
$local->restart;
ok(wait_until($local, sub { slurp_file($local->logfile, $since) =~ /cannot open connections to server "warm".*for user "remote_app".*\n.*DETAIL:  password is required/ ? 1 : 0 }, 1), 'pool with min_size waits for a session of the role, and the log has the reason');
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

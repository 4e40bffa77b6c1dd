# libpq's environment variables of the postmaster do not affect the pool's connections:
# neither address, options, service nor password.
use strict;
use warnings;

use PgpxFakeServer qw(message);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', start => 0);
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
	work_mem => qr/^4MB$/,
	TimeZone => qr/^(?!Asia.Tokyo)./);
foreach my $name (sort keys %wanted)
{
	like($session->run("SELECT * FROM pgpool.query('shard1', 'show $name') AS t(a text)"),
		$wanted{$name}, "$name of the environment is ignored");
}
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
done_testing();

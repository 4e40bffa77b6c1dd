# Dump, restore and pg_upgrade of a database with pools: the contents of dumps by
# superusers and by other users, and the pools after the restore.
use strict;
use warnings;

use IPC::Run;
use PgpxInstall;
use PgpxSchema;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the test would be the same over TLS' if over_tls();

my $SECRET = qr/\Q$REMOTE_APP_PASSWORD\E/;
my $folder = PostgreSQL::Test::Utils::tempdir();
my $restored;    # a server that was restored from a dump
my $remote = remote_node('remote');
my $local = local_node('local');

# servers, mappings, privileges and settings by name
my $facts = <<'EOT';
SELECT srvname || ' ' || o FROM pg_foreign_server, unnest(srvoptions) AS o
UNION ALL SELECT srvname || ' of ' || srvowner::regrole || ' ' || coalesce(srvacl::text, '') FROM pg_foreign_server
UNION ALL SELECT concat_ws(' ', srvname, usename, o) FROM pg_user_mappings, unnest(umoptions) AS o
UNION ALL SELECT concat_ws(' ', setrole::regrole, s) FROM pg_db_role_setting, unnest(setconfig) AS s
	WHERE setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
UNION ALL SELECT 'orders ' || count(*) FROM app.orders
ORDER BY 1
EOT

$local->safe_psql('postgres', <<'EOT');
CREATE ROLE app LOGIN;
CREATE ROLE owner LOGIN;
CREATE ROLE operator;
CREATE DATABASE shop OWNER owner;
EOT
make_pool($local, $remote, server => 'shard1', dbname => 'shop', options => { pool_size => 3 });
$local->safe_psql('shop', <<'EOT');
CREATE SERVER batch FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'shard1', pool_size '1');
GRANT USAGE ON FOREIGN SERVER batch TO app;
GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO owner;
-- an administrator's own decisions on what belongs to the extension
GRANT EXECUTE ON FUNCTION pgpool.pause(text), pgpool.resume(text) TO operator;
REVOKE EXECUTE ON FUNCTION pgpool.terminate(bigint) FROM PUBLIC;
REVOKE SELECT ON pgpool.leases FROM PUBLIC;
ALTER DATABASE shop SET pgpool_ext.checkout_timeout = '7s';
ALTER ROLE app SET pgpool_ext.checkout_timeout = '8s';
ALTER ROLE app IN DATABASE shop SET pgpool_ext.checkout_timeout = '9s';
-- functions that a dump does not restore
CREATE EXTENSION dblink;
SELECT pgpool.attach_dblink();
SET ROLE owner;
CREATE SCHEMA app;
CREATE TABLE app.orders AS SELECT 1 AS id;
EOT
my @facts = split /\n/, $local->safe_psql('shop', $facts);
my @lines = extension_lines($local, 'shop');

# while pools are in use
my $holder = PgpxSession->new($local, dbname => 'shop');
my $lease = lease($holder, 'shard1');

what_is_written();
by_a_superuser();
without_the_library();
by_pg_upgrade();

is($holder->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'lease was not affected');
$holder->quit;
$local->safe_psql('postgres', 'CREATE EXTENSION pgpool_ext');
check_invariants($local);
leak_check($local, $remote);
done_testing();

# Dump to FILE with OPTIONs; returns the dump.
sub dump_to
{
	my ($file, @options) = @_;

	$local->command_ok([ 'pg_dump', '-f', "$folder/$file", @options ], "pg_dump @options[ 0 .. $#options - 1 ]");
	return slurp_file("$folder/$file");
}

# The dump has the extension, servers and mappings. The password is only in CREATE USER
# MAPPING.
sub what_is_written
{
	my $dump = dump_to('superuser.sql', '-C', $local->connstr('shop'));
	my @secret = grep { $_ =~ $SECRET } split /;\n/, $dump;

	is(scalar(@secret), 2, 'password is dumped once for each mapping');
	is(scalar(grep { !/CREATE USER MAPPING/ } @secret), 0, 'password is dumped nowhere else');
	is(scalar(() = $dump =~ /^CREATE (?:FUNCTION|VIEW|SCHEMA pgpool|FOREIGN DATA)/mg), 0, 'objects of the extension are not dumped');

	$local->command_ok([ 'pg_dumpall', '-g', '-f', "$folder/globals.sql", '-d', $local->connstr('postgres') ], 'pg_dumpall -g');
	unlike(slurp_file("$folder/globals.sql"), $SECRET, 'pg_dumpall -g dumps no password');
	like(slurp_file("$folder/globals.sql"), qr/ALTER ROLE app SET "?pgpool_ext\.checkout_timeout"? TO '8s'/, 'pg_dumpall -g dumps the setting of a role');

	# a role that may not read the options of mappings does not dump them
	$dump = dump_to('app.sql', '-U', 'app', '-N', 'app', $local->connstr('shop'));
	is(scalar(() = $dump =~ /CREATE USER MAPPING/g), 2, 'non-superuser dumps user mappings');
	is(scalar(() = $dump =~ /$SECRET/g), 1, 'non-superuser dumps only its own password');
	return;
}

# Restore FILE into DBNAME of NODE; returns the errors.
sub restore
{
	my ($node, $dbname, $file, @options) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ $node->installed_command('psql'), '-Xq', @options, '-f', "$folder/$file", '-d', $node->connstr($dbname) ],
		'>', \$out, '2>', \$err);
	return join "\n", map { s/^psql:\S+ //r } grep { /ERROR|FATAL/ } split /\n/, $err;
}

# Remove known differences between versions: 17 has one more table privilege, and 18
# shows views in another form.
sub same_words
{
	my @words = @_;

	return @words unless defined $ENV{PGPX_UPGRADE_TO};
	foreach (@words)
	{
		s/\w+ MAINTAIN, //g;
		s/\b$1\.//g if /^view pgpool\.(\w+) \| rule/;
	}
	return @words;
}

# Assert that everything is as before the dump, and works.
sub as_before
{
	my ($node, $what) = @_;

	is(differences([ split /\n/, $node->safe_psql('shop', $facts) ], \@facts), '',
		"$what: servers, mappings, owners, privileges, options and settings are restored");
	is(differences([ same_words(extension_lines($node, 'shop')) ], [ same_words(@lines) ]), '', "$what: extension and its changed privileges are restored");
	my $app = PgpxSession->new($node, dbname => 'shop', user => 'app');
	is($app->run("SELECT pgpool.exec('shard1', 'select 1'), pgpool.exec('batch', 'select 1')") . $app->error, '1|1', "$what: pools work");
	is($app->run('SHOW pgpool_ext.checkout_timeout'), '9s', "$what: setting of role and database applies");
	$app->fails('SELECT * FROM pgpool.leases', '42501', qr/leases/, "$what: revoked privilege is missing");
	$app->quit;
	return;
}

sub by_a_superuser
{
	$restored = local_node('restored');
	like(restore($restored, 'postgres', 'globals.sql'), qr/^\S* ?ERROR:  role "\S+" already exists$/, 'roles are restored');
	is(restore($restored, 'postgres', 'superuser.sql', '-v', 'ON_ERROR_STOP=1'), '', 'superuser restores everything');
	as_before($restored, 'restored');
	is($restored->safe_psql('shop', 'SELECT pgpool.detach_dblink()'), 'f', 'restored: dblink is not attached');
	return;
}

# without the library, and without the extension: clear errors, and the rest is restored
sub without_the_library
{
	my $install = PgpxInstall->new;
	my $other = local_node('other', install => $install, preload => 0);
	my $errors;

	unlink "$install->{lib}/pgpool_ext.so";
	restore($other, 'postgres', 'globals.sql');
	$errors = restore($other, 'postgres', 'superuser.sql');
	# (18 omits "$libdir")
	like($errors, qr/^\S* ?ERROR:  could not access file "(?:\$libdir\/)?pgpool_ext"/m, 'error names the missing library');
	$other->safe_psql('postgres', 'DROP DATABASE shop');
	$install->remove;
	$errors = restore($other, 'postgres', 'superuser.sql');
	like($errors, qr/^\S* ?ERROR:  extension "pgpool_ext" is not available/m, 'error names the missing extension');
	unlike($errors, $SECRET, 'errors show no password');
	is($other->safe_psql('shop', 'SELECT count(*) FROM app.orders'), '1', 'other objects are restored');
	$other->stop;
	return;
}

# To a server of the same version, or of PGPX_UPGRADE_TO (the folder of its programs).
sub by_pg_upgrade
{
	my $to = $ENV{PGPX_UPGRADE_TO};
	my ($from) = map { chomp; $_ } `pg_config --bindir`;

	# attached extensions
	my $port = $remote->port;
	$remote->safe_psql('remote_db', 'CREATE TABLE far AS SELECT 1 AS id; ALTER TABLE far OWNER TO remote_app');
	$restored->safe_psql('postgres', <<"EOT");
CREATE EXTENSION pgpool_ext;
CREATE EXTENSION postgres_fdw;
CREATE EXTENSION dblink;
SELECT pgpool.attach_postgres_fdw(), pgpool.attach_dblink();
CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');
CREATE USER MAPPING FOR PUBLIC SERVER far OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
CREATE FOREIGN TABLE far (id int) SERVER far OPTIONS (schema_name 'public');
EOT

	# columns of 15.20 have an option that older releases of 18, such as 18.6, do not
	# support
	$restored->safe_psql('shop', "UPDATE pg_attribute SET attoptions = NULL WHERE attrelid = 'app.orders'::regclass")
	  if defined $to;
	$restored->stop;
	my $new = local_node('upgraded', start => 0, $to ? (bindir => $to, init => ['--no-data-checksums']) : ());
	my $sockets = PostgreSQL::Test::Utils::tempdir_short();

	chdir $folder;
	# its children must not see the address of another server
	my $status = IPC::Run::run([ ($to // $from) . '/pg_upgrade', '--no-sync', '-b', $from, '-B', $to // $from,
			'-d', $restored->data_dir, '-D', $new->data_dir, '-p', $restored->port, '-P', $new->port,
			'-s', $sockets ], '>', \my $out, '2>&1', init => sub { delete @ENV{qw(PGHOST PGPORT PGDATABASE)} });
	ok($status, 'pg_upgrade succeeds') or diag($out);
	$new->start;
	as_before($new, 'pg_upgrade');
	is($new->safe_psql('postgres', "SELECT id FROM far; SELECT server FROM pgpool.pools WHERE server = 'far'; SELECT pgpool.detach_postgres_fdw(); SELECT id FROM far"),
		"1\nfar\nt\n1", 'pg_upgrade: postgres_fdw is attached, works, and is detached');
	is($new->safe_psql('postgres', "SELECT dblink_exec('far', 'set work_mem = 64'); SELECT calls FROM pgpool.dblink_calls WHERE outcome = 'pooled'; SELECT pgpool.detach_dblink()"),
		"SET\n1\nt", 'pg_upgrade: dblink is attached, works, and is detached');
	$new->stop;
	return;
}

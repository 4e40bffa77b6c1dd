# Passwords in dumps, by role: the same as for user mappings of a postgres_fdw server.
# Two databases with different versions share a library. pg_upgrade to a server without
# the extension is refused and changes nothing. Complete removal leaves nothing behind.
use strict;
use warnings;

use File::Find;
use IPC::Run;
use PgpxInstall;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the test would be the same over TLS' if over_tls();

my $folder = PostgreSQL::Test::Utils::tempdir();
my $install = PgpxInstall->new;
my $remote = remote_node('remote');
my $local = local_node('local', install => $install, conf => ['pgpool_ext.default_pool_size = 3']);
my @wrappers = ([ 'ours', 'pgpool_fdw' ], [ 'twin', 'postgres_fdw' ]);

$local->safe_psql('postgres', <<'EOT');
CREATE ROLE app LOGIN;
CREATE ROLE owner LOGIN;
CREATE ROLE reader LOGIN IN ROLE pg_read_all_data, pg_monitor;
CREATE ROLE stranger LOGIN;
ALTER ROLE app SET pgpool_ext.checkout_timeout = '8s';
CREATE EXTENSION postgres_fdw;
EOT
make_pool($local, $remote, server => 'live');
foreach (@wrappers)
{
	my ($server, $wrapper) = @$_;

	$local->safe_psql('postgres', <<"EOT");
CREATE SERVER $server FOREIGN DATA WRAPPER $wrapper OPTIONS (host '10.0.0.7', dbname 'app');
CREATE USER MAPPING FOR CURRENT_USER SERVER $server OPTIONS (user 'a', password 'of the superuser, $server');
CREATE USER MAPPING FOR app SERVER $server OPTIONS (user 'a', password 'of app, $server');
CREATE USER MAPPING FOR PUBLIC SERVER $server OPTIONS (user 'a', password 'of all, $server');
GRANT USAGE ON FOREIGN DATA WRAPPER $wrapper TO owner;
ALTER SERVER $server OWNER TO owner;
GRANT USAGE ON FOREIGN SERVER $server TO app, reader, stranger;
EOT
}
# the worker has the password while dumps are made
my $holder = PgpxSession->new($local, user => 'app');
my $lease = lease($holder, 'live');

secrets();
is($holder->run("SELECT pgpool.exec($lease, 'select 1')") . $holder->error, '1', 'lease was not affected by the dumps');
$holder->quit;
two_versions();
upgrade_without_the_extension();
check_invariants($local);
nothing_is_left();
ok(wait_until($remote, sub { remote_sessions($remote) }, 0), 'no session is left on the remote server');
done_testing();

# All passwords in a text.
sub passwords
{
	return sort $_[0] =~ /(of (?:the superuser|app|all), (?:ours|twin)|\Q$REMOTE_APP_PASSWORD\E)/g;
}

sub of_server
{
	my ($server, @passwords) = @_;

	return join '; ', map { s/, $server$//r } grep { /, $server$/ } @passwords;
}

# Dump as ROLE with OPTIONs; returns the dump as text.
sub dump_as
{
	my ($role, @options) = @_;
	my $path = "$folder/dump";
	my $out;

	PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', $path);
	IPC::Run::run([ $local->installed_command('pg_dump'), @options, '-f', $path,
			$local->connstr('postgres') . ($role ? " user=$role" : '') ], '>', \$out, '2>&1')
	  or BAIL_OUT("pg_dump: $out");
	return slurp_file($path) unless grep { /^-F/ } @options;
	IPC::Run::run([ $local->installed_command('pg_restore'), '-f', '-', $path ], '>', \$out)
	  or BAIL_OUT('pg_restore failed');
	return $out;
}

# A role dumps the options of a mapping, once, if it can read them in pg_user_mappings.
sub secrets
{
	my %expected = (
		'' => 'of all; of app; of the superuser',
		app => 'of app',
		owner => 'of all',
		reader => '',
		stranger => '');

	foreach my $role (sort keys %expected)
	{
		my $who = $role || 'a superuser';
		my @dumped = passwords(dump_as($role));
		my $session = PgpxSession->new($local, $role ? (user => $role) : ());
		my @seen = passwords($session->run('SELECT umoptions FROM pg_user_mappings'));

		$session->quit;
		is("@dumped", "@seen", "$who dumps the passwords that it can read in pg_user_mappings");
		is(of_server('ours', @dumped), $expected{$role}, "$who dumps the expected passwords");
		is(of_server('ours', @dumped), of_server('twin', @dumped), "$who dumps the same passwords of a postgres_fdw server");
	}
	my @plain = passwords(dump_as(''));
	is(scalar(grep { $_ eq $REMOTE_APP_PASSWORD } @plain), 2, 'password in use is dumped once for each of its two mappings');
	foreach my $options ([qw(-Fc)], [qw(-Fd -j2)], [qw(-C --clean --if-exists --inserts)])
	{
		is(join('; ', passwords(dump_as('', @$options))), join('; ', @plain), "same passwords are dumped with @$options");
	}
	is(join('; ', passwords(dump_as('', '-a'))), '', 'data contains no password');

	my $all;
	IPC::Run::run([ $local->installed_command('pg_dumpall'), '-d', $local->connstr('postgres') ], '>', \$all);
	is(join('; ', passwords($all)), join('; ', @plain), 'pg_dumpall dumps the same passwords');
	return;
}

# one database has been updated, the other has not
sub two_versions
{
	$local->safe_psql('postgres', 'CREATE DATABASE updated TEMPLATE template0');
	make_pool($local, $remote, server => 'live', dbname => 'updated');
	my ($version) = $local->safe_psql('updated', q{SELECT extversion FROM pg_extension WHERE extname = 'pgpool_ext'});
	$install->write_script("$version--99.0", q{CREATE FUNCTION pgpool.made_up() RETURNS int4 AS 'MODULE_PATHNAME', 'pgpx_made_up' LANGUAGE C});
	$install->newer_library(<<'EOT');
typedef struct { int api_version; } Info;
const Info *pg_finfo_pgpx_made_up(void) { static const Info info = {1}; return &info; }
unsigned long pgpx_made_up(void *call) { return 11; }
EOT
	$local->restart;
	$local->safe_psql('updated', "ALTER EXTENSION pgpool_ext UPDATE TO '99.0'");
	is($local->safe_psql('updated', "SELECT pgpool.made_up(), pgpool.exec('live', 'select 1')"), '11|1',
		'updated database has the new function of a newer library');
	is($local->safe_psql('postgres', "SELECT extversion = '$version', pgpool.exec('live', 'select 1') FROM pg_extension WHERE extname = 'pgpool_ext'"), 't|1',
		'database that was not updated works as before');
	is($local->safe_psql('postgres', 'SELECT count(DISTINCT database) FROM pgpool.pools'), '2', 'pgpool.pools shows the pools of both databases');
	$local->safe_psql('postgres', 'DROP DATABASE updated');
	return;
}

sub upgrade_without_the_extension
{
	my $without = PgpxInstall->new;
	my $sockets = PostgreSQL::Test::Utils::tempdir_short();
	my ($said, $libraries) = ('', '');

	$without->remove;
	my $new = local_node('new', start => 0, preload => 0, install => $without);
	$local->stop;
	chdir $folder;
	ok(!IPC::Run::run([ $without->program('pg_upgrade'), '--check', '-b', $install->{bin}, '-B', $without->{bin},
				'-d', $local->data_dir, '-D', $new->data_dir, '-p', $local->port, '-P', $new->port, '-s', $sockets ],
			'>', \$said, '2>&1', init => sub { delete @ENV{qw(PGHOST PGPORT PGDATABASE)} }),
		'pg_upgrade to a server without the extension is refused');
	like($said, qr/loadable libraries that are missing/, 'error of pg_upgrade has the reason');
	File::Find::find(sub { $libraries .= slurp_file($_) if /^loadable_libraries\.txt$/ }, $new->data_dir);
	like($libraries, qr/could not load library "\$libdir\/pgpool_ext"/, 'error of pg_upgrade names the library');
	$local->start;
	is($local->safe_psql('postgres', "SELECT pgpool.exec('live', 'select 1')"), '1', 'old server works as before');
	return;
}

# dropped, not preloaded, not installed; leftover settings do no harm
sub nothing_is_left
{
	my @left;

	$local->safe_psql('postgres', 'DROP EXTENSION pgpool_ext CASCADE');
	$local->stop;
	$install->remove;
	$local->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	my $log = -s $local->logfile;
	$local->start;

	# (rows that mention it do not count)
	is($local->safe_psql('postgres', <<'EOT'), '0', 'no object of the extension is left');
SELECT (SELECT count(*) FROM pg_namespace WHERE nspname ~ 'pgpool|pgpx')
	+ (SELECT count(*) FROM pg_class WHERE relname ~ 'pgpool|pgpx')
	+ (SELECT count(*) FROM pg_proc WHERE proname ~ 'pgpool|pgpx' OR probin ~ 'pgpool')
	+ (SELECT count(*) FROM pg_type WHERE typname ~ 'pgpool|pgpx')
	+ (SELECT count(*) FROM pg_event_trigger) + (SELECT count(*) FROM pg_roles WHERE rolname ~ 'pgpool|pgpx')
	+ (SELECT count(*) FROM pg_foreign_data_wrapper WHERE fdwname <> 'postgres_fdw')
	+ (SELECT count(*) FROM pg_foreign_server WHERE srvname <> 'twin')
	+ (SELECT count(*) FROM pg_user_mappings WHERE srvname <> 'twin')
EOT
	File::Find::find(sub { push @left, $File::Find::name if /pgpool|pgpx/ }, $local->data_dir, $local->host);
	is("@left", '', 'no file of the extension is left');
	is($local->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'pgpool'}), '0', 'no process of the extension is left');

	my $session = PgpxSession->new($local, user => 'app');
	is($session->run('SHOW pgpool_ext.checkout_timeout') . $session->error, '8s', 'leftover setting of a role does no harm');
	$session->quit;
	$local->safe_psql('postgres', 'ALTER ROLE app RESET pgpool_ext.checkout_timeout');
	is($local->safe_psql('postgres', 'SELECT count(*) FROM pg_db_role_setting'), '0', 'leftover setting can be reset');
	unlike(substr(slurp_file($local->logfile), $log), qr/WARNING|ERROR|FATAL|PANIC/, 'log of the server is clean');
	return;
}

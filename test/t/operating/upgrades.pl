# An upgraded extension equals a newly created one, for each existing upgrade script. A
# library newer than the extension's script works; an older one is reported. DROP
# EXTENSION leaves no object behind, and a removed extension no file and no process.
use strict;
use warnings;

use File::Find;
use PgpxInstall;
use PgpxSchema;
use PgpxTest;
use Test::More;

plan skip_all => 'the test would be the same over TLS' if over_tls();

my $install = PgpxInstall->new;
my $local = local_node('local', install => $install);
my $remote = remote_node('remote');
my ($default) = PostgreSQL::Test::Utils::slurp_file("$install->{share}/pgpool_ext.control") =~ /^default_version = '(.*)'$/m;
my @released = $install->scripts;

# first of all, while the extension has never been created
my @before = everything();
released_upgrades();
$local->safe_psql('postgres', 'DROP EXTENSION pgpool_ext');
is(differences([everything()], \@before), '', 'DROP EXTENSION leaves nothing in any catalog');

make_pool($local, $remote, server => 'shard1');
library_and_script();
upgrade_in_use();
check_invariants($local);

$local->safe_psql('postgres', 'DROP EXTENSION pgpool_ext CASCADE; DROP ROLE app');
is(differences([everything()], \@before), '', 'DROP EXTENSION CASCADE leaves no servers and mappings');
$local->safe_psql('postgres', 'CREATE EXTENSION pgpool_ext');
upgrade_of_dblink();
leak_check($local, $remote);

# without the library and its settings
$install->remove;
$local->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$local->start;
is($local->safe_psql('postgres', "SELECT count(*) FROM pg_settings WHERE name LIKE 'pgpool%'"), '0',
	'server starts without the library, and has none of its settings');
like(($local->psql('postgres', "SELECT dblink_exec('nowhere', 'select 1')"))[2], qr/could not access file "(?:\$libdir\/)?pgpool_ext"/,
	'call of a function that is still attached names the missing library');
is($local->safe_psql('postgres', 'DROP EXTENSION dblink; DROP EXTENSION pgpool_ext; SELECT count(*) FROM pg_extension'), '1',
	'extension whose files are missing can be dropped');
my @left;
File::Find::find(sub { push @left, $File::Find::name if /pgpool|pgpx/ }, $local->data_dir, $local->host);
is("@left", '', 'no file of the extension is left');
is($local->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'pgpool'}), '0', 'no process of the extension is left');
done_testing();

# The number of rows in each catalog, and the names of objects.
sub everything
{
	return split /\n/, $local->safe_psql('postgres', <<'EOT');
SELECT format('SELECT %L || count(*) FROM %s', relname || ' ', oid::regclass)
FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND relname !~ 'statistic|subscription|largeobject' \gexec
SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp'
UNION ALL SELECT proname FROM pg_proc WHERE pronamespace <> 'pg_catalog'::regnamespace
UNION ALL SELECT relname FROM pg_class WHERE relnamespace NOT IN ('pg_catalog'::regnamespace, 'pg_toast'::regnamespace);
EOT
}

sub create
{
	my ($version) = @_;

	$local->safe_psql('postgres', "SET client_min_messages = warning; DROP EXTENSION IF EXISTS pgpool_ext; CREATE EXTENSION pgpool_ext VERSION '$version'");
	return;
}

# The extension as created, and as made by an upgrade.
sub fresh
{
	my ($version) = @_;

	create($version);
	return extension_lines($local, 'postgres');
}

sub upgraded
{
	my ($from, $to) = @_;

	create($from);
	$local->safe_psql('postgres', "ALTER EXTENSION pgpool_ext UPDATE TO '$to'");
	return extension_lines($local, 'postgres');
}

sub released_upgrades
{
	my %made = map { $_ => 1 } grep { !/--/ } @released;

	cmp_ok(scalar(fresh($default)), '>', 100, "default version $default can be created, and has objects")
	  or return;
	my $dx = $local->safe_psql('postgres', '\dx+ pgpool_ext');
	foreach my $version (sort keys %made)
	{
		next if $version eq $default;
		is(differences([upgraded($version, $default)], [fresh($default)]), '',
			"version $version, upgraded to $default, equals a new one");
		upgraded($version, $default);
		is($local->safe_psql('postgres', '\dx+ pgpool_ext'), $dx, "version $version: \\dx+ lists the same objects");
	}
	foreach my $step (grep { /--/ } @released)
	{
		my ($from, $to) = split /--/, $step;

		ok($made{$from} && $made{$to}, "both versions of $step can be created")
		  or next;
		is(differences([upgraded($from, $to)], [fresh($to)]), '', "upgrade script $step makes the same objects as a new $to");
	}
	return;
}

# The functions behind the views, as older and newer scripts declare them: with one
# column less or one more at the end.
sub library_and_script
{
	my @views = split /\n/, $local->safe_psql('postgres', <<'EOT');
SELECT concat_ws('|', relname, prosrc, left(def, length(def) - strpos(reverse(def), ' ,') - 1), def)
FROM (SELECT c.relname, p.prosrc,
		string_agg(format('%I %s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum) AS def
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND attnum > 0
		JOIN pg_proc p ON p.proname = c.relname AND p.pronamespace = c.relnamespace
	WHERE c.relnamespace = 'pgpool'::regnamespace AND relkind = 'v' GROUP BY c.relname, p.prosrc) AS v
EOT
	my $session = PgpxSession->new($local);
	my $lease = lease($session, 'shard1');
	my @with_rows;

	cmp_ok(scalar @views, '>=', 7, 'extension has at least seven views');
	foreach (@views)
	{
		my ($view, $symbol, $fewer, $columns) = split /\|/;

		# a function with one column returns no rows
		next if $fewer !~ /,/;
		my $made = "RETURNS TABLE (%s) AS '\$libdir/pgpool_ext', '$symbol' LANGUAGE C";

		$session->run("CREATE FUNCTION older_$view() " . sprintf($made, $fewer));
		# (a sample may be written between the two counts)
		ok(wait_until($local, sub { $session->run("SELECT (SELECT count(*) FROM older_$view()) = (SELECT count(*) FROM pgpool.$view)") . $session->error }, 't'),
			"library with one more column in $view works");
		$session->run("CREATE FUNCTION newer_$view() " . sprintf($made, "$columns, new int"));
		next if $session->run("SELECT count(*) FROM pgpool.$view") eq '0';
		push @with_rows, $view;
		$session->fails("SELECT count(*) FROM newer_$view()", '55000',
			qr/older version of the library.*HINT:.*Restart/s, "library with one column less in $view raises an error");
	}
	# history has rows after some seconds
	is(join(' ', sort grep { $_ ne 'history' } @with_rows), 'connections leases pools stats workers', 'some views have rows');
	$session->run("SELECT pgpool.checkin($lease)");
	$session->quit;
	$local->safe_psql('postgres', <<'EOT');
SELECT format('DROP FUNCTION %s', oid::regprocedure) FROM pg_proc WHERE proname ~ '^(older|newer)_' \gexec
EOT
	return;
}

# An upgrade to a version that needs a newer library is refused while the old library is
# loaded, and changes nothing. After a restart the old script works with the new
# library, and then the upgrade succeeds.
sub upgrade_in_use
{
	my @old = extension_lines($local, 'postgres');
	my $holder = PgpxSession->new($local);
	my $lease = lease($holder, 'shard1');
	my $new = q{CREATE FUNCTION pgpool.made_up() RETURNS int4 AS 'MODULE_PATHNAME', 'pgpx_made_up' LANGUAGE C;};

	$install->write_script("$default--1.1", $new);
	$install->newer_library(<<'EOT');
/* what postgres.h and fmgr.h make of a function, which need not be here */
typedef struct { int api_version; } Info;
const Info *pg_finfo_pgpx_made_up(void) { static const Info info = {1}; return &info; }
unsigned long pgpx_made_up(void *call) { return 11; }
EOT
	my $session = PgpxSession->new($local);
	$session->fails("ALTER EXTENSION pgpool_ext UPDATE TO '1.1'", '42883', qr/pgpx_made_up/,
		'upgrade that needs a newer library is refused');
	is(differences([extension_lines($local, 'postgres')], \@old), '', 'refused upgrade changes nothing');
	is($session->run("SELECT pgpool.exec('shard1', 'select 1')"), '1', 'pools work');
	is($holder->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'lease stays usable');
	$_->quit foreach $session, $holder;

	$local->restart;
	$session = PgpxSession->new($local);
	is($session->run("SELECT * FROM pgpool.query_as(0, 'shard1', 'select 7')") . $session->error, '7',
		'old script works with the newer library after a restart');
	is($session->run("SELECT count(*) FROM pgpool.$_") =~ /^\d+$/ ? '' : $session->error, '', "view $_ works with the newer library")
	  foreach qw(pools connections leases waiters stats history workers locks);
	$lease = lease($session, 'shard1');
	is($session->run("ALTER EXTENSION pgpool_ext UPDATE TO '1.1'; SELECT pgpool.made_up()") . $session->error, '11', 'upgrade succeeds');
	is($session->run("SELECT pgpool.exec($lease, 'select 1'), pgpool.checkin($lease)") . $session->error, '1|',
		'lease from before the upgrade stays usable');
	is($local->safe_psql('postgres', 'SELECT count(*) FROM pg_foreign_server JOIN pg_user_mappings USING (srvname)'), '2',
		'servers and user mappings are kept');
	$session->quit;
	return;
}

# An upgrade of dblink detaches the functions that its script replaces.  They can be attached again.
sub upgrade_of_dblink
{
	my $attached = q{SELECT count(*) FROM pg_proc WHERE proname IN ('dblink', 'dblink_exec') AND probin ~ 'pgpool_ext'};
	my %script = (
		'1.2--2.0' => 'CREATE FUNCTION dblink_new() RETURNS int LANGUAGE sql AS $$SELECT 1$$;',
		'2.0--3.0' => q{CREATE OR REPLACE FUNCTION dblink_exec(text, text) RETURNS text AS 'MODULE_PATHNAME', 'dblink_exec' LANGUAGE C STRICT;});

	PostgreSQL::Test::Utils::append_to_file("$install->{share}/dblink--$_.sql", $script{$_}) foreach keys %script;
	$local->safe_psql('postgres', "CREATE EXTENSION dblink VERSION '1.2'; SELECT pgpool.attach_dblink()");
	is($local->safe_psql('postgres', "ALTER EXTENSION dblink UPDATE TO '2.0'; $attached"), '4', 'functions that an upgrade of dblink leaves stay attached');
	is($local->safe_psql('postgres', "ALTER EXTENSION dblink UPDATE TO '3.0'; $attached"), '3', 'function that it replaces is detached');
	is($local->safe_psql('postgres', "SELECT pgpool.attach_dblink(); $attached"), "t\n4", 'it is attached again');
	return;
}

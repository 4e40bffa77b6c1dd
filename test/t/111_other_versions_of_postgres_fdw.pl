# A server without the library of postgres_fdw, and versions of postgres_fdw whose plans
# differ from what is known: foreign tables raise a clear error, and all else works.
use strict;
use warnings;

use PgpxInstall;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $install = PgpxInstall->new;
my $remote = remote_node('remote');
my $local = local_node('local', install => $install);
my $library = "$install->{lib}/postgres_fdw.so";

$remote->safe_psql('remote_db', 'CREATE TABLE t AS SELECT 1 AS a; GRANT ALL ON t TO remote_app');
make_pool($local, $remote, server => 'shard1');
$local->safe_psql('postgres', 'CREATE FOREIGN TABLE t (a int) SERVER shard1');
is($local->safe_psql('postgres', 'SELECT a FROM t'), '1', 'foreign table is read');
is($local->safe_psql('postgres', "SELECT count(*) FROM pg_extension WHERE extname = 'postgres_fdw'"), '0',
	'the extension postgres_fdw is not required');

# each session loads the library at its first use of a foreign table
sub fails_with
{
	my ($sql, $sqlstate, $pattern, $name) = @_;
	my $session = PgpxSession->new($local);

	$session->fails($sql, $sqlstate, $pattern, $name);
	is($session->run("SELECT a FROM pgpool.query('shard1', 'select 2') AS t(a int)"), '2', "$name: functions work");
	return;
}

rename $library, "$library.real" or die "$library: $!";
fails_with('SELECT a FROM t', 'HV00L', qr/need the library of postgres_fdw.*contrib/s, 'library is missing');

# A library that changes the plans of the real one.
sub other_version
{
	my ($change) = @_;
	my $source = "$install->{lib}/other.c";
	my $include = $ENV{PGPX_INCLUDE_SERVER} // qx(pg_config --includedir-server);

	chomp $include;
	open my $file, '>', $source or die "$source: $!";
	print $file <<"EOT";
#include "postgres.h"
#include "fmgr.h"
#include "foreign/fdwapi.h"
#include "nodes/value.h"
PG_MODULE_MAGIC;
PG_FUNCTION_INFO_V1(postgres_fdw_handler);
static FdwRoutine *theirs;
static ForeignScan *
plan(PlannerInfo *root, RelOptInfo *rel, Oid id, ForeignPath *path, List *tlist, List *clauses, Plan *outer)
{
	ForeignScan *scan = theirs->GetForeignPlan(root, rel, id, path, tlist, clauses, outer);
	List	   *list = scan->fdw_private;

	$change;
	scan->fdw_private = list;
	return scan;
}
Datum
postgres_fdw_handler(PG_FUNCTION_ARGS)
{
	FdwRoutine *routine = makeNode(FdwRoutine);

	theirs = (FdwRoutine *) DatumGetPointer(DirectFunctionCall1(load_external_function("$library.real",
		"postgres_fdw_handler", true, NULL), (Datum) 0));
	*routine = *theirs;
	routine->GetForeignPlan = plan;
	PG_RETURN_POINTER(routine);
}
EOT
	close $file;
	unlink $library;
	system('cc', '-shared', '-fPIC', "-I$include", '-o', $library, $source) == 0 or die 'could not build the library';
	return;
}

other_version('');
is($local->safe_psql('postgres', 'SELECT a FROM t'), '1', 'a library with the same plans is accepted');
my %changes = (
	'list = list_truncate(list, 2)' => 'length',
	'list = lappend(lappend(list, makeString("x")), makeString("y"))' => 'length',
	'list_nth_cell(list, 0)->ptr_value = makeInteger(1)' => 'statement',
	'list_nth_cell(list, 1)->ptr_value = makeString("x")' => 'retrieved attributes',
	'list_nth_cell(list, 2)->ptr_value = NULL' => 'fetch_size',
	'list_nth_cell(list, 2)->ptr_value = makeInteger(0)' => 'fetch_size',
	'list = lappend(list, makeInteger(1))' => 'relations');
foreach my $change (sort keys %changes)
{
	other_version($change);
	fails_with('SELECT a FROM t', 'HV000', qr/plan of postgres_fdw \d+.* is not known.*Element "$changes{$change}"/s,
		"another plan ($change)");
}

check_invariants($local);
leak_check($local, $remote);
done_testing();

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
my $library = "$install->{lib}/postgres_fdw.so";

# While the library is missing at the start of the server, each session loads it at its first
# use of a foreign table. Otherwise the server has loaded it.
rename $library, "$library.real" or die "$library: $!";
my $local = local_node('local', install => $install);
rename "$library.real", $library or die "$library: $!";

$remote->safe_psql('remote_db', 'CREATE TABLE t AS SELECT 1 AS a, 1 AS b; GRANT ALL ON t TO remote_app');
make_pool($local, $remote, server => 'shard1');
$local->safe_psql('postgres', 'CREATE FOREIGN TABLE t (a int, gone int, b int) SERVER shard1; ALTER FOREIGN TABLE t DROP COLUMN gone');
is($local->safe_psql('postgres', 'SELECT a FROM t'), '1', 'foreign table is read');
is($local->safe_psql('postgres', "SELECT count(*) FROM pg_extension WHERE extname = 'postgres_fdw'"), '0',
	'extension postgres_fdw is not required');

sub fails_with
{
	my ($sql, $sqlstate, $pattern, $name) = @_;
	my $session = PgpxSession->new($local);

	$session->fails($sql, $sqlstate, $pattern, $name);
	is($session->run("SELECT a FROM pgpool.query('shard1', 'select 2') AS t(a int)"), '2', "$name: functions work");
	return;
}

$local->safe_psql('postgres', 'CREATE EXTENSION postgres_fdw');
rename $library, "$library.real" or die "$library: $!";
fails_with('SELECT pgpool.attach_postgres_fdw()', 'HV00L', qr/need the library of postgres_fdw/, 'library is missing, attach');
fails_with('SELECT a FROM t', 'HV00L', qr/need the library of postgres_fdw.*contrib/s, 'library is missing');

# Changes of a plan: its kind, the change as C code for the list of its private elements, and the
# element that the error names.
my @changes = (
	[ 'scan', 'list = NIL', 0 ],
	[ 'scan', at(0, 'makeInteger(1)'), 0 ],
	[ 'scan', at(2, 'NULL'), 2 ],
	[ 'scan', 'list = lappend(list, makeInteger(1))', 3 ],
	[ 'modify', 'list = list_truncate(list, 2)', 2 ],
	[ 'modify', at(4, 'makeBoolean(true)'), 4 ],
	[ 'direct modify', at(0, 'NULL'), 0 ],
	[ 'direct modify', at(1, 'makeInteger(1)'), 1 ],

	# attributes that exist, but are not as many as the columns or parameters of the statement
	[ 'scan', at(1, 'list_make1_int(1)'), undef, qr/SELECT a, b/ ],
	[ 'modify', at(1, 'list_make3_int(1, 3, 1)'), undef, qr/INSERT/ ],
	[ 'modify', at(4, 'list_make2_int(1, 3)'), undef, qr/RETURNING/ ],
	[ 'direct modify', at(2, 'list_make3_int(1, 3, 1)'), undef, qr/RETURNING/ ]);

# Replace an element.
sub at { return "list_nth_cell(list, $_[0])->ptr_value = $_[1]"; }

# A library that changes the plans of the real one, as the setting other.change specifies. It also has
# callbacks that postgres_fdw 15 to 18 lacks, and that must not be called.
sub other_version
{
	my $source = "$install->{lib}/other.c";
	my $include = $ENV{PGPX_INCLUDE_SERVER} // qx(pg_config --includedir-server);
	my $cases = join '', map { "\t\tcase $_: $changes[$_][1]; break;\n" } 0 .. $#changes;

	chomp $include;
	open my $file, '>', $source or die "$source: $!";
	print $file <<"EOT";
#include "postgres.h"
#include "fmgr.h"
#include "foreign/fdwapi.h"
#include "access/sysattr.h"
#include "nodes/value.h"
#include "utils/guc.h"
PG_MODULE_MAGIC;
PG_FUNCTION_INFO_V1(postgres_fdw_handler);
static FdwRoutine theirs;
static bool
is(const char *name, const char *value)
{
	const char *wanted = GetConfigOption(psprintf("other.%s", name), true, false);

	return wanted != NULL && strcmp(wanted, value) == 0;
}
static void
shut_down(ForeignScanState *node)
{
	elog(ERROR, "an unknown callback was called");
}
static bool
is_parallel_safe(PlannerInfo *root, RelOptInfo *rel, RangeTblEntry *rte)
{
	elog(ERROR, "an unknown callback was called");
}
static List *
change(const char *kind, List *list)
{
	if (!is("kind", kind))
		return list;
	switch (atoi(GetConfigOption("other.change", false, false)))
	{
$cases
	}
	return list;
}
static ForeignScan *
plan_scan(PlannerInfo *root, RelOptInfo *rel, Oid id, ForeignPath *path, List *tlist, List *clauses, Plan *outer)
{
	ForeignScan *scan = theirs.GetForeignPlan(root, rel, id, path, tlist, clauses, outer);

	scan->fdw_private = change("scan", scan->fdw_private);
	return scan;
}
static List *
plan_modify(PlannerInfo *root, ModifyTable *plan, Index relation, int subplan)
{
	return change("modify", theirs.PlanForeignModify(root, plan, relation, subplan));
}
static bool
plan_direct_modify(PlannerInfo *root, ModifyTable *plan, Index relation, int subplan)
{
	ForeignScan *scan = (ForeignScan *) outerPlan(plan);

	if (!theirs.PlanDirectModify(root, plan, relation, subplan))
		return false;
	scan->fdw_private = change("direct modify", scan->fdw_private);
	return true;
}
Datum
postgres_fdw_handler(PG_FUNCTION_ARGS)
{
	FdwRoutine *routine = makeNode(FdwRoutine);

	theirs = *(FdwRoutine *) DatumGetPointer(DirectFunctionCall1(load_external_function("$library.real",
		"postgres_fdw_handler", true, NULL), (Datum) 0));
	*routine = theirs;
	routine->GetForeignPlan = plan_scan;
	routine->PlanForeignModify = plan_modify;
	routine->PlanDirectModify = plan_direct_modify;
	routine->ShutdownForeignScan = shut_down;
	routine->IsForeignScanParallelSafe = is_parallel_safe;
	PG_RETURN_POINTER(routine);
}
EOT
	close $file;
	system('cc', '-shared', '-fPIC', "-I$include", '-o', $library, $source) == 0 or die 'could not build the library';
	return;
}

# The functions in WHERE and SET run locally, so that these statements are no direct modify.
my %statements = (
	'scan' => [ 'SELECT a FROM t', 'SELECT a, b FROM t' ],
	'modify' => [
		'INSERT INTO t VALUES (2, 2)',
		'INSERT INTO t VALUES (2, 2) RETURNING b',
		'UPDATE t SET a = a + (random() < 2)::int',
		'UPDATE t SET a = a + (random() < 2)::int RETURNING b',
		'DELETE FROM t WHERE random() < 2 RETURNING a' ],
	'direct modify' => [ 'UPDATE t SET a = a + 1', 'UPDATE t SET a = a + 1 RETURNING b', 'DELETE FROM t RETURNING a' ]);

other_version();
my $session = PgpxSession->new($local);

sub result { return $session->run($_[0]) . $session->error }

is(result('SELECT a FROM t'), '1', 'library with the same plans is accepted');
is(result('SELECT count(*) FROM (SELECT FROM t) AS x'), '1', 'scan of no column is accepted');
is(result("BEGIN; $_; ROLLBACK"), /INSERT.*RETURNING/ ? '2' : /RETURNING/ ? '1' : '', "statement is accepted: $_")
  foreach map { @{ $statements{$_} } } 'modify', 'direct modify';
foreach my $kind (sort keys %statements)
{
	my @wrong;
	my $n = 0;

	foreach my $at (grep { $changes[$_][0] eq $kind && defined $changes[$_][2] } 0 .. $#changes)
	{
		my (undef, $change, $element) = @{ $changes[$at] };

		foreach my $sql (@{ $statements{$kind} })
		{
			my $got = result("BEGIN; SET LOCAL other.kind = '$kind'; SET LOCAL other.change = $at; $sql; COMMIT");

			push @wrong, "$change: $sql: $got"
			  unless $got =~ /^[^\n]*ERROR:  HV000: unrecognized plan of postgres_fdw \d+.*Element $element of the plan's private list/s;
			$session->run('ROLLBACK');
			$n++;
		}
	}
	is(join("\n", @wrong), '', "$kind: each of $n statements with another plan fails");
}

foreach my $at (grep { !defined $changes[$_][2] } 0 .. $#changes)
{
	my ($kind, $change, undef, $only) = @{ $changes[$at] };

	foreach my $sql (grep { $_ =~ $only } @{ $statements{$kind} })
	{
		like(result("BEGIN; SET LOCAL other.kind = '$kind'; SET LOCAL other.change = $at; $sql; COMMIT"),
			qr/^[^\n]*ERROR:  (HV000: remote query result does not match|08P01: bind message supplies \d parameter)/, "$kind: statement fails after $change: $sql");
		$session->run('ROLLBACK');
	}
}
is($remote->safe_psql('remote_db', 'SELECT * FROM t'), '1|1', 'failed statements have not changed the remote table');
is(result("SELECT a FROM pgpool.query('shard1', 'select 2') AS t(a int)"), '2', 'functions work');
$session->quit;

# the server loads the library when it starts
rename "$library.real", $library or die "$library: $!";
$local->restart;
rename $library, "$library.real" or die "$library: $!";
is($local->safe_psql('postgres', 'SELECT a FROM t'), '1', 'session uses the library that the server has loaded');

check_invariants($local);
leak_check($local, $remote);
done_testing();

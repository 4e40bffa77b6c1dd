# The SELECTs of PostgreSQL's regression suite return the same binary results through
# the pool as locally. The suite is part of PostgreSQL's source; PGPX_PG_SOURCE names
# the folder of the source.
use strict;
use warnings;

use PgpxCompare;
use PgpxTest;
use Test::More;

# files on which other files depend are first; the suite can run in this order
my @files = qw(
  test_setup boolean char name varchar text int2 int4 int8 oid float4 float8 bit
  numeric uuid enum money rangetypes multirangetypes pg_lsn regproc point lseg
  line box path polygon circle date time timetz timestamp timestamptz interval
  inet macaddr macaddr8 strings numerology geometry horology tstypes arrays json
  jsonb jsonpath jsonb_jsonpath json_encoding unicode xid xml domain rowtypes case union
  aggregates window groupingsets subselect with tsearch create_index join);

sub suite
{
	my $pgxs = `pg_config --pgxs` // '';

	chomp $pgxs;
	$pgxs =~ s{/makefiles/pgxs\.mk$}{};
	foreach my $root (grep { defined } $ENV{PGPX_PG_SOURCE}, "$pgxs/..")
	{
		my $folder = "$root/src/test/regress";

		return $folder if -r "$folder/sql/multirangetypes.sql" && -r "$folder/data/onek.data";
	}
	return;
}

my $suite = suite()
  or plan skip_all => q{PostgreSQL's regression suite was not found: set PGPX_PG_SOURCE to the source folder};

my $both = compare_node('both');
my %total;

foreach my $file (grep { -r "$suite/sql/$_.sql" } @files)
{
	open my $handle, '<', "$suite/sql/$file.sql" or die "could not read $file: $!\n";
	local $/;
	my $script = <$handle>;
	my $result = compare($both, $script, environment => {
			PG_ABS_SRCDIR => $suite, PG_ABS_BUILDDIR => $suite, PG_LIBDIR => $suite, PG_DLSUFFIX => '.so' });

	is(join("\n", @{ $result->{differs} }), '', "$file: results are the same as locally");
	is(join("\n", @{ $result->{unanswered} }), '', "$file: every query is answered") or diag($result->{error});
	note("$file: ", join ', ', map { "$_: $result->{count}{$_}" } sort keys %{ $result->{count} });
	foreach my $why (sort keys %{ $result->{skipped} })
	{
		note("  $why: ", scalar @{ $result->{skipped}{$why} });
	}
	$total{$_} += $result->{count}{$_} foreach keys %{ $result->{count} };
}
note(join ', ', map { "$_: $total{$_}" } sort keys %total);
cmp_ok($total{same}, '>', 5000, 'thousands of results are the same');

check_invariants($both);
leak_check($both);
done_testing();

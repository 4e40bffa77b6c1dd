# Hundreds of generated statements on foreign tables of postgres_fdw, detached and then attached:
# rows, row counts, errors, details and contexts are equal, and so are the remote tables afterwards.
# PGPX_TEST_STATEMENTS: number.  PGPX_TEST_SEED: other ones.  PGPX_TEST_KINDS='scan|join': some kinds.
use strict;
use warnings;

use PgpxStatements;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $n = $ENV{PGPX_TEST_STATEMENTS} // 250;
my $seed = $ENV{PGPX_TEST_SEED} // 1;
my $folder = PostgreSQL::Test::Utils::tempdir();
my $remote = remote_node('remote');
my $local = local_node('local', conf => ['pgpool_ext.default_pool_size = 2']);

$local->safe_psql('postgres', 'CREATE EXTENSION pgpool_ext; CREATE EXTENSION postgres_fdw');
PgpxStatements::make_tables($remote, $local, 'postgres_fdw');

my $kinds = $ENV{PGPX_TEST_KINDS} // '';
my @statements = grep { $_->[0] =~ /$kinds/ } PgpxStatements::generate($n, $seed);
my $script = join '', map { "\\echo ---- $_\n$statements[$_][1];\n\\echo state :SQLSTATE\n" } 0 .. $#statements;
$script =~ s/^\\\.;$/\\./mg;
append_to_file("$folder/script.sql", <<"EOT");
\\set VERBOSITY default
\\set SHOW_CONTEXT always
\\pset null NULL
$script\\echo ----
ROLLBACK;
EOT

my @detached = run_all();
is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.stats'), '0', 'detached tables use no pool');
my $left = contents();

PgpxStatements::fill_tables($remote);
$local->safe_psql('postgres', 'SELECT pgpool.attach_postgres_fdw(); ' . PgpxStatements::fill_local());
my @attached = run_all();
cmp_ok($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.stats WHERE server IN ('one', 'two') AND checkouts > 0"), '==', 2,
	'attached tables of both servers are used through pools');

is(scalar(@detached), scalar(@statements), 'all statements were executed while detached');
is(scalar(@attached), scalar(@statements), 'all statements were executed while attached');
my %kinds;
push @{ $kinds{ $statements[$_][0] } }, $_ foreach 0 .. $#statements;
foreach my $kind (sort keys %kinds)
{
	my @of = @{ $kinds{$kind} };
	my @differ = grep { ($attached[$_] // '') ne ($detached[$_] // '') } @of;

	ok(!@differ, "results of kind $kind are equal (" . @of . ')');
	diag("seed $seed, statement $_: $statements[$_][1]\n-- detached:\n$detached[$_]\n-- attached:\n" . ($attached[$_] // 'nothing')) foreach @differ[ 0 .. ($#differ < 2 ? $#differ : 2) ];
}
my $aborted = grep { /^ERROR:  current transaction is aborted/m } @detached;
cmp_ok($aborted, '<', @statements / 8, "few statements are ignored after an error: $aborted");
my $errors = grep { /^ERROR/m } @detached;
cmp_ok($errors - $aborted, '>', @statements / 20, ($errors - $aborted) . ' statements raise errors');
my @contents = ($left, contents());
my @rows = map { my %rows; $rows{$_}++ foreach split /\n/, $_; \%rows } @contents;
is(join("\n", grep { ($rows[0]{$_} // 0) != ($rows[1]{$_} // 0) } sort keys %{ { %{ $rows[0] }, %{ $rows[1] } } }), '', 'remote tables have the same rows');
is($remote->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'"), '0', 'no transaction is left open');
check_invariants($local);
leak_check($local, $remote);
done_testing();

# Executes the statements in one session; returns the output of each.
sub run_all
{
	my $out = "$folder/out";

	system_or_bail('sh', '-c', 'exec "$0" -XAtq -d "$1" -f "$2" >"$3" 2>&1', $local->installed_command('psql'), $local->connstr('postgres'),
		"$folder/script.sql", $out);
	my (undef, @of) = split /^---- ?\d*\n/m, slurp_file($out);

	pop @of;    # of the last ROLLBACK

	# psql names the file and the line
	s/^psql:\S+: //mg foreach @of;
	return map { sort_notices($_) } @of;
}

# Triggers fire in the physical order of the rows, which vacuum and page pruning affect.
sub sort_notices
{
	my ($text) = @_;
	my @lines = split /^/m, $text;
	my @notices = sort grep { /^NOTICE|^CONTEXT:  PL/ } @lines;

	return join '', @notices, grep { !/^NOTICE|^CONTEXT:  PL/ } @lines;
}

sub contents
{
	# (the numbers of the log's rows follow the physical order of rows)
	return join "\n", map { $remote->safe_psql('remote_db', "SELECT * FROM $_ t") } qw(far.item far.part far.p1 far.p2), '(SELECT what FROM far.log)';
}

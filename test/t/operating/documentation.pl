# Compare README.md and the pages of doc/ with the server: their tables must be correct,
# and their examples must run in order, in one session. (For recipes.md
# and migration.md see recipes.pl.) A line before an example, which ends with a colon, marks an
# exception:
#
#   On the remote server, as its superuser:
#   This fails with SQLSTATE 25001:
use strict;
use warnings;

use FindBin;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# the address in the examples
my $ADDRESS = "host '10.0.0.7'";

# in the order in which their examples run
my @pages = ('README.md', map { "doc/$_.md" } qw(guide foreign-tables dblink drivers connecting operating advice tuning views locks errors reference security limits faq));
my %text = map { $_ => slurp("$FindBin::Bin/../../../$_") } @pages;
my $all = join "\n", @text{@pages};
my $remote = remote_node('remote');
my $local = local_node('local');

all_pages();
examples();
settings();
functions();
views();
options();
questions();

check_invariants($local);
leak_check($local, $remote);
done_testing();

sub slurp
{
	my ($path) = @_;

	open my $file, '<', $path or die "could not read $path: $!\n";
	local $/;
	return <$file>;
}

# The rows of the table under a heading, each a reference to its cells, without
# Markdown's marks.
sub table
{
	my ($heading) = @_;
	my @rows;

	$all =~ /^#+ \Q$heading\E\n(.*?)(?=^#+ |\z)/ms or die "no page has \"$heading\"\n";
	foreach my $line (grep { /^\|/ } split /\n/, $1)
	{
		my @cells = map { s/^\s+|\s+$//gr =~ s/`//gr } split /\|/, $line, -1;

		shift @cells;
		pop @cells;
		push @rows, \@cells;
	}
	splice @rows, 0, 2;    # the heads and the line under them
	return @rows;
}

# Assert that two lists have the same lines in any order.
sub same
{
	my ($got, $expected, $name) = @_;

	return is(join("\n", sort @$got), join("\n", sort @$expected), $name);
}

sub rows
{
	my ($sql) = @_;

	return split /\n/, $local->safe_psql('postgres', $sql);
}

# every page is read by this test or by recipes
sub all_pages
{
	my @there = map { s{.*/}{}r } glob "$FindBin::Bin/../../../doc/*.md";
	my @read = map { m{^doc/(.*)} ? $1 : () } @pages;

	same([ @read, 'recipes.md', 'migration.md' ], \@there, 'tests read all pages');
	return;
}

sub examples
{
	my $session = PgpxSession->new($local);

	foreach my $page (@pages)
	{
		my $n = examples_of($page, $session);

		cmp_ok($n, '>', 5, 'README.md has examples') if $page eq 'README.md';
		is($session->run('SELECT pgpool.checkin_all()'), '0', "$page: examples return their leases");
	}
	$session->quit;
	return;
}

# Returns the number of examples.
sub examples_of
{
	my ($page, $session) = @_;
	my $at = "host '127.0.0.1', port '" . $remote->port . "'";
	my $n = 0;

	while ($text{$page} =~ /(?:\b(On the remote server, as its superuser|This fails with SQLSTATE \w{5}):\n\n)?^```sql\n(.*?)^```$/msg)
	{
		my ($mark, $sql) = ($1 // '', $2);
		my ($title) = $sql =~ /^(.{1,50})/;

		$n++;
		$title = "$page, example $n: $title";
		$sql =~ s/\Q$ADDRESS\E/$at/g;
		if ($mark =~ /^On the remote server/)
		{
			my $status = $remote->psql('postgres', $sql, stderr => \my $error);

			is($status == 0 ? '' : $error, '', "$title (remote)");
		}
		elsif ($mark =~ /SQLSTATE (\w{5})$/)
		{
			$session->fails("$sql;\nROLLBACK", $1, qr//, "$title ($mark)");
		}
		else
		{
			my $rows = $session->run($sql);

			ok($session->error !~ /^psql:.*: (?:ERROR|FATAL|error):/m, $title)
			  or diag($sql, $rows, "\n", $session->error);
		}
	}
	return $n;
}

# The functions of a row of the table. PARAMS are parameters as text, of
# built-in types, or of any type (for which the statement has a type of its own). ON is
# a lease or a pool. A cell may have several functions.
sub signatures
{
	my ($cell) = @_;
	my @signatures = split /(?<=\)), /, $cell;

	foreach ([ PARAMS => q{VARIADIC params text[] DEFAULT '{}'}, 'VARIADIC params pgpool.param[]', 'VARIADIC params "any"' ],
		[ ON => 'lease bigint', 'pool text' ])
	{
		my ($word, @meanings) = @$_;

		@signatures = map {
			my $signature = $_;
			/\b$word\b/ ? map { $signature =~ s/\b$word\b/$_/r } @meanings : $signature
		} @signatures;
	}
	return @signatures;
}

sub settings
{
	same(
		[ map { join ' | ', @$_[ 0 .. 2 ] } table('Settings') ],
		[ rows("SELECT name || ' | ' || boot_val || ' | ' || context FROM pg_settings WHERE name LIKE 'pgpool\\_ext.%'") ],
		'table of settings agrees with pg_settings');
	return;
}

# (each view has a function of the same name; the functions of the type param and of the
# wrapper are not to be called)
sub functions
{
	my @expected = rows(<<'EOT');
SELECT format('%s(%s) | %s | %s', p.proname,
	regexp_replace(replace(pg_get_function_arguments(p.oid), 'sql pgpool.statement', 'sql text'), '::[a-z]+(\[\])?', '', 'g'),
	regexp_replace(pg_get_function_result(p.oid), '^TABLE\(.*', 'TABLE'),
	CASE WHEN has_function_privilege('public', p.oid, 'EXECUTE') THEN 'PUBLIC' ELSE
		coalesce((SELECT string_agg(a.grantee::regrole::text, ', ') FROM aclexplode(p.proacl) a
		 WHERE a.grantee <> p.proowner), 'by GRANT') END)
FROM pg_proc p WHERE p.pronamespace = 'pgpool'::regnamespace
	AND to_regclass('pgpool.' || p.proname) IS NULL
	AND p.proname !~ '^(param_(in|out|recv|send)|pgpool_fdw_(handler|validator))$'
EOT

	my @actual = map {
		my ($cell, $returns, undef, $who) = @$_;
		map { "$_ | $returns | $who" } signatures($cell)
	} table('Functions');

	same(\@actual, \@expected, 'table of functions agrees with pg_proc, including privileges');
	return;
}

sub views
{
	my @views = rows(<<'EOT');
SELECT relname FROM pg_class
WHERE relnamespace = 'pgpool'::regnamespace AND relkind = 'v'
EOT

	same([ $all =~ /^#+ View (\w+)$/mg ], \@views, 'every view has a table of columns');
	same([ map { $_->[0] } table('Views') ], \@views, 'every view is in the table of views');
	my %common = map { $_->[0] => $_ } table('Common columns');

	foreach my $view (@views)
	{
		my @page = table("View $view");
		my @expected = rows(<<"EOT");
SELECT attname || ' | ' || CASE format_type(atttypid, atttypmod)
	WHEN 'timestamp with time zone' THEN 'timestamptz'
	WHEN 'double precision' THEN 'float8'
	ELSE format_type(atttypid, atttypmod) END
FROM pg_attribute
WHERE attrelid = 'pgpool.$view'::regclass AND attnum > 0 AND NOT attisdropped
ORDER BY attnum
EOT

		# the rows of the page in the order of the view, with the common columns that the table lacks
		my @rows = map {
			my ($column) = /^(\w+)/;
			@page && $page[0][0] eq $column ? shift @page : $common{$column} // ()
		} @expected;

		push @rows, @page;
		is( join("\n", map { "$_->[0] | $_->[1]" } @rows),
			join("\n", @expected),
			"table of view $view has its columns in order");

		# one text for both, which \d+ shows
		is( join("\n", map { lcfirst $_->[2] =~ s/\.$//r } @rows),
			$local->safe_psql('postgres', <<"EOT"), "table of view $view has the comments of its columns");
SELECT col_description(attrelid, attnum) FROM pg_attribute
WHERE attrelid = 'pgpool.$view'::regclass AND attnum > 0 ORDER BY attnum
EOT
	}
	return;
}

# The hint of the error that a statement raises.
sub hint
{
	my ($sql) = @_;

	$local->psql('postgres', $sql, stderr => \my $error);
	return $error =~ /^HINT:  (.*)$/m ? $1 : '';
}

# The options in the pages and the source that the validator allows on a server or in a
# user mapping.
sub valid_names
{
	my ($what, $role) = @_;
	my $sql = $what eq 'server' ? 'CREATE SERVER x FOREIGN DATA WRAPPER pgpool_fdw' : 'CREATE USER MAPPING FOR CURRENT_USER SERVER readme';
	my @tables = map { names($_) } map { table($_) } 'Server options', 'Further server options', 'Connection options', 'User mapping options';
	my %names = map { $_ => 1 } @tables, grep { defined } slurp_file("$FindBin::Bin/../../../src/config/options.c") =~ /^\t(?:POOL_\w+\((\w+),|\w*[({]"(\w+)",)/mg;
	my $names = join ',', sort keys %names;

	return split /,/, $local->safe_psql('postgres', <<"EOT");
CREATE FUNCTION pg_temp.is_valid(name text) RETURNS boolean LANGUAGE plpgsql AS \$\$
BEGIN
	EXECUTE format('$sql OPTIONS (%I %L)', name, '1');
	RAISE division_by_zero;
EXCEPTION
	WHEN insufficient_privilege OR fdw_invalid_option_name THEN RETURN false;
	WHEN OTHERS THEN RETURN true;
END \$\$;
SET ROLE $role;
SELECT string_agg(name, ',') FROM unnest('{$names}'::text[]) AS name WHERE pg_temp.is_valid(name);
EOT
}

# The values that the validator allows, in the words of the table.
sub valid_values
{
	my ($option, $bad) = @_;
	my $hint = hint("BEGIN; CREATE SERVER x FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($option '$bad')");

	return 'text' if $hint eq '';
	$hint =~ s/^.*?Valid values (?:are|have):? (?:from )?//;
	$hint =~ s{(?:, without a unit|, with a unit: ("\w+",? (?:or )?)*"\w+")?\.(?: Valid units.*)?$}{};
	$hint =~ s/ and from / and /;
	$hint =~ s/ and are not empty/, not empty/;
	return $hint;
}

# The names in a row, which may have several.
sub names { return split /, /, $_[0]->[0] =~ s/ \((?:libpq|PostgreSQL) \d+\)$//r; }

sub options
{
	my @pool = (table('Server options'), table('Further server options'));
	my @libpq = table('Connection options');
	my @mapping = table('User mapping options');
	my @for_all = grep { $_->[3] !~ /^superuser/ } @libpq;
	my @of_tables = grep { $_->[1] =~ /server/ } table('Options of foreign tables');

	$local->safe_psql('postgres', <<'EOT');
CREATE ROLE readme_user;
CREATE ROLE readme_super SUPERUSER;
GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO readme_user;
CREATE SERVER readme FOREIGN DATA WRAPPER pgpool_fdw;
GRANT USAGE ON FOREIGN SERVER readme TO readme_user;
EOT

	# the tables also have options of later versions
	my $is_newer = sub { return $_[0]->[0] =~ /(?:(?:libpq|PostgreSQL)|PostgreSQL) \d/; };
	foreach ([ readme_super => @pool, @of_tables, @libpq ], [ readme_user => @pool, @of_tables, @for_all ])
	{
		my ($role, @rows) = @$_;
		my %valid = map { $_ => 1 } valid_names('server', $role);
		my @newer = map { names($_) } grep { $is_newer->($_) } @libpq, @of_tables;
		my %newer = map { $_ => 1 } @newer;

		same([ grep { $valid{$_} || !$newer{$_} } map { names($_) } @rows ],
			[ keys %valid ], "tables have the options of a server: $role");
	}
	my %of_mapping = map { $_ => 1 } valid_names('mapping', 'readme_super');

	@mapping = grep { !$is_newer->($_) || $of_mapping{(names($_))[0]} } @mapping;
	same([ map { names($_) } @mapping ], [ keys %of_mapping ],
		'table has the options of a user mapping: superuser');
	same([ map { names($_) } grep { $_->[3] !~ /^superuser/ } @mapping ],
		[ valid_names('mapping', 'readme_user') ],
		'table has the options of a user mapping: others');

	# libpq checks the values of its options
	foreach my $row (@pool)
	{
		my $bad = $row->[2] =~ /bytes/ ? 'x' x 10_000 : '?';

		is($row->[2], valid_values($row->[0], $bad), "values of $row->[0] are correct");
	}

	# every documented default must be a valid value
	foreach my $row (grep { $_->[1] ne '' } @pool)
	{
		my ($option, $default) = @$row;
		my $status = $local->psql('postgres', "BEGIN; CREATE SERVER x FOREIGN DATA WRAPPER pgpool_fdw OPTIONS ($option '$default')");

		is($status, 0, "default of $option is valid");
	}

	# the defaults of a pool that an example has made
	my %column = map { $_->[0] => $_->[1] } @pool;
	is( $local->safe_psql('postgres', <<'EOT'),
SELECT current_setting('pgpool_ext.default_pool_size')
EOT
		$column{pool_size}, 'default of pool_size is that of the setting');
	return;
}

# The errors of PostgreSQL that the FAQ explains are raised with these texts. (For our
# own errors a lint compares the sources.)
sub questions
{
	my %raises = (
		'a column definition list is required for functions returning "record"' => q{SELECT * FROM pgpool.query('shard1', 'select 1')},
		'cannot insert multiple commands into a prepared statement' => q{SELECT * FROM pgpool.query('shard1', 'select 1; select 2') AS t(a int)},
		'could not determine data type of parameter $1' => q{PREPARE p (unknown, point) AS SELECT pgpool.exec('shard1', 'select $1, $2', $1, $2)},
		'function pgpool.query(unknown, unknown, unknown) is not unique' => q{SELECT * FROM pgpool.query('shard1', 'select 1', VARIADIC '{}') AS t(a int)},
		'could not determine polymorphic type because input has type unknown' => q{SELECT pgpool.query_as(NULL, 'shard1', 'select 1')},
		'function pgpool.exec(..) does not exist' => q{SELECT pgpool.exec(pool => 'shard1', sql => 'select 1')},
		'invalid input syntax for type interval' => q{SELECT pgpool.checkout('shard1', 'month report')},
		'option "leak_warning" not found' => q{ALTER SERVER crowded OPTIONS (DROP leak_warning)},
		'option "leak_warning" provided more than once' => q{ALTER SERVER crowded OPTIONS (ADD leak_warning '10min', ADD leak_warning '20min')},
		'schema "pgpool" does not exist' => "\\connect template1\nSELECT pgpool.checkin_all()",
		'permission denied for function pause' => q{SET ROLE web; SELECT pgpool.pause('shard1')},
		'too many connections for role' => q{SELECT pgpool.checkout('crowded', '200 ms')});
	my $faq = $text{'doc/faq.md'};

	$faq =~ s/\s+/ /g;
	$remote->safe_psql('postgres', q{CREATE ROLE crowded LOGIN CONNECTION LIMIT 0 PASSWORD 'secret'});
	make_pool($local, $remote, server => 'crowded', user => 'crowded', password => 'secret');
	foreach my $text (sort keys %raises)
	{
		my $pattern = quotemeta($text) =~ s/\\\.\\\./.*/r;

		like($faq, qr/(?:ERROR|FATAL): \Q$text\E/, "FAQ explains \"$text\"");
		my $error;

		# the first checkout can time out before the first attempt has failed
		ok(wait_until($local, sub {
			$local->psql('postgres', $raises{$text}, stderr => \$error);
			return $error =~ /$pattern/ ? 1 : 0;
		}, 1, 30), "\"$text\" is raised") or diag($error);
	}
	return;
}

# ANALYZE of foreign tables with the statistics of the remote server (option import_stats): they
# are those of a sample, no rows are sent, and all that a remote server sends is checked.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ['autovacuum = off']);
my $local = local_node('local');
my $super;
my @stats = qw(null_frac avg_width n_distinct most_common_vals most_common_freqs histogram_bounds correlation
  most_common_elems most_common_elem_freqs elem_count_histogram range_length_histogram range_empty_frac range_bounds_histogram);

make_pool($local, $remote, server => 'shard');
$super = PgpxSession->new($local);

if ($local->pg_version < 18)
{
	foreach my $sql (q{ALTER SERVER shard OPTIONS (ADD import_stats 'true')}, q{CREATE FOREIGN TABLE t (a int) SERVER shard OPTIONS (import_stats 'false')})
	{
		$super->fails($sql, 'HV00D', qr/invalid option "import_stats".*The import of statistics needs PostgreSQL 18/s, "option is refused, with the reason: $sql");
	}
	$super->quit;
	leak_check($local, $remote);
	done_testing();
	exit;
}

# Run ANALYZE. Returns "import" or "sample", and the detail of a warning. Only a sample receives
# the rows of the table, of which there are at least a hundred.
sub analyze
{
	my ($table, $what) = @_;
	my $server = $super->run("SELECT srvname FROM pg_foreign_table JOIN pg_foreign_server s ON s.oid = ftserver WHERE ftrelid = '$table'::regclass");
	my $rows = "SELECT rows FROM pgpool.stats WHERE server = '$server' AND local_user = current_user";
	my $before = $super->run($rows) || 0;

	$super->run('ANALYZE ' . ($what // $table));
	my $error = $super->error;
	my ($detail) = $error =~ /WARNING.*could not import the statistics of foreign table.*?DETAIL:\s+(.*?)\n/s;
	return $error if $error =~ /ERROR/;
	return ($super->run($rows) - $before < 50 ? 'import' : 'sample') . (defined $detail ? ": $detail" : '');
}

# The statistics of a table's columns.
sub stats_of
{
	my ($table, $inherited) = @_;

	return $super->run('SELECT attname, ' . join(', ', map { "$_\::text" } @stats)
		  . " FROM pg_stats WHERE tablename = '$table' AND inherited = " . ($inherited ? 'true' : 'false') . ' ORDER BY attname');
}

sub size_of { return $super->run("SELECT relpages, reltuples FROM pg_class WHERE oid = '$_[0]'::regclass") }

$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE facts AS SELECT i AS id, i % 7 * (i % 3) AS kind, ('name ' || i * 7919 % 1000) COLLATE "C" AS name, (i % 2500) * 1.25 AS amount,
	'2026-01-01'::timestamptz + i * interval '1 minute' AS at, make_interval(days => -(i % 40), mins => i % 50) AS span, nullif(i % 4, 0) AS sparse,
	ARRAY[i % 5, i % 11, i % 13] AS list, to_tsvector('simple', 'word' || i % 20 || ' other' || i % 3) AS words,
	CASE WHEN i % 10 = 0 THEN 'empty' ELSE int4range(i, i + i % 100 + 1) END AS period, int4multirange(int4range(i, i + 5)) AS periods,
	i % 2 = 0 AS flag, sqrt(i) AS root, (i % 30 + 1)::positive AS positive, json_build_object('a', i) AS doc, NULL::int AS nothing, 'a,"b\' || i % 3 AS quoted
FROM generate_series(1, 20000) AS i;
ANALYZE facts;
CREATE TABLE never (a int);
INSERT INTO never SELECT generate_series(1, 100);
ALTER TABLE never SET (autovacuum_enabled = false);
CREATE VIEW seen AS SELECT id FROM facts;
CREATE TABLE parent (a int);
INSERT INTO parent SELECT generate_series(1, 100);
CREATE TABLE child () INHERITS (parent);
CREATE TABLE parted (a int, b int) PARTITION BY RANGE (a);
CREATE TABLE parted1 PARTITION OF parted FOR VALUES FROM (0) TO (1000);
CREATE TABLE parted2 PARTITION OF parted FOR VALUES FROM (1000) TO (9000);
INSERT INTO parted SELECT i, i % 10 FROM generate_series(1, 3000) AS i;
ANALYZE parent, parted;
CREATE TABLE partly (a int, b int);
ALTER TABLE partly ALTER b SET STATISTICS 0;
INSERT INTO partly SELECT i, i FROM generate_series(1, 100) AS i;
CREATE TABLE texts (a text, b text COLLATE "C");
INSERT INTO texts SELECT CASE WHEN i < 100 THEN i::text ELSE 'none' END, chr(i % 26 + 65 + i % 2 * 32) || i FROM generate_series(1, 200) AS i;
ANALYZE partly, texts;
EOT

my $columns = 'id int, kind int, name text COLLATE "C", amount numeric, at timestamptz, span interval, sparse int, list int[], words tsvector, period int4range,'
  . ' periods int4multirange, flag bool, root float8, positive int, doc json, nothing int, quoted text';

$super->run(<<"EOT");
CREATE FOREIGN TABLE sampled ($columns) SERVER shard OPTIONS (schema_name 'public', table_name 'facts');
CREATE FOREIGN TABLE imported ($columns) SERVER shard OPTIONS (schema_name 'public', table_name 'facts', import_stats 'true');
EOT
is($super->error, '', 'foreign tables are created');

# ---------- the statistics are those of a sample
{
	is(analyze('sampled'), 'sample', 'without the option ANALYZE takes a sample');
	is(analyze('imported'), 'import', 'with the option ANALYZE receives no rows of the table');
	is(stats_of('imported'), stats_of('sampled'), 'statistics of the columns are those of a sample');
	is(size_of('imported'), size_of('sampled'), 'size of the table is that of a sample');
	is($super->run(q{SELECT pg_stat_get_analyze_count('imported'::regclass)}), '1', 'ANALYZE is counted');

	foreach my $query ('SELECT * FROM T WHERE kind = 4 AND amount < 100', q{SELECT name, count(*) FROM T WHERE at > '2026-01-10' GROUP BY name},
		'SELECT * FROM T a JOIN T b ON a.kind = b.sparse AND a.root < 10', 'SELECT * FROM T WHERE list @> ARRAY[3, 4]',
		q{SELECT * FROM T WHERE words @@ 'word7' AND period && '[100,200]'}, q{SELECT * FROM T WHERE lower(quoted) = 'x' OR nothing IS NULL ORDER BY span LIMIT 10})
	{
		my ($sampled, $imported) = map { $super->run('EXPLAIN VERBOSE ' . $query =~ s/\bT\b/$_/gr) =~ s/\b$_\b/T/gr } 'sampled', 'imported';

		like($sampled, qr/rows=/, "plan: $query");
		is($imported, $sampled, 'plan is that of a sample');
	}

	# the local definition: names, dropped columns, the targets and options of columns
	$super->run(<<'EOT');
CREATE FOREIGN TABLE renamed (gone int, "B" int OPTIONS (column_name 'kind'), a bigint OPTIONS (column_name 'id'), flag bool)
	SERVER shard OPTIONS (schema_name 'public', table_name 'facts', import_stats 'on');
ALTER FOREIGN TABLE renamed DROP COLUMN gone, ALTER flag SET STATISTICS 0, ALTER a SET (n_distinct = -0.5);
EOT
	is(analyze('renamed'), 'import', 'statistics of renamed columns are imported');
	is($super->run(q{SELECT attname, n_distinct FROM pg_stats WHERE tablename = 'renamed' ORDER BY attname}), "B|10\na|-0.5",
		'names and options of the columns apply, and columns without statistics have none');

	# a second import leaves nothing of the first one
	$remote->safe_psql('remote_db', 'UPDATE facts SET kind = id, sparse = 1, list = NULL; VACUUM FULL ANALYZE facts');
	is(analyze('imported'), 'import', 'statistics are imported again');
	is(analyze('sampled'), 'sample', 'the other table is sampled again');
	is(stats_of('imported'), stats_of('sampled'), 'new statistics are those of a sample');

	# columns of a list
	$remote->safe_psql('remote_db', 'UPDATE facts SET kind = 1, sparse = 2; ANALYZE facts');
	is(analyze('imported', 'imported (kind)'), 'import', 'ANALYZE of a column imports statistics');
	is($super->run(q{SELECT n_distinct FROM pg_stats WHERE tablename = 'imported' AND attname = 'kind'}), '1', 'statistics of the column are new');
	$super->fails('ANALYZE imported (kind, missing)', '42703', qr/column "missing"/, 'unknown column is an error');
	$super->fails('ANALYZE imported (kind, kind)', '42701', qr/more than once/, 'column that is named twice is an error');

	# the owner's privileges
	$super->run(<<'EOT');
REVOKE MAINTAIN ON imported FROM CURRENT_USER;
CREATE FUNCTION is_checked(int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'checked by %', current_user; RETURN true; END $$;
CREATE DOMAIN checked AS int CHECK (is_checked(VALUE));
CREATE FOREIGN TABLE of_app (kind checked) SERVER shard OPTIONS (schema_name 'public', table_name 'facts', import_stats 'true');
ALTER FOREIGN TABLE of_app OWNER TO app;
EOT
	is(analyze('imported'), 'import', 'superuser needs no privilege');
	$super->run('ANALYZE of_app');
	like($super->error, qr/checked by app/, 'values are converted by the owner of the table');
	unlike($super->error, qr/checked by (?!app)|WARNING|ERROR/, 'they are not converted by another user');
	is($super->run(q{SELECT reltuples FROM pg_class WHERE relname = 'of_app'}), '20000', 'table of another owner is analyzed');
	$super->run('SET ROLE app; REVOKE MAINTAIN ON of_app FROM app; RESET ROLE');
	$super->run('ANALYZE of_app');
	like($super->error, qr/no privilege MAINTAIN/, 'owner without privilege MAINTAIN gets a sample');
}

# ---------- when a sample is taken
{
	my $all = sub { return $super->run("ALTER FOREIGN TABLE imported OPTIONS (SET import_stats '$_[0]')") };

	# the age
	$all->('1h');
	is(analyze('imported'), 'import', 'recent statistics are imported');
	$all->('1ms');
	is(analyze('imported'), 'sample', 'statistics older than the option permits are not imported, without a warning');
	$super->run('ANALYZE VERBOSE imported');
	like($super->error, qr/INFO.*older than option "import_stats" permits/, 'ANALYZE VERBOSE says why');
	$all->('1h');
	$remote->safe_psql('remote_db', q{SELECT pg_stat_reset_single_table_counters('facts'::regclass)});
	is(analyze('imported'), 'sample', 'statistics of an unknown age are not imported');
	$all->('true');
	is(analyze('imported'), 'import', 'without a limit their age does not matter');

	# the table's option overrides that of the server
	$super->run(q{ALTER SERVER shard OPTIONS (ADD import_stats '1d')});
	is(analyze('sampled'), 'sample', 'option of the server has the limit');
	$super->run(q{ALTER SERVER shard OPTIONS (SET import_stats 'on')});
	is(analyze('sampled'), 'import', 'option of the server applies');
	$all->('false');
	is(analyze('imported'), 'sample', 'option of the table overrides that of the server');
	foreach my $value ('yes', '1', '0', '0s', '5', '-1', '99999d', '')
	{
		$super->fails("ALTER SERVER shard OPTIONS (SET import_stats '$value')", '22023', qr/invalid value for option "import_stats": "$value".*maximum age/s, "option cannot be '$value'");
	}

	# tables whose statistics cannot be imported
	my @cases = (
		[ 'never', 'a int', 'The remote table has no statistics.' ],
		[ 'seen', 'id int', 'The remote relation is no table that has statistics.' ],
		[ 'parent', 'a int', 'The remote table has or had child tables.' ],
		[ 'partly', 'a int, b int', 'The remote table has no statistics of column "b".' ],
		[ 'texts', 'a int', undef ],
		[ 'texts', 'a varchar(2)', undef ],
		[ 'texts', 'b text COLLATE "C"', '' ],
		[ 'facts', 'words text', 'The remote statistic "most_common_elems" of column "words" is not valid here.' ],
		[ 'facts', 'period text', 'The remote statistic "range_bounds_histogram" of column "period" is not valid here.' ],
		[ 'facts', 'id text COLLATE "C"', 'The remote statistic "histogram_bounds" of column "id" is not valid here.' ]);

	foreach my $case (@cases)
	{
		my ($table, $definition, $detail) = @$case;

		$super->run("CREATE FOREIGN TABLE c ($definition) SERVER shard OPTIONS (schema_name 'public', table_name '$table')");
		my $result = analyze('c');

		# (a text that is no value of the column is an error of the sample, too)
		defined $detail ? is($result, $detail eq '' ? 'import' : "sample: $detail", "$table ($definition)") :
		  like($result, qr/WARNING.*The remote statistic "\w+" of column "a" is not valid here.*ERROR/s, "$table ($definition)");
		$super->run('DROP FOREIGN TABLE c');
	}
	$super->run('CREATE STATISTICS of_kinds ON kind, sparse FROM sampled');
	is(analyze('sampled'), 'sample: The foreign table has statistics objects.', 'statistics objects need a sample');
	is($super->run(q{SELECT count(*) FROM pg_stats_ext WHERE tablename = 'sampled' AND n_distinct IS NOT NULL}), '1', 'statistics object has its statistics');
	$super->run('DROP STATISTICS of_kinds');

	# a histogram in the order of another collation
	if ($remote->safe_psql('remote_db', q{SELECT count(*) FROM pg_collation WHERE collname = 'und-x-icu'}))
	{
		$remote->safe_psql('remote_db', 'ALTER TABLE texts ALTER b TYPE text COLLATE "und-x-icu"; ANALYZE texts');
		$super->run(q{CREATE FOREIGN TABLE c (b text COLLATE "C") SERVER shard OPTIONS (schema_name 'public', table_name 'texts')});
		is(analyze('c'), 'sample: The remote statistic "histogram_bounds" of column "b" is not valid here.', 'histogram in the order of another collation is not imported');
		$super->run('DROP FOREIGN TABLE c');
	}

	# a remote partitioned table has statistics of all its partitions
	$super->run(q{CREATE FOREIGN TABLE parted (a int, b int) SERVER shard OPTIONS (schema_name 'public')});
	is(analyze('parted'), 'import', 'statistics of a remote partitioned table are imported');
	is($super->run(q{SELECT reltuples, (SELECT string_agg(attname || ' ' || n_distinct, ', ' ORDER BY attname) FROM pg_stats WHERE tablename = 'parted') FROM pg_class WHERE oid = 'parted'::regclass}),
		'3000|a -1, b 10', 'they are those of all partitions');

	# a sample of several tables together (ANALYZE of a parent skips a child without pages, such as a
	# remote partitioned table)
	$super->run(<<'EOT');
CREATE TABLE family (a int, b int) PARTITION BY RANGE (a);
CREATE FOREIGN TABLE member PARTITION OF family FOR VALUES FROM (0) TO (9000) SERVER shard OPTIONS (schema_name 'public', table_name 'parted1');
CREATE FOREIGN TABLE over (a int, b int) SERVER shard OPTIONS (schema_name 'public', table_name 'parted1');
CREATE FOREIGN TABLE under () INHERITS (over) SERVER shard OPTIONS (schema_name 'public', table_name 'parted2');
EOT
	foreach my $case ([ 'family', 999, '', 10 ], [ 'member', 999, 10, '' ], [ 'over', 999, 10, 10 ])
	{
		my ($table, $tuples, @distinct) = @$case;

		$super->run('DELETE FROM pg_statistic');
		is(analyze('member', $table), $table eq 'member' ? 'import' : 'sample', "ANALYZE $table");
		is($super->run("SELECT reltuples FROM pg_class WHERE relname = '$table'"), $tuples, "$table has its number of rows");
		is($super->run("SELECT n_distinct FROM pg_stats WHERE tablename = '$table' AND attname = 'b' AND inherited = " . ($_ ? 'true' : 'false')),
			$distinct[$_], "$table has its statistics, inherited: $_")
		  foreach 0, 1;
	}
	$super->run('SET track_activities = off');
	$super->run('ANALYZE imported');
	is($super->error, '', 'ANALYZE succeeds without track_activities');
	$super->run('RESET track_activities');
}

# ---------- a remote server that sends anything
{
	my $evil = sub { return $remote->safe_psql('evil', "SET allow_system_table_mods = on; $_[0]") };
	my $texts = join ', ', 'schemaname::text', 'tablename::text', 'attname::text', 'inherited', map { "$_\::text" } @stats;
	my $has_ranges = $remote->pg_version >= 17;

	$remote->safe_psql('postgres', 'CREATE DATABASE evil');
	$evil->(<<"EOT");
CREATE TABLE facts AS SELECT i AS id, 1 + i % 3 AS kind, ARRAY[i % 5, i % 3] AS list, int4range(i, i + 1 + i % 10) AS period FROM generate_series(1, 1000) AS i;
GRANT SELECT ON facts TO PUBLIC;
ANALYZE facts;
CREATE TABLE good AS SELECT $texts FROM pg_stats WHERE tablename = 'facts';
ALTER VIEW pg_catalog.pg_stats RENAME TO pg_stats_of_server;
CREATE TABLE pg_catalog.pg_stats AS TABLE good;
GRANT SELECT ON pg_catalog.pg_stats TO PUBLIC;
EOT
	make_pool($local, $remote, server => 'evil', remote_dbname => 'evil', options => { import_stats => 'true' });
	$super->run('CREATE FOREIGN TABLE facts (id int, kind int, list int[], period int4range) SERVER evil OPTIONS (schema_name \'public\')');
	is(analyze('facts'), 'import', 'statistics are imported from a table of texts');

	my $long = 'SELECT array_agg(i * 1.0 / 1000000 ORDER BY i)::text FROM generate_series(1, 10003) AS i';
	my @cases = (
		(map { [ 'kind', 'null_frac', "'$_'" ] } 'NaN', '2', '-0.5', 'x', '', '1e400'), [ 'kind', 'null_frac', 'NULL' ],
		(map { [ 'kind', 'avg_width', "'$_'" ] } '-1', '99999999999', '1.5', '2147483647'),
		(map { [ 'kind', 'n_distinct', "'$_'" ] } '-2', 'Infinity', 'NaN'), (map { [ 'id', 'correlation', "'$_'" ] } '2', 'NaN'),
		(map { [ 'kind', 'most_common_vals', $_, 'most_common_(vals|freqs)' ] } q{'{1,2}'}, q{'{1,2,x}'}, q{'{1,2,NULL}'}, q{'{{1,2,3}}'}, q{'{}'}, q{'1'}, "'{1,2,3'", 'NULL', q{'{1,2,99999999999}'},
			'(SELECT array_agg(i)::text FROM generate_series(1, 10001) AS i)'),
		(map { [ 'kind', 'most_common_freqs', $_ ] } q{'{0.1,0.1}'}, q{'{0.1,0.1,NaN}'}, q{'{0.1,0.1,1.5}'}, q{'{-0.1,0.1,0.1}'}, q{'{0.1,NULL,0.1}'}, q{'{}'}, 'NULL', "($long)"),
		(map { [ 'id', 'histogram_bounds', $_ ] } q{'{3,2,1}'}, q{'{1}'}, q{'{1,NULL}'}, q{'{a,b}'}, q{'[5:6]={2,1}'}, '(SELECT array_agg(i)::text FROM generate_series(1, 10002) AS i)'),
		[ 'kind', 'most_common_elems', q{'{1}'} ], [ 'kind', 'elem_count_histogram', q{'{1,1,1}'} ], [ 'kind', 'most_common_elem_freqs', q{'{0.1,0.1,0.1}'} ],
		(map { [ 'list', 'most_common_elem_freqs', $_ ] } q{'{0.1,0.1,0.1}'}, q{'{0.1}'}, 'NULL'), (map { [ 'list', 'most_common_elems', $_, 'most_common_elem(s|_freqs)' ] } q{'{}'}, q{'{1}'}, q{'{x}'}, 'NULL'),
		(map { [ 'list', 'elem_count_histogram', $_ ] } q{'{}'}, q{'{1}'}, q{'{1,2}'}, q{'{-1,2,3}'}, q{'{NaN,1,1}'}, "($long)"),
		[ 'kind', 'range_length_histogram', q{'{1,2}'} ], [ 'kind', 'range_bounds_histogram', q{'{"[1,2)","[2,3)"}'} ],
		(map { [ 'period', 'range_length_histogram', $_ ] } q{'{2,1}'}, q{'{1}'}, q{'{-1,1}'}, q{'{1,NaN}'}, q{'{}'}, 'NULL'), (map { [ 'period', 'range_empty_frac', $_, 'range_(empty_frac|length_histogram)' ] } q{'2'}, 'NULL'),
		(map { [ 'period', 'range_bounds_histogram', $_ ] } q{'{empty,empty}'}, q{'{"[1,2)"}'}, q{'{"[2,1)","[2,3)"}'}));

	foreach my $case (grep { $has_ranges || $_->[1] !~ /^range/ } @cases)
	{
		my ($column, $stat, $value, $invalid) = @$case;

		$evil->("TRUNCATE pg_catalog.pg_stats; INSERT INTO pg_catalog.pg_stats TABLE good; UPDATE pg_catalog.pg_stats SET $stat = $value WHERE attname = '$column'");
		$invalid //= $stat;
		like(analyze('facts'), qr/^sample: The remote statistic "$invalid" of column "$column" is not valid here\.$/, "$stat = $value of $column is rejected");
	}
	$evil->("TRUNCATE pg_catalog.pg_stats; INSERT INTO pg_catalog.pg_stats SELECT g.* FROM good g, generate_series(1, 1000)");
	is(analyze('facts'), 'sample: The statistics of the remote table are too large.', 'too many rows are rejected');
	$evil->("TRUNCATE pg_catalog.pg_stats; INSERT INTO pg_catalog.pg_stats TABLE good; UPDATE pg_catalog.pg_stats SET most_common_vals = '{' || repeat(' ', 67108864) || '1,2,3}' WHERE attname = 'kind'");
	is(analyze('facts'), 'sample: The statistics of the remote table are too large.', 'long texts are rejected');
	$evil->('TRUNCATE pg_catalog.pg_stats; INSERT INTO pg_catalog.pg_stats TABLE good; INSERT INTO pg_catalog.pg_stats (schemaname, tablename, attname, inherited) '
		  . q{VALUES ('public', 'facts', 'id'' --', false), ('public', 'facts', NULL, false)});
	is(analyze('facts'), 'import', 'rows of other columns are ignored');
	foreach my $tuples ('NaN', 'Infinity', '-5', '0')
	{
		$evil->("UPDATE pg_class SET reltuples = '$tuples' WHERE oid = 'facts'::regclass");
		is(analyze('facts'), 'sample: The remote table has no statistics.', "reltuples = $tuples is rejected");
	}

	# the planner reads the statistics of the import that succeeded last
	is($super->run(q{SELECT count(*) FROM facts WHERE kind = 1 AND list @> ARRAY[1] AND period && '[1,20]'}), '1', 'queries are planned and executed');
}

# ---------- servers of postgres_fdw 19, whose option it is
if ($local->safe_psql('postgres', 'SHOW server_version_num') >= 190000)
{
	my $port = $remote->port;

	$super->run(<<"EOT");
CREATE EXTENSION postgres_fdw;
CREATE SERVER theirs FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', import_stats 'true');
CREATE USER MAPPING FOR CURRENT_USER SERVER theirs OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
CREATE FOREIGN TABLE of_theirs ($columns) SERVER theirs OPTIONS (schema_name 'public', table_name 'facts');
EOT
	$super->run('ANALYZE of_theirs');
	is($super->error, '', 'postgres_fdw imports statistics');
	my $expected = stats_of('of_theirs');

	$super->run('SELECT pgpool.attach_postgres_fdw(); DELETE FROM pg_statistic WHERE starelid = \'of_theirs\'::regclass');
	is(analyze('of_theirs'), 'import', 'attached table imports statistics through the pool');
	is(stats_of('of_theirs'), $expected, 'they are those that postgres_fdw imports');
	$super->run('SELECT pgpool.detach_postgres_fdw(); DROP SERVER theirs CASCADE');
}

$super->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

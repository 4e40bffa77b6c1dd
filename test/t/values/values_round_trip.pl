# Every value has the same binary form through the pool as locally, as result and as
# parameter, whatever the settings of both sessions.
# PGPX_TEST_SETTINGS=all: all combinations of settings, and values of 1 GB.
use strict;
use warnings;

use PgpxTest;
use Test::More;

plan skip_all => 'values do not depend on TLS' if over_tls();

# Free memory in GB, as far as known.
sub free_memory
{
	open my $file, '<', '/proc/meminfo' or return 0;
	my ($kb) = map { /^MemAvailable:\s+(\d+)/ ? $1 : () } <$file>;

	return ($kb // 0) / 1024 / 1024;
}

# a server that is its own remote server
my $both = remote_node('both', conf => ["shared_preload_libraries = 'pgpool_ext'"]);

$both->safe_psql('postgres', 'CREATE EXTENSION pgpool_ext; CREATE DATABASE same TEMPLATE template0');
$both->safe_psql('postgres', q{ALTER DATABASE same SET timezone = 'PST8PDT'; ALTER DATABASE same SET client_min_messages = error});
make_pool($both, $both, server => 'same', dbname => 'same', remote_dbname => 'same', user => 'remote_super', password => $REMOTE_SUPER_PASSWORD);

$both->safe_psql('same', <<'EOT');
CREATE TYPE mood AS ENUM ('sad', 'ok', 'very happy', 'it''s "that"', '☃');
CREATE TYPE pair AS (a int, b text);
CREATE TYPE nested AS (p pair, list pair[], "at" timestamptz);
CREATE TYPE single AS (a text);
CREATE TYPE textrange AS RANGE (subtype = text, collation = "C");
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN code AS varchar(4) CHECK (VALUE ~ '^[a-z]');
CREATE DOMAIN moods AS mood[];
CREATE DOMAIN pairs AS pair CHECK ((VALUE).a > 0);
CREATE DOMAIN more AS positive CHECK (VALUE < 10);
CREATE TABLE old (gone int, a int, also_gone text, b text);
ALTER TABLE old DROP COLUMN gone, DROP COLUMN also_gone, ADD COLUMN c date DEFAULT 'infinity';
INSERT INTO old VALUES (1, 'x', '2026-11-21'), (NULL, '', '0044-03-15 BC');
EOT

# values of each type; the array of all of them is tested, too
my %values = (
	bool => [qw(true false)],
	'"char"' => [ "'a'", "''", "'\\351'", "'\\\\'" ],
	char => [ "'x'", "' '", "''" ],
	'char(5)' => [ "'ab'", "''", "'     '", "'ä☃🐘'" ],
	bpchar => [ "'ab  '", "''" ],
	varchar => [ "'ab  '", "''", "'  '" ],
	name => [ "'x'", "''", "repeat('n', 63)" ],
	text => [
		"''", "' '", "'NULL'", "'null'", "'{}'", "'\"'", "'''\"\\'", "E'\\t\\r\\n\\b\\f\\v\\x01\\x7f'", "'a,b'", "'(1,2)'",
		"'Größe ☃ 漢字 🐘'", "U&'\\FEFF\\200B\\FFFD\\+10FFFF\\0301'", "repeat('xä', 100000)"
	],
	bytea => [ "''", "'\\x00'", "'\\xff00275c0a'", "decode(repeat('00ff5c27', 50000), 'hex')", "'abc'" ],
	int2 => [ -32768, 0, 32767 ],
	int4 => [ -2147483648, 0, 2147483647 ],
	int8 => [ "'-9223372036854775808'", 0, '9223372036854775807' ],
	oid => [ 0, 4294967295 ],
	float4 => [ 0.1, "'-0'", "'NaN'", "'Infinity'", "'-Infinity'", '1e-45', '3.4028235e38', '1.17549435e-38', '16777217' ],
	float8 => [
		0.1, '0.1::float8 + 0.2::float8', "'-0'", "'NaN'", "'Infinity'", "'-Infinity'", '4.9e-324', '1.7976931348623157e308',
		'2.2250738585072014e-308', '9007199254740993', 'pi()', '1e23', '5e-324 * 3'
	],
	numeric => [
		0, '0.00', '1.50', '-0.000', "'NaN'", "'Infinity'", "'-Infinity'", '1e100', '1e-100', '12345678901234567890.12345678901234567890',
		'10000', '0.0001', 'power(10::numeric, 1000) + 1', "('0.' || repeat('0', 500) || '1')::numeric", "repeat('9', 10000)::numeric"
	],
	'numeric(10,4)' => [ '1.5', '-99999.9999' ],
	money => [ "'0'", "'-1.23'", "'92233720368547758.07'", "'-92233720368547758.08'" ],
	date => [ "'2026-11-21'", "'0044-03-15 BC'", "'4713-01-01 BC'", "'infinity'", "'-infinity'", "'5874897-12-31'", "'0001-02-03'", "'0012-01-02'" ],
	time => [ "'00:00'", "'23:59:59.999999'", "'24:00:00'" ],
	'time(2)' => ["'12:34:56.789'"],
	timetz => [ "'00:00+00'", "'12:34:56.789+05:30'", "'24:00:00-12:34:56'", "'23:59:59.999999+15:59:59'" ],
	timestamp => [ "'2026-02-01 03:04:05.678901'", "'infinity'", "'-infinity'", "'4714-11-24 00:00 BC'", "'294276-12-31 23:59:59.999999'", "'0001-01-01 BC'", "'2000-01-01'", "'1999-12-31 23:59:59.999999'" ],
	timestamptz => [
		"'2026-02-01 03:04:05.678901+00'", "'infinity'", "'-infinity'", "'4714-11-24 00:00+00 BC'", "'294276-12-31 23:59:59.999999+00'",
		"'1883-11-18 12:03:57-07:52:58'", "'1850-06-01 00:00:00+00'", "'2026-11-01 08:30:00+00'", "'2026-11-01 09:30:00+00'", "'2026-03-08 10:00:00+00'"
	],
	interval => [
		"'0'", "'1 year 2 mons -3 days +04:05:06.789'", "'-1 year -2 mons +3 days -04:05:06.789'", "'-1 mon +1 day -00:00:00.000001'", "'1 mon -1 day'",
		"'-1 day +1 hour'", "'178000000 years 11 mons'", "'-178000000 years'", "'2147483647 days'", "'-2147483647 days'", "'2562047788:00:54.775807'", "'-1 year +1 mon'", "'-1 day -1 hour'", "'-1 year -1 mon'", "'-1 day -00:00:00.5'", "'+1 day -1 us'"
	],
	uuid => [ "'00000000-0000-0000-0000-000000000000'", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'" ],
	bit => [ "B'1'", "B'0'" ],
	'bit(11)' => [ "B'10100000001'" ],
	varbit => [ "B''", "B'1'", "B'000000000'", "X'deadbeef'", "repeat('10', 10000)::varbit" ],
	inet => [ "'0.0.0.0/0'", "'10.1.2.3'", "'10.1.2.3/8'", "'::1'", "'::ffff:1.2.3.4/100'", "'fe80::1/64'" ],
	cidr => [ "'10.0.0.0/8'", "'::/0'", "'10.1.2.3/32'" ],
	macaddr => ["'08:00:2b:01:02:03'"],
	macaddr8 => ["'08:00:2b:01:02:03:04:05'"],
	json => [ "'null'", "'{\"b\":1,  \"a\":[1.50,null,\"\\u00e4☃\"],\"b\":2}'", "' 1 '", "'\"\"'", "'{\"a\" : \"\\\\\"}'" ],
	jsonb => [ "'null'", "'{\"b\":1,  \"a\":[1.50,null,\"\\u00e4☃\"],\"b\":2}'", "'1e1000'", "'\"\"'", "'[]'", "'{}'", "'{\"\":\"\"}'" ],
	jsonpath => [ "'\$'", "'strict \$.a[*] ? (@.b > 1.50 && @.c like_regex \"^x\" flag \"i\")'" ],
	xml => [ "'<a b=\"1\">&lt;☃</a>'", "''", "'text'", "'<?x y?><a/>'" ],
	tsvector => [ "''", "'a:1A,2B b c:16383D'", "\$\$'it''s' 'a\\\\b':3 ' '\$\$" ],
	tsquery => [ "'a & !b | c:*AB'", "''", "'a <-> b <5> c'" ],
	xid => [ "'4294967295'" ],
	xid8 => [ "'18446744073709551615'", "'0'" ],
	cid => ["'7'"],
	tid => [ "'(4294967295,65535)'", "'(0,1)'" ],
	pg_lsn => [ "'0/0'", "'FFFFFFFF/FFFFFFFF'" ],
	pg_snapshot => ["'10:20:10,14,15'"],
	int2vector => [ "'1 2 3'", "''" ],
	oidvector => [ "'1 4294967295'", "''" ],
	refcursor => ["'x'"],
	point => [ "'(0.1,-0)'", "'(NaN,Infinity)'", "'(1e300,5e-324)'" ],
	line => ["'{0.1,-2,3}'"],
	lseg => ["'[(0.1,2),(3,4)]'"],
	box => ["'(3,4),(0.1,2)'"],
	path => [ "'[(0.1,2),(3,4)]'", "'((0.1,2),(3,4))'" ],
	polygon => ["'((0.1,2),(3,4),(5,6))'"],
	circle => ["'<(0.1,2),3>'"],
	int4range => [ "'empty'", "'(,)'", "'[1,5)'", "'(,5]'" ],
	int8range => ["'[-9223372036854775808,9223372036854775807)'"],
	numrange => [ "'(1.50,2.0]'", "'[NaN,NaN]'", "'(-infinity,infinity)'" ],
	daterange => [ "'[2026-01-01,infinity)'", "'[0044-03-15 BC,2026-01-01]'" ],
	tsrange => ["'[2026-01-01 00:00:00.000001,\"2026-01-02 03:04\"]'"],
	tstzrange => ["'[2026-01-01 00:00:00.000001+00,\"2026-01-02 03:04+00\"]'"],
	textrange => [ "'[\"a,b\",\"c\"\"\\\\\"]'", "'[\"\",z)'" ],
	int4multirange => [ "'{}'", "'{[1,3),[5,7)}'", "'{(,)}'" ],
	nummultirange => ["'{[1.50,2.0],[3,4)}'"],
	datemultirange => ["'{[0044-03-15 BC,2026-01-01),[2026-02-01,infinity)}'"],
	textmultirange => ["'{[\"a,b\",c],[d,\"e}\"]}'"],
	regclass => [ "'pg_class'", "'old'", "'0'" ],
	regtype => [ "'int'", "'mood'" ],
	regproc => ["'now'"],
	regprocedure => ["'lower(text)'"],
	regrole => ["'remote_app'"],
	regnamespace => ["'pgpool'"],
	mood => [ "'sad'", "'it''s \"that\"'", "'☃'" ],
	positive => [ 1, 2147483647 ],
	code => [ "'abcd'", "'a'" ],
	more => [5],
	pair => [ "ROW(1, 'x')", "ROW(NULL, NULL)", "ROW(-1, '')", "ROW(1, 'a, \"b\" (\\)')" ],
	pairs => [ "ROW(1, 'x')::pair" ],
	single => [ "ROW(NULL)::single", "ROW('')::single", "ROW('(\"')::single" ],
	nested => [ "ROW(ROW(1, 'x'), ARRAY[ROW(NULL, '{}')::pair, NULL], '2026-01-01 00:00+00')::nested" ],
	old => [ "(SELECT o FROM old AS o WHERE a = 1)", "(SELECT o FROM old AS o WHERE a IS NULL)" ],
	moods => [ "'{sad,NULL,\"very happy\"}'" ],
	'int[]' => [ "'{}'", "'{NULL}'", "'[0:2]={1,NULL,3}'", "'[-5:-4][2:3]={{1,2},{3,4}}'", "'{{{1}}}'", "array_fill(7, '{1,2,3,1,1,2}')" ],
	'text[]' => [ "ARRAY['', 'NULL', NULL, 'null', '{', '}', ',', '\"', '\\', ' a ', 'ä☃', E'\\n']" ],
	'pair[]' => [ "ARRAY[ROW(1, '\"'), NULL, ROW(NULL, '{\\}')]::pair[]" ],
	'mood[]' => ["'{☃,\"it''s \\\"that\\\"\"}'"],
	'positive[]' => ["'{1,NULL,3}'"],
	'timestamptz[]' => ["'{2026-01-01 00:00+00,NULL,-infinity}'"],
	'bytea[]' => [ "ARRAY['\\x00'::bytea, '', NULL]" ],
	'float8[]' => ["'{NaN,-0,0.1,Infinity}'"],
	'int4range[]' => [ "ARRAY['[1,5)'::int4range, 'empty', NULL]" ],
	'box[]' => ["'{(3,4),(1,2);(5,6),(3,4)}'"]);

# a server built without libxml has the type but no value of it
my $has_xml = $both->safe_psql('same', "SELECT setting LIKE '%--with-libxml%' FROM pg_config WHERE name = 'CONFIGURE'") eq 't';
delete $values{xml} unless $has_xml;

# [type, value]: each value, NULL, and the array of all of them; pseudo-arrays have none
my @values;
foreach my $type (sort keys %values)
{
	my @all = map { "CAST($_ AS $type)" } @{ $values{$type} }, 'NULL';

	push @values, map { [ $type, $_ ] } @all;
	push @values, [ "${type}[]", 'ARRAY[' . join(', ', @all) . ']' ] unless $type =~ /\[\]|^moods$|vector$/;
}

# The difference of a value from its images: as text, as parameter, and in rows, which are
# requested in binary at the second execution. The text of a tsquery lacks its nesting, and a
# parameter of type bpchar becomes text without trailing blanks. The same for the rows of a
# query.
$both->safe_psql('same', <<'EOT');
CREATE FUNCTION differs(lease bigint, type text, value text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	here bytea;
	there bytea[];
	image text := CASE WHEN type ~ 'tsquery' THEN 'convert_to(a::text, ''UTF8'')' ELSE 'record_send(ROW(a))' END;
	how text;
	n int;
BEGIN
	EXECUTE format('SELECT %s FROM (SELECT %s AS a) AS t', image, value) INTO here;
	n := CASE WHEN length(here) > 10000 THEN 1 ELSE 100 END;
	FOREACH how IN ARRAY ARRAY[format('pgpool.query(%s, %L)', lease, 'SELECT ' || value), format('pgpool.query(%s, %L, %s)', lease, 'SELECT $1::' || type, value),
		format('pgpool.query(%s, %L)', lease, format('SELECT %s FROM generate_series(1, %s)', value, n)),
		format('pgpool.query(%s, %L)', lease, format('SELECT %s FROM generate_series(1, %s)', value, n))]
	LOOP
		CONTINUE WHEN type = 'bpchar' AND how ~ '[$]1';
		EXECUTE format('SELECT array_agg(DISTINCT %s) FROM %s AS t(a %s)', image, how, type) INTO there;
		IF there IS DISTINCT FROM ARRAY[here] THEN
			RETURN how;
		END IF;
	END LOOP;
	RETURN NULL;
EXCEPTION WHEN OTHERS THEN
	RETURN how || ': ' || SQLERRM;
END $$;
CREATE FUNCTION rows_differ(lease bigint, query text) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
	digest text := 'SELECT count(*) || md5(string_agg(t::text, '','')) FROM ';
	here text;
	there text;
BEGIN
	EXECUTE digest || format('(%s) AS t', query) INTO here;
	FOR i IN 1 .. 2 LOOP
		EXECUTE digest || format('pgpool.query(%s, %L) ', lease, query) || pgpool.column_list('same', query) INTO there;
		IF here IS DISTINCT FROM there THEN
			RETURN true;
		END IF;
	END LOOP;
	RETURN false;
END $$;
EOT
my $session = PgpxSession->new($both, dbname => 'same');

sub differences
{
	my ($lease, @some) = @_;
	my $list = join ', ', map { "(\$v\$$_->[0]\$v\$, \$v\$$_->[1]\$v\$)" } @some;

	return $session->run("SELECT string_agg(type || ': ' || d, E'\\n') FROM (VALUES $list) AS v(type, value), differs($lease, type, value) AS d WHERE d IS NOT NULL", 600) . $session->error;
}

# settings on which the text of a value depends, and the sessions that have them
my @settings = (
	[ '' => 'SET geqo = on' ],
	[ '' => "SET bytea_output = 'escape'; SET timezone = 'UTC'" ],
	[ '' => "SET timezone = '<+0530>-5:30'; SET datestyle = 'ISO, DMY'" ],
	[ there => "SET timezone = 'Europe/Dublin'; SET datestyle = 'ISO, YMD'; SET bytea_output = 'escape'" ],
	[ there => "SET timezone = 'Asia/Kolkata'" ],
	[ here => "SET timezone = 'Asia/Kolkata'; SET intervalstyle = 'sql_standard'; SET datestyle = 'German, YMD'; SET bytea_output = 'escape'" ],
	[ here => "SET timezone = 'Europe/Dublin'; SET intervalstyle = 'postgres_verbose'; SET datestyle = 'SQL, DMY'; SET array_nulls = off; SET lc_messages = 'C'" ],
	map { [ here => "SET timezone = 'Asia/Kolkata'; SET datestyle = '$_'" ] }
	  map { my $style = $_; map { "$style, $_" } qw(MDY DMY YMD) } qw(SQL Postgres German));

# each setting has each of its values in one of these
my $all = ($ENV{PGPX_TEST_SETTINGS} // '') eq 'all';
@settings = @settings[ 0, 2, 3, 5, 7, 11, 15 ] unless $all;

foreach (@settings)
{
	my ($where, $setting) = @$_;
	my $lease = lease($session, 'same');
	my $name = ($setting =~ s/SET //gr) . ($where && " $where");

	$session->run($setting) if $where ne 'there';
	$session->run("SELECT pgpool.exec($lease, \$v\$$setting\$v\$)") if $where ne 'here';
	is(differences($lease, @values), '', "values: $name: no value differs");
	cmp_ok(scalar @values, '>', 300, "$name: many values were compared");
	$session->run("SELECT pgpool.checkin($lease); RESET ALL");
}

# rows and columns of different shapes
my $lease = lease($session, 'same');
foreach my $query (
	'SELECT 1 AS a WHERE false',
	q{SELECT 1 AS a, 2 AS a, 'x' AS a},
	q{SELECT NULL AS a, NULL::int, '', NULL::positive},
	'SELECT 1 AS " ", 2 AS "?column?"',
	'SELECT o.*, o, o.ctid, o.tableoid::regclass FROM old AS o ORDER BY a',
	q{VALUES (1, 'x', NULL), (NULL, '', 1.50)},
	q{SELECT i, CASE WHEN i % 2 = 0 THEN repeat('x', i) END, CASE WHEN i % 3 = 0 THEN i * 1.10 END FROM generate_series(1, 10000) AS i},
	q{SELECT repeat('ä☃x', 1000000)},
	q{SELECT convert_to(repeat('y', 2000000), 'UTF8')},
	'SELECT array_agg(i) FROM generate_series(1, 200000) AS i',
	'SELECT jsonb_agg(i::text) FROM generate_series(1, 60000) AS i',
	'SELECT i, repeat(md5(i::text), 10000) FROM generate_series(1, 20) AS i',
	'SELECT ' . join(', ', map { $_ % 7 ? "$_ AS c$_" : "NULL::text AS c$_" } 1 .. 1600))
{
	is($session->run("SELECT rows_differ($lease, \$v\$$query\$v\$)", 600) . $session->error, 'f', 'rows are the same: ' . substr $query, 0, 60);
}

# A value that cannot be sent is an error, and the lease stays usable.
# the timeouts are for short statements; a timeout set in the transaction would be
# rolled back
$session->run("SET statement_timeout = 0; SELECT pgpool.exec($lease, 'set statement_timeout = 0')");
$session->run("SELECT pgpool.exec($lease, 'begin; create temp table kept as select 7 as a')");
SKIP:
{
	skip('PGPX_TEST_SETTINGS is not "all"', 1) unless $all;
	$session->fails("SELECT * FROM pgpool.query($lease, 'select repeat(''x'', 550000000)::bytea') AS t(a bytea)",
		'XX000', qr/invalid memory alloc request size/, 'value of more than 1 GB as text fails');
}
$session->run("SELECT pgpool.exec($lease, 'rollback; create temp table kept as select 7 as a')");
is($session->run("SELECT * FROM pgpool.query($lease, 'select a from kept') AS t(a int)"), '7', 'lease stays usable after the error');

# the largest value that a server can send needs 3 GB on each side
SKIP:
{
	skip('PGPX_TEST_SETTINGS is not "all"', 1) unless $all;
	skip('less than 8 GB of memory is free', 1) if free_memory() < 8;
	is( $session->run("SELECT length(a) FROM pgpool.query($lease, 'select repeat(''x'', 1073741800)') AS t(a text)", 1800) . $session->error,
		'1073741800', 'value of 1 GB is received');
}
is($session->run("SELECT * FROM pgpool.query($lease, 'select a from kept') AS t(a int)"), '7', 'lease stays usable after a large value');
$session->run("SELECT pgpool.checkin($lease)");
$session->quit;

check_invariants($both);
leak_check($both);
done_testing();

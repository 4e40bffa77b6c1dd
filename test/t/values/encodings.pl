# Every server encoding, locally with a remote server in UTF8, and remotely with a local
# database in UTF8: each character arrives unchanged. A character that the other
# encoding lacks is an error after which the lease stays usable.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $both = remote_node('both', conf => ["shared_preload_libraries = 'pgpool_ext'"]);

# all encodings except UTF8, SQL_ASCII, and MULE_INTERNAL, which has no conversion (until 18)
my @encodings = qw(EUC_JP EUC_CN EUC_KR EUC_TW EUC_JIS_2004 LATIN1 LATIN2 LATIN3 LATIN4
  LATIN5 LATIN6 LATIN7 LATIN8 LATIN9 LATIN10 WIN1250 WIN1251 WIN1252 WIN1253 WIN1254
  WIN1255 WIN1256 WIN1257 WIN1258 WIN866 WIN874 KOI8R KOI8U ISO_8859_5 ISO_8859_6
  ISO_8859_7 ISO_8859_8);

# The database in UTF8 is used as local and as remote one. Table chars has the
# characters of each encoding: its alphabets, and a part of the other ones.
$both->safe_psql('postgres', 'CREATE EXTENSION pgpool_ext; CREATE DATABASE utf8 OWNER remote_super');
$both->safe_psql('utf8', <<'EOT');
CREATE EXTENSION pgpool_ext;
CREATE TABLE points AS SELECT n, chr(n) AS c
  FROM (SELECT generate_series(1, 767) UNION ALL SELECT generate_series(768, 1791)
	UNION ALL SELECT generate_series(3585, 3675) UNION ALL SELECT generate_series(7680, 7935, 3)
	UNION ALL SELECT generate_series(8192, 9839) UNION ALL SELECT generate_series(12288, 12543)
	UNION ALL SELECT generate_series(19968, 40869, 29) UNION ALL SELECT generate_series(44032, 55203, 41)
	UNION ALL SELECT generate_series(63744, 64255, 11) UNION ALL SELECT generate_series(65281, 65374)
	UNION ALL SELECT generate_series(131083, 150000, 37)) AS s(n);
CREATE FUNCTION has(encoding text, n int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN convert_from(convert_to(chr(n), encoding), encoding) = chr(n);
EXCEPTION WHEN OTHERS THEN
	RETURN false;
END $$;
CREATE TABLE chars (encoding text, s text, missing text);
EOT

foreach my $encoding (@encodings)
{
	$both->safe_psql('utf8', <<"EOT");
INSERT INTO chars SELECT '$encoding', string_agg(c, '' ORDER BY n) FILTER (WHERE has),
	(array_agg(c ORDER BY n DESC) FILTER (WHERE NOT has))[1]
  FROM (SELECT *, has('$encoding', n) FROM points) AS p
EOT
}

foreach my $encoding (@encodings, 'SQL_ASCII')
{
	my $name = lc $encoding;

	$both->safe_psql('postgres',
		"CREATE DATABASE $name ENCODING '$encoding' LOCALE 'C' TEMPLATE template0");
	make_pool($both, $both, server => 'utf8', dbname => $name, remote_dbname => 'utf8',
		user => 'remote_super', password => $REMOTE_SUPER_PASSWORD);
	make_pool($both, $both, server => $name, dbname => 'utf8', remote_dbname => $name,
		user => 'remote_super', password => $REMOTE_SUPER_PASSWORD);
}

foreach my $encoding (@encodings)
{
	my $name = lc $encoding;

	# --- local database in this encoding, remote one in UTF8
	# The UTF8 bytes are received as bytea, which is not converted, and serve as the
	# reference.
	my $here = PgpxSession->new($both, dbname => $name);
	my $lease = lease($here, 'utf8');
	my $rows = "pgpool.query($lease, 'select s, convert_to(s, ''UTF8''), length(s) from chars where encoding = ''$encoding''') AS t(s text, b bytea, n int)";

	is($here->run("SELECT s = convert_from(b, 'UTF8') AND length(s) = n AND n > 150 FROM $rows") . $here->error,
		't', "$encoding local: characters of a result are unchanged");
	is( $here->run("SELECT same FROM $rows, pgpool.query($lease, 'select \$1 = s from chars where encoding = \$2', s, '$encoding') AS p(same bool)") . $here->error,
		't', "$encoding local: characters of a parameter are unchanged");
	is( $here->run("SELECT same FROM $rows, pgpool.query($lease, 'select s = ' || quote_literal(s) || ' from chars where encoding = ''$encoding''') AS p(same bool)") . $here->error,
		't', "$encoding local: characters of a statement are unchanged");
	is( $here->run("SELECT list = array[s, s] FROM $rows, pgpool.query_as(NULL::text[], $lease, 'select \$1::text[]', array[s, s]) AS p(list)") . $here->error,
		't', "$encoding local: characters of an array are unchanged");

	my $char = $here->run("SELECT substr(s, n - 1, 1) FROM $rows");
	$here->run("CREATE TYPE named AS (\"a$char\" int, \"$char\" text)");
	is( $here->run("SELECT \"$char\" = '$char' FROM pgpool.query_as(NULL::named, $lease, 'select ''$char'' as \"$char\", 1 as \"a$char\"')") . $here->error,
		't', "$encoding local: characters of column names are unchanged");
	$here->fails("SELECT pgpool.exec($lease, 'do \$\$ begin raise exception ''<$char>'' using errcode = ''23505''; end \$\$')",
		'23505', qr/<\Q$char\E>/, "$encoding local: character of an error message is unchanged");

	# a character that the local encoding lacks
	my $missing = "pgpool.query($lease, 'select missing, 1 from chars where encoding = ''$encoding''') AS t(s text, n int)";
	$here->fails("SELECT * FROM $missing", '22P05', qr/has no equivalent in encoding "$encoding"/,
		"$encoding local: character that only UTF8 has fails");
	$here->fails("SELECT pgpool.exec($lease, 'do \$\$ begin raise exception ''<%>'', (select missing from chars where encoding = ''$encoding'') using errcode = ''23505''; end \$\$')",
		'22P05', qr/has no equivalent in encoding "$encoding"/, "$encoding local: error message with such a character fails");
	is($here->run("SELECT s = convert_from(b, 'UTF8') FROM $rows") . $here->error,
		't', "$encoding local: lease stays usable");
	$here->run("SELECT pgpool.checkin($lease)");
	$here->quit;

	# --- local database in UTF8, remote one in this encoding
	$here = PgpxSession->new($both, dbname => 'utf8');
	$lease = lease($here, $name);
	is( $here->run("SELECT t.s = chars.s FROM chars, pgpool.query($lease, 'select convert_from(\$1, ''UTF8'')', convert_to(s, 'UTF8')) AS t(s text) WHERE encoding = '$encoding'") . $here->error,
		't', "$encoding remote: characters of a result are unchanged");
	is( $here->run("SELECT same FROM chars, pgpool.query($lease, 'select \$1 = convert_from(\$2, ''UTF8'')', s::text, convert_to(s, 'UTF8')) AS t(same bool) WHERE encoding = '$encoding'") . $here->error,
		't', "$encoding remote: characters of a parameter are unchanged");
	$here->fails("SELECT t.s FROM chars, pgpool.query($lease, 'select \$1', missing) AS t(s text) WHERE encoding = '$encoding'",
		'22P05', qr/has no equivalent in encoding "$encoding"/, "$encoding remote: character that only UTF8 has fails");
	is($here->run("SELECT * FROM pgpool.query($lease, 'show server_encoding') AS t(s text)") . $here->error,
		$encoding, "$encoding remote: lease stays usable");
	$here->run("SELECT pgpool.checkin($lease)");
	$here->quit;
}

# SQL_ASCII does not convert: bytes are passed on, and validated by the other side's
# encoding
my $ascii = PgpxSession->new($both, dbname => 'sql_ascii');
is($ascii->run("SELECT s = convert_from(b, 'SQL_ASCII') FROM pgpool.query('utf8', 'select s, convert_to(s, ''UTF8'') from chars where encoding = ''EUC_JP''') AS t(s text, b bytea)") . $ascii->error,
	't', 'SQL_ASCII local: UTF8 bytes are passed on');
$ascii->fails("SELECT * FROM pgpool.query('utf8', 'select \$1', E'\\xe4'::text) AS t(s text)",
	'22021', qr/invalid byte sequence for encoding "UTF8"/, 'SQL_ASCII local: invalid UTF8 fails');
$ascii->quit;
my $utf8 = PgpxSession->new($both, dbname => 'utf8');
my $lease = lease($utf8, 'sql_ascii');
is($utf8->run("SELECT chars.s = t.s FROM chars, pgpool.query($lease, 'select \$1', s) AS t(s text) WHERE encoding = 'EUC_JP'") . $utf8->error,
	't', 'SQL_ASCII remote: UTF8 bytes are passed on');
$utf8->fails("SELECT * FROM pgpool.query($lease, 'select ''x'', E''a\\xe4\\xf6''') AS t(a text, b text)",
	'22021', qr/invalid byte sequence for encoding "UTF8": 0xe4 0xf6/, 'SQL_ASCII remote: invalid UTF8 in a value fails');
$utf8->fails("SELECT * FROM pgpool.query_as('a'::text, $lease, 'select ''x'' as \"a\xe4\"')",
	'22021', qr/invalid byte sequence/, 'SQL_ASCII remote: invalid UTF8 in a statement fails');
$utf8->fails("SELECT * FROM pgpool.query($lease, 'do \$\$ begin raise exception E''<a\\xe4\\xf6>'' using errcode = ''23505''; end \$\$') AS t(a text)",
	'22021', qr/invalid byte sequence for encoding "UTF8": 0xe4 0xf6/, 'SQL_ASCII remote: invalid UTF8 in an error message fails');
is($utf8->run("SELECT * FROM pgpool.query($lease, 'select 7') AS t(a int)") . $utf8->error,
	'7', 'SQL_ASCII remote: lease stays usable');
$utf8->run("SELECT pgpool.checkin($lease)");

$utf8->quit;

# without a conversion the connection attempt fails
foreach my $pair ([ 'euc_jp', 'latin1' ], [ 'latin1', 'euc_jp' ])
{
	my ($here, $there) = @$pair;
	my $names = join ' and ', map { uc } @$pair;

	make_pool($both, $both, server => 'there', dbname => $here, remote_dbname => $there, user => 'remote_super', password => $REMOTE_SUPER_PASSWORD);
	my $session = PgpxSession->new($both, dbname => $here);
	$session->fails("SELECT pgpool.checkout('there')", '08001', qr/could not connect .*conversion between $names is not supported/s, "connection attempt between $names fails");
	$session->quit;
}

check_invariants($both);
leak_check($both);
done_testing();

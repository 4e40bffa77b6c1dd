# Executes the same statements locally, through dblink and through the pool, and
# compares the results: as text, and as binary by the send functions of their types.
#
#   use PgpxCompare;
#
#   my $both = compare_node('both');          # its database "same" is local and remote
#   my $result = compare($both, $sql_script);
#   $result->{count}{same}, $result->{differs}[0]
#
# The pool requests large results in binary from the second execution on. So each query
# is also executed with its rows multiplied, twice.
#
# SELECT, VALUES, TABLE and WITH are compared. Other statements of the script are
# executed locally, which is also the remote side, and SET in all three sessions.
package PgpxCompare;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run;
use PgpxTest;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(compare_node compare statements);

# Makes a server that is its own remote server.
sub compare_node
{
	my ($name) = @_;
	my $node = remote_node($name, conf => ["shared_preload_libraries = 'pgpool_ext'"]);

	$node->safe_psql('postgres', <<"EOT");
CREATE EXTENSION pgpool_ext;
CREATE DATABASE same TEMPLATE template0;
ALTER DATABASE same SET timezone = 'PST8PDT';
ALTER DATABASE same SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s';
EOT
	make_pool($node, $node, server => 'same', dbname => 'same', remote_dbname => 'same',
		user => 'remote_super', password => $REMOTE_SUPER_PASSWORD);
	$node->safe_psql('same', functions($node));
	return $node;
}

sub functions
{
	my ($node) = @_;
	my $connstr = $node->connstr('same') =~ s/'/''/gr;

	return <<"EOT" . <<'EOT';
CREATE SCHEMA pgpx;
CREATE EXTENSION dblink SCHEMA pgpx;
CREATE TYPE pgpx.nothing AS ();
CREATE FUNCTION pgpx.connect() RETURNS text LANGUAGE sql AS \$\$
	SELECT pgpx.dblink_connect('other', '$connstr')
\$\$;
EOT
-- the types of the columns, read from the binary form of a row
CREATE FUNCTION pgpx.types(image bytea) RETURNS oid[] LANGUAGE plpgsql AS $$
DECLARE
	types oid[] := '{}';
	at int := 4;
	len bigint;
BEGIN
	FOR i IN 1 .. pgpx.int4(image, 0) LOOP
		types := types || pgpx.int4(image, at)::oid;
		len := pgpx.int4(image, at + 4);
		at := at + 8 + CASE WHEN len = 4294967295 THEN 0 ELSE len END;
	END LOOP;
	RETURN types;
END $$;
CREATE FUNCTION pgpx.int4(image bytea, at int) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
	SELECT (get_byte(image, at)::bigint << 24) + (get_byte(image, at + 1) << 16)
		+ (get_byte(image, at + 2) << 8) + get_byte(image, at + 3)
$$;

-- The result of a query: the number of rows, and digests of their texts and of their
-- binary forms in order.
CREATE TYPE pgpx.images AS (n int, texts text, binaries bytea, types oid[], failed text, size bigint);
CREATE FUNCTION pgpx.images(query text) RETURNS pgpx.images LANGUAGE plpgsql AS $$
DECLARE
	row record;
	image bytea;
	i pgpx.images := (0, '', '', NULL, NULL, 0);
BEGIN
	FOR row IN EXECUTE query LOOP
		image := record_send(row);
		i.n := i.n + 1;
		i.size := i.size + length(image);
		i.types := coalesce(i.types, pgpx.types(image));
		i.texts := md5(i.texts || row::text);
		i.binaries := sha256(i.binaries || image);
	END LOOP;
	RETURN i;
EXCEPTION WHEN OTHERS THEN
	i.failed := SQLSTATE || ': ' || SQLERRM;
	RETURN i;
END $$;

CREATE FUNCTION pgpx.fails(lease bigint, query text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pgpool.exec(lease, query);
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END $$;

-- The difference of two images, NULL if they are the same.
CREATE FUNCTION pgpx.differs(what text, a pgpx.images, b pgpx.images) RETURNS text
LANGUAGE sql AS $$
	SELECT 'differs ' || what || ': ' || CASE
		WHEN b.failed IS NOT NULL THEN b.failed
		WHEN a.n <> b.n THEN format('%s and %s rows', a.n, b.n)
		WHEN a.texts IS DISTINCT FROM b.texts THEN 'texts'
		WHEN a.binaries IS DISTINCT FROM b.binaries THEN 'binaries' END
	WHERE b.failed IS NOT NULL OR (a.n, a.texts, a.binaries) IS DISTINCT FROM (b.n, b.texts, b.binaries)
$$;

-- Types whose text does not have all information: the sign of a NaN, the nesting of a
-- tsquery.
CREATE FUNCTION pgpx.lossy() RETURNS oid[] LANGUAGE sql IMMUTABLE AS $$
	SELECT '{float4,float8,point,line,lseg,box,path,polygon,circle,tsquery}'::regtype[]::oid[]
$$;

-- those of them that are never requested in binary
CREATE FUNCTION pgpx.text_only() RETURNS oid[] LANGUAGE sql IMMUTABLE AS $$
	SELECT '{point,line,lseg,box,path,polygon,circle,tsquery}'::regtype[]::oid[]
$$;

CREATE FUNCTION pgpx.compare(lease bigint, query text) RETURNS text
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan AS $$
DECLARE
	here pgpx.images := pgpx.images(query);
	pool pgpx.images;
	peer pgpx.images;
	error text;
	list text;
	pseudo bool;
BEGIN
	IF here.failed ~ 'no binary output function|stack depth limit' THEN
		RETURN 'skipped ' || here.failed;
	END IF;
	IF here.failed IS NOT NULL THEN
		error := pgpx.fails(lease, query);
		RETURN CASE WHEN error = here.failed THEN 'same error'
			ELSE format('differs error: %s and %s', here.failed, error) END;
	END IF;

	IF here.n = 0 THEN
		RETURN CASE WHEN pgpool.exec(lease, query) = 0 THEN 'same without rows'
			ELSE 'differs pool: remote rows, no local ones' END;
	END IF;
	SELECT string_agg(format('c%s %s', n, format_type(type, -1)), ', ' ORDER BY n), bool_or(typtype = 'p')
	  INTO list, pseudo
	  FROM unnest(here.types) WITH ORDINALITY AS c(type, n) JOIN pg_type ON pg_type.oid = type;
	IF pseudo THEN
		RETURN 'skipped a column of a pseudo-type';
	END IF;
	IF list IS NULL THEN
		pool := pgpx.images(format('SELECT * FROM pgpool.query_as(NULL::pgpx.nothing, %s, %L)', lease, query));
		RETURN coalesce(pgpx.differs('pool', here, pool), 'same');
	END IF;

	pool := pgpx.images(format('SELECT * FROM pgpool.query(%s, %L) AS t(%s)', lease, query, list));
	peer := pgpx.images(format('SELECT * FROM pgpx.dblink(''other'', %L) AS t(%s)', query, list));
	IF pool.failed IS NOT NULL AND pool.failed = peer.failed THEN
		RETURN 'skipped fails remotely, or cannot be read: ' || pool.failed;
	END IF;
	IF pool.failed ~ '^0A000: cannot read values of type' THEN
		RETURN 'skipped refused instead of guessed';
	END IF;
	IF here.texts = pool.texts AND here.binaries <> pool.binaries AND pool.binaries = peer.binaries
		AND here.types && pgpx.lossy() THEN
		RETURN 'same text';
	END IF;
	RETURN coalesce(pgpx.differs('pool', here, pool) || ' [' || coalesce(pgpx.differs('dblink', here, peer), 'dblink is right') || ']',
		'same' || CASE WHEN pgpx.differs('dblink', here, peer) IS NOT NULL THEN ' unlike dblink' ELSE '' END);
END $$;

-- The same with the rows multiplied, twice: results known to be large come in binary, as
-- far as the types allow.
CREATE FUNCTION pgpx.again(lease bigint, query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	many text;
	here pgpx.images := pgpx.images(query);
	pool pgpx.images;
	list text;
BEGIN
	IF here.failed IS NOT NULL OR here.n NOT BETWEEN 1 AND 20 OR here.size > 10000 OR here.types = '{}'
		OR EXISTS (SELECT FROM pg_type WHERE oid = ANY (here.types) AND typtype = 'p') THEN
		RETURN 'same: not tried again';
	END IF;
	SELECT string_agg(format('c%s %s', n, format_type(type, -1)), ', ' ORDER BY n)
	  INTO list FROM unnest(here.types) WITH ORDINALITY AS c(type, n);
	-- types that gain little by binary need more rows
	many := format(E'SELECT x.* FROM (%s\n) AS x, generate_series(1, %s)', query,
		CASE WHEN here.types && '{bool,int2,int4,int8,numeric,bool[],bytea[],int2[],int4[],int8[],float4[],float8[],numeric[],date[],time[],timetz[],timestamp[],timestamptz[],interval[],uuid[]}'::regtype[]::oid[]
			THEN 600 / least(here.n, 5) ELSE 120 END);
	here := pgpx.images(many);
	FOR i IN 1 .. 2 LOOP
		pool := pgpx.images(format('SELECT * FROM pgpool.query(%s, %L) AS t(%s)', lease, many, list));
	END LOOP;
	IF pool.failed ~ '^0A000: cannot read values of type' THEN
		RETURN 'skipped refused instead of guessed';
	END IF;
	IF pool.failed IS NOT NULL AND pool.failed = (pgpx.images(format('SELECT * FROM pgpx.dblink(''other'', %L) AS t(%s)', many, list))).failed THEN
		RETURN 'skipped fails remotely, or cannot be read: ' || pool.failed;
	END IF;
	IF here.texts = pool.texts AND here.binaries <> pool.binaries AND here.types && pgpx.text_only() THEN
		RETURN 'same: text again';
	END IF;
	RETURN coalesce(pgpx.differs('again', here, pool), 'same: again');
END $$;

-- Sends a single value as a parameter and compares the value that is returned. Types
-- that PostgreSQL converts to text first are skipped: char loses its blanks.
CREATE FUNCTION pgpx.echo(lease bigint, query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	here pgpx.images := pgpx.images(query);
	back pgpx.images;
BEGIN
	IF here.types[1] IN ('"char"'::regtype, 'bpchar'::regtype) THEN
		RETURN 'same parameter';
	END IF;
	back := pgpx.images(format('SELECT * FROM pgpool.query(%s, ''select $1::%s'', (%s)) AS t(c %2$s)',
		lease, format_type(here.types[1], -1), query));
	RETURN CASE WHEN back.failed ~ '^0A000: cannot read values of type' THEN 'skipped refused instead of guessed'
		ELSE coalesce(pgpx.differs('parameter', here, back), 'same parameter') END;
END $$;
EOT
}

# Splits a psql script into statements and psql commands, each with preceding text; COPY
# FROM STDIN includes its data.
sub statements
{
	my ($script) = @_;
	my @statements;
	my $statement = '';

	while ($script =~ /\G(
			--[^\n]*
			| \/\*.*?\*\/
			| (?<![A-Za-z0-9_])[eE]'(?:[^'\\]|\\.|'')*'
			| '(?:[^']|'')*'
			| "(?:[^"]|"")*"
			| (?<![A-Za-z0-9_\$])(\$(?:[A-Za-z_][A-Za-z_0-9]*)?\$).*?\2
			| \\[^\n]*
			| BEGIN\s+ATOMIC\b.*?\bEND\b
			| ;
			| [^-\/eE'"\$\\;B]+
			| .
		)/gsx)
	{
		my $token = $1;

		next if $token =~ /^(?:--|\/\*)/;
		$statement .= $token;
		next unless $token eq ';' || $token =~ /^\\/;
		if ($statement =~ /^\s*COPY\b.*\bFROM\s+STDIN\b/is && $script =~ /\G(.*?\n\\\.\n)/gs)
		{
			$statement .= $1;
		}
		push @statements, $statement =~ s/^\s+//r;
		$statement = '';
	}
	return @statements;
}

# True if the result depends only on the statement and the database.
sub comparable
{
	my ($sql) = @_;

	return $sql =~ /^(?:\(\s*)*(?:select|values|table|with)\b.*;$/is
	  && $sql !~ /\b(?:into|insert|update|delete|merge|share|nextval|currval|lastval|setval|random|setseed)\b/i
	  && $sql !~ /\b(?:now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday|localtime|localtimestamp|today|tomorrow|yesterday)\b/i
	  && $sql !~ /\b(?:current_(?:date|time|timestamp|query|user)|session_user|pg_sleep\w*|pg_backend_pid|pg_current_\w+|txid_\w+|pg_\w*snapshot\w*|pg_stat\w*|pg_locks|pg_settings|current_setting|set_config|pg_notify|pg_advisory\w*|lo_\w+|dblink\w*|gen_random_uuid|pg_temp|pg_my_temp_schema)\b/i
	  && $sql !~ /(?<![:\w]):['"a-z{]/i    # a variable of psql
	  && $sql !~ /\\/;
}

# Runs a script in a session of the node, and counts the results of the comparisons.
#   environment => {...}   of psql
#   echo => 1              also send each value as a parameter
#   once => 1              do not multiply the rows
#   settings => 'here'     SET in this session only; 'there': only in the other sessions
sub compare
{
	my ($node, $script, %args) = @_;
	my $in = "SELECT pgpool.checkout('same') AS pgpx_lease \\gset\nSELECT pgpx.connect();\n";
	my @how = ('compare', $args{once} ? () : 'again', $args{echo} ? 'echo' : ());
	my $transaction = 0;
	my @compared;
	my (%count, @differs, %skipped, %answered);

	foreach my $sql (statements($script))
	{
		# temporary objects of one session could not be compared
		$sql =~ s/^(create\s+(?:or\s+replace\s+)?)(?:local\s+|global\s+)?temp(?:orary)?\s+(?=table|view|sequence)/$1/i;

		# psql's output format must not change
		next if $sql =~ /^\\(?:x|a|t|pset)\b/;

		$transaction = 1 if $sql =~ /^(?:begin|start\s+transaction)\b/i;
		if (!$transaction && comparable($sql))
		{
			my $query = $sql =~ s/;$//r;

			push @compared, $query;
			foreach my $how (@how)
			{
				$in .= "SELECT '\@\@ ' || $#compared || ' ' || pgpx.$how(:pgpx_lease, \$pgpx\$$query\$pgpx\$);\n";
			}
		}
		elsif (!$transaction && $sql =~ /^(?:set|reset)\b/i)
		{
			# the pool's sessions have these settings as required
			next if $sql =~ /^\w+\s+(?:extra_float_digits|client_encoding|session\s+authorization|role)\b/i;
			my $command = $sql =~ s/'/''/gr;

			$in .= "$sql\n" unless ($args{settings} // '') eq 'there';
			$in .= "SELECT pgpool.exec(:pgpx_lease, '$command');\nSELECT pgpx.dblink_exec('other', '$command');\n"
			  unless ($args{settings} // '') eq 'here';
		}
		else
		{
			$in .= "$sql\n";
		}
		$transaction = 0 if $sql =~ /^(?:commit|rollback|abort|end)\b(?!\s+to\b)/i;
	}

	local %ENV = (%ENV, %{ $args{environment} // {} });
	my ($out, $err);
	IPC::Run::run([ 'psql', '-XAtq', '-d', $node->connstr('same') ], '<', \$in, '>', \$out, '2>', \$err,
		IPC::Run::timeout(4 * $PostgreSQL::Test::Utils::timeout_default));

	foreach my $line (split /\n/, $out)
	{
		my ($at, $what, $more) = $line =~ /^@@ (\d+) (same|differs|skipped)(.*)$/ or next;

		$answered{$at}++;
		if ($what eq 'same')
		{
			$count{"same$more"}++ if $more ne ': not tried again';
		}
		elsif ($what eq 'differs')
		{
			push @differs, "$more\n    $compared[$at]";
		}
		else
		{
			$count{skipped}++;
			push @{ $skipped{$more} }, $compared[$at];
		}
	}
	return {
		count => \%count, differs => \@differs, skipped => \%skipped, error => $err,
		unanswered => [ map { $compared[$_] } grep { ($answered{$_} // 0) != @how } 0 .. $#compared ]
	};
}

1;

# Generated statements on foreign tables: scans, joins, aggregates, parameters, writes,
# savepoints, cursors and errors.  The same seed makes the same statements, and each has one
# possible answer: rows are ordered by all that is shown, sums are exact, and nothing depends on
# time, a plan or chance.
#
#   use PgpxStatements;
#
#   PgpxStatements::make_tables($remote, $local, 'postgres_fdw');
#   my @statements = PgpxStatements::generate(1000, $seed);    # [kind, sql], ...
#   PgpxStatements::fill_tables($remote);                      # as at the beginning
package PgpxStatements;

use strict;
use warnings;

use PgpxTest;

# The remote tables, in the database remote_db.
my $REMOTE = <<'EOT';
SET client_min_messages = warning;
SET ROLE remote_app;
DROP SCHEMA IF EXISTS far CASCADE;
CREATE SCHEMA far;
CREATE TABLE far.item (id int PRIMARY KEY, grp int, num numeric(12, 3), flo float8, txt text, ts timestamptz, day date,
	yes bool, doc jsonb, list int[], raw bytea, CONSTRAINT small CHECK (grp < 1000));
INSERT INTO far.item SELECT i, i % 7, i * 1.125, i * 0.25, CASE i % 5 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE repeat('ä€' || i, i % 9) END,
	timestamptz '2024-02-28 23:00:00.000001+00' + i * interval '1 hour', date '2024-02-28' + i, i % 3 = 0,
	jsonb_build_object('a', i, 'b', array[i, NULL]), array[i, NULL, i % 4], decode(md5(i::text), 'hex')
	FROM generate_series(1, 200) AS i;
UPDATE far.item SET flo = 'NaN', num = 'NaN' WHERE id = 11;
UPDATE far.item SET flo = '-Infinity', ts = 'infinity', day = '-infinity', list = NULL, doc = NULL WHERE id = 12;
UPDATE far.item SET flo = 0.1::float8 + 0.2 WHERE id = 13;
CREATE TABLE far.part (id int PRIMARY KEY, item int, qty int NOT NULL, price numeric, note varchar(20));
INSERT INTO far.part SELECT i, (i * 7) % 220, i % 11, i / 8.0, CASE WHEN i % 6 > 0 THEN 'note ' || i END FROM generate_series(1, 400) AS i;
CREATE TABLE far.p1 (k int, v text);
CREATE TABLE far.p2 (k int, v text);
INSERT INTO far.p1 SELECT i, 'one ' || i FROM generate_series(0, 49) AS i;
INSERT INTO far.p2 SELECT i, 'two ' || i FROM generate_series(50, 99) AS i;
CREATE TABLE far.log (id serial, what text);
CREATE FUNCTION far.noted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO far.log (what) VALUES (TG_OP || ' ' || coalesce(NEW.id, OLD.id));
	IF TG_OP <> 'DELETE' THEN NEW.note := left(NEW.note || '+', 20); RETURN NEW; END IF;
	RETURN OLD;
END $$;
CREATE TRIGGER noted BEFORE INSERT OR UPDATE OR DELETE ON far.part FOR EACH ROW EXECUTE FUNCTION far.noted();
CREATE VIEW far.broken AS SELECT id, 1 / (id - 100) AS quotient FROM far.item;
ANALYZE far.item, far.part, far.p1, far.p2;
EOT

sub fill_tables
{
	my ($remote) = @_;

	$remote->safe_psql('remote_db', $REMOTE);
	return;
}

# Remote tables, and foreign tables of a wrapper on two servers, in the local database postgres.
sub make_tables
{
	my ($remote, $local, $wrapper) = @_;
	my $port = $remote->port;

	fill_tables($remote);
	$local->safe_psql('postgres', <<"EOT");
CREATE SERVER one FOREIGN DATA WRAPPER $wrapper OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', fetch_size '30');
CREATE SERVER two FOREIGN DATA WRAPPER $wrapper OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', async_capable 'true');
CREATE USER MAPPING FOR PUBLIC SERVER one OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
CREATE USER MAPPING FOR PUBLIC SERVER two OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
EOT
	$local->safe_psql('postgres', <<'EOT');
CREATE FOREIGN TABLE item (id int NOT NULL, grp int, num numeric(12, 3), flo float8, txt text, ts timestamptz, day date, yes bool, doc jsonb,
	list int[], raw bytea) SERVER one OPTIONS (schema_name 'far');
CREATE FOREIGN TABLE part (number int OPTIONS (column_name 'id') NOT NULL, gone int, item int, qty int NOT NULL, price numeric, note varchar(20))
	SERVER one OPTIONS (schema_name 'far', batch_size '10');
ALTER FOREIGN TABLE part DROP COLUMN gone;
CREATE FOREIGN TABLE item2 (id int, grp int, num numeric(12, 3)) SERVER two OPTIONS (schema_name 'far', table_name 'item', updatable 'false');
CREATE TABLE p (k int, v text) PARTITION BY RANGE (k);
CREATE FOREIGN TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (50) SERVER one OPTIONS (schema_name 'far', async_capable 'true');
CREATE FOREIGN TABLE p2 PARTITION OF p FOR VALUES FROM (50) TO (100) SERVER two OPTIONS (schema_name 'far', batch_size '7');
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (100) TO (150);
INSERT INTO p3 SELECT i, 'three ' || i FROM generate_series(100, 119) AS i;
CREATE FOREIGN TABLE broken (id int, quotient int) SERVER one OPTIONS (schema_name 'far');
CREATE FOREIGN TABLE missing (id int) SERVER one OPTIONS (schema_name 'far');
CREATE FOREIGN TABLE renamed (id int, other int) SERVER two OPTIONS (schema_name 'far', table_name 'item');
CREATE FOREIGN TABLE mistyped (id int, txt int) SERVER one OPTIONS (schema_name 'far', table_name 'item');
CREATE VIEW seen AS SELECT i.id, i.txt, p.number, p.qty FROM item i JOIN part p ON p.item = i.id WHERE i.grp < 5;
CREATE TABLE here (id int PRIMARY KEY, word text);
INSERT INTO here SELECT i, 'word ' || i FROM generate_series(1, 60) AS i;
ANALYZE here, p3;
CREATE FUNCTION twice(int) RETURNS int LANGUAGE plpgsql STABLE AS 'BEGIN RETURN 2 * $1; END';
CREATE FUNCTION walk(n int) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE i record; j record;
BEGIN
	FOR i IN SELECT id, grp FROM item ORDER BY id LIMIT n LOOP
		FOR j IN SELECT number, qty FROM part WHERE item = i.id ORDER BY number LOOP
			RETURN NEXT format('%s %s %s', i.id, j.number, (SELECT sum(qty) FROM part WHERE item = i.grp));
		END LOOP;
	END LOOP;
END $$;
CREATE FUNCTION tries(n int) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	FOR k IN 1 .. n LOOP
		BEGIN
			UPDATE item SET grp = grp + CASE WHEN k % 3 = 0 THEN 2000 ELSE 1 END WHERE id = k;
			INSERT INTO part VALUES (1000 + k, k, k, k, 'tried');
			RETURN NEXT 'done ' || k;
		EXCEPTION WHEN others THEN RETURN NEXT SQLSTATE || ' ' || SQLERRM;
		END;
	END LOOP;
END $$;
CREATE FUNCTION old_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE NOTICE '% % %', TG_OP, OLD, NEW;
	RETURN NULL;
END $$;
CREATE TRIGGER old_row AFTER UPDATE OR DELETE ON p1 FOR EACH ROW EXECUTE FUNCTION old_row();
EOT
	return;
}

# SQL that restores the initial rows of the local tables.
sub fill_local
{
	return "DELETE FROM p3; INSERT INTO p3 SELECT i, 'three ' || i FROM generate_series(100, 119) AS i;";
}

sub pick { return $_[ int rand @_ ]; }
sub upto { return 1 + int rand $_[0]; }

# A condition on item, as alias.
sub item_where
{
	my ($a) = @_;

	return pick(
		"$a.id = " . upto(220),
		"$a.id BETWEEN " . upto(100) . ' AND ' . (100 + upto(100)),
		"$a.grp IN (" . upto(7) . ', ' . upto(7) . ')',
		"$a.txt IS NULL",
		"$a.txt LIKE '%" . upto(9) . "%'",
		"$a.num > " . upto(200) . '.5',
		"$a.flo < " . upto(50),
		"$a.yes AND NOT $a.grp = 3",
		"$a.ts > '2024-03-0" . upto(9) . " 12:00+02'",
		"$a.day = '2024-03-01'::date + " . upto(100),
		"$a.doc ->> 'a' = '" . upto(200) . "'",
		"$a.list \@> array[" . upto(200) . ']',
		"twice($a.id) = " . 2 * upto(200),
		"length($a.txt) > " . upto(12) . " AND twice($a.grp) > 4",
		"$a.id = ANY (array[1, " . upto(200) . ', NULL, ' . upto(200) . '])',
		"$a.raw > '\\x80' AND $a.grp = " . upto(7),
		"coalesce($a.txt, 'none') = 'none' OR $a.id % 50 = " . upto(50),
		'true');
}

sub columns
{
	my ($a) = @_;
	my @all = map { "$a.$_" } qw(id grp num flo txt ts day yes doc list raw);

	return pick(join(', ', @all), "$a.*", join(', ', map { pick(@all) } 1 .. upto(5)), "$a", "$a.id, $a.tableoid::regclass", "$a.id, twice($a.grp), $a.flo + 1");
}

my %kinds = (
	scan => [ 10, \&scan ],
	join => [ 10, \&joined ],
	aggregate => [ 8, \&aggregate ],
	parameter => [ 8, \&parameter ],
	subquery => [ 5, \&subquery ],
	partitions => [ 6, \&partitions ],
	insert => [ 8, \&insert ],
	update => [ 8, \&update ],
	delete => [ 4, \&remove ],
	cursor => [ 6, \&cursor ],
	error => [ 6, \&error ],
	explain => [ 4, \&explain ],
	lock => [ 2, \&lock_rows ],
	function => [ 4, \&function ],
	copy => [ 2, \&copy ],
	truncate => [ 1, sub { return 'TRUNCATE ' . pick('part', 'p1, p2', 'p', 'item') . '; ' . 'SELECT count(*) FROM part; SELECT count(*) FROM p; SELECT count(*) FROM item' } ],
	setting => [ 3, \&setting ]);

# Generate at least $n statements: [kind, sql].  Some are in transactions with savepoints.
sub generate
{
	my ($n, $seed) = @_;
	my @wheel = map { ($_) x $kinds{$_}[0] } sort keys %kinds;
	my @made;

	srand($seed);
	while (@made < $n)
	{
		my $transaction = rand() < 0.15;

		# in most transactions psql sets a savepoint before each statement, so that they continue
		# after an error
		push @made, [ 'transaction', '\\set ON_ERROR_ROLLBACK ' . pick('on', 'on', 'on', 'off') . "\n" . pick('BEGIN', 'BEGIN', 'BEGIN', 'BEGIN',
				'BEGIN ISOLATION LEVEL REPEATABLE READ', 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'BEGIN READ ONLY') ] if $transaction;
		my @open;
		foreach my $i (1 .. ($transaction ? upto(12) : 1))
		{
			my $kind = pick(@wheel);

			# a truncated table would make what follows pointless
			redo if $kind eq 'truncate' && !$transaction;
			if ($transaction && rand() < 0.35)
			{
				if (@open && rand() < 0.6)
				{
					my $name = pick(@open);

					push @made, [ 'savepoint', pick("ROLLBACK TO $name", "ROLLBACK TO $name", "RELEASE $name") ];
					if ($made[-1][1] =~ /RELEASE/) { pop @open while @open && $open[-1] ne $name; pop @open; }
					else { pop @open while $open[-1] ne $name; }
				}
				else
				{
					push @open, 's' . scalar @open;
					push @made, [ 'savepoint', "SAVEPOINT $open[-1]" ];
				}
			}
			$transaction = 'truncated' if $kind eq 'truncate';
			push @made, [ $kind, $kinds{$kind}[1]->($transaction) ];
		}
		push @made, [ 'transaction', $transaction eq 'truncated' ? 'ROLLBACK' : pick('COMMIT', 'COMMIT', 'ROLLBACK') ] if $transaction;
	}
	return @made;
}

sub scan
{
	return 'SELECT ' . columns('i') . ' FROM item i WHERE ' . item_where('i') . ' ORDER BY i.id'
	  . pick('', ' LIMIT ' . upto(40), ' LIMIT ' . upto(40) . ' OFFSET ' . upto(60), ' DESC', ' DESC NULLS LAST LIMIT 5');
}

sub joined
{
	my $kind = pick('JOIN', 'LEFT JOIN', 'RIGHT JOIN', 'FULL JOIN');

	return pick(
		"SELECT i.id, i.txt, p.number, p.qty, p.note FROM item i $kind part p ON i.id = p.item WHERE "
		  . pick(item_where('i'), 'p.qty > ' . upto(9), 'i.id IS NULL OR p.number < 50') . ' ORDER BY i.id, p.number LIMIT ' . upto(150),
		"SELECT h.word, i.id, i.num FROM here h $kind item i ON i.id = h.id AND i.grp = " . upto(7) . ' ORDER BY h.id, i.id LIMIT 80',
		"SELECT i.id, j.id, k.number FROM item i JOIN item j ON i.id = j.grp JOIN part k ON k.item = j.id WHERE " . item_where('j')
		  . ' ORDER BY 1, 2, 3 LIMIT 100',
		"SELECT i.id, j.num FROM item i $kind item2 j ON i.id = j.id AND j.grp = " . upto(7) . ' WHERE coalesce(i.id, j.id) < ' . upto(200)
		  . ' ORDER BY i.id, j.id',
		"SELECT i, p FROM item i $kind part p ON i.id = p.item AND p.qty = " . upto(10) . ' WHERE coalesce(i.id, 1) < 60 ORDER BY i.id, p.number',
		'SELECT * FROM seen WHERE qty = ' . upto(10) . ' ORDER BY id, number',
		'SELECT i.id, x.number FROM item i, LATERAL (SELECT number FROM part p WHERE p.item = i.id ORDER BY number LIMIT 2) x WHERE '
		  . item_where('i') . ' ORDER BY 1, 2',
		'SELECT i.id FROM item i WHERE ' . pick('', 'NOT ') . 'EXISTS (SELECT FROM part p WHERE p.item = i.id AND p.qty > ' . upto(10) . ') ORDER BY 1');
}

sub aggregate
{
	my $where = item_where('i');

	return pick(
		"SELECT count(*), count(txt), sum(id), min(txt COLLATE \"C\"), max(ts), sum(num) FILTER (WHERE id <> 11), bool_and(yes) FROM item i WHERE $where",
		"SELECT grp, count(*), sum(id), avg(num) FILTER (WHERE num <> 'NaN') FROM item i WHERE $where GROUP BY grp ORDER BY grp",
		"SELECT grp, string_agg(id::text, ',' ORDER BY id) FROM item i WHERE $where GROUP BY grp HAVING count(*) > " . upto(9) . ' ORDER BY grp',
		"SELECT DISTINCT grp, yes FROM item i WHERE $where ORDER BY 1, 2",
		"SELECT grp, yes, count(*) FROM item i WHERE $where GROUP BY GROUPING SETS ((grp), (yes), ()) ORDER BY 1, 2, 3",
		'SELECT i.grp, count(p.number), sum(p.qty) FROM item i LEFT JOIN part p ON p.item = i.id GROUP BY i.grp ORDER BY 1',
		'SELECT p.qty, count(DISTINCT i.grp), max(twice(i.id)) FROM item i JOIN part p ON p.item = i.id GROUP BY p.qty ORDER BY 1',
		"SELECT id, rank() OVER (PARTITION BY grp ORDER BY id) FROM item i WHERE $where ORDER BY id LIMIT 30");
}

sub parameter
{
	my $plan = pick('force_generic_plan', 'force_custom_plan', 'auto');

	return "SET plan_cache_mode = $plan; " . pick(
		'PREPARE q (int) AS SELECT id, txt, num FROM item WHERE id = $1; EXECUTE q (' . upto(200) . '); EXECUTE q (NULL); EXECUTE q (' . upto(200) . '); DEALLOCATE q',
		'PREPARE q (int, text) AS SELECT i.id, p.number FROM item i JOIN part p ON p.item = i.id WHERE i.grp = $1 AND p.note > $2 ORDER BY 1, 2; EXECUTE q ('
		  . upto(7) . ", 'note 2'); EXECUTE q (" . upto(7) . ", 'note 3'); DEALLOCATE q",
		'PREPARE q (timestamptz, numeric, bool, int[]) AS SELECT id FROM item WHERE ts > $1 AND num < $2 AND yes = $3 AND id <> ALL ($4) ORDER BY 1; EXECUTE q (\'2024-03-01 12:00+01\', '
		  . upto(200) . ", true, '{1,2,3,NULL}'); EXECUTE q ('2024-03-01', 100, true, '{9}'); DEALLOCATE q",
		'PREPARE q (float8, jsonb, bytea, date) AS SELECT id FROM item WHERE flo > $1 AND doc <> $2 AND raw > $3 AND day > $4 ORDER BY 1; EXECUTE q (0.1, \'{}\', \'\\x20\', \'2024-03-0'
		  . upto(9) . "'); DEALLOCATE q",
		'PREPARE q (int, int) AS UPDATE item SET grp = $1 WHERE id = $2 RETURNING id, grp; EXECUTE q (' . upto(7) . ', ' . upto(200) . '); EXECUTE q (1, 2); DEALLOCATE q');
}

sub subquery
{
	return pick(
		'SELECT h.id, (SELECT sum(qty) FROM part p WHERE p.item = h.id) FROM here h ORDER BY 1 LIMIT ' . upto(40),
		'SELECT i.id, (SELECT count(*) FROM part p WHERE p.item = i.id AND p.qty > i.grp) FROM item i WHERE ' . item_where('i') . ' ORDER BY 1',
		'SELECT id FROM item i WHERE id IN (SELECT item FROM part WHERE qty = ' . upto(9) . ') ORDER BY 1',
		'SELECT id FROM here h WHERE id < ALL (SELECT item FROM part p WHERE p.qty = h.id) ORDER BY 1',
		'WITH x AS MATERIALIZED (SELECT * FROM item i WHERE ' . item_where('i') . ') SELECT a.id, b.id FROM x a JOIN x b ON a.id = b.id + 7 ORDER BY 1, 2',
		'SELECT id FROM item UNION ALL SELECT number FROM part ORDER BY 1 LIMIT ' . upto(500),
		'SELECT (SELECT max(id) FROM item) + (SELECT max(number) FROM part), (SELECT count(*) FROM p)',
		'SELECT id FROM here h WHERE EXISTS (SELECT FROM item i WHERE i.id = h.id + ' . upto(9) . ' AND ' . item_where('i') . ') ORDER BY 1');
}

sub partitions
{
	return pick(
		'SELECT tableoid::regclass, * FROM p WHERE k ' . pick('< ', '> ', '= ') . upto(120) . ' ORDER BY k, v',
		'SELECT count(*), min(v COLLATE "C"), max(k) FROM p',
		'SELECT a.k, b.v FROM p a JOIN p b ON a.k = b.k WHERE a.k % ' . upto(20) . ' = 0 ORDER BY 1, 2',
		"INSERT INTO p SELECT i, 'new ' || i FROM generate_series(" . upto(60) . ', ' . (60 + upto(60)) . ', ' . upto(6) . ') AS i',
		'UPDATE p SET v = v || \'!\' WHERE k % ' . upto(20) . ' = 0',
		'WITH x AS (DELETE FROM p WHERE k = ' . upto(120) . ' RETURNING tableoid::regclass, *) SELECT * FROM x ORDER BY 1, 2, 3',
		'UPDATE p SET k = k + 100 WHERE k = ' . upto(49),
		'WITH x AS (UPDATE p SET v = upper(v) WHERE k BETWEEN ' . upto(50) . ' AND 52 RETURNING k, v) SELECT * FROM x ORDER BY 1, 2',
		'INSERT INTO p VALUES (' . upto(200) . ", 'routed') RETURNING tableoid::regclass, *");
}

my $fresh = 0;

sub insert
{
	my $id = 10_000 + 100 * ++$fresh;

	return pick(
		"INSERT INTO item (id, grp, num, txt) VALUES ($id, 1, 1.5, 'ünï')",
		"INSERT INTO item VALUES ($id, 2, NULL, 'NaN', NULL, '2024-01-01 00:00+00', 'infinity', NULL, '[1, {\"a\": null}]', '{{1,2},{3,4}}', '\\x00ff') RETURNING *",
		"INSERT INTO item (id, grp) SELECT $id + i, i % 5 FROM generate_series(1, " . upto(60) . ') AS i',
		"WITH x AS (INSERT INTO part SELECT $id + i, i, i, i / 4.0, 'n' || i FROM generate_series(1, " . upto(60) . ') AS i RETURNING number, note) SELECT * FROM x ORDER BY 1',
		"INSERT INTO part VALUES ($id, 1, 2, 3, 'x'), ($id + 1, 1, 2, 3, NULL), ($id + 2, NULL, 2, NULL, 'y')",
		'INSERT INTO item (id, grp) VALUES (' . upto(200) . ', 1) ON CONFLICT DO NOTHING RETURNING id',
		'INSERT INTO item (id, grp) VALUES (' . upto(200) . ', 1)',
		"INSERT INTO item (id, grp) VALUES ($id, 5000)",
		"INSERT INTO part VALUES ($id, 1, NULL, 1, 'null')",
		"INSERT INTO part SELECT id + $id, id, 1, num, word FROM item JOIN here USING (id) WHERE num <> 'NaN'",
		"INSERT INTO item DEFAULT VALUES");
}

sub update
{
	my $id = upto(200);

	return pick(
		"UPDATE item SET num = num + 1, txt = txt || 'u' WHERE id = $id",
		"UPDATE item SET flo = flo * 2 WHERE id = $id RETURNING *",
		'UPDATE item i SET grp = (grp + 1) % 7 WHERE ' . item_where('i'),
		'WITH x AS (UPDATE item i SET yes = NOT yes WHERE ' . item_where('i') . ' RETURNING id, yes, i) SELECT * FROM x ORDER BY 1',
		'WITH x AS (UPDATE item SET txt = h.word FROM here h WHERE h.id = item.id AND h.id % ' . upto(9) . ' = 1 RETURNING item.id, item.txt, h.word) SELECT * FROM x ORDER BY 1',
		"UPDATE item SET txt = repeat(txt, twice(1)) WHERE id = $id RETURNING txt, tableoid::regclass",
		"UPDATE item SET grp = 5000 WHERE id = $id",
		'WITH x AS (UPDATE part p SET qty = i.grp FROM item i WHERE i.id = p.item AND i.id = ' . $id . ' RETURNING p.number, p.qty, p.note, i.grp) SELECT * FROM x ORDER BY 1',
		"UPDATE item SET doc = doc || '{\"c\": 1}', list = list || 7, raw = raw || '\\x01' WHERE id = $id RETURNING doc, list, raw",
		"UPDATE item SET ts = ts + interval '1 day 02:03:04.5', day = day - 3 WHERE id = $id RETURNING ts, day",
		"UPDATE part SET price = NULL WHERE number = $id RETURNING number, price, note",
		'UPDATE item2 SET grp = 1 WHERE id = 1');
}

sub remove
{
	return pick(
		'DELETE FROM item WHERE id = ' . upto(200) . ' RETURNING *',
		'WITH x AS (DELETE FROM part p USING item i WHERE i.id = p.item AND i.id = ' . upto(200) . ' RETURNING p.number, i.id) SELECT * FROM x ORDER BY 1, 2',
		'WITH x AS (DELETE FROM part WHERE item = ' . upto(200) . ' AND twice(qty) > 2 RETURNING number) SELECT * FROM x ORDER BY 1',
		'DELETE FROM part WHERE number > ' . (9_000 + upto(10_000)),
		'DELETE FROM item WHERE id > ' . (9_000 + upto(10_000)));
}

sub cursor
{
	my ($transaction) = @_;
	my $scroll = pick('', 'SCROLL ', 'NO SCROLL ');
	my $query = pick('SELECT id, txt FROM item i WHERE ' . item_where('i') . ' ORDER BY id', 'SELECT i.id, p.number FROM item i JOIN part p ON p.item = i.id ORDER BY 1, 2',
		'SELECT k, v FROM p ORDER BY 1, 2', 'SELECT number, note FROM part ORDER BY 1');
	my $moves = join '; ', map { pick('FETCH ' . upto(60) . ' FROM c', 'FETCH c', 'MOVE ' . upto(50) . ' IN c', 'FETCH BACKWARD 3 FROM c', 'FETCH FIRST FROM c',
			'SELECT count(*) FROM item', 'SELECT id FROM item ORDER BY id LIMIT 3', 'UPDATE item SET grp = grp WHERE id = ' . upto(200), 'FETCH ALL FROM c',
			'SAVEPOINT inner_one; FETCH 5 FROM c; ROLLBACK TO inner_one', 'SAVEPOINT inner_two; FETCH 5 FROM c; RELEASE inner_two') } 1 .. upto(5);
	# a cursor whose first row is fetched in a subtransaction ends with its rollback: in postgres_fdw
	# after the rows of one fetch, with pools at once
	my $body = "DECLARE c ${scroll}CURSOR FOR $query; FETCH c; $moves; CLOSE c";

	return $transaction ? $body : pick("BEGIN; $body; COMMIT", "BEGIN; $body; ROLLBACK", "DECLARE c CURSOR WITH HOLD FOR $query; FETCH 10 FROM c; FETCH 7 FROM c; CLOSE c");
}

sub error
{
	my $id = upto(200);

	return pick(
		'SELECT * FROM broken ORDER BY id',
		"SELECT id, quotient FROM broken WHERE id < 100 ORDER BY id LIMIT 10",
		'SELECT * FROM missing',
		'SELECT other FROM renamed WHERE id = 1',
		"SELECT id, txt FROM mistyped WHERE id = $id",
		'SELECT id FROM mistyped WHERE id = 5',
		"SELECT 1 / (grp - grp) FROM item WHERE id = $id",
		"SELECT id FROM item WHERE 1 / (id - $id) > 0 ORDER BY id",
		"SELECT id, twice(id) / (id - $id) FROM item ORDER BY id",
		'INSERT INTO missing VALUES (1)',
		'UPDATE broken SET quotient = 1',
		'DELETE FROM missing WHERE id = 3 RETURNING *',
		"INSERT INTO part VALUES (-$id, 1, 1, 1, repeat('x', 30))",
		"SELECT txt::int FROM item WHERE id = $id",
		"SELECT count(*) FROM item i JOIN missing m ON m.id = i.id",
		"DO \$\$ DECLARE r record; BEGIN FOR r IN SELECT id FROM item ORDER BY id LOOP IF r.id > $id THEN RAISE EXCEPTION 'at %', r.id; END IF; END LOOP; END \$\$");
}

sub explain
{
	return 'EXPLAIN (VERBOSE, COSTS OFF) ' . pick(scan(), 'UPDATE item SET grp = 1 WHERE id = 3', 'SELECT grp, count(*) FROM item GROUP BY grp ORDER BY grp',
		'INSERT INTO part VALUES (1, 1, 1, 1, NULL)', 'DELETE FROM p', 'SELECT i.id, p.number FROM item i JOIN part p ON p.item = i.id ORDER BY 1, 2');
}

sub lock_rows
{
	return pick(
		'SELECT id, grp FROM item WHERE id < ' . upto(20) . ' ORDER BY id FOR ' . pick('UPDATE', 'SHARE', 'NO KEY UPDATE'),
		'SELECT i.id, h.word FROM item i JOIN here h USING (id) WHERE i.grp = 3 ORDER BY id FOR UPDATE OF i',
		'SELECT i.id, p.number FROM item i JOIN part p ON p.item = i.id WHERE i.id < 20 ORDER BY 1, 2 FOR UPDATE');
}

sub function
{
	return pick('SELECT walk(' . upto(6) . ')', 'SELECT tries(' . upto(9) . ')',
		'SELECT h.id, f FROM here h, walk(h.id) f WHERE h.id < 3 ORDER BY 1, 2');
}

sub copy
{
	my $id = 10_000 + 100 * ++$fresh;
	my $rows = join '', map { $id + $_ . "\t$_\t" . ($_ % 4) . "\t1.5\t" . pick('\N', 'text', 'ä\tö') . "\n" } 1 .. upto(30);

	return pick("COPY part FROM stdin;\n$rows\\.", "COPY part FROM stdin;\n${rows}1\t1\t1\t1\ttwice\n\\.", 'COPY (SELECT id, txt, raw FROM item WHERE id < ' . upto(30) . ' ORDER BY id) TO stdout');
}

sub setting
{
	return pick('SET enable_hashjoin = off; SET enable_mergejoin = off', 'RESET enable_hashjoin; RESET enable_mergejoin', 'SET enable_nestloop = off', 'RESET enable_nestloop',
		'SET enable_partitionwise_join = on; SET enable_partitionwise_aggregate = on', 'RESET enable_partitionwise_join; RESET enable_partitionwise_aggregate',
		"SET timezone = 'Asia/Kolkata'", "SET datestyle = 'German'", "SET intervalstyle = 'iso_8601'", 'SET extra_float_digits = 0', 'RESET timezone; RESET datestyle; RESET intervalstyle; RESET extra_float_digits',
		'SET enable_async_append = off', 'RESET enable_async_append', 'SET enable_material = off', 'RESET enable_material');
}

1;

# The recipes and the page on migration work: their examples run in order and print the
# output of the page. The exporter's queries return the columns that its format requires.
# A line before an example, which ends with a colon, selects the session in which it runs,
# or the program that it needs:
#
#   On shard1, as role `app`:                 "On shard2", "On shard1 and shard2"
#   In another session:
#   While the primary fails and the standby is promoted:
#   Before, with PL/Proxy, which ..:
#
# A block "text" after an example is psql's output for it, rows first. An example
# without such a block may print anything, but must not fail.
use strict;
use warnings;

use File::Basename;
use FindBin;
use PgpxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = "$FindBin::Bin/../../../doc";
my $page = slurp_file("$folder/recipes.md");
my $migration = slurp_file("$folder/migration.md");

my @replicated = ('wal_level = replica', 'max_wal_senders = 5', 'hot_standby = on');
my %remote = map { $_ => remote_node($_) } qw(shard1 shard2);
my $primary = remote_node('primary', conf => \@replicated);
foreach my $node (values %remote, $primary)
{
	$node->safe_psql('postgres', "CREATE ROLE app LOGIN PASSWORD 'secret'");
	$node->safe_psql('postgres', 'CREATE DATABASE app OWNER app');
}
my $standby = standby();
my $local = local_node('local', conf => ["listen_addresses = '127.0.0.1'", "password_encryption = 'scram-sha-256'"], start => 0);

# as Debian's
$local->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 scram-sha-256');
$local->start;

# the ports of the page's hosts
my %port_at = (
	'10.0.0.7' => $remote{shard1}->port,
	'10.0.0.8' => $remote{shard2}->port,
	'10.0.0.9' => $primary->port,
	'10.0.0.10' => $standby->port);

my $session = session();
my $other = session();
my ($bouncer, $bouncer_port) = start_pgbouncer('app', 'secret', "app = host=127.0.0.1 port=$port_at{'10.0.0.7'}");

# why examples that need a program are skipped. Without PgBouncer, its example connects to the remote server.
my %missing = (
	'pg_background' => 'Debian has no package of pg_background',
	'PL/Proxy' => $local->safe_psql('postgres', q{SELECT 'PL/Proxy is missing (Debian: postgresql-*-plproxy)' WHERE NOT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'plproxy')}),
	'PgBouncer' => '');

examples($page);
examples($migration);
audit_is_reliable();
functions_are_safe();
shards_belong_to_superusers();
autonomous_in_any_database();
dblink_is_covered();
metrics();

$_->quit foreach $session, $other;
$bouncer->kill_kill if $bouncer;
check_invariants($local);
stats_add_up($local);
leak_check($local, values %remote);
done_testing();

sub standby
{
	my $node = PostgreSQL::Test::Cluster->new('standby');

	$primary->append_conf('pg_hba.conf', 'local replication all trust');
	$primary->reload;
	$primary->backup('backup');
	$node->init_from_backup($primary, 'backup', has_streaming => 1);
	$node->append_conf('postgresql.conf', $_) foreach "listen_addresses = '127.0.0.1'", 'port = ' . $node->port;
	$node->start;
	return $node;
}

# a session that prints in psql's default format
sub session
{
	my $new = PgpxSession->new($local, @_);

	$new->run("\\pset format aligned\n\\pset tuples_only off\n\\set VERBOSITY terse");
	return $new;
}

# Replaces the page's addresses by those of the test's servers.
sub at_home
{
	my ($sql) = @_;
	my $port = $local->port;

	$sql =~ s{host '10\.0\.0\.7', port '6432'}{"host '127.0.0.1', port '" . ($bouncer_port // $port_at{'10.0.0.7'}) . "'"}ge;
	$sql =~ s{SET port '5432'}{SET port '$port_at{'10.0.0.7'}'}g;
	$sql =~ s{host=([\d.]+)}{"host=127.0.0.1 port=" . ($port_at{$1} // $port)}ge;
	$sql =~ s{host '(10\.[\d.,]*)'}{
		my @hosts = split /,/, $1;
		sprintf "host '%s', port '%s'", join(',', ('127.0.0.1') x @hosts), join(',', @port_at{@hosts})}ge;
	$sql =~ s{host '127\.0\.0\.1'(?!, port)}{host '127.0.0.1', port '$port'};
	return $sql;
}

# Rows and messages, without psql's prefixes.
sub printed
{
	my ($in) = @_;
	my ($rows, $messages) = ($in->{text}, $in->error);

	$messages =~ s/^psql:[^ ]*:\d+: //mg;
	return trimmed("$rows\n$messages");
}

# Without trailing blanks and empty lines.
sub trimmed
{
	my ($text) = @_;

	return join "\n", grep { $_ ne '' } map { s/\s+$//r } split /\n/, $text;
}

sub examples
{
	my ($text) = @_;
	my $n = 0;

	while ($text =~ /(?:\b(On\sshard1\sand\sshard2,\sas\srole\s`\w+`|On\sshard\d,\sas\srole\s`\w+`|In another session|While the primary fails and the standby is promoted|Before, with [^:]+):\n\n)?^```sql\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?/msg)
	{
		my ($where, $sql, $shown) = ($1 // '', $2, $3);
		my ($title) = $sql =~ /^(.{1,40})/;

		$where = lcfirst($where) =~ s/\n/ /gr;
		$sql = at_home($sql);
		$n++;
		$title = "example $n: $title";
		if ($where =~ /^on (shard.*), as role `(\w+)`/)
		{
			$remote{$_}->safe_psql('app', "SET ROLE $2;\n$sql") foreach split / and /, $1;
			pass("$title, $where");
			next;
		}

		my $in = $where eq 'in another session' ? $other : $session;

		if ($where =~ s/^before, with ([\w\/]+).*//)
		{
			my $reason = $missing{$1} // die "unknown program: $1\n";

			SKIP: { skip "$title: $reason", 1 if $reason ne ''; }
			next if $reason ne '';
		}
		if ($where eq 'while the primary fails and the standby is promoted')
		{
			$primary->stop('immediate');
			$in->start($sql);
			ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'session waits while there is no primary');
			$standby->promote;
			$in->finish;
		}
		elsif ($where eq '' || $in == $other)
		{
			$in->run($sql);
		}
		else
		{
			fail("$title: unknown place \"$where\"");
			next;
		}

		if (defined $shown)
		{
			is(printed($in), trimmed($shown), $title);
		}
		else
		{
			ok($in->error !~ /^(?:psql:.*: )?(?:ERROR|FATAL|error):/m, $title) or diag($in->error);
		}
	}
	cmp_ok($n, '>', 5, 'page has examples');
	return;
}

# an audited role can neither falsify the audit by functions of its own nor write to it
sub audit_is_reliable
{
	$local->safe_psql('postgres', 'CREATE ROLE audited LOGIN; GRANT SELECT, UPDATE ON accounts TO audited; CREATE SCHEMA audited AUTHORIZATION audited');
	my $audited = PgpxSession->new($local, user => 'audited');

	$audited->run(<<'EOT');
CREATE FUNCTION audited.format(text, int, numeric, numeric) RETURNS text RETURN 'nothing happened';
SET search_path = audited, pg_catalog, public;
UPDATE accounts SET balance = 1000000 WHERE id = 1;
EOT
	is($audited->error, '', 'role updates the audited table without a privilege on the server');
	is($remote{shard2}->safe_psql('app', q{SELECT what FROM audit_log WHERE who = 'audited'}),
		'balance of 1: 100 to 1000000', 'audit has the true line, although the role has a function format');
	$audited->fails(q{SELECT public.audit('nothing')}, '42501', qr/permission denied for function audit/, 'role cannot write to the audit');
	$audited->fails('CREATE TABLE audited.own (id int, balance numeric); CREATE TRIGGER own AFTER UPDATE ON audited.own FOR EACH ROW EXECUTE FUNCTION public.accounts_audit()',
		'42501', qr/permission denied for function (?:public\.)?accounts_audit/, 'role cannot use the trigger function for a table of its own');
	$audited->quit;
	$local->safe_psql('postgres', 'DROP OWNED BY audited; DROP ROLE audited; UPDATE accounts SET balance = 100');
	return;
}

# Each function of all pages that runs with the privileges of another role names a
# search_path, and PUBLIC may not execute it. A trigger function runs in the sessions of
# all roles that change the table.
sub functions_are_safe
{
	my $n = 0;

	foreach my $file (glob("$folder/*.md"), "$folder/../README.md")
	{
		my $text = slurp_file($file);

		while ($text =~ /^(CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE) (\w+).*?)(?:;$|\$\$.*?^\$\$;$)/msg)
		{
			my ($head, $name) = ($1, $2);

			$n++;
			next unless $head =~ /SECURITY DEFINER|RETURNS trigger/;
			like($head, qr/SET search_path = pg_catalog, pg_temp/, "function $name of " . basename($file) . ' names a search_path');
			like($text, qr/^REVOKE ALL ON FUNCTION $name\(.*?\) FROM PUBLIC;$/m, "function $name: EXECUTE is revoked from PUBLIC");
		}
	}
	cmp_ok($n, '>', 5, 'pages have functions');
	return;
}

# a role that may create servers cannot add one to the list of shards
sub shards_belong_to_superusers
{
	$local->safe_psql('postgres', <<'EOT');
CREATE ROLE intruder;
GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO intruder;
SET ROLE intruder;
CREATE SERVER shard9 FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1');
EOT
	is($local->safe_psql('postgres', 'SELECT shards.all FROM shards'), '{shard1,shard2}', 'list of shards has only servers of superusers');
	$local->safe_psql('postgres', 'DROP OWNED BY intruder; DROP ROLE intruder');
	return;
}

# the recipe of the autonomous transaction works in a database of any name
sub autonomous_in_any_database
{
	my ($recipe, $shown) = $page =~ /^```sql\n(CREATE ROLE autonomous .*?)^```\n\n```text\n(.*?)^```\n/ms;
	my $elsewhere;

	$local->safe_psql('postgres', 'CREATE DATABASE "else where"');
	$elsewhere = session(dbname => 'else where');
	$elsewhere->run("CREATE EXTENSION pgpool_ext;\n" . at_home($recipe =~ s/^CREATE ROLE.*\n//r));
	is(printed($elsewhere), trimmed($shown), 'autonomous transaction works in another database');
	$elsewhere->quit;
	return;
}

# the table names every function of dblink
sub dblink_is_covered
{
	my ($table) = $migration =~ /^## From dblink\n(.*?)^```/ms;

	$local->safe_psql('postgres', 'CREATE EXTENSION IF NOT EXISTS dblink');
	my @functions = split /\n/, $local->safe_psql('postgres', <<'EOT');
SELECT DISTINCT p.proname FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dblink')
EOT

	cmp_ok(scalar @functions, '>', 15, 'dblink has functions');
	is(join(' ', grep { $table !~ /`\Q$_\E\b/ } @functions), '', 'table has all functions of dblink');
	return;
}

# The groups of queries.yaml, in this form: name => { query, columns => [[name, usage,
# description]] }
sub groups
{
	my %groups;
	my ($group, $in_query, $column);

	foreach my $line (split /\n/, slurp_file("$folder/queries.yaml"))
	{
		next if $line =~ /^#|^\s*$/;
		if ($line =~ /^(\w+):$/) { $group = $groups{$1} = { query => '', columns => [] }; }
		elsif ($line eq '  query: |') { $in_query = 1; }
		elsif ($line eq '  metrics:') { $in_query = 0; }
		elsif ($in_query && $line =~ /^    (.*)/) { $group->{query} .= "$1\n"; }
		elsif ($line =~ /^    - (\w+):$/) { push @{ $group->{columns} }, $column = [$1]; }
		elsif ($line =~ /^        usage: "([A-Z]+)"$/) { $column->[1] = $1; }
		elsif ($line =~ /^        description: "([^"]+)"$/) { $column->[2] = $1; }
		else { fail("queries.yaml: unknown line \"$line\""); }
	}
	return %groups;
}

# Each query, executed by a role without privileges: it returns the declared columns,
# one row for each set of labels, no NULLs; names follow Prometheus's conventions.
sub metrics
{
	my %groups = groups();
	my %names;

	wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE state <> 'idle'}, '0');

	foreach my $group (sort keys %groups)
	{
		my ($query, @columns) = ($groups{$group}{query}, @{ $groups{$group}{columns} });
		my @labels = map { $_->[0] } grep { $_->[1] eq 'LABEL' } @columns;
		my @wanted = map {
			my ($name, $usage) = @$_;
			$usage eq 'HISTOGRAM' ? map { "$name$_" } '', '_bucket', '_sum', '_count' : $name
		} @columns;

		$local->safe_psql('postgres', "CREATE TABLE metrics_$group AS $query");
		is( $local->safe_psql('postgres', <<"EOT"), join(' ', @wanted), "$group: columns are those of the query");
SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'metrics_$group'::regclass AND attnum > 0
EOT
		isnt($local->safe_psql('postgres', "SET ROLE exporter; SELECT count(*) FROM ($query) AS q"), '0', "$group: role without privileges can execute the query");
		is(join(' ', grep { /^(?:server|job|instance|le)$/ } @labels), '', "$group: no label conflicts with Prometheus's own");
		my $key = @labels ? '(' . join(', ', @labels) . ')' : '1';
		is($local->safe_psql('postgres', <<"EOT"), '0|0', "$group: no value is missing, label sets are unique");
SELECT count(*) FILTER (WHERE EXISTS (SELECT FROM jsonb_each(to_jsonb(m)) WHERE value = 'null')),
	count(*) - count(DISTINCT $key) FROM metrics_$group AS m
EOT
		foreach (@columns)
		{
			my ($name, $usage, $description) = @$_;
			my $metric = "${group}_$name";

			next if $usage eq 'LABEL';
			$names{$metric} = $usage;
			ok( ($usage eq 'COUNTER') == ($name =~ /(?:^|_)total$/)
				  && $usage =~ /^(?:COUNTER|GAUGE|HISTOGRAM)$/
				  && $metric !~ /_(?:time|us|ms|milliseconds)(?:_|$)/
				  && $description =~ /^[A-Z0-9].*[^.]$/,
				"$metric: name and description follow the conventions");
		}
	}

	# the metrics that the page uses
	my %used = map { $_ => 1 } $page =~ /\b(pgpool_ext_\w+)/g;
	is(join(' ', grep { my $name = s/_bucket$//r; !$names{$name} } sort keys %used), '', 'metrics of the page exist');

	# the metrics agree with the views
	is($local->safe_psql('postgres', q{SELECT sum(checkouts_total) = (SELECT sum(checkouts) FROM pgpool.stats) FROM metrics_pgpool_ext_pool}),
		't', 'checkouts agree with pgpool.stats');
	is($local->safe_psql('postgres', q{SELECT sum(pool_connections) = (SELECT sum(total) FROM pgpool.pools) FROM metrics_pgpool_ext}),
		't', 'connections in all states agree with pgpool.pools');
	is($local->safe_psql('postgres', <<'EOT'), 't', 'every reason to close is included');
SELECT array_agg(DISTINCT 'closed_' || reason ORDER BY 'closed_' || reason) =
	(SELECT array_agg(attname::text ORDER BY attname::text COLLATE "C") FROM pg_attribute
	 WHERE attrelid = 'pgpool.stats'::regclass AND attname LIKE 'closed\_%')
FROM metrics_pgpool_ext_pool_closed
EOT
	is($local->safe_psql('postgres', <<'EOT'), 't', 'buckets increase up to the count');
SELECT bool_and((SELECT bool_and(n >= before) FROM (SELECT n, lag(n, 1, 0::int8) OVER (ORDER BY i) AS before
		FROM unnest(seconds_bucket) WITH ORDINALITY AS u(n, i)) AS b)
	AND seconds_bucket[array_length(seconds_bucket, 1)] <= seconds_count
	AND array_length(seconds, 1) = array_length(seconds_bucket, 1))
	AND sum(seconds_count) = (SELECT sum(n) FROM pgpool.stats, unnest(wait_histogram) AS n) AND sum(seconds_count) > 0
FROM metrics_pgpool_ext_wait
EOT

	# a server with two pools: that of a dropped mapping is kept by a lease
	my $twice = PgpxSession->new($local);
	my $mapping = qq(USER MAPPING FOR CURRENT_USER SERVER shard1 OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD'));
	is($twice->run("SELECT pgpool.checkout('shard1') > 0; DROP USER MAPPING FOR CURRENT_USER SERVER shard1; CREATE $mapping; SELECT pgpool.exec('shard1', 'select 1')") . $twice->error, "t\n1", 'lease keeps the pool of a dropped mapping');
	is($local->safe_psql('postgres', q(SELECT count(*) FROM pgpool.pools WHERE server = 'shard1')), '2', 'there is also the pool of the new mapping');
	foreach my $group (sort keys %groups)
	{
		my $key = join(', ', map { $_->[0] } grep { $_->[1] eq 'LABEL' } @{ $groups{$group}{columns} }) or next;

		is($local->safe_psql('postgres', "SELECT count(*) - count(DISTINCT ($key)) FROM ($groups{$group}{query}) AS q"), '0', "$group: label sets are unique with two pools");
	}
	$twice->run('SELECT pgpool.checkin_all()');
	$twice->quit;
	return;
}

# Advice on real pools, the report in a browser, top.sql, and the dashboard for Grafana with the
# real exporter and Prometheus. (For the rules of advice see pgtap/advice.sql.)
use strict;
use warnings;

use FindBin;
use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use List::Util 'uniq';
use PgpxClock;
use PgpxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
plan skip_all => 'the functions read views, which do not depend on TLS' if over_tls();

my $doc = "$FindBin::Bin/../../../doc";
my $folder = PostgreSQL::Test::Utils::tempdir();
my $remote = remote_node('remote');
my $local = local_node('local', start => 0);
with_clock($local, sub { $local->start });

# names that are markup, SQL and formats
my $evil = q{<script>alert("1")</script> & 'q' %s};
my ($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;

sizes();
failures();
held_and_waiting();
privileges();
report();
top();
dashboard();
history_off();

$_->quit foreach $holder, $waiter;
check_invariants($local);
stats_add_up($local);
leak_check($local, $remote);
done_testing();

# The findings about a server, with the suggestions.
sub advice
{
	my ($server) = @_;

	return $local->safe_psql('postgres', "SELECT severity, finding, suggestion FROM pgpool.advice() WHERE server = '$server' ORDER BY finding");
}

# Calls of a server by several sessions.  A sample may end during the calls, so they are repeated
# until one sample has all of them.  Samples from before reset_stats do not count.
sub load
{
	my ($server, $sql, $clients, $calls) = @_;
	my $total = 0;
	my $most = 0;

	append_to_file("$folder/$server.sql", "SELECT pgpool.exec('$server', '$sql');\n");
	while ($most != $clients * $calls)
	{
		$local->safe_psql('postgres', "SELECT pgpool.reset_stats('$server')") if $total > 0;
		calls($server, $clients, $calls) or return;
		$total += $clients * $calls;
		let_time_pass($local, 20);
		ok(wait_until($local, "SELECT sum(leases) FROM pgpool.history WHERE server = '$server'", $total), "$server: history has all leases") or return;
		$most = $local->safe_psql('postgres', "SELECT max(leases) FROM pgpool.history WHERE server = '$server'");
	}
	return;
}

sub calls
{
	my ($server, $clients, $calls) = @_;
	my $out;

	ok(IPC::Run::run([ 'pgbench', '-n', '-c', $clients, '-t', $calls, '-f', "$folder/$server.sql", $local->connstr('postgres') ], '>', \$out, '2>&1'),
		"$server: calls succeed") and return 1;
	diag($out);
	return 0;
}

sub sizes
{
	make_pool($local, $remote, server => 'small', options => { pool_size => 2 });
	load('small', 'select pg_sleep(0.02)', 12, 15);
	like(advice('small'), qr/^warning\|pool is too small\|ALTER SERVER small OPTIONS \(SET pool_size '[34]'\)$/, 'pool for which sessions wait is too small');
	my ($evidence, $suggestion) = split /\|/, $local->safe_psql('postgres', q{SELECT evidence, suggestion FROM pgpool.advice() WHERE server = 'small'});
	like($evidence, qr/^In the busiest samples \d+ of \d+ checkouts waited, for [\d.]+ ms on average\. Leases lasted [\d.]+ ms\./, 'evidence has the waits');
	$local->safe_psql('postgres', $suggestion);
	ok(wait_until($local, q{SELECT pool_size > 2 FROM pgpool.pools WHERE server = 'small'}), 'suggestion makes the pool larger');
	is(advice('small'), '', 'samples of the former size do not count');

	make_pool($local, $remote, server => 'large', options => { pool_size => 20 });
	load('large', 'select 1', 1, 1100);
	is(advice('large'), '', 'pool that has been watched for seconds is not too large');
	let_time_pass($local, 3600);
	ok(wait_until($local, sub { advice('large') }, q{info|pool is too large|ALTER SERVER large OPTIONS (SET pool_size '2')}), 'pool of which one connection was used is too large');
	return;
}

sub failures
{
	my $port = PostgreSQL::Test::Cluster::get_free_port();

	make_pool($local, $remote, server => 'gone', options => { port => $port });
	make_pool($local, $remote, server => 'refused', password => 'wrong');
	make_pool($local, $remote, server => 'unknown', options => { host => 'nowhere.invalid' });
	foreach ([ gone => 'remote server cannot be reached' ], [ refused => 'login fails' ], [ unknown => 'host name is not found' ])
	{
		my ($server, $finding) = @$_;

		ok(wait_until($local, sub {
			$holder->run("SELECT pgpool.exec('$server', 'select 1')");
			return advice($server);
		}, "critical|$finding|"), "$server: $finding");
	}

	# two sessions that wait for each other
	make_pool($local, $remote, server => $_, options => { pool_size => 1 }) foreach qw(one two);
	is(advice('one') . advice('two'), '', 'pools without deadlocks have no advice');
	$holder->run(q{SELECT pgpool.checkout('one')});
	$waiter->run(q{SELECT pgpool.checkout('two')});
	$holder->start(q{SELECT pgpool.checkout('two', '10 min')});
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'first session waits');
	$waiter->start(q{SELECT pgpool.checkout('one', '10 min')});
	ok(wait_until($local, q{SELECT sum(deadlocks) FROM pgpool.stats WHERE server IN ('one', 'two')}, '1'), 'deadlock is found');
	like(advice('one') . advice('two'), qr/warning\|sessions wait for each other\|SELECT/, 'deadlock is found by advice');
	terminate($local, $_->pid) foreach $holder, $waiter;
	($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;
	return;
}

# Leaves a lease and a waiter.
sub held_and_waiting
{
	$local->safe_psql('postgres', 'CREATE DATABASE "a & <b>"');
	make_pool($local, $remote, server => 'held', options => { pool_size => 1 });
	$local->safe_psql('postgres', sprintf 'ALTER SERVER held RENAME TO %s', '"' . $evil =~ s/"/""/gr . '"');
	my $server = PgpxTest::quote($evil);

	$holder->run(q{SET application_name = '<img src=x onerror=alert(2)>'});
	my $lease = $holder->run("SELECT pgpool.checkout($server, why => '</table>night''s \"job\"')");
	$waiter->start("SELECT pgpool.checkout($server, '1 day')");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'session waits');
	my $query = "SELECT severity, finding, suggestion FROM pgpool.advice() WHERE server = $server";
	is($local->safe_psql('postgres', $query), '', 'short lease has no advice');
	let_time_pass($local, 61);
	ok(wait_until($local, sub { $local->safe_psql('postgres', $query) }, "warning|lease is held idle|SELECT pgpool.terminate($lease)"), 'lease for which a session waits is held idle');
	return;
}

sub privileges
{
	$local->safe_psql('postgres', 'CREATE ROLE nobody LOGIN; CREATE SCHEMA AUTHORIZATION nobody');
	my $nobody = PgpxSession->new($local, user => 'nobody');

	$nobody->run(<<'EOT');
CREATE FUNCTION nobody.format(text, VARIADIC "any") RETURNS text LANGUAGE sql AS $$ SELECT 'spoofed' $$;
CREATE FUNCTION nobody.current_setting(text, boolean) RETURNS text RETURN 'spoofed';
CREATE TEMP TABLE pg_foreign_server AS SELECT 'spoofed' AS srvname;
SET search_path = nobody, pg_catalog;
EOT
	my $page = $nobody->run('SELECT pgpool.report()') . $nobody->run('SELECT pgpool.advice()');
	is($nobody->error, '', 'role without privileges can call both functions');
	like($page, qr/&lt;insufficient privilege&gt;/, 'it does not see texts of other roles');
	unlike($page, qr/night|onerror|could not translate|spoofed/, 'neither functions nor tables of its own are used');
	$nobody->quit;
	return;
}

sub report
{
	my $page = $local->safe_psql('postgres', 'SELECT pgpool.report()');
	my $file = "$folder/pools.html";

	append_to_file($file, $page);
	unlike($page, qr/<script|<img|<\/table>night/i, 'names are not markup');
	like($page, qr/&lt;script&gt;alert\(&quot;1&quot;\)&lt;\/script&gt; &amp; 'q' %s/, 'name of a server is text');
	like($page, qr/&lt;img src=x onerror=alert\(2\)&gt;/, 'application is text');
	unlike($page, qr/https?:|\bsrc=(?!x )|url\(|\@import/, 'page needs no other file');
	is(scalar(() = $page =~ /<svg /g), scalar(() = $page =~ /<svg [^>]*role="img" aria-labelledby="t(\w+) d\1"><title id="t\1">[^<]+<\/title><desc id="d\1">[^<]+<\/desc>/g),
		'each picture has a title and a description');
	cmp_ok(scalar(() = $page =~ /<svg /g), '>', 2, 'page has pictures');
	is(scalar(grep { /<svg/ && !/<table>/ } split /<section>/, $page), 0, 'each picture has a table');
	like($local->safe_psql('postgres', q{SELECT pgpool.report('1 day')}), qr/<\/html>$/, 'page about a day is complete');

  SKIP:
	{
		my ($chromium) = grep { -x } map { "$_/chromium" } split /:/, $ENV{PATH};

		skip 'chromium is not installed', 8 unless $chromium;
		my $pictures = $ENV{PGPX_TEST_PICTURES} // $folder;
		my $browse = sub {
			my ($out, $err) = ('', '');

			IPC::Run::run([ $chromium, qw(--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --enable-logging=stderr),
					"--user-data-dir=$folder/chromium", @_, "file://$file" ], '>', \$out, '2>', \$err, IPC::Run::timeout(180));
			return ($out, $err);
		};

		mkdir $pictures;
		my ($dom, $console) = $browse->('--dump-dom');
		unlike($console, qr/CONSOLE/, 'browser has no message about the page') or diag($console);
		unlike($dom, qr/<script|<img/i, 'names are text in the browser');
		like($dom, qr/<td[^>]*>&lt;img src=x onerror=alert\(2\)&gt;/, 'cell has the text of the application');
		is(scalar(() = $dom =~ /<svg /g), scalar(() = $page =~ /<svg /g), 'browser has all pictures');
		foreach ([ light => '--blink-settings=preferredColorScheme=1' ], [ dark => '--blink-settings=preferredColorScheme=0' ])
		{
			my ($scheme, @options) = @$_;

			$browse->('--window-size=1200,3600', "--screenshot=$pictures/report_$scheme.png", @options);
			cmp_ok(-s "$pictures/report_$scheme.png" // 0, '>', 20_000, "page renders: $scheme");
		}
		$browse->("--print-to-pdf=$pictures/report.pdf");
		cmp_ok(-s "$pictures/report.pdf" // 0, '>', 10_000, 'page prints');
		isnt(slurp_file("$pictures/report_light.png"), slurp_file("$pictures/report_dark.png"), 'page follows the color scheme');
	}
	return;
}

sub top
{
	my ($out, $err) = ('', '');
	my $psql = IPC::Run::start([ 'psql', '-X', '-d', $local->connstr('postgres'), '-f', "$doc/top.sql" ], '>', \$out, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

	$psql->pump until $out =~ /Last error.*\n\n/;
	$psql->kill_kill;
	my @lines = split /\n/, $out;
	is($err, '', 'top.sql has no error');
	is(join(',', map { /^ (\w[\w ]*?) +\| / ? $1 : () } @lines), 'Connections,Waiting,Fullest pool,Oldest lease,Last error', 'it shows five lines');
	cmp_ok((sort { $b <=> $a } map { length } @lines)[0], '<=', 80, 'they have at most 80 columns') or diag($out);
	like($out, qr/Waiting +\| 1; .*\(full\)/, 'it shows the waiting session');
	like($out, qr/Oldest lease \| .* idle, process \d+ <img/, 'it shows the oldest lease');
	return;
}

# The metrics of the dashboard exist in queries.yaml, and each of its queries returns values.
sub dashboard
{
	my $dashboard = JSON::PP->new->decode(slurp_file("$doc/grafana.json"));
	my @queries = map { s/\$__rate_interval/10s/gr =~ s/"\$foreign_server"/".*"/gr } map { $_->{expr} } map { @{ $_->{targets} } } @{ $dashboard->{panels} };
	my ($group, %metrics);

	foreach (split /\n/, slurp_file("$doc/queries.yaml"))
	{
		$group = $1 if /^(\w+):$/;
		$metrics{"${group}_$1"} = 1 if /^    - (\w+):$/;
	}
	cmp_ok(scalar @queries, '>', 20, 'dashboard has queries');
	is(join(' ', grep { !$metrics{ s/_bucket$//r } } uniq map { /\b(pgpool_ext_\w+)/g } @queries, $dashboard->{templating}{list}[1]{query}), '', 'their metrics exist');
	my %ids = map { $_->{id} => 1 } @{ $dashboard->{panels} };
	is(scalar keys %ids, scalar @{ $dashboard->{panels} }, 'panels have different ids');

  SKIP:
	{
		my %program;

		foreach my $name (qw(prometheus prometheus-postgres-exporter))
		{
			($program{$name}) = grep { -x } map { "$_/$name" } split /:/, $ENV{PATH};
		}
		my @missing = grep { !$program{$_} } sort keys %program;

		skip "@missing is not installed", scalar @queries if @missing;
		my ($of_exporter, $of_prometheus) = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2;
		my ($said, @daemons) = ('');
		my $http = HTTP::Tiny->new(timeout => 10);

		append_to_file("$folder/prometheus.yml", <<"EOT");
scrape_configs:
  - job_name: pgpool_ext
    scrape_interval: 1s
    static_configs:
      - targets: ['127.0.0.1:$of_exporter']
EOT
		{
			local $ENV{DATA_SOURCE_NAME} = sprintf 'host=%s port=%s user=%s dbname=postgres sslmode=disable', $local->host, $local->port, getpwuid($<) // 'postgres';

			push @daemons, IPC::Run::start([ $program{'prometheus-postgres-exporter'}, "--web.listen-address=127.0.0.1:$of_exporter", '--disable-default-metrics',
					'--disable-settings-metrics', "--extend.query-path=$doc/queries.yaml" ], '>', \$said, '2>&1');
		}
		push @daemons, IPC::Run::start([ $program{prometheus}, "--config.file=$folder/prometheus.yml", "--storage.tsdb.path=$folder/tsdb", "--web.listen-address=127.0.0.1:$of_prometheus" ], '>', \$said, '2>&1');
		foreach my $query (@queries)
		{
			my $answer;

			ok(wait_until($local, sub {
				$_->pump_nb foreach @daemons;
				my $got = $http->get("http://127.0.0.1:$of_prometheus/api/v1/query?" . $http->www_form_urlencode({ query => $query }));
				$answer = $got->{content};
				my $json = eval { decode_json($answer) } or return 0;
				return $json->{status} eq 'success' && @{ $json->{data}{result} } ? 1 : 0;
			}, 1), "Prometheus has values: $query") or diag("$answer\n$said");
		}
		$_->kill_kill foreach @daemons;
	}
	return;
}

sub history_off
{
	$holder->run('SELECT pgpool.checkin_all()');
	$waiter->finish;
	$waiter->run('SELECT pgpool.checkin_all()');
	$_->quit foreach $holder, $waiter;
	$local->append_conf('postgresql.conf', 'pgpool_ext.history_size = 0');
	with_clock($local, sub { $local->restart });
	($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;
	calls('small', 12, 20);
	is($local->safe_psql('postgres', 'SELECT finding, suggestion FROM pgpool.advice() WHERE server IS NULL'),
		q{history is off|ALTER SYSTEM SET pgpool_ext.history_size = '1MB'}, 'advice says that history is off');
	like(advice('small'), qr/^warning\|pool is too small\|$/, 'pool that is too small is found without history, and no size is suggested');
	like($local->safe_psql('postgres', 'SELECT pgpool.report()'), qr/History is off/, 'report states that the history is off');
	return;
}

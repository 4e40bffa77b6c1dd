# Outage drill: 50 sessions in a loop while the remote stops and starts again.
# Every call ends in time and tells the reason, the first success comes soon after
# the remote is back, and it never sees more sessions than pool_size, nor a burst.
# PGPX_TEST_OUTAGE: how many seconds it is down (default 20).
use strict;
use warnings;

use IO::Socket::INET;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $down = $ENV{PGPX_TEST_OUTAGE} // 20;
my $clients = 50;
my $size = 5;
my $retry_max = 2;
my $timeout = 10;    # longer than the machine may stand still: then nobody's time is up
my $remote = remote_node('remote', conf => ['log_connections = on']);
my $local = local_node('local');
make_pool($local, $remote, server => 'shard1',
	options => { pool_size => $size, checkout_timeout => "${timeout}s", retry_min => '100ms', retry_max => "${retry_max}s" });
make_pool($local, $remote, server => 'patient',
	options => { pool_size => $size, on_unavailable => 'wait', checkout_timeout => '1500ms', retry_max => "${retry_max}s" });
make_pool($local, $remote, server => 'warm', options => { pool_size => $size, min_size => 2, retry_max => "${retry_max}s" });
$remote->safe_psql('postgres', "ALTER ROLE remote_app CONNECTION LIMIT @{[ $size + $size + 2 ]}");
is($local->safe_psql('postgres', "SELECT pgpool.exec('warm', 'select 1')"), '1', 'a pool with min_size is used');
ok(wait_until($local, "SELECT idle FROM pgpool.pools WHERE server = 'warm'", '2'), 'and is open');

# What each call came to: when it ended, how long it took, its SQLSTATE and detail.
$local->safe_psql('postgres', <<'EOT');
CREATE UNLOGGED TABLE calls (server text, ended timestamptz, took interval, late interval, state text, detail text, value int);
CREATE TABLE stop ();
CREATE PROCEDURE loop_until_stopped(server text) LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz; ended timestamptz; s text; d text; n int; v int;
BEGIN
	WHILE to_regclass('stop') IS NOT NULL LOOP
		began := clock_timestamp(); s := '00000'; d := ''; v := NULL;
		n := (random() * 1e9)::int;
		BEGIN
			SELECT a INTO v FROM pgpool.query(server, 'select $1::int from pg_sleep(0.005)', n) AS t(a int);
			IF v IS DISTINCT FROM n THEN s := 'wrong'; END IF;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS s = RETURNED_SQLSTATE, d = PG_EXCEPTION_DETAIL;
		END;
		ended := clock_timestamp();
		-- how late this machine ends a sleep that has nothing to do with us
		IF s <> '00000' THEN PERFORM pg_sleep(0.02); END IF;
		INSERT INTO calls VALUES (server, ended, ended - began,
			CASE WHEN s <> '00000' THEN clock_timestamp() - ended - '20 ms'::interval END, s, d, v);
		COMMIT;
	END LOOP;
END $$;
EOT

sub calls
{
	my ($columns, $where, $server) = @_;

	return $local->safe_psql('postgres',
		"SELECT $columns FROM calls WHERE server = '" . ($server // 'shard1') . "' AND " . ($where // 'true'));
}

sub now { return $local->safe_psql('postgres', 'SELECT clock_timestamp()'); }

my @sessions = map { PgpxSession->new($local) } 1 .. $clients;
my $delay = delay_begin();
$_->start(q{CALL loop_until_stopped('shard1')}) foreach @sessions;
my @patient = map { PgpxSession->new($local) } 1 .. 5;
$_->start(q{CALL loop_until_stopped('patient')}) foreach @patient;
my $endless = PgpxSession->new($local);
ok(wait_until($local, "SELECT count(*) > 500 FROM calls WHERE state = '00000'", 't'), "$clients sessions are at work");

my $stopped = now();
$remote->stop('fast');
my $gone = now();
ok( wait_until($local, "SELECT now() - '$gone' > '$down s'", 't'), "the remote is down for $down s");
is($local->safe_psql('postgres', "SELECT last_error <> '', next_try_at IS NOT NULL, now() - last_error_at < '1 min' FROM pgpool.pools WHERE server = 'shard1'"),
	't|t|t', 'the view tells the error, its time and that of the next try');
cmp_ok($local->safe_psql('postgres', "SELECT connects_failed FROM pgpool.stats WHERE server = 'shard1'"), '<=', 12 + 2 * $down,
	'attempts are few, while there are thousands of calls');
check_invariants($local, 'the invariants hold during the outage');
is(scalar(grep { $_->done } @sessions, @patient), 0, 'all sessions are still in their loops');
$endless->start("SELECT pgpool.exec(pgpool.checkout('patient', '10 min'), 'select 1'), pgpool.checkin_all()");
ok(wait_until($local, "SELECT reason FROM pgpool.waiters WHERE server = 'patient' AND deadline > now() + '1 min'", 'unavailable', 30),
	'one waits for as long as it takes');
ok( wait_until($local,
		"SELECT count(*) FROM pgpool.pools WHERE server IN ('shard1', 'patient') AND next_try_at BETWEEN now() - interval '1 s' AND now() + interval '3 s'",
		'2'),
	'the next try is in retry_max at most');

my $starting = now();
$remote->start;
my $back = now();
my $watch = PgpxSession->new($remote);
my ($most, $samples) = (0, 0);
my $end = time() + 5;
while (time() < $end)
{
	my $seen = $watch->run("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/shard1'");

	$samples++;
	$most = $seen if $seen > $most;
	usleep(5_000);
}
ok(wait_until($local, "SELECT count(*) > 200 FROM calls WHERE ended > '$back' AND state = '00000'", 't'), 'they work again');
$local->safe_psql('postgres', 'DROP TABLE stop');
$_->finish(60) foreach @sessions, @patient, $endless;
is(join('', map { $_->error } @sessions, @patient, $endless), '', 'all come to their end');
is($endless->{text}, '1|1', 'who waited for it was served');

# --- every call
note 'calls by what they came to: ' . $local->safe_psql('postgres', 'SELECT string_agg(s, $$, $$) FROM (SELECT state || $$ $$ || count(*) FROM calls GROUP BY state) AS t(s)');
is(calls("count(*)", "state NOT IN ('00000', '08001', '08006', '55P03')"), '0', 'no call fails in another way')
  or diag(calls("string_agg(DISTINCT state || ' ' || detail, '; ')", "state NOT IN ('00000', '08001', '08006', '55P03')"));

# as much as the same machine was late with anything else meanwhile: with a sleep that
# followed a call, or (where calls succeed, no sleep does) with those beside all of them
my $late = $local->safe_psql('postgres', 'SELECT greatest(max(late), ' . delay_end($delay, 1) . " * interval '1 s') FROM calls");
is(calls('count(*)', "state = '08006' AND ended NOT BETWEEN '$stopped' AND '$gone'::timestamptz + '2 s' + '$late'"), '0',
	'connections were lost at its beginning only');
is(calls('count(*)', "state = '55P03'"), '0', 'nobody waited in vain');
cmp_ok(calls('count(*)', "state = '08001'"), '>', 50, 'many calls tell that the remote cannot be reached');

# (the last ones are what libpq says of a connect that lies in the backlog when the remote goes,
# in plain text and over TLS, and libpq 18 of TLS that is closed in the middle)
my $unknown = q{state = '08001' AND detail !~ 'refused|shutting down|starting up|closed the connection|terminating|}
  . q{reset by peer|Broken pipe|EOF detected|unexpected eof'};
is(calls('count(*)', $unknown), '0', 'with the reason') or diag(calls("string_agg(DISTINCT detail, '; ')", $unknown));

# 100 ms, and as much as the machine was late
my %limit = (shard1 => "$timeout s", patient => '1500 ms');
note "a sleep of 20 ms took up to $late longer";
foreach my $server (sort keys %limit)
{
	note "$server: longest call " . calls('max(took)', 'true', $server);
	is(calls('count(*)', "took > '$limit{$server}'::interval + '100 ms' + '$late'", $server), '0',
		"$server: every call ends within its timeout and 100 ms");
}
# whose time is up when the remote is back, but not yet with a connection for each,
# has waited for those who were before it
my $other = "state NOT IN ('00000', '08001', '08006') AND NOT (state = '55P03' AND ended > '$starting')";
is(calls('count(*)', $other, 'patient'), '0', 'patient: no call fails in another way')
  or diag(calls("string_agg(ended - '$stopped' || ' ' || took || ' ' || state || ' ' || detail, '; ')", $other, 'patient'));
is(calls("count(*) > 4, min(took) >= '1490 ms'", "state = '08001' AND ended > '$gone'::timestamptz + '5 s'", 'patient'), 't|t',
	'patient: on_unavailable wait does wait, and then has the reason');
is(calls('count(*)', $unknown, 'patient'), '0', 'patient: of the remote')
  or diag(calls("string_agg(DISTINCT detail, '; ')", $unknown, 'patient'));
is(calls("count(*) > 1000", "state = '08001' AND took < '50 ms'"), 't', 'shard1: on_unavailable fail does not');
my $first = calls("extract(epoch FROM min(ended) - '$back')", "state = '00000' AND ended > '$back'");
note "first success after $first s";
# a few processes and a connect each: ten times as much as a sleep was late
my $later = $local->safe_psql('postgres', "SELECT extract(epoch FROM 10 * interval '$late')");
cmp_ok($first, '<', $retry_max + 1 + $later, 'the first success comes within retry_max and a second');
is(calls('count(*)', "state <> '00000' AND ended > '$back'::timestamptz + '6 s' + 10 * interval '$late'"), '0', 'after that no call fails');

# --- the remote
cmp_ok($most, '<=', $size, "the remote saw $most sessions of the pool at most, in $samples looks");
is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.pools WHERE total > pool_size"), '0', 'no pool is too large');

foreach my $server (qw(shard1 patient warm))
{
	my ($too_many, $in) = connects_of($remote, $server);

	is($too_many, 0, "$server: connects come one, two, four at a time");
	cmp_ok($in, '<=', $size, "$server: and not more than the pool is large ($in)");
	cmp_ok($in, '>=', 2, "$server: but more than one");
}
ok(wait_until($local, "SELECT idle, unavailable_since IS NULL FROM pgpool.pools WHERE server = 'warm'", '2|t', 60),
	'min_size has come back with the remote, without any call');
is($local->safe_psql('postgres', "SELECT waited - granted - failed, timeouts, cancelled FROM pgpool.stats WHERE server = 'shard1'"),
	'0|0|0', 'each who waited was served or told');
is($local->safe_psql('postgres', "SELECT unavailable > 0, connects_failed > 0 FROM pgpool.stats WHERE server = 'shard1'"),
	't|t', 'who came during a pause was told at once');

# --- a wrong password does not hammer
sub attempts { return scalar(() = slurp_file($remote->logfile) =~ /password authentication failed for user "remote_app"/g); }

is($local->safe_psql('postgres', "SELECT pgpool.drain(NULL, '30 s')"), 't', 'the pools are drained');
$local->safe_psql('postgres', 'SELECT pgpool.resume(); TRUNCATE calls; CREATE TABLE stop ()');

# the pool with min_size has its connections, and so makes no attempts that would be counted
ok(wait_until($local, "SELECT idle FROM pgpool.pools WHERE server = 'warm'", '2'), 'another pool has its connections');
$remote->safe_psql('postgres', "ALTER ROLE remote_app PASSWORD 'another'");
my $before = attempts();
my $began = time();
$_->start(q{CALL loop_until_stopped('shard1')}) foreach @sessions;
ok(wait_until($local, "SELECT now() - min(ended) > '6 s' FROM calls", 't'), 'many sessions with a wrong password, for 6 s');
my ($tried, $span) = (attempts() - $before, time() - $began);
$remote->safe_psql('postgres', "ALTER ROLE remote_app PASSWORD '$REMOTE_APP_PASSWORD'");
# a pause of 100 ms, doubled each time until it is retry_max, each a quarter shorter at most
cmp_ok($tried, '<=', 6 + $span / (0.75 * $retry_max), "wrong password: the remote saw $tried attempts in $span s");
cmp_ok($tried, '>=', 2, 'wrong password: but more than one');
cmp_ok(calls('count(*)', "state = '08001' AND detail ~ 'password authentication failed for user'"), '>', 500,
	'wrong password: while hundreds of calls are told why');
ok(wait_until($local, "SELECT count(*) > 0 FROM calls WHERE state = '00000'", 't', 30), 'wrong password: once it is right the pool works');
$local->safe_psql('postgres', 'DROP TABLE stop');
$_->finish(60) foreach @sessions;

# --- the remote has no room for more: who has a connection in the pool waits for it
$local->safe_psql('postgres', 'SET client_min_messages = error; DROP SERVER warm CASCADE');
is($local->safe_psql('postgres', "SELECT pgpool.drain(NULL, '30 s')"), 't', 'the pools are drained');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'", '0'), 'also over there');
$local->safe_psql('postgres', 'SELECT pgpool.resume()');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 2');
sub refusals { return scalar(() = slurp_file($remote->logfile) =~ /too many connections for role "remote_app"/g); }
$before = refusals();
$began = time();
my @leases = map { lease($_, 'shard1') } @sessions[ 0, 1 ];
$_->start("SELECT pgpool.checkin(pgpool.checkout('shard1', '60 s'))") foreach @sessions[ 2 .. 9 ];
ok(wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE now() - waiting_since > '5 s'", '8'), 'no room: eight wait, and do not fail');
is(scalar(grep { $_->done } @sessions[ 2 .. 9 ]), 0, 'no room: for seconds');
($tried, $span) = (refusals() - $before, time() - $began);
cmp_ok($tried, '<=', 6 + $span / (0.75 * $retry_max), "no room: the remote saw $tried attempts in $span s");
cmp_ok($tried, '<', 2 * $span, 'no room: which is less than two in a second');
cmp_ok($tried, '>=', 1, 'no room: and refused');
$sessions[0]->run('SELECT pgpool.checkin_all()');
$_->finish(30) foreach @sessions[ 2 .. 9 ];
is(join('', map { $_->error } @sessions[ 2 .. 9 ]), '', 'no room: what comes in serves them one after the other');
$_->run('SELECT pgpool.checkin_all()') foreach @sessions;

# --- or another pool of the server has them: its user waits for room, too
is($local->safe_psql('postgres', "SELECT pgpool.drain(NULL, '30 s')"), 't', 'the pools are drained again');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'", '0'), 'also over there');
$local->safe_psql('postgres', 'SELECT pgpool.resume(), pgpool.reconnect()');
@leases = map { lease($_, 'shard1') } @sessions[ 0, 1 ];
my $app = PgpxSession->new($local, user => 'app');
$app->start("SELECT pgpool.checkin(pgpool.checkout('shard1', '60 s'))");
$before = refusals();
ok(wait_until($local, sub { refusals() > $before + 2 ? 1 : 0 }, 1), 'no room for another pool: it tries');
ok(!$app->done, 'no room for another pool: its user waits');
my $latest = PgpxSession->new($local, user => 'app');
$latest->fails("SELECT pgpool.checkout('shard1', '200 ms')", '08001', qr/too many connections for role "remote_app"/,
	'no room for another pool: who comes later waits too, and has the reason then');
like($latest->error, qr/FATAL: too many connections for role "remote_app"$/m, 'no room for another pool: in the words of libpq');
$sessions[0]->run("SELECT pgpool.discard($leases[0])");
is($app->finish(30) . $app->error, '', 'no room for another pool: until there is room');
$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
is($local->safe_psql('postgres', "SELECT pgpool.drain(NULL, '30 s')"), 't', 'the pools are drained once more');
$local->safe_psql('postgres', 'SELECT pgpool.resume(), pgpool.reconnect()');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 0');
$sessions[0]->fails("SELECT pgpool.checkout('shard1', '60 s')", '08001', qr/too many connections for role/, 'no room, and nobody who could make some: an error at once');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT -1');

# --- attempts that were under way together are one failure
my $listener = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1') or die "no listener: $!";
make_pool($local, $remote, server => 'burst',
	options => { port => $listener->sockport, connect_timeout => '10min', pool_size => 8, retry_min => '1min', retry_max => '1d' });
$_->start(q{SELECT pgpool.checkout('burst', '10 min')}) foreach @sessions[ 0 .. 7 ];
ok(wait_until($local, q{SELECT connecting FROM pgpool.pools WHERE server = 'burst'}, '8'), 'burst: eight attempts are under way');
my $nobody = $listener->sockport;
close $listener;
$_->finish(60) foreach @sessions[ 0 .. 7 ];
is(scalar(grep { $_->sqlstate eq '08001' } @sessions[ 0 .. 7 ]), 8, 'burst: all are told');
ok(wait_until($local, q{SELECT connects_failed FROM pgpool.stats WHERE server = 'burst'}, '8'), 'burst: all attempts have failed');
is($local->safe_psql('postgres', q{SELECT next_try_at - last_error_at BETWEEN '30 s' AND '61 s' FROM pgpool.pools WHERE server = 'burst'}), 't', 'burst: the pause is that of one failure');

# --- pauses differ by chance, so that pools that were cut off together do not come back together
foreach my $n (1 .. 10)
{
	make_pool($local, $remote, server => "pause$n", options => { port => $nobody, retry_min => '1min', retry_max => '1d' });
	$sessions[0]->fails("SELECT pgpool.checkout('pause$n', '60 s')", '08001', qr/refused/, "pause: nobody is there for pool $n");
}
is($local->safe_psql('postgres', q{SELECT bool_and(p BETWEEN '44 s' AND '61 s'), max(p) - min(p) > '1 s' FROM (SELECT next_try_at - last_error_at AS p FROM pgpool.pools WHERE server ~ '^pause') t}),
	't|t', 'pause: each has one of its own, up to a quarter shorter');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

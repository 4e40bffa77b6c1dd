# The relay is a byte stream and nothing else: large results and large parameters
# arrive whole, in both directions at once; a reader that does not read, or a
# remote that has gone behind him, costs the worker nothing; one that streams does
# not keep others waiting; what somebody left unread is nobody else's.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'over TLS in any case, and run without the switch' if over_tls();

my $remote = remote_node('remote', tls => 1);
my $local = local_node('local');
my $row = 'AS t(a text)';

make_pool($local, $remote, server => 'one', options => { sslmode => 'require', pool_size => 1 });
make_pool($local, $remote, server => 'late', options => { sslmode => 'require', pool_size => 1, notices => 'ignore' });
make_pool($local, $remote, server => 'four', options => { sslmode => 'require', pool_size => 4 });
my $session = PgpxSession->new($local);
my @others = map { PgpxSession->new($local) } 1 .. 4;
my $worker = worker_pid($local);
my $sockets = sub { return scalar grep { (readlink // '') =~ /^socket:/ } glob "/proc/$worker/fd/*"; };
my $none_open = $sockets->();

is($session->run("SELECT a FROM pgpool.query('one', 'select 1') $row"), '1', 'the pool works');
is($local->safe_psql('postgres', "SELECT transport FROM pgpool.pools WHERE server = 'one'"), 'relay', 'by the relay');

# What the worker has used: ticks of processor time, and how often it has slept.
sub used
{
	my ($stat) = slurp_file("/proc/$worker/stat") =~ /.*\) (.*)/;
	my @fields = split / /, $stat;
	my ($slept) = slurp_file("/proc/$worker/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;

	return ($fields[11] + $fields[12], $slept);
}

# Once it has come to rest the worker does not move: two assertions.
sub sleeps
{
	my ($name) = @_;
	my @before;
	my @after;

	# what is under way may take its time, a loop without end goes on
	foreach my $try (1 .. 10)
	{
		@before = used();
		$local->safe_psql('postgres', 'SELECT pg_sleep(1.2)');
		@after = used();
		last if $after[0] - $before[0] <= 5 && $after[1] - $before[1] <= 5;
	}
	cmp_ok($after[0] - $before[0], '<=', 5, "$name: the worker uses no processor");
	cmp_ok($after[1] - $before[1], '<=', 5, "$name: and does not wake up");
	return;
}

sub memory
{
	my ($kb) = slurp_file("/proc/$worker/status") =~ /^VmHWM:\s+(\d+)/m;

	return $kb;
}

# --- 100 MB out, in, and both ways at once; logins have their memory before
$local->safe_psql('postgres', "SELECT pgpool.prewarm('four', 4)");
ok(wait_until($local, "SELECT idle FROM pgpool.pools WHERE server = 'four'", 4), 'all are connected');
my $small = memory();
my $rows = "select md5(g::text) || repeat('x', 968) as a from generate_series(1, 100000) as g";
my $wanted = $remote->safe_psql('postgres', "select count(*), md5(string_agg(a, '')) from ($rows) as r");
is($session->run("SELECT count(*), md5(string_agg(a, '')) FROM pgpool.query('one', \$\$$rows\$\$) $row"), $wanted, '100 MB of rows');
is( $session->run("SELECT a FROM pgpool.query('one', 'select md5(\$1)', repeat('0123456789', 10000000)) $row"),
	$session->run("SELECT md5(repeat('0123456789', 10000000))"),
	'100 MB in a parameter');
$_->start("SELECT count(*) FROM generate_series(1, 3) AS g, LATERAL pgpool.query('four', 'select \$1 || \$1',"
	  . " repeat('0123456789', 1000000 + g)) $row WHERE a = repeat('0123456789', 2 * (1000000 + g))") foreach @others;
is($_->finish . $_->error, '3', '30 MB in and 60 MB out, of four sessions at once') foreach @others;
cmp_ok(memory() - $small, '<', 20 * 1024, 'the worker has not grown by more than 20 MB');

# --- one streams, others work
$session->start("SELECT pgpool.exec('one', 'select repeat(''x'', 8000) from generate_series(1, 125000)')");
wait_until($local, "SELECT state FROM pgpool.leases WHERE server = 'one'", 'active');
is(join(' ', map { $others[0]->run("SELECT a FROM pgpool.query('four', 'select $_') $row") } 1 .. 30), "@{[1 .. 30]}", 'others work');
is($session->done, 0, 'while 1 GB is streaming');
is($session->finish . $session->error, '125000', 'which arrives');

# --- nobody reads
my $lease = lease($session, 'one');
sleeps('an idle lease');
$session->run("SELECT pgpool.send($lease, 'select repeat(''x'', 8000) from generate_series(1, 12500)')");
sleeps('100 MB that nobody reads');
is($session->run("SELECT count(*), sum(length(a)) FROM pgpool.result($lease) $row") . $session->error, '12500|100000000', 'when they are read they are all there');
$session->run("SELECT pgpool.send($lease, 'select repeat(''x'', 8000) from generate_series(1, 12500)')");
wait_until($remote, "SELECT wait_event FROM pg_stat_activity WHERE application_name = 'pgpool_ext/one'", 'ClientWrite');
$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/one'");
wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/one'", '0');
sleeps('.. from a remote that has gone');
$session->fails("SELECT count(*) FROM pgpool.result($lease) $row", '08006', qr/was lost/, '.. is an error when it is read');
$session->run("SELECT pgpool.checkin($lease)");

# --- nor does the remote
$lease = lease($session, 'one');
my $backend = $session->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()::text') $row");
kill 'STOP', $backend;
$session->start("SELECT a FROM pgpool.query($lease, 'select md5(\$1)', repeat('x', 10000000)) $row");
ok(wait_until($local, q{SELECT wait_event_type FROM pg_stat_activity WHERE state = 'active' AND pid = } . $session->pid, 'Extension'), 'a session has more to say than its remote takes');
sleeps('10 MB that the remote does not read');
kill 'CONT', $backend;
is($session->finish(60) . $session->error, $local->safe_psql('postgres', q{SELECT md5(repeat('x', 10000000))}), 'when it reads them they are all there');
$session->run("SELECT pgpool.checkin($lease)");

# the end of an answer inside OpenSSL, where no event tells of it: the worker finds it
# all at once, a record of 4 kB in front, and one of its pieces ends in the last record
# (a pool of its own: the connection is not the first one that has a relay; a gate, so that
# the worker is stopped before there is an answer)
$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION late(length int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(7);
	RAISE NOTICE '%', repeat('n', 4000);
	RETURN repeat('x', length);
END $$;
EOT
my $gate = PgpxSession->new($remote, dbname => 'remote_db');
is($session->run("SELECT a FROM pgpool.query('one', 'select 2') $row"), '2', 'the first place is taken');
$lease = lease($session, 'late');
foreach my $length (62_000, 63_000, 64_000)
{
	$gate->run('SELECT pg_advisory_lock(7)');
	$session->run("SELECT pgpool.send($lease, 'select late($length)')");
	wait_until($remote, "SELECT wait_event_type FROM pg_stat_activity WHERE application_name = 'pgpool_ext/late'", 'Lock');
	kill 'STOP', $worker;
	$gate->run('SELECT pg_advisory_unlock(7)');
	wait_until($remote, "SELECT state FROM pg_stat_activity WHERE application_name = 'pgpool_ext/late'", 'idle');
	kill 'CONT', $worker;
	$session->start("SELECT length(a) FROM pgpool.result($lease) $row");
	is($session->finish(20), $length, "the last bytes of $length");
}
$session->run("SELECT pgpool.checkin($lease)");

# --- what is left unread
foreach my $way ('pgpool.discard(%s)', 'pgpool.checkin(%s)', 'pg_terminate_backend(pg_backend_pid())')
{
	my $leaver = PgpxSession->new($local);

	$lease = lease($leaver, 'one');
	$leaver->run("SELECT pgpool.send($lease, 'select ''secret'' from generate_series(1, 1000000)')");
	$leaver->run('SELECT ' . sprintf($way, $lease));
	is($session->run("SELECT a FROM pgpool.query('one', 'select ''mine''') $row") . $session->error, 'mine', "$way: the next one gets his own answer");
	$leaver->quit;
}

# --- what is closed leaves nothing in the worker
is($local->safe_psql('postgres', "SELECT bool_and(pgpool.drain(s, '60 s')) FROM unnest('{one,late,four}'::text[]) s"), 't', 'all connections are closed');
ok(wait_until($local, $sockets, $none_open), '.. and so are their sockets');
$local->safe_psql('postgres', 'SELECT pgpool.resume()');

# --- the worker ends, with a stream under way and a lease that is idle
$lease = lease($others[0], 'four');
$session->start("SELECT pgpool.exec('one', 'select repeat(''x'', 8000) from generate_series(1, 1250000)')");
wait_until($local, "SELECT state FROM pgpool.leases WHERE server = 'one'", 'active');
terminate($local, $worker);
$session->finish;
$session->failed('08006', qr/worker was restarted/, 'the worker ends: so does a stream');
$others[0]->fails("SELECT pgpool.exec($lease, 'select 1')", '08006', qr/worker was restarted/, 'the worker ends: and a lease');
ok(wait_until($remote, sub { remote_sessions($remote) }, '0', 20), 'the worker ends: and the remote sessions');
$others[0]->run('SELECT pgpool.checkin_all()');
is($session->run("SELECT a FROM pgpool.query('one', 'select 7') $row") . $session->error, '7', 'the next worker works');

$_->quit foreach $session, $gate, @others;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

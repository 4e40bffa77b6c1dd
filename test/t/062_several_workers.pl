# Several workers: the servers are spread over them, each worker has its own pools'
# connections and nothing else, and what stops or fills one leaves the pools of
# another as they were.
use strict;
use warnings;

use PgpxTest;
use Test::More;

plan skip_all => 'over TLS in any case, and run without the switch' if over_tls();

my $remote = remote_node('remote', tls => 1);
my $local = local_node('local', conf => ['pgpool_ext.workers = 3']);
my $session = PgpxSession->new($local);
my $row = 'AS t(a text)';

sub query { return "SELECT a FROM pgpool.query('$_[0]', 'select $_[1]') $row"; }

# --- who has what
foreach my $n (1 .. 6)
{
	make_pool($local, $remote, server => "s$n", options => { sslmode => $n % 2 ? 'require' : 'prefer', pool_size => 3 });
	is($session->run(query("s$n", $n)) . $session->error, $n, "s$n: works");
}
$session->run("SET ROLE app; SELECT pgpool.exec('s1', 'select 1'); RESET ROLE");
my %worker = map { split /\|/ } split /\n/, $local->safe_psql('postgres', "SELECT DISTINCT server, worker FROM pgpool.pools");
is(join(' ', sort values %worker), '0 0 1 1 2 2', 'six servers are spread over three workers, all pools of a server with one');
is($local->safe_psql('postgres', 'SELECT worker, state, pools, connections, descriptors, pid IS NOT NULL FROM pgpool.workers ORDER BY worker'),
	join("\n", map { my $pools = $worker{s1} == $_ ? 3 : 2; "$_|running|$pools|$pools|" . 3 * $pools . '|t' } 0 .. 2),
	'the view shows each with its pools');
is($local->safe_psql('postgres', "SELECT count(DISTINCT w.pid) FROM pgpool.workers w JOIN pg_stat_activity a USING (pid) WHERE a.backend_type = 'pgpool_ext worker'"),
	'3', 'they are three processes');
my %pid = map { split /\|/ } split /\n/, $local->safe_psql('postgres', 'SELECT worker, pid FROM pgpool.workers');
my ($mine) = grep { $worker{$_} == 0 } sort keys %worker;
my ($theirs) = grep { $worker{$_} == 1 } sort keys %worker;
my ($last) = grep { $worker{$_} == 2 } sort keys %worker;

# --- one is stopped
my @stuck = map { PgpxSession->new($local) } 1 .. 3;
kill 'STOP', $pid{0};
$_->start("SELECT pgpool.checkout('$mine', '60 s')") foreach @stuck;
is( join(' ', map { $session->run("SELECT pgpool.checkout('$theirs', '20 s')") =~ /^\d+$/ ? 'lease' : $session->error } 1 .. 3),
	'lease lease lease', 'stopped: a pool of another worker grows');
is($session->run('SELECT pgpool.checkin_all()'), '3', 'stopped: gets its connections back');
$session->run("SELECT pgpool.reconnect('$theirs')");
is($session->run(query($theirs, 1)) . $session->error, '1', 'stopped: and opens new ones');
is($session->run(query($last, 1)) . $session->error, '1', 'stopped: a third worker, too');
cmp_ok(scalar(grep { !$_->done } @stuck), '>', 0, 'stopped: who needs the one waits');
kill 'CONT', $pid{0};
my @ids = map { $_->finish(30) } @stuck;
like($_, qr/^\d+$/, 'continued: and is served') foreach @ids;

# --- one streams
$stuck[0]->start("SELECT pgpool.exec('$mine', 'select repeat(''x'', 8000) from generate_series(1, 1250000)')")
  if $stuck[0]->run('SELECT pgpool.checkin_all()');
wait_until($local, "SELECT count(*) FROM pgpool.leases WHERE server = '$mine' AND state = 'active'", '1');
is(join(' ', map { $session->run(query($theirs, $_)) } 1 .. 30), "@{[1 .. 30]}", 'streaming: the pools of another worker work');
is($stuck[0]->done, 0, 'streaming: while it goes on');

# --- one ends
my $theirs_before = $local->safe_psql('postgres', "SELECT connection, generation, remote_pid FROM pgpool.connections WHERE server = '$theirs'");
my $lease = lease($session, $theirs);
terminate($local, $pid{0});
$stuck[0]->finish(30);
$stuck[0]->failed('08006', qr/worker was restarted/, 'ended: its leases have ended');
$stuck[1]->fails("SELECT pgpool.exec($ids[1], 'select 1')", '08006', qr/worker was restarted/, 'ended: the idle ones, too');
is($session->run("SELECT a FROM pgpool.query($lease, 'select 5') $row") . $session->error, '5', "ended: another worker's go on");
$session->run('SELECT pgpool.checkin_all()');
is($local->safe_psql('postgres', "SELECT connection, generation, remote_pid FROM pgpool.connections WHERE server = '$theirs'"),
	$theirs_before, 'ended: on the same connections');
is($session->run(query($mine, 6), 60) . $session->error, '6', 'ended: the next one takes over');
is($local->safe_psql('postgres', 'SELECT worker, state, restarts FROM pgpool.workers ORDER BY worker'),
	"0|running|1\n1|running|0\n2|running|0", 'ended: as the view shows');

# --- one is stopped: a server's pause, and a drop, are its own pools' matter
kill 'STOP', $pid{1};
$session->run("DROP SERVER $last CASCADE");
is($session->error =~ /ERROR/ ? $session->error : '', '', 'stopped: a server of another worker is dropped');
ok(wait_until($local, "SELECT connections FROM pgpool.workers WHERE worker = 2", '1'), 'stopped: and its connections close');
kill 'CONT', $pid{1};

$_->run('SELECT pgpool.checkin_all()'), $_->quit foreach @stuck, $session;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

# Several workers: the servers are distributed over them, each worker owns the
# connections of its pools, and a stopped or busy worker does not affect the pools of
# another.
use strict;
use warnings;

use PgpxTest;
use Test::More;

plan skip_all => 'tested without the option --tls' if over_tls();

my $remote = remote_node('remote', tls => 1);
my $local = local_node('local', conf => ['pgpool_ext.workers = 3']);
my $session = PgpxSession->new($local);
my $row = 'AS t(a text)';

sub query { return "SELECT a FROM pgpool.query('$_[0]', 'select $_[1]') $row"; }

# --- distribution
foreach my $n (1 .. 6)
{
	make_pool($local, $remote, server => "s$n", options => { sslmode => $n % 2 ? 'require' : 'prefer', pool_size => 3 });
	is($session->run(query("s$n", $n)) . $session->error, $n, "s$n: pool works");
}
$session->run("SET ROLE app; SELECT pgpool.exec('s1', 'select 1'); RESET ROLE");
my %worker = map { split /\|/ } split /\n/, $local->safe_psql('postgres', "SELECT DISTINCT server, worker FROM pgpool.pools");
is(join(' ', sort values %worker), '0 0 1 1 2 2', 'six servers are distributed over three workers, all pools of a server are served by one');
ok( wait_until($local, 'SELECT worker, state, pools, connections, descriptors, pid IS NOT NULL FROM pgpool.workers ORDER BY worker',
	join("\n", map { my $pools = $worker{s1} == $_ ? 3 : 2; "$_|running|$pools|$pools|" . 3 * $pools . '|t' } 0 .. 2)),
	'pgpool.workers shows the pools of each worker');
is($local->safe_psql('postgres', "SELECT count(DISTINCT w.pid) FROM pgpool.workers w JOIN pg_stat_activity a USING (pid) WHERE a.backend_type = 'pgpool_ext worker'"),
	'3', 'workers are three processes');
my %pid = map { split /\|/ } split /\n/, $local->safe_psql('postgres', 'SELECT worker, pid FROM pgpool.workers');
my ($mine) = grep { $worker{$_} == 0 } sort keys %worker;
my ($theirs) = grep { $worker{$_} == 1 } sort keys %worker;
my ($last) = grep { $worker{$_} == 2 } sort keys %worker;

# --- a worker is stopped
my @stuck = map { PgpxSession->new($local) } 1 .. 3;
kill 'STOP', $pid{0};
$_->start("SELECT pgpool.checkout('$mine', '60 s')") foreach @stuck;
is( join(' ', map { $session->run("SELECT pgpool.checkout('$theirs', '20 s')") =~ /^\d+$/ ? 'lease' : $session->error } 1 .. 3),
	'lease lease lease', 'stopped: pool of another worker grows');
is($session->run('SELECT pgpool.checkin_all()'), '3', 'stopped: connections of another worker can be returned');
$session->run("SELECT pgpool.reconnect('$theirs')");
is($session->run(query($theirs, 1)) . $session->error, '1', 'stopped: another worker opens new connections');
is($session->run(query($last, 1)) . $session->error, '1', 'stopped: third worker works, too');
cmp_ok(scalar(grep { !$_->done } @stuck), '>', 0, 'stopped: sessions that need the stopped worker wait');
kill 'CONT', $pid{0};
my @ids = map { $_->finish(30) } @stuck;
like($_, qr/^\d+$/, 'continued: session is granted a connection') foreach @ids;

# --- a worker relays a large stream
$stuck[0]->start("SELECT pgpool.exec('$mine', 'select repeat(''x'', 8000) from generate_series(1, 1250000)')")
  if $stuck[0]->run('SELECT pgpool.checkin_all()');
wait_until($local, "SELECT count(*) FROM pgpool.leases WHERE server = '$mine' AND state = 'active'", '1');
is(join(' ', map { $session->run(query($theirs, $_)) } 1 .. 30), "@{[1 .. 30]}", 'stream: pools of another worker work');
is($stuck[0]->done, 0, 'stream: stream is still in progress');

# --- a worker ends
my $theirs_before = $local->safe_psql('postgres', "SELECT connection, generation, remote_pid FROM pgpool.connections WHERE server = '$theirs'");
my $lease = lease($session, $theirs);
terminate($local, $pid{0});
$stuck[0]->finish(30);
$stuck[0]->failed('08006', qr/worker was restarted/, 'ended: active lease of the worker fails');
$stuck[1]->fails("SELECT pgpool.exec($ids[1], 'select 1')", '08006', qr/worker was restarted/, 'ended: idle lease of the worker fails');
is($session->run("SELECT a FROM pgpool.query($lease, 'select 5') $row") . $session->error, '5', "ended: lease of another worker stays usable");
$session->run('SELECT pgpool.checkin_all()');
is($local->safe_psql('postgres', "SELECT connection, generation, remote_pid FROM pgpool.connections WHERE server = '$theirs'"),
	$theirs_before, 'ended: connections of another worker are kept');
is($session->run(query($mine, 6), 60) . $session->error, '6', 'ended: next worker serves the pools');
is($local->safe_psql('postgres', 'SELECT worker, state, restarts FROM pgpool.workers ORDER BY worker'),
	"0|running|1\n1|running|0\n2|running|0", 'ended: pgpool.workers shows the restart');

# --- DROP SERVER while another worker is stopped
kill 'STOP', $pid{1};
$session->run("DROP SERVER $last CASCADE");
is($session->error =~ /ERROR/ ? $session->error : '', '', 'stopped: server of another worker is dropped');
ok(wait_until($local, "SELECT connections FROM pgpool.workers WHERE worker = 2", '1'), 'stopped: connections of the dropped server close');
kill 'CONT', $pid{1};

$_->run('SELECT pgpool.checkin_all()'), $_->quit foreach @stuck, $session;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

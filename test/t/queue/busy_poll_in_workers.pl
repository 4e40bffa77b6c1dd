# pgpool_ext.busy_poll in workers: the worker polls for relayed data before it sleeps.
# "polled" in pgpool.workers counts data found by polling. Other work is not delayed.
# The polling slot is freed, also by a worker that is terminated. There is no polling
# while more connections of the pool are leased than half the processors.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $processors = grep { /^processor\s*:/ } split /\n/, slurp_file('/proc/cpuinfo');
plan skip_all => 'a machine with a single processor does not poll' if $processors < 2;
plan skip_all => 'tested without the option --tls' if over_tls();

my $remote = remote_node('remote', tls => 1);
my $plain = remote_node('plain');
my $local = local_node('local', conf => ['pgpool_ext.busy_poll = 1000']);
make_pool($local, $remote, server => 'relayed', options => { sslmode => 'require', pool_size => 2 });
make_pool($local, $plain, server => 'direct',
	options => { sslmode => 'disable', pool_size => int($processors / 2) + 1 });

my $worker_polled = 'SELECT polled FROM pgpool.workers';
my $session_polled = "SELECT sum(polled) FROM pgpool.stats WHERE server = 'direct'";

# Execute $times statements on one lease of a new session.
sub statements
{
	my ($server, $times, $sql) = @_;
	my $own = PgpxSession->new($local);
	my $lease = lease($own, $server);

	$own->run("DO \$\$ BEGIN FOR i IN 1 .. $times LOOP PERFORM pgpool.exec($lease, '$sql'); END LOOP; END \$\$");
	die $own->error if $own->error ne '';
	$own->run("SELECT pgpool.checkin($lease)");
	$own->quit;
	return;
}

# The growth of a counter during these statements.
sub growth
{
	my ($count, @statements) = @_;
	my $before = $local->safe_psql('postgres', $count) || 0;

	statements(@statements);
	return ($local->safe_psql('postgres', $count) || 0) - $before;
}

# --- data is found by polling
ok(wait_until($local, sub { growth($worker_polled, 'relayed', 50, 'select 1') > 0 ? 't' : 'f' }),
	'relayed data is found by polling');
is(growth($worker_polled, 'direct', 200, 'select 1'), '0', 'direct connection is not polled by the worker');

# --- a polling worker handles all other events: locks, signals, other sessions, its
# latch
my $looping = PgpxSession->new($local);
my $lease = lease($looping, 'relayed');
$looping->start("DO \$\$ BEGIN LOOP PERFORM pgpool.exec($lease, 'select 1'); END LOOP; END \$\$");
ok(wait_until($local, "SELECT state FROM pg_stat_activity WHERE pid = @{[$looping->pid]}", 'active'), 'loop of statements runs');
is($local->safe_psql('postgres', "SELECT a FROM pgpool.query('relayed', 'select 7') AS t(a int)"), '7',
	'another session executes a statement meanwhile');
is($local->safe_psql('postgres', "SELECT pgpool.drain('direct', '180 s')"), 't', 'worker closes connections meanwhile');
$local->safe_psql('postgres', "SELECT pgpool.resume('direct')");

# --- a worker that exits frees its polling slot; otherwise no process could poll any
# more
foreach my $round (1 .. 3)
{
	my $worker = worker_pid($local);

	kill 'TERM', $worker;
	$looping->finish;
	is($looping->sqlstate, '08006', "round $round: loop ends with its worker");
	ok(wait_until($local, "SELECT pid <> $worker AND state = 'running' FROM pgpool.workers", 't'), 'new worker runs');
	$lease = lease($looping, 'relayed');
	my $before = $local->safe_psql('postgres', $worker_polled);
	$looping->start("DO \$\$ BEGIN LOOP PERFORM pgpool.exec($lease, 'select 1'); END LOOP; END \$\$");
	ok(wait_until($local, "SELECT polled > $before FROM pgpool.workers", 't'), 'new worker polls, too');
}
$local->safe_psql('postgres', "SELECT pg_cancel_backend(@{[$looping->pid]})");
$looping->finish;
$looping->run("SELECT pgpool.checkin($lease)");
ok(wait_until($local, sub { growth($session_polled, 'direct', 50, 'select 1') > 0 ? 't' : 'f' }),
	'session polls, too');

# --- no polling while other processes need the processors
$looping->run("SELECT pgpool.checkout('direct') FROM generate_series(1, " . int($processors / 2) . ')');
is(join(' ', map { growth($session_polled, 'direct', 300, 'select 1') } 1 .. 5),
	'0 0 0 0 0', 'session does not poll while as many leases exist as half the processors');
$looping->run('SELECT pgpool.checkin_all()');

# --- busy_poll 0 disables polling
$local->append_conf('postgresql.conf', 'pgpool_ext.busy_poll = 0');
$local->reload;
ok(wait_until($local, sub { growth($worker_polled, 'relayed', 100, 'select 1') == 0 ? 't' : 'f' }),
	'worker stops polling when busy_poll is set to 0');
is(growth($worker_polled, 'relayed', 500, 'select 1'), '0', 'worker does not poll while busy_poll is 0');

$looping->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote, $plain);
done_testing();

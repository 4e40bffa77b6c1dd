# pgpool_ext.busy_poll: a session looks for an answer for a moment before it goes to
# sleep; "polled" in the counters tells how often that has paid.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $processors = grep { /^processor\s*:/ } split /\n/, slurp_file('/proc/cpuinfo');
plan skip_all => 'with a single processor nobody looks' if $processors < 2;

# over TLS sessions leave it to the worker, where only one process may look
my $left = over_tls() && $processors < 4;

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'p', options => { pool_size => 2 });

my $session = PgpxSession->new($local);

# Run it so often on one lease; how many of the answers were there without a sleep?
# (In a session that has not looked in vain so far.)
sub polled
{
	my ($times, $sql, $busy_poll) = @_;
	my $count = "SELECT polled FROM pgpool.stats WHERE server = 'p'";
	my $before = $local->safe_psql('postgres', $count) || 0;
	my $own = PgpxSession->new($local);
	my $lease = lease($own, 'p');

	$own->run("SET pgpool_ext.busy_poll = $busy_poll");
	$own->run("DO \$\$ BEGIN FOR i IN 1 .. $times LOOP PERFORM pgpool.exec($lease, '$sql'); END LOOP; END \$\$");
	$own->run("SELECT pgpool.checkin($lease)");
	$own->quit;
	return $local->safe_psql('postgres', $count) - $before;
}

# --- found when it is looked for, whatever else the machine does
if ($left)
{
	is(join(' ', map { polled(300, 'select 1', 1000) } 1 .. 5), '0 0 0 0 0', 'looking is left to the worker');
}
else
{
	ok(wait_until($local, sub { polled(50, 'select 1', 1000) > 0 ? 't' : 'f' }), 'an answer is found without a sleep');
}
is(polled(500, 'select 1', 0), '0', 'busy_poll 0: it is not looked for');

# --- no longer than said: an answer that takes longer is not found.  (It is there at the
# first look if the session stands still for as long: once more then.)
ok(wait_until($local, sub { polled(20, 'select pg_sleep(0.1)', 1) }, '0', 20), 'one that takes longer is slept for');

# --- more and more rarely where it was in vain: after three misses in a row, which take
# 21 statements, 63 answers are not looked for, however quickly they come
sub polled_after_misses
{
	my $count = "SELECT polled FROM pgpool.stats WHERE server = 'p'";
	my $before = $local->safe_psql('postgres', $count);
	my $own = PgpxSession->new($local);
	my $lease = lease($own, 'p');

	$own->run('SET pgpool_ext.busy_poll = 1');
	$own->run("DO \$\$ BEGIN FOR i IN 1 .. 21 LOOP PERFORM pgpool.exec($lease, 'select pg_sleep(0.03)'); END LOOP; END \$\$");
	$own->run('SET pgpool_ext.busy_poll = 1000');
	$own->run("DO \$\$ BEGIN FOR i IN 1 .. 50 LOOP PERFORM pgpool.exec($lease, 'select 1'); END LOOP; END \$\$");
	$own->run("SELECT pgpool.checkin($lease)");
	$own->quit;
	return $local->safe_psql('postgres', $count) - $before;
}
ok(wait_until($local, \&polled_after_misses, '0', 20), 'after misses it is not looked for, for a while');

# (Never by more processes than half the processors: 088, which can have them stand in a look.)

# --- it can be interrupted, and the lease goes on
$session->run('SET pgpool_ext.busy_poll = 1000');
my $lease = lease($session, 'p');
$session->run("SET statement_timeout = '300ms'");
$session->fails("DO \$\$ BEGIN LOOP PERFORM pgpool.exec($lease, 'select 1'); END LOOP; END \$\$",
	'57014', qr/statement timeout/, 'a loop of statements is cancelled');
$session->run('SET statement_timeout = 0');
is($session->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'and the lease is fit for use');

# --- not while another waits for a connection of the pool, of which one alone is leased
make_pool($local, $remote, server => 'single', options => { pool_size => 1 });
my $second = PgpxSession->new($local);
my $third = PgpxSession->new($local);
my $held = lease($second, 'single');
$third->start("SELECT pgpool.checkout('single', '600 s')");
ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = 'single'", '1'), 'another waits');
my $polled = $local->safe_psql('postgres', "SELECT polled FROM pgpool.stats WHERE server = 'single'");
$second->run('SET pgpool_ext.busy_poll = 1000');
$second->run("DO \$\$ BEGIN FOR i IN 1 .. 3000 LOOP PERFORM pgpool.exec($held, 'select 1'); END LOOP; END \$\$");
$second->run("SELECT pgpool.checkin($held)");
like($third->finish, qr/^\d+$/, 'it gets its turn');
is($local->safe_psql('postgres', "SELECT polled FROM pgpool.stats WHERE server = 'single'"),
	$polled, 'nobody has looked meanwhile');
$_->quit foreach $second, $third;

# --- who looks sees the end of the connection
$session->start("DO \$\$ BEGIN LOOP PERFORM pgpool.exec($lease, 'select 1'); END LOOP; END \$\$");
ok(wait_until($local, "SELECT state FROM pg_stat_activity WHERE pid = @{[$session->pid]}", 'active'), 'a loop runs');
$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pgpool_ext%'");
$session->finish;
is($session->sqlstate, '08006', 'the end of the connection is noticed');
ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'p' AND state <> 'leased'", '0'),
	'and that of the other');
is($session->run("SELECT a FROM pgpool.query('p', 'select 1') AS t(a int)"), '1', 'the pool works');
$session->quit;

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

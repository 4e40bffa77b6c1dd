# pgpool_ext.busy_poll in sessions: a session polls for an answer before it sleeps. The
# counter "polled" counts answers found by polling. (How often one is found depends on the
# machine: see timing/busy_poll.)
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $processors = grep { /^processor\s*:/ } split /\n/, slurp_file('/proc/cpuinfo');
plan skip_all => 'a machine with a single processor does not poll' if $processors < 2;

# over TLS sessions leave one polling slot to the worker; with fewer than four
# processors there is only one
my $left = over_tls() && $processors < 4;

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'p', options => { pool_size => 2 });

my $session = PgpxSession->new($local);

# The number of answers found by polling among $times statements on one lease, in a new
# session, which has no misses yet.
sub polled
{
	my ($times, $sql, $busy_poll) = @_;
	my $count = "SELECT polled FROM pgpool.stats WHERE server = 'p'";
	my $before = $local->safe_psql('postgres', $count) || 0;
	my $own = PgpxSession->new($local);
	my $lease = lease($own, 'p');

	$own->run("SET pgpool_ext.busy_poll = $busy_poll");
	$own->run("DO \$\$ BEGIN FOR i IN 1 .. $times LOOP PERFORM pgpool.exec($lease, '$sql'); END LOOP; END \$\$");
	die $own->error if $own->error ne '';
	$own->run("SELECT pgpool.checkin($lease)");
	$own->quit;
	return $local->safe_psql('postgres', $count) - $before;
}

is(polled(30, 'select 1', 1000), '0', 'sessions leave polling to the worker') if $left;
is(polled(30, 'select 1', 0), '0', 'busy_poll 0 disables polling');

# --- polling can be interrupted, and the lease stays usable
$session->run('SET pgpool_ext.busy_poll = 1000');
my $lease = lease($session, 'p');
$session->run("SET statement_timeout = '300ms'");
$session->fails("DO \$\$ BEGIN LOOP PERFORM pgpool.exec($lease, 'select 1'); END LOOP; END \$\$",
	'57014', qr/statement timeout/, 'loop of statements is cancelled');
$session->reset_statement_timeout;
is($session->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'lease stays usable');

# --- no polling while another session waits for a connection of the pool
make_pool($local, $remote, server => 'single', options => { pool_size => 1 });
my $second = PgpxSession->new($local);
my $third = PgpxSession->new($local);
my $held = lease($second, 'single');
$third->start("SELECT pgpool.checkout('single', '600 s')");
ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = 'single'", '1'), 'another session waits');
my $polled = $local->safe_psql('postgres', "SELECT polled FROM pgpool.stats WHERE server = 'single'");
$second->run('SET pgpool_ext.busy_poll = 1000');
$second->run("DO \$\$ BEGIN FOR i IN 1 .. 100 LOOP PERFORM pgpool.exec($held, 'select 1'); END LOOP; END \$\$");
is($second->error, '', 'holder executes its statements');
$second->run("SELECT pgpool.checkin($held)");
like($third->finish, qr/^\d+$/, 'waiting session is granted the connection');
is($local->safe_psql('postgres', "SELECT polled FROM pgpool.stats WHERE server = 'single'"),
	$polled, 'session does not poll while another session waits');
$_->quit foreach $second, $third;

# --- a polling session notices the end of the connection
$session->start("DO \$\$ BEGIN LOOP PERFORM pgpool.exec($lease, 'select 1'); END LOOP; END \$\$");
ok(wait_until($local, "SELECT state FROM pg_stat_activity WHERE pid = @{[$session->pid]}", 'active'), 'loop runs');
$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pgpool_ext%'");
$session->finish;
is($session->sqlstate, '08006', 'end of the connection is noticed');
ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'p' AND state <> 'leased'", '0'),
	'end of the other connection is noticed');
is($session->run("SELECT a FROM pgpool.query('p', 'select 1') AS t(a int)"), '1', 'pool works');
$session->quit;

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

# pgpool_ext.busy_poll in sessions: how often a session finds an answer by polling. The counter
# "polled" counts these answers.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $processors = grep { /^processor\s*:/ } split /\n/, slurp_file('/proc/cpuinfo');
plan skip_all => 'a machine with a single processor does not poll' if $processors < 2;

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'p', options => { pool_size => 2 });

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

# --- answers are found whenever polling is possible
ok(wait_until($local, sub { polled(50, 'select 1', 1000) > 0 ? 't' : 'f' }), 'answer is found by polling');

# --- polling ends after busy_poll: a later answer is not found. (It may be found at the
# first poll if the machine stalls; hence the retry.)
ok(wait_until($local, sub { polled(20, 'select pg_sleep(0.1)', 1) }, '0', 20), 'answer that is later than busy_poll is not found by polling');

# --- after an answer that took longer than twice busy_poll, a session sleeps at once
sub polled_after_slow_answers
{
	my $count = "SELECT polled FROM pgpool.stats WHERE server = 'p'";
	my $before = $local->safe_psql('postgres', $count);
	my $own = PgpxSession->new($local);
	my $lease = lease($own, 'p');

	$own->run("DO \$\$ BEGIN FOR i IN 1 .. 20 LOOP
		PERFORM pgpool.exec($lease, 'select pg_sleep(0.01)');
		PERFORM pgpool.exec($lease, 'select 1');
	END LOOP; END \$\$");
	die $own->error if $own->error ne '';
	$own->run("SELECT pgpool.checkin($lease)");
	$own->quit;
	return $local->safe_psql('postgres', $count) - $before;
}
ok(wait_until($local, \&polled_after_slow_answers, '0', 20), 'session does not poll after a slow answer');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

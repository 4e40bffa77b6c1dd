# Loss of all packets to and from a remote server: a running statement fails in time, a
# checkout ends within its timeout, idle connections are tested, and other pools are not
# affected. When packets pass again the pools recover by themselves.
use strict;
use warnings;

use FindBin;
use PgpxNetwork;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

PgpxNetwork::skip_all_without();
my $network = PgpxNetwork->new;

# the remote server detects sessions without a client itself
my $far = $network->remote_node('far',
	conf => [ 'tcp_keepalives_idle = 1', 'tcp_keepalives_interval = 1', 'tcp_user_timeout = 1500', 'client_connection_check_interval = 200' ]);
my $near = remote_node('near');
my $local = local_node('local');

# Each pool shows one option; all other timeouts are minutes.
my %late = (host => $network->address, keepalives_idle => 600, tcp_user_timeout => 600_000, connect_timeout => '600s',
	test_period => -1, retry_max => '1s', pool_size => 4);
my %pools = (
	keepalive => { keepalives_idle => 1, keepalives_interval => 1, tcp_user_timeout => 1500, operation_timeout => '500ms' },
	user_timeout => { tcp_user_timeout => 1500, operation_timeout => '500ms' },
	statement => { operation_timeout => '500ms' },
	tested => { test_period => 0, operation_timeout => '600s' },
	connected => { connect_timeout => '1s' },
	asked => { connect_timeout => '5s' },
	idle => { test_period => 0, connect_timeout => '5s' },
	patient => { on_unavailable => 'wait', connect_timeout => '1s' },
	monitored => { connect_timeout => '1s', retry_min => '1s', retry_max => '1s', min_size => 1, test_period => 0 },
	unused => { connect_timeout => '1s', retry_min => '1ms', retry_max => '1ms' });
make_pool($local, $far, server => $_, options => { %late, %{ $pools{$_} } }) foreach sort keys %pools;
make_pool($local, $near, server => 'other', options => { pool_size => 2 });

sub stats
{
	my ($server, $columns) = @_;

	return $local->safe_psql('postgres', "SELECT sum($columns) FROM pgpool.stats WHERE server = '$server'");
}

# --- the network works
my %session = map { $_ => PgpxSession->new($local) } sort keys %pools, 'other', 'prewarm';
my %lease = map { $_ => lease($session{$_}, $_) } qw(keepalive user_timeout statement);
is($session{$_}->run("SELECT pgpool.exec($lease{$_}, 'select 1')"), '1', "$_: lease works") foreach sort keys %lease;
is($session{prewarm}->run("SELECT pgpool.prewarm('tested', 2, '60 s')"), '2', 'tested: two connections are open');
is($session{$_}->run("SELECT pgpool.exec('$_', 'select 1')"), '1', "$_: pool works") foreach qw(other idle);
ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server IN ('tested', 'idle') AND state = 'idle'", '3'),
	'tested, idle: connections are idle');
$session{keepalive}->start("SELECT pgpool.exec($lease{keepalive}, 'select pg_sleep(600)')");
ok(wait_until($far, "SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(600)'", '1'), 'keepalive: statement runs');

# the result of a checkout
$local->safe_psql('postgres', <<'EOT');
CREATE FUNCTION try(server text, timeout interval, OUT state text) LANGUAGE plpgsql AS $$
BEGIN
	state := '00000';
	PERFORM pgpool.checkout(server, timeout);
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE;
END $$;
EOT

# --- the network is cut
$local->safe_psql('postgres', q{ALTER SERVER tested OPTIONS (SET connect_timeout '1s')});
$network->cut;
$session{user_timeout}->start("SELECT pgpool.exec($lease{user_timeout}, 'select 1')");
$session{statement}->run("SET statement_timeout = '300ms'");
$session{statement}->start("SELECT pgpool.exec($lease{statement}, 'select 1')");
$session{$_}->start("SELECT pgpool.checkout('$_', '600 s')") foreach qw(tested connected);

$session{$_}->start(<<"EOT") foreach qw(asked idle patient);
SELECT string_agg(DISTINCT state, ' ')
FROM generate_series(1, 3) n, LATERAL try('$_', '200 ms' + n * '1 us'::interval)
EOT

# each statement must end while another pool works
my @wait = qw(keepalive user_timeout statement tested connected asked idle patient);
my $served = 0;
ok(wait_until($local, sub {
	$served++ if $session{other}->run("SELECT pgpool.exec('other', 'select 1')") eq '1';
	return scalar grep { $session{$_}->done } @wait;
}, scalar @wait), 'all statements end');
cmp_ok($served, '>', 1, "another pool executed $served statements meanwhile");
is($session{other}->error, '', 'other pool reports no error');
$session{$_}->finish foreach @wait;
$session{$_}->failed('08006', qr/connection to server "$_" was lost\nDETAIL:  The network connection timed out\./, "$_: holder receives the error that the network timed out")
  foreach qw(keepalive user_timeout);
$session{statement}->failed('57014', qr/statement timeout/, 'statement: local statement_timeout does not wait for the network');
$session{$_}->failed('08001', qr/DETAIL:.*within connect_timeout \(1 s\)/, "$_: connection attempt ends at connect_timeout") foreach qw(tested connected);
foreach my $server (qw(asked idle patient))
{
	like($session{$server}->{text}, qr/^(?:08001|55P03|08001 55P03)$/, "$server: each checkout fails");
}
is(stats('tested', 'closed_broken'), '2', 'tested: both connections have failed the test of test_period');
is(stats('tested', 'retried'), '0', 'tested: no lost connection was leased');
check_invariants($local, 'invariants hold without a network');

# --- what monitoring shows: the metric "up" of queries.yaml, and the counters on which
# the alerts of recipes.md are based
my ($query) = slurp_file("$FindBin::Bin/../../../doc/queries.yaml") =~ /^pgpool_ext_pool:\n  query: \|\n(.*?)^  metrics:/ms;

sub metric
{
	my ($server, $columns, $condition) = @_;

	return $local->safe_psql('postgres',
		"SELECT $columns FROM ($query) AS m JOIN pgpool.pools AS p USING (database, local_user) WHERE p.server = foreign_server AND foreign_server = '$server'"
		  . ($condition ? " AND $condition" : ''));
}

$session{$_}->fails("SELECT pgpool.checkout('$_', '600 s')", '08001', qr/connect_timeout/, "$_: call fails") foreach qw(monitored unused);
ok(wait_until($local, sub { metric('monitored', 'up, state', 'connecting > 0') }, '0|unavailable'), 'monitored: pool is not up during an attempt');
ok(wait_until($local, sub { metric('monitored', 'up, state', 'connecting = 0') }, '0|unavailable'), 'monitored: pool is not up between two attempts');
is(metric('unused', 'up, state', 'connecting = 0 AND next_try_at < now()'), '0|unavailable', 'unused: pool is not up when no attempt is made');
ok(wait_until($local, sub { $session{monitored}->run("SELECT pgpool.checkout('monitored', '600 s')"); metric('monitored', 'refused_unavailable_total > 0') }, 't'),
	'monitored: calls during the pause are counted');
is(metric('monitored', 'failed_total > 0, connects_failed_total > 0'), 't|t', 'monitored: failed calls and attempts are counted');

# --- the network works again
$_->run('SELECT pgpool.checkin_all()') foreach values %session;
$network->restore;
foreach my $server (sort keys %pools)
{
	ok(wait_until($local, sub { $session{$server}->run("SELECT pgpool.exec('$server', 'select 1')") }, '1', 60), "$server: pool works again");
}
is(metric($_, 'up, state'), '1|ready', "$_: pool is up again") foreach qw(monitored unused);
is(stats('other', 'connects_failed + retried'), '0', 'other: pool was not affected');
ok( wait_until($local, 'SELECT descriptors - ' . descriptors_wanted() . ' FROM pgpool.workers', '0', 60),
	'worker has no superfluous file descriptor');

stats_add_up($local);
check_invariants($local);
$_->quit foreach values %session;
leak_check($local, $far);
done_testing();

# operation_timeout bounds the operations of the pool itself on a connection: a reset
# that does not end, an answer that does not arrive, a cancel request that is accepted
# and never executed. The tests use short timeouts instead of the default of ten seconds.
use strict;
use warnings;

use PgpxClock;
use PgpxFakeServer;
use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', start => 0);
with_clock($local, sub { $local->start }) if can_set_clocks();
$local->start if !can_set_clocks();
my $row = 'AS t(a text)';

# The statement never ends, and the cancel connection stays open.
my $silent = sub {
	my ($fake) = @_;

	$fake->receive;
	sleep 3600;
};
my $slow = sub {
	my ($fake) = @_;

	while (my $sql = $fake->receive)
	{
		select undef, undef, undef, 0.1;
		$fake->send($sql =~ /^select/ ? $fake->answer('1') : (PgpxFakeServer::done('DISCARD ALL'), PgpxFakeServer::ready()));
	}
};
my $fake = PgpxFakeServer->new(silent => $silent, slow => $slow, cancel => sub { sleep 3600 });
my $unresponsive = PgpxFakeServer->new(silent => $silent);
my $endless = PgpxFakeServer->new(silent => $silent, slow => $slow,
	first => sub { my ($fake) = @_; $fake->receive; $fake->send($fake->answer('1')); $fake->receive; sleep 3600 },
	login => { login => sub { sleep 3600 } },
	cancel => sub { sleep 3600 });
my %fakes = (held => $fake, unresponsive => $unresponsive);
my ($session, $other) = map { PgpxSession->new($local) } 1 .. 2;

# --- a connection attempt may last for years if its options allow it (checked at the end)
make_pool($local, $endless, server => 'years', remote_dbname => 'login', options => { pool_size => 1, sslmode => 'disable', connect_timeout => '3650d' });
$session->fails("SELECT pgpool.checkout('years', '100 ms')", '55P03', qr/timeout/, 'years: login is not answered');

# --- a reset that does not end
make_pool($local, $remote, server => 'reset', options => { pool_size => 1, reset_command => 'select pg_sleep(600)', operation_timeout => '300ms' });
my $pid = $session->run("SELECT a FROM pgpool.query('reset', 'select pg_backend_pid()') AS t(a int)");
like($pid, qr/^\d+$/, 'reset: call succeeds') or diag($session->error);
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0'), 'reset: remote session ends at operation_timeout');
$session->run("SELECT pgpool.exec('reset', 'select 1')");
is($session->run("SELECT pgpool.exec('reset', 'select 1')") . $session->error, '1', 'reset: session during the reset is granted a connection');

# --- the next statement on a lease after an interrupt, and the next session
foreach my $server (sort keys %fakes)
{
	make_pool($local, $fakes{$server}, server => $server, remote_dbname => 'silent',
		options => { pool_size => 1, sslmode => 'disable', operation_timeout => '300ms' });
	my $lease = lease($session, $server);
	my $query = "SELECT * FROM pgpool.query($lease, 'select 1') $row";

	$session->fails("SET statement_timeout = '200ms'; $query", '57014', qr/statement timeout/, "$server: statement times out");
	$session->reset_statement_timeout;
	$other->start("SELECT pgpool.checkout('$server', '60 s')");
	$session->fails($query, '08006', qr/was lost/, "$server: lease is unusable after operation_timeout");
	$session->run("SELECT pgpool.checkin($lease)");
	like($other->finish(60), qr/^\d+$/, "$server: next session is granted a connection");
	$other->run('SELECT pgpool.checkin_all()');

	# a call, whose connection the worker has to abort
	$session->fails("SET statement_timeout = '200ms'; SELECT * FROM pgpool.query('$server', 'select 1') $row",
		'57014', qr/statement timeout/, "$server: call times out");
	$session->reset_statement_timeout;
	like(lease($other, $server), qr/^\d+$/, "$server: slot is free at operation_timeout");
	$other->run('SELECT pgpool.checkin_all()');
}

# --- a cancel request that does not end, for a statement that ends by itself
make_pool($local, $fake, server => 'late', remote_dbname => 'slow', options => { pool_size => 1, sslmode => 'disable', operation_timeout => '500ms' });
my $lease = lease($session, 'late');
is($session->run("SELECT pgpool.send($lease, 'select 1'), pgpool.cancel($lease)"), '|t', 'late: statement is cancelled');
is($session->run("SELECT * FROM pgpool.result($lease) $row") . $session->error, '1', 'late: statement ends before the cancel request');
$session->run("SELECT pgpool.checkin($lease)");
like(lease($other, 'late'), qr/^\d+$/, 'late: connection is not leased while the cancel request could hit the next statement');
$other->run('SELECT pgpool.checkin_all()');

# the lease is returned after the cancel request has timed out; it may still be executed
my $place = "SELECT local_port FROM pgpool.connections WHERE server = 'late'";
foreach my $next ('own statement', 'lease', 'call')
{
	$lease = lease($session, 'late');
	my $port = $local->safe_psql('postgres', $place);
	my $cancels = $local->safe_psql('postgres', "SELECT cancels FROM pgpool.stats WHERE server = 'late'");

	is($session->run("SELECT pgpool.send($lease, 'select 1'), pgpool.cancel($lease)"), '|t', "next $next: statement is cancelled");
	is($session->run("SELECT * FROM pgpool.result($lease) $row") . $session->error, '1', "next $next: statement ends before the cancel request");
	ok(wait_until($local, "SELECT cancels FROM pgpool.stats WHERE server = 'late'", $cancels + 1), "next $next: cancel request times out");
	$session->fails("SELECT * FROM pgpool.query($lease, 'select 1') $row", '08006', qr/A cancel request did not end within operation_timeout/, 'lease is unusable after a lost cancel request')
	  if $next eq 'own statement';
	$session->run("SELECT pgpool.checkin($lease)");
	is($other->run($next eq 'call' ? "SELECT * FROM pgpool.query('late', 'select 1') $row"
			: "SELECT a FROM pgpool.checkout('late') l, pgpool.query(l, 'select 1') $row") . $other->error, '1', "next $next: next session is granted a connection");
	isnt($local->safe_psql('postgres', $place), $port, "next $next: connection is another one");
	$other->run('SELECT pgpool.checkin_all()');
}

# --- an operation_timeout of years with a remote server that never answers: the slot is
# free ten seconds after its server is dropped. An attempt whose slot no session needs
# continues.
SKIP:
{
skip $CLOCKS_MISSING, 1 unless can_set_clocks();
my %forever = (cancelling => 'silent', resetting => 'first', asked => 'slow', connecting => 'login', revoked => 'slow');
foreach my $server (sort keys %forever)
{
	make_pool($local, $endless, server => $server, remote_dbname => $forever{$server},
		options => { pool_size => 1, sslmode => 'disable', operation_timeout => '3650d', connect_timeout => '3650d' });
}
$session->run("SELECT pgpool.send(pgpool.checkout('cancelling'), 'select 1')");
$lease = lease($session, 'resetting');
$session->run("SELECT pgpool.exec($lease, 'select 1'), pgpool.checkin($lease)");
$session->fails("SELECT pgpool.checkout('connecting', '100 ms')", '55P03', qr/timeout/, 'login is not answered');
foreach my $server (qw(asked revoked))
{
	$lease = lease($session, $server);
	is($session->run("SELECT pgpool.send($lease, 'select 1'), pgpool.cancel($lease)"), '|t', "$server: cancel request does not end");
	is($session->run("SELECT * FROM pgpool.result($lease) $row") . $session->error, '1', "$server: statement ends");
}

# a session that waits for the end of the cancel request receives the error of terminate
$session->start("SELECT * FROM pgpool.query($lease, 'select 1') $row");
ok(wait_until($local, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $session->pid, 'Extension'), 'revoked: next statement waits for the cancel request');
is($other->run("SELECT pgpool.terminate($lease)"), 't', 'revoked: lease is terminated');
my $ended = wait_until($local, sub { $session->done }, '1');
ok($ended, 'revoked: wait for the cancel request ends');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')') if !$ended;
$session->finish(30);
$session->failed('PX001', qr/was terminated/, 'revoked: error has the reason');
$session->quit;
my $states = q{SELECT string_agg(server || ' ' || state, ', ' ORDER BY server) FROM pgpool.connections WHERE server = ANY ('{asked,cancelling,connecting,resetting,revoked}')};
ok(wait_until($local, $states, 'asked cancelling, cancelling cancelling, connecting connecting, resetting resetting, revoked cancelling'), 'connections are kept by the long timeout');
$local->safe_psql('postgres', "DROP SERVER $_ CASCADE") foreach sort keys %forever;
let_time_pass($local, 11);
ok(wait_until($local, "SELECT count(*) FROM pgpool.pools WHERE server IS NULL OR server = ANY ('{asked,cancelling,connecting,resetting,revoked}')", '0'), 'connections are closed ten seconds after DROP SERVER');
$session = PgpxSession->new($local);

is($local->safe_psql('postgres', q{SELECT clock_timestamp() - state_since > '11 s' FROM pgpool.connections WHERE server = 'years'}), 't', 'years: attempt continues');
$local->safe_psql('postgres', 'DROP SERVER years CASCADE');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'years' OR server IS NULL}, '0'), 'years: attempt ends with DROP SERVER');
}

$_->quit foreach $session, $other;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

# operation_timeout: what the pool does on a connection for itself ends by then, be
# it a reset that hangs, an answer that does not come, or a cancel that is taken and
# never carried out.  All of it with a second, where the default would be ten.
use strict;
use warnings;

use PgpxFakeServer;
use PgpxTest;
use Test::More;
use Time::HiRes qw(time);

use constant SECONDS => 6;

my $remote = remote_node('remote');
my $local = local_node('local', conf => ['pgpool_ext.log_connections = on']);
my $row = 'AS t(a text)';

# What a lease is interrupted in never ends, and a cancel request is held for ever.
my $silent = sub {
	my ($fake) = @_;

	$fake->receive;
	sleep 3600;
};
my $slow = sub {
	my ($fake) = @_;

	while (my $sql = $fake->receive)
	{
		select undef, undef, undef, 0.3;
		$fake->send($sql =~ /^select/ ? $fake->answer('1') : (PgpxFakeServer::done('DISCARD ALL'), PgpxFakeServer::ready()));
	}
};
my $fake = PgpxFakeServer->new(silent => $silent, slow => $slow, cancel => sub { sleep 3600 });
my $deaf = PgpxFakeServer->new(silent => $silent);
my $endless = PgpxFakeServer->new(silent => $silent, slow => $slow,
	first => sub { my ($fake) = @_; $fake->receive; $fake->send($fake->answer('1')); $fake->receive; sleep 3600 },
	login => { login => sub { sleep 3600 } },
	cancel => sub { sleep 3600 });
my %fakes = (held => $fake, deaf => $deaf);
my ($session, $other) = map { PgpxSession->new($local) } 1 .. 2;

# One assertion: it comes in time, on the clock of the server.
sub in_time
{
	my ($took, $name) = @_;

	return ok($took > 0.8 && $took < SECONDS, sprintf '%s, after %.1f s', $name, $took);
}

# --- what nobody has use for may take years, if its options say so: it is looked at in the end
make_pool($local, $endless, server => 'years', remote_dbname => 'login', options => { pool_size => 1, sslmode => 'disable', connect_timeout => '3650d' });
$session->fails("SELECT pgpool.checkout('years', '100 ms')", '55P03', qr/timeout/, 'years: a login that is not answered');

# --- a reset that hangs
make_pool($local, $remote, server => 'reset', options => { pool_size => 1, reset_command => 'select pg_sleep(600)', operation_timeout => '1s' });
is($session->run("SELECT pgpool.exec('reset', 'select 1')"), '1', 'reset: a call');
my $start = log_clock($local);
my $pid = $local->safe_psql('postgres', 'SELECT remote_pid FROM pgpool.connections');
my @closed;
wait_until($local, sub { @closed = log_times($local, 'closed connection \d+ to server "reset"'); scalar @closed }, '1', 60);
in_time(($closed[0] // 'inf') - $start, 'reset: the worker closes the connection');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0'), 'reset: and it has ended at the remote');
$session->run("SELECT pgpool.exec('reset', 'select 1')");
my $took = seconds { is($session->run("SELECT pgpool.exec('reset', 'select 1')") . $session->error, '1', 'reset: whoever comes meanwhile is served') };
in_time($took, 'reset: with another connection');

# --- who goes on with a lease after an interrupt, and who comes next
foreach my $server (sort keys %fakes)
{
	make_pool($local, $fakes{$server}, server => $server, remote_dbname => 'silent',
		options => { pool_size => 1, sslmode => 'disable', operation_timeout => '1s' });
	my $lease = lease($session, $server);
	my $query = "SELECT * FROM pgpool.query($lease, 'select 1') $row";

	$session->fails("SET statement_timeout = '300ms'; $query", '57014', qr/statement timeout/, "$server: a statement is interrupted");
	$session->run('RESET statement_timeout');
	$other->start("SELECT pgpool.checkout('$server', '60 s')");
	$took = seconds { $session->fails($query, '08006', qr/was lost/, "$server: the lease is of no use any more") };
	in_time($took, "$server: which is said");
	$took = seconds {
		$session->run("SELECT pgpool.checkin($lease)");
		like($other->finish(60), qr/^\d+$/, "$server: and the next one has a connection");
	};
	cmp_ok($took, '<', SECONDS, sprintf '%s: soon after it was returned (%.1f s)', $server, $took);
	$other->run('SELECT pgpool.checkin_all()');

	# a call, whose connection is the worker's to end
	$session->fails("SET statement_timeout = '300ms'; SELECT * FROM pgpool.query('$server', 'select 1') $row",
		'57014', qr/statement timeout/, "$server: a call is interrupted");
	$session->run('RESET statement_timeout');
	$took = seconds { like(lease($other, $server), qr/^\d+$/, "$server: the place is taken, and comes free") };
	in_time($took, "$server: by then");
	$other->run('SELECT pgpool.checkin_all()');
}

# --- a cancel that is held, of a statement that has ended by itself
make_pool($local, $fake, server => 'late', remote_dbname => 'slow', options => { pool_size => 1, sslmode => 'disable', operation_timeout => '1s' });
my $lease = lease($session, 'late');
my $began = time();
is($session->run("SELECT pgpool.send($lease, 'select 1'), pgpool.cancel($lease)"), '|t', 'late: a statement is cancelled');
is($session->run("SELECT * FROM pgpool.result($lease) $row") . $session->error, '1', 'late: and ends before the cancel does');
$session->run("SELECT pgpool.checkin($lease)");
like(lease($other, 'late'), qr/^\d+$/, 'late: nobody has the connection as long as it could hit him');
in_time(time() - $began, 'late: until its time is up');
$other->run('SELECT pgpool.checkin_all()');

# .. and the lease is returned when the cancel's time is up: it may still come
my $place = "SELECT local_port FROM pgpool.connections WHERE server = 'late'";
foreach my $next ('own statement', 'lease', 'call')
{
	$lease = lease($session, 'late');
	my $port = $local->safe_psql('postgres', $place);
	my $cancels = $local->safe_psql('postgres', "SELECT cancels FROM pgpool.stats WHERE server = 'late'");

	is($session->run("SELECT pgpool.send($lease, 'select 1'), pgpool.cancel($lease)"), '|t', "next $next: a statement is cancelled");
	is($session->run("SELECT * FROM pgpool.result($lease) $row") . $session->error, '1', "next $next: and ends before the cancel does");
	ok(wait_until($local, "SELECT cancels FROM pgpool.stats WHERE server = 'late'", $cancels + 1), "next $next: whose time is up");
	$session->fails("SELECT * FROM pgpool.query($lease, 'select 1') $row", '08006', qr/A cancel request did not end within operation_timeout/, 'the lease is of no use any more')
	  if $next eq 'own statement';
	$session->run("SELECT pgpool.checkin($lease)");
	is($other->run($next eq 'call' ? "SELECT * FROM pgpool.query('late', 'select 1') $row"
			: "SELECT a FROM pgpool.checkout('late') l, pgpool.query(l, 'select 1') $row") . $other->error, '1', "next $next: who comes next is served");
	isnt($local->safe_psql('postgres', $place), $port, "next $next: on another connection");
	$other->run('SELECT pgpool.checkin_all()');
}

# --- an operation_timeout of years, and a remote that never answers and never goes: ten
# seconds after its server was dropped the place is free
my %forever = (cancelling => 'silent', resetting => 'first', asked => 'slow', connecting => 'login', revoked => 'slow');
foreach my $server (sort keys %forever)
{
	make_pool($local, $endless, server => $server, remote_dbname => $forever{$server},
		options => { pool_size => 1, sslmode => 'disable', operation_timeout => '3650d', connect_timeout => '3650d' });
}
$session->run("SELECT pgpool.send(pgpool.checkout('cancelling'), 'select 1')");
$session->run("SELECT pgpool.exec('resetting', 'select 1')");
$session->fails("SELECT pgpool.checkout('connecting', '100 ms')", '55P03', qr/timeout/, 'a login that is not answered');
foreach my $server (qw(asked revoked))
{
	$lease = lease($session, $server);
	is($session->run("SELECT pgpool.send($lease, 'select 1'), pgpool.cancel($lease)"), '|t', "$server: a cancel that is held");
	is($session->run("SELECT * FROM pgpool.result($lease) $row") . $session->error, '1', "$server: and the statement ends");
}

# .. and who waits for the end of that cancel is told when his lease is taken away
$session->start("SELECT * FROM pgpool.query($lease, 'select 1') $row");
ok(wait_until($local, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $session->pid, 'Extension'), 'revoked: the next statement waits for it');
is($other->run("SELECT pgpool.terminate($lease)"), 't', 'revoked: the lease is taken away');
my $ended = wait_until($local, sub { $session->done }, '1', 60);
ok($ended, 'revoked: which ends the wait');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')') if !$ended;
$session->finish(30);
$session->failed('PX001', qr/was terminated/, 'revoked: with that reason');
$session->quit;
my $states = q{SELECT string_agg(server || ' ' || state, ', ' ORDER BY server) FROM pgpool.connections WHERE server = ANY ('{asked,cancelling,connecting,resetting,revoked}')};
ok(wait_until($local, $states, 'asked cancelling, cancelling cancelling, connecting connecting, resetting resetting, revoked cancelling'), 'for ten years');
$local->safe_psql('postgres', "DROP SERVER $_ CASCADE") foreach sort keys %forever;
ok(wait_until($local, "SELECT count(*) FROM pgpool.pools WHERE server IS NULL OR server = ANY ('{asked,cancelling,connecting,resetting,revoked}')", '0', 60), 'or for some seconds once the servers are no more');
$session = PgpxSession->new($local);

# .. which is so long since now, and nobody is in want of its place
ok(wait_until($local, q{SELECT clock_timestamp() - state_since > '11 s' FROM pgpool.connections WHERE server = 'years'}), 'years: it goes on')
  or diag($local->safe_psql('postgres', q{SELECT state, state_since FROM pgpool.connections WHERE server = 'years'}));
$local->safe_psql('postgres', 'DROP SERVER years CASCADE');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'years' OR server IS NULL}, '0', 60), 'years: until its server is dropped');

$_->quit foreach $session, $other;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

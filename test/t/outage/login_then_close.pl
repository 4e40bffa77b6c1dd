# A remote server that accepts logins and then closes the connections: this counts as a
# failed attempt to connect, with the pauses of retry_min and retry_max, although no
# session waits.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the back-off does not depend on TLS' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local');
my $session = PgpxSession->new($local);

sub becomes
{
	my ($server, $columns, $expected, $name) = @_;

	return ok(
		wait_until($local, "SELECT $columns FROM pgpool.pools JOIN pgpool.stats USING (pool_id, server) WHERE server = '$server'", $expected, 60),
		"$server: $name");
}

$remote->safe_psql('postgres', q{ALTER ROLE remote_app SET idle_session_timeout = '1ms'});

# the first pause does not end during the test
make_pool($local, $remote, server => 'once', options => { pool_size => 20, min_size => 20, retry_min => '1h', retry_max => '1h' });
is($session->run("SELECT pgpool.try_checkout('once') IS NULL"), 't', 'once: pool has no connection yet');
becomes('once', q{total, next_try_at > now() + '30 min'}, '0|t', 'worker pauses after connections have been closed');
becomes('once', 'connects <= 20, connects_failed > 0, connects_failed <= connects, closed_broken = connects', 't|t|t|t', 'closed connections count as failed attempts');
becomes('once', 'last_error', 'The remote server has accepted the login and then closed the connection.', 'last_error has the reason');
is_logged($local, 0, qr/LOG:  pgpool_ext lost an unused connection to server "once" of database "postgres" for user "postgres"/, 'closed connections are logged');

# the attempts continue after pauses, and the pool recovers
make_pool($local, $remote, server => 'twice', options => { pool_size => 1, min_size => 1, retry_min => '500ms', retry_max => '500ms' });
is($session->run("SELECT pgpool.try_checkout('twice') IS NULL"), 't', 'twice: pool has no connection yet');
becomes('twice', 'connects_failed > 1', 't', 'attempts continue');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app RESET idle_session_timeout');
becomes('twice', 'idle, next_try_at IS NULL', '1|t', 'pool recovers');
is($session->run("SELECT pgpool.exec('twice', 'select 1')") . $session->error, '1', 'twice: pool works');

# a single connection that is lost before its first lease delays a call, which succeeds
make_pool($local, $remote, server => 'idle', options => { pool_size => 1, min_size => 1 });
is($session->run("SELECT pgpool.prewarm('idle', 1, '60 s')"), '1', 'idle: connection is opened');
my $pid = $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 'idle'});
terminate($remote, $pid);
is($session->run("SELECT pgpool.exec('idle', 'select 1')") . $session->error, '1', 'idle: call waits for another connection');
is($local->safe_psql('postgres', q{SELECT unavailable + failed FROM pgpool.stats WHERE server = 'idle'}), '0', 'idle: no call failed');

$session->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

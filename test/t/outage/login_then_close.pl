# A remote server that accepts logins and then closes the connections: this counts as a
# failed attempt to connect, with the pauses of retry_min and retry_max, although no
# session waits.
use strict;
use warnings;

use PgpxClock;
use PgpxTest qw(:DEFAULT becomes pool);
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the back-off does not depend on TLS' if over_tls();
plan skip_all => $CLOCKS_MISSING unless can_set_clocks();

my $remote = remote_node('remote');
my $local = local_node('local', start => 0);
with_clock($local, sub { $local->start });
my $session = PgpxSession->new($local);

# The same; the pauses between attempts pass meanwhile.
sub passes
{
	my ($server, $columns, $expected, $name) = @_;

	return ok( wait_until($local, sub {
				let_time_pass($local, 5) if pool($server, 'next_try_at > clock_timestamp()') eq 't';
				return pool($server, $columns);
			}, $expected), "$server: $name");
}

$remote->safe_psql('postgres', q{ALTER ROLE remote_app SET idle_session_timeout = '1ms'});

# the first pause does not end during the test
make_pool($local, $remote, server => 'once', options => { pool_size => 20, min_size => 20, retry_min => '1h', retry_max => '1h' });
$session->run("SELECT pgpool.prewarm('once', 20, '1 ms')");
becomes('once', q{total, next_try_at > now() + '30 min'}, '0|t', 'worker pauses after connections have been closed');
becomes('once', 'connects <= 20, connects_failed > 0, connects_failed <= connects, closed_broken = connects', 't|t|t|t', 'closed connections count as failed attempts');
becomes('once', 'last_error', 'The remote server closed the connection before it was used.', 'last_error has the reason');
is_logged($local, 0, qr/LOG:  pgpool_ext lost an unused connection to server "once" of database "postgres" for user "postgres"/, 'closed connections are logged');

# the attempts continue after pauses, and the pool recovers
make_pool($local, $remote, server => 'twice', options => { pool_size => 1, min_size => 1, retry_min => '500ms', retry_max => '500ms' });
$session->run("SELECT pgpool.prewarm('twice', 1, '1 ms')");
passes('twice', 'connects_failed > 1', 't', 'attempts continue');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app RESET idle_session_timeout');
passes('twice', 'idle, next_try_at IS NULL', '1|t', 'pool recovers');
is($session->run("SELECT pgpool.exec('twice', 'select 1')") . $session->error, '1', 'twice: pool works');

# a single connection that is lost before its first lease delays a call, which succeeds
make_pool($local, $remote, server => 'idle', options => { pool_size => 1, min_size => 1 });
is($session->run("SELECT pgpool.prewarm('idle', 1, '60 s')"), '1', 'idle: connection is opened');
my $pid = $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 'idle'});
terminate($remote, $pid);
is($session->run("SELECT pgpool.exec('idle', 'select 1')") . $session->error, '1', 'idle: call waits for another connection');
is($local->safe_psql('postgres', q{SELECT unavailable + failed FROM pgpool.stats WHERE server = 'idle'}), '0', 'idle: no call failed');

# the pauses grow, although another connection is open or in use: the third one is longer
# than 1500 ms
make_pool($local, $remote, server => 'kept', options => { pool_size => 2, min_size => 2, retry_min => '500ms', retry_max => '1h' });
is($session->run("SELECT pgpool.prewarm('kept', 2, '60 s')"), '2', 'kept: connections are opened');
is($session->run("SELECT pgpool.exec('kept', 'select 1')"), '1', 'kept: one connection is in use');

sub pauses_grow
{
	my ($in_use, $name) = @_;
	my $failed = $local->safe_psql('postgres', q{SELECT connects_failed FROM pgpool.stats WHERE server = 'kept'});

	terminate($remote, $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 'kept' AND last_used = opened_at}));
	foreach (1 .. 3)
	{
		is($session->run("SELECT pgpool.exec('kept', 'select 1')"), '1', 'kept: the older connection works') if $in_use;
		passes('kept', 'connects_failed >= ' . ++$failed, 't', "failure $_");
	}
	becomes('kept', q{next_try_at - last_error_at > '1 s'}, 't', $name);
}

$remote->safe_psql('postgres', q{ALTER ROLE remote_app SET idle_session_timeout = '1ms'});
pauses_grow(0, 'pauses grow while an older connection is open');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app RESET idle_session_timeout');
passes('kept', 'idle, next_try_at IS NULL', '2|t', 'pool recovers');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app NOLOGIN');
pauses_grow(1, 'pauses grow while an older connection is used');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app LOGIN');
passes('kept', 'idle, next_try_at IS NULL', '2|t', 'pool recovers again');

# a connection that was open at the last loss and is lost after its pause begins another
# pause: else each loss would be followed by an attempt at once
make_pool($local, $remote, server => 'late', options => { pool_size => 2, retry_min => '10s' });
is($session->run("SELECT pgpool.prewarm('late', 2, '60 s')"), '2', 'late: connections are opened');
my $paused = 'next_try_at > clock_timestamp()';
foreach (split /\n/, $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 'late'}))
{
	terminate($remote, $_);
	becomes('late', $paused, 't', 'loss begins a pause');
	let_time_pass($local, 60);
	becomes('late', $paused, 'f', 'pause ends');
}

# the loss of an unused connection does not hide the message about the outage
$local->safe_psql('postgres', q{SELECT pgpool.drain('idle', '60 s')});
$local->safe_psql('postgres', q{SELECT pgpool.resume('idle')});
is($session->run("SELECT pgpool.prewarm('idle', 1, '60 s')"), '1', 'idle: another connection is opened');
my $from = -s $local->logfile;
$remote->stop('immediate');
becomes('idle', 'unavailable_since IS NOT NULL', 't', 'remote server is down');
ok( wait_until($local, sub {
			let_time_pass($local, 5) if pool('idle', 'next_try_at > clock_timestamp()') eq 't';
			return slurp_file($local->logfile, $from) =~ /LOG:  pgpool_ext cannot connect to server "idle"/ ? 1 : 0;
		}, 1), 'outage is logged');
$remote->start;

$session->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

# The worker ends while leases, calls, resets and start commands run at a remote that
# does not look whether its client is still there: they are cancelled, so that the
# remote never has more sessions than pool_size, and a shutdown leaves nothing.
use strict;
use warnings;

use PgpxFakeServer qw(ready done failure);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# A remote whose statement ends at the second request; the pool's first is lost.  Requests
# are counted in the journal: of two signals a process that was late would see one.
my $journal = PostgreSQL::Test::Utils::tempdir . '/journal';
my $fake = PgpxFakeServer->new(
	forgetful => sub {
		my ($self) = @_;

		while ($self->receive =~ /sleep/)
		{
			append_to_file($journal, "begin\n");
			select undef, undef, undef, 0.02 until (() = slurp_file($journal) =~ /request/g) > 1;
			append_to_file($journal, "end\n");
			$self->send(failure(S => 'ERROR', V => 'ERROR', C => '57014', M => 'canceled'), ready);
		}
	},
	endless => sub {
		$_[0]->receive;
		append_to_file($journal, "endless\n");
		sleep 1 while 1;
	},
	cancel => sub { append_to_file($journal, "request\n") });

my $remote = remote_node('remote');
my $local = local_node('local');
my $row = 'AS t(a int)';

make_pool($local, $remote, server => 'two', options => { pool_size => 2 });
make_pool($local, $remote, server => 'idle', options => { pool_size => 2 });
make_pool($local, $remote, server => 'starting',
	options => { pool_size => 1, start_commands => "select pg_sleep(100), 'starting'", connect_timeout => '60s' });
make_pool($local, $remote, server => 'resetting',
	options => { pool_size => 1, reset_command => "select pg_sleep(100), 'resetting'", operation_timeout => '60s' });
make_pool($local, $fake, server => $_, remote_dbname => $_, options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode() })
  foreach 'forgetful', 'endless';

is($remote->safe_psql('postgres', 'SHOW client_connection_check_interval'), '0', 'the remote does not look by itself');

# the remote would refuse a session too many, and say so
$remote->safe_psql('postgres', "CREATE ROLE two LOGIN PASSWORD 'two' CONNECTION LIMIT 2");
$local->safe_psql('postgres', "ALTER USER MAPPING FOR CURRENT_USER SERVER two OPTIONS (SET user 'two', SET password 'two')");

my $running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ~ 'pg_sleep' AND pid <> pg_backend_pid()";

my @sessions;

# Let many things run: two leases in a query, one idle lease, start commands, a reset.
sub busy
{
	my ($what) = @_;

	@sessions = map { PgpxSession->new($local) } 1 .. 6;
	$sessions[$_]->start('SELECT * FROM pgpool.query(' . lease($sessions[$_], 'two') . ", 'select 1 from pg_sleep(100)') $row")
	  foreach 0, 1;
	lease($sessions[2], 'idle');
	$sessions[3]->start("SELECT pgpool.checkout('starting', '60s')");
	$sessions[4]->run("SELECT pgpool.exec('resetting', 'select 1')");
	$sessions[5]->start("SELECT pgpool.exec('two', 'select 1')");
	ok(wait_until($remote, $running, '4'), "$what: leases, start commands and a reset run");
	ok(wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE server = 'two'", '1'), "$what: and one waits");
	return;
}

sub nothing_runs
{
	my ($what) = @_;

	ok(wait_until($remote, $running, '0', 10), "$what: nothing runs any more");
	return;
}

# --- the worker is terminated -------------------------------------------------

foreach my $round (1 .. 3)
{
	busy("round $round");
	ok(terminate($local, worker_pid($local)), 'the worker is terminated');
	foreach my $session (@sessions[ 0, 1 ])
	{
		$session->finish(10);
		$session->failed('08006', qr/worker was restarted/, 'the lease fails and says why, not with the cancel');
		$session->run('SELECT pgpool.checkin_all()');
	}
	is($sessions[5]->finish(30) . $sessions[5]->error, '1', 'the one who waited is served by the next worker');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $sessions[3]->pid . ')');
	$sessions[3]->finish(10);
	$sessions[2]->run('SELECT pgpool.checkin_all()');

	# what the next worker has begun for the one who waited for start commands
	ok(terminate($local, worker_pid($local)), 'and again');
	nothing_runs("round $round");
	$_->quit foreach @sessions;
}
unlike(slurp_file($remote->logfile), qr/too many connections/, 'the remote never had a session too many');
cmp_ok($local->safe_psql('postgres', 'SELECT sum(cancels) FROM pgpool.stats'), '>=', 12, 'the cancels are counted');

# one that comes too early is lost
my $session = PgpxSession->new($local);
$session->start('SELECT pgpool.exec(' . lease($session, 'forgetful') . ", 'select pg_sleep(100)')");
ok(wait_until($local, sub { -e $journal ? slurp_file($journal) : '' }, "begin\n"), 'a statement begins');
my $delay = delay_begin();
ok(terminate($local, worker_pid($local)), 'the worker is terminated');
ok(wait_until($local, sub { slurp_file($journal) =~ /^end$/m ? 1 : 0 }, 1, 10), 'a cancel that is lost is sent again');

# one more comes before the end if that is late
my $more = delay_end($delay, 1) < 0.03 ? 1 : 2;
like(slurp_file($journal), qr/^begin\nrequest\nrequest\n(request\n){0,$more}end\n/, '.. until the statement has ended');
$session->finish(10);
$session->failed('08006', qr/worker was restarted/, 'the lease fails');
$session->quit;
stats_add_up($local);
check_invariants($local);

# a reset that a session has sent, and of which the worker does not know yet: it has stood still
foreach my $round (1 .. 3)
{
	my $reset = PgpxSession->new($local);
	my $lease = lease($reset, 'resetting');
	my $worker = worker_pid($local);

	$reset->run("SELECT pgpool.exec($lease, 'select 1')");
	kill 'STOP', $worker;
	is($reset->run('SELECT pgpool.checkin_all()'), '1', "reset $round: a connection is returned");
	kill $_, $worker foreach 'TERM', 'CONT';
	ok(wait_until($local, sub { my $pid = worker_pid($local); $pid ne '' && $pid ne $worker ? 1 : 0 }, 1), 'the worker ends');
	nothing_runs("reset $round");
	$reset->quit;
}

# one that does not end, and does not go: the worker waits for nobody without end
$session = PgpxSession->new($local);
$session->start('SELECT pgpool.exec(' . lease($session, 'endless') . ", 'select pg_sleep(100)')");
ok(wait_until($local, sub { slurp_file($journal) =~ /endless/ ? 1 : 0 }, 1), 'a statement begins that does not end');
my $took = seconds { ok(terminate($local, worker_pid($local)), 'the worker is terminated') };
cmp_ok($took, '<', 10, 'and ends all the same');
$session->finish(10);
$session->failed('08006', qr/worker was restarted/, 'the lease fails');
$session->quit;

# --- the server is shut down ----------------------------------------------------

busy('fast shutdown');
my @waiters = map { PgpxSession->new($local) } 1 .. 40;
$_->start("SELECT pgpool.checkout('two', '10 min')") foreach @waiters;
ok(wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE server = 'two'", '41'), 'and many wait');
$took = seconds { $local->stop('fast') };
cmp_ok($took, '<', 10, 'a fast shutdown takes seconds');
note sprintf 'it took %.2f s', $took;
nothing_runs('fast shutdown');
ok(wait_until($remote, sub { remote_sessions($remote) }, '0', 10), 'no session is left at the remote');
$_->quit foreach @sessions, @waiters;

$local->start;
is($local->safe_psql('postgres', "SELECT pgpool.exec('two', 'select 1')"), '1', 'the pool works after a restart');
unlike(slurp_file($local->logfile), qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');

check_invariants($local);
leak_check($local, $remote);
done_testing();

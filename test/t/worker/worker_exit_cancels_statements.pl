# The worker ends while leases, calls, resets and start commands run on a remote server
# that does not check its client connections. They are cancelled, so that none of them runs
# on, and a shutdown leaves no session.
use strict;
use warnings;

use PgpxFailing 'libpq_cancels';
use PgpxFakeServer qw(ready done failure);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'time';

# A remote server that ignores cancel requests for 240 ms after the first one. Its statement
# ends at the next request. Requests are counted in the journal, because two signals may be
# merged into one.
my $journal = PostgreSQL::Test::Utils::tempdir . '/journal';
my $fake = PgpxFakeServer->new(
	forgetful => sub {
		my ($self) = @_;

		while ($self->receive =~ /sleep/)
		{
			my ($first, $seen) = (0, 0);

			append_to_file($journal, "begin\n");
			while (1)
			{
				my $requests = () = slurp_file($journal) =~ /request/g;

				last if $seen && $requests > $seen && time() - $first > 0.24;
				$first = time() if $requests && !$seen;
				$seen = $requests;
				select undef, undef, undef, 0.02;
			}
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

is($remote->safe_psql('postgres', 'SHOW client_connection_check_interval'), '0', 'remote server does not check its client connections');

my $running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ~ 'pg_sleep' AND pid <> pg_backend_pid()";

my @sessions;

# Start two queries on leases, one idle lease, start commands, a reset, and one waiter.
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
	ok(wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE server = 'two'", '1'), "$what: one session waits");
	return;
}

sub nothing_runs
{
	my ($what) = @_;

	ok(wait_until($remote, $running, '0', 10), "$what: nothing runs on the remote server");
	return;
}

# --- the worker is terminated -------------------------------------------------

foreach my $round (1 .. 3)
{
	busy("round $round");
	ok(terminate($local, worker_pid($local)), 'worker is terminated');
	foreach my $session (@sessions[ 0, 1 ])
	{
		$session->finish(10);
		$session->failed('08006', qr/worker was restarted/, 'lease reports the restart of the worker instead of the cancel');
		$session->run('SELECT pgpool.checkin_all()');
	}
	is($sessions[5]->finish(30) . $sessions[5]->error, '1', 'waiter is granted a connection by the next worker');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $sessions[3]->pid . ')');
	$sessions[3]->finish(10);
	$sessions[2]->run('SELECT pgpool.checkin_all()');

	# the next worker has opened a connection for the session that waits for start
	# commands
	ok(terminate($local, worker_pid($local)), 'worker is terminated again');
	nothing_runs("round $round");
	$_->quit foreach @sessions;
}
cmp_ok($local->safe_psql('postgres', 'SELECT sum(cancels) FROM pgpool.stats'), '>=', 12, 'cancels are counted');

# requests are counted although the remote server does not answer them
my $postmaster;

END
{
	kill 'CONT', $postmaster if defined $postmaster;
}

SKIP:
{
	skip 'request over TLS needs an answer before it can be sent', 6 if over_tls() && libpq_cancels();
	my $count = q{SELECT cancels FROM pgpool.stats WHERE server = 'two' AND local_user = current_user};
	my $before = $local->safe_psql('postgres', $count);

	# libpq 17 and later would negotiate TLS, and send no request before the answer
	if (libpq_cancels())
	{
		$local->safe_psql('postgres', "ALTER SERVER $_ OPTIONS (ADD sslmode 'disable')") foreach qw(two starting resetting);
	}
	busy('remote server is stopped');
	($postmaster) = split /\n/, slurp_file($remote->data_dir . '/postmaster.pid');
	kill 'STOP', $postmaster;
	ok(terminate($local, worker_pid($local)), 'worker is terminated while the remote server is stopped');
	cmp_ok($local->safe_psql('postgres', $count), '>=', $before + 2, 'requests without an answer are counted');
	kill 'CONT', $postmaster;
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $sessions[3]->pid . ')');
	$sessions[3]->finish(10);
	$_->quit foreach @sessions;
	ok(terminate($local, worker_pid($local)), 'worker is terminated once more');
	nothing_runs('remote server continues');
}

# A cancel request that arrives too early is ignored, so the worker repeats the request for a
# second. If the machine stalls for the rest of that second, no further request is sent, and
# requests of the test end the statement.
my $session = PgpxSession->new($local);
$session->start('SELECT pgpool.exec(' . lease($session, 'forgetful') . ", 'select pg_sleep(100)')");
ok(wait_until($local, sub { -e $journal ? slurp_file($journal) : '' }, "begin\n"), 'statement begins');
ok(terminate($local, worker_pid($local)), 'worker is terminated while the statement begins');
like(slurp_file($journal), qr/^begin\nrequest\n/, 'cancel request is sent');
ok(wait_until($local, sub { append_to_file($journal, "request\n"); slurp_file($journal) =~ /^end$/m ? 1 : 0 }, 1), 'statement has ended');
$session->finish(10);
$session->failed('08006', qr/worker was restarted/, 'lease of the forgetful server fails');
$session->quit;
stats_add_up($local);
check_invariants($local);

# a reset that a session has sent while the worker was stopped, so that the worker has
# not noticed it
foreach my $round (1 .. 3)
{
	my $reset = PgpxSession->new($local);
	my $lease = lease($reset, 'resetting');
	my $worker = worker_pid($local);

	$reset->run("SELECT pgpool.exec($lease, 'select 1')");
	kill 'STOP', $worker;
	is($reset->run('SELECT pgpool.checkin_all()'), '1', "reset $round: connection is returned");
	kill $_, $worker foreach 'TERM', 'CONT';
	ok(wait_until($local, sub { my $pid = worker_pid($local); $pid ne '' && $pid ne $worker ? 1 : 0 }, 1), "reset $round: worker exits");
	nothing_runs("reset $round");
	$reset->quit;
}

# a statement that never ends: the wait of the worker is bounded
$session = PgpxSession->new($local);
$session->start('SELECT pgpool.exec(' . lease($session, 'endless') . ", 'select pg_sleep(100)')");
ok(wait_until($local, sub { slurp_file($journal) =~ /endless/ ? 1 : 0 }, 1), 'endless statement begins');
ok(terminate($local, worker_pid($local)), 'worker exits in spite of the endless statement');
$session->finish(10);
$session->failed('08006', qr/worker was restarted/, 'lease of the endless statement fails');
$session->quit;

# --- the server is shut down ----------------------------------------------------

# connect before the first session waits, because its checkout_timeout runs from then on
my @waiters = map { PgpxSession->new($local) } 1 .. 40;
busy('fast shutdown');
$_->start("SELECT pgpool.checkout('two', '10 min')") foreach @waiters;
ok(wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE server = 'two'", '41'), 'many sessions wait');
$local->stop('fast');
nothing_runs('fast shutdown');
ok(wait_until($remote, sub { remote_sessions($remote) }, '0', 10), 'no session is left on the remote server');
$_->quit foreach @sessions, @waiters;

$local->start;
is($local->safe_psql('postgres', "SELECT pgpool.exec('two', 'select 1')"), '1', 'pool works after a restart');
unlike(slurp_file($local->logfile), qr/PANIC|TRAP|terminated by signal/, 'no process crashed');

check_invariants($local);
leak_check($local, $remote);
done_testing();

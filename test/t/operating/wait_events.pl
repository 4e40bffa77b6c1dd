# Wait events in pg_stat_activity: own names from PostgreSQL 17 on, "Extension" before,
# and also when other libraries have used up all names.
use strict;
use warnings;

use IO::Socket::INET;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# never answers; the kernel accepts the connections
my $silent = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1') or die "no listener: $!";
my $silent_port = $silent->sockport;
my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'one', options => { pool_size => 1 });
make_pool($local, $remote, server => 'two', options => { pool_size => 2, operation_timeout => '300s' });
make_pool($local, $remote, server => 'slow',
	options => { pool_size => 1, reset_command => 'select pg_sleep(300)', operation_timeout => '300s' });
$local->safe_psql('postgres', <<"EOT");
CREATE SERVER hole FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$silent_port',
	dbname 'd', connect_timeout '300s');
CREATE SERVER unknown FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$silent_port',
	dbname 'd', connect_timeout '300s');
CREATE USER MAPPING FOR CURRENT_USER SERVER hole OPTIONS (user 'u', password 'p');
CREATE USER MAPPING FOR CURRENT_USER SERVER unknown OPTIONS (user 'u', password 'p');
SELECT pgpool.lock_setup('two');
EOT

my $named = $local->safe_psql('postgres', 'SHOW server_version_num') >= 170000;
my $holder = PgpxSession->new($local);
my $session = PgpxSession->new($local);

sub waits
{
	my ($pid, $name) = @_;
	my $shown = 'Extension/' . ($named ? $name : 'Extension');

	ok(wait_until($local, "SELECT wait_event_type || '/' || wait_event FROM pg_stat_activity WHERE pid = $pid", $shown, 30),
		"wait event $name is shown as $shown");
	return;
}

# Assert that SQL waits with this event; a cancel, or $end, ends the wait.
sub shows
{
	my ($name, $sql, $end) = @_;

	$session->start($sql);
	waits($session->pid, $name);
	$end ? $end->() : $local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	return $session->finish(30);
}

# the only connection is leased
my $lease = lease($holder, 'one');
shows('PgpoolCheckout', q{SELECT pgpool.checkout('one', '300 s')});
shows('PgpoolDrain', q{SELECT pgpool.drain('one', '300 s')});
$local->safe_psql('postgres', q{SELECT pgpool.resume('one')});
$holder->run("SELECT pgpool.checkin($lease)");

shows('PgpoolQuery', q{SELECT pgpool.exec('one', 'select pg_sleep(300)')});
shows('PgpoolFanout', q{SELECT * FROM pgpool.fanout('{one,two}', 'select 1 from pg_sleep(300)') AS t(pool text, a int)});
shows('PgpoolPrewarm', q{SELECT pgpool.prewarm('hole', 1, '300 s')});

$lease = lease($session, 'two');
$session->run("SELECT pgpool.send($lease, 'select pg_sleep(300)')");
shows('PgpoolAnswer', "SELECT pgpool.wait($lease, '300 s')");
$session->run("SELECT pgpool.discard($lease)");
$lease = lease($session, 'two');
shows('PgpoolNotification', "SELECT * FROM pgpool.wait_notifications($lease, '300 s')");
$session->run("SELECT pgpool.checkin($lease)");

# The reset that was sent at checkin is slow. Both calls are in one message, so that the
# worker does not read the answer to the reset.
$lease = lease($session, 'slow');
$session->run("SELECT pgpool.exec($lease, 'select 1')");
shows('PgpoolReset', "SELECT pgpool.checkin($lease)\\; SELECT pgpool.checkout('slow', '300 s')");

my $token = $holder->run(q{SELECT pgpool.lock('two', 'mine')});
shows('PgpoolLock', q{SELECT pgpool.lock('two', 'mine', '300 s')});

# an idle worker
my $worker = worker_pid($local);
waits($worker, 'PgpoolWorkerMain');
$lease = lease($holder, 'one');
$holder->run("SELECT pgpool.exec($lease, 'select 1'); SELECT pgpool.checkin($lease)");
ok(wait_until($local, q{SELECT state FROM pgpool.connections WHERE server = 'one'}, 'idle'), 'connection is idle');

# a new session has not cached the socket of the connection
$session->quit;
$session = PgpxSession->new($local);
kill 'STOP', $worker;
shows('PgpoolSocket', q{SELECT pgpool.checkout('one', '300 s')});
$holder->start("SELECT pgpool.unlock('two', 'mine', $token)");
waits($holder->pid, 'PgpoolUnlock');
kill 'CONT', $worker;
is($holder->finish(30), 't', 'lock is released when the worker continues');

# messages to the worker until its control socket is full
kill 'STOP', $worker;
$session->run(<<'EOT');
DO $$ BEGIN
	FOR i IN 1 .. 1000 LOOP
		BEGIN PERFORM pgpool.checkout('unknown', '1 ms'); EXCEPTION WHEN OTHERS THEN END;
	END LOOP;
END $$
EOT
shows('PgpoolControl', q{SELECT pgpool.checkout('unknown', '300 s')});
kill 'CONT', $worker;

$_->quit foreach $holder, $session;
check_invariants($local);
leak_check($local, $remote);

# --- all names are used up: the server has 127 of them for all libraries
SKIP:
{
	skip 'wait events have no names before PostgreSQL 17', 1 unless $named;
	my $headers = $ENV{PGPX_INCLUDE_SERVER} // `pg_config --includedir-server`;
	chomp $headers;
	my $library = PostgreSQL::Test::Utils::tempdir . '/wait_events.so';
	my $source = __FILE__ =~ s{t/[^/]*$}{perl/wait_events.c}r;

	skip 'no compiler', 1
	  if system("cc -shared -fPIC -I $headers -o $library $source") != 0;
	chmod 0755, $library;
	my $full = local_node('full', preload => 0, conf => ["shared_preload_libraries = '$library, pgpool_ext'"]);
	like(slurp_file($full->logfile), qr/12\d names of wait events are registered/, 'another library has used up all names');
	make_pool($full, $remote, server => 'one', options => { pool_size => 1 });
	my $waiter = PgpxSession->new($full);
	is($waiter->run(q{SELECT pgpool.exec('one', 'select 1')}) . $waiter->error, '1', 'no names: pool works');
	$waiter->start(q{SELECT pgpool.exec('one', 'select pg_sleep(300)')});
	foreach my $pid (worker_pid($full), $waiter->pid)
	{
		ok( wait_until($full, "SELECT wait_event_type || '/' || wait_event FROM pg_stat_activity WHERE pid = $pid", 'Extension/Extension', 30),
			'no names: wait is shown as "Extension"');
	}
	$full->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
	$waiter->finish(30);
	is($waiter->sqlstate, '57014', 'no names: wait can be cancelled');
	is($waiter->run(q{SELECT pgpool.exec('one', 'select 1')}) . $waiter->error, '1', 'no names: next call succeeds');
	is($full->safe_psql('postgres', 'SELECT restarts FROM pgpool.workers'), '0', 'no names: worker was not restarted');
	$waiter->quit;
	check_invariants($full, 'no names: invariants hold');
	leak_check($full, $remote);
}
done_testing();

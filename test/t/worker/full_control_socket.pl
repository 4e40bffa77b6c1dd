# The worker does not read its control socket: sessions request sockets until it is
# full. Each call ends in time, can be cancelled, and returns a granted connection. When
# the worker reads again everything works, and no descriptor is left on either side.
use strict;
use warnings;

use PgpxTest;
use Test::More;

plan skip_all => 'over TLS a stopped worker relays nothing' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'two', options => { pool_size => 2 });

my ($owner, $session) = map { PgpxSession->new($local) } 1 .. 2;
my @leases = map { lease($owner, 'two') } 1 .. 2;
$owner->run('SELECT pgpool.checkin_all()');
wait_until($local, q{SELECT idle FROM pgpool.pools WHERE server = 'two'}, '2') or die 'not idle';
$session->run(<<'EOT');
CREATE FUNCTION try_checkouts(times int) RETURNS TABLE (outcome text, n bigint) LANGUAGE plpgsql AS $f$
BEGIN
	CREATE TEMP TABLE outcomes (outcome text);
	FOR i IN 1 .. times LOOP
		BEGIN
			IF i % 2 = 0 THEN
				PERFORM pgpool.checkout('two', '1 ms');
				INSERT INTO outcomes VALUES ('a lease');
			ELSE
				INSERT INTO outcomes VALUES (coalesce(pgpool.try_checkout('two')::text, 'none'));
			END IF;
		EXCEPTION WHEN OTHERS THEN
			INSERT INTO outcomes VALUES (SQLSTATE);
		END;
	END LOOP;
	RETURN QUERY SELECT o.outcome, count(*) FROM outcomes o GROUP BY 1 ORDER BY 1;
	DROP TABLE outcomes;
END $f$;
EOT
# sockets and epoll sets; other files are those of PostgreSQL
my $descriptors = sub { return scalar grep { (readlink // '') =~ /^(?:socket:|anon_inode)/ } glob "/proc/$_[0]/fd/*"; };
my $mine = $descriptors->($session->pid);
my $worker = worker_pid($local);
my $its = $descriptors->($worker);

kill 'STOP', $worker;
# Linux accepts about 280 messages by default
is($session->run('SELECT * FROM try_checkouts(500)', 300) . $session->error, "55P03|250\nnone|250", 'each call times out without an answer');
is($local->safe_psql('postgres', q{SELECT leased, idle, waiters FROM pgpool.pools WHERE server = 'two'}), '0|2|0', 'granted connections are returned');
check_invariants($local);

# the socket is full now, and a session waits for room
$session->start("SELECT pgpool.checkout('two', '10 min')");
ok(wait_until($local, 'SELECT pid FROM pgpool.leases', $session->pid), 'session waits');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
$session->finish(60);
$session->failed('57014', qr/canceling statement/, 'session can be cancelled');
$session->start("SELECT a FROM pgpool.query('two', 'select 7') AS t(a int)");
ok(wait_until($local, 'SELECT pid FROM pgpool.leases', $session->pid), 'session waits again with another call');
kill 'CONT', $worker;
is($session->finish(60) . $session->error, '7', 'call succeeds when the worker reads again');
is(worker_pid($local), $worker, 'worker was not restarted');
ok(wait_until($local, 'SELECT sum(descriptors) - ' . descriptors_wanted() . ' FROM pgpool.workers', '0'), 'worker has no superfluous connection descriptor');
cmp_ok($descriptors->($worker), '<=', $its, 'worker has no descriptor of a request');
cmp_ok($descriptors->($session->pid), '<=', $mine + 6, 'session has no superfluous descriptor');

$_->quit foreach $owner, $session;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

# A new worker asks those who wait how to connect.  One that cannot answer, since it
# is stopped, is asked once: the worker does not try again and again.
use strict;
use warnings;

use PgpxTest;
use Test::More;
use Time::HiRes qw(usleep);

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'one', options => { pool_size => 1 });

my ($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;
lease($holder, 'one');
$waiter->start("SELECT pgpool.checkout('one', '60 s')");
wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';

kill 'STOP', $waiter->pid;
my $worker = worker_pid($local);
$local->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
ok( wait_until($local,
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker' AND pid <> $worker", '1'),
	'there is a new worker');
ok(wait_until($local, 'SELECT connects_requested > 1 FROM pgpool.stats'), 'which is asked for a connection, and does not know how');
usleep(500_000);
cmp_ok($local->safe_psql('postgres', 'SELECT connects_requested FROM pgpool.stats'), '<', 10, 'it is not asked again and again');

kill 'CONT', $waiter->pid;
like($waiter->finish, qr/^\d+$/, 'told, it serves the waiter');
$waiter->run('SELECT pgpool.checkin_all()');
is($local->safe_psql('postgres', "SELECT a FROM pgpool.query('one', 'select 1') AS t(a int)"), '1', 'the pool works');

# The options change meanwhile.  Who has not seen those has nothing sent under them.
$remote->safe_psql('remote_db', 'CREATE TABLE sent (n int); GRANT ALL ON sent TO remote_app');
make_pool($local, $remote, server => 'two', options => { pool_size => 1, retry_min => '10ms' });
my $first = PgpxSession->new($local);
lease($holder, 'two');
my $n = 0;
foreach my $session ($first, $waiter)
{
	$session->start('SELECT pgpool.exec($$two$$, $$INSERT INTO sent VALUES (' . ++$n . ')$$)');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'two'}, $n), "$n with a statement");
}
kill 'STOP', $waiter->pid;
$local->safe_psql('postgres', q{ALTER SERVER two OPTIONS (ADD application_name 'two')});
$holder->run('SELECT pgpool.checkin_all()');
is($first->finish . $first->error, '1', 'one who has seen the new options is served');
ok(wait_until($local, q{SELECT pid FROM pgpool.leases WHERE server = 'two'}, $waiter->pid), 'one who has not is next');
is($local->safe_psql('postgres', q{SELECT state FROM pgpool.leases WHERE server = 'two'}), 'idle', 'his statement has not been sent');
is($local->safe_psql('postgres', q{SELECT pipelined FROM pgpool.stats WHERE server = 'two'}), 0, 'nobody has carried it');
kill 'CONT', $waiter->pid;
is($waiter->finish . $waiter->error, '1', 'he sends it himself');
is($remote->safe_psql('remote_db', 'SELECT string_agg(n::text, $$ $$) FROM sent'), '1 2', 'once');

# They change when he has been granted a connection, which is one of the old ones: somebody
# else has followed them by then.
make_pool($local, $remote, server => 'three', options => { pool_size => 1, retry_min => '10ms' });
my $pid_of = sub { my ($session, $lease) = @_; return $session->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)"); };
my $old = $pid_of->($holder, lease($holder, 'three'));
$waiter->start(q{SELECT pgpool.checkout('three', '60 s')});
ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'three'}, 1), 'a waiter');
kill 'STOP', $waiter->pid;
$holder->run('SELECT pgpool.checkin_all()');
ok(wait_until($local, q{SELECT pid FROM pgpool.leases WHERE server = 'three'}, $waiter->pid), 'is granted a connection');
$local->safe_psql('postgres', q{ALTER SERVER three OPTIONS (ADD application_name 'three')});
is($first->run(q{SELECT pgpool.try_checkout('three')}) . $first->error, '', 'the options change, and another one follows them');
kill 'CONT', $waiter->pid;
my $new = $waiter->finish;
like($new, qr/^\d+$/, 'he gets a connection') or diag($waiter->error);
isnt($pid_of->($waiter, $new), $old, 'of the new options');
$_->quit foreach $holder, $waiter, $first;

check_invariants($local);
stats_add_up($local);
leak_check($local, $remote);
done_testing();

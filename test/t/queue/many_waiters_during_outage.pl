# Many sessions wait for a remote server that is down. When it is back they are granted
# connections in queue order. Connections are opened one, two, four at a time, and never
# exceed pool_size.
# PGPX_TEST_WAITERS: number of sessions (default 200).
use strict;
use warnings;

use IPC::Run;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $waiters = $ENV{PGPX_TEST_WAITERS} // 200;
my $size = 8;
my $remote = remote_node('remote', conf => ['log_connections = on']);
my $local = local_node('local', conf => [ 'max_connections = ' . ($waiters + 50), 'shared_buffers = 32MB' ]);

make_pool($local, $remote, server => 'wanted', options => { pool_size => $size, on_unavailable => 'wait', checkout_timeout => '1h', connect_timeout => '10min', retry_max => '200ms' });
$remote->stop;
$local->safe_psql('postgres', <<'EOT');
CREATE UNLOGGED TABLE arrived (pid int, queue_position int);
CREATE UNLOGGED TABLE granted (pid int, lease bigint);
EOT
my $script = PostgreSQL::Test::Utils::tempdir . '/wait.sql';
append_to_file($script, "INSERT INTO granted SELECT pg_backend_pid(), pgpool.checkout('wanted');\nSELECT pgpool.checkin_all();\n");

# the first sessions enqueue one after the other, so that their order is known
my @first = map { PgpxSession->new($local) } 1 .. 5;
foreach my $n (0 .. $#first)
{
	$first[$n]->start(slurp_file($script));
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', $n + 1);
}

# several pgbench processes, because of the limit of file descriptors
my (@bench, @out);
for (my $left = $waiters - @first; $left > 0; $left -= 250)
{
	my $clients = $left < 250 ? $left : 250;

	push @out, '';
	push @bench, IPC::Run::start([ 'pgbench', '-n', '-c', $clients, '-j', 2, '-t', 1, '-f', $script, $local->connstr('postgres') ], '&>', \$out[-1]);
}
ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', $waiters), "$waiters sessions wait for a remote server that is down");
check_invariants($local);
$local->safe_psql('postgres', 'INSERT INTO arrived SELECT pid, position FROM pgpool.waiters');
$remote->start;
my $watch = PgpxSession->new($remote);
my $most = 0;
while (grep { $_->pumpable } @bench)
{
	my $seen = $watch->run("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/wanted'");

	$most = $seen if $seen > $most;
	$_->pump_nb foreach grep { $_->pumpable } @bench;
	usleep(5_000);
}
foreach my $n (0 .. $#bench)
{
	$bench[$n]->finish;
	is($bench[$n]->result(0), 0, 'pgbench succeeds') or diag($out[$n]);
}
$_->finish(60) foreach @first;
is($local->safe_psql('postgres', q{SELECT string_agg(pid::text, ' ' ORDER BY lease) FROM (SELECT * FROM granted ORDER BY lease LIMIT 5) t}),
	join(' ', map { $_->pid } @first), 'first sessions were granted connections first');
is($local->safe_psql('postgres', 'SELECT count(*), count(DISTINCT lease) FROM granted'), "$waiters|$waiters", 'every session had its own lease');
is($local->safe_psql('postgres', <<'EOT'), '0', 'grants follow the queue order');
SELECT count(*) FROM (SELECT row_number() OVER (ORDER BY queue_position) - row_number() OVER (ORDER BY lease) AS moved
	FROM arrived JOIN granted USING (pid)) t WHERE moved <> 0
EOT
my ($too_many, $in) = connects_of($remote, 'wanted');
is($too_many, 0, 'connection attempts start one, two, four at a time');
cmp_ok($in, '<=', $size, "connections do not exceed pool_size ($in)");
cmp_ok($most, '<=', $size, "remote sessions do not exceed pool_size ($most)");
is($local->safe_psql('postgres', 'SELECT waited - granted, timeouts, failed FROM pgpool.stats'), '0|0|0', 'every waiter was granted a connection, and none timed out or failed');

$_->quit foreach $watch, @first;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

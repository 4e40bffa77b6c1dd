# Shortage of file descriptors, in the worker or in a session: the error names it, other
# processes are not affected, and everything works when some are free again.
#
# Runs alone: the kernel compares the limit of open files with the number of descriptors
# that all processes of the user have in flight. Other tests have more than this limit.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ['max_connections = 200']);
my $local = local_node('local', conf => [ 'max_files_per_process = 100', 'pgpool_ext.workers = 2' ]);

# The hard limit of open files of new processes of the local server, among them workers.
sub limit_descriptors
{
	my ($most) = @_;
	my ($postmaster) = split /\n/, slurp_file($local->data_dir . '/postmaster.pid');
	my $pids = $local->safe_psql('postgres', q{SELECT string_agg(pid::text, ',') FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker'});

	is(system('prlimit', '--pid', $postmaster, "--nofile=$most:$most"), 0, "limit is $most descriptors");
	kill 'TERM', split /,/, $pids;
	return ok(wait_until($local, qq{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker' AND pid NOT IN ($pids)}, '2'), 'new workers run');
}

limit_descriptors(140);
is_logged($local, 0, qr/WARNING:  a pool worker might not be able to open as many connections as .*\n.*can use 76 descriptors/,
	'warning is logged because one worker might need the descriptors for all connections');
limit_descriptors(100);
my %options = (pool_size => 60, retry_min => '50ms', retry_max => '200ms');
my $session = PgpxSession->new($local);
my %worker;

# pools of both workers
foreach my $n (1 .. 4)
{
	make_pool($local, $remote, server => "s$n", options => {%options});
	is($session->run("SELECT pgpool.checkin(pgpool.checkout('s$n'))") . $session->error, '', "s$n: pool is used");
	push @{ $worker{ $local->safe_psql('postgres', "SELECT worker FROM pgpool.pools WHERE server = 's$n'") } }, "s$n";
}
my ($mine, $theirs) = map { $worker{$_} } sort keys %worker;
is(scalar(@$mine) . scalar(@$theirs), '22', 'each worker has two of the pools');

is($session->run("SELECT pgpool.lock_setup('$mine->[1]')") . $session->error, '', 'lock tables are set up');

# --- a worker: many connections of one of its pools, leased by several sessions
my @holders = map { PgpxSession->new($local) } 1 .. 12;
my $n = 0;
my $shortage = qr/too many open descriptors/;
foreach my $holder (@holders)
{
	foreach (1 .. 4)
	{
		$n++ if $holder->run("SELECT pgpool.checkout('$mine->[0]', '2 s')") =~ /^\d/;
		last if $holder->error =~ $shortage;
	}
	last if $holder->error =~ $shortage;
}

# attempts that were under way together may have left room for another connection
my ($refused) = grep { $_->error =~ $shortage } @holders;
while ($refused->run("SELECT pgpool.checkout('$mine->[0]', '2 s')") =~ /^\d/) { $n++ }
like(slurp_file($local->logfile), qr/WARNING:  a pool worker might not be able to open as many connections as "pgpool_ext.max_connections" allows
.*DETAIL:  Each pool worker can use 36 descriptors for connections\. .*"pgpool_ext.max_connections" is 100\.
.*HINT:  Raise the limit of open files of the server's processes \("ulimit -Hn"\) to at least 364/, 'warning at start reports that there are too few file descriptors');
like($refused->error, qr/DETAIL:  .* of .* connections are leased .*: the pool worker has too many open descriptors/,
	'checkout that timed out reports why no connection was opened');
cmp_ok($n, '>=', 5, "worker opens some connections ($n)");
cmp_ok($n, '<', 48, 'worker opens fewer connections than the pool allows');
like($local->safe_psql('postgres', "SELECT last_error FROM pgpool.pools WHERE server = '$mine->[0]'"),
	qr/too many open descriptors/, 'pgpool.pools shows the reason');
$session->run('SELECT pgpool.checkin_all()');
ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = '$mine->[1]'", '1'), 'another pool of the worker has its connection');
$local->safe_psql('postgres', "SELECT pgpool.reconnect('$mine->[1]')");
ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = '$mine->[1]'", '0'), 'its descriptors are free');
my @more = map { PgpxSession->new($local) } 1 .. 2;
like($more[0]->run("SELECT pgpool.checkout('$mine->[1]', '30 s')") . $more[0]->error, qr/^\d+\n?$/, 'pool can replace its only connection');
$more[1]->start("SELECT pgpool.checkout('$mine->[1]', '1 s')");
$more[1]->finish(20);
$more[1]->failed('55P03', qr/became available within 1000 ms/, 'pool cannot open a second connection');
$more[0]->run('SELECT pgpool.checkin_all()');

# no descriptor is left for the connection for pings of a lock
SKIP:
{
	skip 'over TLS, where a connection takes three descriptors, one may be left', 4 if over_tls();
	my $log = -s $local->logfile;
	my $token = $more[0]->run("SELECT pgpool.lock('$mine->[1]', 'a', '5 s', '10 min')");
	like($token, qr/^\d+$/, 'lock is acquired with the open connection') or diag($more[0]->error);
	ok(wait_until($local, sub { slurp_file($local->logfile, $log) =~ /cannot ping the locks of server "$mine->[1]".*\n.*DETAIL:.*too many open descriptors/ ? 1 : 0 }, 1, 20), 'failed ping is logged with the reason');

	is($more[0]->run("SELECT pgpool.unlock('$mine->[1]', 'a', $token)"), '', 'release of the lock cannot be sent');
	like($more[0]->error, qr/WARNING:.*lock "a".*was released, but the remote server has not confirmed it/, 'warning reports the unconfirmed release');
}

# a pool without a connection
$local->safe_psql('postgres', "SELECT pgpool.drain('$mine->[1]', '10 s')");
$local->safe_psql('postgres', "SELECT pgpool.resume('$mine->[1]')");
my $extra = $holders[-1]->run("SELECT pgpool.checkout('$mine->[0]', '30 s')");
like($extra, qr/^\d+$/, 'first pool takes the free descriptor');
$more[0]->fails("SELECT pgpool.checkout('$mine->[1]', '3 s')", '53000',
	qr/could not connect to server "$mine->[1]".*too many open descriptors/s, 'pool without a connection reports the shortage');

# the other worker has its own descriptors
is($more[1]->run("SELECT pgpool.exec('$_', 'select 1')") . $more[1]->error, '1', "$_: pool of the other worker works") foreach @$theirs;

# --- recovery
$_->run('SELECT pgpool.checkin_all()') foreach @holders;
is($local->safe_psql('postgres', "SELECT pgpool.drain('$mine->[0]', '10 s')"), 't', 'connections of the first pool are closed');
$local->safe_psql('postgres', "SELECT pgpool.resume('$mine->[0]')");
ok(wait_until($local, sub { $more[0]->run("SELECT pgpool.exec('$mine->[1]', 'select 1')") }, '1', 20), 'other pool works again');

is($more[0]->run("SELECT pgpool.unlock('$mine->[1]', 'b', pgpool.lock('$mine->[1]', 'b'))"), 't', 'locks work again');

# --- cancel requests, more than a worker has descriptors
{
	my $server = $theirs->[0];
	my $worker = $local->safe_psql('postgres', "SELECT w.pid FROM pgpool.workers w JOIN pgpool.pools p USING (worker) WHERE p.server = '$server'");
	my $needed = "SELECT count(*) * @{[ over_tls() ? 3 : 1 ]} FROM pgpool.connections JOIN pgpool.pools USING (server) WHERE worker = (SELECT worker FROM pgpool.pools WHERE server = '$server')";
	my $more_than_needed = sub {
		return (grep { (readlink // '') =~ /^socket:/ } glob "/proc/$worker/fd/*") - $local->safe_psql('postgres', $needed);
	};
	my $lease = lease($more[0], $server);
	my $cancelled = 0;

	$more[0]->run("SELECT pgpool.exec($lease, 'select 1'); SET statement_timeout = '20 ms'");
	foreach (1 .. 40)
	{
		$more[0]->run("SELECT pgpool.exec($lease, 'select pg_sleep(600)')");
		$cancelled++ if $more[0]->sqlstate eq '57014';
	}
	$more[0]->reset_statement_timeout;
	is($cancelled, 40, 'each statement is cancelled');
	is($more[0]->run("SELECT pgpool.exec($lease, 'select 1')") . $more[0]->error, '1', 'lease stays usable');
	ok(wait_until($local, $more_than_needed, 4), 'workers have no descriptors beside those of connections and control sockets');
	$more[0]->run('SELECT pgpool.checkin_all()');
}

# --- a session: leases from both workers, more than it has descriptors. (Over TLS a
# connection takes three descriptors of a worker and one of a session, so a worker runs
# out first.)
my @leases;
foreach (1 .. (over_tls() ? 2 : 20))
{
	foreach my $server ($mine->[0], $theirs->[0])
	{
		my $lease = $session->run("SELECT pgpool.checkout('$server', '5 s')");

		last if $session->error;
		push @leases, $lease;
	}
	last if $session->error;
}
SKIP:
{
	skip 'over TLS workers run out of descriptors before a session does', 1 if over_tls();
	like($session->error, qr/53000|55P03/, 'session has no descriptor left after this number of leases: ' . @leases) or diag $session->error;
}
is($session->run("SELECT pgpool.exec($_, 'select 1')") . $session->error, '1', "lease $_ works") foreach @leases[ 0, -1 ];
is($more[0]->run("SELECT pgpool.exec('$_', 'select 1')") . $more[0]->error, '1', "$_: pool works for other sessions") foreach @$theirs;
is($session->run('SELECT pgpool.checkin_all()'), scalar @leases, 'all leases can be returned');

# All descriptors of the session are cached sockets without a lease now. They may
# include those of the other pools, but none of a new pool.
make_pool($local, $remote, server => 's5', options => {%options});
is($session->run("SELECT pgpool.exec('$_', 'select 1')") . $session->error, '1', "$_: pool works after another cached socket is closed") foreach 's5', @$mine, @$theirs;
is($session->run("SELECT count(*) FROM pg_class WHERE oid = 'pg_class'::regclass"), '1', 'session can open files');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);

# --- a soft limit below the settings is raised by the worker
is(system('prlimit', '--pid', $$, '--nofile=200:'), 0, 'soft limit is 200 descriptors');
my $soft = local_node('soft', conf => [ 'max_files_per_process = 300', 'pgpool_ext.max_connections = 200' ]);
my $soft_limit = sub {
	my $worker = worker_pid($soft) or return '';

	return slurp_file("/proc/$worker/limits") =~ /^Max open files +(\d+) /m ? $1 : '';
};

ok(wait_until($soft, $soft_limit, 3 * 200 + 64), 'worker has raised the limit to what max_connections needs over TLS');
unlike(slurp_file($soft->logfile), qr/WARNING:  a pool worker might/, 'no warning is logged');
make_pool($soft, $remote, server => 'many', options => { pool_size => 90 });
my @many = map { PgpxSession->new($soft) } 1 .. 2;
is($_->run(q{SELECT count(pgpool.checkout('many', '60 s')) FROM generate_series(1, 45)}, 90) . $_->error, '45', 'session leases 45 connections') foreach @many;
$_->run('SELECT pgpool.checkin_all()') foreach @many;

# descriptors that suffice only without TLS
my ($postmaster) = split /\n/, slurp_file($soft->data_dir . '/postmaster.pid');
is(system('prlimit', '--pid', $postmaster, '--nofile=400:400'), 0, 'limit is 400 descriptors');
kill 'TERM', worker_pid($soft);
ok(wait_until($soft, sub { slurp_file($soft->logfile) =~ /WARNING:  a pool worker might not be able to open as many connections as .*\n.*can use 336 .*\n.*at least 664/ ? 1 : 0 }, 1),
	'warning reports that the descriptors do not suffice over TLS');
check_invariants($soft);
leak_check($soft, $remote);
done_testing();

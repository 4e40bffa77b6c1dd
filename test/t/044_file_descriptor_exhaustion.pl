# Few descriptors: who runs out of them, the pool worker or a session, says so
# clearly, nobody else is disturbed, and once some are free all works again.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ['max_connections = 200']);
my $local = local_node('local', conf => [ 'max_files_per_process = 100', 'pgpool_ext.workers = 2' ]);
my %options = (pool_size => 60, retry_min => '50ms', retry_max => '200ms');
my $session = PgpxSession->new($local);
my %worker;

# pools of both workers
foreach my $n (1 .. 4)
{
	make_pool($local, $remote, server => "s$n", options => {%options});
	is($session->run("SELECT pgpool.checkin(pgpool.checkout('s$n'))") . $session->error, '', "s$n: is used");
	push @{ $worker{ $local->safe_psql('postgres', "SELECT worker FROM pgpool.pools WHERE server = 's$n'") } }, "s$n";
}
my ($mine, $theirs) = map { $worker{$_} } sort keys %worker;
is(scalar(@$mine) . scalar(@$theirs), '22', 'each worker has two of the pools');

is($session->run("SELECT pgpool.lock_setup('$mine->[1]')") . $session->error, '', 'tables for locks');

# --- a worker: many connections of one of its pools, held by several sessions
my @holders = map { PgpxSession->new($local) } 1 .. 12;
my $n = 0;
foreach my $holder (@holders)
{
	foreach (1 .. 4)
	{
		$n++ if $holder->run("SELECT pgpool.checkout('$mine->[0]', '2 s')") =~ /^\d/;
		last if $holder->error;
	}
	last if $holder->error;
}
like(slurp_file($local->logfile), qr/WARNING:  pool workers cannot open as many connections as "pgpool_ext.max_connections" allows
.*DETAIL:  Workers: 2, descriptors that each may have for connections: 36, .*"pgpool_ext.max_connections" is 100\.
.*HINT:  Raise "max_files_per_process" to at least 164/, 'a warning at start says that descriptors will be too few');
my ($refused) = grep { $_->error } @holders;
like($refused->error, qr/DETAIL:  .* of .* connections are leased .* The pool worker has too many open descriptors: it uses \d+ of the 36 .*\nHINT:  Raise "max_files_per_process"/,
	'a checkout that waited for one more says why none was opened');
cmp_ok($n, '>=', 5, "the worker opens some connections ($n)");
cmp_ok($n, '<', 48, 'but not as many as the pool might have');
like($local->safe_psql('postgres', "SELECT last_error FROM pgpool.pools WHERE server = '$mine->[0]'"),
	qr/too many open descriptors/, 'the view tells why');
$session->run('SELECT pgpool.checkin_all()');
ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = '$mine->[1]'", '1'), 'another pool of the worker has its connection');
$local->safe_psql('postgres', "SELECT pgpool.reconnect('$mine->[1]')");
my @more = map { PgpxSession->new($local) } 1 .. 2;
like($more[0]->run("SELECT pgpool.checkout('$mine->[1]', '2 s')") . $more[0]->error, qr/^\d+\n?$/, 'and may replace it');
$more[1]->start("SELECT pgpool.checkout('$mine->[1]', '1 s')");
$more[1]->finish(20);
$more[1]->failed('55P03', qr/came free within 1000 ms/, 'but not open another one');
$more[0]->run('SELECT pgpool.checkin_all()');

# the connection for pings of a lock: there is none
SKIP:
{
	skip 'over TLS, where a connection takes three, one may be left', 4 if over_tls();
	my $log = -s $local->logfile;
	my $token = $more[0]->run("SELECT pgpool.lock('$mine->[1]', 'a', '5 s', '10 min')");
	like($token, qr/^\d+$/, 'a lock is taken by the connection that there is') or diag($more[0]->error);
	ok(wait_until($local, sub { slurp_file($local->logfile, $log) =~ /cannot ping the locks of server "$mine->[1]".*\n.*DETAIL:.*too many open descriptors/ ? 1 : 0 }, 1, 20), 'it cannot be pinged: the log has the reason');

	is($more[0]->run("SELECT pgpool.unlock('$mine->[1]', 'a', $token)"), '', 'nor can its release be told to the remote');
	like($more[0]->error, qr/WARNING:.*lock "a".*was given up, but the remote has not confirmed it/, 'which a warning says');
}

# a pool that has none
$local->safe_psql('postgres', "SELECT pgpool.drain('$mine->[1]', '10 s')");
$local->safe_psql('postgres', "SELECT pgpool.resume('$mine->[1]')");
my $extra = $holders[-1]->run("SELECT pgpool.checkout('$mine->[0]', '5 s')");
like($extra, qr/^\d+$/, 'the place is taken by the first pool');
$more[0]->fails("SELECT pgpool.checkout('$mine->[1]', '3 s')", '53000',
	qr/could not connect to server "$mine->[1]".*too many open descriptors: it uses \d+ of the 36 .*HINT:  Raise "max_files_per_process"/s, 'a pool without a connection says that descriptors are missing');

# the other worker has its own
is($more[1]->run("SELECT pgpool.exec('$_', 'select 1')") . $more[1]->error, '1', "$_: of the other worker works") foreach @$theirs;

# --- recovery
$_->run('SELECT pgpool.checkin_all()') foreach @holders;
is($local->safe_psql('postgres', "SELECT pgpool.drain('$mine->[0]', '10 s')"), 't', 'some are closed');
$local->safe_psql('postgres', "SELECT pgpool.resume('$mine->[0]')");
ok(wait_until($local, sub { $more[0]->run("SELECT pgpool.exec('$mine->[1]', 'select 1')") }, '1', 20), 'and the others work again');

is($more[0]->run("SELECT pgpool.unlock('$mine->[1]', 'b', pgpool.lock('$mine->[1]', 'b'))"), 't', 'and so do locks');

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
	$more[0]->run('RESET statement_timeout');
	is($cancelled, 40, 'each statement is cancelled');
	is($more[0]->run("SELECT pgpool.exec($lease, 'select 1')") . $more[0]->error, '1', 'the lease is as good as before');
	ok(wait_until($local, $more_than_needed, 4), 'and no descriptor of a request is left, beside the control sockets of both workers');
	$more[0]->run('SELECT pgpool.checkin_all()');
}

# --- a session: leases of both workers, more than it has descriptors.  (Over TLS a connection
# takes three of a worker's and one of a session's: a worker has none before a session does.)
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
	skip 'over TLS workers have no descriptor left before a session does', 1 if over_tls();
	like($session->error, qr/53000|55P03/, 'a session takes leases until it has no descriptor left: ' . @leases) or diag $session->error;
}
is($session->run("SELECT pgpool.exec($_, 'select 1')") . $session->error, '1', "its lease $_ works") foreach @leases[ 0, -1 ];
is($more[0]->run("SELECT pgpool.exec('$_', 'select 1')") . $more[0]->error, '1', "$_: for others, too") foreach @$theirs;
is($session->run('SELECT pgpool.checkin_all()'), scalar @leases, 'all can be returned');

# All descriptors of the session are sockets that it keeps now, of no lease.  Whether those
# of the other pools are among them is chance; of a new pool it has none.
make_pool($local, $remote, server => 's5', options => {%options});
is($session->run("SELECT pgpool.exec('$_', 'select 1')") . $session->error, '1', "$_: works, for which another socket is let go") foreach 's5', @$mine, @$theirs;
is($session->run("SELECT count(*) FROM pg_class WHERE oid = 'pg_class'::regclass"), '1', 'and so do files of the session');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);

# --- a soft limit under what the settings allow: a worker raises its own
is(system('prlimit', '--pid', $$, '--nofile=200:'), 0, 'a soft limit of 200 descriptors');
my $soft = local_node('soft', conf => [ 'max_files_per_process = 500', 'pgpool_ext.max_connections = 100' ]);
my $soft_limit = sub {
	my $worker = worker_pid($soft) or return '';

	return slurp_file("/proc/$worker/limits") =~ /^Max open files +(\d+) /m ? $1 : '';
};

ok(wait_until($soft, $soft_limit, 500), 'the worker has raised it to max_files_per_process');
unlike(slurp_file($soft->logfile), qr/WARNING:  pool workers cannot/, 'which is enough');
make_pool($soft, $remote, server => 'many', options => { pool_size => 90 });
my @many = map { PgpxSession->new($soft) } 1 .. 2;
is($_->run(q{SELECT count(pgpool.checkout('many', '60 s')) FROM generate_series(1, 45)}, 90) . $_->error, '45', '45 connections') foreach @many;
$_->run('SELECT pgpool.checkin_all()') foreach @many;
check_invariants($soft);
leak_check($soft, $remote);
done_testing();

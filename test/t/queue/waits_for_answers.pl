# How sessions wait for an answer: registered sockets, and busy polling.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ['max_connections = 200' ]);
my $local = local_node('local');

# ---------- registered sockets
# An incoming packet wakes every session that has registered the connection's socket in
# its epoll set. A session therefore registers a socket only while it has the lease.
{
	make_pool($local, $remote, server => 'p', options => { pool_size => 1, reset => 'never' });
	make_pool($local, $remote, server => 'q', options => { pool_size => 1, reset => 'never' });

	my $session = PgpxSession->new($local);
	$session->run('SET pgpool_ext.busy_poll = 0');

	# The number of connection sockets in this session's epoll sets (without the socket of
	# its client).
	sub watched
	{
		my ($session) = @_;
		my $proc = '/proc/' . $session->pid;
		my $sockets = 0;

		foreach my $fd (glob "$proc/fdinfo/*")
		{
			open my $info, '<', $fd or next;
			foreach my $target (map { /^tfd:\s*(\d+)/ ? $1 : () } <$info>)
			{
				$sockets++ if (readlink "$proc/fd/$target" // '') =~ /^socket:/;
			}
		}
		return $sockets - 1;
	}

	my %lease = map { $_ => lease($session, $_) } qw(p q);
	is(watched($session), 0, 'no socket is registered before the first wait');
	my $gate = PgpxSession->new($remote, dbname => 'remote_db');
	foreach my $server (qw(p q))
	{
		$gate->run('SELECT pg_advisory_lock(1)');
		$session->start("SELECT pgpool.exec($lease{$server}, 'select pg_advisory_xact_lock(1)')");
		ok(wait_until($local, sub { watched($session) }, 1), "$server: session waits for an answer");
		$gate->run('SELECT pg_advisory_unlock(1)');
		$session->finish;
		is(watched($session), 1, "$server: only the socket of the last wait is registered");
	}
	$gate->quit;
	$session->run("SELECT pgpool.checkin($lease{p})");
	is(watched($session), 1, 'end of another lease changes nothing');
	$session->run("SELECT pgpool.checkin($lease{q})");
	is(watched($session), 0, 'socket is not registered after the end of its lease');
	$session->start("SELECT pgpool.exec('p', 'select pg_sleep(60)')");
	ok(wait_until($local, sub { watched($session) }, 1), 'session waits for an answer');
	$local->safe_psql('postgres', "SELECT pg_cancel_backend(@{[$session->pid]})");
	$session->finish;
	$session->failed('57014', qr/canceling statement/, 'session is cancelled');
	is(watched($session), 0, 'socket is not registered after an error');

	# --- a session caches as many sockets as its descriptors allow, not 64
	make_pool($local, $remote, server => $_, options => { pool_size => 35 }) foreach 'half1', 'half2';
	my $many = PgpxSession->new($local);
	my $cached = sub { my $pid = $many->pid; return scalar grep { (readlink // '') =~ /^socket:/ } glob "/proc/$pid/fd/*"; };
	lease($many, 'half1');
	my $before = $cached->();
	foreach my $server (('half1') x 34, ('half2') x 35)
	{
		$many->run('SELECT pgpool.checkin_all()') if $server eq 'half2' && $cached->() - $before == 34;
		lease($many, $server);
	}
	$many->run('SELECT pgpool.checkin_all()');
	is($cached->() - $before, 69, 'session has cached the sockets of seventy connections');
	$many->quit;
	$session->quit;
	$local->safe_psql('postgres', 'SELECT pgpool.drain(NULL)');
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- busy polling
# pgpool_ext.busy_poll in sessions: a session polls for an answer before it sleeps. The
# counter "polled" counts answers found by polling. (How often one is found depends on the
# machine: see timing/worker_sleeps.)
SKIP:
{
	skip 'a machine with a single processor does not poll', 1 if processors() < 2;

	sub processors { return scalar grep { /^processor\s*:/ } split /\n/, slurp_file('/proc/cpuinfo'); }

	make_pool($local, $remote, server => 'p', options => { pool_size => 2 });

	my $session = PgpxSession->new($local);

	# The number of answers found by polling among $times statements on one lease, in a new
	# session, which has no misses yet.
	sub polled
	{
		my ($times, $sql, $busy_poll) = @_;
		my $count = "SELECT polled FROM pgpool.stats WHERE server = 'p'";
		my $before = $local->safe_psql('postgres', $count) || 0;
		my $own = PgpxSession->new($local);
		my $lease = lease($own, 'p');

		$own->run("SET pgpool_ext.busy_poll = $busy_poll");
		$own->run("DO \$\$ BEGIN FOR i IN 1 .. $times LOOP PERFORM pgpool.exec($lease, '$sql'); END LOOP; END \$\$");
		die $own->error if $own->error ne '';
		$own->run("SELECT pgpool.checkin($lease)");
		$own->quit;
		return $local->safe_psql('postgres', $count) - $before;
	}

	is(polled(30, 'select 1', 0), '0', 'busy_poll 0 disables polling');

	# --- polling can be interrupted, and the lease stays usable
	$session->run('SET pgpool_ext.busy_poll = 1000');
	my $lease = lease($session, 'p');
	$session->run("SET statement_timeout = '300ms'");
	$session->fails("DO \$\$ BEGIN LOOP PERFORM pgpool.exec($lease, 'select 1'); END LOOP; END \$\$",
		'57014', qr/statement timeout/, 'loop of statements is cancelled');
	$session->reset_statement_timeout;
	is($session->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'lease stays usable');

	# --- no polling while another session waits for a connection of the pool
	make_pool($local, $remote, server => 'single', options => { pool_size => 1 });
	my $second = PgpxSession->new($local);
	my $third = PgpxSession->new($local);
	my $held = lease($second, 'single');
	$third->start("SELECT pgpool.checkout('single', '600 s')");
	ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = 'single'", '1'), 'another session waits');
	my $polled = $local->safe_psql('postgres', "SELECT polled FROM pgpool.stats WHERE server = 'single'");
	$second->run('SET pgpool_ext.busy_poll = 1000');
	$second->run("DO \$\$ BEGIN FOR i IN 1 .. 100 LOOP PERFORM pgpool.exec($held, 'select 1'); END LOOP; END \$\$");
	is($second->error, '', 'holder executes its statements');
	$second->run("SELECT pgpool.checkin($held)");
	like($third->finish, qr/^\d+$/, 'waiting session is granted the connection');
	is($local->safe_psql('postgres', "SELECT polled FROM pgpool.stats WHERE server = 'single'"),
		$polled, 'session does not poll while another session waits');
	$_->quit foreach $second, $third;

	# --- a polling session notices the end of the connection
	$session->start("DO \$\$ BEGIN LOOP PERFORM pgpool.exec($lease, 'select 1'); END LOOP; END \$\$");
	ok(wait_until($local, "SELECT state FROM pg_stat_activity WHERE pid = @{[$session->pid]}", 'active'), 'loop runs');
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pgpool_ext%'");
	$session->finish;
	is($session->sqlstate, '08006', 'end of the connection is noticed');
	ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'p' AND state <> 'leased'", '0'),
		'end of the other connection is noticed');
	is($session->run("SELECT a FROM pgpool.query('p', 'select 1') AS t(a int)"), '1', 'pool works');
	$session->quit;
	stats_add_up($local);
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();

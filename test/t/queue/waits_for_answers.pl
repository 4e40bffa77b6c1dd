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
# its epoll set. A session therefore registers a socket only while no other session uses
# the connection.
{
	# (without a reset, whose answer would arrive while no session has the lease)
	make_pool($local, $remote, server => 'p', options => { pool_size => 1, reset => 'never' });
	make_pool($local, $remote, server => 'q', options => { pool_size => 1, reset => 'never' });

	my @sessions = map { PgpxSession->new($local) } 1 .. 3;
	$_->run('SET pgpool_ext.busy_poll = 0') foreach @sessions;

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

	sub all_watched { return join ' ', map { watched($_) } @sessions; }

	sub sleeps { return "SELECT a FROM pgpool.query('$_[0]', 'select pg_sleep(0.5)::text') AS t(a text)"; }

	is(all_watched(), '0 0 0', 'no socket is registered in the beginning');

	# --- without waiters the socket stays registered, which makes the next poll cheap
	$sessions[0]->run(sleeps('p'));
	is(all_watched(), '1 0 0', 'socket stays registered without waiters');

	# --- a socket does not stay registered while its session waits for another connection
	$sessions[0]->run(sleeps('q'));
	is(all_watched(), '1 0 0', 'only the socket of the last wait is registered');

	# --- with waiters the socket is registered only while its holder waits for the answer
	$sessions[0]->start("SELECT a FROM pgpool.query('p', 'select pg_sleep(60)::text') AS t(a text)");
	ok(wait_until($local, "SELECT count(*) FROM pgpool.leases WHERE server = 'p'", 1), 'connection is leased');
	foreach my $i (1, 2)
	{
		$sessions[$i]->start(sleeps('p'));
		ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = 'p'", $i), "session $i waits");
	}
	my $pid = $sessions[0]->pid;
	ok(wait_until($local, sub { watched($sessions[0]) }, 1), 'holder has registered the socket');
	$local->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	$sessions[0]->finish;
	is($sessions[0]->sqlstate, '57014', 'holder is cancelled');
	$sessions[$_]->finish foreach 1, 2;

	# again, with a statement that ends normally
	my $blocker = PgpxSession->new($remote, dbname => 'remote_db');
	$blocker->run('BEGIN; SELECT pg_advisory_xact_lock(1)');
	$sessions[0]->start("SELECT a FROM pgpool.query('p', 'select pg_advisory_xact_lock(1)::text') AS t(a text)");
	ok(wait_until($local, "SELECT count(*) FROM pgpool.leases WHERE server = 'p'", 1), 'connection is leased again');
	foreach my $i (1, 2)
	{
		$sessions[$i]->start(sleeps('p'));
		ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = 'p'", $i), "session $i waits again");
	}
	$blocker->quit;
	$sessions[$_]->finish foreach 0, 1, 2;
	is(watched($sessions[0]), 0, 'session that hands over to a waiter has no socket registered');
	is(join(' ', map { $_->error } @sessions), '  ', 'no session received an error');


	# --- few sessions keep a socket registered: with 500 the kernel would refuse further
	# ones
	my @many = map { PgpxSession->new($local) } 1 .. 20;
	my $all_use_it = sub { return join ' ', map { $_->run(q{SELECT a FROM pgpool.query('p', 'select 1') AS t(a int)}) } @many; };
	my $watching = sub { my $n = 0; $n += watched($_) foreach @sessions, @many; return $n; };

	# (not at the first time, when the session has no socket yet)
	ok(wait_until($local, sub { $all_use_it->(); return $watching->(); }, 16), 'sixteen of twenty sessions keep the socket registered');
	is($all_use_it->(), join(' ', (1) x 20), 'all sessions use the connection again');
	is($watching->(), 16, 'number of registered sockets stays sixteen');
	my ($other) = grep { !watched($_) } @many;
	$other->run('SET pgpool_ext.busy_poll = 0');
	is($other->run(sleeps('p')) . $other->error, '', 'another session waits for an answer');
	is(watched($other), 0, 'socket of the other session does not stay registered');
	$_->quit foreach grep { $_ != $other } @many;
	ok(wait_until($local, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'}, 5), 'nineteen sessions end');
	$other->run(sleeps('p'));
	is(watched($other), 1, 'socket of the other session stays registered when nineteen sessions have ended');
	$other->quit;

	# --- more sockets have events than one poll returns, but not the one that is awaited
	make_pool($local, $remote, server => 'r', options => { pool_size => 12 });
	my @leases = map { lease($sessions[1], 'r') } 1 .. 12;
	$sessions[1]->run("SELECT pgpool.exec($_, 'select 1')") foreach @leases;
	$sessions[1]->run('SELECT pgpool.checkin_all()');
	ok(wait_until($local, q{SELECT idle FROM pgpool.pools WHERE server = 'r'}, 12), 'twelve connections are idle, and a session has cached their sockets');
	@leases = map { lease($sessions[1], 'r') } 1 .. 12;
	is(watched($sessions[1]), 12, 'session has registered all twelve sockets');
	my $ends = $local->safe_psql('postgres', "SELECT string_agg(remote_pid::text, ',') FROM pgpool.leases WHERE server = 'r' AND lease <> $leases[11]");
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid, 20000) FROM unnest('{$ends}'::int[]) AS pid");
	is($sessions[1]->run("SELECT pgpool.exec($leases[11], 'select 1')", 20) . $sessions[1]->error, '1', 'eleven connections end, and the twelfth works');
	is(watched($sessions[1]), 1, 'only the twelfth socket stays registered');
	$sessions[1]->run('SELECT pgpool.checkin_all()');

	$_->quit foreach @sessions;
	$local->safe_psql('postgres', 'SELECT pgpool.drain(NULL)');
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- busy polling
# pgpool_ext.busy_poll in sessions: a session polls for an answer before it sleeps. The
# counter "polled" counts answers found by polling. (How often one is found depends on the
# machine: see timing/busy_poll.)
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

# Shares of cluster_connections do not depend on the time of day: the clocks of the local
# servers and of the remote server are set by an hour, and no share expires or is counted
# as that of a dead server. Rows of the table that were altered by hand do no harm. A
# standby cannot keep shares: the error reports this, until the standby is promoted.
use strict;
use warnings;

use PgpxClock;
use PgpxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'shares do not depend on TLS' if over_tls();

my $cap = 4;
my $remote = remote_node('remote', conf => [ 'wal_level = replica', 'max_wal_senders = 5', 'hot_standby = on' ]);
my @nodes = map { local_node("local$_") } 0 .. 1;

foreach my $node (@nodes)
{
	make_pool($node, $remote, server => 'shared', options => { cluster_connections => $cap, retry_max => '200ms' });
}
make_pool($nodes[0], $remote, server => 'plain');
$nodes[0]->safe_psql('postgres', q{SELECT pgpool.lock_setup('plain')});

sub share
{
	my ($node, $columns) = @_;

	return $node->safe_psql('postgres', "SELECT $columns FROM pgpool.cluster_shares WHERE server = 'shared'");
}

sub used { return join ' ', map { share($_, 'used') } @nodes; }

# The number of statements of all servers.
sub statements
{
	return $remote->safe_psql('remote_db', 'SELECT turn FROM pgpool_lock.share_turn');
}

sub table { return $remote->safe_psql('remote_db', "SELECT $_[0] FROM pgpool_lock.shares"); }

# Wait until the servers have sent some statements since.
sub statements_follow
{
	my ($name, $before) = (@_, statements());

	return ok(wait_until($remote, sub { statements() > $before + 4 ? 1 : 0 }, 1, 60), "$name: servers continue to agree");
}

sub all_agree
{
	my ($name) = @_;

	return ok(wait_until($nodes[0], sub { join ' ', map { share($_, 'failing_since IS NULL AND valid_until > clock_timestamp()') } @nodes }, 't t', 30), $name)
	  || diag(join "\n", map { share($_, 's.*') } @nodes);
}

my (@holders, $waiter);

sub start_sessions
{
	@holders = map { PgpxSession->new($nodes[0]) } 1 .. $cap;
	$waiter = PgpxSession->new($nodes[1]);
	return;
}

# --- clocks
SKIP:
{
	skip $CLOCKS_MISSING, 1 unless can_set_clocks();
	my %node = (first => $nodes[0], second => $nodes[1], remote => $remote);
	my $hour = 3600;

	foreach my $node (values %node)
	{
		with_clock($node, sub { $node->restart });
	}
	start_sessions();
	foreach my $jump ([ first => $hour, second => -$hour ], [ remote => $hour ], [ remote => -$hour, first => -$hour, second => $hour ])
	{
		my %offset = @$jump;
		my $name = join ', ', map { "clock of $_ at $offset{$_}" } sort keys %offset;
		my @leases = map { lease($_, 'shared') } @holders;

		$waiter->start(q{SELECT pgpool.checkout('shared', '2 min')});
		ok(wait_until($nodes[1], 'SELECT reason FROM pgpool.waiters', 'server_cap', 30), "$name: first server has all connections");
		foreach my $which (sort keys %offset)
		{
			set_clock($node{$which}, $offset{$which});
			ok(wait_until($node{$which}, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time + $offset{$which} ]}) < 600", 't', 20), "$name: clock is set");
		}
		statements_follow($name);
		is(used(), "$cap 0", "$name: no share has changed");
		is(share($nodes[1], 'others'), $cap, "$name: second server counts the connections of the first");
		is($holders[$_]->run("SELECT pgpool.checkin($leases[$_])") . $holders[$_]->error, '', "$name: lease is returned") foreach 0 .. $#leases;
		like($waiter->finish(60), qr/^\d+$/, "$name: second server is granted a connection when the first has returned some") or diag($waiter->error);
		all_agree("$name: both shares are valid");
		$waiter->run('SELECT pgpool.checkin_all()');
		set_clock($_, 0) foreach values %node;
	}
	unlike(slurp_file($_->logfile), qr/cannot agree on the share/, 'no agreement has failed') foreach @nodes;
	$_->quit foreach @holders, $waiter;
}

# --- rows that were altered
start_sessions();
my @leases = map { lease($_, 'shared') } @holders;
$remote->safe_psql('remote_db', q{INSERT INTO pgpool_lock.shares (member, request, cap, weight, demand, held, pids, postmaster, since, pinged)
	VALUES ('deadbeef/1/2/3', 1, 100, 1000, 262143, 100, '{1}', pg_postmaster_start_time(), 1, 'infinity')});
ok(wait_until($remote, sub { table(q{count(*) FILTER (WHERE member = 'deadbeef/1/2/3')}) }, 0, 60), 'row of an unknown server is removed, although its time is in the future');
$remote->safe_psql('remote_db', 'TRUNCATE pgpool_lock.shares');
ok(wait_until($remote, sub { table('max(held)') }, $cap, 30), 'server enters the connections that it has into an empty table');
foreach my $change (
	[ 'huge numbers', 'cap = 2147483647, weight = 2147483647, demand = 2147483647, held = 2147483647' ],
	[ 'another name', q{member = 'x''\\"]) y'}, 1 ],
	[ 'a low request number', 'request = 0' ],
	[ 'a high request number', 'request = 9223372036854775807', 1 ],
	[ 'unknown processes', q{pids = '{0,-1,2147483647}'} ])
{
	my ($name, $set, $fails) = @$change;

	$remote->safe_psql('remote_db', "UPDATE pgpool_lock.shares SET $set WHERE held > 0");
	statements_follow($name);
	is(share($nodes[0], 'used'), $cap, "$name: server keeps its connections");
	ok(wait_until($nodes[0], sub { share($nodes[0], 'error') ? 1 : 0 }, 1, 30), "$name: pgpool.cluster_shares shows the error") if $fails;
	$remote->safe_psql('remote_db', 'TRUNCATE pgpool_lock.shares');
	ok(wait_until($remote, sub { table('max(held)') }, $cap, 30), "$name: server enters its connections again");
	ok(wait_until($nodes[0], sub { share($nodes[0], 'failing_since IS NULL') }, 't', 30), "$name: server agrees again");
}
$waiter->start(q{SELECT pgpool.checkout('shared', '2 min')});
ok(wait_until($nodes[1], 'SELECT reason FROM pgpool.waiters', 'server_cap', 30), 'session of another server waits for a connection');
$holders[0]->run("SELECT pgpool.checkin($leases[0])");
like($waiter->finish(60), qr/^\d+$/, 'waiter is granted a connection when one is returned');
$_->run('SELECT pgpool.checkin_all()') foreach @holders, $waiter;

# --- a standby
$remote->append_conf('pg_hba.conf', 'local replication all trust');
$remote->reload;
$remote->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($remote, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "port = @{[ $standby->port ]}");
$standby->start;
$remote->wait_for_catchup($standby, 'replay');
$nodes[0]->safe_psql('postgres', "ALTER SERVER shared OPTIONS (SET port '@{[ $standby->port ]}')");
$holders[0]->fails(q{SELECT pgpool.checkout('shared', '1 min')}, '08001', qr/cluster_connections.*read-only transaction/s, 'checkout from a standby fails with the reason');
like(share($nodes[0], 'error'), qr/read-only transaction/, 'pgpool.cluster_shares shows the reason, too');
ok(wait_until($nodes[0], sub { slurp_file($nodes[0]->logfile) =~ /cannot agree on the share of server "shared" of database "postgres"\n.*DETAIL:  cannot execute UPDATE in a read-only transaction/ ? 1 : 0 }, 1), 'log has the reason, too');
is(sessions_on($standby), 0, 'no connection is opened');
$waiter->run(q{SELECT pgpool.checkin(pgpool.checkout('shared', '1 min'))});
is($waiter->error, '', 'another server still uses the primary');

# the server has both hosts, and the standby is the first one
$nodes[0]->safe_psql('postgres', "ALTER SERVER shared OPTIONS (SET host '127.0.0.1,127.0.0.1', SET port '@{[ $standby->port ]},@{[ $remote->port ]}', ADD target_session_attrs 'read-write')");
is($holders[0]->run(q{SELECT pgpool.exec('shared', 'SELECT 1')}) . $holders[0]->error, '1', 'with several hosts the primary keeps the shares');
all_agree('both servers agree again');
$nodes[0]->safe_psql('postgres', "ALTER SERVER shared OPTIONS (SET host '127.0.0.1', SET port '@{[ $standby->port ]}', DROP target_session_attrs)");
$holders[0]->fails(q{SELECT pgpool.checkout('shared', '1 min')}, '08001', qr/cluster_connections.*read-only transaction/, 'standby alone cannot keep the shares');
$remote->stop;
$standby->promote;
ok(wait_until($nodes[0], sub { $holders[0]->run(q{SELECT pgpool.exec('shared', 'SELECT 1')}) }, '1', 60), 'promoted standby keeps the shares');
ok(wait_until($nodes[0], sub { share($nodes[0], 'members, failing_since IS NULL') }, '1|t', 60), 'server that cannot reach the promoted standby is not a member any more');

$_->quit foreach @holders, $waiter;
foreach my $node (@nodes)
{
	stats_add_up($node);
	check_invariants($node);
}
leak_check($nodes[1]);
leak_check($nodes[0], $standby);
done_testing();

# The number of sessions of pools on a node, without those for the shares.
sub sessions_on
{
	return $_[0]->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND application_name LIKE 'pgpool_ext%' AND application_name <> 'pgpool_ext lock'});
}

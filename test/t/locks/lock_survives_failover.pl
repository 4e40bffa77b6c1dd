# The remote server of the locks is a primary with a synchronous replica, reached by a
# multi-host address. After a failover the holders still hold their locks, no other
# session acquires them, and tokens keep increasing. (Without synchronous replication
# this cannot be guaranteed.)
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = remote_node('primary', conf => [ 'wal_level = replica', 'max_wal_senders = 5', 'hot_standby = on' ]);
$primary->append_conf('pg_hba.conf', 'local replication all trust');
$primary->reload;
$primary->backup('backup');
my $replica = PostgreSQL::Test::Cluster->new('replica');
$replica->init_from_backup($primary, 'backup', has_streaming => 1);
$replica->append_conf('postgresql.conf', 'listen_addresses = \'127.0.0.1\'');
$replica->append_conf('postgresql.conf', 'port = ' . $replica->port);
$replica->start;
$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$primary->reload;
ok(wait_until($primary, 'SELECT string_agg(sync_state, $$,$$) FROM pg_stat_replication', 'sync'), 'replica is synchronous');

# the setting of the role is not sufficient for a lock
$primary->safe_psql('postgres', 'ALTER ROLE remote_app SET synchronous_commit = off');
my $one = local_node('one');
my $two = local_node('two');
my %options = (host => '127.0.0.1,127.0.0.1', port => $primary->port . ',' . $replica->port,
	target_session_attrs => 'read-write', retry_max => '200ms');
make_pool($_, $primary, server => 'keeper', options => {%options}) foreach $one, $two;
make_pool($one, $primary, server => 'standby', options => { port => $replica->port });
$one->safe_psql('postgres', q{SELECT pgpool.lock_setup('keeper')});

my $holder = PgpxSession->new($one);
my $other = PgpxSession->new($two);

# a standby cannot keep locks
ok(wait_until($replica, sub { $replica->safe_psql('remote_db', q{SELECT to_regclass('pgpool_lock.locks') IS NOT NULL}) }, 't', 20),
	'replica has the tables');
foreach my $call (q{pgpool.try_lock('standby', 'a')}, q{pgpool.lock('standby', 'a', '30 s')})
{
	$holder->fails("SELECT $call", '25006', qr/HINT:  Locks need the primary.*target_session_attrs/s, "$call: remote server in recovery is reported");
}
is($one->safe_psql('postgres', 'SELECT count(*) FROM pgpool.locks'), '0', 'refused request leaves no lock');

my $token = $holder->run(q{SELECT pgpool.lock('keeper', 'a', ttl => '10 min')});
like($token, qr/^\d+$/, 'lock is held') or diag($holder->error);

# a session behind other sessions of its own server is refused without a request
$other->start(q{SELECT pgpool.lock('keeper', 'a', '1 min')});
ok(wait_until($two, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND state = 'active' AND pid = @{[$other->pid]}", 1), 'another server waits for the lock');
{
	my $behind = PgpxSession->new($two);

	$behind->fails(q{SELECT pgpool.lock('keeper', 'a', '10 ms')}, '55P03', qr/lock "a" of server "keeper" did not become available within 10 ms\n.*DETAIL:  Other sessions wait for the lock, too\./, 'session behind another one of its server times out without a request');
	$behind->quit;
}
$two->safe_psql('postgres', "SELECT pg_cancel_backend(@{[$other->pid]})");
$other->finish(20);

# a grant that the replica has not confirmed is not reported
my $sender = $primary->safe_psql('postgres', 'SELECT pid FROM pg_stat_replication');
kill 'STOP', $sender;
$other->start(q{SELECT pgpool.lock('keeper', 'b', '1 h', '1 min')});
ok(wait_until($primary, q{SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name <> 'pgpool_ext lock' AND wait_event = 'SyncRep'}), 'grant waits for the replica');
is($other->done, 0, 'no lock is granted while the replica does not confirm');
ok(wait_until($primary, q{SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock' AND wait_event = 'SyncRep'}, 't'), 'ping is not answered while the replica does not confirm');
kill 'CONT', $sender;
$other->finish(20);
like($other->run(q{SELECT pgpool.lock('keeper', 'c', '1 min', '1 min')}), qr/^\d+$/, 'lock is granted when the replica confirms')
  or diag($other->error);

# --- the primary does not answer for a moment, so that the pool begins with the standby
# for a minute: a ping that fails there moves back to the primary
{
	my $log = -s $one->logfile;
	my ($postmaster) = split /\n/, slurp_file($primary->data_dir . '/postmaster.pid');

	make_pool($one, $primary, server => 'any_host',
		options => { host => $options{host}, port => $options{port}, pool_size => 2, connect_timeout => '4s', retry_max => '200ms' });
	my $d = $holder->run(q{SELECT pgpool.lock('any_host', 'd', ttl => '10 min')});
	ok(wait_until($one, q{SELECT last_ping > '-infinity' FROM pgpool.locks WHERE name = 'd'}, 't'), 'lock of any host is pinged at the first one');
	kill 'STOP', $postmaster;
	$holder->run(q{SELECT pgpool.prewarm('any_host', 2)});
	is($one->safe_psql('postgres', q{SELECT count(*) FROM pgpool.connections WHERE server = 'any_host' AND remote_port = } . $replica->port), '1', 'pool uses the standby while the first host does not answer');
	kill 'CONT', $postmaster;
	my $since = $one->safe_psql('postgres', 'SELECT clock_timestamp()');
	$primary->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'});
	ok(wait_until($one, sub { slurp_file($one->logfile, $log) =~ /cannot ping the locks of server "any_host".*\n.*read-only/ ? 1 : 0 }, 1, 30), 'new connection for pings uses the standby');
	ok(wait_until($one, "SELECT last_ping > '$since' FROM pgpool.locks WHERE name = 'd'", 't', 30), 'next connection for pings uses the first host again');
	is($holder->run("SELECT pgpool.lock_valid('any_host', 'd', $d)"), 't', 'lock is not lost');
}

# --- failover
$primary->stop('immediate');
my $ping = $one->safe_psql('postgres', 'SELECT clock_timestamp()');
$replica->promote;
ok(wait_until($one, "SELECT last_ping > '$ping' FROM pgpool.locks WHERE name = 'a'", 't', 15), 'new primary is pinged');
is($holder->run("SELECT pgpool.lock_valid('keeper', 'a', $token)"), 't', 'lock is still held');
$other->run(q{SELECT pgpool.lock('keeper', 'a', '1 s')});
is($other->sqlstate, '55P03', 'no other session acquires the lock') or diag($other->error);
is($holder->run("SELECT pgpool.unlock('keeper', 'a', $token)"), 't', 'lock is released at the new primary');
my $next = $other->run(q{SELECT pgpool.lock('keeper', 'a', '10 min')});
cmp_ok($next, '>', $token, 'next session acquires the lock with a higher token') or diag($other->error);
is($replica->safe_psql('remote_db', q{SELECT count(*) FROM pgpool_lock.locks WHERE name = 'a' AND state = 'held'}), '1', 'new primary has the lock');

check_invariants($_) foreach $one, $two;
$_->quit foreach $holder, $other;
leak_check($two);
leak_check($one, $replica);
done_testing();

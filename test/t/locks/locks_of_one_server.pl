# Locks of one server. Pools that connect to different databases have different locks.
# The connection for pings ends between the commit of a release and its answer. It does
# not answer while another lock must be pinged.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'locks do not depend on TLS' if over_tls();

my $remote = remote_node('remote', conf => [ 'wal_level = replica', 'max_wal_senders = 1' ]);
my $local = local_node('local');
my $holder = PgpxSession->new($local);
my $other = PgpxSession->new($local);
my $pinger = q{FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'};

# Set the standby for whose confirmation commits on the remote server wait. An empty name
# ends the wait.
sub wait_for_standby
{
	my ($name) = @_;

	$remote->safe_psql('postgres', "ALTER SYSTEM SET synchronous_standby_names = '$name'");
	$remote->reload;
	return wait_until($remote, 'SHOW synchronous_standby_names', $name, 30);
}

make_pool($local, $remote, server => 'locks');
$holder->run(q{SELECT pgpool.lock_setup('locks')});

# --- without the option dbname, each remote user has a database of its own
make_pool($local, $remote, server => 'by_user');
$local->safe_psql('postgres', qq{
	ALTER SERVER by_user OPTIONS (DROP dbname);
	ALTER USER MAPPING FOR CURRENT_USER SERVER by_user OPTIONS (SET user 'remote_super', SET password '$REMOTE_SUPER_PASSWORD')});
$remote->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(remote_app remote_super);
is($holder->run(q{SELECT pgpool.lock_setup('by_user')}) . $holder->error, '', 'tables of one database are created');
$remote->safe_psql('remote_app', 'GRANT CREATE ON DATABASE remote_app TO remote_app');
is($holder->run(q{SET ROLE app; SELECT pgpool.lock_setup('by_user'); RESET ROLE}) . $holder->error, '', 'tables of the other database are created');
my $token = $holder->run(q{SELECT pgpool.lock('by_user', 'name')});
like($token, qr/^\d+$/, 'lock in one database is acquired');
my $second = $holder->run(q{SET ROLE app; SELECT pgpool.try_lock('by_user', 'name'); RESET ROLE});
like($second . $holder->error, qr/^\d+$/, 'the same session acquires the lock of this name in the other database');
is($holder->run(qq{SET ROLE app; SELECT pgpool.unlock('by_user', 'name', $second); RESET ROLE}) . $holder->error, 't', 'lock in the other database is released');
my $app = PgpxSession->new($local, user => 'app');
my $third = $app->run(q{SELECT pgpool.try_lock('by_user', 'name')});
like($third . $app->error, qr/^\d+$/, 'another session acquires the lock in the other database');
is($other->run(q{SELECT pgpool.try_lock('by_user', 'name') IS NULL}), 't', 'lock in the first database is not free');
is($app->run("SELECT pgpool.unlock('by_user', 'name', $third)") . $holder->run("SELECT pgpool.unlock('by_user', 'name', $token)"), 'tt', 'both locks are released');
$app->quit;

# --- the release is committed, and the connection ends before the answer; before it is
# repeated, another server acquires the lock
$token = $holder->run(q{SELECT pgpool.lock('locks', 'first', ttl => '10 min')});
is($holder->run("SELECT pgpool.unlock('locks', 'first', $token)"), 't', 'release without a fault');
# The worker sends a ping each second. If a ping waits, the release is not sent. If the
# remote server has not processed the new value yet, the release does not wait. Try again
# in both cases.
my $waiting = "$pinger AND wait_event = 'SyncRep'";
my $sent = '';
my $watch = PgpxSession->new($remote);
my $taker = PgpxSession->new($remote, dbname => 'remote_db');
foreach my $attempt (1 .. 20)
{
	$token = $holder->run(q{SELECT pgpool.lock('locks', 'first', ttl => '10 min')});
	ok(wait_for_standby('none'), 'commits wait for a standby');
	$holder->start("SELECT pgpool.unlock('locks', 'first', $token)");
	my $waits = wait_until($remote, sub { $watch->run("SELECT count(*) $waiting") }, 1, 10);
	$sent = !$waits ? '' : $watch->run("SELECT query LIKE '%SET state = ''free''%' $waiting");
	last if $sent eq 't';
	wait_for_standby('');
	$holder->finish(30);
}
is($sent, 't', 'release waits after its commit');
$taker->start(q{SET synchronous_commit = local; UPDATE pgpool_lock.locks SET instance = 'elsewhere', state = 'held', token = token + 1 WHERE name = 'first'});
ok(wait_until($remote, sub { $watch->run(q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%elsewhere%' AND pid <> pg_backend_pid()}) }, 1, 30), 'another server waits for the row');
is($watch->run("SELECT pg_terminate_backend(pid, 20000) $waiting"), 't', 'connection ends before the answer');
wait_for_standby('');
is($holder->finish(30), '', 'unlock returns NULL');
like($holder->error, qr/WARNING:  01000: lock "first" of server "locks" was released, but the remote server has not confirmed it/, 'unlock does not report the lock as lost');
$taker->finish(30);
is($remote->safe_psql('remote_db', q{SELECT instance, state FROM pgpool_lock.locks WHERE name = 'first'}), 'elsewhere|held', 'other server holds the lock');
$_->quit foreach $watch, $taker;

# --- a release is not answered while a lock with a short ttl must be pinged
$token = $holder->run(q{SELECT pgpool.lock('locks', 'long', ttl => '1 h')});
ok(wait_until($remote, "SELECT count(*) $pinger AND datname = 'remote_db' AND state = 'idle'", 1), 'connection for pings is idle');
my $pid = $remote->safe_psql('postgres', "SELECT pid $pinger AND datname = 'remote_db'");
kill 'STOP', $pid;
$holder->start("SELECT pgpool.unlock('locks', 'long', $token)");
ok(wait_until($local, q{SELECT state FROM pgpool.locks WHERE name = 'long'}, 'releasing'), 'release is not answered');
like($other->run(q{SELECT pgpool.lock('locks', 'short', ttl => '6 s')}), qr/^\d+$/, 'another lock is acquired');
ok(wait_until($local, q{SELECT last_ping IS NOT NULL FROM pgpool.locks WHERE name = 'short'}), 'lock with a shorter ttl is pinged by another connection');
kill 'CONT', $pid;
$holder->finish;
$other->run('SELECT pgpool.unlock_all()');

$_->quit foreach $holder, $other;
ok(wait_until($local, 'SELECT count(*) FROM pgpool.locks', 0, 60), 'locks of sessions that end are released');
check_invariants($local);
leak_check($local, $remote);
done_testing();

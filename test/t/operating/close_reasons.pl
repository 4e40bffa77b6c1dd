# Each cause that closes a connection has a counter of its own in pgpool.stats and a
# message in the log, and each reason to wait has a name in pgpool.waiters: one event
# counts exactly once.
use strict;
use warnings;

use IO::Socket::INET;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# never answers; the kernel accepts the connections
my $silent = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1') or die "no listener: $!";
my $remote = remote_node('remote', conf => ["client_connection_check_interval = '200ms'"]);
my $local = local_node('local', conf => [ 'pgpool_ext.max_connections = 40', 'pgpool_ext.log_connections = on' ]);
my ($session, $holder, $other) = map { PgpxSession->new($local) } 1 .. 3;
my @counters = split / /, $local->safe_psql('postgres', <<'EOT');
CREATE EXTENSION pgpool_ext;
SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'pgpool.stats'::regclass AND attname ~ '^closed_';
EOT
my %seen;
my %because = (
	closed_idle => 'It was idle for longer than idle_timeout.',
	closed_lifetime => 'It was older than max_lifetime.',
	closed_uses => 'It was leased max_uses times.',
	closed_overflow => 'The pool had more connections than pool_size.',
	closed_evicted => 'It was closed in favor of another pool, or because a cap on the connections of its server had become smaller.',
	closed_reset => 'Its reset failed or could not be confirmed.',
	closed_broken => 'It was lost, its protocol stream was invalid, or the remote server had become read-only.',
	closed_drained => 'An administrator requested it.',
	closed_stale => 'The options have changed, or reconnect was called.',
	closed_terminated => 'Its lease was terminated or exceeded lease_timeout.',
	closed_holder_died => 'Its lease ended in the middle of a statement, or with a transaction that could not be rolled back.',
	closed_discarded => 'Its lease was discarded.');

# Assert that an event closes the only connection of a pool for the expected cause.
sub closes_as
{
	my ($counter, $options, $event) = @_;
	my $server = "s_$counter";

	make_pool($local, $remote, server => $server, options => { pool_size => 1, %$options });
	$session->run("SELECT pgpool.exec('$server', 'select 1')");
	$event->($server);
	my $stats = sub {
		return $local->safe_psql('postgres', "SELECT string_agg(key || ' ' || value, ' ' ORDER BY key) FROM pgpool.stats s, jsonb_each_text(to_jsonb(s)) WHERE server = '$server' AND local_user = current_user AND key ~ '^closed_' AND value <> '0'");
	};
	ok(wait_until($local, $stats, "$counter 1", 30), "$counter is the only counter that increases");
	my $logged = sub { return slurp_file($local->logfile) =~ /closed connection \d+ to server "$server" .*\n.* DETAIL:  (.*)\n/ ? $1 : '' };
	ok(wait_until($local, $logged, $because{$counter}, 30), "$counter: log has the reason");
	$seen{$counter}++;
	return;
}

sub nothing { return; }

sub sql
{
	my ($sql) = @_;

	return sub { my $text = $sql =~ s/%/$_[0]/gr; $local->safe_psql('postgres', $text); };
}

closes_as('closed_idle', { idle_timeout => '200ms' }, \&nothing);
closes_as('closed_lifetime', { max_lifetime => '200ms' }, \&nothing);
closes_as('closed_uses', { max_uses => 1 }, \&nothing);
closes_as('closed_overflow', { max_overflow => 1, overflow_ttl => '100ms' }, sub {
		my ($server) = @_;

		lease($_, $server) foreach $holder, $other;
		$_->run('SELECT pgpool.checkin_all()') foreach $holder, $other;
	});
closes_as('closed_evicted', { max_server_connections => 1 }, sub {
		my $mine = PgpxSession->new($local, user => 'app');

		is($mine->run("SELECT pgpool.exec('$_[0]', 'select 1')", 30) . $mine->error, '1', q{another user's call succeeds});
	});
closes_as('closed_reset', { reset_command => 'select 1/0' }, \&nothing);
closes_as('closed_broken', {}, sub {
		wait_until($local, "SELECT state FROM pgpool.connections WHERE server = '$_[0]'", 'idle', 30);
		$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/$_[0]'");
	});
closes_as('closed_drained', {}, sql("SELECT pgpool.drain('%', '30 s')"));
closes_as('closed_stale', { pool_size => 2 }, sub {
		# a pool with outdated options is forgotten when its last connection closes
		my ($server) = @_;

		lease($_, $server) foreach $holder, $other;
		$local->safe_psql('postgres', "ALTER SERVER $server OPTIONS (ADD application_name 'changed')");
		$holder->run('SELECT pgpool.checkin_all()');
	});
$other->run('SELECT pgpool.checkin_all()');
closes_as('closed_terminated', {}, sub { my $lease = lease($holder, $_[0]); $other->run("SELECT pgpool.terminate($lease)"); });
closes_as('closed_holder_died', {}, sub {
		my $mine = PgpxSession->new($local);
		my $lease = lease($mine, $_[0]);

		$mine->run("SELECT pgpool.send($lease, 'select pg_sleep(600)')");
		$mine->quit;
	});
closes_as('closed_discarded', {}, sub { my $lease = lease($holder, $_[0]); $holder->run("SELECT pgpool.discard($lease)"); });
$holder->run('SELECT pgpool.checkin_all()');
is(join(' ', sort keys %seen), join(' ', sort @counters), 'every counter was tested');

# --- reasons to wait
sub waits_for
{
	my ($reason, $server) = @_;
	my $pid = $session->pid;

	$session->start("SELECT pgpool.checkout('$server', '60 s')");
	ok(wait_until($local, "SELECT reason FROM pgpool.waiters WHERE pid = $pid", $reason, 30), "waiter shows the reason $reason");
	$local->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	$session->finish(30);
	return;
}

make_pool($local, $remote, server => 'w_full', options => { pool_size => 1 });
lease($holder, 'w_full');
waits_for('full', 'w_full');
make_pool($local, $remote, server => 'w_paused');
$local->safe_psql('postgres', q{SELECT pgpool.pause('w_paused')});
waits_for('paused', 'w_paused');
make_pool($local, $remote, server => 'w_connecting', options => { port => $silent->sockport, connect_timeout => '10min' });
waits_for('connecting', 'w_connecting');
make_pool($local, $remote, server => 'w_unavailable', remote_dbname => 'no_such_db',
	options => { on_unavailable => 'wait', retry_min => '60s', retry_max => '60s' });
waits_for('unavailable', 'w_unavailable');
make_pool($local, $remote, server => 'w_server_cap', options => { max_server_connections => 1 });
my $mine = PgpxSession->new($local, user => 'app');
lease($mine, 'w_server_cap');
waits_for('server_cap', 'w_server_cap');
make_pool($local, $remote, server => 'w_hog', options => { pool_size => 100 });
$other->run(q{SELECT pgpool.try_checkout('w_hog') FROM generate_series(1, 100)});
make_pool($local, $remote, server => 'w_global_cap');
my $all_are_leased = sub {
	$other->run(q{SELECT pgpool.checkout('w_hog', '300 ms') FROM generate_series(1, 100)});
	return $local->safe_psql('postgres', <<'EOT');
SELECT connections_used = connections_max
	AND NOT EXISTS (SELECT FROM pgpool.connections WHERE state <> 'leased' AND server <> 'w_connecting')
FROM pgpool.workers
EOT
};
ok(wait_until($local, $all_are_leased, 't', 60), 'one pool has all slots');
waits_for('global_cap', 'w_global_cap');
$_->run('SELECT pgpool.checkin_all()'), $_->quit foreach $session, $holder, $other, $mine;

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

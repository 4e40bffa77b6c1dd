# Each packet that comes in calls upon every session that has the connection's socket in
# its epoll set.  So a session has a socket there only where nobody else has use
# for it.
use strict;
use warnings;

use PgpxTest;
use Test::More;

# (The answer to a reset would come in for nobody in particular.)
my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'p', options => { pool_size => 1, reset => 'never' });
make_pool($local, $remote, server => 'q', options => { pool_size => 1, reset => 'never' });

my @sessions = map { PgpxSession->new($local) } 1 .. 3;
$_->run('SET pgpool_ext.busy_poll = 0') foreach @sessions;

# How many sockets of connections this session's epoll sets have.  (Another one, of the
# server's own, is that of its client.)
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

sub sleeps { return "SELECT a FROM pgpool.query('$_[0]', 'select pg_sleep(0.1)::text') AS t(a text)"; }

is(all_watched(), '0 0 0', 'no socket in the beginning');

# --- nobody waits: it stays, so that the next look is cheap
$sessions[0]->run(sleeps('p'));
is(all_watched(), '1 0 0', 'what nobody waits for stays');

# --- but not while this session sleeps for another one
$sessions[0]->run(sleeps('q'));
is(all_watched(), '1 0 0', 'what it did not sleep for is not watched any more');

# --- somebody waits for the connection: it is watched for the answer alone
$sessions[0]->start("SELECT a FROM pgpool.query('p', 'select pg_sleep(60)::text') AS t(a text)");
ok(wait_until($local, "SELECT count(*) FROM pgpool.leases WHERE server = 'p'", 1), 'the connection is taken');
foreach my $i (1, 2)
{
	$sessions[$i]->start(sleeps('p'));
	ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = 'p'", $i), "session $i waits for it");
}
my $pid = $sessions[0]->pid;
ok(wait_until($local, sub { watched($sessions[0]) }, 1), 'its lessee watches it');
$local->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
$sessions[0]->finish;
is($sessions[0]->sqlstate, '57014', 'it is interrupted');
$sessions[$_]->finish foreach 1, 2;

# again; who has it now ends it by itself, when the remote lets it
my $blocker = PgpxSession->new($remote, dbname => 'remote_db');
$blocker->run('BEGIN; SELECT pg_advisory_xact_lock(1)');
$sessions[0]->start("SELECT a FROM pgpool.query('p', 'select pg_advisory_xact_lock(1)::text') AS t(a text)");
ok(wait_until($local, "SELECT count(*) FROM pgpool.leases WHERE server = 'p'", 1), 'taken again');
foreach my $i (1, 2)
{
	$sessions[$i]->start(sleeps('p'));
	ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = 'p'", $i), "session $i waits again");
}
$blocker->quit;
$sessions[$_]->finish foreach 0, 1, 2;
is(watched($sessions[0]), 0, 'who hands over to a waiter watches it no longer');
is(join(' ', map { $_->error } @sessions), '  ', 'no errors');


# --- and it is left with few: with 500 the kernel would refuse it to the next one
my @many = map { PgpxSession->new($local) } 1 .. 20;
my $all_use_it = sub { return join ' ', map { $_->run(q{SELECT a FROM pgpool.query('p', 'select 1') AS t(a int)}) } @many; };
my $watching = sub { my $n = 0; $n += watched($_) foreach @sessions, @many; return $n; };

# (not at the first time, when there is no socket yet to look at)
ok(wait_until($local, sub { $all_use_it->(); return $watching->(); }, 16), 'of twenty that use it in turn sixteen go on watching it');
is($all_use_it->(), join(' ', (1) x 20), 'once more');
is($watching->(), 16, 'they are no more');
my ($other) = grep { !watched($_) } @many;
$other->run('SET pgpool_ext.busy_poll = 0');
is($other->run(sleeps('p')), '', 'another one waits for an answer on it');
is(watched($other), 0, 'and does not watch it then');
$_->quit foreach grep { $_ != $other } @many;
ok(wait_until($local, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'}, 5), 'nineteen end');
$other->run(sleeps('p'));
is(watched($other), 1, 'it is among the few now');
$other->quit;

# --- more than a look takes in have something to say, but not the one that is looked at
make_pool($local, $remote, server => 'r', options => { pool_size => 12 });
my @leases = map { lease($sessions[1], 'r') } 1 .. 12;
$sessions[1]->run("SELECT pgpool.exec($_, 'select 1')") foreach @leases;
$sessions[1]->run('SELECT pgpool.checkin_all()');
ok(wait_until($local, q{SELECT idle FROM pgpool.pools WHERE server = 'r'}, 12), 'twelve are idle, whose sockets a session has kept');
@leases = map { lease($sessions[1], 'r') } 1 .. 12;
is(watched($sessions[1]), 12, 'it has looked at them');
my $ends = $local->safe_psql('postgres', "SELECT string_agg(remote_pid::text, ',') FROM pgpool.connections WHERE server = 'r' AND lease <> $leases[11]");
$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid, 20000) FROM unnest('{$ends}'::int[]) AS pid");
is($sessions[1]->run("SELECT pgpool.exec($leases[11], 'select 1')", 20) . $sessions[1]->error, '1', 'eleven of them come to their end, and the twelfth works');
is(watched($sessions[1]), 1, '.. and only that one is watched');
$sessions[1]->run('SELECT pgpool.checkin_all()');

$_->quit foreach @sessions;
leak_check($local, $remote);
done_testing();

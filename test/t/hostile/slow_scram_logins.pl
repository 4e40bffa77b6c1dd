# A remote server requests a SCRAM iteration count whose computation lasts too long. It
# is computed in threads beside the event loop, so other pools are not affected.
# Abandoned computations continue at idle priority in a bounded number of threads, even if
# options change, affect no other login, and leave nothing in the end. (For the bounds
# see 088, which only simulates the computation.)
use strict;
use warnings;

use PgpxFakeServer qw(message);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the computations of SCRAM do not depend on TLS' if over_tls();

# iteration counts: at least a minute of computation on any machine, and longer than connect_timeout
my $FOR_EVER = 1_000_000_000;
my $SOME_TIME = 1_500_000;

sub asks_for
{
	my ($iterations) = @_;

	return { login => sub {
		my ($fake) = @_;

		$fake->send(message('R', pack('N', 10) . "SCRAM-SHA-256\0\0"));
		my ($type, $length) = unpack 'aN', $fake->read_bytes(5);
		my ($nonce) = $fake->read_bytes($length - 4) =~ /,r=([^,]+)/;
		$fake->send(message('R', pack('N', 11) . "r=${nonce}more,s=c2FsdHNhbHRzYWx0c2FsdA==,i=$iterations"));
		sleep 3600;
	} };
}

my $fake = PgpxFakeServer->new(forever => asks_for($FOR_EVER), late => asks_for($SOME_TIME));
my $remote = remote_node('remote');
my $local = local_node('local');
my %options = (port => $fake->port, sslmode => PgpxFakeServer::sslmode(), pool_size => 8, retry_min => '10 ms', retry_max => '10 ms');
my @sessions = map { PgpxSession->new($local) } 1 .. 6;
my $other = PgpxSession->new($local);

make_pool($local, $remote, server => 'other');
make_pool($local, $remote, server => 'forever', remote_dbname => 'forever', options => { %options, connect_timeout => '1h' });
make_pool($local, $remote, server => 'late', remote_dbname => 'late', options => { %options, connect_timeout => '100ms' });

my $worker = worker_pid($local);

sub threads { return threads_of($worker); }

# The number of threads, and of those that block all handled signals. (A thread whose
# step has ended exists for a moment longer.)
sub masks
{
	my %threads = (all => 0, blocked => 0);

	foreach my $status (glob "/proc/$worker/task/*/status")
	{
		next if $status =~ m{/task/$worker/};
		open my $file, '<', $status or next;
		my ($mask) = map { /^SigBlk:\s+\w*(\w{8})$/ ? hex $1 : () } <$file>;
		next if !defined $mask;
		$threads{all}++;
		$threads{blocked}++ if 6 == grep { $mask >> ($_ - 1) & 1 } 1, 2, 10, 12, 14, 15;
	}
	return "$threads{all} $threads{blocked}";
}

my $kept = q{SELECT sum(descriptors) - } . descriptors_wanted() . q{ FROM pgpool.workers};

# --- connect_timeout
ok(wait_until($local, sub {
	# on a busy machine another attempt may be needed to reach the computation
	$other->run(q{SELECT pgpool.checkout('late', '30 s')});
	return $other->sqlstate eq '08001' && $other->error =~ /did not end within connect_timeout \(0\.1 s\): what the remote server asks for takes longer to compute/ ? 1 : 0;
}, 1), 'waiter receives the reason') or diag($other->error);
ok(wait_until($local, \&threads, '0 1'), 'abandoned login continues at idle priority');
ok(wait_until($local, $kept, 1), 'abandoned login keeps its socket');
ok(wait_until($local, \&threads, '0 0'), 'abandoned login ends');
ok(wait_until($local, $kept, 0), 'socket of the abandoned login is closed');

# --- other pools do not wait
$_->start(q{SELECT pgpool.checkout('forever', '1 min')}) foreach @sessions;
ok(wait_until($local, \&threads, '4 0'), 'pool has four logins in threads');
ok(wait_until($local, \&masks, '4 4'), 'threads block signals');
like($other->run(q{SELECT pgpool.checkout('other', '20 s')}), qr/^\d+$/, 'another pool of the worker connects meanwhile')
  or diag($other->error);
is($other->run(q{SELECT * FROM pgpool.query('other', 'select 7') AS (x int)}), 7, 'another pool executes statements');
is($other->run(q{SELECT pgpool.checkin_all()}), 1, q{another pool's lease is returned});
is($local->safe_psql('postgres', q{SELECT connecting FROM pgpool.pools WHERE server = 'forever'}), 6, 'other logins are still connecting');
check_invariants($local);

# --- the waiters end, and the pool is drained
terminate($local, $_->pid) foreach @sessions;
$local->safe_psql('postgres', q{ALTER SERVER forever OPTIONS (SET connect_timeout '500ms')});
$local->safe_psql('postgres', q{SELECT pgpool.drain('forever')});
ok(wait_until($local, \&threads, '0 4'), 'four threads are left');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'forever'}, 0), 'pool has no connections');
check_invariants($local);

# --- further attempts start no thread
$local->safe_psql('postgres', q{SELECT pgpool.resume('forever')});
$other->fails(q{SELECT pgpool.checkout('forever', '10 s')}, '08001', qr/did not end within connect_timeout \(0\.5 s\): earlier logins of the pool are still computing their authentication/, 'attempt after a change of an option in place has to wait');
is(threads(), '0 4', "attempt after a change of an option in place has no thread");
$local->safe_psql('postgres', q{ALTER SERVER forever OPTIONS (ADD application_name 'again')});
my @again = map { PgpxSession->new($local) } 1 .. 6;
$_->start(q{SELECT pgpool.checkout('forever', '10 s')}) foreach @again;
$_->finish foreach @again;
is(scalar(grep { $_->error =~ /did not end within connect_timeout/ } @again), 6, 'further attempts time out')
  or diag(map { $_->error } @again);
ok(wait_until($local, sub {
	# on a busy machine another attempt may be needed to reach the computation
	$other->run(q{SELECT pgpool.checkout('forever', '10 s')}) if threads() ne '0 8';
	return threads();
}, '0 8'), 'logins with a new option have four more threads');

# --- logins with another user mapping have four more threads, too
my $left = 8;
foreach my $change (
	q{ALTER USER MAPPING FOR CURRENT_USER SERVER forever OPTIONS (SET password 'another')},
	q{DROP USER MAPPING FOR CURRENT_USER SERVER forever; CREATE USER MAPPING FOR CURRENT_USER SERVER forever OPTIONS (user 'remote_app', password 'secret of the remote')})
{
	$local->safe_psql('postgres', $change);
	$left += 4;
	ok(wait_until($local, sub {
		# the first four attempts start a thread
		$other->run(q{SELECT pgpool.checkout('forever', '10 s')});
		return $other->sqlstate eq '08001' && $other->error =~ qr/did not end within connect_timeout \(0\.5 s\): earlier logins of the pool are still computing their authentication/ ? 1 : 0;
	}, 1), "$change: further attempt has to wait") or diag($other->error);
	ok(wait_until($local, \&threads, "0 $left"), "$change: logins have four more threads");
}

# --- a working address does not queue behind an unresponsive one
$local->safe_psql('postgres', q{ALTER SERVER forever OPTIONS (SET port '} . $remote->port . q{', SET dbname 'remote_db', SET connect_timeout '1min', SET sslmode 'prefer')});
like($other->run(q{SELECT pgpool.checkout('forever', '30 s')}), qr/^\d+$/, 'pool connects to its new address') or diag($other->error);
is($other->run(q{SELECT pgpool.checkin_all()}), 1, 'lease can be returned');

# --- the worker exits in order
my $log = -s $local->logfile;
terminate($local, $worker);
ok(wait_until($local, sub { my $pid = worker_pid($local); $pid ne '' && $pid ne $worker ? 1 : 0 }, 1), 'worker starts again');
unlike(slurp_file($local->logfile, $log), qr/was terminated by signal|terminating any other active/, 'worker has not crashed');
like($other->run(q{SELECT pgpool.checkout('other', '30 s')}), qr/^\d+$/, 'pools of the new worker work');
$_->quit foreach @sessions, @again, $other;
check_invariants($local);
leak_check($local, $remote);
done_testing();

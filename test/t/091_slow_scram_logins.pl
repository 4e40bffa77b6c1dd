# A remote says how often a login has to hash (SCRAM's iteration count), and says a
# number for which there is no time.  That is computed beside the worker's loop: other
# pools do not notice.  What was given up goes on at the lowest priority, in a few
# threads at most, whatever the pool is told, is in nobody's way, and nothing is left of
# it in the end.  (088 has the bounds, with logins that only seem to compute.)
use strict;
use warnings;

use PgpxFakeServer qw(message);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# A minute at least, on whatever machine; or some seconds.
my $FOR_EVER = 1_000_000_000;
my $SOME_TIME = 10_000_000;

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
my %options = (port => $fake->port, sslmode => PgpxFakeServer::sslmode(), pool_size => 8);
my @sessions = map { PgpxSession->new($local) } 1 .. 6;
my $other = PgpxSession->new($local);

make_pool($local, $remote, server => 'other');
make_pool($local, $remote, server => 'forever', remote_dbname => 'forever', options => { %options, connect_timeout => '1min' });
make_pool($local, $remote, server => 'late', remote_dbname => 'late', options => { %options, connect_timeout => '1s' });

my $worker = worker_pid($local);

sub threads { return threads_of($worker); }

# How many threads there are, and how many of them no signal is handled in.  (One whose
# step has ended is there a moment longer.)
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

# --- the time is up
$other->fails(q{SELECT pgpool.checkout('late', '30 s')}, '08001', qr/did not end within connect_timeout \(1 s\): what the remote server asks for takes longer to compute/, 'who waited is told why');
ok(wait_until($local, \&threads, '0 1'), 'what was given up goes on, when nothing else wants to run');
ok(wait_until($local, $kept, 1), 'and keeps its socket');
ok(wait_until($local, \&threads, '0 0'), 'until it comes to its end');
ok(wait_until($local, $kept, 0), 'and its socket with it');

# --- nobody else waits for it
$_->start(q{SELECT pgpool.checkout('forever', '1 min')}) foreach @sessions;
ok(wait_until($local, \&threads, '4 0'), 'a pool has four logins computed at once');
ok(wait_until($local, \&masks, '4 4'), 'in which no signal is handled');
like($other->run(q{SELECT pgpool.checkout('other', '20 s')}), qr/^\d+$/, 'another pool of the worker connects meanwhile')
  or diag($other->error);
is($other->run(q{SELECT * FROM pgpool.query('other', 'select 7') AS (x int)}), 7, 'and runs statements');
is($other->run(q{SELECT pgpool.checkin_all()}), 1, 'and takes it back');
is($local->safe_psql('postgres', q{SELECT connecting FROM pgpool.pools WHERE server = 'forever'}), 6, 'all that time the others were connecting');
check_invariants($local);

# --- those who waited go, and so does the pool
terminate($local, $_->pid) foreach @sessions;
$local->safe_psql('postgres', q{SELECT pgpool.drain('forever')});
ok(wait_until($local, \&threads, '0 4'), 'four threads are what it leaves behind');
ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'forever'}, 0), 'it has no connections any more');
check_invariants($local);

# --- no more threads, whoever tries
$local->safe_psql('postgres', q{ALTER SERVER forever OPTIONS (SET connect_timeout '500ms'); SELECT pgpool.resume('forever')});
$other->fails(q{SELECT pgpool.checkout('forever', '10 s')}, '08001', qr/did not end within connect_timeout \(0\.5 s\): logins before it still compute what the remote server has asked for/, 'an option that takes effect in place: one more has to wait');
is(threads(), '0 4', '.. and has no thread');
$local->safe_psql('postgres', q{ALTER SERVER forever OPTIONS (ADD application_name 'again')});
my @again = map { PgpxSession->new($local) } 1 .. 6;
$_->start(q{SELECT pgpool.checkout('forever', '10 s')}) foreach @again;
$_->finish foreach @again;
is(scalar(grep { $_->error =~ /did not end within connect_timeout/ } @again), 6, 'those who try again fail')
  or diag(map { $_->error } @again);
ok(wait_until($local, sub {
	# with some load not all have come so far in that time
	$other->run(q{SELECT pgpool.checkout('forever', '10 s')}) if threads() ne '0 8';
	return threads();
}, '0 8'), 'there are four more threads, for what is told now');

# --- whatever it is told
foreach my $change (
	q{ALTER USER MAPPING FOR CURRENT_USER SERVER forever OPTIONS (SET password 'another')},
	q{DROP USER MAPPING FOR CURRENT_USER SERVER forever; CREATE USER MAPPING FOR CURRENT_USER SERVER forever OPTIONS (user 'remote_app', password 'secret of the remote')})
{
	$local->safe_psql('postgres', $change);
	ok(wait_until($local, sub {
		# nor this one
		$other->run(q{SELECT pgpool.checkout('forever', '10 s')});
		return $other->sqlstate eq '08001' && $other->error =~ qr/did not end within connect_timeout \(0\.5 s\): logins before it still compute what the remote server has asked for/ ? 1 : 0;
	}, 1), "$change: one more has to wait") or diag($other->error);
	ok(wait_until($local, \&threads, '0 8'), '.. and has no thread');
}

# --- a good address is not in line behind a bad one
$local->safe_psql('postgres', q{ALTER SERVER forever OPTIONS (SET port '} . $remote->port . q{', SET dbname 'remote_db', SET connect_timeout '1min', SET sslmode 'prefer')});
like($other->run(q{SELECT pgpool.checkout('forever', '30 s')}), qr/^\d+$/, 'it connects to where it is told to now') or diag($other->error);
is($other->run(q{SELECT pgpool.checkin_all()}), 1, 'it is as good as any other');

# --- the end of the worker is an orderly one
my $log = -s $local->logfile;
terminate($local, $worker);
ok(wait_until($local, sub { my $pid = worker_pid($local); $pid ne '' && $pid ne $worker ? 1 : 0 }, 1), 'the worker starts again');
unlike(slurp_file($local->logfile, $log), qr/was terminated by signal|terminating any other active/, 'and has not crashed');
like($other->run(q{SELECT pgpool.checkout('other', '30 s')}), qr/^\d+$/, 'its pools work');
$_->quit foreach @sessions, @again, $other;
check_invariants($local);
leak_check($local, $remote);
done_testing();

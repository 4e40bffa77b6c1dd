# Clock changes. The clock of the holder's server is set by an hour and back: no effect.
# The clock of the remote server is set back: the lock stays. It is set forward by more
# than the ttl: another session can acquire the lock at once, the holder learns of it
# from its next ping, the fence refuses it, and tokens still increase.
use strict;
use warnings;

use PgpxClock;
use PgpxTest;
use Test::More;

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
plan skip_all => 'clocks do not depend on TLS' if over_tls();

my $remote = remote_node('remote');
my $one = local_node('one');
my $two = local_node('two');
make_pool($_, $remote, server => 'keeper') foreach $one, $two;
$one->safe_psql('postgres', q{SELECT pgpool.lock_setup('keeper')});
foreach my $node ($remote, $one)
{
	with_clock($node, sub { $node->restart });
}

my $holder = PgpxSession->new($one);
my $other = PgpxSession->new($two);
my $token = $holder->run(q{SELECT pgpool.lock('keeper', 'a', ttl => '1 min')});
my $valid = "SELECT pgpool.lock_valid('keeper', 'a', $token)";
my $hour = 3600;

foreach my $offset ($hour, -$hour, 0)
{
	set_clock($one, $offset);
	ok(wait_until($one, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time + $offset ]}) < 60", 't'), "clock of the holder's server is set to $offset");
	my $pinged = $one->safe_psql('postgres', 'SELECT valid_until FROM pgpool.locks');
	is($other->run(q{SELECT pgpool.try_lock('keeper', 'a')}) . $other->error, '', 'no other session acquires the lock');
	ok(wait_until($one, "SELECT valid_until <> '$pinged' AND state = 'held' FROM pgpool.locks"), 'lock is pinged');
	is($holder->run($valid), 't', 'lock is valid');
}

# --- the remote server's clock is set back
set_clock($remote, -$hour);
ok(wait_until($remote, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time - $hour ]}) < 60", 't'), 'clock of the remote server is set back');
is($other->run(q{SELECT pgpool.try_lock('keeper', 'a')}) . $other->error, '', 'no other session acquires the lock after the clock was set back');
is($holder->run($valid), 't', 'lock is valid after the clock was set back');
is($holder->run("SELECT pgpool.unlock('keeper', 'a', $token)"), 't', 'lock is released');
my $next = $holder->run(q{SELECT pgpool.lock('keeper', 'a', ttl => '1 min')});
cmp_ok($next, '>', $token, 'next token is higher although the clock was set back');

# --- the remote server's clock is set forward
set_clock($remote, $hour);
my $taken = $other->run(q{SELECT pgpool.lock('keeper', 'a', '1 min')});
cmp_ok($taken, '>', $next, 'another session acquires the lock after a jump forward, with a higher token') or diag($other->error);
ok(wait_until($one, q{SELECT state FROM pgpool.locks}, 'lost'), 'holder loses the lock');
is($holder->run("SELECT pgpool.lock_valid('keeper', 'a', $next)"), 'f', 'lock is not valid');
like($holder->error, qr/was lost/, 'warning reports the loss');
$holder->fails("SELECT pgpool.exec('keeper', 'SELECT pgpool_lock.fence_check(\$1, \$2::bigint)', 'a', $next)", '55000', qr/not valid any more/, 'fence refuses the old token');

check_invariants($_) foreach $one, $two;
$_->quit foreach $holder, $other;
$two->stop('fast');
leak_check($one, $remote);
done_testing();

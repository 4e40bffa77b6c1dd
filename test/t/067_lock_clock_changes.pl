# Clocks that are set: that of a holder's server by an hour, and back: nothing
# happens.  That of the remote: back, the lock stays; forward by more than the ttl,
# another one can take it at once, which the holder learns from its next ping, the
# fence refuses it, and tokens rise all the same.
use strict;
use warnings;

use PgpxClock;
use PgpxTest;
use Test::More;

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();

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
# (a ttl within which this machine may stand still for a while)
my $token = $holder->run(q{SELECT pgpool.lock('keeper', 'a', ttl => '6 s')});
my $valid = "SELECT pgpool.lock_valid('keeper', 'a', $token)";
my $hour = 3600;

foreach my $offset ($hour, -$hour, 0)
{
	set_clock($one, $offset);
	ok(wait_until($one, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time + $offset ]}) < 60", 't', 10), "the clock of the holder's server is set to $offset");
	is($other->run(q{SELECT pgpool.lock('keeper', 'a', '7 s')}) . $other->sqlstate, '55P03', 'nobody else gets the lock');
	is($holder->run($valid), 't', 'it is valid beyond its ttl');
}

# --- the remote's, back
set_clock($remote, -$hour);
ok(wait_until($remote, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time - $hour ]}) < 60", 't', 10), 'the clock of the remote is set back');
is($other->run(q{SELECT pgpool.lock('keeper', 'a', '7 s')}) . $other->sqlstate, '55P03', 'nobody else gets the lock');
is($holder->run($valid), 't', 'it is valid beyond its ttl');
is($holder->run("SELECT pgpool.unlock('keeper', 'a', $token)"), 't', 'it is released');
my $next = $holder->run(q{SELECT pgpool.lock('keeper', 'a', ttl => '2 s')});
cmp_ok($next, '>', $token, 'the next token is higher, though the clock has fallen back');

# --- forward
set_clock($remote, $hour);
my $taken = $other->run(q{SELECT pgpool.lock('keeper', 'a', '10 s')});
cmp_ok($taken, '>', $next, 'after a jump forward another one gets it, with a higher token') or diag($other->error);
ok(wait_until($one, q{SELECT state FROM pgpool.locks}, 'lost', 10), 'the holder loses it');
is($holder->run("SELECT pgpool.lock_valid('keeper', 'a', $next)"), 'f', 'and knows');
like($holder->error, qr/was lost/, 'by a warning');
$holder->fails("SELECT pgpool.exec('keeper', 'SELECT pgpool_lock.fence_check(\$1, \$2::bigint)', 'a', $next)", '55000', qr/not valid any more/, 'the fence refuses it');

check_invariants($_) foreach $one, $two;
$_->quit foreach $holder, $other;
$two->stop('fast');
leak_check($one, $remote);
done_testing();

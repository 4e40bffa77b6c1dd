# Names are looked up for each connect, so that one that leads elsewhere is followed;
# and a name server that does not answer delays those alone who want its names.
use strict;
use warnings;

use PgpxNetwork 'names';
use PgpxTest;
use Test::More;
use Time::HiRes qw(time);

PgpxNetwork::skip_all_without();
my $network = PgpxNetwork->new;
my $remote = remote_node('remote', conf => ["listen_addresses = '127.0.0.1, 127.0.0.2, 127.0.0.3'"]);
my $local = local_node('local');
my $control = local_node('control');
my $session = PgpxSession->new($local);
my $beside = PgpxSession->new($control);

sub where { return $session->run("SELECT a FROM pgpool.query('$_[0]', 'select inet_server_addr()') AS t(a inet)") . $session->error; }

# --- a name that leads elsewhere
$network->hosts('db.example' => '127.0.0.1');
make_pool($local, $remote, server => 'named', options => { host => 'db.example', pool_size => 2 });
is(where('named'), '127.0.0.1', 'a name leads somewhere');
$network->hosts('db.example' => '127.0.0.2');
is(where('named'), '127.0.0.1', 'it leads elsewhere: an open connection stays');
my $lease = lease($session, 'named');
is(where('named'), '127.0.0.2', 'a new one goes there');
$session->run('SELECT pgpool.checkin_all()');
$network->hosts('db.example' => '127.0.0.3');
$session->run("SELECT pgpool.reconnect('named')");
is(where('named'), '127.0.0.3', 'and all of them after reconnect');
$network->hosts();
$session->run("SELECT pgpool.reconnect('named')");
$session->run("SELECT pgpool.checkout('named')");
is($session->sqlstate, '08001', 'a name that is gone is an error');
like($session->error, qr/DETAIL:.*db\.example/, 'which tells the name');
$network->hosts('db.example' => '127.0.0.1');
ok(wait_until($local, sub { where('named') }, '127.0.0.1', 30), 'until it is back');

# --- a name server that does not answer: its packets are lost
$network->hosts('good.example' => '127.0.0.1');
$network->cut;
$network->resolver($network->address);
make_pool($local, $remote, server => 'good', options => { host => 'good.example', pool_size => 3 });
make_pool($control, $remote, server => 'good', options => { pool_size => 3 });
make_pool($local, $remote, server => "slow$_", options => { host => "slow$_.example", connect_timeout => '4s', pool_size => 3 }) foreach 1 .. 3;
my @lost = map { PgpxSession->new($local) } 1 .. 3;

# each opens a connection, which is the worker's work, with a name of its own; in turn
# with another server, whose worker has no name to look up; the others begin meanwhile
my $open = q{SELECT pgpool.discard(pgpool.checkout('good', '10 s'))};
my ($opened, $longest, $usual, $rounds, $end) = (0, 0, 0, 0, time() + 2.5);
while (time() < $end || ($opened <= 10 && time() < $end + 1))
{
	my $n = ++$rounds / 2;

	$lost[ $n - 1 ]->start("SELECT pgpool.checkout('slow$n', '60 s')") if $n == 1 || $n == 2 || $n == 3;
	my $took = seconds { $opened++ if $session->run($open) . $session->error eq '' };
	my $there = seconds { $beside->run($open) };

	$longest = $took if $took > $longest;
	$usual = $there if $there > $usual;
}
is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.connections WHERE server ~ 'slow' AND state = 'connecting'"), '3', 'three names are looked up');
is(scalar(grep { $_->done } @lost), 0, 'for seconds');
cmp_ok($opened, '>', 10, "meanwhile another pool has opened $opened connections");
is($beside->error, '', 'the other server opens them, too');
cmp_ok($longest, '<', 0.2 + $usual,
	sprintf 'the longest took %.3f s, with the other server %.3f s: the worker was not held up for 200 ms', $longest, $usual);
foreach my $n (1 .. 3)
{
	$lost[ $n - 1 ]->finish(60);
	$lost[ $n - 1 ]->failed('08001', qr/DETAIL:.*within connect_timeout \(4 s\)/, "slow$n: the look-up ends with the connect");
}

$_->quit foreach $session, $beside, @lost;
$control->stop('fast');
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

# Lookups of host names. A name that does not exist is reported and delays no other
# session.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
my $row = 'AS t(a int)';

make_pool($local, $remote, server => 'named', options => { host => 'localhost' });
make_pool($local, $remote, server => 'unknown', options => { host => 'no-such-host.invalid', connect_timeout => '8s' });
make_pool($local, $remote, server => 'several', options => { host => 'no-such-host.invalid,localhost', port => '1,' . $remote->port });

my $session = PgpxSession->new($local);
my $lost = PgpxSession->new($local);

is($session->run("SELECT * FROM pgpool.query('named', 'select 1') $row") . $session->error, '1', 'host name is looked up');
$lost->start("SELECT pgpool.checkout('unknown', '30 s')");
is($session->run("SELECT * FROM pgpool.query('named', 'select $_') $row"), $_, 'other pools work during a lookup') foreach 1 .. 5;
$lost->finish(20);
$lost->failed('08001', qr/DETAIL:.*no-such-host\.invalid/, 'unknown host name is reported');
$lost->run("SELECT * FROM pgpool.query('several', 'select 2') $row", 40);
is($lost->{text}, '2', 'next host of the list is tried') or diag($lost->error);
is($local->safe_psql('postgres', "SELECT DISTINCT remote_addr FROM pgpool.connections WHERE server = 'named'"),
	'127.0.0.1', 'pgpool.connections shows the address');

# addresses are not looked up, and libpq reports a wrong combination
make_pool($local, $remote, server => 'unmatched', options => { host => '127.0.0.1,127.0.0.1,127.0.0.1', port => '1,2' });
$session->fails("SELECT pgpool.checkout('unmatched')", '08001', qr/could not match 2 port numbers to 3 hosts/, 'mismatched numbers of ports and addresses are reported');

$_->quit foreach $session, $lost;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

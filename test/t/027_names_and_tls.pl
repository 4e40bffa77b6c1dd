# Host names are looked up; one that does not exist is a clear error and delays
# nobody.  A connection that turns out to be encrypted is refused with the way out,
# which works.
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

is($session->run("SELECT * FROM pgpool.query('named', 'select 1') $row") . $session->error, '1', 'a host name is looked up');
$lost->start("SELECT pgpool.checkout('unknown', '30 s')");
is($session->run("SELECT * FROM pgpool.query('named', 'select $_') $row"), $_, 'while one is looked up others work') foreach 1 .. 5;
$lost->finish(20);
$lost->failed('08001', qr/DETAIL:.*no-such-host\.invalid/, 'a host name that does not exist is a clear error');
$lost->run("SELECT * FROM pgpool.query('several', 'select 2') $row", 40);
is($lost->{text}, '2', 'the next host of a list is tried') or diag($lost->error);
is($local->safe_psql('postgres', "SELECT DISTINCT remote_addr FROM pgpool.connections WHERE server = 'named'"),
	'127.0.0.1', 'the view shows where it led to');

SKIP:
{
	my $folder = $remote->data_dir;

	skip 'a server without TLS', 8 if $remote->safe_psql('postgres', 'SHOW ssl_library') eq '';
	skip 'no openssl program', 8
	  if system('openssl req -new -x509 -days 2 -nodes -subj /CN=localhost'
		  . " -keyout $folder/server.key -out $folder/server.crt >/dev/null 2>&1");
	chmod 0600, "$folder/server.key";
	$remote->append_conf('postgresql.conf', 'ssl = on');
	$remote->restart;

	make_pool($local, $remote, server => 'plain', options => { sslmode => 'disable' });
	make_pool($local, $remote, server => 'encrypted');
	make_pool($local, $remote, server => 'encrypted_only', options => { sslmode => 'require' });
	is($session->run("SELECT * FROM pgpool.query('plain', 'select 3') $row") . $session->error, '3', "sslmode 'disable' works");
	foreach my $server (qw(encrypted encrypted_only))
	{
		$session->fails("SELECT pgpool.checkout('$server')", '0A000', qr/sslmode 'disable'/, "$server: refused, with the way out");
		like($session->error, qr/encrypted/, "$server: and the reason");
	}
	is($session->run("SELECT * FROM pgpool.query('plain', 'select 4') $row"), '4', 'others work on');
	is(remote_sessions($remote), $local->safe_psql('postgres', 'SELECT sum(total) FROM pgpool.pools'),
		'no session of the refused ones is left');
	is( $session->run("ALTER SERVER encrypted OPTIONS (ADD sslmode 'disable');\n"
			  . "SELECT * FROM pgpool.query('encrypted', 'select 5') $row") . $session->error,
		'5', 'the way out leads out');
}

$_->quit foreach $session, $lost;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

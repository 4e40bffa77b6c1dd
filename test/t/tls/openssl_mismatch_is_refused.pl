# If libpq uses another OpenSSL than the one that the relay calls, TLS is refused with a
# clear error, so that functions of one library are never called with objects of the other.
#
# A preloaded library simulates the other OpenSSL: the relay finds its function, while
# libpq uses the OpenSSL that it was linked with.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = PostgreSQL::Test::Utils::tempdir;

append_to_file("$folder/other.c", <<'EOT');
#define _GNU_SOURCE
#include <dlfcn.h>

int
SSL_has_pending(const void *ssl)
{
	int			(*real) (const void *) = dlsym(RTLD_NEXT, "SSL_has_pending");

	return real(ssl);
}
EOT
system("cc -shared -fPIC -o $folder/other.so $folder/other.c -ldl") == 0 or die 'cc failed';

my $remote = remote_node('remote', tls => 1);
my $query = "SELECT a FROM pgpool.query('remote', 'select 1') AS t(a int)";
my $same = local_node('same');
my $other = local_node('other', start => 0);
{
	# a sanitizer must be the first library
	local $ENV{LD_PRELOAD} = "$folder/other.so";
	local $ENV{ASAN_OPTIONS} = join ':', $ENV{ASAN_OPTIONS} // (), 'verify_asan_link_order=0';

	$other->start;
}

my $session;
foreach my $local ($same, $other)
{
	make_pool($local, $remote, options => { sslmode => 'require' });
	$session = PgpxSession->new($local);
	is($session->run($query) . $session->error, '1', 'TLS works with the same OpenSSL') if $local == $same;
}
$session->fails($query, '0A000', qr/libpq uses another OpenSSL/, 'TLS is refused with another OpenSSL') foreach 1 .. 2;
is($session->run('SELECT count(*) FROM pgpool.connections'), '0', 'no connection is left');
check_invariants($other, 'invariants hold');
$session->quit;
leak_check($_, $remote) foreach $same, $other;
unlike(slurp_file($other->logfile), qr/PANIC|TRAP|was terminated by/, 'no process crashed');
done_testing();

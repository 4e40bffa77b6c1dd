# Where libpq uses another OpenSSL than the one that the relay calls, TLS is refused
# with a clear error, and nobody calls one's functions on the other's objects.
#
# A library that is loaded in front of all stands for the other one: its function is
# what we find, and libpq's own is what libpq was linked with.
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
	# a sanitizer wants to be the first
	local $ENV{LD_PRELOAD} = "$folder/other.so";
	local $ENV{ASAN_OPTIONS} = join ':', $ENV{ASAN_OPTIONS} // (), 'verify_asan_link_order=0';

	$other->start;
}

my $session;
foreach my $local ($same, $other)
{
	make_pool($local, $remote, options => { sslmode => 'require' });
	$session = PgpxSession->new($local);
	is($session->run($query) . $session->error, '1', 'the same OpenSSL is relayed') if $local == $same;
}
$session->fails($query, '0A000', qr/libpq uses another OpenSSL/, 'another one is not') foreach 1 .. 2;
is($session->run('SELECT count(*) FROM pgpool.connections'), '0', 'and nothing is left of it');
check_invariants($other, 'the invariants hold');
$session->quit;
$_->stop('fast') foreach $same, $other;
unlike(slurp_file($other->logfile), qr/PANIC|TRAP|was terminated by/, 'nothing crashed');
done_testing();

# A remote that goes on talking though nobody has asked it anything: the kernel takes in
# what it says until somebody looks.  Some of it is read over, as a server may say such
# things at any time; one that has said more than that does not stop, and is left.
use strict;
use warnings;

use PgpxNetwork;
use PgpxFakeServer qw(message);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'through a relay only what fits into its buffers waits to be read' if over_tls();
PgpxNetwork::skip_all_without();
my $network = PgpxNetwork->new;

# all of it waits in the kernel, so that nothing goes by who is faster
foreach my $direction (qw(r w))
{
	open my $file, '>', "/proc/sys/net/ipv4/tcp_${direction}mem" or plan skip_all => "no buffers of one's own: $!";
	print $file "4096 33554432 33554432\n";
	close $file or plan skip_all => "no buffers of one's own: $!";
}

my ($taken, $said) = map { PostgreSQL::Test::Utils::tempdir . "/$_" } qw(taken said);
my $notice = message('N', "SNOTICE\0C00000\0M" . 'x' x 8000 . "\0\0");

# The first connection of each says so many megabytes when its first answer has been taken.
sub talkative
{
	my ($megabytes) = @_;

	return sub {
		$_[0]->serve(1);
		if (!-e "$said$megabytes")
		{
			select undef, undef, undef, 0.01 until -e "$taken$megabytes";
			$_[0]->send($notice) foreach 1 .. $megabytes * 1024 * 1024 / length $notice;
			append_to_file("$said$megabytes", '');
		}
		$_[0]->serve;
	};
}

my $fake = PgpxFakeServer->new(map { ("mb$_" => talkative($_)) } 3, 8);
my $local = local_node('local');
my $session = PgpxSession->new($local);
$session->run('SET client_min_messages = error');

foreach my $megabytes (3, 8)
{
	my $ask = "SELECT a FROM pgpool.query('s$megabytes', 'select 1') AS t(a int)";

	make_pool($local, $fake, server => "s$megabytes", remote_dbname => "mb$megabytes",
		options => { pool_size => 1, reset => 'never', sslmode => 'disable' });
	is($session->run($ask), '1', "$megabytes MB: an answer") or diag($session->error);
	append_to_file("$taken$megabytes", '');
	ok(wait_until($local, sub { -e "$said$megabytes" ? 1 : 0 }, 1), "$megabytes MB: all is said, and nobody listens");
	is($session->run($ask), '1', "$megabytes MB: the next answer") or diag($session->error);
}
is($local->safe_psql('postgres', q{SELECT string_agg(server || ' ' || connects || ' ' || closed_broken, ', ' ORDER BY server) FROM pgpool.stats}),
	's3 1 0, s8 2 1', 'what says more than 4 MB unasked is replaced, what says less is not');

$session->quit;
stats_add_up($local);
leak_check($local);
done_testing();

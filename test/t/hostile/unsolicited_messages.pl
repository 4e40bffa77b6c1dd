# Unsolicited notices fill the socket buffers until a session reads them. A session
# skips up to 4 MB of them, because a server may send notices at any time. A connection
# with more is closed.
use strict;
use warnings;

use PgpxNetwork;
use PgpxFakeServer qw(message);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'a relay buffers less than that' if over_tls();
PgpxNetwork::skip_all_without();
my $network = PgpxNetwork->new;

# enlarge the buffers, so that everything waits in the kernel and timing plays no role
foreach my $direction (qw(r w))
{
	open my $file, '>', "/proc/sys/net/ipv4/tcp_${direction}mem" or plan skip_all => "cannot set socket buffer sizes: $!";
	print $file "4096 33554432 33554432\n";
	close $file or plan skip_all => "cannot set socket buffer sizes: $!";
}

my ($taken, $said) = map { PostgreSQL::Test::Utils::tempdir . "/$_" } qw(taken said);
my $notice = message('N', "SNOTICE\0C00000\0M" . 'x' x 8000 . "\0\0");

# The first connection sends this many megabytes when its first answer has been read.
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
	is($session->run($ask), '1', "$megabytes MB: first answer is correct") or diag($session->error);
	append_to_file("$taken$megabytes", '');
	ok(wait_until($local, sub { -e "$said$megabytes" ? 1 : 0 }, 1), "$megabytes MB: all notices are sent and unread");
	is($session->run($ask), '1', "$megabytes MB: next answer is correct") or diag($session->error);
}
is($local->safe_psql('postgres', q{SELECT string_agg(server || ' ' || connects || ' ' || closed_broken, ', ' ORDER BY server) FROM pgpool.stats}),
	's3 1 0, s8 2 1', 'connection with more than 4 MB of notices is replaced, one with less is kept');

$session->quit;
stats_add_up($local);
leak_check($local);
done_testing();

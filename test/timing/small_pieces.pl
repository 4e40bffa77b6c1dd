# An answer in small pieces does not wake the session for each piece.
use strict;
use warnings;

use PgpxFakeServer qw(ready done row);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

plan skip_all => 'over TLS the pieces are those of the worker' if over_tls();

# Rows of 1 kB: 3 MB at once, then 2,000 rows one by one at their due times (several at
# once after a late sleep). A file records their duration.
my $trickled = PostgreSQL::Test::Utils::tempdir . '/trickled';

sub trickle
{
	my ($fake) = @_;

	while (1)
	{
		$fake->send(done('DISCARD ALL'), ready), next if $fake->receive !~ /^select/;
		$fake->send($fake->described, row('x' x 1000) x 3000);
		my $began = time;

		foreach my $i (1 .. 2000)
		{
			my $early = $began + 0.0004 * $i - time;

			$fake->send(row('x' x 1000));
			select undef, undef, undef, $early if $early > 0;
		}
		append_to_file($trickled, (time() - $began) . "\n");
		$fake->send(done('SELECT 5000'), ready);
	}
	return;
}

my $fake = PgpxFakeServer->new(trickle => \&trickle);
my $local = local_node('local');
my $session = PgpxSession->new($local);
make_pool($local, $fake, server => 'trickle', remote_dbname => 'trickle', options => { sslmode => PgpxFakeServer::sslmode() });
$session->run('SET pgpool_ext.busy_poll = 0');

# an answer in small pieces does not wake the session for each piece
{
	my $switches = sub {
		return slurp_file('/proc/' . $session->pid . '/status') =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : die;
	};
	my ($answer, $switched, $took);

	# a session that collects for 2 ms at a time wakes for each piece of a slow server;
	# hence the retry
	foreach my $try (1 .. 10)
	{
		my $before = $switches->();

		$answer = $session->run("SELECT count(*), sum(length(a)) FROM pgpool.query('trickle', 'select 1') AS t(a text)", 60);
		$switched = $switches->() - $before;
		$took = (split /\n/, slurp_file($trickled))[-1];
		note "$switched switches in $took s";
		last if $answer ne '5000|5000000' || $took < 1.5;
	}
	is($answer, '5000|5000000', 'answer in small pieces is complete');
	cmp_ok($switched, '<', 1000, 'session waited for less than half of the pieces');
}

$session->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local);
done_testing();

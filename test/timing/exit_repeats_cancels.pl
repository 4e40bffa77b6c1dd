# A worker that exits repeats its cancel requests every 60 ms, for a second: a remote server that
# ignores them for 240 ms after the first one executes a later one.
use strict;
use warnings;

use PgpxFakeServer qw(ready done failure);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'time';

# Requests are counted in the journal, because two signals may be merged into one.
my $journal = PostgreSQL::Test::Utils::tempdir . '/journal';
my $fake = PgpxFakeServer->new(
	forgetful => sub {
		my ($self) = @_;
		my ($first, $seen) = (0, 0);

		$self->send($self->answer('1')) while $self->receive !~ /sleep/;
		append_to_file($journal, "begin\n");
		while (1)
		{
			my $requests = () = slurp_file($journal) =~ /request/g;

			last if $seen && $requests > $seen && time() - $first > 0.24;
			$first = time() if $requests && !$seen;
			$seen = $requests;
			select undef, undef, undef, 0.02;
		}
		append_to_file($journal, "end\n");
		$self->send(failure(S => 'ERROR', V => 'ERROR', C => '57014', M => 'canceled'), ready);
	},
	cancel => sub { append_to_file($journal, "request\n") });
my $local = local_node('local');
my $session = PgpxSession->new($local);

make_pool($local, $fake, server => 'forgetful', remote_dbname => 'forgetful', options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode() });
$session->start('SELECT pgpool.exec(' . lease($session, 'forgetful') . ", 'select pg_sleep(100)')");
ok(wait_until($local, sub { -e $journal ? slurp_file($journal) : '' }, "begin\n"), 'statement begins');
ok(terminate($local, worker_pid($local)), 'worker is terminated while the statement begins');
ok(wait_until($local, sub { slurp_file($journal) =~ /^end$/m ? 1 : 0 }, 1), 'ignored cancel requests are repeated');

# six or seven requests precede the end, and one more may be in progress
like(slurp_file($journal), qr/^begin\n(request\n){2,8}end\n(request\n)?\z/, 'no request is sent after the end of the statement');
$session->finish;
$session->failed('08006', qr/worker was restarted/, 'lease fails');
$session->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local);
done_testing();

# A backend that has not quite begun a statement, or is between two messages,
# forgets a cancel request.  So it is sent again, until the statement ends: a lease
# is usable after a local cancel, even if the remote did not hear the first request.
use strict;
use warnings;

use PgpxFakeServer qw(ready done failure);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $requests = PostgreSQL::Test::Utils::tempdir . '/requests';

# Ends a statement at the second request only.
my $fake = PgpxFakeServer->new(
	forgetful => sub {
		my ($self) = @_;
		my $cancelled = 0;

		local $SIG{USR1} = sub { $cancelled = 1 };
		while (1)
		{
			my $sql = $self->receive;

			if ($sql =~ /sleep/)
			{
				select undef, undef, undef, 0.05 until $cancelled;
				$cancelled = 0;
				$self->send(failure(S => 'ERROR', V => 'ERROR', C => '57014', M => 'canceled'),
					ready);
			}
			else
			{
				$self->send($sql =~ /^select/ ? $self->answer('1')
					: (done('DISCARD ALL'), ready));
			}
		}
	},
	cancel => sub {
		my ($pid) = @_;

		append_to_file($requests, 'x');
		kill 'USR1', $pid if -s $requests > 1;
	});
my $local = local_node('local');
make_pool($local, $fake, server => 'one', remote_dbname => 'forgetful', options => { pool_size => 1, sslmode => 'disable' });

my $session = PgpxSession->new($local);
my $lease = lease($session, 'one');
my $row = 'AS t(a int)';
$session->fails("SET statement_timeout = '200ms'; SELECT * FROM pgpool.query($lease, 'select pg_sleep(300)') $row",
	'57014', qr/statement timeout/, 'statement_timeout ends the local statement');
is(-s $requests, 1, 'the remote has got a request') if wait_until($local, sub { -s $requests ? 1 : 0 }, 1);
my $took = seconds {
	is($session->run("RESET statement_timeout; SELECT * FROM pgpool.query($lease, 'select 1') $row") . $session->error,
		'1', 'the lease works on, although the remote has not heard it');
};
cmp_ok($took, '<', 9, 'before operation_timeout');
cmp_ok(-s $requests, '>', 1, 'since it was sent again');

# a call: the connection is closed, and what runs on it is not left alone either
$session->run("SELECT pgpool.checkin($lease)");
unlink $requests;
$session->fails("SET statement_timeout = '200ms'; SELECT * FROM pgpool.query('one', 'select pg_sleep(300)') $row",
	'57014', qr/statement timeout/, 'the same in a call');
is($session->run("RESET statement_timeout; SELECT * FROM pgpool.query('one', 'select 1') $row") . $session->error,
	'1', 'the pool works on');

$session->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local, undef);
done_testing();

# A distributed lock among sessions that are busy with others, and statements about
# it that the remote executes late, twice, or without anybody who hears the answer.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ['fsync = off']);
my $one = local_node('one', conf => ['fsync = off']);
make_pool($one, $remote, server => 'keeper', options => { pool_size => 8 });
$one->safe_psql('postgres', q{SELECT pgpool.lock_setup('keeper')});

# --- releases without end do not keep pings from being sent; a release takes so long
# that there is a new one when it has been answered
$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END';
CREATE TRIGGER slow BEFORE UPDATE OF state ON pgpool_lock.locks EXECUTE FUNCTION slow();
EOT
my $holder = PgpxSession->new($one);
my $token = $holder->run(q{SELECT pgpool.lock('keeper', 'kept', '10 s', '1 s')});
my @busy = map { PgpxSession->new($one) } 1 .. 8;
foreach my $i (0 .. $#busy)
{
	$busy[$i]->start(<<"EOT");
DO \$\$ BEGIN
	FOR n IN 1 .. 1000000 LOOP
		EXIT WHEN clock_timestamp() > statement_timestamp() + interval '3 s';
		PERFORM pgpool.try_lock_xact('keeper', 'busy $i ' || n % 10);
		COMMIT;
	END LOOP;
END \$\$
EOT
}
$_->finish(30) foreach @busy;
$remote->safe_psql('remote_db', 'DROP TRIGGER slow ON pgpool_lock.locks');
is(join('', map { $_->error } @busy), '', 'eight sessions have locked and unlocked all the time');
is($holder->run("SELECT pgpool.lock_valid('keeper', 'kept', $token)"), 't', 'a lock was pinged meanwhile');
is($holder->run("SELECT pgpool.unlock('keeper', 'kept', $token)"), 't', 'and is still held');

$holder->quit;
$_->quit foreach @busy;
check_invariants($one);
stats_add_up($one);
leak_check($one, $remote);
done_testing();

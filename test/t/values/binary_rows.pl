# A binary value is read exactly as sent, or raises an error with the reason, whatever
# its bytes are. A value that does not fit, in the middle of a large result, leaves the
# connection usable. A large answer is read in few chunks, of which nothing is left for
# the next answer.
use strict;
use warnings;

use PgpxFakeServer qw(message ready done row);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# "select OID HEX" returns one row with this type and these bytes, in binary
sub say_binary
{
	my ($fake) = @_;

	while (1)
	{
		my ($oid, $hex) = $fake->receive =~ /^select (\d+) (\w*)$/;
		$fake->send(done('DISCARD ALL'), ready), next unless defined $oid;
		$fake->send(message('T', pack('n', 1) . "a\0" . pack('NnNnNn', 0, 0, $oid, 65535, 0xFFFFFFFF, 1)),
			row(pack 'H*', $hex), done('SELECT 1'), ready);
	}
	return;
}

# 3 MB of rows, and some more when a file shows that they have been read
my ($sent, $taken) = map { PostgreSQL::Test::Utils::tempdir . "/$_" } qw(sent taken);

sub hesitate
{
	my ($fake) = @_;

	while (1)
	{
		my ($round) = $fake->receive =~ /^select (\d+)$/;
		$fake->send(done('DISCARD ALL'), ready), next unless defined $round;
		$fake->send($fake->described, row('x' x 1000) x 3000);
		append_to_file("$sent.$round", 'x');
		select undef, undef, undef, 0.01 until -e "$taken.$round";
		$fake->send(row('x' x 1000) x 10, done('SELECT 3010'), ready());
	}
	return;
}

my $remote = remote_node('remote');
my $local = local_node('local');
my $fake = PgpxFakeServer->new(bytes => \&say_binary, hesitate => \&hesitate);
make_pool($local, $remote, server => 's');
my $session = PgpxSession->new($local);

foreach (qw(bytes hesitate))
{
	$session->run(<<"EOT");
CREATE SERVER $_ FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '${\ $fake->port}', dbname '$_',
	sslmode '${\ PgpxFakeServer::sslmode() }', pool_size '1');
CREATE USER MAPPING FOR CURRENT_USER SERVER $_ OPTIONS (user 'any_user', password 'something');
EOT
}

# --- single values
my $last_date = '7ffffffe';
my $last_time = '7ffffffffffffffe';
my $uuid = 'a0eebc999c0b4ef8bb6d6bb9bd380a11';
my @values = (
	[ bool => 16, '00' => 'false', '01' => 'true', '02' => 'true', '' => '08P01', '0001' => '22P03' ],
	[ int2 => 21, '8000' => '-32768', '7fff' => '32767', 'fffe' => '-2', '80' => '08P01', '000001' => '22P03' ],
	[ int4 => 23, '80000000' => '-2147483648', '7fffffff' => '2147483647', 'fffffffe' => '-2', '000001' => '08P01', '' => '08P01', '0000000001' => '22P03' ],
	[ int8 => 20, '8000000000000000' => '-9223372036854775808', 'fffffffffffffffe' => '-2', '00000001' => '08P01', '000000000000000001' => '22P03' ],
	[ float4 => 700, '80000000' => '-0', '00000001' => '1e-45', 'ff800000' => '-Infinity', '7fc00000' => 'NaN', '3f80' => '08P01', '3f80000000' => '22P03' ],
	[ float8 => 701, '8000000000000000' => '-0', '0000000000000001' => '5e-324', '7ff0000000000000' => 'Infinity', '3f800000' => '08P01', '3ff000000000000000' => '22P03' ],
	[ date => 1082, '00000000' => '2000-01-01', '7fffffff' => 'infinity', '80000000' => '-infinity', $last_date => '22008', '80000001' => '22008', '0000' => '08P01' ],
	[ time => 1083, '0000000000000001' => '00:00:00.000001', '000000141dd76000' => '24:00:00', '000000141dd76001' => '22008', 'ffffffffffffffff' => '22008', '00000000' => '08P01' ],
	[ 'time(0)' => 1083, '00000000000927c0' => '00:00:01' ],
	[ timestamp => 1114, '0000000000000001' => '2000-01-01 00:00:00.000001', '7fffffffffffffff' => 'infinity', '8000000000000000' => '-infinity', $last_time => '22008', '8000000000000001' => '22008', '00000000' => '08P01' ],
	[ 'timestamp(0)' => 1114, '00000000000927c0' => '2000-01-01 00:00:01' ],
	[ timestamptz => 1184, '0000000000000000' => '2000-01-01 00:00:00+00', '7fffffffffffffff' => 'infinity', $last_time => '22008', '8000000000000001' => '22008', '00' => '08P01' ],
	[ 'timestamptz(0)' => 1184, '00000000000927c0' => '2000-01-01 00:00:01+00' ],
	[ uuid => 2950, $uuid => 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', substr($uuid, 2) => '08P01', "${uuid}00" => '22P03' ],
	[ numeric => 1700, '0001000000000000002a' => '42', '0001000012340000002a' => '22P03', '00010000000000002710' => '22P03', '0001' => '08P01' ],

	# a domain has checks, and values of a different local type are converted from text,
	# unless settings affect the text
	[ positive => 23, '00000001' => '1', 'ffffffff' => '23514' ],
	[ int8 => 23, 'fffffffe' => '-2' ],
	[ text => 1082, '00000000' => '42804' ],
	[ text => 1700, '0001000000000000002a' => '42' ],
	[ int2 => 23, '00010000' => '22003' ]);

$session->run("CREATE DOMAIN positive AS int CHECK (VALUE > 0); SET timezone = 'UTC'");
foreach (@values)
{
	my ($type, $oid, @cases) = @$_;

	while (my ($hex, $expected) = splice @cases, 0, 2)
	{
		my $said = $session->run("SELECT a::text FROM pgpool.query('bytes', 'select $oid $hex') AS t(a $type)");

		is($said || $session->sqlstate, $expected, "$type: bytes '$hex' of type $oid are read as $expected, or fail with it");
	}
}
is($session->run("SELECT connects FROM pgpool.stats WHERE server = 'bytes'"), '1', 'all values were received on one connection');

# --- values in the middle of a large result
my $lease = lease($session, 's');

$session->run("CREATE DOMAIN fits AS bigint CHECK (VALUE < 3000000000)");
$session->run("SELECT pgpool.exec('s', 'create table large as select i::bigint as a, i as b from generate_series(1, 100000) as i; create index on large (b); analyze large')");
is($session->run("SELECT count(*), sum(a), sum(b) FROM pgpool.query('s', 'select * from large order by b') AS t(a fits, b int)", 120),
	'100000|5000050000|5000050000', 'many rows are received as text');
$session->run("SELECT pgpool.exec('s', 'update large set a = 3000000000 where b = 50000')");
$session->run('\set SHOW_CONTEXT always');
foreach my $how ([ $lease, 'int', '22003' ], [ "'s'", 'int', '22003' ], [ $lease, 'fits', '23514' ], [ "'s'", 'fits', '23514' ])
{
	my ($where, $type, $sqlstate) = @$how;

	$session->fails("SELECT count(*) FROM pgpool.query($where, 'select * from large order by b') AS t(a $type, b int)", $sqlstate,
		qr/column "a" of row 50000 of the remote result/, "$type: value that does not fit in row 50,000 is an error");
	is($session->run("SELECT * FROM pgpool.query($where, 'select 7, 8') AS t(a int, b int)"), '7|8',
		"$type: next statement receives its own answer");
}
is($session->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'lease stays usable');

# --- chunks
$session->run('SET pgpool_ext.busy_poll = 0');

# cancelled while chunks are collected: the small answers that follow are read at once
foreach my $round (1 .. 5)
{
	$session->run("SET statement_timeout = '${round}0 ms'");
	$session->run("SELECT count(*) FROM pgpool.query($lease, 'select i, repeat(''x'', 100) from generate_series(1, 100000000) as i') AS t(i int, x text)", 60);
	is($session->sqlstate, '57014', 'large answer is cancelled in the middle');
	$session->reset_statement_timeout;
	is($session->run("SELECT * FROM pgpool.query($lease, 'select 7') AS t(a int)", 90) . $session->error, '7', 'small answer follows');
}

# the rest of a collected answer may be short (by chance the session has just polled,
# and collects nothing)
my $awake = sub { scalar grep { usleep(5000); slurp_file("/proc/$_/stat") !~ /\) S/ } ($session->pid, worker_pid($local)) x 10; };
foreach my $round (1 .. 10)
{
	$session->start("SELECT count(*), sum(length(a)) FROM pgpool.query('hesitate', 'select $round') AS t(a text)");
	ok(wait_until($local, sub { -e "$sent.$round" && !$awake->() }, 1), "round $round: almost complete answer has been read");
	append_to_file("$taken.$round", 'x');
	is($session->finish(20) . $session->error, '3010|3010000', "round $round: rest of the answer is read");
}

$session->run('SELECT pgpool.checkin_all()');
$session->quit;

check_invariants($local);
leak_check($local, $remote);
done_testing();

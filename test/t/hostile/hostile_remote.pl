# A hostile remote server: for anything that it sends, the session receives a clear error
# or can be cancelled, the worker survives, and other pools work.
use strict;
use warnings;

use IO::Select;
use PgpxFakeServer qw(message greeting ready done columns row failure);
use PgpxTest;
use Test::More;

my $violation = qr/sent a message that violates the protocol/;
my $malformed = qr/sent a malformed message/;

# Answers to the first query after the login, and the error that each causes in the
# session.
my %answers = (
	garbage => [ sub { map { chr rand 256 } 1 .. 10_000 }, '08006' ],
	text => [ sub { "HTTP/1.1 400 Bad Request\r\n\r\n" }, '08006', $violation ],
	row_first => [ sub { row('1') }, '08006', $violation ],
	ready_first => [ sub { ready }, '08006', qr/$violation|$malformed/ ],
	ready_rows => [ sub { $_[0]->described, row('1'), ready }, '08006', $violation ],
	row_after_end => [ sub { $_[0]->described, row('1'), done('SELECT 1'), row('2'), ready }, '08006', $violation ],
	other_columns => [ sub { $_[0]->described, row('1'), columns(2), row('1', '2'),
		done('SELECT 2'), ready }, '(?:08006|42804)' ],
	unknown_type => [ sub { message('%', 'x') }, '08006', $violation ],
	length_huge => [ sub { pack 'aN', 'E', 0x7FFFFFFF }, '08006', $violation ],
	length_short => [ sub { pack 'aN', 'S', 3 }, '08006', $violation ],
	length_large => [ sub { pack 'aN', 'S', 0x100001 }, '08006', $violation ],
	row_huge => [ sub { $_[0]->described, pack 'aN', 'D', 0x7FFFFFFF }, '08006', $violation ],
	cut_off_row => [ sub { $_[0]->described, substr row('x' x 100), 0, 50 }, '08006', qr/was reset by|closed the connection/ ],
	cut_off_at_once => [ sub { '' }, '08006', qr/was reset by|closed the connection/ ],
	two_columns => [ sub { $_[0]->answer('1', '2') }, '08006', $malformed ],
	short_row => [ sub { $_[0]->described, message('D', pack 'nN', 1, 99) }, '08006', $malformed ],
	long_row => [ sub { $_[0]->described, message('D', pack 'nNa*', 1, 1, '123') }, '08006', $malformed ],
	no_columns => [ sub { $_[0]->described =~ s/T.*//sr, message('T', '') }, '08006', $malformed ],
	bad_state => [ sub { $_[0]->described, done('SELECT 0'), message('Z', '?') }, '08006', $malformed ],
	marker_of_another => [ sub { $_[0]->echo =~ s/(.)(?=n)/chr(1 + ord $1)/ser, $_[0]->answer('1') }, '08006', qr/belongs to another statement/ ],
	marker_cut => [ sub { message('1', ''), message('t', pack 'n', 0), message('n', ''), $_[0]->answer('1') }, '08006', qr/belongs to another statement/ ],
	marker_missing => [ sub { $_[0]->answer('1') }, '08006', $violation ],
	marker_error => [ sub { failure(S => 'ERROR', V => 'ERROR', C => '22012', M => 'of another'), ready }, '08006', qr/The remote server reported: of another/ ],
	binary => [ sub { $_[0]->answer("\xFF\xFE") }, '22021' ],
	error_unknown => [ sub { failure(M => 'oops'), ready }, 'HV000', qr/oops/ ],
	error_empty => [ sub { failure, ready }, 'HV000', qr/without a message/ ],
	error_strange => [ sub { failure(C => "xx\n%s", M => "\xFF%n%s"), ready }, 'HV000', qr/\?%n%s/ ],
	error_large => [ sub { failure(M => 'x' . "\xC3\xA9" x 40_000), ready }, 'HV000', qr/ x(?:(?:\xC3\xA9){127}){258}\xC3\xA9 \.\.\. \(80001 bytes in total\)$/m ],
	error_unended => [ sub { message('E', 'Mno end'), ready }, '(?:HV000|08006)' ],
	error_fatal => [ sub { failure(S => 'FATAL', V => 'FATAL', C => '57P01', M => 'bye') }, '08006', qr/The remote server reported: bye/ ],
	error_last => [ sub { failure(S => 'FATAL', V => 'FATAL', C => '57P01', M => 'bye'), ready }, '08006', qr/The remote server reported: bye/ ],
	error_order => [ sub { failure(V => 'FATAL', S => 'KATASTROPHE', C => '57P01', M => 'bye'), ready }, '08006', qr/The remote server reported: bye/ ],
);

# Messages after a correct answer, while the connection is not leased.
my %idle = (
	stray_row => sub { row('666') },
	stray_ready => sub { ready },
	stray_answer => sub { $_[0]->answer('666') },
	stray_error => sub { failure(S => 'FATAL', C => '57P01', M => 'bye') },
	stray_mild_error => sub { failure(S => 'ERROR', C => '57014', M => 'bye') },
	stray_garbage => sub { 'rubbish' },
	stray_notice => sub { message('N', "SNOTICE\0C00000\0Mhello\0\0") x 1000 },
);
my $notice = message('N', "SNOTICE\0C00000\0Mhello\0\0");
my $folder = PostgreSQL::Test::Utils::tempdir;
my %behaviours = (
	honest => sub { $_[0]->serve },
	part_of_reset => sub { receive_with_reset($_[0]); $_[0]->send($_[0]->answer('x'), $_[0]->echo); sleep 3600 },
	late_reset => sub { receive_with_reset($_[0]); $_[0]->send($_[0]->answer('x')); sleep 3600 },
	slow_reset => \&slow_reset,
	half_notice => sub { $_[0]->receive; $_[0]->send($_[0]->answer('x')); $_[0]->receive; $_[0]->send(done('DISCARD ALL'), ready, substr $notice, 0, 10); $_[0]->read_to_end },
	waited_for => sub { $_[0]->receive; select undef, undef, undef, 0.01 until -e "$folder/waited_for"; $_[0]->send($_[0]->answer('x')); $_[0]->serve },
	refuses_binary => { login => \&refuse_binary },
	answer_of_nobody => sub { $_[0]->receive; $_[0]->send(($_[0]->answer('1')) x 2); $_[0]->receive },

	# answers to the first reset
	reset_error => sub { bad_reset($_[0], failure(S => 'ERROR', C => '25001', M => 'no'), ready) },
	reset_cut => sub { end_with_reset($_[0], 'reset_cut', message('E', "SERROR\0C25001\0Mbroken off\0" . 'D' . 'x' x 100) =~ s/x{50}$//r) },
	last_reset => sub { end_with_reset($_[0], 'last_reset', done('DISCARD ALL'), ready) },
	reset_in_transaction => sub { bad_reset($_[0], done('DISCARD ALL'), message('Z', 'T')) },
	reset_style => sub { bad_reset($_[0], done('DISCARD ALL'), message('S', "DateStyle\0German, DMY\0"), ready) },
	reset_ready => sub { bad_reset($_[0], ready) },
	reset_no_echo => sub { bad_reset_unechoed($_[0], done('DISCARD ALL'), ready) },
	reset_echo_of_another => sub { bad_reset_unechoed($_[0], message('1', ''), message('t', pack 'nN3', 3, 1, 2, 3), message('n', ''), done('DISCARD ALL'), ready) },
	reset_rollback => sub { after_transaction($_[0], done('COMMIT'), ready) },
	reset_rollback_open => sub { after_transaction($_[0], done('ROLLBACK'), message('Z', 'T')) },
	reset_own_ready => sub { bad_reset($_[0], ready) },
	reset_own_rows => sub { bad_reset($_[0], PgpxFakeServer::columns(1), row('1'), ready) },
	reset_echo => sub { after_reset($_[0]); $_[0]->send; sleep 3600 },
	reset_endless => sub { after_reset($_[0]); my $notices = message('N', "SNOTICE\0C00000\0M" . 'x' x 60_000 . "\0\0") x 20; $_[0]->send($notices) while 1 },
	reset_long => sub { after_reset($_[0], pack 'aN', 'N', 0x100001) },
	reset_silent => sub { after_reset($_[0]); sleep 3600 },

	# endless answers, which the session must be able to abandon
	huge_row => sub { $_[0]->receive; $_[0]->send($_[0]->described, pack 'aN', 'D', 0x3FFFF000); sleep 3600 },
	endless_rows => sub { $_[0]->receive; $_[0]->send($_[0]->described); $_[0]->send(row('x' x 1000) x 60) while 1 },
	endless_tiny => sub { $_[0]->receive; $_[0]->send($_[0]->described); my $rows = row('') x 100_000; $_[0]->send($rows) while 1 },
	silent => sub { $_[0]->receive; sleep 3600 },
	unread => \&read_late,
	silent_row => sub { $_[0]->receive; $_[0]->send($_[0]->described, row('x')); sleep 3600 },
	notices => sub { $_[0]->receive; $_[0]->send($notice x 30_000, $_[0]->answer('1')); $_[0]->serve },

	# rows in another style, which is reported before or after them
	interval_style => sub { $_[0]->receive; $_[0]->send(message('S', "IntervalStyle\0\xFF\xFE\0"), $_[0]->answer('1 day')); $_[0]->serve },
	date_style => sub { $_[0]->receive; $_[0]->send($_[0]->described, row('02.03.2020'), done('SELECT 1'), message('S', "DateStyle\0German, DMY\0"), ready); $_[0]->serve },

	# over TLS: records without data, some of which any server may send
	start_flood => sub { $_[0]->receive; $_[0]->flood(flood_files('start_flood')) },
	# (the flood would overtake an answer that the client has not received yet)
	idle_flood => sub { $_[0]->serve(2); select undef, undef, undef, 0.01 until -e "$folder/answered"; $_[0]->flood(flood_files('idle_flood')); sleep 3600 },
	leased_flood => sub { receive_with_reset($_[0]); $_[0]->flood(flood_files('leased_flood')); sleep 3600 },
	renegotiates => sub { receive_with_reset($_[0]); $_[0]->renegotiate; PostgreSQL::Test::Utils::append_to_file("$folder/renegotiated", 'x'); $_[0]->send($_[0]->answer('1')); sleep 3600 },
	few => sub { $_[0]->update_keys, $_[0]->serve(1) while 1 },

	login_garbage => { login => sub { $_[0]->send("HTTP/1.1 400 Bad Request\r\n\r\n") } },
	login_error => { login => sub { $_[0]->send(failure(M => 'go away')) } },
	login_no_database => { login => sub { $_[0]->send(message('R', pack 'N', 0), failure(S => 'FATAL', V => 'FATAL', C => '3D000', M => 'no such database')) } },
	login_endless => { login => sub { $_[0]->send(message('R', pack 'N', 0), parameters()) while 1 } },
	login_parameters => { login => sub { $_[0]->send(message('R', pack 'N', 0)); $_[0]->send(parameters()) while 1 } },
);

# Read a statement and the reset behind it, without an answer to the reset.
sub receive_with_reset
{
	my ($fake) = @_;

	$fake->receive;
	$fake->{mute} = 1;
	$fake->receive;
	$fake->{mute} = 0;
	return;
}

# The beginning of the answer to the reset arrives with the answer to the statement.
sub slow_reset
{
	my ($fake) = @_;

	receive_with_reset($fake);
	$fake->send($fake->answer('1'), $fake->echo);
	select undef, undef, undef, 0.01 until -e "$folder/slow_reset";
	$fake->send(done('DISCARD ALL'), ready);
	$fake->serve;
	return;
}

# The second statement is refused, because it requests a column in binary format. The
# commands are recorded.
sub refuse_binary
{
	my ($fake) = @_;
	my $refusals = 0;
	my $bytes = join '', map { row('2020-01-01 00:00:00+00') } 1 .. 2000;

	$fake->send(greeting(), message('S', "integer_datetimes\0on\0"), PgpxFakeServer::backend_key(), ready);
	while (1)
	{
		my $sql = $fake->receive;
		my $is_binary = $fake->{extended} && substr($fake->{bind}, -4) eq pack('nn', 1, 1);

		PostgreSQL::Test::Utils::append_to_file("$folder/refused", "$sql\n");
		if ($sql !~ /^select/)
		{
			$fake->send(done('DISCARD ALL'), ready);
		}
		elsif ($is_binary && $refusals++ == 0)
		{
			$fake->send(message('1', ''), failure(S => 'ERROR', V => 'ERROR', C => '08P01', M => 'other columns'), ready);
		}
		else
		{
			$fake->send($fake->{extended} ? (message('1', ''), message('2', '')) : (),
				message('T', pack('n', 1) . "a\0" . pack 'NnNnNn', 0, 0, 1184, 8, 0xFFFFFFFF, 0), $bytes, done('SELECT 2000'), ready);
		}
	}
}

# Read only after the statement was cancelled. Record when all has been read, and the last
# bytes.
sub read_late
{
	my ($fake) = @_;
	my $last = '';

	select undef, undef, undef, 0.01 until -e "$folder/unread";
	while (1)
	{
		PostgreSQL::Test::Utils::append_to_file("$folder/unread.read", 'x') if !IO::Select->new($fake->{socket})->can_read(0.5);
		sysread $fake->{socket}, my $bytes, 65536 or last;
		$last = substr $last . $bytes, -5;
	}
	PostgreSQL::Test::Utils::append_to_file("$folder/unread.last", unpack('H*', $last) . "\n");
	return;
}

sub flood_files { return map { "$folder/$_[0].$_" } qw(begun taken); }

sub parameters { return message('S', "a\0b\0") x 1000; }

sub after_reset
{
	my ($fake, @answer) = @_;

	$fake->serve(1);
	$fake->receive;
	$fake->send(@answer) if @answer;
	$fake->serve if @answer;
	return;
}

# The stream ends behind this answer to the reset.
sub end_with_reset
{
	my ($fake, $what, @answer) = @_;

	after_reset($fake);
	$fake->send(@answer);
	shutdown $fake->{socket}, 1;
	PostgreSQL::Test::Utils::append_to_file("$folder/$what", 'x');
	$fake->read_to_end;
	return;
}

# Answer the reset with these messages. Any later query receives a wrong answer, so that
# its use is detected.
sub bad_reset
{
	my ($fake, @answer) = @_;

	$fake->serve(1);
	$fake->receive;
	$fake->send(@answer);
	$fake->send($fake->answer('666')) while defined $fake->receive;
	return;
}

# A statement leaves a transaction open. Its ROLLBACK is answered like this.
sub after_transaction
{
	my ($fake, @answer) = @_;

	$fake->receive;
	$fake->send($fake->answer('1') =~ s/I$/T/r);
	$fake->receive;
	$fake->send(@answer);
	$fake->receive;
	$fake->send(done('DISCARD ALL'), ready);
	$fake->send($fake->answer('666')) while defined $fake->receive;
	return;
}

# Like bad_reset(), but without the echo of the reset's marker.
sub bad_reset_unechoed
{
	my ($fake, @answer) = @_;

	$fake->serve(1);
	$fake->{mute} = 1;
	$fake->receive;
	$fake->{mute} = 0;
	$fake->send(@answer);
	$fake->send($fake->answer('666')) while defined $fake->receive;
	return;
}

foreach my $what (keys %answers)
{
	my $say = $answers{$what}[0];

	# a real server waits for the next query, unless its process has exited
	$behaviours{$what} = sub {
		my ($fake) = @_;

		$fake->{mute} = $what =~ /^marker/;
		$fake->receive;
		$fake->send($say->($fake));
		$fake->receive unless $what =~ /^cut_off|fatal$/;
	};
}
# Files by which the test requests the message of a behaviour, and by which the behaviour
# reports that it has sent the message.
sub request_file { return "$folder/$_[0].request"; }
sub sent_file { return "$folder/$_[0].sent"; }

foreach my $what (keys %idle)
{
	my $say = $idle{$what};

	# behind the answer to the reset, some time later, and without a reset
	$behaviours{"${what}_behind"} = sub {
		my ($fake) = @_;

		after_reset($fake, done('DISCARD ALL'), ready, $say->($fake));
	};
	foreach my $when (qw(later unreset held))
	{
		$behaviours{"${what}_$when"} = sub {
			my ($fake) = @_;

			$fake->serve($when eq 'later' ? 2 : 1);

			# an earlier connection may have sent the message
			if (!-e sent_file("${what}_$when"))
			{
				select undef, undef, undef, 0.01 until -e request_file("${what}_$when");
				$fake->send($say->($fake));
				PostgreSQL::Test::Utils::append_to_file(sent_file("${what}_$when"), 'x');
			}
			$fake->serve;
		};
	}
}

my $remote = remote_node('remote');
my $local = local_node('local');
my $fake = PgpxFakeServer->new(%behaviours);
make_pool($local, $remote, server => 'good');
my $session = PgpxSession->new($local);
$fake->make_servers($session, '5s');
$session->run("ALTER SERVER s_$_ OPTIONS (ADD reset 'never')") foreach grep { /unreset/ } keys %behaviours;
my $worker = worker_pid($local);

# A query. With a parameter it uses the extended protocol.
sub query
{
	my ($server, @params) = @_;
	my $params = join '', map { ", '$_'" } @params;

	return "SELECT * FROM pgpool.query('$server', 'select 1'$params) AS t(a text)";
}

sub harmless
{
	my ($what) = @_;

	is(worker_pid($local), $worker, "$what: worker survives");
	is($local->safe_psql('postgres', query('good')), '1', "$what: another pool works");
	check_invariants($local, "$what: invariants hold");
	return;
}

is($session->run(query('s_honest')), '1', 'correct answer is accepted') foreach 1 .. 3;

foreach my $what (sort keys %answers)
{
	my (undef, $sqlstate, $pattern) = @{ $answers{$what} };

	foreach my $params ([], ['x'])
	{
		$session->run(query("s_$what", @$params), 20);
		like($session->sqlstate, qr/^$sqlstate$/, "$what: query fails with the expected SQLSTATE") or diag($session->error);
		like($session->error, $pattern, "$what: error names the reason") if $pattern;
	}
}

# the second answer arrives in place of the answer to the reset
foreach my $params ([], ['x'])
{
	is($session->run(query('s_answer_of_nobody', @$params), 20) . $session->error, '1', 'answer_of_nobody: first answer is returned');
}
ok(wait_until($local, "SELECT closed_reset FROM pgpool.stats WHERE server = 's_answer_of_nobody'", 2), 'answer_of_nobody: each connection is closed');

# --- the reset that is sent behind a statement. After an error of a conversion the
# session reads the answer to both, and receives ..
sub fails_to_convert
{
	my ($server) = @_;

	$session->fails("SELECT * FROM pgpool.query('s_$server', 'select 1') AS t(a int)", '22P02', qr/invalid input syntax/, "$server: error of the conversion is reported");
	return;
}

sub state_of { return $local->safe_psql('postgres', "SELECT state FROM pgpool.connections WHERE server = 's_$_[0]'"); }

$session->run("ALTER SERVER s_$_ OPTIONS (SET operation_timeout '1h')") foreach qw(part_of_reset late_reset slow_reset);

# .. a part of that to the reset
fails_to_convert('part_of_reset');
ok(wait_until($local, "SELECT closed_reset FROM pgpool.stats WHERE server = 's_part_of_reset'", 1), 'part_of_reset: connection is closed');
is($local->safe_psql('postgres', "SELECT cancels FROM pgpool.stats WHERE server = 's_part_of_reset'"), '0', 'part_of_reset: reset is not cancelled');

# .. nothing of it
fails_to_convert('late_reset');
like(state_of('late_reset'), qr/^(?:reset_pending|resetting)$/, 'late_reset: answer to the reset is awaited');
is($local->safe_psql('postgres', "SELECT cancels FROM pgpool.stats WHERE server = 's_late_reset'"), '0', 'late_reset: reset is not cancelled');

# .. all of it, and a part of a notice
fails_to_convert('half_notice');
ok(wait_until($local, "SELECT closed_reset FROM pgpool.stats WHERE server = 's_half_notice'", 1), 'half_notice: connection is closed');

# .. all of it, and another session waits
my $waiting = PgpxSession->new($local);

$session->start("SELECT * FROM pgpool.query('s_waited_for', 'select 1') AS t(a int)");
ok(wait_until($local, "SELECT leased FROM pgpool.pools WHERE server = 's_waited_for'", 1), 'waited_for: statement is running');
$waiting->start(query('s_waited_for'));
ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = 's_waited_for'", 1), 'waited_for: another session waits');
PostgreSQL::Test::Utils::append_to_file("$folder/waited_for", 'x');
$session->finish;
is($session->sqlstate, '22P02', 'waited_for: error of the conversion is reported');
is($waiting->finish . $waiting->error, '1', 'waited_for: other session is granted the connection');
is($local->safe_psql('postgres', "SELECT connects, resets, pipelined FROM pgpool.stats WHERE server = 's_waited_for'"), '1|2|0', 'waited_for: connection is reset once');
$waiting->quit;

# without an error: a part of that to the reset
is($session->run(query('s_slow_reset')) . $session->error, '1', 'slow_reset: statement succeeds');
ok(wait_until($local, "SELECT closed_reset FROM pgpool.stats WHERE server = 's_slow_reset'", 1), 'slow_reset: connection is closed');
PostgreSQL::Test::Utils::append_to_file("$folder/slow_reset", 'x');
is($session->run(query('s_slow_reset')) . $session->error, '1', 'slow_reset: next statement succeeds');
is($local->safe_psql('postgres', "SELECT connects, cancels FROM pgpool.stats WHERE server = 's_slow_reset'"), '2|0', 'slow_reset: connection was replaced, and the reset was not cancelled');

# a statement that may be repeated
is($session->run("SELECT count(*) FROM pgpool.query('s_refuses_binary', 'select x') AS t(a timestamptz)") . $session->error, '2000', 'refuses_binary: rows are returned') foreach 1 .. 2;
ok(wait_until($local, sub { PostgreSQL::Test::Utils::slurp_file("$folder/refused") =~ tr/\n/,/r }, 'select x,DISCARD ALL,select x,select x,DISCARD ALL,'), 'refuses_binary: no reset precedes the repetition');
harmless('wrong answers');

foreach my $what (grep { /^stray.*(?<!held)$/ } sort keys %behaviours)
{
	foreach my $round (1 .. 2)
	{
		# a session can use the connection before the worker has read the notices
		my $query = "SET client_min_messages = error;\n" . query("s_$what") . ";\nRESET client_min_messages";
		my $answer = $session->run($query, 20) . $session->error;

		# over TLS only the worker can see an error before a statement is sent
		$answer = $session->run($query, 20) . $session->error if over_tls() && $what =~ /error/ && $answer =~ /ERROR:  08006/;
		is($answer, '1', "$what: only the correct answer is returned");
		next if $what =~ /behind/;
		PostgreSQL::Test::Utils::append_to_file(request_file($what), 'x');
		ok(wait_until($local, sub { -e sent_file($what) ? 1 : 0 }, 1), "$what: unsolicited message has been sent");

		# the connection may survive notices, and no connection sends them again
		next if $what =~ /notice/;
		unlink request_file($what), sent_file($what);
	}
}
harmless('unsolicited answers');

# during a lease: the next statement must not accept the message as its own answer
foreach my $what (grep { /^stray.*held$/ } sort keys %behaviours)
{
	foreach my $params ([], ['x'])
	{
		my $lease = lease($session, "s_$what");
		my $query = query("s_$what", @$params) =~ s/'s_$what'/$lease/r;

		is($session->run($query, 20) . $session->error, '1', "$what: first answer is correct");
		PostgreSQL::Test::Utils::append_to_file(request_file($what), 'x');
		ok(wait_until($local, sub { -e sent_file($what) ? 1 : 0 }, 1), "$what: unsolicited message has been sent");
		unlink request_file($what), sent_file($what);
		if ($what =~ /notice/)
		{
			is($session->run("SET client_min_messages = error;\n$query;\nRESET client_min_messages", 20), '1', "$what: notice is not accepted as an answer");
		}
		else
		{
			$session->fails($query, '08006', qr/connection to server "s_$what" was lost/, "$what: message is not accepted as the next answer");
		}
		like($session->error, qr/The remote server reported: bye/, "$what: error has the remote server's message") if $what =~ /error/;
		$session->fails($query, '08006', qr/was lost/, "$what: lease stays unusable") if $what !~ /notice/;

		# each connection sends its message once
		$session->run("SELECT pgpool.discard($lease)");
	}
}
harmless('unsolicited answers on a lease');

$session->run("ALTER SERVER s_$_ OPTIONS (ADD reset_command 'RESET ALL')") foreach grep { /^reset_own/ } keys %behaviours;

# (A long timeout: this answer must be rejected because of its content.)
$session->run("ALTER SERVER s_$_ OPTIONS (SET operation_timeout '300ms')") foreach qw(reset_echo reset_silent reset_endless endless_rows endless_tiny unread);
$session->run(q{ALTER SERVER s_reset_long OPTIONS (SET operation_timeout '1h')});
$session->run('SET client_min_messages = error');
my $since_resets = -s $local->logfile;

# The worker finds the answer and the end of the stream at the same time. (Over TLS the
# answer to the statement needs the worker.)
foreach my $what (qw(reset_cut last_reset))
{
	my $lease = lease($session, "s_$what");

	is($session->run(query("s_$what") =~ s/'s_$what'/$lease/r, 20) . $session->error, '1', "$what: query on a lease returns the correct answer");
	kill 'STOP', worker_pid($local) if !over_tls();
	$session->run("SELECT pgpool.checkin($lease)");
	ok(wait_until($local, sub { -e "$folder/$what" ? 1 : 0 }, 1), "$what: answer was sent, and the stream has ended");
	kill 'CONT', worker_pid($local);
	ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 's_$what'", 0), "$what: connection is closed");
}
is_logged($local, $since_resets, qr/closes connection \d+ to server "s_reset_cut" .*\n.*DETAIL:  broken off/, 'reset_cut: error that arrived in part is logged');
foreach my $what (grep { /^reset/ } sort keys %behaviours)
{
	is($session->run(query("s_$what"), 20) . $session->error, '1', "$what: query after the reset returns the correct answer") foreach 1 .. 3;
}

$session->run('RESET client_min_messages');
harmless('wrong answers to a reset');

foreach my $what (qw(huge_row endless_rows silent))
{
	$session->fails("SET statement_timeout = '300ms';\n" . query("s_$what"), '57014', qr/statement timeout/, "$what: query can be cancelled");
	$session->reset_statement_timeout;
}

# The same after a local error. The rest of the result is read within bounds: of bytes
# if it never pauses, of time if it does.
$session->run("SELECT * FROM pgpool.query('s_silent_row', 'select 1') AS t(a int)", 20);
$session->failed('22P02', qr/invalid input syntax/, 'silent_row: local error ends the query');
my $received = q{SELECT bytes_received FROM pgpool.stats WHERE server = 's_endless_tiny'};
my $before = $local->safe_psql('postgres', $received);
$session->run("SELECT * FROM pgpool.query('s_endless_tiny', 'select 1') AS t(a int)", 20);
$session->failed('22P02', qr/invalid input syntax/, 'endless_tiny: local error ends the query');
cmp_ok($local->safe_psql('postgres', $received) - $before, '<', 8_000_000, 'endless_tiny: little more of the result is read');

# the same for a statement in flight
$before = $local->safe_psql('postgres', $received);
my $flying = lease($session, 's_endless_tiny');
$session->run("SELECT pgpool.send($flying, 'select 1')");
is($session->run("SELECT pgpool.wait($flying, '60 s')"), 't', 'endless_tiny: answer of a statement in flight arrives');
$session->run("SELECT pgpool.checkin($flying)", 20);
like($session->error, qr/WARNING: .*lease $flying was returned with a statement in flight, which is cancelled/, 'endless_tiny: lease can be returned with the statement in flight');
cmp_ok($local->safe_psql('postgres', $received) - $before, '<', 32_000_000, 'endless_tiny: about 16 MB of the result are read at checkin');

# a lease that is used again: the rest is read for operation_timeout at most
foreach my $what (qw(endless_rows endless_tiny))
{
	my $lease = lease($session, "s_$what");
	my $query = query("s_$what") =~ s/'s_$what'/$lease/r;

	cancel_running($local, $session, $query, "$what: query on a lease can be cancelled");
	$session->fails($query, '08006', qr/was lost/, "$what: lease is lost");
	$session->run("SELECT pgpool.checkin($lease)");
}
# a statement of which only a part was sent
my $unread = lease($session, 's_unread');
cancel_running($local, $session, "SELECT * FROM pgpool.query($unread, 'select 1', repeat('x', 20000000)) AS t(a text)", 'unread: query can be cancelled');
PostgreSQL::Test::Utils::append_to_file("$folder/unread", 'x');
ok(wait_until($local, sub { -e "$folder/unread.read" ? 1 : 0 }, 1), 'unread: the part is read');
$session->run("SELECT pgpool.discard($unread)");
ok(wait_until($local, sub { -s "$folder/unread.last" ? 1 : 0 }, 1), 'unread: connection is closed');
unlike(PostgreSQL::Test::Utils::slurp_file("$folder/unread.last"), qr/^5800000004$/m, 'unread: no Terminate follows the part');

is($session->run("SET client_min_messages = error;\n" . query('s_notices')), '1', 'query survives a flood of notices');
harmless('endless answers');

foreach ([ interval_style => qr/IntervalStyle of the remote/ ], [ date_style => qr/DateStyle of the remote/ ])
{
	$session->fails(query("s_$_->[0]"), '0A000', $_->[1], "$_->[0]: rows are refused");
}
harmless('other styles');

my %words = (login_error => 'go away', login_no_database => 'no such database');
foreach my $what (grep { /^login/ } sort keys %behaviours)
{
	my $words = $words{$what} // '';

	$session->start(query("s_$what"));
	is($local->safe_psql('postgres', query('good')), '1', "$what: another pool works meanwhile");
	$session->finish(20);
	$session->failed('08001', qr/could not connect.*\n.*DETAIL:.*$words/, "$what: checkout reports the reason");
	ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 's_$what'", '0'), "$what: slot is free");
	is($local->safe_psql('postgres', "SELECT connects, connects_failed > 0, checkouts FROM pgpool.stats WHERE server = 's_$what'"), '0|t|0', "$what: connection was never leased");
}
harmless('failed logins');

# more records without data than the worker reads at once
SKIP:
{
	skip 'TLS records without data need TLS', 1 if !over_tls();
	is($session->run(query('s_few'), 20) . $session->error, '1', 'connection survives some key updates') foreach 1 .. 4;
	$session->run(q{ALTER SERVER s_renegotiates OPTIONS (ADD ssl_max_protocol_version 'TLSv1.2')});
	$session->fails(query('s_renegotiates'), '08006', qr/was lost/, 'connection closes if the remote server requests a renegotiation');
	ok(!-e "$folder/renegotiated", 'renegotiation is refused');
	$session->run(q{ALTER SERVER s_start_flood OPTIONS (SET connect_timeout '60s', ADD checkout_timeout '2min')});
	my $other = PgpxSession->new($local);
	is($other->run(query('good')), '1', 'another pool works');
	foreach my $what (qw(start_flood idle_flood leased_flood))
	{
		my ($begun, $taken) = flood_files($what);

		if ($what =~ /idle/)
		{
			is($session->run(query("s_$what"), 20) . $session->error, '1', "$what: answer is correct");
			PostgreSQL::Test::Utils::append_to_file("$folder/answered", 'x');
		}
		else
		{
			$session->start(query("s_$what"));
		}
		ok(wait_until($local, sub { -e $begun ? 1 : 0 }, 1), "$what: flood has begun");
		is($other->run(query('good')), '1', "$what: another pool works during the flood");
		ok(!-e $taken, "$what: other pool did not wait for the end of the flood");
		$session->finish(120) unless $what =~ /idle/;
		$session->failed('08001', qr/could not connect/, "$what: checkout fails") if $what =~ /start/;
		$session->failed('08006', qr/was lost/, "$what: lease is lost") if $what =~ /leased/;
		ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 's_$what'", 0), "$what: connection is closed");
		ok(!-e $taken, "$what: connection closes before the flood has been read") if $what !~ /start/;
	}
	$other->quit;
	harmless('floods of TLS records');
}

$session->quit;
stats_add_up($local);
leak_check($local, $remote);
unlike(PostgreSQL::Test::Utils::slurp_file($local->logfile), qr/PANIC|TRAP|was terminated by/, 'no process crashed');
done_testing();

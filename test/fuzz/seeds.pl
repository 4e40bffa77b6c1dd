# Write the seeds of the corpus: perl test/fuzz/seeds.pl FOLDER
#
# There is one seed for each course of a conversation, and for each false message that
# was found to matter.  Found bugs are added here.
use strict;
use warnings;

my ($corpus) = @ARGV;

sub message { my ($type, $body) = @_; return $type . pack('N', 4 + length $body) . $body; }

sub put
{
	my ($name, $data) = @_;

	open my $file, '>:raw', "$corpus/$name" or die "$name: $!";
	print $file $data;
	close $file;
	return;
}

mkdir "$corpus/$_" foreach '', qw(fuzz_wire fuzz_control fuzz_error fuzz_validator fuzz_tuples fuzz_relay);

my $columns = message('T', pack('n', 2)
	  . "a\0" . pack('NnNnNn', 0, 0, 23, 4, -1, 0)
	  . "b\0" . pack('NnNnNn', 0, 0, 25, -1, -1, 1));
my $row = message('D', pack('n', 2) . pack('N', 1) . '1' . pack('N', 0xffffffff));
my $done = message('C', "SELECT 1\0");
my $ready = message('Z', 'I');
my $error = message('E', "SERROR\0VERROR\0C42P01\0Mno\0Dd\0Hh\0Ww\0\0");
my $notice = message('N', "SNOTICE\0C00000\0Mx\0\0");
my $params = message('S', "client_encoding\0UTF8\0") . message('S', "DateStyle\0ISO, MDY\0")
  . message('S', "IntervalStyle\0postgres\0");
my $note = message('A', pack('N', 5) . "channel\0payload\0");
my $parsed = message('1', '') . message('2', '');
my $discarded = message('C', "DISCARD ALL\0");

# first byte: the request (0 none, 1 simple, 2 extended, 3 DISCARD ALL, 4 the same
# with start commands, 5 another reset with start commands, of the previous lease, 6 pipelined
# after a reset, 7 pipelined, 8 pipelined, with messages before the answer, 9 a check,
# 10 another reset; 1 or 2 plus 11 to 33: with a reset behind the statement; from 192 on the harness does not echo the marker); second: how the
# answer is split
my %wire = (
	simple => "\1\0" . $columns . $row . $row . $done . $ready,
	in_chunks => "\1\3" . $columns . $row . $done . $ready,
	extended => "\2\5" . $parsed . $columns . $row . $done . $ready,
	no_data => "\2\0" . $parsed . message('n', '') . message('I', '') . $ready,
	flight => "\1\303" . $columns . $row . $done . $ready,
	error => "\1\1" . $notice . $error . $ready . $params . $note,
	idle => "\0\0" . $notice . $params . $note,
	last_words => "\0\0" . message('E', "SFATAL\0VFATAL\0C57P01\0Mbye\0\0"),
	copy_in => "\2\0" . $parsed . message('n', '') . message('G', "\0\0\0") . $error . $ready,
	copy_out => "\1\0" . message('H', "\0\0\0") . message('d', 'x') . message('c', '')
	  . message('C', "COPY 1\0") . $ready,
	reset_pending => "\3\0" . $params . $discarded . $ready,
	reset_pending_two => "\5\3" . $discarded . $ready . message('C', "SET\0") . $ready,
	reset_pending_rows => "\4\0" . $discarded . $ready . $columns . $row . $done . $ready,
	# the first chunk is the whole answer to the reset
	follows_reset => "\x10&" . $discarded . $ready . message('C', "SET\0") . $ready
	  . $parsed . $columns . $row . $done . $ready,
	follows_reset_abandoned => "\x1b\0" . $discarded . $ready . message('C', "SET\0") . $ready,
	follows_failed_reset => "\x10&" . $error . $ready . $parsed . $columns . $row . $done . $ready,
	reset_behind => "\x0c\1" . $columns . $row . $done . $ready . $discarded . $ready,
	reset_behind_extended => "\x0d\1" . $parsed . $columns . $row . $done . $ready . $params . $discarded . $ready,
	reset_behind_failed => "\x0c\1" . $columns . $row . $done . $ready . $error . $ready,
	reset_behind_missing => "\x0c\1" . $columns . $row . $done . $ready,
	reset_behind_abandoned => "\x17\0",
	reset_behind_unsent => "\x22\1" . $columns . $row . $done . $ready . $discarded . $ready,
	reset_pending_notice => "\3\0" . $notice . $note . $discarded . $ready,
	reset_pending_error => "\3\0" . $error . $ready,
	reset_pending_in_transaction => "\3\0" . $discarded . message('Z', 'T'),
	reset_pending_other_encoding => "\3\0" . message('S', "client_encoding\0LATIN1\0") . $discarded . $ready,
	huge => "\1\0" . $columns . "D\x3f\xff\xff\xff",
	too_huge => "\1\0" . $columns . "D\xff\xff\xff\xff",
	length_of_nothing => "\1\0" . "C\0\0\0\3",
	field_too_long => "\1\0" . $columns . message('D', pack('n', 2) . pack('N', 0x7fffffff) . '1'),
	field_negative => "\1\0" . $columns . message('D', pack('n', 2) . pack('N', 0xfffffffe) . '1'),
	fields_missing => "\1\0" . $columns . message('D', pack('n', 1) . pack('N', 1) . '1'),
	field_missing => "\1\0" . $columns . message('D', pack('n', 2) . pack('N', 3) . '123'),
	error_unterminated => "\1\0" . message('E', "SERROR\0Mno"),
	columns_unterminated => "\1\0" . message('T', pack('n', 3) . 'abc'),
	second_answer => "\1\0" . $done . $ready . $done . $ready,
	row_without_columns => "\1\0" . $row . $done . $ready,
	ready_among_rows => "\1\0" . $columns . $row . $ready,
	extended_row_without_columns => "\2\0" . $parsed . $row . $done . $ready,
	extended_ready_early => "\2\0" . $parsed . $ready,
	extended_ready_among_rows => "\2\0" . $parsed . $columns . $row . $ready,
	extended_done_early => "\2\0" . $parsed . $done . $ready,
	extended_two_results => "\2\0" . $parsed . ($columns . $row . $done) x 2 . $ready,
	extended_columns_twice => "\2\0" . $parsed . $columns . $columns . $row . $done . $ready,
	extended_row_after_no_data => "\2\0" . $parsed . message('n', '') . $row . $done . $ready,
	extended_row_late => "\2\0" . $parsed . $columns . $done . $row . $ready,
	pipelined => "\6\0" . $parsed . $discarded . $parsed . $columns . $row . $done . $ready . $params,
	pipelined_alone => "\7\0" . $parsed . $columns . $row . $done . $ready,
	pipelined_to_another => "\10\0" . $parsed . $columns . $row . $done . $ready,
	pipelined_words => "\6\0" . (join '', map { $_ . $notice . $note } message('1', ''), message('2', ''), $discarded) . $parsed . $columns . $done . $ready,
	pipelined_words_at_once => "\6\0" . $notice . $note . $parsed . $discarded . $parsed . $columns . $done . $ready,
	pipelined_error => "\6\0" . $parsed . $error . $ready,
	check => "\11\0" . $ready,
	own_reset => "\12\0" . $columns . $row . $done . $ready,
	own_reset_without_end => "\12\0" . $columns . $row . $ready,
	no_echo => "\305\0" . $columns . $row . $done . $ready,
	pipelined_ready => "\6\0" . $parsed . $ready,
);
put("fuzz_wire/$_", $wire{$_}) foreach sort keys %wire;

# first byte: 1 a correct header, 2 a descriptor is passed; except for 4 the boot id,
# 8 the incarnation, 16 the pool (32: too high), 64 the length
my $header = pack('LLQQlL', 1, 0, 7, 3, 1, 9);
my $texts = "start\0DISCARD ALL\0host\0h\0password\0p\0";
my %control = (
	conninfo => "\1" . $header . pack('QLL', 4, 1, 2) . $texts,
	one_text_missing => "\1" . $header . pack('QLL', 4, 1, 3) . $texts,
	unterminated => "\1" . $header . pack('QLL', 4, 1, 0) . "start\0DISCARD",
	many => "\1" . $header . pack('QLL', 4, 1, 0xffffffff) . "a\0b\0",
	socket => "\3" . pack('LLQQlL', 2, 0, 7, 3, 1, 9) . pack('lx4QQQ', 1, 2, 3, 4),
	old_boot_id => "\0" . pack('LLQQlL', 1, 32, 6, 3, 1, 9),
	short => "\2abc",
	header_only => "\1" . $header,
	other_boot_id => "\7" . $header . pack('QLL', 4, 1, 2) . $texts,
	other_incarnation => "\13" . $header . pack('QLL', 4, 1, 2) . $texts,
	other_length => "\103" . $header . pack('QLL', 4, 1, 2) . $texts,
	no_pool => "\23" . $header . pack('QLL', 4, 1, 2) . $texts,
	no_such_pool => "\63" . $header . pack('QLL', 4, 1, 2) . $texts,
	something_behind => "\1" . $header . pack('QLL', 4, 1, 2) . $texts . 'x',
);
put("fuzz_control/$_", $control{$_}) foreach sort keys %control;

# first byte: the encoding, and the maximal length of a line
my %errors = (
	whole => "\xf8SERROR\0VERROR\0C42P01\0Mno\0Dd\0Hh\0Ww\0\0",
	position => "\xf8SERROR\0C42601\0Mno\0P9\0\0",
	position_behind => "\xf8SERROR\0C42601\0Mno\0P10\0\0",
	position_no_number => "\xf8SERROR\0C42601\0Mno\0P1x\0\0",
	position_too_long => "\xf8SERROR\0C42601\0Mno\0P00000000000000000001\0\0",
	internal_query => "\xf8SERROR\0C42601\0Mno\0p3\0qabc\xc3\xa4\0\0",
	internal_query_cut_off => "\xfaSERROR\0C42601\0Mno\0p9\0q\xa4\xa2\xa4\0\0",
	warning => "\xf8SWARNING\0C01000\0Mwell\0Dd\0Hh\0\0",
	no_severity => "\xf8C42P01\0Mno\0\0",
	success => "\xf8SERROR\0C00000\0Mfine\0\0",
	bad_state => "\xf8C4 P01\0Mno\0\0",
	cut_off => "\xf8SERROR\0Mno",
	empty => "\xf8\0",
	other_encoding => "\xf8M\xe4\xf6\xfc is not UTF-8\0\0",
	cut_character => "\xf8M" . ('x' x 65535) . "\xc3\xa4\0\0",
	japanese => "\xfaM\xa4\xa2\xa4\0\0",
	refusal => "\x10connection to server at \"h\" (127.0.0.1), port 1 failed: FATAL:  53300: sorry, too many\n"
	  . "LOCATION:  InitProcess, proc.c:1\n",
	two_refusals => "\x20a failed: FATAL:  28P01: no\nLOCATION:  x\nb failed: FATAL:  3D000: none\nLOCATION:  y\n",
	false_refusal => "\x18FATAL:  53300:\nERROR:  12345: :  54321: x\n\t two\n",
	only_blanks => "\x08 \n\t \n",
	no_room_between => "\x08" . 'x' x 40 . "\ny\n",
);
put("fuzz_error/$_", $errors{$_}) foreach sort keys %errors;

# first byte: 0 a server's, 1 a mapping's, 2 nothing's; 4 a superuser's
my %sets = (
	server => "\0host\0h\0port\0005432\0dbname\0d\0pool_size\0008\0test_period\0001min\0",
	mapping => "\1user\0u\0password\0secret\0",
	superuser => "\5user\0u\0password_required\0false\0sslcert\0/c\0sslkey\0/k\0",
	not_superuser => "\1password_required\0false\0",
	stricter => "\1password_required\0true\0",
	nowhere => "\2host\0h\0",
	nothing => "\2",
	base => "\0base_server\0b\0pool_size\0001\0",
	base_and_host => "\0base_server\0b\0host\0h\0",
	sizes => "\0min_size\00012\0pool_size\00010\0max_overflow\0002\0",
	sizes_exceeded => "\0min_size\00013\0pool_size\00010\0max_overflow\0002\0",
	spare_exceeded => "\0min_idle\00011\0pool_size\00010\0max_overflow\0002\0",
	largest_sizes => "\0min_size\0002147483647\0pool_size\0002147483647\0max_overflow\0002147483647\0",
	retries => "\0retry_min\0002s\0retry_max\0001s\0",
	twice => "\0pool_size\0001\0pool_size\0002\0",
	unknown => "\0pool_sise\0001\0",
	refused => "\4client_encoding\0LATIN1\0replication\0true\0",
	empty_values => "\0host\0\0base_server\0\0start_commands\0\0",
	by_number => "\0\1\00110\0\2\0015\0\11\001x\0",
);
put("fuzz_validator/$_", $sets{$_}) foreach sort keys %sets;

# first byte: 0 a column list, 1 a row type, 2 a domain over it, 3 a text; 4 times the
# attributes; second: styles.  Bit 0 of a message's first byte: a RowDescription
sub described
{
	my (@columns) = @_;

	my $body = pack('n', scalar @columns) . join '', map { "$_->[0]\0" . pack('NnNnNn', 0, 0, $_->[1], -1, -1, $_->[2]) } @columns;
	return "\1" . pack('n', length $body) . $body;
}

sub data
{
	my (@values) = @_;

	my $body = pack('n', scalar @values) . join '', map { defined $_ ? pack('N/a', $_) : pack('N', 0xffffffff) } @values;
	return "\0" . pack('n', length $body) . $body;
}

my @five = ([ 'a', 25, 0 ], [ 'b', 23, 1 ], [ 'c', 1184, 0 ], [ 'd', 23, 1 ], [ 'e', 1700, 0 ]);
my %results = (
	list => "\x14\0" . described(@five) . data('x', '1234', 't', '5678', '1') . data(undef, undef, undef, undef, undef),
	type => "\x15\0" . described(@five[4, 3, 2, 0]) . data('1', '5678', 't', 'x'),
	domain => "\x16\0" . described(@five) . data('x', '1234', 't', '5678', '1') x 5,
	text => "\3\0" . described([ 'x', 25, 0 ]) . data("\xc3\xa4") . data(''),
	not_utf8 => "\4\0" . described([ 'x', 25, 0 ]) . data("\xc3") . data('y'),
	throws => "\x08\0" . described(@five[0, 1]) . data('fine', 'X234') . data('Xine', '1234') . data('a', 'b'),
	too_little => "\x08\0" . described(@five[0, 1]) . data('fine', 'Left'),
	bridge => "\4\0" . described([ 'a', 23, 1 ]) . data('1234'),
	binary_unknown => "\4\0" . described([ 'a', 25, 1 ]) . data('1234'),
	other_style => "\x14\1" . described(@five),
	german => "\x08\7" . described(@five[0, 1]) . data('fine', '1234') x 2,
	arrays_without_nulls => "\x08\x0c" . described(@five[0, 1]) . data('fine', '1234') x 2,
	one_missing => "\x15\0" . described(@five[0, 0, 1]),
	many_extra => "\x15\0" . described(map { [ "n$_" x 20, 25, 0 ] } 1 .. 30),
	second_result => "\x08\0" . described(@five[0, 1]) . data('a', '1234') . described(@five[0, 1]) . data('b', '1234'),
	row_first => "\4\0" . data('1'),
	no_attributes => "\0\0" . described() . data(),
	cut_off => "\4\0" . substr(described([ 'a', 25, 0 ]), 0, 12),
);
put("fuzz_tuples/$_", $results{$_}) foreach sort keys %results;

my $bound = message('1', '') . message('2', '');
sub texts { return message('D', pack('n', scalar @_) . join '', map { defined $_ ? pack('N/a', $_) : pack('N', 0xffffffff) } @_); }

# pairs of an operation (0 the session writes, 1 it reads, 2 the remote writes, 3 it reads,
# 4 its event, 6 the session's, 8 pending bytes, 9 and 10 TLS needs the other direction
# first, 11 the remote ends, 12 the session ends, 13 an error) and its amount, squared
my %relay = (
	inward => "\2\100\4\0\1\377",
	inward_much => ("\2\377\4\0" x 4) . "\1\377\6\0\10\0",
	outward => "\0\77\6\0\3\377\4\0",
	outward_slow => ("\0\77\6\0" x 8) . ("\3\10\4\0" x 8),
	both => ("\2\377\0\77\4\0\6\0\3\100\1\100" x 6),
	read_wants_write => "\2\100\11\0\4\0\4\0\3\10\4\0",
	write_wants_read => "\0\40\12\0\6\0\2\10\4\0\4\0",
	remote_ends => "\2\377\4\0\13\377\4\0\1\377",
	session_ends => "\0\77\6\0\14\377\6\0\3\377\4\0",
	error_while_sending => "\0\77\3\377\15\377\6\0\4\0",
	cut => ("\2\377\4\0" x 2) . "\0\77\6\0\377",
	cut_more => ("\2\377" x 3) . "\4\0\1\377",
	much_at_the_end => pack('H*', '013f060003ff04fffffffffffffefefefefefefefefefefefefefefefefefefefefefefefe003f0c6b0003ff3f05ff063704fefefefefefefefefefefefeff063704fefefefefefe'),
);
put("fuzz_relay/$_", $relay{$_}) foreach sort keys %relay;

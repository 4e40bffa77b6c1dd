# Write the seeds of the corpus: perl test/fuzz/seeds.pl
#
# One for each way that a conversation can go, and for each lie that somebody has
# told; found bugs are added here.  What a long run has found of new paths may be
# put beside them (PGPX_FUZZ_KEEP of test/fuzz/run).
use strict;
use warnings;
use FindBin;

sub message { my ($type, $body) = @_; return $type . pack('N', 4 + length $body) . $body; }

sub put
{
	my ($name, $data) = @_;

	open my $file, '>:raw', "$FindBin::Bin/corpus/$name" or die "$name: $!";
	print $file $data;
	close $file;
	return;
}

mkdir "$FindBin::Bin/corpus/$_" foreach '', qw(fuzz_wire fuzz_control fuzz_options);

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

# first byte: what was asked (0 nothing, 1 simple, 2 extended, 3 a reset, 4 a reset
# and start commands, 5 owed by a predecessor); second: how the answer is cut
my %wire = (
	simple => "\1\0" . $columns . $row . $row . $done . $ready,
	in_pieces => "\1\3" . $columns . $row . $done . $ready,
	extended => "\2\5" . $parsed . $columns . $row . $done . $ready,
	no_data => "\2\0" . $parsed . message('n', '') . message('I', '') . $ready,
	flight => "\1\303" . $columns . $row . $done . $ready,
	error => "\1\1" . $notice . $error . $ready . $params . $note,
	idle => "\0\0" . $notice . $params . $note,
	last_words => "\0\0" . message('E', "SFATAL\0VFATAL\0C57P01\0Mbye\0\0"),
	copy_in => "\2\0" . $parsed . message('n', '') . message('G', "\0\0\0") . $error . $ready,
	copy_out => "\1\0" . message('H', "\0\0\0") . message('d', 'x') . message('c', '')
	  . message('C', "COPY 1\0") . $ready,
	owed => "\3\0" . $params . $discarded . $ready,
	owed_two => "\5\3" . $discarded . $ready . message('C', "SET\0") . $ready,
	owed_rows => "\4\0" . $discarded . $ready . $columns . $row . $done . $ready,
	owed_notice => "\3\0" . $notice . $note . $discarded . $ready,
	owed_error => "\3\0" . $error . $ready,
	owed_in_transaction => "\3\0" . $discarded . message('Z', 'T'),
	owed_other_encoding => "\3\0" . message('S', "client_encoding\0LATIN1\0") . $discarded . $ready,
	huge => "\1\0" . $columns . "D\x3f\xff\xff\xff",
	too_huge => "\1\0" . $columns . "D\xff\xff\xff\xff",
	length_of_nothing => "\1\0" . "C\0\0\0\3",
	field_too_long => "\1\0" . $columns . message('D', pack('n', 2) . pack('N', 0x7fffffff) . '1'),
	field_negative => "\1\0" . $columns . message('D', pack('n', 2) . pack('N', 0xfffffffe) . '1'),
	fields_missing => "\1\0" . $columns . message('D', pack('n', 1) . pack('N', 1) . '1'),
	error_unterminated => "\1\0" . message('E', "SERROR\0Mno"),
	columns_unterminated => "\1\0" . message('T', pack('n', 3) . 'abc'),
	second_answer => "\1\0" . $done . $ready . $done . $ready,
	row_without_columns => "\1\0" . $row . $done . $ready,
);
put("fuzz_wire/$_", $wire{$_}) foreach sort keys %wire;

# first byte: 1 the header is made right, 2 a descriptor comes along
my $header = pack('LLQQlL', 1, 0, 7, 3, 1, 9);
my $texts = "start\0DISCARD ALL\0host\0h\0password\0p\0";
my %control = (
	conninfo => "\1" . $header . pack('QLL', 4, 1, 2) . $texts,
	one_text_missing => "\1" . $header . pack('QLL', 4, 1, 3) . $texts,
	unterminated => "\1" . $header . pack('QLL', 4, 1, 0) . "start\0DISCARD",
	many => "\1" . $header . pack('QLL', 4, 1, 0xffffffff) . "a\0b\0",
	socket => "\3" . pack('LLQQlL', 2, 0, 7, 3, 1, 9) . pack('lx4QQQ', 1, 2, 3, 4),
	old_life => "\0" . pack('LLQQlL', 1, 32, 6, 3, 1, 9),
	short => "\2abc",
);
put("fuzz_control/$_", $control{$_}) foreach sort keys %control;

# first byte: which option
my @values = ('1', '-1', '10 s', '1.5min', '1e400', 'nan', '5432,,5433', ' 7 ', '0x10', 'lifo',
	'DISCARD ALL', ' ; ', '99999999999999999999', '1us', '100000d', '');
foreach my $i (0 .. $#values)
{
	put("fuzz_options/$i-$_", chr($_) . $values[$i]) foreach $i % 3, 5 + $i % 4, 20 + $i % 5;
}

# What clang-format cannot do of pgindent's form.
#
#   pgindent.pl --before FILE     FILE, for clang-format to read: with a mark for
#                                 each macro and each comment behind code
#   pgindent.pl --after FILE      standard input, with FILE's texts put back
#
# In the result names of declarations begin 12 columns after the indentation,
# with the stars of pointers before them, and comments behind code in column 32
# or, where the code is longer, at the next tab stop.  Tabs are 4 columns.
# Macros and conditional expressions over several lines are left as they are.
use strict;
use warnings;

use constant {
	TAB => 4,
	NAME_COLUMN => 12,
	COMMENT_COLUMN => 32
};

my ($mode, $file) = @ARGV;
die "usage: pgindent.pl --before|--after FILE\n"
  unless defined $file && $mode =~ /^--(before|after)$/;

open my $in, '<', $file or die "could not read $file: $!\n";
my $source = do { local $/; <$in> };
close $in;

my $text = qr/"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'/;    # a string or a character
my @comments;
my @macros;
my $marked = mark($source);

if ($mode eq '--before')
{
	print $marked;
}
else
{
	my @lines = <STDIN>;
	chomp @lines;
	print map { "$_\n" } finish(@lines);
}
exit 0;

# Take out what clang-format is not to see.
sub mark
{
	my ($all) = @_;
	my $result = '';

	while ($all =~ m{\G(?:
			(?<macro> ^\#[ \t]*define\b(?: /\*.*?\*/ | \\\n | [^\n] )* )
			| (?<other> $text | //[^\n]* )
			| (?<comment> /\*.*?\*/ )
			| (?<other2> \n+ | [^"'/\n]+ | . ) )}gmsx)
	{
		if (defined $+{macro})
		{
			push @macros, $+{macro};
			$result .= '#pragma macro_' . $#macros;
			next;
		}
		if (!defined $+{comment})
		{
			$result .= $+{other} // $+{other2};
			next;
		}
		my $comment = $+{comment};
		my $line = $result =~ /([^\n]*)\z/ ? $1 : '';

		if ($line =~ /\S/ && substr($all, pos $all) =~ /\A[ \t]*(?:\n|\z)/)
		{
			push @comments, $comment;
			$result .= '//@' . $#comments;
		}
		else
		{
			$result .= $comment;
		}
	}

	# initializers open on the line of their "=" and close on a line of their
	# own, which clang-format keeps where a comma precedes it
	$result =~ s/ =\n[ \t]*\{$/ = {/gm;
	$result =~ s!^(.*[^\s,{;/])([ \t]*//\@\d+)\n([ \t]*\};)!$1,$2\n$3!gm;
	$result =~ s!^(?\!.*//\@\d+$)(.*[^\s,{;/])\n([ \t]*\};)!$1,\n$2!gm;
	return leave_conditionals($result);
}

# A conditional expression over several lines is the author's to lay out:
# clang-format would put all of it in one line, or each part in a line.
sub leave_conditionals
{
	my @lines = split /\n/, $_[0];
	my @code = map { s!\s*//\@\d+$!!r } @lines;
	my (%off, %on);

	for (my $i = 0; $i < @lines; $i++)
	{
		next unless $code[$i] =~ s/$text//gr =~ /\s\?(?:\s|$)/ && $code[$i] !~ m{^\s*/?\*};

		my ($from, $to) = ($i, $i);
		$from-- while $from > 0 && $code[$from - 1] !~ m{^\s*$|^\s*\#|[;{}:]$|\*/$};
		$to++ while $to < $#lines && $code[$to] !~ /[;{}]$/;
		$off{$from} = $on{$to} = 1 if $from < $to;
		$i = $to;
	}
	return join '', map {
		($off{$_} ? "// clang-format off\n" : '') . "$lines[$_]\n" .
		  ($on{$_} ? "// clang-format on\n" : '')
	} 0 .. $#lines;
}

# The column behind a text that starts in column 0.
sub width
{
	my $column = 0;
	foreach my $char (split //, $_[0])
	{
		$column = $char eq "\t" ? $column - $column % TAB + TAB : $column + 1;
	}
	return $column;
}

# White space from one column to another.  A tab of the width of one column
# is a space, except before further tabs.
sub gap
{
	my ($from, $to) = @_;
	my $space = '';

	while ($from - $from % TAB + TAB <= $to)
	{
		my $stop = $from - $from % TAB + TAB;

		$space .= $stop == $from + 1 && $stop + TAB > $to ? ' ' : "\t";
		$from = $stop;
	}
	return $space . ' ' x ($to - $from);
}

sub finish
{
	my @out;
	my $depth = 0;    # of parentheses that earlier lines have left open
	my $shift = 0;    # how far the line that opened them was moved
	my $in_comment = 0;
	my $typedef;      # indentation of the typedef of a struct, if within one

	foreach my $line (@_)
	{
		if ($line =~ /^#pragma macro_(\d+)$/)
		{
			push @out, $macros[$1];
			next;
		}
		next if $line =~ m{^\s*// clang-format o};
		my ($code, $number) = $line =~ m{^(.*?)[ \t]*//\@(\d+)$} ? ($1, $2) : ($line);

		if ($in_comment || $code =~ m{^\s*/\*})
		{
			$in_comment = $code !~ m{\*/};
		}
		elsif ($code !~ /^#/)
		{
			if ($code =~ /^(\s*)typedef (?:struct|union|enum)\b[^;]*$/)
			{
				$typedef = $1;
			}
			elsif (defined $typedef && $code =~ /^$typedef}/)
			{
				undef $typedef;
			}
			elsif ($depth == 0)
			{
				($code, $shift) = align($code);
			}
			elsif ($shift && $code =~ /^(\s+)(.*)$/)
			{
				$code = gap(0, width($1) + $shift) . $2;
			}
			$depth += parens($code);
			$depth = 0 if $depth < 0;
		}

		push @out, defined $number ? with_comment($code, $comments[$number]) : $code;
	}
	return @out;
}

# Parentheses opened less those closed.
sub parens
{
	my ($code) = @_;

	$code =~ s!$text|/\*.*?\*/!!g;
	return ($code =~ tr/(//) - ($code =~ tr/)//);
}

# Move the name of a declaration to its column; also returns by how much.
sub align
{
	my ($code) = @_;

	my $not_a_type = qr/(?:return|goto|else|case|typedef|break|continue|do)\b/;
	if ($code =~ /^(\s*)(?!$not_a_type)
			((?:\w+\x20)*\w+|\})\x20(\**)
			([A-Za-z_]\w*(?:\[[^\]]*\])*(?:\x20=.*|[,:(].*|;))$/x)
	{
		my ($indent, $type, $stars, $rest) = ($1, $2, $3, $4);

		# forward declarations, definitions and types of structs; a prototype
		# counts at the margin only, inside it would be a call
		return ($code, 0) if $type =~ /^(?:struct|enum|union)$/;
		return ($code, 0) if $type eq '}' && $rest !~ /(?:;| = .*)$/;
		return ($code, 0) if $rest =~ /^\w+\(/ && ($indent ne '' || $type !~ /^(?:extern|static)\b/);
		return ($code, 0) if $rest =~ /^\w+[,:]/ && $rest !~ /;$/;

		my $from = width("$indent$type");
		my $to = width($indent) + NAME_COLUMN - length $stars;
		$to = $from + 1 if $to <= $from;
		return ($indent . $type . gap($from, $to) . $stars . $rest, $to - $from - 1);
	}
	return ($code, 0);
}

sub with_comment
{
	my ($code, $comment) = @_;
	my $from = width($code);
	my $to = $from < COMMENT_COLUMN ? COMMENT_COLUMN : $from - $from % TAB + TAB;

	my ($first, @more) = split /\n/, $comment;
	my $margin = gap(0, $to);
	return join "\n", $code . gap($from, $to) . $first, map { s/^\s*/$margin /r } @more;
}

# The pictures of the bench: bars in SVG, for light and dark pages.
package Pictures;

use strict;
use warnings;

# file, title, unit, then groups: label, and of each bar label, figure, kind
my @pictures = (
	{
		file => 'sessions.svg',
		title => 'Transactions per second of many sessions',
		unit => 'tps', note => 'reads by primary key; longer is better; number of remote backends in brackets',
		bracket => 'backends',
		groups => [
			map {
				my $n = $_;
				[ "$n sessions",
					map { [ $_->[0], "free:sessions:$_->[1]:$n.tps", $_->[2] ] }
					  [ 'pgpool_ext', 'pool', 'ours' ], [ 'dblink', 'dblink', 'peer' ],
					  [ 'PL/Proxy', 'plproxy', 'peer' ], [ 'postgres_fdw', 'fdw', 'peer' ],
					  [ 'PgBouncer, resets', 'bouncer_reset', 'peer' ],
					  [ 'PgBouncer, no reset', 'bouncer', 'peer' ] ]
			} 8, 60, 200
		],
	},
	{
		file => 'rows.svg',
		title => 'A result of 1,000,000 rows',
		unit => 'ms', note => 'milliseconds; shorter is better',
		groups => [
			map {
				my ($label, $key) = @$_;
				[ $label,
					map { [ $_->[0], "free:rows:$_->[1]:$key", $_->[2] ] }
					  [ 'pgpool_ext', 'pool', 'ours' ], [ 'libpq in C, discarded', 'libpq', 'floor' ],
					  [ 'dblink', 'dblink', 'peer' ], [ 'postgres_fdw, fetch_size 10000', 'fdw', 'peer' ] ]
			} [ 'int', 'narrow' ], [ 'int, text, timestamptz, numeric', 'mixed' ],
			[ 'eight numbers', 'numbers' ], [ 'int, text of 192 bytes', 'texts' ]
		],
	},
);

# file and title of each
sub list
{
	return map { [ $_->{file}, $_->{title} ] } @pictures;
}

my $style = <<'CSS';
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 }
.group { font-weight: 600 }
.small { font-size: 12px; fill: #57606a }
.ours { fill: #1f6feb } .peer { fill: #afb8c1 } .floor { fill: #d8dee4; stroke: #8c959f }
.range { stroke: #57606a }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9198a1 }
.ours { fill: #4493f8 } .peer { fill: #59636e } .floor { fill: #2f3742; stroke: #768390 }
.range { stroke: #c9d1d9 }
}
CSS

sub escape
{
	return $_[0] =~ s/&/&amp;/gr =~ s/</&lt;/gr =~ s/>/&gt;/gr;
}

sub value
{
	my ($x) = @_;

	return $x >= 1000 ? scalar reverse(reverse(int($x + 0.5)) =~ s/(\d{3})(?=\d)/$1,/gr) : sprintf('%.3g', $x);
}

# One picture.  numbers: name => median, min, max
sub picture
{
	my ($picture, $numbers) = @_;
	my $scale = $picture->{scale} || 1;
	my ($left, $width, $right, $step) = (220, 360, 120, 22);
	my ($most, @groups) = (0);

	foreach my $group (@{ $picture->{groups} })
	{
		my ($label, @bars) = @$group;
		my @there = map { my $n = $numbers->($_->[1]); $n ? { label => $_->[0], kind => $_->[2], name => $_->[1], n => $n } : () } @bars;

		foreach (@there)
		{
			my $room = $_->{n}{median} * $scale * 1.15;

			$most = $room if $room > $most;
		}
		push @groups, [ $label, @there ] if @there;
	}

	my $y = 54;
	my $body = '';
	my $total = $left + $width + $right;

	foreach my $group (@groups)
	{
		my ($label, @bars) = @$group;

		$y += 14;
		$body .= sprintf qq(<text class="group" x="12" y="%d">%s</text>\n), $y, escape($label);
		$y += 8;
		foreach my $bar (@bars)
		{
			my ($median, $min, $max) = map { $bar->{n}{$_} * $scale } qw(median min max);
			my $x = sub { $left + ($_[0] < 0 ? 0 : $_[0] > $most ? 1 : $_[0] / $most) * $width };
			my $text = value($median);

			if ($picture->{bracket})
			{
				my $more = $numbers->($bar->{name} =~ s/\.[^.]*$/.$picture->{bracket}/r);
				$text .= sprintf ' (%d)', $more->{median} if $more;
			}
			$body .= sprintf qq(<text x="%d" y="%d" text-anchor="end">%s</text>\n), $left - 8, $y + 13, escape($bar->{label});
			$body .= sprintf qq(<rect class="%s" x="%d" y="%d" width="%.1f" height="16" rx="2"/>\n),
			  $bar->{kind}, $left, $y, $x->($median) - $left;
			$body .= sprintf qq(<path class="range" d="M%.1f %dH%.1f"/>\n), $x->($min), $y + 8, $x->($max) if $max > $min;
			$body .= sprintf qq(<text class="small" x="%.1f" y="%d">%s</text>\n), $x->($max) + 6, $y + 12, $text;
			$y += $step;
		}
		$y += 6;
	}
	$body = qq(<text x="12" y="68">not measured yet: make bench</text>\n) if !@groups;
	$y = 84 if $y < 84;

	return sprintf(qq(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">\n), $total, $y, $total, $y)
	  . "<title>" . escape($picture->{title}) . "</title>\n<style>\n$style</style>\n"
	  . sprintf(qq(<text class="title" x="12" y="24">%s</text>\n), escape($picture->{title}))
	  . sprintf(qq(<text class="small" x="12" y="42">%s</text>\n), escape($picture->{note}))
	  . $body . "</svg>\n";
}

# file, title and content of each
sub draw
{
	my ($numbers) = @_;

	return map { [ $_->{file}, $_->{title}, picture($_, $numbers) ] } @pictures;
}

1;

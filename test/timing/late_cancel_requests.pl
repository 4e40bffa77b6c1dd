# t/leases/cancels, with more rounds: whether a late request hits a statement depends
# on chance.
use strict;
use warnings;

use File::Basename 'dirname';

$ENV{PGPX_TEST_ROUNDS} //= 1000;
my $file = dirname(__FILE__) . '/../t/leases/cancels.pl';
do $file or die $@ || "could not run $file: $!";

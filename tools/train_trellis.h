// The tables of tbq2_ht, tbq3_ht, tbq4_ht as src/formats/trellis_tables.h, to standard output.
#pragma once

void print_trellis_tables();

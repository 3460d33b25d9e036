// The tables of tbq2_ht, tbq3_ht, tbq4_ht as src/formats/trellis_tables.h, to standard output.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>


void print_trellis_tables();
// The table of tbq3_tcq (src/formats/tcq_levels.h) to stdout.
void print_tcq_table();
// Shared: unit Gaussians by Box-Muller from splitmix64 (an even n), and the quantile of their distribution.
std::vector<float> gaussians(uint64_t seed, size_t n);
double quantile(double p);

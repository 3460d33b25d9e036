// Written by train-codebook levels; do not edit. Levels of least mean squared error for a coordinate of a
// uniformly random vector of norm sqrt(d) in d dimensions, the positive half, for each b and d.
#pragma once

namespace kvasir::formats {

template <int kBits>
struct HeadWideLevels {
  int head_dim;
  float positive[1 << (kBits - 1)];  // ascending; the negative half mirrors it
  double nmse;                       // with a least-squares scale for each row
};

// clang-format off
inline constexpr HeadWideLevels<2> kHeadWideLevels2[] = {
    {64, {0.45211895f, 1.49997480f}, 0.11301162},
    {128, {0.45245325f, 1.50519298f}, 0.11523142},
    {256, {0.45261758f, 1.50780451f}, 0.11635281},
    {512, {0.45269904f, 1.50911087f}, 0.11691638},
};
inline constexpr HeadWideLevels<3> kHeadWideLevels3[] = {
    {64, {0.24375343f, 0.75065811f, 1.32934287f, 2.11131145f}, 0.03252452},
    {128, {0.24442487f, 0.75333016f, 1.33659889f, 2.13147084f}, 0.03351825},
    {256, {0.24475980f, 0.75466737f, 1.34024731f, 2.14166864f}, 0.03402846},
    {512, {0.24492706f, 0.75533624f, 1.34207660f, 2.14679724f}, 0.03428696},
};
inline constexpr HeadWideLevels<4> kHeadWideLevels4[] = {
    {64, {0.12735218f, 0.38471827f, 0.65049415f, 0.93189402f, 1.23940422f, 1.59084913f, 2.02330983f, 2.64637049f}, 0.00881893},
    {128, {0.12787315f, 0.38638092f, 0.65361895f, 0.93709702f, 1.24777046f, 1.60434266f, 2.04592538f, 2.68885926f}, 0.00915113},
    {256, {0.12813399f, 0.38721404f, 0.65518715f, 0.93971372f, 1.25198902f, 1.61116812f, 2.05741121f, 2.71056700f}, 0.00932379},
    {512, {0.12826448f, 0.38763103f, 0.65597267f, 0.94102584f, 1.25410716f, 1.61460064f, 2.06319913f, 2.72153865f}, 0.00941182},
};
// clang-format on

}  // namespace kvasir::formats

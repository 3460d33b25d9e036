// Least-squares searches shared by the block encoders. A block holds integer levels l and a scale s (and
// perhaps a minimum m) so that x ~ s * l or x ~ s * l - m; a superblock holds scales themselves as integers
// times one f16. A search rounds to the levels of many trial scales, solves the weighted normal equations for
// each, keeps the best and looks again around it; a superblock then chooses integer scales by their error and
// alternates with its f16 scales while the error falls. The same bits on every instruction set. Every n and
// length is a multiple of 16.
#pragma once
#include <cstdint>

namespace kvasir::formats {

constexpr int kMaxBlock = 256;     // values a superblock
constexpr int kMaxSubBlocks = 16;  // sub-blocks a superblock
constexpr int kMaxPasses = 4;      // of alternation

// Levels a value may take, in units of the block's scale: the integers low..high, or a codebook with these
// ends.
struct Grid {
  int low, high;
  const int8_t* codebook = nullptr;  // 16 ascending levels
};

// Trial inverse scales (extent + first + step * k) / range, k = 0..16 * batches - 1: extent is the number of
// steps from 0 to either end of the grid (symmetric), or of the whole grid (with a minimum).
struct Trials {
  float first, step;
  int batches;
};

// Weights of n values: 1 without importance, else importance * sqrt(sigma2_share * mean(x^2) + x^2),
// normalised.
void fit_weights(const float* x, const float* importance, float sigma2_share, int n, float* w);

// s of x ~ s * level; 0 for an all-zero block.
float fit_symmetric(const Grid& grid, const Trials& trials, const float* x, const float* w, int n);

// x ~ s * level - m with levels 0..n_levels-1, s >= 0. `min_not_negative` keeps m >= 0, as superblocks store
// it.
struct ScaleMin {
  float s = 0, m = 0;
};
ScaleMin fit_scale_min(int n_levels, const Trials& trials, bool min_not_negative, const float* x,
                       const float* w, int n);

// Levels nearest to x * inverse on the grid; to (x + m) * inverse on 0..n_levels-1.
void round_levels(const Grid& grid, const float* x, float inverse, int n, float* level);
void round_levels_min(int n_levels, const float* x, float inverse, float m, int n, float* level);

// x ~ d * scale[j] * level, scale[j] an integer in [scale_low, scale_high].
struct SymmetricSuperblock {
  uint16_t d = 0;  // f16
  int scale[kMaxSubBlocks]{};
  float level[kMaxBlock]{};
};
struct SymmetricSpec {
  Grid grid;
  Trials trials;
  int scale_low, scale_high;
  int sub_blocks, length;  // sub_blocks * length values
};
void fit_superblock(const SymmetricSpec& spec, const float* x, const float* w, SymmetricSuperblock& out);

// x ~ d * scale[j] * level - dmin * min[j], both integers in [0, scale_high].
struct ScaleMinSuperblock {
  uint16_t d = 0, dmin = 0;  // f16
  int scale[kMaxSubBlocks]{}, min[kMaxSubBlocks]{};
  float level[kMaxBlock]{};
};
struct ScaleMinSpec {
  int n_levels;
  Trials trials;
  int scale_high;
  int sub_blocks, length;
};
void fit_superblock(const ScaleMinSpec& spec, const float* x, const float* w, ScaleMinSuperblock& out);

}  // namespace kvasir::formats

// Attention kernels on the matrix units against the plain one (f32, itself held to doubles by attention_test)
// over caches of random codes, called by their launchers: deep caches, any number of parts, every pair of
// types.
#include "cuda/fixture.h"
#ifdef KVASIR_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "backends/cuda/kernels/attention/attention.h"
#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/near/near.h"
#include "backends/cuda/runtime/executable.h"
#include "backends/cuda/runtime/pages.h"
#include "base/error.h"
#include "base/half.h"
#include "graph/kv_layout.h"

namespace kvasir::test {
namespace {

using namespace kvasir::cuda;
using graph::kPageTokens;

struct Case {
  DType k, v;
  int head_dim, n_head, n_kv, depth;
  int n_rows = 1, n_splits = 0;  // 0: as the backend chooses
  int window = 0, first_pos = 0, shift = 0, keep_pages = 0, exact_first = 0, exact_last = 0;
  float softcap = 0;
  bool portable = false;
  int tile_pages = 1000;   // encoded pages a prompt holds expanded at a time
  float scale_spread = 2;  // scales are between 0.5 and that
  float float_gain = 1;    // of stored f32 and bf16; scores stay as they are
};

class Rig {
 public:
  explicit Rig(const Case& c) : c_(c) {
    kv_.k_form = *kv_form(c.k), kv_.v_form = *kv_form(c.v);
    kv_.n_kv = c.n_kv, kv_.head_dim = c.head_dim, kv_.window = c.window;
    kv_.exact_first = c.exact_first, kv_.exact_last = c.exact_last;
    const graph::KvSpec spec{0, c.head_dim, c.n_kv, c.window, c.k, c.v};
    kv_.page_bytes = int64_t(graph::kv_page_bytes(spec));
    kv_.exact_page_bytes = int64_t(graph::kv_exact_page_bytes(spec));
    kv_.tables = upload_kv_tables(spec, tables_);
    const int n_pages = (c.depth + kPageTokens - 1) / kPageTokens;
    kv_.pages = upload(pages(n_pages));
    if (kv_.exact_page_bytes > 0)
      kv_.exact = kv_.step_exact = upload(halves(size_t(kv_.exact_page_bytes) / 2 * size_t(n_pages)));
    kv_.n_exact = n_pages;
    std::vector<int32_t> tables(4 * size_t(n_pages), -1);
    int32_t* at = tables.data() + (c.window > 0 ? 2 : 0) * n_pages;
    // Every other page has an exact one too, and those the step writes.
    const int written = (c.depth - c.n_rows) / kPageTokens;
    for (int p = 0; p < n_pages; ++p) {
      at[p] = (p * 7 + 3) % n_pages == p ? p : n_pages - 1 - p;
      at[n_pages + p] = kv_.exact_page_bytes > 0 && (p >= written || p % 2 == 0) ? p : -1;
    }
    step_.tables = upload(tables);
    step_.table_stride = n_pages;
    std::vector<graph::Row> rows;
    for (int r = 0; r < c.n_rows; ++r) rows.push_back({0, c.depth - c.n_rows + r, 0, 0});
    step_.rows = upload(rows);
    step_.sequences = upload(std::vector<SequenceInfo>{{c.shift, c.keep_pages, {c.first_pos, c.first_pos}}});
    const size_t n = size_t(c.n_rows) * size_t(c.n_head) * size_t(c.head_dim);
    args_.kv = kv_;
    args_.q = upload(floats(n, 11)), args_.q_shifted = upload(floats(n, 12));
    args_.out = upload(std::vector<float>(n, NAN));
    args_.n_head = c.n_head, args_.n_rows = c.n_rows;
    args_.max_pages = n_pages;
    args_.scale = 2.0f / c.scale_spread / c.float_gain / std::sqrt(float(c.head_dim));
    args_.softcap = c.softcap;
  }
  ~Rig() {
    for (void* p : memory_) cudaFree(p);
  }

  std::vector<float> run(AttentionKernel kernel) {
    AttentionArgs args = args_;
    args.n_splits = c_.n_splits && kernel != AttentionKernel::kPlain
                        ? c_.n_splits
                        : attention_splits(kv_, c_.n_head, c_.n_rows, args.max_pages, kernel);
    const size_t n = size_t(c_.n_rows) * size_t(c_.n_head) * size_t(c_.head_dim),
                 parts = n * size_t(args.n_splits);
    args.partial = upload(std::vector<float>(parts, NAN));
    args.partial_sums = upload(std::vector<float>(parts / size_t(c_.head_dim) * 2, NAN));
    args.expanded.newest = c_.depth - 1;
    if (kernel == AttentionKernel::kPrompt && needs_page_tiles(kv_)) {
      const int oldest = std::max(c_.first_pos, c_.window > 0 ? c_.depth - c_.n_rows - c_.window + 1 : 0),
                first = oldest / kPageTokens, end = (c_.depth - 1) / kPageTokens + 1,
                held = std::min(c_.tile_pages, end - first);
      const size_t tiles = size_t(held) * size_t(page_tiles(kv_));
      args.expanded = {upload(std::vector<uint8_t>(tiles * size_t(page_tile_bytes(c_.head_dim)), 0xff)),
                       upload(std::vector<float>(tiles, NAN)),
                       held,
                       0,
                       first,
                       end,
                       oldest,
                       c_.depth - 1};
    }
    attend({nullptr, false}, args, step_, kernel, [] { return Launch{nullptr, false}; });
    std::vector<float> out(n);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(out.data(), args.out, n * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }
  // attend_near(), heads ready; nothing where it does not take the case.
  std::vector<float> run_near() {
    NearArgs args;
    args.kv = kv_;
    args.q = args_.q, args.out = args_.out;
    args.n_head = c_.n_head, args.n_rows = c_.n_rows;
    args.scale = args_.scale, args.softcap = c_.softcap;
    if (!has_near(args)) return {};
    attend_near({nullptr, false}, args, step_);
    std::vector<float> out(size_t(c_.n_rows) * size_t(c_.n_head) * size_t(c_.head_dim));
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(out.data(), args.out, out.size() * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }
  AttentionKernel fast() const { return choose_attention(kv_, c_.n_rows, true, c_.portable); }

 private:
  template <typename T>
  T* upload(const std::vector<T>& from) {
    void* to = nullptr;
    EXPECT_EQ(cudaMalloc(&to, from.size() * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    memory_.push_back(to);
    return static_cast<T*>(to);
  }
  static std::vector<float> floats(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> out(n);
    for (float& v : out) v = normal(random);
    return out;
  }
  static std::vector<uint8_t> halves(size_t n) {
    std::vector<float> x = floats(std::min<size_t>(n, 100003), 13);
    std::vector<uint8_t> out(2 * n);
    for (size_t i = 0; i < n; ++i) {
      const uint16_t h = f32_to_f16(x[i % x.size()]);
      std::memcpy(&out[2 * i], &h, 2);
    }
    return out;
  }
  // Scales between 0.5 and 2, divided by what a level can be beyond about 3.
  void set_scales(KvForm form, std::mt19937& random, std::vector<uint8_t>& region) const {
    const RegionPlanes planes(form, c_.head_dim);
    const float unit = form == KvForm::kQ8_0                            ? 1.0f / 64
                       : form == KvForm::kQ4_0 || form == KvForm::kQ5_0 ? 1.0f / 8
                       : trellis(form)                                  ? 1.0f / 64
                       : block128(form)                                 ? 11.0f
                                                                        : 1.0f;
    const size_t n = size_t(kPageTokens * scales_of_row(form, c_.head_dim));
    for (size_t i = 0; i < n; ++i) {
      const float scale =
          std::min(65504.0f, (0.5f + (c_.scale_spread - 0.5f) * float(random() % 1000) / 1000) * unit);
      uint32_t bits;
      std::memcpy(&bits, &scale, 4);
      const uint16_t h = form == KvForm::kQjl1_256 ? uint16_t(bits >> 16) : f32_to_f16(scale);
      std::memcpy(&region[form == KvForm::kTbq3Tcq ? i * kTcqBlockBytes : size_t(planes.scales_at()) + 2 * i],
                  &h, 2);
    }
  }
  // Their scales are norms of 128 values.
  static bool block128(KvForm form) { return form == KvForm::kQ4Polar || form == KvForm::kQjl1_256; }
  // Random codes.
  std::vector<uint8_t> pages(int n_pages) const {
    std::mt19937 random(17);
    std::vector<uint8_t> out;
    std::vector<uint8_t> values = halves(size_t(kPageTokens * c_.head_dim) * 4);
    std::vector<float> normal = floats(100003, 14);
    for (float& v : normal) v *= c_.float_gain;
    size_t at = 0;
    for (int p = 0; p < n_pages; ++p)
      for (int head = 0; head < c_.n_kv; ++head)
        for (KvForm form : {kv_.k_form, kv_.v_form}) {
          std::vector<uint8_t> region(size_t(region_bytes(form, c_.head_dim)));
          if (form == KvForm::kF16) {
            const size_t skip = random() % (values.size() - region.size()) / 2 * 2;
            std::memcpy(region.data(), values.data() + skip, region.size());
          } else if (!open_page(form)) {  // f32 and its upper half
            const size_t n = form == KvForm::kF32 ? 4 : 2;
            for (size_t i = 0; i < region.size(); i += n, ++at)
              std::memcpy(&region[i], reinterpret_cast<const char*>(&normal[at % normal.size()]) + 4 - n, n);
          } else {
            for (size_t i = 0; i + 4 <= region.size(); i += 4) {
              const uint32_t word = random();
              std::memcpy(&region[i], &word, 4);
            }
            set_scales(form, random, region);
          }
          out.insert(out.end(), region.begin(), region.end());
        }
    return out;
  }

  Case c_;
  KvView kv_;
  StepView step_;
  AttentionArgs args_;
  std::vector<void*> memory_;
  std::vector<Memory> tables_;
};

void expect_agreement(const Case& c) {
  Rig rig(c);
  const std::vector<float> plain = rig.run(AttentionKernel::kPlain), fast = rig.run(rig.fast());
  // Queries and levels are f16, each within 2^-12 of itself, levels always by the same: scores of up to 8,
  // and so the weights, are off by 8 x 2^-12. Of f32 and bf16 they are two bf16 terms, within 2^-17.
  const bool terms = c.k == c.v && (c.k == DType::f32 || c.k == DType::bf16);
  EXPECT_LE(nmse(fast, std::vector<double>(plain.begin(), plain.end())), terms ? 0x1p-28 : 0x1p-18)
      << formats::require(c.k).name << "/" << formats::require(c.v).name << " head size " << c.head_dim
      << ", " << c.n_head << " heads on " << c.n_kv << ", depth " << c.depth << ", " << c.n_rows
      << " rows, parts " << c.n_splits << ", window " << c.window << ", first " << c.first_pos << ", shift "
      << c.shift << ", tile pages " << c.tile_pages << ", scales to " << c.scale_spread << ", exact "
      << c.exact_first << " and " << c.exact_last << ", cap " << c.softcap << ", gain " << c.float_gain
      << ", kernel " << int(rig.fast());
  const std::vector<float> again = rig.run(rig.fast());
  EXPECT_EQ(0, std::memcmp(fast.data(), again.data(), fast.size() * sizeof(float)))
      << "not the same bits again";
}

// As there; without the second term of a bf16 query or weight it would be 2^-19.
double near_bound(DType type) { return type == DType::bf16 ? 0x1p-28 : 0x1p-18; }

const std::vector<DType> kTypes{DType::f16,    DType::q8_0,    DType::tbq2_h,  DType::tbq3_h,
                                DType::tbq4_h, DType::tbq2_ht, DType::tbq3_ht, DType::tbq4_ht};

// And those that are taken with themselves only.
std::vector<DType> decoded_types() {
  std::vector<DType> types = kTypes;
  types.insert(types.end(),
               {DType::bf16, DType::f32, DType::q5_0, DType::q4_0, DType::tbq3_0, DType::tbq4_0});
  return types;
}

TEST(CudaDecodeKernel, EveryPairAtEveryHeadSize) {
  KVASIR_NEEDS_CUDA();
  for (DType k : kTypes)
    for (DType v : kTypes)
      for (int d : {128, 256, 512}) expect_agreement({k, v, d, 8, 1, 1000, 1, 2});
}

TEST(CudaDecodeKernel, DeepCachesAndAnyNumberOfParts) {
  KVASIR_NEEDS_CUDA();
  for (DType t : decoded_types())
    for (int d : {128, 256, 512})
      for (int parts : {0, 1, 3, 37}) expect_agreement({t, t, d, 8, 2, 7000 + parts, 1, parts});
}

// A launch of more blocks than 100: the last ones take no keys unless there are many; small tiles, whole
// ones, and a second one of some teams.
TEST(CudaDecodeKernel, OneKvHeadOnTheWholeDevice) {
  KVASIR_NEEDS_CUDA();
  for (DType t : {DType::f16, DType::q8_0, DType::f32, DType::tbq4_0, DType::tbq4_h, DType::tbq3_ht})
    for (int depth : {7777, 16001, 31100, 33333}) expect_agreement({t, t, 512, 8, 1, depth, 1, 132});
}

TEST(CudaDecodeKernel, GroupsWindowsShiftsAndExactPages) {
  KVASIR_NEEDS_CUDA();
  for (DType t : decoded_types())
    for (int d : {256, 512}) {
      for (int depth : {1, 5, 63, 64, 65, 200}) expect_agreement({t, t, d, 8, 1, depth});
      for (int group : {1, 2, 3, 4, 16}) expect_agreement({t, t, d, 2 * group, 2, 900});
      expect_agreement({t, t, d, 8, 1, 3000, 1, 0, 512});
      expect_agreement({t, t, d, 8, 2, 3001, 1, 2, 1000});
      expect_agreement({t, t, d, 8, 1, 2000, 1, 0, 0, 700});
      expect_agreement({t, t, d, 8, 1, 2000, 1, 2, 0, 0, -300, 5});
      expect_agreement({t, t, d, 8, 1, 2000, 1, 1, 0, 0, 0, 0, 3, 300});
      expect_agreement({t, t, d, 8, 1, 2000, 1, 0, 0, 0, 0, 0, 0, 0, 3.0f});
      expect_agreement({t, t, d, 8, 1, 700, 16});
    }
}

TEST(CudaKernels, HeadSizeWithoutAKernelIsRefusedByName) {
  int ran = 0;
  with_head_size<128, 256>("attention decode", 256, [&](auto size) { ran = size.value; });
  EXPECT_EQ(ran, 256);
  try {
    with_head_size<128, 256>("attention decode", 80, [&](auto) { ran = -1; });
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRefused);
    EXPECT_NE(std::string(error.what()).find("head size 80; supported: 128, 256"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(ran, 256);
}

TEST(CudaTilesKernel, PromptsAndTheirParts) {
  KVASIR_NEEDS_CUDA();
  for (bool portable : {false, true})
    for (DType t : kTypes)
      for (int d : {256, 512}) {
        Case c{t, t, d, 8, 1, 700, 300};
        c.portable = portable;
        expect_agreement(c);
        c.n_rows = 65, c.depth = 1500, c.window = 512;
        expect_agreement(c);
        c.window = 0, c.n_rows = 17, c.n_head = 16, c.n_kv = 2, c.softcap = 3, c.n_splits = 3;
        expect_agreement(c);
        c.softcap = 0, c.shift = -100, c.keep_pages = 4, c.exact_first = 1, c.exact_last = 100,
        c.n_rows = 130;
        expect_agreement(c);
        c.n_rows = 4;
        expect_agreement(c);
      }
}

const std::vector<DType> kEncoded{DType::q8_0,   DType::q5_0,     DType::q4_0,     DType::tbq3_0,
                                  DType::tbq4_0, DType::q4_polar, DType::tbq3_tcq, DType::tbq2_h,
                                  DType::tbq3_h, DType::tbq4_h,   DType::tbq2_ht,  DType::tbq3_ht,
                                  DType::tbq4_ht};

TEST(CudaPromptKernel, EveryTypeThroughPageTiles) {
  KVASIR_NEEDS_CUDA();
  for (int d : {256, 512}) {
    for (DType t : kEncoded) {
      Case c{t, t, d, 8, 1, 900, 300};
      expect_agreement(c);
      c.k = DType::f16, c.exact_first = 70, c.exact_last = 100, c.shift = -100, c.keep_pages = 4;
      expect_agreement(c);
      c.k = DType::tbq4_h, c.window = 300;
      expect_agreement(c);
    }
    expect_agreement({DType::qjl1_256, DType::tbq3_0, d, 8, 1, 900, 300});
  }
}

// Small enough for a memory checker.
TEST(CudaPromptKernel, Small) {
  KVASIR_NEEDS_CUDA();
  for (int d : {256, 512}) {
    Case c{DType::tbq4_h, DType::f16, d, 8, 1, 200, 70};
    c.tile_pages = 2;
    expect_agreement(c);
  }
}

TEST(CudaPromptKernel, AFewPageTilesAtATime) {
  KVASIR_NEEDS_CUDA();
  for (int d : {256, 512})
    for (int held : {1, 3, 7, 11})
      for (int parts : {0, 1, 3}) {
        Case c{DType::tbq4_h, DType::q8_0, d, 8, 1, 900, 200, parts};
        c.tile_pages = held;
        expect_agreement(c);
        c.window = 400, c.n_kv = 4;
        expect_agreement(c);
      }
}

// f16 pages of long contexts, the newest one as far as it is written.
TEST(CudaPromptKernel, LongContextsOfHalves) {
  KVASIR_NEEDS_CUDA();
  for (int d : {256, 512})
    for (int depth : {2040, 2048, 3001})
      for (DType v : {DType::f16, DType::tbq4_h}) {
        Case c{DType::f16, v, d, 8, 1, depth, 100};
        c.tile_pages = depth > 3000 ? 13 : 1000;
        expect_agreement(c);
        c.k = v, c.v = DType::f16, c.first_pos = 70;
        expect_agreement(c);
      }
}

// f32 and bf16 in two terms: also far beyond and below what f16 holds.
TEST(CudaPromptKernel, FloatsInTwoTerms) {
  KVASIR_NEEDS_CUDA();
  for (DType t : {DType::bf16, DType::f32})
    for (int d : {256, 512}) {
      for (float gain : {1.0f, 0x1p60f, 0x1p-60f}) {
        Case c{t, t, d, 8, 1, 700, 300};
        c.float_gain = gain;
        expect_agreement(c);
      }
      Case c{t, t, d, 8, 1, 1500, 65};
      c.window = 512;
      expect_agreement(c);
      c.window = 0, c.n_rows = 17, c.n_head = 16, c.n_kv = 2, c.softcap = 3, c.n_splits = 3;
      expect_agreement(c);
      c.softcap = 0, c.shift = -100, c.keep_pages = 4, c.n_rows = 130;
      expect_agreement(c);
      for (int group : {1, 3, 16, 24}) expect_agreement({t, t, d, 2 * group, 2, 900, 100});
      for (int depth : {2040, 2048, 3001})
        for (int held : {5, 1000}) {
          c = {t, t, d, 8, 1, depth, 100};
          c.tile_pages = held;
          expect_agreement(c);
        }
      EXPECT_EQ(Rig(c).fast(), AttentionKernel::kPrompt);
    }
}

// One row over few keys, also with levels times scales beyond what f16 holds.
TEST(CudaNearKernel, EveryTypeAndWhatOutrangesHalves) {
  KVASIR_NEEDS_CUDA();
  std::vector<DType> types = kEncoded;
  types.insert(types.end(), {DType::f16, DType::bf16});
  for (int d : {64, 128, 256, 512})
    for (DType t : types)
      for (float spread : {2.0f, 60000.0f})
        for (int window : {0, 300, 1000}) {
          Case c{t, t, d, 8, d == 128 ? 4 : 1, window ? window + 400 : 500};
          if (!formats::require(t).takes(d) || (window == 1000 && d != 256)) continue;
          c.scale_spread = spread;
          c.window = window;
          c.softcap = window ? 20.0f : 0.0f;
          Rig rig(c);
          const std::vector<float> near = rig.run_near();
          if (near.empty()) {
            EXPECT_LT(d, 256) << formats::require(t).name;
            continue;
          }
          const std::vector<float> again = rig.run_near(), plain = rig.run(AttentionKernel::kPlain);
          EXPECT_LE(nmse(near, std::vector<double>(plain.begin(), plain.end())), near_bound(t))
              << formats::require(t).name << " head size " << d << ", scales to " << spread << ", window "
              << window;
          EXPECT_EQ(0, std::memcmp(near.data(), again.data(), near.size() * sizeof(float)));
        }
}

// Blocks that begin and end anywhere in a page, beside exact pages.
TEST(CudaNearKernel, RowsOfCodesOfAnyPages) {
  KVASIR_NEEDS_CUDA();
  for (DType t :
       {DType::tbq2_h, DType::tbq3_h, DType::tbq4_h, DType::tbq2_ht, DType::tbq3_ht, DType::tbq4_ht})
    for (int d : {256, 512})
      for (int depth : {1, 63, 65, 130, 449, 512, 513, 549, 575, 700})
        for (int exact_first : {0, 3}) {
          Case c{t, t, d, 8, 1, depth};
          c.window = depth > 512 ? 512 : 0, c.exact_first = exact_first;
          Rig rig(c);
          const std::vector<float> near = rig.run_near(), plain = rig.run(AttentionKernel::kPlain);
          EXPECT_LE(nmse(near, std::vector<double>(plain.begin(), plain.end())), near_bound(t))
              << formats::require(t).name << " head size " << d << ", depth " << depth;
        }
}

// The same of a few rows, by the kernels for them.
TEST(CudaDecodeKernel, WhatOutrangesHalves) {
  KVASIR_NEEDS_CUDA();
  std::vector<DType> types = kEncoded;
  types.push_back(DType::bf16);
  for (bool portable : {false, true})
    for (int rows : {1, 4})
      for (int d : {128, 256, 512})
        for (DType t : types) {
          Case c{t, t, d, 8, 1, 700, rows};
          c.portable = portable;
          c.scale_spread = 60000;
          expect_agreement(c);
        }
}

// The launch for wide windows over any number of keys, few of them too.
TEST(CudaNearKernel, WindowsOf1024) {
  KVASIR_NEEDS_CUDA();
  for (DType t : {DType::f16, DType::bf16, DType::q8_0, DType::tbq4_h, DType::tbq3_ht, DType::q4_0})
    for (int n_kv : {1, 4, 16})
      for (int depth : {1, 5, 63, 64, 65, 129, 200, 511, 512, 513, 520, 600, 777, 1023, 1024, 1025, 1500}) {
        Case c{t, t, 256, 2 * n_kv, n_kv, depth};
        c.window = 1024;
        Rig rig(c);
        const std::vector<float> near = rig.run_near(), again = rig.run_near(),
                                 plain = rig.run(AttentionKernel::kPlain);
        ASSERT_FALSE(near.empty());
        EXPECT_LE(nmse(near, std::vector<double>(plain.begin(), plain.end())), near_bound(t))
            << formats::require(t).name << ", " << n_kv << " KV heads, depth " << depth;
        EXPECT_EQ(0, std::memcmp(near.data(), again.data(), near.size() * sizeof(float)));
      }
}

// Levels times scales beyond what f16 holds: scales are f16 themselves.
TEST(CudaPromptKernel, TilesThatOutrangeHalves) {
  KVASIR_NEEDS_CUDA();
  for (int d : {256, 512}) {
    for (DType t : kEncoded) {
      Case c{t, t, d, 8, 1, 900, 300};
      c.scale_spread = 60000;
      expect_agreement(c);
    }
    Case c{DType::qjl1_256, DType::tbq4_h, d, 8, 1, 900, 300};
    c.scale_spread = 60000;
    expect_agreement(c);
  }
}

}  // namespace
}  // namespace kvasir::test
#else
TEST(CudaDecodeKernel, NeedsABuildWithCuda) { GTEST_SKIP() << kvasir::test::no_cuda(); }
#endif

// Products of a warp group (four warps) from shared memory, and barriers in shared memory (sm_90a).
// Tiles: rows of 64 f16 values, 128 bytes, piece p of row r at p ^ (r % 8); eight rows make 1 KB.
#pragma once
#include <cstdint>

#include "backends/cuda/kernels/args.h"
#include "backends/cuda/kernels/mma.cuh"

namespace kvasir::cuda {

// Piece `piece` of row `row` in a tile of 64 rows of 64 values and more: blocks of 64 values, one after the
// other.
__device__ __forceinline__ uint32_t tile_place(int row, int piece) {
  return piece / 8 * 8192 + row * 128 + ((piece % 8) ^ (row % 8)) * 16;
}
// `across`: bytes to the next 64 values of the other direction; only operands whose sum does not run along a
// row have one.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t at, uint32_t across) {
  constexpr uint64_t kSwizzle128 = uint64_t(1) << 62, kEightRows = uint64_t(1024 >> 4) << 32;
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(across >> 4) << 16 | kEightRows | kSwizzle128;
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// Products asked for since the last call are a group; groups end in order.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Sums of products in flight are in these registers, and nowhere else, until here.
template <int n>
__device__ __forceinline__ void hold_sums(float (&c)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(c[i])::"memory");
}
// What ordinary stores wrote is seen by the matrix units.
__device__ __forceinline__ void fence_tiles() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define KVASIR_4(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define KVASIR_16(x, i) KVASIR_4(x, i), KVASIR_4(x, i + 4), KVASIR_4(x, i + 8), KVASIR_4(x, i + 12)
#define KVASIR_32(x, i) KVASIR_16(x, i), KVASIR_16(x, i + 16)

// c[64][64] += a[64][16] b[64][16]^T; with `fresh`, c = . Values are f16, or bf16.
#define KVASIR_PRODUCT_64(type)                                                                             \
  asm volatile(                                                                                             \
      "{\n.reg .pred p;\nsetp.eq.s32 p, %34, 0;\n"                                                          \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                           \
      " "                                                                                                   \
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
      "%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0;\n}\n"                                                 \
      : KVASIR_32(c, 0)                                                                                     \
      : "l"(a), "l"(b), "r"(int(fresh)))
template <bool kBf16>
__device__ __forceinline__ void product_64(float (&c)[32], uint64_t a, uint64_t b, bool fresh) {
  if constexpr (kBf16)
    KVASIR_PRODUCT_64("bf16");
  else
    KVASIR_PRODUCT_64("f16");
}
// c[64][256] += a[64][16] b, a in registers; b[16][256], or of rows b[256][16]^T.
#define KVASIR_PRODUCT_256(type)                                                                             \
  asm volatile(                                                                                              \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                                           \
      " "                                                                                                    \
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"  \
      "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51," \
      "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76," \
      "%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,"    \
      "%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120," \
      "%121,%122,%123,%124,%125,%126,%127}, {%128,%129,%130,%131}, %132, 1, 1, 1, %133;\n"                   \
      : KVASIR_32(c, 0), KVASIR_32(c, 32), KVASIR_32(c, 64), KVASIR_32(c, 96)                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kRows ? 0 : 1))
template <bool kRows, bool kBf16 = false>
__device__ __forceinline__ void product_256(float (&c)[128], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (kBf16)
    KVASIR_PRODUCT_256("bf16");
  else
    KVASIR_PRODUCT_256("f16");
}
// c[64][n] += a[64][16] b[n][16]^T, a in registers.
__device__ __forceinline__ void product_of_rows(float (&c)[128], const uint32_t (&a)[4], uint64_t b) {
  product_256<true>(c, a, b);
}
__device__ __forceinline__ void product_of_rows(float (&c)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%"
      "27,%28,"
      "%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%"
      "54,"
      "%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;\n"
      : KVASIR_32(c, 0), KVASIR_32(c, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void product_of_rows(float (&c)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%"
      "27,%28,"
      "%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;\n"
      : KVASIR_32(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef KVASIR_PRODUCT_64
#undef KVASIR_PRODUCT_256
#undef KVASIR_4
#undef KVASIR_16
#undef KVASIR_32

// Barriers: 8 bytes each.
__device__ __forceinline__ void init_barrier(uint32_t at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
// Arrives, and the barrier waits for that many bytes of bulk copies.
__device__ __forceinline__ void arrive_expecting(uint32_t at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
// `bytes`: a multiple of 16, as are both addresses.
__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// A box of 64 rows by 64 values of a map, from `row` and `value` on: 8 KB. Asked for by one thread.
__device__ __forceinline__ void copy_box(uint32_t to, const RowsMap& map, int value, int row,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(to),
      "l"(&map), "r"(value), "r"(row), "r"(barrier)
      : "memory");
}
// copy_bulk() into that place of every block of the cluster named by the bits of `ranks`, and to its barrier.
__device__ __forceinline__ void copy_bulk_to(uint32_t to, const void* from, int bytes, uint32_t barrier,
                                             uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], "
      "%4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(ranks)
      : "memory");
}
// Arrives at the same barrier of a block of the cluster.
__device__ __forceinline__ void arrive_at(uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [at];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
// Initialised barriers are seen by the copy engine.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives when the copies this thread has begun have ended.
__device__ __forceinline__ void arrive_after_copies(uint32_t at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void wait_barrier(uint32_t at, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra "
      "done%=;\nbra again%=;\n"
      "done%=:\n}\n" ::"r"(at),
      "r"(parity)
      : "memory");
}

}  // namespace kvasir::cuda

// Small faults in kernels, chosen by name at run time, for the test that shows that `kvasir verify` finds
// each of them (tests/verify/mutation_test.cpp). They exist only in a library that is compiled with
// KVASIR_MUTATIONS; in any other `mutated` is a constant, and the code is that without it.
#pragma once

namespace kvasir {

enum class Mutation {
  kNone,
#define KVASIR_MUTATION(id, ...) id,
#include "base/mutations.def"
#undef KVASIR_MUTATION
};

#ifdef KVASIR_MUTATIONS
// Set only while no kernel runs.
inline Mutation active_mutation = Mutation::kNone;
[[gnu::always_inline]] inline bool mutated(Mutation which) { return active_mutation == which; }
#else
constexpr bool mutated(Mutation) { return false; }
#endif

}  // namespace kvasir

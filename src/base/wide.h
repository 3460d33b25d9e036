// Loops that the compiler may build for wider vectors too; the one that this CPU has is taken when
// the program starts. Every variant does the same operations in the same order: no contraction, no
// reordering.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define KVASIR_WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KVASIR_WIDE
#endif

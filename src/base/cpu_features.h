// What this CPU can run, and the name it gives itself.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// Instruction-set rows a CPU kernel may be built for, slowest first.
enum class Isa { kGeneric, kAvx2, kAvx512, kNeon };

std::string_view isa_name(Isa isa);  // "generic", "avx2", "avx512", "neon"
std::optional<Isa> find_isa(std::string_view name);
// kAvx2 = AVX2+FMA+F16C; kAvx512 = F,BW,VL,DQ,VNNI,VBMI,VBMI2 and GFNI; kNeon = aarch64 with dotprod.
bool cpu_supports(Isa isa);
Isa best_isa();
std::string cpu_name();
// "GenuineIntel family 6 model 143 stepping 8": tells apart CPUs of one name.
std::string cpu_identity();
// Feature words a reader cares about: "avx2 fma avx512f avx512vnni ...".
std::string cpu_feature_list();
// Cores the process may use.
int cpu_count();

}  // namespace kvasir

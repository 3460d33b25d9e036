// Attention in double precision over the rows a cache holds, in the model's own basis.
#pragma once
#include <span>
#include <vector>

namespace kvasir::verify::reference {

inline constexpr int kPage = 64;

struct AttentionSpec {
  int n_head = 1, n_kv = 1, head_dim = 64;
  int window = 0;  // 0: every earlier key
  double scale = 1, softcap = 0;
  int exact_first = 0, exact_last = 0;  // pages
};

// Does a query in page `query` read the rows of page `key` as they were before encoding?
bool reads_exact(const AttentionSpec& spec, int query_page, int key_page);

// Keys or values of one sequence: [n][n_kv * head_dim]. `exact` is empty when the type has no exact pages.
struct Rows {
  std::vector<double> coded, exact;
  std::vector<double> scale;  // [n][n_kv] of values: Codec::largest_scale of what is encoded
  bool is_exact(const AttentionSpec& spec, int query_pos, int pos) const {
    return !exact.empty() && reads_exact(spec, query_pos / kPage, pos / kPage);
  }
  const double* row(const AttentionSpec& spec, int query_pos, int pos, int kv_head) const;
};

// One head of one query over its keys, by visible position.
struct Scores {
  int first = 0;                      // first visible position; the last is the query's own
  std::vector<double> score, weight;  // score after the soft cap
  std::vector<double> magnitude;      // sum_i |q_i k_i| * |scale| of each score
};

// `coded_query`: this head's query as kernels use it for keys that are not read exactly; empty: as it is.
Scores score_head(const AttentionSpec& spec, const Rows& keys, std::span<const float> q, int pos, int head,
                  std::span<const double> coded_query = {});

// The same over its values, [head_dim].
struct Mixed {
  std::vector<double> out;
  std::vector<double> spread;  // sum_j weight_j |v_j|
  std::vector<double> energy;  // sum_j v_j^2 over the visible values
};
Mixed mix_head(const AttentionSpec& spec, const Scores& scores, const Rows& values, int pos, int head);

// Weights of values that are not read exactly as kernels round them: times the row's scale to a multiple of the
// largest such product among 128 keys (aligned by position) over `codes`. Weights that lie within `slack`
// (relative) of a tie are appended to `ties`, with what one step is worth.
struct Tie {
  int pos;
  double step;
};
void round_weights(const AttentionSpec& spec, const Rows& values, int pos, int head, double codes, double slack,
                   Scores& scores, std::vector<Tie>& ties);

// What a part of the keys contributes: the merge of two parts is exact.
struct Part {
  double top = 0, sum = 0;  // sum of exp(score - top); 0 keys: sum 0
  std::vector<double> out;  // not divided by sum
};
Part part_of(const Scores& head, const AttentionSpec& spec, const Rows& values, int pos, int query_head,
             int begin, int end);
Part merge(const Part& a, const Part& b);

}  // namespace kvasir::verify::reference

// A row while it is decided: the facts that rules.def asks about.
#pragma once
#include <string>
#include <vector>

#include "decide/decision.h"

namespace kvasir::decide {

class RowState {
 public:
  RowState(const ModelGeometry& geometry, const QualityTable* quality, const Request& request,
           const RowInputs& inputs, int n_ctx);

  const std::string& row() const { return inputs_.device.row; }
  const Device& device() const { return inputs_.device; }
  const ModelGeometry& geometry() const { return geometry_; }
  const Request& request() const { return request_; }
  const Proof* proof() const { return inputs_.proof ? &*inputs_.proof : nullptr; }
  int n_ctx() const { return n_ctx_; }
  // Rows of a step with a cache of these types; and those that a context must leave room for: where more do
  // not fit, fewer are taken.
  int n_ubatch(const KvTypes& types) const;
  int least_ubatch() const;
  uint64_t budget() const { return budget_; }  // 0: unknown

  std::string beside_text() const;
  int missing_head_size() const;        // 0: none
  std::string missing_weights() const;  // names of types without a kernel
  std::string missing_type(const Candidate& c) const;
  bool repeats_proved() const { return proof() && proof()->valid && proof()->repeats; }

  void make_candidates();
  void choose();
  std::vector<Candidate>& candidates() { return candidates_; }
  const std::vector<Candidate>& candidates() const { return candidates_; }
  const Candidate& stock() const { return candidates_[0]; }
  bool stock_fits() const { return stock().fits; }
  std::string stock_text() const { return types_text(stock().types); }
  bool is_f16(const Candidate& c) const;
  bool f16_wanted(const Candidate& c) const;
  const Candidate* chosen() const { return chosen_ < 0 ? nullptr : &candidates_[size_t(chosen_)]; }
  // The fastest pair that only lacks a measurement or a record; nullptr: none is faster than stock.
  const Candidate* promising() const;

  std::string flash_state(int head_dim) const;  // "on", "off"
  void set_flash_off(std::string reason) { flash_off_ = std::move(reason); }
  const std::string& flash_off() const { return flash_off_; }

  std::string memory_refusal() const;
  std::string explanation() const;

 private:
  void add_candidate(const KvTypes& types);
  void prove(Candidate& c) const;

  const ModelGeometry& geometry_;
  const QualityTable* quality_;
  const Request& request_;
  const RowInputs& inputs_;
  int n_ctx_;
  uint64_t budget_ = 0;
  std::string flash_off_;
  std::vector<Candidate> candidates_;
  int chosen_ = -1;
};

}  // namespace kvasir::decide

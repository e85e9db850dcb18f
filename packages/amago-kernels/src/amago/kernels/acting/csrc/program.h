// A program: its values and operations, and one call for one timestep of every row.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "operation.h"
#include "rows.h"

namespace amago {

constexpr int64_t kTileRows = 4 * kBlockRows;  // a tile's workspace stays in the second-level cache
constexpr int64_t kRowsPerThread = 64;         // waiting for a thread is slow where other processes share the cores

// Results of `run`; from 0 on they are a position that the tables lack.
constexpr int64_t kDone = -1, kNegative = -2, kUndrawable = -3;

class Program {
public:
    // Adds a value of that width; returns its index.
    int64_t value(int64_t offset, int64_t width) {
        values_.push_back({offset, width});
        floats_per_row_ = std::max(floats_per_row_, offset + row_stride(width));
        return static_cast<int64_t>(values_.size()) - 1;
    }

    template <class Kind, class... Arguments>
    int64_t append(Arguments&&... arguments) {
        operations_.push_back(std::make_unique<Kind>(std::forward<Arguments>(arguments)...));
        return static_cast<int64_t>(operations_.size()) - 1;
    }

    const Value& at(int64_t index) const { return values_.at(index); }

    void set_table(int64_t operation, Array table) {
        const std::lock_guard lock(mutex_);
        operations_.at(operation)->set_table(table);
    }

    // Computes a step. `positions` is the number of positions in the tables, negative if there are none. Nothing is
    // written if a position or a length is out of range.
    int64_t run(Step& step, int64_t positions, int threads) {
        const std::lock_guard lock(mutex_);
        if (positions >= 0)
            for (int64_t row = 0; row < step.batch; ++row) {
                const int64_t position = step.positions[row];
                if (position < 0 || position >= positions) return position < 0 ? kNegative : position;
            }
        if (step.lengths)  // a negative one would address memory outside the ring
            for (int64_t row = 0; row < step.batch; ++row)
                if (step.lengths[row] < 0) return kNegative;
        std::atomic<bool> undrawable{false};
        step.undrawable = &undrawable;
        compute(step, threads);
        if (step.lengths)
            for (int64_t row = 0; row < step.batch; ++row) ++step.lengths[row];
        return undrawable ? kUndrawable : kDone;
    }

private:
    void compute(const Step& step, int threads) {
        const int64_t team = std::max<int64_t>(1, std::min<int64_t>(threads, step.batch / kRowsPerThread));
        const int64_t share = (step.batch + team - 1) / team;
        const int64_t tiles = team * ((share + kTileRows - 1) / kTileRows);
        // Some operations read a vector beyond the last row.
        const int64_t floats = floats_per_row_ * ((step.batch + tiles - 1) / tiles) + kPanel;
        if (static_cast<int64_t>(workspaces_.size()) < team) workspaces_.resize(team);
        for (AlignedArray& workspace : workspaces_)
            if (workspace.size() < floats) workspace.assign(floats, 0.0f);
        if (team == 1) {
            for (int64_t i = 0; i < tiles; ++i) compute_tile(step, i, tiles, workspaces_[0]);
            return;
        }
#pragma omp parallel for schedule(static) num_threads(team)
        for (int64_t i = 0; i < tiles; ++i) compute_tile(step, i, tiles, workspaces_[omp_get_thread_num()]);
    }

    void compute_tile(const Step& step, int64_t i, int64_t tiles, AlignedArray& workspace) const {
        const int64_t first = step.batch * i / tiles, end = step.batch * (i + 1) / tiles;
        const Tile tile{workspace.data(), first, end - first};
        for (const auto& operation : operations_) operation->run(step, tile);
    }

    std::vector<Value> values_;
    std::vector<std::unique_ptr<Operation>> operations_;
    std::vector<AlignedArray> workspaces_;  // one per thread
    int64_t floats_per_row_ = 0;
    std::mutex mutex_;
};

}  // namespace amago

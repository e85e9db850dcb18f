// A program: its values and operations, and how a run's rows are shared out.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "crew.h"
#include "rows.h"
#include "team.h"
#include "values.h"

namespace amago {

constexpr int64_t kTileRows = 4 * kBlockRows;
constexpr int64_t kRowsPerThread = 6;  // fewer do not make up for handing them to another thread

// What releasing and finishing a run give; numbers from 0 on are positions beyond the tables.
constexpr int64_t kDone = -1, kNegative = -2, kUndrawable = -3, kOvertaken = -4, kUnreleased = -5, kWrongRows = -6,
                  kOutOfMemory = -7;

class Program;

// One timestep of every row. It begins when the first rows are released, which helpers may work on; `finish` sees to it
// that all are done. One that is dropped before has taken no step: what it wrote is written again.
class Run final : public Work {
public:
    explicit Run(std::shared_ptr<Program> program) : program_(std::move(program)) {}
    ~Run() override;
    int64_t release(int64_t rows);
    int64_t finish();
    void share(int worker) override;

    Step step;
    int64_t table = -1;               // positions that have an entry; negative if none needs one
    int threads = 1;                  // that may take part

private:
    friend class Program;
    std::shared_ptr<Program> program_;
    std::vector<int64_t> ends_;  // of tiles, in rows; never more than it has room for, as helpers read it
    std::atomic<int64_t> released_{0}, taken_{0};  // tiles
    std::atomic<bool> undrawable_{false}, out_of_memory_{false};
    int64_t rows_ = 0, team_ = 1;
    bool begun_ = false, complete_ = false, counted_ = false;
};

class Program {
public:
    // A value of that width; the id counts from 0.
    int64_t value(int64_t offset, int64_t width) {
        values_.push_back({offset, width});
        numbers_per_row_ = std::max(numbers_per_row_, offset + row_stride(width));
        return static_cast<int64_t>(values_.size()) - 1;
    }

    template <class Kind, class... Arguments>
    int64_t append(Arguments&&... arguments) {
        operations_.push_back(std::make_unique<Kind>(std::forward<Arguments>(arguments)...));
        return static_cast<int64_t>(operations_.size()) - 1;
    }

    const Value& at(int64_t id) const { return values_.at(id); }
    const Value* maybe(int64_t id) const { return id < 0 ? nullptr : &values_.at(id); }

    void set(int64_t operation, uintptr_t matrix, int64_t rows, int64_t columns, uintptr_t vector, int64_t count) {
        const std::lock_guard alone(lock());
        complete_what_was_begun();
        operations_.at(operation)->set(reinterpret_cast<const float*>(matrix), rows, columns,
                                       reinterpret_cast<const float*>(vector), count);
    }

    // Lets the rows up to `rows` be computed; the first ones begin the run. Returns kDone; or, when none of them was
    // released, a position beyond the tables, kNegative, kOvertaken if another run has begun since this one, or
    // kWrongRows if there are fewer than before or more than the run has.
    int64_t release(Run& run, int64_t rows) {
        const std::lock_guard alone(lock());
        if (rows < run.rows_ || rows > run.step.batch) return kWrongRows;
        if (begun_ != &run) {
            if (run.begun_) return kOvertaken;
            begin(run);
        }
        const Step& step = run.step;
        if (run.table >= 0)
            for (int64_t row = run.rows_; row < rows; ++row)
                if (const int64_t position = step.positions[row * step.position_stride];
                    position < 0 || position >= run.table)
                    return position < 0 ? kNegative : position;
        if (run.step.lengths)  // a negative one would be a slot outside the ring
            for (int64_t row = run.rows_; row < rows; ++row)
                if (run.step.lengths[row] < 0) return kNegative;
        const int64_t first = run.rows_, count = rows - first;
        // All rows at once are divided evenly; of a part of them, the next part may be another thread's.
        const int64_t shares = count == step.batch ? run.team_ : 1, share = (count + shares - 1) / shares;
        const int64_t tiles = std::min(count, shares * ((share + kTileRows - 1) / kTileRows));
        for (int64_t tile = 1; tile <= tiles; ++tile) run.ends_.push_back(first + count * tile / tiles);
        run.rows_ = rows;
        run.released_ += tiles;
        if (run.team_ > 1) crew_.call();
        return kDone;
    }

    // Sees to it that a run is done, and counts its step. Returns kDone or kUndrawable; or, when it is not counted,
    // kUnreleased if there are rows that were not released, or kOutOfMemory.
    int64_t finish(Run& run) {
        const std::lock_guard alone(lock());
        if (!run.begun_ || run.rows_ < run.step.batch) return kUnreleased;
        if (!run.complete_) complete(run);
        if (run.out_of_memory_) return kOutOfMemory;
        if (run.step.lengths && !run.counted_)
            for (int64_t row = 0; row < run.step.batch; ++row) ++run.step.lengths[row];
        run.counted_ = true;
        return run.undrawable_ ? kUndrawable : kDone;
    }

    // A run is about to go.
    void drop(Run& run) {
        if (!run.begun_) return;
        const std::lock_guard alone(lock());
        if (begun_ == &run) abandon(run);
    }

    // Seconds that each operation has taken since the first call, in runs by one thread.
    std::vector<double> profile() {
        const std::lock_guard alone(lock());
        complete_what_was_begun();
        seconds_.resize(operations_.size());
        return seconds_;
    }

private:
    friend class Run;

    // A run goes on without Python's lock. After a fork, a thread that held it may be missing.
    std::mutex& lock() {
        if (forks_ != forks) {
            forks_ = forks;
            one_at_a_time_.release();
            one_at_a_time_ = std::make_unique<std::mutex>();
        }
        return *one_at_a_time_;
    }

    void begin(Run& run) {
        complete_what_was_begun();
        const int64_t batch = run.step.batch, useful = std::max<int64_t>(1, batch / kRowsPerThread);
        const bool choice = run.threads > 1 && useful > 1 && seconds_.empty();
        run.team_ = choice && team_.together(seconds_now()) ? std::min<int64_t>(run.threads, useful) : 1;
        run.ends_.reserve(batch);
        // Some operations read a vector beyond the last row
        const int64_t numbers = numbers_per_row_ * std::min(batch, kTileRows) + kPanel;
        if (static_cast<int64_t>(workspaces_.size()) < run.team_) workspaces_.resize(run.team_);
        for (int64_t i = 0; i < run.team_; ++i)
            if (workspaces_[i].size() < numbers) workspaces_[i].assign(numbers, 0.0f);
        run.step.undrawable = &run.undrawable_;
        run.begun_ = true;
        begun_ = &run;
        if (run.team_ > 1) crew_.begin(run, static_cast<int>(run.team_) - 1);
    }

    void complete_what_was_begun() {
        if (!begun_) return;
        if (begun_->rows_ == begun_->step.batch) complete(*begun_);
        else abandon(*begun_);
    }

    void complete(Run& run) {
        run.share(0);
        if (run.team_ > 1 && !crew_.end()) {  // after a fork
            run.taken_ = 0;
            run.share(0);
        }
        run.complete_ = true;
        begun_ = nullptr;
    }

    void abandon(Run& run) {
        run.released_ = 0;
        if (run.team_ > 1) crew_.end();
        begun_ = nullptr;
    }

    void compute(const Step& step, int64_t begin, int64_t end, int worker) {
        const Tile tile{workspaces_[worker].data(), end - begin, begin, end - begin};
        for (size_t i = 0; i < operations_.size(); ++i) {
            const double start = seconds_.empty() ? 0 : seconds_now();
            operations_[i]->run(step, tile);
            if (!seconds_.empty()) seconds_[i] += seconds_now() - start;
        }
    }

    std::vector<Value> values_;
    std::vector<std::unique_ptr<Operation>> operations_;
    std::vector<Numbers> workspaces_;  // of the caller and its helpers
    std::vector<double> seconds_;
    std::unique_ptr<std::mutex> one_at_a_time_ = std::make_unique<std::mutex>();
    int forks_ = forks;
    int64_t numbers_per_row_ = 0;
    Run* begun_ = nullptr;  // and not complete
    Team team_;
    Crew crew_;
};

inline Run::~Run() { program_->drop(*this); }

inline int64_t Run::release(int64_t rows) { return program_->release(*this, rows); }

inline int64_t Run::finish() { return program_->finish(*this); }

inline void Run::share(int worker) {
    for (int64_t tile = taken_; tile < released_;) {
        if (!taken_.compare_exchange_weak(tile, tile + 1)) continue;
        try {
            program_->compute(step, tile ? ends_[tile - 1] : 0, ends_[tile], worker);
        } catch (const std::bad_alloc&) {
            out_of_memory_ = true;
        }
        tile = taken_;
    }
}

}  // namespace amago

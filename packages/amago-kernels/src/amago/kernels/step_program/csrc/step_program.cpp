// A list of operations that maps one timestep of every row to an action, run without Python in between.
//
// Rows are shared out among threads in tiles; a tile goes through all operations in a workspace that stays in the
// thread's caches. The owner of a program gives it its weights (kept as packed copies) and, for every step, the
// addresses of what it reads and writes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <mutex>

#include "attend.h"
#include "choices.h"
#include "inputs.h"
#include "norms.h"
#include "peak.h"
#include "positions.h"
#include "recurrent.h"
#include "rows.h"
#include "selective.h"
#include "team.h"
#include "watch.h"

namespace py = pybind11;

namespace {

using namespace amago;

constexpr int64_t kTileRows = 4 * kBlockRows;
constexpr int64_t kRowsPerThread = 6;  // fewer do not make up for handing them to another thread

constexpr int64_t kDone = -1, kNegative = -2, kUndrawable = -3;

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
        const std::lock_guard alone(one_at_a_time_);
        operations_.at(operation)->set(reinterpret_cast<const float*>(matrix), rows, columns,
                                       reinterpret_cast<const float*>(vector), count);
    }

    // Runs the rows' step, and counts it in `lengths` if there are any. Returns kDone or kUndrawable; or, when nothing
    // was run, a position beyond the tables or kNegative.
    int64_t run(Step& step, int64_t table, int64_t* lengths, int threads) {
        const std::lock_guard alone(one_at_a_time_);
        if (table >= 0)
            for (int64_t row = 0; row < step.batch; ++row)
                if (const int64_t position = step.positions[row * step.position_stride];
                    position < 0 || position >= table)
                    return position < 0 ? kNegative : position;
        if (lengths)  // a negative one would be a slot outside the ring
            for (int64_t row = 0; row < step.batch; ++row)
                if (lengths[row] < 0) return kNegative;
        std::atomic<bool> undrawable{false};
        step.undrawable = &undrawable;
        const int64_t useful = std::max<int64_t>(1, step.batch / kRowsPerThread);
        const bool choice = threads > 1 && useful > 1;
        const bool together = choice && team_.together(omp_get_wtime());
        const int team = together ? static_cast<int>(std::min<int64_t>(threads, useful)) : 1;
        if (static_cast<int>(workspaces_.size()) < team) workspaces_.resize(team);
        if (team == 1)
            share(step, 0, step.batch, workspaces_[0], seconds_.empty() ? nullptr : &seconds_);
        else {
#pragma omp parallel num_threads(team)
            {
                const int64_t count = omp_get_num_threads(), me = omp_get_thread_num();
                share(step, step.batch * me / count, step.batch * (me + 1) / count, workspaces_[me], nullptr);
            }
        }
        if (lengths)
            for (int64_t row = 0; row < step.batch; ++row) ++lengths[row];
        return undrawable ? kUndrawable : kDone;
    }

    // Seconds that each operation has taken since the first call, in runs by one thread.
    std::vector<double> profile() {
        const std::lock_guard alone(one_at_a_time_);
        seconds_.resize(operations_.size());
        return seconds_;
    }

private:
    void share(const Step& step, int64_t begin, int64_t end, Numbers& workspace, std::vector<double>* profile) const {
        const int64_t tiles = (end - begin + kTileRows - 1) / kTileRows;
        if (tiles == 0) return;
        const int64_t size = (end - begin + tiles - 1) / tiles;
        const int64_t numbers = numbers_per_row_ * size + kPanel;  // some operations read a vector beyond the last row
        if (workspace.size() < numbers) workspace.assign(numbers, 0.0f);
        for (int64_t first = begin; first < end; first += size) {
            const Tile tile{workspace.data(), size, first, std::min(size, end - first)};
            for (size_t i = 0; i < operations_.size(); ++i) {
                const double start = profile ? omp_get_wtime() : 0;
                operations_[i]->run(step, tile);
                if (profile) (*profile)[i] += omp_get_wtime() - start;
            }
        }
    }

    std::vector<Value> values_;
    std::vector<std::unique_ptr<Operation>> operations_;
    std::vector<Numbers> workspaces_;
    std::vector<double> seconds_;
    std::mutex one_at_a_time_;  // a run goes on without Python's lock
    int64_t numbers_per_row_ = 0;
    Team team_;
};

}  // namespace

PYBIND11_MODULE(amago_step_program, m) {
    m.def("row_stride", &row_stride);
    m.def("peak_rate", &peak_rate);
    m.attr("DONE") = kDone;
    m.attr("UNDRAWABLE") = kUndrawable;
    py::class_<Watch>(m, "Watch")
        .def(py::init<>())
        .def("entry", &Watch::entry)
        .def("size", &Watch::size)
        .def("tensor", &Watch::tensor)
        .def("same_structure", &Watch::same_structure)
        .def("weights_changed", &Watch::weights_changed);
    py::class_<Program>(m, "Program")
        .def(py::init<>())
        .def("value", &Program::value)
        .def("set", &Program::set)
        .def("profile", &Program::profile)
        .def("gather",
             [](Program& p, int64_t out, const std::vector<std::array<int64_t, 3>>& pieces, bool symlog) {
                 std::vector<Piece> parts;
                 for (const auto& piece : pieces) parts.push_back({piece[0], piece[1], piece[2]});
                 return p.append<Gather>(p.at(out), parts, symlog);
             })
        .def("standardise",
             [](Program& p, int64_t x, int64_t out, float limit) {
                 return p.append<Standardise>(p.at(x), p.at(out), limit);
             })
        .def("linear",
             [](Program& p, int64_t x, int64_t out, const std::string& activation, float slope, int64_t add) {
                 return p.append<Linear>(p.at(x), p.at(out), activation_of(activation), slope, p.maybe(add));
             })
        .def("norm",
             [](Program& p, int64_t x, int64_t out, const std::string& kind, double number,
                const std::string& activation, float slope, int64_t add) {
                 return p.append<Norm>(p.at(x), p.at(out), norm_of(kind), number, activation_of(activation), slope,
                                       p.maybe(add));
             })
        .def("add_position", [](Program& p, int64_t x) { return p.append<AddPosition>(p.at(x)); })
        .def("rotate",
             [](Program& p, int64_t x, int64_t heads, int64_t dim) { return p.append<Rotate>(p.at(x), heads, dim); })
        .def("attend",
             [](Program& p, int64_t qkv, int64_t out, int64_t layer, int64_t heads, int64_t dim, int64_t window,
                int64_t sink, float sink_bias, float logit_clip, float scale) {
                 return p.append<Attend>(p.at(qkv), p.at(out), layer, heads, dim,
                                         AttentionOptions{window, sink, sink_bias, logit_clip, scale});
             })
        .def("recall", [](Program& p, int64_t out, int64_t state) { return p.append<Recall>(p.at(out), state); })
        .def("gru_cell",
             [](Program& p, int64_t from_input, int64_t from_hidden, int64_t hidden, int64_t out, int64_t state) {
                 return p.append<GruCell>(p.at(from_input), p.at(from_hidden), p.at(hidden), p.at(out), state);
             })
        .def("convolve",
             [](Program& p, int64_t x, int64_t out, int64_t taps, int64_t state) {
                 return p.append<Convolve>(p.at(x), p.at(out), taps, state);
             })
        .def("scan",
             [](Program& p, int64_t u, int64_t delta, int64_t bc, int64_t xz, int64_t out, int64_t state) {
                 return p.append<Scan>(p.at(u), p.at(delta), p.at(bc), p.at(xz), p.at(out), state);
             })
        .def("emit", [](Program& p, int64_t x) { return p.append<Emit>(p.at(x)); })
        .def("choose",
             [](Program& p, int64_t x, const std::vector<int64_t>& sizes, const std::vector<float>& lows,
                const std::vector<float>& highs) {
                 std::vector<Component> components;
                 for (size_t c = 0; c < sizes.size(); ++c) components.push_back({sizes[c], lows.at(c), highs.at(c)});
                 return p.append<Choose>(p.at(x), components);
             })
        .def("squash",
             [](Program& p, int64_t x, float log_low, float log_high) {
                 return p.append<Squash>(p.at(x), log_low, log_high);
             })
        .def(
            "run",
            [](Program& p, int64_t batch, const std::vector<std::pair<uintptr_t, int64_t>>& inputs,
               uintptr_t positions, int64_t position_stride, int64_t table, uintptr_t keys, uintptr_t values,
               uintptr_t lengths, int64_t slots, const std::vector<std::pair<uintptr_t, uintptr_t>>& states,
               uintptr_t noise, uintptr_t out, bool sample, int threads) {
                Step step;
                for (const auto& [address, stride] : inputs) step.inputs.push_back({address, stride});
                step.positions = reinterpret_cast<const int64_t*>(positions);
                step.position_stride = position_stride;
                step.keys = reinterpret_cast<float*>(keys);
                step.values = reinterpret_cast<float*>(values);
                step.lengths = reinterpret_cast<const int64_t*>(lengths);
                step.slots = slots;
                for (const auto& [before, after] : states)
                    step.states.push_back({reinterpret_cast<const float*>(before), reinterpret_cast<float*>(after)});
                step.batch = batch;
                step.noise = reinterpret_cast<const float*>(noise);
                step.out = reinterpret_cast<void*>(out);
                step.sample = sample;
                return p.run(step, table, reinterpret_cast<int64_t*>(lengths), threads);
            },
            py::call_guard<py::gil_scoped_release>());
}

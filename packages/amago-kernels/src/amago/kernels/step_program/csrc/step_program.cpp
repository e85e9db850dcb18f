// A list of operations that maps one timestep of every row to an action, run without Python in between.
//
// Rows are shared out among threads in tiles; a tile goes through all operations in a workspace that stays in the
// thread's caches. The owner of a program gives it its weights (kept as packed copies) and, for every step, the
// addresses of what it reads and writes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>

#include "attend.h"
#include "choices.h"
#include "inputs.h"
#include "norms.h"
#include "peak.h"
#include "positions.h"
#include "program.h"
#include "recurrent.h"
#include "selective.h"
#include "watch.h"

namespace py = pybind11;

using namespace amago;

namespace {

// A run with what keeps its addresses valid.
struct Prepared {
    std::unique_ptr<Run> run;
    py::object kept;
    Prepared(std::unique_ptr<Run> of, py::object keep) : run(std::move(of)), kept(std::move(keep)) {}
    ~Prepared() { run.reset(); }  // first, as it waits for the helpers
};

}  // namespace

PYBIND11_MODULE(amago_step_program, m) {
    m.def("row_stride", &row_stride);
    m.def("peak_rate", &peak_rate);
    m.attr("DONE") = kDone;
    m.attr("UNDRAWABLE") = kUndrawable;
    m.attr("WRONG_ROWS") = kWrongRows;
    m.attr("OUT_OF_MEMORY") = kOutOfMemory;
    py::class_<Watch>(m, "Watch")
        .def(py::init<>())
        .def("entry", &Watch::entry)
        .def("size", &Watch::size)
        .def("tensor", &Watch::tensor)
        .def("same_structure", &Watch::same_structure)
        .def("weights_changed", &Watch::weights_changed);
    py::class_<Program, std::shared_ptr<Program>>(m, "Program")
        .def(py::init([] { return std::make_shared<Program>(); }))
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
        .def("prepare",
             [](const std::shared_ptr<Program>& p, int64_t batch,
                const std::vector<std::pair<uintptr_t, int64_t>>& inputs, uintptr_t positions, int64_t position_stride,
                int64_t table, uintptr_t keys, uintptr_t values, uintptr_t lengths, int64_t slots,
                const std::vector<std::pair<uintptr_t, uintptr_t>>& states, uintptr_t noise, uintptr_t out,
                bool sample, int threads, py::object keep) {
                 auto run = std::make_unique<Run>(p);
                 Step& step = run->step;
                 for (const auto& [address, stride] : inputs) step.inputs.push_back({address, stride});
                 step.positions = reinterpret_cast<const int64_t*>(positions);
                 step.position_stride = position_stride;
                 step.keys = reinterpret_cast<float*>(keys);
                 step.values = reinterpret_cast<float*>(values);
                 step.lengths = reinterpret_cast<int64_t*>(lengths);
                 step.slots = slots;
                 for (const auto& [before, after] : states)
                     step.states.push_back({reinterpret_cast<const float*>(before), reinterpret_cast<float*>(after)});
                 step.batch = batch;
                 step.noise = reinterpret_cast<const float*>(noise);
                 step.out = reinterpret_cast<void*>(out);
                 step.sample = sample;
                 run->table = table;
                 run->threads = threads;
                 return std::make_unique<Prepared>(std::move(run), std::move(keep));
             });
    py::class_<Prepared>(m, "Run")
        .def("release", [](Prepared& prepared, int64_t rows) { return prepared.run->release(rows); })
        .def("finish", [](Prepared& prepared) { return prepared.run->finish(); }, py::call_guard<py::gil_scoped_release>());
}

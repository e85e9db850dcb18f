// Acting on a CPU in one call: a list of operations that maps one timestep of every row to an action.
//
// Rows are divided into tiles; a tile goes through all operations in a workspace that stays in the thread's caches.
// Weights are copied when an operation is added; every call gets the addresses of what it reads and writes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <tuple>

#include "actions.h"
#include "layers.h"
#include "memory.h"
#include "program.h"

namespace py = pybind11;

using namespace amago;

namespace {

using Matrix = std::tuple<uintptr_t, int64_t, int64_t>;  // address, rows, columns
using Follow = std::tuple<std::string, float, int64_t>;  // activation, slope, value to add or -1

Array array_of(const Matrix& matrix) {
    const auto& [address, rows, columns] = matrix;
    return {reinterpret_cast<const float*>(address), rows, columns};
}

Epilogue epilogue_of(const Program& program, const Follow& follow) {
    const auto& [activation, slope, add] = follow;
    return {activation_of(activation), slope, add < 0 ? nullptr : &program.at(add)};
}

template <class T>
T* pointer(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

}  // namespace

PYBIND11_MODULE(amago_acting, m) {
    m.def("row_stride", &row_stride);
    m.attr("DONE") = kDone;
    m.attr("UNDRAWABLE") = kUndrawable;
    py::class_<Program>(m, "Program")
        .def(py::init<>())
        .def("value", &Program::value)
        .def("set_table",
             [](Program& p, int64_t operation, const Matrix& table) { p.set_table(operation, array_of(table)); })
        .def("gather",
             [](Program& p, int64_t out, const std::vector<std::array<int64_t, 3>>& parts, bool symlog) {
                 std::vector<InputPart> inputs;
                 for (const auto& part : parts) inputs.push_back({part[0], part[1], part[2]});
                 return p.append<Gather>(p.at(out), inputs, symlog);
             })
        .def("standardise",
             [](Program& p, int64_t x, int64_t out, float limit, const Matrix& deviation, const Matrix& mean) {
                 return p.append<Standardise>(p.at(x), p.at(out), limit, array_of(deviation), array_of(mean));
             })
        .def("linear",
             [](Program& p, int64_t x, int64_t out, const Matrix& weight, const Matrix& bias, const Follow& follow) {
                 return p.append<Linear>(p.at(x), p.at(out), array_of(weight), array_of(bias), epilogue_of(p, follow));
             })
        .def("norm",
             [](Program& p, int64_t x, int64_t out, const std::string& kind, double number, const Matrix& scale,
                const Matrix& shift, const Follow& follow) {
                 return p.append<Norm>(p.at(x), p.at(out), norm_of(kind), number, array_of(scale), array_of(shift),
                                       epilogue_of(p, follow));
             })
        .def("add_position", [](Program& p, int64_t x) { return p.append<AddPosition>(p.at(x)); })
        .def("rotate",
             [](Program& p, int64_t x, int64_t heads, int64_t dim) { return p.append<Rotate>(p.at(x), heads, dim); })
        .def("attend",
             [](Program& p, int64_t qkv, int64_t out, int64_t layer, int64_t heads, int64_t dim, int64_t window,
                int64_t sink, double sink_bias, double logit_clip, double scale) {
                 const AttentionOptions options{window, sink, sink_bias, logit_clip, scale};
                 return p.append<Attend>(p.at(qkv), p.at(out), layer, heads, dim, options);
             })
        .def("read_state", [](Program& p, int64_t out, int64_t state) { return p.append<ReadState>(p.at(out), state); })
        .def("gru_cell",
             [](Program& p, int64_t from_input, int64_t from_hidden, int64_t hidden, int64_t out, int64_t state) {
                 return p.append<GruCell>(p.at(from_input), p.at(from_hidden), p.at(hidden), p.at(out), state);
             })
        .def("convolve",
             [](Program& p, int64_t x, int64_t out, int64_t taps, int64_t state, const Matrix& weight,
                const Matrix& bias) {
                 return p.append<Convolve>(p.at(x), p.at(out), taps, state, array_of(weight), array_of(bias));
             })
        .def("scan",
             [](Program& p, int64_t u, int64_t delta, int64_t bc, int64_t xz, int64_t out, int64_t state,
                const Matrix& rates, const Matrix& skip) {
                 return p.append<Scan>(p.at(u), p.at(delta), p.at(bc), p.at(xz), p.at(out), state, array_of(rates),
                                       array_of(skip));
             })
        .def("emit", [](Program& p, int64_t x) { return p.append<Emit>(p.at(x)); })
        .def("choose",
             [](Program& p, int64_t x, const std::vector<std::tuple<int64_t, float, float>>& components) {
                 std::vector<Component> all;
                 for (const auto& [size, low, high] : components) all.push_back({size, low, high});
                 return p.append<Choose>(p.at(x), all);
             })
        .def("squash",
             [](Program& p, int64_t x, float log_low, float log_high) {
                 return p.append<Squash>(p.at(x), log_low, log_high);
             })
        .def(
            "run",
            [](Program& p, int64_t batch, const std::vector<std::pair<uintptr_t, int64_t>>& inputs, uintptr_t positions,
               int64_t table_positions, uintptr_t keys, uintptr_t values, uintptr_t lengths, int64_t slots,
               const std::vector<std::pair<uintptr_t, uintptr_t>>& states, uintptr_t noise, uintptr_t out,
               int threads) {
                Step step{batch,
                          {},
                          pointer<const int64_t>(positions),
                          pointer<float>(keys),
                          pointer<float>(values),
                          pointer<int64_t>(lengths),
                          slots,
                          {},
                          pointer<const float>(noise),
                          pointer<void>(out),
                          nullptr};
                for (const auto& [address, stride] : inputs)
                    step.inputs.push_back({pointer<const float>(address), stride});
                for (const auto& [before, after] : states)
                    step.states.push_back({pointer<const float>(before), pointer<float>(after)});
                return p.run(step, table_positions, threads);
            },
            py::call_guard<py::gil_scoped_release>());
}

// Drafts from a request's own text, in C++.
//
//     c++ -std=c++17 lookup.cpp $(pkg-config --cflags --libs spec) -o lookup && ./lookup
#include <spec.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// Throws the library's own words for what went wrong.
void check(spec_status status) {
    if (status == SPEC_STATUS_SUCCESS) {
        return;
    }
    std::string words(spec_last_error(nullptr, 0), '\0');
    spec_last_error(words.data(), words.size());
    words.pop_back();
    throw std::runtime_error(words);
}

struct Close {
    void operator()(spec_handle *handle) const { spec_close(handle); }
    void operator()(spec_descriptor *descriptor) const { spec_destroy(descriptor); }
};
using Handle = std::unique_ptr<spec_handle, Close>;
using Descriptor = std::unique_ptr<spec_descriptor, Close>;

Handle open(const char *device) {
    spec_handle *handle = nullptr;
    check(spec_open(device, &handle));
    return Handle(handle);
}

spec_tensor tensor(std::uint32_t dtype, std::initializer_list<std::int64_t> shape) {
    spec_tensor tensor{};
    tensor.dtype = dtype;
    for (std::int64_t extent : shape) {
        tensor.shape[tensor.rank++] = extent;
    }
    return tensor;
}

} // namespace

int main() try {
    // "The quick brown fox jumps over the lazy dog. The quick brown", in a row with room
    // for 16 tokens.
    constexpr std::int64_t kBatch = 1, kMost = 16, kDrafts = 4;
    const std::vector<std::int32_t> tokens = {791,   4062, 14198, 39935, 35308, 927, 279, 16053,
                                              5679, 13,   578,   4062,  14198, 0,   0,   0};
    const std::vector<std::int32_t> lengths = {13};
    std::vector<std::int32_t> drafts(kBatch * kDrafts), counts(kBatch);

    Handle cpu = open("cpu");

    spec_prompt_lookup_params params{};
    params.size = sizeof params;
    check(spec_prompt_lookup_defaults(&params));
    params.max_draft = kDrafts;

    spec_prompt_lookup_tensors tensors{};
    tensors.size = sizeof tensors;
    tensors.tokens = tensor(SPEC_DTYPE_I32, {kBatch, kMost});
    tensors.lengths = tensor(SPEC_DTYPE_I32, {kBatch});
    tensors.drafts = tensor(SPEC_DTYPE_I32, {kBatch, kDrafts});
    tensors.counts = tensor(SPEC_DTYPE_I32, {kBatch});

    spec_descriptor *created = nullptr;
    check(spec_prompt_lookup_create(cpu.get(), &params, &tensors, &created));
    Descriptor lookup(created);

    std::size_t bytes = 0;
    check(spec_workspace_size(lookup.get(), &bytes));
    std::vector<unsigned char> workspace(bytes);

    spec_prompt_lookup_buffers buffers{};
    buffers.size = sizeof buffers;
    buffers.tokens = tokens.data();
    buffers.lengths = lengths.data();
    buffers.drafts = drafts.data();
    buffers.counts = counts.data();
    check(spec_prompt_lookup_calculate(lookup.get(), workspace.data(), bytes, &buffers, nullptr));

    // " fox jumps over the"
    std::printf("%d drafts:", counts[0]);
    for (std::int32_t draft : drafts) {
        std::printf(" %d", draft);
    }
    std::printf("\n");
    return drafts == std::vector<std::int32_t>{39935, 35308, 927, 279} ? 0 : 1;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}

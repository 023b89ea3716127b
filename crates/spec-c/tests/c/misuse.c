/* Wrong calls. Each must return a status and leave a sentence; none may crash. */
#include <spec.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

/* Checks that a call returns the expected status and that its sentence has the expected words. */
#define EXPECT(call, wanted, part)                                                          \
    do {                                                                                    \
        const int status_ = (int)(call);                                                    \
        char words_[1024] = "";                                                             \
        if (status_ != SPEC_STATUS_SUCCESS) {                                               \
            spec_last_error(words_, sizeof words_);                                         \
        }                                                                                   \
        if (status_ != (int)(wanted) || strstr(words_, (part)) == NULL) {                   \
            fprintf(stderr, "line %d: status %d, expected %d with \"%s\": %s\n", __LINE__,  \
                    status_, (int)(wanted), (part), words_);                                \
            failures++;                                                                     \
        }                                                                                   \
    } while (0)
#define FINE(call) EXPECT(call, SPEC_STATUS_SUCCESS, "")

static spec_tensor tensor(uint32_t dtype, uint32_t rank, int64_t rows, int64_t cols) {
    spec_tensor made = {0};
    made.dtype = dtype;
    made.rank = rank;
    made.shape[0] = rows;
    made.shape[1] = cols;
    return made;
}

enum { TOKENS = 2, EXPERTS = 8, TOPK = 2, KEYS = 5000 };

static spec_topk_router_params router_params(void) {
    spec_topk_router_params params = {0};
    params.size = sizeof params;
    FINE(spec_topk_router_preset("Mixtral", &params, NULL, NULL));
    return params;
}

static spec_topk_router_tensors router_tensors(int64_t tokens) {
    spec_topk_router_tensors tensors = {0};
    tensors.size = sizeof tensors;
    tensors.x = tensor(SPEC_DTYPE_F32, 2, tokens, EXPERTS);
    tensors.weights = tensor(SPEC_DTYPE_F32, 2, tokens, TOPK);
    tensors.indices = tensor(SPEC_DTYPE_I32, 2, tokens, TOPK);
    return tensors;
}

static void devices(void) {
    spec_handle *handle = NULL;
    EXPECT(spec_open(NULL, &handle), SPEC_STATUS_NULL_POINTER, "`device` is a null pointer");
    EXPECT(spec_open("cpu", NULL), SPEC_STATUS_NULL_POINTER, "`handle`");
    EXPECT(spec_open("toaster", &handle), SPEC_STATUS_BAD_PARAM, "`toaster` is no device");
    EXPECT(spec_open("cpu:1", &handle), SPEC_STATUS_BAD_PARAM, "cpu:1");
    EXPECT(spec_open("\xff\xfe", &handle), SPEC_STATUS_BAD_PARAM, "UTF-8");
    EXPECT(spec_open("cuda:99", &handle), SPEC_STATUS_DEVICE_NOT_FOUND, "cuda");
    if (handle != NULL) {
        fprintf(stderr, "a handle without a device\n");
        failures++;
    }
    size_t count = 0;
    EXPECT(spec_devices(NULL, 0, NULL), SPEC_STATUS_NULL_POINTER, "`count`");
    EXPECT(spec_devices(NULL, 1, &count), SPEC_STATUS_NULL_POINTER, "`devices`");
    FINE(spec_devices(NULL, 0, &count));
    spec_device *all = calloc(count, sizeof *all);
    FINE(spec_devices(all, count, &count));
    int found = 0;
    for (size_t i = 0; i < count; i++) {
        found |= strcmp(all[i].name, "cpu") == 0 && all[i].status == SPEC_STATUS_SUCCESS;
    }
    if (!found) {
        fprintf(stderr, "the CPU is not listed\n");
        failures++;
    }
    free(all);
}

static void handles(void) {
    uint64_t words[32] = {0};
    unsigned char *zeros = (unsigned char *)words;
    spec_handle *handle = NULL;
    EXPECT(spec_close(NULL), SPEC_STATUS_NULL_POINTER, "handle");
    EXPECT(spec_synchronize(NULL), SPEC_STATUS_NULL_POINTER, "handle");
    EXPECT(spec_close((spec_handle *)(void *)zeros), SPEC_STATUS_BAD_PARAM, "closed already");
    EXPECT(spec_close((spec_handle *)(void *)(zeros + 1)), SPEC_STATUS_BAD_PARAM, "handle");
    FINE(spec_open("cpu", &handle));
    FINE(spec_synchronize(handle));
    EXPECT(spec_handle_device(handle, NULL), SPEC_STATUS_NULL_POINTER, "`device`");
    EXPECT(spec_destroy((spec_descriptor *)(void *)handle), SPEC_STATUS_BAD_PARAM, "descriptor");
    FINE(spec_close(handle));
    EXPECT(spec_close(handle), SPEC_STATUS_BAD_PARAM, "closed already");
    EXPECT(spec_synchronize(handle), SPEC_STATUS_BAD_PARAM, "closed already");
}

static void creating(spec_handle *cpu) {
    spec_descriptor *router = NULL;
    const spec_topk_router_params usual = router_params();
    const spec_topk_router_tensors described = router_tensors(TOKENS);
    spec_topk_router_params params;
    spec_topk_router_tensors tensors;

#define CREATE() spec_topk_router_create(cpu, &params, &tensors, &router)
#define WITH(change) (params = usual, tensors = described, (change), CREATE())
    EXPECT(spec_topk_router_create(NULL, &usual, &described, &router), SPEC_STATUS_NULL_POINTER, "handle");
    EXPECT(spec_topk_router_create(cpu, NULL, &described, &router), SPEC_STATUS_NULL_POINTER, "`params`");
    EXPECT(spec_topk_router_create(cpu, &usual, NULL, &router), SPEC_STATUS_NULL_POINTER, "`tensors`");
    EXPECT(spec_topk_router_create(cpu, &usual, &described, NULL), SPEC_STATUS_NULL_POINTER, "`descriptor`");
    EXPECT(WITH(params.size = 0), SPEC_STATUS_BAD_PARAM, "sizeof");
    EXPECT(WITH(params.size = SIZE_MAX), SPEC_STATUS_BAD_PARAM, "sizeof");
    EXPECT(WITH(tensors.size = 7), SPEC_STATUS_BAD_PARAM, "sizeof");
    EXPECT(WITH(tensors.size = sizeof(size_t)), SPEC_STATUS_NULL_POINTER, "`x` is absent");
    EXPECT(WITH(params.scoring = 9), SPEC_STATUS_BAD_PARAM, "SPEC_SCORING_SIGMOID");
    EXPECT(WITH(params.renormalize = 2), SPEC_STATUS_BAD_PARAM, "`renormalize` is 2");
    EXPECT(WITH(params.topk = 0), SPEC_STATUS_BAD_PARAM, "`topk` is 0");
    EXPECT(WITH(params.topk = SIZE_MAX), SPEC_STATUS_BAD_PARAM, "`topk`");
    EXPECT(WITH(params.groups = 3), SPEC_STATUS_BAD_PARAM, "`groups` is 3");
    EXPECT(WITH(tensors.x.dtype = 77), SPEC_STATUS_BAD_TENSOR_DTYPE, "`x` is of dtype 77");
    EXPECT(WITH(tensors.x.dtype = SPEC_DTYPE_I32), SPEC_STATUS_BAD_TENSOR_DTYPE, "`x`");
    EXPECT(WITH(tensors.x.dtype = SPEC_DTYPE_NONE), SPEC_STATUS_NULL_POINTER, "`x` is absent");
    EXPECT(WITH(tensors.x.rank = 0), SPEC_STATUS_BAD_TENSOR_SHAPE, "rank 0");
    EXPECT(WITH(tensors.x.rank = UINT32_MAX), SPEC_STATUS_BAD_TENSOR_SHAPE, "rank 4294967295");
    EXPECT(WITH(tensors.x.shape[0] = -1), SPEC_STATUS_BAD_TENSOR_SHAPE, "[-1, 8]");
    EXPECT(WITH(tensors.x.shape[0] = INT64_MAX), SPEC_STATUS_BAD_TENSOR_SHAPE, "`x`");
    EXPECT(WITH(tensors.x.shape[1] = 0), SPEC_STATUS_BAD_TENSOR_SHAPE, "`x`");
    EXPECT(WITH((tensors.x.strides[0] = 8, tensors.x.strides[1] = 2)), SPEC_STATUS_BAD_TENSOR_STRIDES, "`x`");
    EXPECT(WITH((tensors.x.strides[0] = INT64_MIN, tensors.x.strides[1] = 1)), SPEC_STATUS_BAD_TENSOR_STRIDES, "`x`");
    if (router != NULL) {
        fprintf(stderr, "a descriptor that was refused\n");
        failures++;
    }

    /* A struct of a later version is accepted as long as its new fields are zero. */
    struct {
        spec_topk_router_params params;
        size_t later;
    } longer = {usual, 0};
    longer.params.size = sizeof longer;
    FINE(spec_topk_router_create(cpu, &longer.params, &described, &router));
    FINE(spec_destroy(router));
    longer.later = 1;
    EXPECT(spec_topk_router_create(cpu, &longer.params, &described, &router), SPEC_STATUS_BAD_PARAM,
           "older than the header");

    /* A struct of an earlier version is accepted; the missing parameters have their defaults. */
    params = usual;
    params.size = offsetof(spec_topk_router_params, shared_weight);
    params.physical_experts = 3;
    FINE(spec_topk_router_create(cpu, &params, &described, &router));
    FINE(spec_destroy(router));

    EXPECT(spec_topk_router_preset("GPT-2", &params, NULL, NULL), SPEC_STATUS_BAD_PARAM, "Mixtral");
    EXPECT(spec_topk_router_preset(NULL, &params, NULL, NULL), SPEC_STATUS_NULL_POINTER, "`model`");
    EXPECT(spec_topk_router_defaults(NULL), SPEC_STATUS_NULL_POINTER, "`params`");
}

static void calling(spec_handle *cpu) {
    spec_descriptor *router = NULL, *empty = NULL, *unique = NULL;
    const spec_topk_router_params params = router_params();
    const spec_topk_router_tensors described = router_tensors(TOKENS), none = router_tensors(0);
    FINE(spec_topk_router_create(cpu, &params, &described, &router));

    float x[TOKENS * EXPERTS + 1] = {0}, weights[TOKENS * TOPK];
    int32_t indices[TOKENS * TOPK];
    uint32_t flags = 0;
    spec_topk_router_buffers good = {0}, buffers;
    good.size = sizeof good;
    good.x = x;
    good.weights = weights;
    good.indices = indices;

#define CALL(change, descriptor, size, stream)                                              \
    (buffers = good, (change), spec_topk_router_calculate(descriptor, NULL, size, &buffers, stream))
    size_t bytes = 0;
    FINE(spec_workspace_size(router, &bytes));
    if (bytes != 0) {
        fprintf(stderr, "the router wants a workspace: these calls bring none\n");
        failures++;
    }
    FINE(CALL((void)0, router, 0, NULL));
    char words[256], start[8];
    FINE(spec_route(router, words, sizeof words, &bytes));
    FINE(spec_route(router, start, sizeof start, NULL));
    if (strncmp(words, "topk_router", 11) != 0 || strlen(words) + 1 != bytes || strcmp(start, "topk_ro") != 0) {
        fprintf(stderr, "the route is `%s`, cut `%s`, of %zu bytes\n", words, start, bytes);
        failures++;
    }
    FINE(spec_route(router, NULL, 0, &bytes));
    EXPECT(spec_route(NULL, words, sizeof words, NULL), SPEC_STATUS_NULL_POINTER, "descriptor");
    EXPECT(spec_workspace_size(NULL, &bytes), SPEC_STATUS_NULL_POINTER, "descriptor");
    EXPECT(spec_workspace_size(router, NULL), SPEC_STATUS_NULL_POINTER, "`bytes`");
    EXPECT(spec_topk_router_calculate(router, NULL, 0, NULL, NULL), SPEC_STATUS_NULL_POINTER, "`buffers`");
    EXPECT(CALL((void)0, NULL, 0, NULL), SPEC_STATUS_NULL_POINTER, "descriptor");
    EXPECT(CALL(buffers.size = 3, router, 0, NULL), SPEC_STATUS_BAD_PARAM, "sizeof");
    EXPECT(CALL(buffers.x = NULL, router, 0, NULL), SPEC_STATUS_NULL_POINTER, "`x` is a null pointer");
    EXPECT(CALL(buffers.weights = NULL, router, 0, NULL), SPEC_STATUS_NULL_POINTER, "`weights`");
    EXPECT(CALL(buffers.x = (const char *)x + 1, router, 0, NULL), SPEC_STATUS_BAD_PARAM, "multiple of 4");
    EXPECT(CALL(buffers.flags = &flags, router, 0, NULL), SPEC_STATUS_BAD_PARAM, "`flags` is given");
    EXPECT(CALL((void)0, router, 0, (void *)x), SPEC_STATUS_DEVICE_TYPE_NOT_SUPPORTED, "stream");

    /* A call without tokens needs no memory. */
    FINE(spec_topk_router_create(cpu, &params, &none, &empty));
    FINE(CALL((buffers.x = NULL, buffers.weights = NULL, buffers.indices = NULL), empty, 0, NULL));
    FINE(spec_destroy(empty));

    /* An operator that needs a workspace, unlike the router. */
    static uint64_t keys[KEYS], distinct[KEYS], count[1];
    spec_unique_params nothing = {0};
    nothing.size = sizeof nothing;
    spec_unique_tensors tensors = {0};
    tensors.size = sizeof tensors;
    tensors.keys = tensor(SPEC_DTYPE_U64, 1, KEYS, 0);
    tensors.unique = tensor(SPEC_DTYPE_U64, 1, KEYS, 0);
    tensors.count = tensor(SPEC_DTYPE_U64, 1, 1, 0);
    FINE(spec_unique_create(cpu, &nothing, &tensors, &unique));
    spec_unique_buffers of_unique = {0};
    of_unique.size = sizeof of_unique;
    of_unique.keys = keys;
    of_unique.unique = distinct;
    of_unique.count = count;
    FINE(spec_workspace_size(unique, &bytes));
    if (bytes == 0) {
        fprintf(stderr, "unique wants no workspace: nothing is tested here\n");
        failures++;
    }
    void *workspace = malloc(bytes);
    EXPECT(spec_unique_calculate(unique, workspace, bytes - 1, &of_unique, NULL),
           SPEC_STATUS_INSUFFICIENT_WORKSPACE, "at least");
    EXPECT(spec_unique_calculate(unique, NULL, bytes, &of_unique, NULL), SPEC_STATUS_NULL_POINTER, "workspace");
    EXPECT(spec_unique_calculate(router, workspace, bytes, &of_unique, NULL), SPEC_STATUS_BAD_PARAM,
           "of topk_router");
    FINE(spec_unique_calculate(unique, workspace, bytes, &of_unique, NULL));
    free(workspace);

    FINE(spec_destroy(unique));
    FINE(spec_destroy(router));
    EXPECT(spec_destroy(router), SPEC_STATUS_BAD_PARAM, "closed already");
    EXPECT(spec_destroy(NULL), SPEC_STATUS_NULL_POINTER, "descriptor");
    EXPECT(CALL((void)0, router, 0, NULL), SPEC_STATUS_BAD_PARAM, "closed already");
}

static void memory(spec_handle *cpu) {
    spec_memory *held = NULL;
    void *address = NULL;
    char bytes[16] = "0123456789abcde";
    EXPECT(spec_allocate(NULL, 16, &held), SPEC_STATUS_NULL_POINTER, "handle");
    EXPECT(spec_allocate(cpu, 16, NULL), SPEC_STATUS_NULL_POINTER, "`memory`");
    EXPECT(spec_allocate(cpu, SIZE_MAX, &held), SPEC_STATUS_INTERNAL_ERROR, "memory");
    FINE(spec_allocate(cpu, 16, &held));
    FINE(spec_write(held, 0, bytes, 16));
    FINE(spec_write(held, 0, NULL, 0));
    EXPECT(spec_write(held, 4, bytes, 16), SPEC_STATUS_BAD_TENSOR_SHAPE, "");
    EXPECT(spec_write(held, 2, bytes, 4), SPEC_STATUS_BAD_PARAM, "`offset` is 2");
    EXPECT(spec_write(held, SIZE_MAX - 3, bytes, 16), SPEC_STATUS_BAD_TENSOR_SHAPE, "");
    EXPECT(spec_write(held, 0, bytes, SIZE_MAX), SPEC_STATUS_BAD_PARAM, "`bytes`");
    EXPECT(spec_write(held, 0, NULL, 4), SPEC_STATUS_NULL_POINTER, "`from`");
    EXPECT(spec_read(held, 0, NULL, 4), SPEC_STATUS_NULL_POINTER, "`to`");
    FINE(spec_read(held, 8, bytes, 8));
    if (memcmp(bytes, "89abcde", 8) != 0) {
        fprintf(stderr, "memory holds something else\n");
        failures++;
    }
    FINE(spec_memory_address(held, &address));
    EXPECT(spec_memory_address(held, NULL), SPEC_STATUS_NULL_POINTER, "`address`");
    FINE(spec_free(held));
    EXPECT(spec_free(held), SPEC_STATUS_BAD_PARAM, "closed already");
    EXPECT(spec_read(held, 0, bytes, 4), SPEC_STATUS_BAD_PARAM, "closed already");
    EXPECT(spec_free(NULL), SPEC_STATUS_NULL_POINTER, "memory");
}

int main(void) {
    spec_handle *cpu = NULL;
    if (spec_abi_version() != SPEC_ABI_VERSION) {
        fprintf(stderr, "the library is of version %u\n", (unsigned)spec_abi_version());
        return EXIT_FAILURE;
    }
    devices();
    handles();
    FINE(spec_open("cpu", &cpu));
    creating(cpu);
    calling(cpu);
    memory(cpu);
    FINE(spec_close(cpu));
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
